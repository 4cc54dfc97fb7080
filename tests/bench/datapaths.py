"""Open vSwitch's two datapaths under the same traffic: how long a frame is inside a switch, and what it costs.

The kernel forwards within the send of whoever sends, so that no process' CPU time tells what it costs. The whole
machine's does, fabricd and hosts included: they do the same work on both.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.bench.row import Row
from tests.live.tbf import DATAGRAM_FRAME_BYTES, Offered, offer
from topologies import ovs
from topologies.calibrate import resolve
from topologies.errors import LabError
from topologies.fabric import TELEMETRY_PATH
from topologies.fabricd.telemetry import Telemetry, histogram_percentile
from topologies.network import FabricNet
from topologies.spec import FabricSpec
from topologies.units import WIRE_OVERHEAD_BYTES

# As fast as this machine plays a fabric of this size with the datapath that it prefers.
SPEC = FabricSpec(leaves=2, spines=2, hosts_per_leaf=2, link_delay_us=0, buffer_kb=1024, slowdown="auto")
FLOWS = (("h0", "h2"), ("h1", "h3"), ("h2", "h0"), ("h3", "h1"))
LOAD = 0.8
SECONDS = 10.0


@dataclass(frozen=True)
class _Cost:
    inside_p50_us: float
    inside_p99_us: float
    cpu_us_a_hop: float


def datapaths() -> list[Row]:
    """The preferred datapath is ours; its peer is the userspace one where that is not the only one."""
    spec = resolve(SPEC)
    best = ovs.datapath()
    ours = _measure(spec, best)
    peer = _measure(spec, "userspace") if best == "kernel" else None
    what = f"{best}; peer: " + ("userspace; ours/peer" if peer else "kernel, which is not here")
    at = f"at slowdown {spec.clock.slowdown:,.0f}, {what}"
    return [
        _row("in_switch_p50", ours.inside_p50_us, peer.inside_p50_us if peer else None, f"us inside a switch {at}"),
        _row("in_switch_p99", ours.inside_p99_us, peer.inside_p99_us if peer else None, f"us inside a switch {at}"),
        _row("cpu_a_hop", ours.cpu_us_a_hop, peer.cpu_us_a_hop if peer else None,
             f"us of all CPUs a frame and switch, links and hosts included, {what}"),
    ]


def _row(name: str, ours: float, peer: float | None, unit: str) -> Row:
    return Row(name, ours, peer, None if peer is None else ours / peer, unit)


def _measure(spec: FabricSpec, datapath: str) -> _Cost:
    with FabricNet(spec, lab="bench", datapath=datapath) as net:
        net.route_statically()
        telemetry = Telemetry.open(TELEMETRY_PATH)
        before = telemetry.snapshot()
        packet_bits = (DATAGRAM_FRAME_BYTES + WIRE_OVERHEAD_BYTES) * 8
        packets = round(SECONDS * LOAD * net.fabric.nic("h0").rate_bps / packet_bits)
        carried = offer(net, Offered(FLOWS, packets, LOAD))
        after = telemetry.snapshot()
    if carried.received != len(FLOWS) * packets:
        lost = len(FLOWS) * packets - carried.received
        raise LabError(f"{lost} frames were lost ({datapath}): the machine was too busy", "try again")
    hops = int((after.switches["out_frames"] - before.switches["out_frames"]).sum())
    inside = (after.switches["inside_us"]["bucket"] - before.switches["inside_us"]["bucket"]).sum(axis=0)
    return _Cost(histogram_percentile(inside, 50), histogram_percentile(inside, 99), carried.cpu_s / hops * 1e6)
