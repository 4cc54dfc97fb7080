"""A ring of switches in virtual time: when a circle of lossless buffers freezes, and the two cures that prevent it."""

from __future__ import annotations

import pytest

from tests.unit.topologies.qos_fabric import DATA, LOSSLESS, burst, drops, quiet
from tests.unit.topologies.virtual_fabric import VirtualFabric
from topologies.spec import FabricSpec

SECOND = 34  # a DSCP of class 4
FRAMES = 125
SPEC = FabricSpec(shape="switch_ring", leaves=4, hosts_per_leaf=1, slowdown=1000, host_buffer_kb=8192,
                  dscp_classes={DATA: LOSSLESS, SECOND: 4}, lossless_classes=(LOSSLESS, 4))  # fmt: skip


def two_hops(spec: FabricSpec, *, dateline: bool = False) -> VirtualFabric:
    """Every host sends to the one after next; those that pass from the last switch to the first perhaps in class 4."""
    fabric = VirtualFabric(spec)
    n = spec.leaves
    for i in range(n):
        target = (i + 2) % n
        burst(fabric, f"h{i}", f"h{target}", FRAMES, dscp=SECOND if dateline and target < i else DATA)
    fabric.run(fabric.fabric.clock.lab_ns(100_000))
    return fabric


@pytest.mark.parametrize("switches", [3, 4, 5])
@pytest.mark.parametrize("flow_control", ["pfc", "credits"])
def test_one_class_freezes_for_good(switches: int, flow_control: str) -> None:
    fabric = two_hops(SPEC.replace(leaves=switches, flow_control=flow_control))
    assert 0 < len(fabric.delivered) < switches * FRAMES / 4
    last_us = fabric.fabric.clock.hardware_us(fabric.delivered[-1][0])
    assert last_us < 30
    assert drops(fabric) == {}
    uplinks = [fabric.fabric.uplinks(switch)[0].index for switch in fabric.fabric.switches]
    assert (fabric.core.telemetry.ports["queue"]["depth_bytes"][uplinks, LOSSLESS] > 0).all()


@pytest.mark.parametrize("switches", [3, 4, 5])
@pytest.mark.parametrize("flow_control", ["pfc", "credits"])
def test_a_second_class_after_the_dateline_breaks_the_circle(switches: int, flow_control: str) -> None:
    fabric = two_hops(SPEC.replace(leaves=switches, flow_control=flow_control), dateline=True)
    assert len(fabric.delivered) == switches * FRAMES
    quiet(fabric)


def test_a_circle_that_never_fills_does_not_freeze() -> None:
    fabric = two_hops(SPEC.replace(flow_control="pfc", link_gbps=50, uplink_gbps=100))
    assert len(fabric.delivered) == 4 * FRAMES
    assert not fabric.core.telemetry.ports["priority_group"]["pfc_tx_pkts"].any()
    quiet(fabric)


def test_without_flow_control_it_only_loses_frames() -> None:
    fabric = two_hops(SPEC.replace(flow_control="none", buffer_kb=64))
    assert set(drops(fabric)) == {"TAIL"}
    quiet(fabric)
