"""Where drop-tail begins to drop: a queue that N senders fill at line rate grows by (N - 1) / N of what comes in."""

from __future__ import annotations

import pytest

from tests.unit.topologies.qos_fabric import KB, MS, access, burst, quiet
from tests.unit.topologies.virtual_fabric import VirtualFabric
from topologies.fabricd.telemetry import DropReason, TraceKind
from topologies.spec import FabricSpec
from topologies.units import serialisation_ns

STAR = FabricSpec(leaves=1, spines=1, hosts_per_leaf=14, slowdown=10_000, host_buffer_kb=65_536)


def first_drop(spec: FabricSpec, senders: int, targets: list[str], payload: int) -> tuple[DropReason, float, int]:
    """`senders` of their own for each target, whose frames come in evenly. Returns why, the bytes that the queue of
    the first drop should hold by then according to what has arrived, and the length of a frame.
    """
    fabric = VirtualFabric(spec)
    frame_bytes = payload + 42
    frame_ns = serialisation_ns(frame_bytes, fabric.fabric.nic("h0").rate_bps)
    for n in range(senders * len(targets)):
        at_ns = 5 * MS + round(frame_ns * n / (senders * len(targets)))
        burst(fabric, f"h{n}", targets[n % len(targets)], 3 * round(spec.buffer_kb * KB / frame_bytes / senders) + 20,
              at_ns=at_ns, payload=payload, sport=1000 + n)  # fmt: skip
    fabric.run()
    quiet(fabric)
    trace = fabric.core.telemetry.drain_trace()
    first = trace[trace["kind"] == TraceKind.DROP][0]
    port = fabric.fabric.port(int(first["port"]))
    assert port in [access(fabric, target) for target in targets]
    hops = trace[(trace["kind"] == TraceKind.HOP) & (trace["port"] == port.index)]
    came_ns = hops["t_ns"] - hops["wait_ns"] - round(frame_ns)
    arrived_bytes = int(hops["bytes"][came_ns < first["t_ns"] + 10].sum()) + int(first["bytes"])
    return DropReason(first["reason"]), arrived_bytes * (senders - 1) / senders, frame_bytes


@pytest.mark.parametrize("senders", [2, 3, 7, 12])
@pytest.mark.parametrize(("buffer_kb", "payload"), [(100, 4096), (400, 4096), (257, 1000)])
def test_the_first_drop_is_within_one_frame_of_the_ports_buffer(senders: int, buffer_kb: float, payload: int) -> None:
    reason, queue_bytes, frame_bytes = first_drop(STAR.replace(buffer_kb=buffer_kb), senders, ["h13"], payload)
    assert reason == DropReason.TAIL
    assert abs(queue_bytes - buffer_kb * KB) <= frame_bytes


@pytest.mark.parametrize("targets", [["h13"], ["h12", "h13"]])
@pytest.mark.parametrize("senders", [2, 6])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 4.0])
def test_with_a_shared_buffer_it_is_within_one_frame_of_the_dynamic_threshold(
    targets: list[str], senders: int, alpha: float
) -> None:
    """n queues that grow alike stop at alpha / (1 + n alpha) of the pool (Choudhury and Hahne, 1998)."""
    spec = STAR.replace(shared_buffer_kb=600, alpha=alpha, buffer_kb=600)
    reason, queue_bytes, frame_bytes = first_drop(spec, senders, targets, 4096)
    assert reason == DropReason.SHARED
    assert abs(queue_bytes - 600 * KB * alpha / (1 + len(targets) * alpha)) <= frame_bytes
