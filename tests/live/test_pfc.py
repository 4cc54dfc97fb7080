"""Flow control on the real machine: 12 hosts send to one, with PFC, with credits and with neither."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.live.capture import captured, dissected
from tests.live.rdma import Traffic
from topologies.fabric import Fabric, Port
from topologies.fabricd.telemetry import TraceKind
from topologies.network import FabricNet
from topologies.spec import FabricSpec
from topologies.units import WIRE_OVERHEAD_BYTES

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
]

SENDERS = 12
SPEC = FabricSpec(leaves=1, spines=1, hosts_per_leaf=SENDERS + 1, slowdown=10_000, buffer_kb=1024, xoff_kb=20,
                  xon_offset_kb=8, pause_quanta=1000)  # fmt: skip
MESSAGE_BYTES = 160 * 1024
DEADLINE_S = 30.0
LOSSLESS = 3
FIELDS = ("frame.time_epoch", "eth.dst", "eth.src", "macc.opcode", "macc.cbfc.enbv",
          *(f"macc.cbfc.pause_time.c{c}" for c in range(8)), "_ws.malformed")  # fmt: skip


def towards_receiver(fabric: Fabric) -> Port:
    return fabric.peer(fabric.nic(f"h{SENDERS}"))


def incast(traffic: Traffic) -> None:
    for sender in range(SENDERS):
        traffic.connect(f"h{sender}", f"h{SENDERS}", MESSAGE_BYTES)
    traffic.start()


def nothing_lost(traffic: Traffic) -> None:
    assert traffic.drops() == {}
    assert traffic.delivered()
    for counter in ("retransmitted_packets", "timeouts", "naks_sent", "out_of_order", "duplicates"):
        assert traffic.nic_counter(counter) == 0, counter


def as_fast_as_the_link(traffic: Traffic, records: np.ndarray) -> None:
    """From its first bit to its last the receiver's link carried data without a gap, but for a percent."""
    port = towards_receiver(traffic.fabric)
    hops = records[(records["kind"] == TraceKind.HOP) & (records["port"] == port.index)]
    wire_ns = (hops["bytes"] + float(WIRE_OVERHEAD_BYTES)) * 8e9 / port.rate_bps
    assert len(hops) == SENDERS * MESSAGE_BYTES // 4096
    assert hops["t_ns"][-1] - hops["t_ns"][0] <= wire_ns[1:].sum() * 1.01


def test_pfc_loses_nothing_and_its_frames_are_those_of_802_1qbb(tmp_path: Path) -> None:
    path = tmp_path / "pfc.pcap"
    with FabricNet(SPEC.replace(flow_control="pfc"), lab="pfc") as net:
        net.route_statically()
        with captured(net, "h0", path, "ether", "proto", "0x8808"), \
                Traffic(net.fabric, timeout_ns=20 * 10**9) as traffic:  # fmt: skip
            incast(traffic)
            traffic.finish(SENDERS, DEADLINE_S)
            nothing_lost(traffic)
            records = traffic.trace()
        nic = net.fabric.nic("h0")
        leaf = net.fabric.peer(nic)
    as_fast_as_the_link(traffic, records)

    frames = dissected(path, FIELDS)
    assert len(frames) > 4
    assert {frame["_ws.malformed"] for frame in frames} == {""}
    assert {(frame["eth.dst"], frame["eth.src"]) for frame in frames} == {("01:80:c2:00:00:01", leaf.mac)}
    assert {int(frame["macc.opcode"], 0) for frame in frames} == {0x0101}
    assert {int(frame["macc.cbfc.enbv"], 0) for frame in frames} == {1 << LOSSLESS}
    assert {frame[f"macc.cbfc.pause_time.c{c}"] for frame in frames for c in range(8) if c != LOSSLESS} == {"0"}
    quanta = [int(frame[f"macc.cbfc.pause_time.c{LOSSLESS}"]) for frame in frames]
    assert set(quanta) == {SPEC.pause_quanta, 0}
    assert quanta[-1] == 0  # XON: nobody is left paused

    # The wire showed what the events say: as many XONs, each so long after its XOFF; refreshed at half the time.
    paused = records[(records["kind"] == TraceKind.PAUSED) & (records["port"] == nic.index)]
    assert len(paused) == 2 * quanta.count(0)
    times_ns = np.array([float(frame["frame.time_epoch"]) * 1e9 for frame in frames])
    xon = np.flatnonzero(np.array(quanta) == 0)
    xoff = np.concatenate(([0], xon[:-1] + 1))
    late_ns = times_ns[xon] - times_ns[xoff] - (paused["t_ns"][1::2] - paused["t_ns"][::2])
    assert np.median(np.abs(late_ns)) < 2e6  # a single frame may be held up on the way to tcpdump
    half_ns = SPEC.pause_quanta / 2 * 512e9 / nic.rate_bps
    refreshed = [q > 0 and after > 0 for q, after in itertools.pairwise(quanta)]
    assert np.median(np.diff(times_ns)[refreshed]) == pytest.approx(half_ns, rel=0.1)

    # Who paused whom and why: the leaf, because of the queue towards the receiver.
    said = records[(records["kind"] == TraceKind.PAUSE) & (records["port"] == leaf.index) & (records["psn"] == 1)]
    assert set(said["arg"]) == {towards_receiver(net.fabric).index}


def test_credits_lose_nothing() -> None:
    with FabricNet(SPEC.replace(flow_control="credits"), lab="credits") as net:
        net.route_statically()
        with Traffic(net.fabric, timeout_ns=20 * 10**9) as traffic:
            incast(traffic)
            traffic.finish(SENDERS, DEADLINE_S)
            nothing_lost(traffic)
            records = traffic.trace()
            group = traffic.telemetry.ports["priority_group"][:, LOSSLESS]
            stalled = int(group["credit_stall_ns"][net.fabric.nic("h0").index])
            for port in net.fabric.ports:  # nobody held more than it had advertised, and all of it is free again
                assert group["watermark_bytes"][port.index] <= port.credit_bytes
                assert group["curr_occupancy_bytes"][port.index] == 0
    as_fast_as_the_link(traffic, records)
    assert stalled > 0.5 * (records["t_ns"][-1] - records["t_ns"][0])
    assert len(records[records["kind"] == TraceKind.CREDIT_STALL]) > 0


def test_without_flow_control_the_first_drop_is_where_the_buffer_equation_says() -> None:
    """N senders at line rate leave (N - 1) / N of what arrives in the queue, until it is full."""
    with FabricNet(SPEC, lab="drop tail") as net:
        net.route_statically()
        with Traffic(net.fabric) as traffic:
            incast(traffic)
            traffic.finish(1, DEADLINE_S)
            records = traffic.trace()
            assert set(traffic.drops()) == {"TAIL"}
        port = towards_receiver(net.fabric)
    first = records[records["kind"] == TraceKind.DROP][0]
    assert first["port"] == port.index
    hops = records[(records["kind"] == TraceKind.HOP) & (records["port"] == port.index)]
    came_ns = hops["t_ns"] - hops["wait_ns"] - (hops["bytes"] + float(WIRE_OVERHEAD_BYTES)) * 8e9 / port.rate_bps
    arrived_bytes = int(hops["bytes"][came_ns <= first["t_ns"]].sum()) + int(first["bytes"])
    predicted_bytes = port.buffer_bytes * SENDERS / (SENDERS - 1)
    print(f"first drop after {arrived_bytes} bytes, predicted {predicted_bytes:.0f}")
    assert arrived_bytes == pytest.approx(predicted_bytes, rel=0.05)
