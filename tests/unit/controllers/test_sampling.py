"""From counters in lab time to loads in hardware units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from controllers.sampling import UNUSED, LeafSampler
from topologies.fabric import Fabric, describe
from topologies.fabricd.binding import flow_hash
from topologies.fabricd.telemetry import FLOW_DTYPE, PORT_DTYPE, SLOT_DTYPE
from topologies.spec import FabricSpec

SLOWDOWN = 10_000
PERIOD_NS = 160_000_000  # 16 us of hardware


class Counters:
    """Telemetry that a test writes."""

    def __init__(self, fabric: Fabric) -> None:
        self.ports: Any = np.zeros(len(fabric.ports), PORT_DTYPE)
        self.slots: Any = np.zeros((len(fabric.switches), 256), SLOT_DTYPE)
        self.flows: Any = np.zeros(4, FLOW_DTYPE)
        self.ports["up"] = 1
        self.slots["flow"] = UNUSED


@pytest.fixture
def fabric() -> Fabric:
    return describe(FabricSpec.from_dict({"shape": "leaf_spine", "leaves": 2, "spines": 2, "hosts_per_leaf": 2,
                                          "slowdown": SLOWDOWN}))


@pytest.fixture
def counters(fabric: Fabric) -> Counters:
    counters = Counters(fabric)
    leaf = fabric.switch("leaf0").index
    addresses = {"h0": 0x0A000001, "h2": 0x0A000101, "h3": 0x0A000102}
    for flow, (source, target, port) in enumerate([("h0", "h2", 1), ("h2", "h0", 2), ("h0", "h3", 3)]):
        counters.flows[flow]["src_ip"], counters.flows[flow]["dst_ip"] = addresses[source], addresses[target]
        counters.flows[flow]["src_port"], counters.flows[flow]["protocol"] = port, 17
        counters.slots[leaf, 10 + flow]["flow"] = flow
    return counters


def sampler(fabric: Fabric, index: Any = "slot", size: int = 256, seed: int = 5) -> LeafSampler:
    return LeafSampler(fabric, fabric.switch("leaf0"), index, size, seed, flow_hash)


def test_the_first_sample_is_only_a_beginning(fabric: Fabric, counters: Counters) -> None:
    assert sampler(fabric).sample(counters, 1) is None


def test_loads_are_in_hardware_units(fabric: Fabric, counters: Counters) -> None:
    leaf, (first, second) = fabric.switch("leaf0").index, fabric.uplinks("leaf0")
    source = sampler(fabric)
    source.sample(counters, 1_000_000_000)
    counters.ports["tx_bytes"][first.index] = 200_000  # 100 Gb/s for 16 us
    counters.ports["queue"]["depth_bytes"][second.index, 0] = 4000
    counters.ports["queue"]["depth_bytes"][second.index, 3] = 500
    counters.slots["bytes"][leaf, 10:13] = [1000, 2000, 3000]
    counters.slots["last_seen_ns"][leaf, 10:13] = 1_000_000_000 + PERIOD_NS - 20_000_000  # 2 us ago
    load = source.sample(counters, 1_000_000_000 + PERIOD_NS)
    assert load is not None
    assert load.period_us == pytest.approx(16.0)
    assert load.tx_gbps == pytest.approx([100.0, 0.0])
    assert load.queue_bytes.tolist() == [0, 4500]
    assert load.up.tolist() == [True, True]
    assert load.entry_bytes[10] == 1000
    assert load.entry_bytes[11] == 0  # to a host of this leaf: uses no uplink
    assert load.entry_bytes[12] == 3000
    assert load.idle_us[[10, 12]] == pytest.approx([2.0, 2.0])
    assert np.isinf(load.idle_us[[0, 11, 255]]).all()


def test_a_slot_that_got_another_flow_starts_from_nothing(fabric: Fabric, counters: Counters) -> None:
    leaf = fabric.switch("leaf0").index
    counters.slots["bytes"][leaf, 10] = 5000
    source = sampler(fabric)
    source.sample(counters, 1)
    counters.slots["flow"][leaf, 10], counters.slots["bytes"][leaf, 10] = 2, 6000
    load = source.sample(counters, 1 + PERIOD_NS)
    assert load is not None
    assert load.entry_bytes[10] == 6000


def test_either_end_takes_an_uplink_down(fabric: Fabric, counters: Counters) -> None:
    first, second = fabric.uplinks("leaf0")
    source = sampler(fabric)
    source.sample(counters, 1)
    counters.ports["up"][first.index] = 0
    counters.ports["up"][second.peer] = 0
    load = source.sample(counters, 1 + PERIOD_NS)
    assert load is not None
    assert load.up.tolist() == [False, False]


def test_a_table_by_hash_gets_the_bytes_of_its_flows(fabric: Fabric, counters: Counters) -> None:
    leaf = fabric.switch("leaf0").index
    source = sampler(fabric, "flow", 64, seed=5)
    source.sample(counters, 1)
    counters.slots["bytes"][leaf, [10, 12]] = [1000, 3000]
    load = source.sample(counters, 1 + PERIOD_NS)
    assert load is not None
    entries = [flow_hash(5, *(int(counters.flows[flow][name]) for name in (
        "src_ip", "dst_ip", "protocol", "src_port", "dst_port"))) % 64 for flow in (0, 2)]
    expected = np.zeros(64)
    np.add.at(expected, entries, [1000, 3000])
    assert load.entry_bytes.tolist() == expected.tolist()


def test_no_flow_is_bound_to_an_entry_of_the_other_indexes(fabric: Fabric, counters: Counters) -> None:
    source = sampler(fabric, "spray", 4)
    source.sample(counters, 1)
    counters.slots["bytes"] = 1000
    load = source.sample(counters, 1 + PERIOD_NS)
    assert load is not None
    assert load.entry_bytes.tolist() == [0, 0, 0, 0]
    assert np.isinf(load.idle_us).all()
