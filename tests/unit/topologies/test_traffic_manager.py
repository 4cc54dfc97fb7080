"""The traffic manager in virtual time: rates, delays, buffers, sharing and conservation, against theory."""

from __future__ import annotations

import pytest
from scapy.layers.l2 import Ether

from tests.unit.topologies.virtual_fabric import Metadata, VirtualFabric
from topologies.fabricd._core import lib
from topologies.fabricd.telemetry import DropReason, TraceKind, histogram_percentile
from topologies.spec import FabricSpec
from topologies.units import serialisation_ns

SPEC = FabricSpec(leaves=2, spines=2, hosts_per_leaf=2, slowdown=10_000)
MS = 1_000_000


def conserved(fabric: VirtualFabric) -> None:
    """sent = delivered + dropped, and nothing is left anywhere."""
    t = fabric.core.telemetry
    ports = t.ports
    nic = [p.index for p in fabric.fabric.ports if p.kind == "host"]
    to_host = [p.index for p in fabric.fabric.ports if fabric.fabric.peer(p).kind == "host"]
    sent = ports["rx_frames"][nic].sum()
    assert sent == ports["delivered_frames"][to_host].sum() + ports["dropped"][:, :8].sum()
    assert t.globals["pool_used"][0] == 0
    assert (t.switches["in_frames"] == t.switches["out_frames"]).all()
    assert (ports["queue"]["depth_bytes"] == 0).all()
    assert (t.switches["buffer_used_bytes"] == 0).all()


def test_one_frame_takes_the_sum_of_serialising_and_propagation() -> None:
    fabric = VirtualFabric(SPEC)
    frame = fabric.packet("h0", "h2", 1000)
    fabric.send("h0", frame, 5 * MS)
    fabric.run()
    port = fabric.fabric.nic("h0")
    expected = 4 * (serialisation_ns(len(frame), port.rate_bps) + port.delay_ns)
    [(at_ns, host, received)] = fabric.delivered
    assert host == "h2"
    assert at_ns - 5 * MS == pytest.approx(expected, abs=4)
    assert received[14:] == frame[14:]
    assert Ether(received).dst == fabric.fabric.host("h2").mac
    assert Ether(received).src == fabric.fabric.gateway_mac
    conserved(fabric)


def test_a_burst_leaves_at_exactly_the_line_rate_whatever_the_ticks() -> None:
    fabric = VirtualFabric(SPEC)
    frame = fabric.packet("h0", "h1", 4096)
    for _ in range(50):
        fabric.send("h0", frame, 5 * MS)
    fabric.core.telemetry.drain_trace()
    for at_ms in range(5, 400, 17):  # ticks that come far too late
        fabric.run(at_ms * MS)
    fabric.run()
    trace = fabric.core.telemetry.drain_trace()
    nic = fabric.fabric.nic("h0")
    departures = trace["t_ns"][(trace["kind"] == TraceKind.HOP) & (trace["port"] == nic.index)]
    gap = serialisation_ns(len(frame), nic.rate_bps)
    assert departures[-1] - departures[0] == pytest.approx(49 * gap, abs=50)
    assert len(fabric.delivered) == 50
    conserved(fabric)


@pytest.mark.parametrize("senders", [2, 3])
def test_incast_drops_first_when_the_excess_exceeds_the_buffer(senders: int) -> None:
    """N senders at line rate leave (N-1)/N of what arrives in the queue: the first drop is due at B * N/(N-1)."""
    buffer_kb = 40
    spec = FabricSpec(leaves=2, spines=4, hosts_per_leaf=4, slowdown=10_000, buffer_kb=buffer_kb, host_buffer_kb=1024)
    fabric = VirtualFabric(spec)
    for sender in range(senders):
        for _ in range(60):
            fabric.send(f"h{sender}", fabric.packet(f"h{sender}", "h3", 4096, sport=1000 + sender), 5 * MS)
    fabric.run()
    trace = fabric.core.telemetry.drain_trace()
    drops = trace[trace["kind"] == TraceKind.DROP]
    assert len(drops)
    assert set(drops["reason"]) == {DropReason.TAIL}
    access = fabric.fabric.peer(fabric.fabric.nic("h3")).index
    assert set(drops["port"]) == {access}
    before = trace[(trace["t_ns"] < drops["t_ns"][0]) & (trace["kind"] == TraceKind.HOP)]
    nics = [fabric.fabric.nic(f"h{sender}").index for sender in range(senders)]
    arrived_bytes = before["bytes"][[port in nics for port in before["port"]]].sum()
    expected = buffer_kb * 1024 * senders / (senders - 1)
    # A store-and-forward hop holds one frame a sender, and the queue can end one frame short of its limit.
    assert abs(int(arrived_bytes) - expected) <= (senders + 1) * 4138
    assert int(fabric.core.telemetry.ports["queue"]["peak_bytes"][access, 0]) <= buffer_kb * 1024
    conserved(fabric)


