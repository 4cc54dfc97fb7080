"""Credit-based flow control in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.topologies.qos_fabric import (
    FRAME,
    KB,
    LOSSLESS,
    MS,
    WIRE,
    access,
    burst,
    drops,
    events,
    incast,
    quiet,
)
from tests.unit.topologies.virtual_fabric import VirtualFabric
from topologies.fabricd._core import lib
from topologies.fabricd.telemetry import TraceKind
from topologies.spec import FabricSpec

STAR = FabricSpec(leaves=1, spines=1, hosts_per_leaf=13, slowdown=10_000, buffer_kb=400, host_buffer_kb=4096,
                  flow_control="credits")  # fmt: skip


def units(length: int) -> int:
    return -(-(length + 4) // 64)


def no_leak(fabric: VirtualFabric) -> None:
    """At rest every sender may send its peer's whole buffer, but for what it was not told yet."""
    group = fabric.core.telemetry.ports["priority_group"][:, LOSSLESS]
    for port in fabric.fabric.ports:
        buffer = fabric.fabric.peer(port).credit_bytes // 64
        free = int(group["credit_limit_units"][port.index]) - int(group["credit_sent_units"][port.index])
        assert buffer - buffer // 4 <= free <= buffer


def test_incast_drops_nothing_and_never_takes_more_than_was_advertised() -> None:
    fabric, port = incast(STAR, 12, 60)
    fabric.run()
    assert drops(fabric) == {}
    assert len(fabric.delivered) == 720
    group = fabric.core.telemetry.ports["priority_group"]
    for p in fabric.fabric.ports:
        assert group["watermark_bytes"][p.index, LOSSLESS] <= p.credit_bytes
    busy_ns = int(fabric.core.telemetry.ports["busy_ns"][port.index])
    assert fabric.delivered[-1][0] - fabric.delivered[0][0] <= busy_ns * 1.002
    quiet(fabric)
    no_leak(fabric)


def test_a_path_without_contention_runs_at_line_rate_and_updates_cost_little() -> None:
    fabric = VirtualFabric(STAR.replace(leaves=2, spines=1, hosts_per_leaf=2, link_delay_us=2.0))
    burst(fabric, "h0", "h2", 300)
    fabric.run()
    nic = fabric.fabric.nic("h0")
    took_ns = fabric.delivered[-1][0] - fabric.delivered[0][0]
    assert took_ns == pytest.approx(299 * WIRE * 8e9 / nic.rate_bps, rel=0.001)
    ports = fabric.core.telemetry.ports
    assert 0 < ports["control_busy_ns"].max() < took_ns * 0.002
    assert ports["rx_frames"].sum() == 300 * 4  # updates are no frames
    assert fabric.control == []
    no_leak(fabric)


def test_a_small_buffer_on_a_long_link_limits_the_rate_to_buffer_over_round_trip() -> None:
    """Four frames fit; an update is due when one was freed; the fifth frame waits for the first one's credits."""
    spec = STAR.replace(credit_kb=4 * units(FRAME) * 64 / KB, link_delay_us=20.0)
    fabric = VirtualFabric(spec)
    burst(fabric, "h0", "h1", 200)
    fabric.run()
    nic = fabric.fabric.nic("h0")
    serial_ns, update_ns = WIRE * 8e9 / nic.rate_bps, 8 * 8e9 / nic.rate_bps
    # Store and forward through the switch, then its sender's delay back: the slower of the two links sets the pace.
    cycle_ns = 2 * serial_ns + 2 * nic.delay_ns + update_ns
    rate = 4 / cycle_ns
    took_ns = fabric.delivered[-1][0] - fabric.delivered[0][0]
    assert 199 / took_ns == pytest.approx(rate, rel=0.03)
    stalls = fabric.core.telemetry.ports["priority_group"]["credit_stall_ns"][nic.index, LOSSLESS]
    assert stalls > 0.8 * took_ns
    assert fabric.core.telemetry.ports["priority_group"]["credit_stalls"][nic.index, LOSSLESS] >= 49


