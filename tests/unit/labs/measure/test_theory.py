"""Closed forms against the numbers that the documentation quotes, against brute force, and against each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.measure import theory
from labs.measure.stored import number_of
from tests.unit.labs.measure.synthetic import planted, spec
from topologies.fabric import describe
from topologies.spec import FabricSpec


@pytest.mark.parametrize(("flows", "paths", "leaves", "factor"), [
    (4, 4, 1, 2.125), (8, 4, 1, 1.77), (8, 8, 1, 2.60), (16, 4, 1, 1.53), (64, 4, 1, 1.26), (4, 4, 4, 2.66)])
def test_collision_factors_are_those_of_the_guide(flows: int, paths: int, leaves: int, factor: float) -> None:
    assert theory.collision_factor(flows, paths, leaves) == pytest.approx(factor, abs=0.005)


def test_four_flows_on_four_paths_have_the_distribution_of_the_guide() -> None:
    cdf = theory.max_load_cdf(4, 4)
    share = [float(high - low) for low, high in pairwise(cdf)]
    assert share == pytest.approx([0.094, 0.703, 0.1875, 0.016], abs=0.0005)


@given(st.integers(1, 5), st.integers(1, 4))
def test_the_distribution_is_exact(flows: int, paths: int) -> None:
    counted = Counter(max(Counter(choice).values()) for choice in product(range(paths), repeat=flows))
    cdf = theory.max_load_cdf(flows, paths)
    assert [b - a for a, b in pairwise(cdf)] == [
        Fraction(counted[k], paths**flows) for k in range(1, flows + 1)]


@settings(deadline=None)  # exact fractions take their time, once
@given(st.integers(1, 12), st.integers(1, 8))
def test_more_leaves_are_never_better(flows: int, paths: int) -> None:
    means = [theory.max_load_mean(flows, paths, leaves) for leaves in (1, 2, 4, 8)]
    assert means == sorted(means)
    assert means[-1] <= flows


def test_ring_all_reduce_is_bandwidth_over_two_passes() -> None:
    assert theory.ring_allreduce_us(1536 * 1024, 4, 100.0) == pytest.approx(188.7, abs=0.1)
    assert theory.busbw_factor("all_reduce", 4) == 1.5
    assert theory.busbw_factor("all_gather", 4) == 0.75
    assert theory.busbw_factor("broadcast", 4) == 1.0


def test_an_unknown_collective_is_named() -> None:
    with pytest.raises(ValueError, match=r"'all_redcue'.*all_reduce"):
        theory.busbw_factor("all_redcue", 4)


def test_bytes_on_the_wire() -> None:
    assert theory.wire_bytes(8192, 4096, immediate=True) == 8192 + 2 * 82 + 20
    assert theory.wire_bytes(1, 4096, immediate=False) == 1 + 82 + 16
    assert theory.wire_overhead_factor(4096) == pytest.approx(1.020, abs=0.0005)
    assert theory.mtu_time_us(4096, 100.0) == pytest.approx(0.334, abs=0.001)


def test_go_back_n_loses_the_window_behind_each_loss() -> None:
    assert theory.go_back_n_efficiency(0.0, 64) == 1.0
    assert theory.go_back_n_efficiency(0.01, 64) == pytest.approx(0.99 / 1.63)


def test_fairness_indices() -> None:
    assert theory.jain([5, 5, 5, 5]) == 1.0
    assert theory.jain([8, 0, 0, 0]) == 0.25
    assert theory.jain([]) == theory.jain([0, 0]) == 1.0
    assert theory.mmr([6, 2, 0, 0]) == 3.0
    assert theory.mmr([]) == theory.mmr([0, 0]) == 1.0


def hash_by_source_port(seed: int, src: int, dst: int, protocol: int, sport: int, dport: int) -> int:
    return sport % 256


def test_the_predicted_factor_is_the_fullest_link() -> None:
    fabric, flows = describe(spec()), planted("none").flow_ranks
    even = {leaf.name: {"index": "flow", "entries": [0, 1, 2, 3]} for leaf in fabric.leaves()}
    assert theory.predicted_factor(flows, fabric, even, hash_by_source_port) == 1.0
    # Leaf 1: source ports 49156..49159 modulo 4 are 0..3, three of which go to uplink 2.
    uneven = {**even, "leaf1": {"index": "flow", "entries": [2, 2, 2, 3]}}
    assert theory.predicted_factor(flows, fabric, uneven, hash_by_source_port) == 3.0
    uplink, downlink = theory.flow_path(flows[4], fabric, uneven, hash_by_source_port) or (None, None)
    assert uplink is not None
    assert downlink is not None
    assert (fabric.port_name(uplink.index), fabric.port_name(downlink.index)) == ("leaf1->spine2", "spine2->leaf2")


def test_downlinks_count_too() -> None:
    """Two leaves that send to the same leaf through one spine collide there, though each leaf's uplinks are even."""
    fabric, flows = describe(spec()), planted("none").flow_ranks
    even = {leaf.name: {"index": "flow", "entries": [0, 1, 2, 3]} for leaf in fabric.leaves()}
    to_leaf2 = [flows[4], replace(flows[0], dst_ip=flows[5].dst_ip, peer=9)]
    assert theory.predicted_factor(to_leaf2, fabric, even, hash_by_source_port) == 2.0


