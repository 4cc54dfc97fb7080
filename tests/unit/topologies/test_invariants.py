"""What must hold of lossless classes whatever the fabric, the traffic and the receivers: random ones in virtual time.

Up to six switches: leaf and spine, or a ring of which one link is not used, so that no circle of buffers exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.topologies.qos_fabric import FRAME, KB, MS, burst, drops, quiet
from tests.unit.topologies.virtual_fabric import VirtualFabric
from topologies import headroom
from topologies.fabricd._core import lib
from topologies.fabricd.telemetry import DropReason, TraceKind
from topologies.spec import FabricSpec

LOSSLESS = (3, 4)
DSCPS = {26: 3, 10: 4, 8: 1, 48: 6}
SWITCHES = 6


@dataclass(frozen=True)
class Stream:
    """Frames that one host hands to its NIC at once."""

    source: int
    target: int
    frames: int
    payload: int
    at_us: int
    dscp: int


@dataclass(frozen=True)
class Case:
    """A fabric, what its hosts send, and a host that takes it in slowly or for a while not at all."""

    spec: FabricSpec
    streams: list[Stream]
    drain_bps: int  # of h0
    held_ms: int  # PFC: h0 pauses its switch so long


@st.composite
def cases(draw: st.DrawFn, flow_control: str) -> Case:
    """`headroom_kb` is what links need and no byte more."""
    delay_us = draw(st.sampled_from([0.0, 0.1, 0.5, 3.0]))
    ring = draw(st.booleans())
    keys: dict[str, object]
    if ring:
        keys = {"shape": "switch_ring", "leaves": draw(st.integers(3, SWITCHES)), "hosts_per_leaf": 2}
        fastest_gbps = 100.0
    else:
        uplink_gbps = draw(st.sampled_from([None, 40.0, 250.0]))
        fastest_gbps = max(100.0, uplink_gbps or 0.0)
        keys = {"leaves": draw(st.integers(1, 4)), "spines": draw(st.integers(1, 2)), "hosts_per_leaf": 4,
                "uplink_gbps": uplink_gbps}  # fmt: skip
    dynamic_xoff = flow_control == "pfc" and draw(st.booleans())
    needed_bytes = headroom.physical_bytes(fastest_gbps, delay_us, FRAME, dynamic_xoff=dynamic_xoff)
    if dynamic_xoff:
        keys |= {"xoff_kb": "auto", "xoff_alpha": draw(st.sampled_from([0.06, 0.5, 4.0])), "shared_buffer_kb": 4096,
                 "lossless_share": draw(st.sampled_from([0.05, 0.6]))}  # fmt: skip
    else:
        keys |= {"xoff_kb": draw(st.sampled_from([1.0, 6.0, 30.0])), "shared_buffer_kb": 0}
    spec = FabricSpec(
        **keys, link_delay_us=delay_us, slowdown=10_000, host_buffer_kb=65_536, flow_control=flow_control,
        xon_offset_kb=draw(st.sampled_from([0.0, 4.0])), headroom_kb=needed_bytes / KB, dscp_classes=DSCPS,
        lossless_classes=LOSSLESS, ets_shares=draw(st.sampled_from([{}, {3: 90, 4: 10}, {0: 100, 3: 1}])),
        credit_kb=draw(st.integers(2, 12)) * (4096 + 192) / KB,
    )  # fmt: skip
    streams = []
    for _ in range(draw(st.integers(2, 10))):
        ends = draw(st.integers(0, spec.hosts - 1)), draw(st.sampled_from([0, 0, 0, 1, 5, 9, 11])) % spec.hosts
        if ends[0] == ends[1]:
            continue
        # In a ring nothing goes on from the last switch to the first: no circle.
        source, target = sorted(ends) if ring else ends
        streams.append(Stream(
            source, target, draw(st.integers(2, 40)), draw(st.sampled_from([1, 700, 4096, 4096])),
            draw(st.integers(0, 60_000)), draw(st.sampled_from([26, 26, 26, 10, 0, 8, 48])),
        ))  # fmt: skip
    return Case(spec, streams, draw(st.sampled_from([0, 0, 500_000, 4_000_000])), draw(st.sampled_from([0, 0, 400])))


def play(case: Case) -> VirtualFabric:
    """Until nothing moves any more."""
    fabric = VirtualFabric(case.spec)
    # In a ring all streams end at high numbers, so that is where the slow host is.
    slow = 0 if case.spec.shape == "leaf_spine" else case.spec.hosts - 1
    fabric.core.control(lib.FABRIC_SET_DRAIN, slow, case.drain_bps)
    for number, stream in enumerate(case.streams):
        burst(fabric, f"h{stream.source}", f"h{stream.target}", stream.frames, at_ns=5 * MS + stream.at_us * 1000,
              payload=stream.payload, dscp=stream.dscp, sport=1000 + number)  # fmt: skip
    if case.held_ms and case.spec.flow_control == "pfc":  # the worst case for every ingress on the way
        fabric.core.control(lib.FABRIC_PAUSE_STORM, slow, sum(1 << c for c in LOSSLESS))
        fabric.run(case.held_ms * MS)
        fabric.core.control(lib.FABRIC_PAUSE_STORM, slow, 0)
    fabric.run()
    return fabric


def nothing_lossless_was_lost(fabric: VirtualFabric) -> None:
    assert set(drops(fabric)) <= {DropReason.TAIL.name, DropReason.SHARED.name}  # of the lossy classes
    assert not fabric.core.telemetry.ports["queue"]["dropped_frames"][:, LOSSLESS].any()


def every_wait_ended(fabric: VirtualFabric, *kinds: TraceKind) -> None:
    """At every port and class beginnings and ends alternate, and the last one is an end."""
    trace = fabric.core.telemetry.drain_trace()
    assert fabric.core.telemetry.trace_lost == 0
    for kind in kinds:
        records = trace[trace["kind"] == kind]
        for port, c in {(int(r["port"]), int(r["reason"])) for r in records}:
            of_class = records["psn"][(records["port"] == port) & (records["reason"] == c)]
            assert list(of_class) == [1, 0] * (len(of_class) // 2)
    assert all(fabric.core.paused_classes(p.index) == () for p in fabric.fabric.ports)


@settings(max_examples=120, deadline=None)
@given(case=cases("pfc"))
def test_pfc_loses_nothing_while_headroom_suffices_and_every_pause_ends(case: Case) -> None:
    fabric = play(case)
    nothing_lossless_was_lost(fabric)
    quiet(fabric)
    every_wait_ended(fabric, TraceKind.PAUSE, TraceKind.PAUSED)


@settings(max_examples=80, deadline=None)
@given(case=cases("credits"))
def test_credits_lose_nothing_are_never_negative_and_never_leak(case: Case) -> None:
    fabric = play(case)  # the core itself asserts that nobody sends without credits
    nothing_lossless_was_lost(fabric)
    quiet(fabric)
    every_wait_ended(fabric, TraceKind.CREDIT_STALL)
    group = fabric.core.telemetry.ports["priority_group"][:, LOSSLESS]
    for port in fabric.fabric.ports:
        buffer = fabric.fabric.peer(port).credit_bytes // 64
        free = group["credit_limit_units"][port.index].astype(np.int64) - group["credit_sent_units"][port.index]
        # All of it is the peer's again, but for what it was not told yet: less than a quarter.
        assert (buffer - buffer // 4 <= free).all()
        assert (free <= buffer).all()
        assert (group["watermark_bytes"][port.index] <= port.credit_bytes).all()
