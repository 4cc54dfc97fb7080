"""Priority-based flow control in virtual time: the frames, when they act, and what they save."""

from __future__ import annotations

import itertools

import pytest
from scapy.contrib.mac_control import MACControlClassBasedFlowControl
from scapy.layers.l2 import Ether

from tests.unit.topologies.qos_fabric import (
    DATA,
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
from topologies import headroom
from topologies.fabricd._core import lib
from topologies.fabricd.telemetry import DropReason, TraceKind
from topologies.spec import FabricSpec
from topologies.units import serialisation_ns

STAR = FabricSpec(leaves=1, spines=1, hosts_per_leaf=13, slowdown=10_000, buffer_kb=400, host_buffer_kb=4096,
                  flow_control="pfc", xoff_kb=20, xon_offset_kb=8)  # fmt: skip


def pfc(frame: bytes) -> dict[int, int]:
    """Class -> quanta, as scapy reads the frame."""
    control = Ether(frame)[MACControlClassBasedFlowControl]
    return {c: getattr(control, f"c{c}_pause_time") for c in range(8) if getattr(control, f"c{c}_enabled")}


def test_incast_without_flow_control_drops_first_as_the_buffer_equation_says() -> None:
    fabric, port = incast(STAR.replace(flow_control="none"), 12, 100)
    fabric.run()
    trace = fabric.core.telemetry.drain_trace()
    first = trace[trace["kind"] == TraceKind.DROP][0]
    assert first["reason"] == DropReason.TAIL
    assert first["port"] == port.index
    hops = trace[(trace["kind"] == TraceKind.HOP) & (trace["t_ns"] < first["t_ns"])]
    nics = {fabric.fabric.nic(f"h{n}").index for n in range(12)}
    arrived = int(hops["bytes"][[p in nics for p in hops["port"]]].sum())
    # N senders leave (N-1)/N of what arrives in the queue; the twelve frames that arrive at once are one step.
    assert abs(arrived - 400 * KB * 12 / 11) <= 13 * FRAME
    quiet(fabric)


def test_incast_with_pfc_drops_nothing_and_delivers_everything() -> None:
    fabric, port = incast(STAR, 12, 100)
    fabric.run()
    assert drops(fabric) == {}
    assert len(fabric.delivered) == 1200
    quiet(fabric)
    t = fabric.core.telemetry.ports
    assert t["priority_group"]["pfc_tx_pkts"][:, LOSSLESS].sum() > 0
    assert t["priority_group"]["xoff_room_watermark_bytes"].max() > 0
    # The receiver's link never waits: pauses must not cost throughput where XON comes early enough.
    busy_ns = int(t["busy_ns"][port.index])
    assert fabric.delivered[-1][0] - fabric.delivered[0][0] <= busy_ns * 1.001


def test_a_pause_is_a_frame_that_any_dissector_reads() -> None:
    fabric, _ = incast(STAR, 2, 30)
    fabric.run()
    _, port, frame = fabric.control[0]
    assert len(frame) == 60
    ether = Ether(frame)
    assert ether.dst == "01:80:c2:00:00:01"
    assert ether.type == 0x8808
    assert ether.src == fabric.fabric.peer(fabric.fabric.port(port)).mac
    assert frame[14:16] == b"\x01\x01"
    assert frame[16:18] == b"\x00\x08"
    assert pfc(frame) == {LOSSLESS: 65_535}
    assert fabric.fabric.port(port).role == "nic"
    assert set(pfc(fabric.control[-1][2]).values()) == {0}


def test_the_pause_acts_after_its_wire_time_and_the_delay_at_a_frame_boundary() -> None:
    spec = STAR.replace(link_delay_us=3.0)
    fabric, _ = incast(spec, 2, 30)
    fabric.run()
    trace = fabric.core.telemetry.drain_trace()
    nic = fabric.fabric.nic("h0")
    leaf = fabric.fabric.peer(nic)
    said = trace[(trace["kind"] == TraceKind.PAUSE) & (trace["port"] == leaf.index)]
    obeyed = trace[(trace["kind"] == TraceKind.PAUSED) & (trace["port"] == nic.index)]
    assert list(said["psn"]) == [1, 0] * (len(said) // 2)
    assert list(obeyed["psn"]) == list(said["psn"])
    way_ns = serialisation_ns(60, nic.rate_bps) + nic.delay_ns
    assert list(obeyed["t_ns"] - said["t_ns"]) == pytest.approx([way_ns] * len(said), abs=2)
    left = trace[(trace["kind"] == TraceKind.HOP) & (trace["port"] == nic.index)]["t_ns"]
    frame_ns = serialisation_ns(FRAME, nic.rate_bps)
    begin, end = obeyed["t_ns"][0], obeyed["t_ns"][1]
    # The frame that had begun is finished, the next begins when the pause ends.
    assert ((left > begin) & (left < end)).sum() <= 1
    assert left[left > begin + frame_ns][0] == pytest.approx(end + frame_ns, abs=2)
    t = fabric.core.telemetry.ports["priority_group"]
    assert t["rx_pause_ns"][nic.index, LOSSLESS] == (obeyed["t_ns"][1::2] - obeyed["t_ns"][::2]).sum()
    assert t["tx_pause_ns"][leaf.index, LOSSLESS] == (said["t_ns"][1::2] - said["t_ns"][::2]).sum()
    assert t["pfc_on2off_rx_pkts"][nic.index, LOSSLESS] == len(said) // 2


def test_an_event_says_who_was_paused_and_which_queue_holds_the_bytes() -> None:
    fabric, port = incast(STAR, 2, 30)
    fabric.run()
    said = events(fabric, TraceKind.PAUSE)
    begins = said[said["psn"] == 1]
    assert set(begins["reason"]) == {LOSSLESS}
    assert set(begins["arg"]) == {port.index}
    assert (begins["bytes"] > 20 * KB).all()


def test_a_pause_is_refreshed_while_it_lasts_and_runs_out_when_nobody_repeats_it() -> None:
    spec = STAR.replace(pause_quanta=1000)
    fabric = VirtualFabric(spec)
    nic = fabric.fabric.nic("h0")
    quantum_ns = 512e9 / nic.rate_bps
    drain = fabric.fabric.nic("h12")
    fabric.core.control(lib.FABRIC_SET_DRAIN, drain.index, 100_000)  # a hundredth of the link
    burst(fabric, "h0", "h12", 40)
    fabric.run(2_000 * MS)
    seen = [at for at, port, frame in fabric.control if port == access(fabric, "h12").index and pfc(frame)[LOSSLESS]]
    gaps = [b - a for a, b in itertools.pairwise(seen)]
    assert len(gaps) > 10
    assert min(gaps) == pytest.approx(500 * quantum_ns, rel=0.01)
    fabric.run()
    quiet(fabric)
    # One frame of a device, never repeated.
    foreign = bytes(Ether(dst="01:80:c2:00:00:01", src="02:00:00:00:00:09") / MACControlClassBasedFlowControl(
        c3_enabled=1, c3_pause_time=800)).ljust(60, b"\0")  # fmt: skip
    fabric.core.telemetry.drain_trace()
    fabric.core.rx(access(fabric, "h0").index, foreign, fabric.now_ns)
    fabric.run()
    [begin, end] = events(fabric, TraceKind.PAUSED)
    assert begin["port"] == nic.index
    assert int(end["wait_ns"]) == pytest.approx(800 * quantum_ns, abs=2)


def test_only_the_paused_class_stops() -> None:
    fabric, _ = incast(STAR, 2, 60)
    burst(fabric, "h0", "h5", 100, dscp=0)
    nic = fabric.fabric.nic("h0")
    queue = fabric.core.telemetry.ports["queue"]
    for at_ms in range(5, 2000):
        fabric.run(at_ms * MS)
        if any(port == nic.index for _, port, _ in fabric.control):
            break
    frame_ns = serialisation_ns(FRAME, nic.rate_bps)
    fabric.run(fabric.now_ns + round(frame_ns))  # what had begun is finished
    sent = queue["sent_frames"][nic.index].copy()
    fabric.run(fabric.now_ns + round(3 * frame_ns))
    assert fabric.core.paused_classes(nic.index) == (LOSSLESS,)
    assert list((queue["sent_frames"][nic.index] - sent)[[0, LOSSLESS]]) == [3, 0]
    fabric.run()
    assert drops(fabric) == {}
    quiet(fabric)


@pytest.mark.parametrize("delay_us", [0.0, 0.5, 4.0])
def test_headroom_of_two_delays_and_two_frames_is_enough_and_needed(delay_us: float) -> None:
    """The worst case: nothing drains, the pause waits for a frame the other way, the peer has just begun one."""
    needed = headroom.physical_bytes(100.0, delay_us, FRAME)

    def lost(headroom_bytes: float) -> int:
        spec = STAR.replace(link_delay_us=delay_us, headroom_kb=headroom_bytes / KB, xoff_kb=6 * FRAME / KB)
        total = 0
        for lead_ns in (20_000, 500_000, 2_000_000):  # so long before the trigger the other direction's frame began
            fabric = VirtualFabric(spec)
            target = fabric.fabric.nic("h1").index
            fabric.core.control(lib.FABRIC_PAUSE_STORM, target, 1 << LOSSLESS)
            burst(fabric, "h0", "h1", 60, at_ns=50 * MS)
            burst(fabric, "h2", "h0", 60, at_ns=50 * MS - lead_ns, dscp=0)
            fabric.run(600 * MS)
            fabric.core.control(lib.FABRIC_PAUSE_STORM, target, 0)
            fabric.run()
            total += drops(fabric).get("HEADROOM", 0)
            assert set(drops(fabric)) <= {"HEADROOM"}
            quiet(fabric)
        return total

    assert lost(needed) == 0
    assert lost(needed - WIRE) > 0


@pytest.mark.parametrize("delay_us", [0.0, 0.5])
def test_a_threshold_that_falls_needs_headroom_for_one_frame_more(delay_us: float) -> None:
    """h0 holds a little less than XOFF; others take the pool, so XOFF falls below that; then h0 goes on sending."""

    def lost(dynamic_xoff: bool) -> int:
        needed = headroom.physical_bytes(100.0, delay_us, FRAME, dynamic_xoff=dynamic_xoff)
        spec = STAR.replace(link_delay_us=delay_us, headroom_kb=needed / KB, xoff_kb="auto", xoff_alpha=0.5,
                            shared_buffer_kb=1200, lossless_share=0.4, xon_offset_kb=0)  # fmt: skip
        total = 0
        for lead_ns in (20_000, 500_000, 2_000_000, 3_000_000):
            fabric = VirtualFabric(spec)
            target = fabric.fabric.nic("h1").index
            fabric.core.control(lib.FABRIC_PAUSE_STORM, target, 1 << LOSSLESS)
            pool = fabric.fabric.switch("leaf0").qos.lossless_pool_bytes
            burst(fabric, "h0", "h1", int(0.5 / 1.5 * pool / FRAME) - 1, at_ns=50 * MS)
            for other in range(3, 8):
                burst(fabric, f"h{other}", "h1", 30, at_ns=400 * MS, sport=2000 + other)
            burst(fabric, "h0", "h1", 60, at_ns=800 * MS)
            burst(fabric, "h2", "h0", 60, at_ns=800 * MS - lead_ns, dscp=0)
            fabric.run(2000 * MS)
            fabric.core.control(lib.FABRIC_PAUSE_STORM, target, 0)
            fabric.run()
            total += drops(fabric).get("HEADROOM", 0)
            assert set(drops(fabric)) <= {"HEADROOM"}
            quiet(fabric)
        return total

    assert lost(dynamic_xoff=True) == 0
    assert lost(dynamic_xoff=False) > 0


def test_a_port_that_emits_pause_for_ever_holds_its_peer_until_it_ends() -> None:
    fabric = VirtualFabric(STAR)
    nic = fabric.fabric.nic("h1").index
    fabric.core.control(lib.FABRIC_PAUSE_STORM, nic, 1 << LOSSLESS)
    burst(fabric, "h0", "h1", 5)
    burst(fabric, "h0", "h1", 5, dscp=0)
    fabric.run(20_000 * MS)
    assert [frame[15] >> 2 for _, _, frame in fabric.delivered] == [0] * 5
    fabric.core.control(lib.FABRIC_PAUSE_STORM, nic, 0)
    fabric.run()
    assert [frame[15] >> 2 for _, _, frame in fabric.delivered] == [0] * 5 + [DATA] * 5
    quiet(fabric)
