"""Rules in fake switches: everybody reaches everybody under every policy, and a switch-over loses nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from controllers.fleet import Fleet
from controllers.path_table import Move
from controllers.pipeline import PathTable
from controllers.registry import BUILT_IN, create_policy
from controllers.steering import Steering
from tests.unit.controllers.fake_switch import FakeSwitch, Frame, ofp
from topologies.errors import LabError
from topologies.fabric import Fabric, describe
from topologies.spec import FabricSpec


def fabric_of(leaves: int = 3, spines: int = 3, hosts_per_leaf: int = 2) -> Fabric:
    return describe(FabricSpec.from_dict({"shape": "leaf_spine", "leaves": leaves, "spines": spines,
                                          "hosts_per_leaf": hosts_per_leaf, "slowdown": 10_000}))


def steering_of(fabric: Fabric, policy: str, seed: int = 1, same_seed: bool = False) -> Steering:
    return Steering(fabric, create_policy(policy), {}, seed, same_seed)


class FakeFabric:
    """All switches of a fabric, connected to a fleet."""

    def __init__(self, fabric: Fabric, policy: str = "ecmp") -> None:
        self.fabric = fabric
        self.fleet = Fleet(fabric)
        self.steering = steering_of(fabric, policy)
        self.switches = {switch.name: FakeSwitch(switch.name, switch.dpid) for switch in fabric.switches}
        for switch in fabric.switches:
            self.connect(switch.name)

    def connect(self, name: str) -> None:
        self.fleet.install(self.fabric.switch(name), self.switches[name].session, self.steering)

    def path(self, source: str, target: str, path_bits: int) -> list[str]:
        """The devices that a frame passes; ends where it is dropped."""
        return self.path_to(source, self.fabric.host(target).ip, path_bits)

    def path_to(self, source: str, address: str, path_bits: int = 0) -> list[str]:
        """The same, to any address."""
        sender, port = self.fabric.host(source), self.fabric.peer(self.fabric.nic(source))
        passed = [source]
        while port.device in self.switches:
            passed.append(port.device)
            assert len(passed) <= 2 + len(self.fabric.leaves()), f"a loop: {passed}"
            frame = Frame(address, 0x02_00_00_00_00_00 | path_bits, path_bits, sender.ip, port.number)
            out = self.switches[port.device].forward(frame)
            if out is None:
                return passed
            port = self.fabric.peer(self.fabric.switch_port(port.device, out))
        return [*passed, port.device]

    def assert_everybody_reaches_everybody(self, path_bits: tuple[int, ...] = (0, 0x5A5A5A5A, 0xFFFFFFFF)) -> None:
        for source in self.fabric.hosts:
            for target in self.fabric.hosts:
                for bits in path_bits if source.leaf != target.leaf else path_bits[:1]:
                    path = self.path(source.name, target.name, bits)
                    assert path[-1] == target.name, path
                    assert len(path) == (3 if source.leaf == target.leaf else 5)


@pytest.mark.parametrize("policy", BUILT_IN)
def test_everybody_reaches_everybody(policy: str) -> None:
    fake = FakeFabric(fabric_of(), policy)
    fake.assert_everybody_reaches_everybody()
    assert fake.fleet.missing() == []


@pytest.mark.parametrize("policy", BUILT_IN)
def test_all_uplinks_are_used(policy: str) -> None:
    fake = FakeFabric(fabric_of(), policy)
    spines = {fake.path("h0", "h2", byte * 0x01010101)[2] for byte in range(256)}
    assert spines == {"spine0", "spine1", "spine2"}


def test_foreign_addresses_are_dropped() -> None:
    fake = FakeFabric(fabric_of())
    for destination in ("10.0.0.77", "10.0.1.99", "192.168.0.1"):
        out = fake.switches["leaf0"].forward(Frame(destination, 0))
        if out is not None:  # inside the covering prefix: goes up, and no further
            spine = fake.fabric.peer(fake.fabric.switch_port("leaf0", out)).device
            assert fake.switches[spine].forward(Frame(destination, 0)) is None


@pytest.mark.parametrize(("before", "after"), [(a, b) for a in BUILT_IN for b in BUILT_IN])
def test_a_switch_over_never_leaves_a_frame_without_a_rule(before: str, after: str) -> None:
    fake = FakeFabric(fabric_of(leaves=2, spines=2, hosts_per_leaf=1), before)
    checked = 0

    def check() -> None:
        nonlocal checked
        checked += 1
        for source, target in (("h0", "h1"), ("h1", "h0")):
            assert fake.path(source, target, 0x5A_5A_5A_5A)[-1] == target

    for switch in fake.switches.values():
        switch.after_message = check
    prepared: list[bool] = []
    fake.steering = steering_of(fake.fabric, after)
    fake.fleet.switch_over(fake.steering, lambda: prepared.append(True))
    fake.fleet.empty_idle_banks()
    assert prepared == [True]
    assert checked > 10
    fake.connect("leaf0")  # a known switch that connects again goes on forwarding, too
    for leaf in ("leaf0", "leaf1"):
        bank = fake.fleet.bank[leaf]
        size = 1 if after == "group" else len(fake.steering.tables[leaf].entries)
        assert len(fake.switches[leaf].tables[bank]) == size
        assert fake.switches[leaf].tables[3 - bank] == []
        assert set(fake.switches[leaf].groups) == ({bank} if after == "group" else set())
    assert fake.fleet.rules_in_use() == dict.fromkeys(("leaf0", "leaf1"), (size, size))


def test_entries_lead_where_the_table_says() -> None:
    fake = FakeFabric(fabric_of(), "dlb")
    for slot in (0, 1, 17, 255):
        path = fake.path("h0", "h2", slot)
        assert path[2] == f"spine{fake.steering.tables['leaf0'].entries[slot]}"
    entries = fake.steering.tables["leaf0"].entries.copy()
    entries[17] = 0
    fake.steering.tables["leaf0"] = PathTable("slot", entries)
    fake.fleet.move("leaf0", fake.steering, [Move(17, 2, 0)])
    assert fake.path("h0", "h2", 17)[2] == "spine0"
    assert fake.fleet.rules_in_use()["leaf0"] == (256, 256)


def test_a_switch_that_lost_its_rules_gets_them_again_with_all_moves() -> None:
    fake = FakeFabric(fabric_of(), "dlb")
    lost = fake.switches["leaf0"]
    assert fake.fleet.disconnected(lost.session)
    assert fake.fleet.missing() == ["leaf0"]
    entries = fake.steering.tables["leaf0"].entries.copy()
    entries[:] = 1
    fake.steering.tables["leaf0"] = PathTable("slot", entries)
    fake.fleet.move("leaf0", fake.steering, [Move(0, 0, 1)])  # nobody there: not an error
    fake.switches["leaf0"] = FakeSwitch("leaf0", lost.dpid)
    fake.connect("leaf0")
    assert fake.fleet.missing() == []
    fake.assert_everybody_reaches_everybody()
    assert fake.path("h0", "h2", 0)[2] == "spine1"


def test_an_old_connection_that_ends_late_changes_nothing() -> None:
    fake = FakeFabric(fabric_of())
    old = fake.switches["leaf0"].session
    fake.switches["leaf0"] = FakeSwitch("leaf0", 1)
    fake.connect("leaf0")
    assert not fake.fleet.disconnected(old)
    assert fake.fleet.missing() == []


def test_the_first_connection_removes_whatever_was_there() -> None:
    fabric = fabric_of()
    old, new = FakeFabric(fabric, "group"), FakeFabric.__new__(FakeFabric)
    new.fabric, new.fleet, new.switches = fabric, Fleet(fabric), old.switches
    new.steering = steering_of(fabric, "spray")
    for switch in fabric.switches:
        new.connect(switch.name)
    new.assert_everybody_reaches_everybody()
    assert all(not switch.groups for switch in new.switches.values())


def test_an_absent_leaf_stops_a_switch_over_before_it_begins() -> None:
    fake = FakeFabric(fabric_of())
    fake.fleet.disconnected(fake.switches["leaf1"].session)
    messages = len(fake.switches["leaf0"].received)
    with pytest.raises(LabError, match="leaf1 not connected"):
        fake.fleet.switch_over(steering_of(fake.fabric, "spray"), lambda: None)
    assert len(fake.switches["leaf0"].received) == messages


def test_a_switch_that_refuses_a_rule_is_named_and_the_old_policy_stays() -> None:
    fake = FakeFabric(fabric_of())
    fake.switches["leaf1"].refuse = ofp.OFPT_FLOW_MOD
    with pytest.raises(LabError, match="leaf1: the switch refused a message: OFPET_FLOW_MOD_FAILED"):
        fake.fleet.switch_over(steering_of(fake.fabric, "dlb"), lambda: pytest.fail("too early"))
    fake.switches["leaf1"].refuse = None
    fake.assert_everybody_reaches_everybody()


def test_a_failure_of_the_preparation_leaves_the_old_policy() -> None:
    fake = FakeFabric(fabric_of())

    def fail() -> None:
        raise LabError("fabricd is gone")

    banks = dict(fake.fleet.bank)
    with pytest.raises(LabError, match="fabricd is gone"):
        fake.fleet.switch_over(steering_of(fake.fabric, "dlb"), fail)
    assert fake.fleet.bank == banks
    fake.assert_everybody_reaches_everybody()


def test_a_deaf_switch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeFabric(fabric_of())
    monkeypatch.setattr("controllers.fleet.ANSWER_TIMEOUT_S", 0.05)
    fake.switches["leaf2"].deaf = True
    with pytest.raises(LabError, match=r"leaf2 did not answer within 0\.05 s"):
        fake.fleet.switch_over(steering_of(fake.fabric, "dlb"), lambda: None)


def test_a_connection_lost_while_waiting_is_an_error_at_once() -> None:
    switch = FakeSwitch("leaf0", 1, deaf=True)
    answer = switch.session.ask([b"\x04\x14\x00\x08\x00\x00\x00\x00"])
    switch.session.close()
    with pytest.raises(LabError, match="leaf0: the connection is lost"):
        answer.wait(60)
    with pytest.raises(LabError, match="leaf0: the connection is lost"):
        switch.session.ask([]).wait(60)


def test_one_leaf_alone_needs_no_path_table() -> None:
    fake = FakeFabric(fabric_of(leaves=1, spines=1), "dlb")
    fake.assert_everybody_reaches_everybody()


def test_seeds_differ_between_switches_unless_asked_for() -> None:
    fabric = fabric_of()
    seeds = {steering_of(fabric, "ecmp", seed).hash_seed(switch) for seed in (1, 2) for switch in fabric.switches}
    assert len(seeds) == 2 * len(fabric.switches)
    same = steering_of(fabric, "ecmp", 7, same_seed=True)
    assert {same.hash_seed(switch) for switch in fabric.switches} == {7}


@pytest.mark.parametrize("seed", [-1, 1 << 31, 1.5, True, "1"])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(LabError, match="seed"):
        steering_of(fabric_of(), "ecmp", seed)


def test_a_policy_that_fails_is_named_with_its_line() -> None:
    fabric = fabric_of()
    steering = steering_of(fabric, "dlb")
    load: Any = None
    with pytest.raises(LabError, match="policy dlb failed: AttributeError") as caught:
        steering.update("leaf0", load, 0)
    assert "dlb.py, line" in str(caught.value.remedy)


def test_gap_of_the_policy_or_of_the_fabric() -> None:
    fabric = fabric_of()
    leaf = fabric.switch("leaf0")
    assert steering_of(fabric, "ecmp").flowlet_gap_ns(leaf) == leaf.flowlet_gap_ns
    gap = Steering(fabric, create_policy("flowlet", {"gap_us": 12}), {}, 1, False).flowlet_gap_ns(leaf)
    assert gap == 12 * 1000 * 10_000
    assert np.array_equal(steering_of(fabric, "flowlet").tables["leaf0"].entries[:4], [0, 1, 2, 0])


@pytest.mark.parametrize("policy", BUILT_IN)
def test_a_ring_goes_clockwise_and_a_frame_that_nobody_wants_goes_round_once(policy: str) -> None:
    fake = FakeFabric(describe(FabricSpec(shape="switch_ring", leaves=4, hosts_per_leaf=2, slowdown=10_000)), policy)
    assert fake.fleet.missing() == []
    for source in fake.fabric.hosts:
        for target in fake.fabric.hosts:
            hops = (int(target.leaf[2:]) - int(source.leaf[2:])) % 4
            ring = [f"sw{(int(source.leaf[2:]) + hop) % 4}" for hop in range(hops + 1)]
            assert fake.path(source.name, target.name, 0x5A5A5A5A) == [source.name, *ring, target.name]
    assert fake.path_to("h2", "10.0.2.77") == ["h2", "sw1", "sw2", "sw3", "sw0", "sw1"]
    assert fake.path_to("h2", "10.0.1.77") == ["h2", "sw1", "sw2", "sw3", "sw0", "sw1"]