def test_one_congested_port_gets_alpha_over_one_plus_alpha_of_the_shared_buffer() -> None:
    spec = FabricSpec(
        leaves=2, spines=4, hosts_per_leaf=4, slowdown=10_000, buffer_kb=2048, shared_buffer_kb=200, alpha=1.0
    )
    fabric = VirtualFabric(spec)
    for sender in range(3):
        for _ in range(100):
            fabric.send(f"h{sender}", fabric.packet(f"h{sender}", "h3", 4096, sport=1000 + sender), 5 * MS)
    fabric.run()
    access = fabric.fabric.peer(fabric.fabric.nic("h3")).index
    ports = fabric.core.telemetry.ports
    assert ports["dropped"][access, DropReason.SHARED] > 0
    peak = int(ports["queue"]["peak_bytes"][access, 0])
    # Choudhury and Hahne: one queue settles at alpha/(1+alpha) of the buffer.
    assert abs(peak - 200 * 1024 / 2) <= 4138
    conserved(fabric)


def test_the_first_of_a_switchs_bytes_is_where_and_when_it_came_in() -> None:
    fabric = VirtualFabric(SPEC)
    fabric.send("h1", fabric.packet("h1", "h3", 100), 7 * MS)
    fabric.run()
    leaf, spine, far_leaf = fabric.inside
    assert leaf[0] == "leaf0"
    assert leaf[1].ingress_port == fabric.fabric.peer(fabric.fabric.nic("h1")).number
    assert spine[0].startswith("spine")
    assert far_leaf[0] == "leaf1"
    assert leaf[1].time_us < spine[1].time_us < far_leaf[1].time_us


def test_a_link_that_goes_down_drops_what_it_carries_and_what_comes() -> None:
    fabric = VirtualFabric(SPEC)
    nic = fabric.fabric.nic("h0").index
    for _ in range(10):
        fabric.send("h0", fabric.packet("h0", "h1", 4096), 5 * MS)
    fabric.run(12 * MS)
    fabric.core.control(lib.FABRIC_SET_PORT_UP, nic, 0)
    fabric.send("h0", fabric.packet("h0", "h1", 4096), fabric.now_ns + MS)
    fabric.run()
    assert fabric.core.telemetry.ports["dropped"][nic, DropReason.LINK_DOWN] == 11
    conserved(fabric)
    fabric.core.control(lib.FABRIC_SET_PORT_UP, nic, 1)
    fabric.send("h0", fabric.packet("h0", "h1", 4096), fabric.now_ns + MS)
    fabric.run()
    assert len(fabric.delivered) == 1


def test_the_series_holds_every_queue_at_the_interval() -> None:
    fabric = VirtualFabric(SPEC)
    fabric.core.control(lib.FABRIC_SERIES_INTERVAL, 0, 5 * MS)
    for _ in range(30):
        fabric.send("h0", fabric.packet("h0", "h1", 4096), 5 * MS)
    fabric.run()
    t_ns, depth = fabric.core.telemetry.drain_series()
    assert depth.shape == (len(t_ns), len(fabric.fabric.ports), 8)
    assert (t_ns[1:] - t_ns[:-1] >= 5 * MS * 0.5).all()
    queued = depth[:, fabric.fabric.nic("h0").index, 0]
    assert queued.max() > 28 * 4138
    assert queued[-1] == 0
    assert (queued[1:] <= queued[:-1]).all()


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\x02" * 10, DropReason.RUNT),
        (b"\x02" * 12 + b"\x08\x00" + b"\x45" + bytes(10), DropReason.RUNT),
        (b"\x02" * 12 + b"\x08\x06" + bytes(46), DropReason.NOT_IPV4),
        (b"\x02" * 12 + b"\x08\x00" + b"\x65" + bytes(60), DropReason.BAD_HEADER),
        (b"\x02" * 12 + b"\x08\x00" + bytes(9000), DropReason.GIANT),
    ],
)
def test_what_the_fabric_does_not_carry_is_counted_and_dropped(frame: bytes, reason: DropReason) -> None:
    fabric = VirtualFabric(SPEC)
    fabric.send("h0", frame, 5 * MS)
    fabric.run()
    ports = fabric.core.telemetry.ports
    assert ports["dropped"][fabric.fabric.nic("h0").index, reason] == 1
    assert ports["dropped"].sum() == 1
    assert ports["rx_frames"].sum() == 0
    assert fabric.delivered == []


def test_a_switch_that_emits_frames_of_its_own_is_noticed() -> None:
    fabric = VirtualFabric(SPEC)
    uplink = fabric.fabric.uplinks("leaf0")[0].index
    header = Ether(dst="ff:ff:ff:ff:ff:ff", src="00:11:22:33:44:55", type=0x0800)
    frame = bytes(header) + fabric.packet("h0", "h2", 10)[14:]
    fabric.core.rx(uplink, frame, MS)
    assert fabric.core.telemetry.ports["dropped"][uplink, DropReason.FOREIGN_MAC] == 1


def test_in_switch_latency_is_measured_for_every_frame() -> None:
    fabric = VirtualFabric(SPEC)
    frame = fabric.packet("h0", "h1", 1000)
    fabric.core.rx(fabric.fabric.nic("h0").index, frame, MS)
    [delivery] = [d for at in range(1, 60) for d in fabric.core.advance(at * MS)]
    left_ns = Metadata.of(delivery.frame).time_us * 1000 + 3 * MS
    fabric.core.rx(fabric.fabric.peer(fabric.fabric.nic("h1")).index, delivery.frame, left_ns)
    inside = fabric.core.telemetry.switches["inside_us"]["bucket"][fabric.fabric.leaf_of("h0").index]
    assert inside.sum() == 1
    assert histogram_percentile(inside, 50) == pytest.approx(3000, rel=0.07)