def test_stalls_are_events_with_a_beginning_and_an_end() -> None:
    fabric, _ = incast(STAR, 3, 40)
    fabric.run()
    stalls = events(fabric, TraceKind.CREDIT_STALL)
    nic = fabric.fabric.nic("h0").index
    mine = stalls[stalls["port"] == nic]
    assert list(mine["psn"]) == [1, 0] * (len(mine) // 2)
    assert (mine["t_ns"][1::2] - mine["t_ns"][::2] == mine["wait_ns"][1::2]).all()
    total = fabric.core.telemetry.ports["priority_group"]["credit_stall_ns"][nic, LOSSLESS]
    assert mine["wait_ns"].sum() == total


def test_lanes_do_not_block_each_other_and_other_classes_are_not_metered() -> None:
    spec = STAR.replace(dscp_classes={26: 3, 10: 4}, lossless_classes=(3, 4))
    fabric = VirtualFabric(spec)
    fabric.core.control(lib.FABRIC_SET_DRAIN, fabric.fabric.nic("h1").index, 50_000)
    burst(fabric, "h0", "h1", 60)  # its credits are used up at once
    for dscp in (10, 0):
        burst(fabric, "h0", "h2", 20, at_ns=300 * MS, dscp=dscp)
    fabric.run(299 * MS)
    assert fabric.core.paused_classes(fabric.fabric.nic("h0").index) == (3,)
    fabric.run(600 * MS)
    assert sum(host == "h2" for _, host, _ in fabric.delivered) == 40
    fabric.run()
    quiet(fabric)


@settings(max_examples=40, deadline=None)
@given(
    flows=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 25), st.integers(1, 4096), st.integers(0, 40)),
        min_size=1, max_size=6,
    ),
    delay_us=st.sampled_from([0.0, 0.3, 2.0]),
    credit_frames=st.integers(2, 12),
    errors=st.booleans(),
    flap=st.booleans(),
)  # fmt: skip
def test_credits_are_never_negative_and_never_leak(
    flows: list[tuple[int, int, int, int, int]], delay_us: float, credit_frames: int, errors: bool, flap: bool
) -> None:
    spec = STAR.replace(
        leaves=2, spines=2, hosts_per_leaf=4, link_delay_us=delay_us, credit_kb=credit_frames * (4096 + 192) / KB
    )
    fabric = VirtualFabric(spec)
    uplink = fabric.fabric.uplinks("leaf0")[0]
    if errors:
        fabric.core.control(lib.FABRIC_SET_BIT_ERRORS, uplink.index, lib.CONTROL_FRACTION_UNITS // 10, 7)
    for number, (src, dst, frames, payload, at_ms) in enumerate(flows):
        if src != dst:
            burst(fabric, f"h{src}", f"h{dst}", frames, at_ns=(5 + at_ms) * MS, payload=payload, sport=1000 + number)
    if flap:
        fabric.run(20 * MS)
        for up in (0, 1):
            for port in (uplink.index, uplink.peer):
                fabric.core.control(lib.FABRIC_SET_PORT_UP, port, up)
            fabric.run(fabric.now_ns + 15 * MS)
    fabric.run()  # the core itself asserts that nobody sends without credits
    assert set(drops(fabric)) <= {"BIT_ERROR", "LINK_DOWN"}
    quiet(fabric)
    no_leak(fabric)


def test_a_host_that_drains_slowly_holds_the_path_back_without_loss() -> None:
    fabric = VirtualFabric(STAR)
    nic = fabric.fabric.nic("h1")
    fabric.core.control(lib.FABRIC_SET_DRAIN, nic.index, 2_000_000)
    burst(fabric, "h0", "h1", 100)
    fabric.run()
    assert drops(fabric) == {}
    assert len(fabric.delivered) == 100
    assert fabric.delivered[-1][0] - fabric.delivered[0][0] == pytest.approx(99 * FRAME * 8e9 / 2e6, rel=0.001)
    assert fabric.core.telemetry.ports["priority_group"]["credit_stall_ns"][access(fabric, "h1").index, LOSSLESS] > 0
    quiet(fabric)
    no_leak(fabric)