def test_flows_to_one_host_share_its_link_also_on_an_ideal_fabric() -> None:
    fabric, flows = describe(spec()), planted("none").flow_ranks
    to_h8 = [flows[4], replace(flows[0], dst_ip=flows[4].dst_ip, peer=8)]
    even = {leaf.name: {"index": "flow", "entries": [0, 1, 2, 3]} for leaf in fabric.leaves()}
    assert theory.predicted_factor(to_h8, fabric, even, hash_by_source_port) == 1.0
    assert theory.expected_factor(to_h8, fabric) is None


def test_a_path_round_a_ring_has_as_many_hops_as_it_takes() -> None:
    fabric = describe(FabricSpec(shape="switch_ring", leaves=4, hosts_per_leaf=1, slowdown=1000))
    tables = {leaf.name: {"index": "flow", "entries": [0]} for leaf in fabric.leaves()}
    role = replace(planted("none").flow_ranks[0], src_ip=number_of(fabric.host("h1").ip),
                   dst_ip=number_of(fabric.host("h0").ip))
    path = theory.flow_path(role, fabric, tables, hash_by_source_port)
    assert path is not None
    assert [fabric.port_name(port.index) for port in path] == ["sw1->sw2", "sw2->sw3", "sw3->sw0"]
    assert theory.flow_path(role, fabric, {"sw1": tables["sw1"]}, hash_by_source_port) is None
    assert theory.predicted_factor([role], fabric, tables, hash_by_source_port) == 1.0
    assert theory.expected_factor([role], fabric) is None


def test_nothing_is_predicted_where_the_table_is_not_indexed_by_the_flow_hash() -> None:
    fabric, flows = describe(spec()), planted("none").flow_ranks
    spray = {leaf.name: {"index": "spray", "entries": [0, 1, 2, 3]} for leaf in fabric.leaves()}
    assert theory.predicted_factor(flows, fabric, spray, hash_by_source_port) is None
    assert theory.predicted_factor(flows, fabric, {}, hash_by_source_port) is None


def test_faster_uplinks_take_more_flows() -> None:
    fabric, flows = describe(spec(uplink_gbps=400.0)), planted("none").flow_ranks
    tables = {leaf.name: {"index": "flow", "entries": [0]} for leaf in fabric.leaves()}
    assert theory.predicted_factor(flows, fabric, tables, hash_by_source_port) == 1.0


def test_the_expected_factor_of_the_first_exercise() -> None:
    assert theory.expected_factor(planted("none").flow_ranks, describe(spec())) == pytest.approx(2.6577, abs=1e-4)
    # Twice the rate upwards: two flows on a link cost nothing.
    faster = theory.expected_factor(planted("none").flow_ranks, describe(spec(uplink_gbps=200.0)))
    assert faster == pytest.approx(2.6577 / 2, abs=0.01)


def test_no_expected_factor_where_leaves_meet_again_or_nothing_crosses() -> None:
    fabric, flows = describe(spec()), planted("none").flow_ranks
    meeting = [*flows, replace(flows[0], dst_ip=flows[4].dst_ip)]
    assert theory.expected_factor(meeting, fabric) is None
    assert theory.expected_factor([replace(flows[0], dst_ip=flows[1].src_ip)], fabric) is None


def test_an_address_of_nobody() -> None:
    with pytest.raises(KeyError, match=r"192\.0\.2\.1"):
        theory.host_of_ip(describe(spec()), 192 << 24 | 2 << 8 | 1)
