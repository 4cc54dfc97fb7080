"""Rules as plain data."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from controllers.pipeline import (
    PathTable,
    Rule,
    SelectGroup,
    bank_content,
    bank_rule,
    base_rules,
    check_switch,
    covering_prefix,
)
from topologies.errors import LabError
from topologies.fabric import Fabric, describe
from topologies.spec import FabricSpec


@pytest.fixture
def fabric() -> Fabric:
    return describe(FabricSpec.from_dict({"shape": "leaf_spine", "leaves": 2, "spines": 2, "hosts_per_leaf": 2,
                                          "slowdown": 1000}))


def test_a_leaf_knows_its_own_hosts_and_a_spine_all(fabric: Fabric) -> None:
    assert base_rules(fabric, fabric.switch("leaf1")) == [
        Rule(0, 200, destination="10.0.1.1/32", output=1), Rule(0, 200, destination="10.0.1.2/32", output=2)]
    assert [(rule.destination, rule.output) for rule in base_rules(fabric, fabric.switch("spine0"))] == [
        ("10.0.0.1/32", 1), ("10.0.0.2/32", 1), ("10.0.1.1/32", 2), ("10.0.1.2/32", 2)]


def test_one_rule_says_which_bank(fabric: Fabric) -> None:
    assert bank_rule(fabric, 2) == Rule(0, 100, destination="10.0.0.0/23", goto=2)


def test_a_bank_holds_the_path_table_or_a_group(fabric: Fabric) -> None:
    uplinks = fabric.uplinks("leaf0")
    rules, groups = bank_content(1, PathTable("flowlet", np.array([0, 1, 1, 0])), uplinks)
    assert [rule.output for rule in rules] == [3, 4, 4, 3]
    assert {rule.table for rule in rules} == {1}
    assert len({rule.source_mac for rule in rules}) == 4
    assert groups == []
    rules, groups = bank_content(2, PathTable("group", np.array([0, 1])), uplinks)
    assert rules == [Rule(2, 100, group=2)]
    assert groups == [SelectGroup(2, (3, 4))]


def test_the_prefix_covers_all_hosts_and_no_more_than_needed(fabric: Fabric) -> None:
    hosts = fabric.hosts
    assert covering_prefix(hosts[:1]) == "10.0.0.1/32"
    assert covering_prefix(hosts[:2]) == "10.0.0.0/30"
    assert covering_prefix([dataclasses.replace(hosts[0], ip="10.0.0.1"),
                            dataclasses.replace(hosts[1], ip="192.168.0.1")]) == "0.0.0.0/0"


def test_a_host_that_no_port_leads_to_is_an_error(fabric: Fabric) -> None:
    lost = dataclasses.replace(fabric.hosts[0], leaf="leaf9")
    broken = dataclasses.replace(fabric, hosts=(*fabric.hosts[1:], dataclasses.replace(lost, name="h9")))
    with pytest.raises(LabError, match="spine0 has no link towards h9"):
        base_rules(broken, broken.switch("spine0"))


def test_ports_are_compared_with_the_description(fabric: Fabric) -> None:
    leaf = fabric.switch("leaf0")
    right = {port.number: port.interface for port in fabric.ports_of(leaf)}
    assert check_switch(fabric, leaf, {**right, 99: "other"}) == []
    wrong = {number: name for number, name in right.items() if number != 1} | {2: "eth0"}
    assert check_switch(fabric, leaf, wrong) == [
        f"leaf0: port 1 ({right[1]}) is missing", f"leaf0: port 2 is eth0, should be {right[2]}"]


def test_a_leaf_of_a_ring_drops_what_comes_round() -> None:
    ring = describe(FabricSpec(shape="switch_ring", leaves=3, hosts_per_leaf=1, slowdown=1000))
    assert base_rules(ring, ring.switch("sw1")) == [
        Rule(0, 200, destination="10.0.1.1/32", output=1), Rule(0, 300, in_port=3, source="10.0.1.1/32")]
