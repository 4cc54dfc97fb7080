"""What flow control and congestion control did in a run: pauses, credits, marks, buffers, and a fabric that froze."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from labs.measure.evidence import ACK_FRAME_BYTES
from labs.measure.raw import RawRun
from labs.measure.spans import spans, total_ns
from topologies.fabric import Fabric
from topologies.fabricd.telemetry import DropReason, Snapshot, TraceKind

FROZEN_S = 0.5  # lab seconds without any arrival
FROZEN_SHARE = 0.8  # of it in which a port was held: the runner has to notice, and to end what was planted
HELD = (TraceKind.PAUSED, TraceKind.CREDIT_STALL)


def congestion(raw: RawRun) -> dict[str, Any]:
    """The keys of a run in run.json that tell of congestion (see schema.json), times in hardware us."""
    clock = raw.fabric.clock
    found: dict[str, Any] = {
        "marks": _grown(raw, "ports", "queue", "wred_ecn_marked_packets"),
        "cnps": _grown(raw, "nics", "np_cnp_sent"),
        "watchdogs": _grown(raw, "ports", "priority_group", "wd_deadlock_detected"),
    }
    found["marks_by_port"] = _marks_by_port(raw)
    for kind, count, time_us in ((TraceKind.PAUSED, "pauses", "pause_us"),
                                 (TraceKind.CREDIT_STALL, "credit_stalls", "credit_stall_us")):
        held = spans(raw.trace, kind, raw.end_ns)
        held = held[held["end_ns"] > raw.start_ns]
        found[count] = len(held)
        found[time_us] = clock.hardware_us(total_ns(held, raw.start_ns, raw.end_ns))
    found["headroom_peak_bytes"] = {
        switch.name: int(raw.after.switches["headroom_peak_bytes"][switch.index]) for switch in raw.fabric.switches
        if raw.after.switches["headroom_peak_bytes"][switch.index] > 0}
    found["frozen"] = [raw.fabric.port_name(port) for port in frozen_ports(raw)]
    return found


def frozen_ports(raw: RawRun) -> list[int]:
    """Ports that stood with frames in their queues while no data arrived any more, and ranks were not done.

    Paused or without credits in the longest time without any arrival at a host, in the first iteration that was not
    finished: a deadlock, or a pause storm that no watchdog ended.  Empty when every rank finished.
    """
    undone = [iteration for iteration in raw.iterations if any(rank.end_ns is None for rank in iteration.ranks)]
    if not undone:
        return []
    access = np.array([port.role == "access" for port in raw.fabric.ports])
    hops = raw.trace[raw.trace["kind"] == TraceKind.HOP]
    arrived_ns = hops["t_ns"][access[hops["port"]] & (hops["bytes"] > ACK_FRAME_BYTES)]
    arrived_ns = np.sort(arrived_ns[(arrived_ns > undone[0].start_ns) & (arrived_ns < raw.end_ns)])
    moments_ns = np.concatenate(([undone[0].start_ns], arrived_ns, [raw.end_ns]))
    longest = int(np.argmax(np.diff(moments_ns)))
    begin_ns, end_ns = int(moments_ns[longest]), int(moments_ns[longest + 1])
    if end_ns - begin_ns < FROZEN_S * 1e9:
        return []
    ports: set[int] = set()
    for kind in HELD:
        held = spans(raw.trace, kind, raw.end_ns)
        for port in np.unique(held["port"]).tolist():
            if total_ns(held[held["port"] == port], begin_ns, end_ns) >= FROZEN_SHARE * (end_ns - begin_ns):
                ports.add(port)
    if len(raw.series_t_ns):  # a port that is held and has nothing to send holds nobody up
        row = min(int(np.searchsorted(raw.series_t_ns, (begin_ns + end_ns) // 2)), len(raw.series_t_ns) - 1)
        ports = {port for port in ports if raw.series_depth[row, port].any()}
    return sorted(ports)


def drops_by_port(before: Snapshot, after: Snapshot, fabric: Fabric, reasons: slice) -> dict[str, dict[str, int]]:
    """{"leaf0->spine1": {"tail": 12}}, worst first, of the drop reasons that count.

    A frame for which there was no headroom was dropped where it came in: it stands under the link that brought it.
    """
    difference = after.ports["dropped"].astype(np.int64) - before.ports["dropped"].astype(np.int64)
    found: dict[str, dict[str, int]] = {}
    for port, reason in zip(*np.nonzero(difference[:, reasons]), strict=True):
        number = int(reason) + reasons.start
        ingress = number == DropReason.HEADROOM
        name = fabric.port_name(fabric.port(int(port)).peer if ingress else int(port))
        of_port = found.setdefault(name, {})
        of_port[_reason_name(number)] = int(difference[port, number])
    return dict(sorted(found.items(), key=lambda item: -sum(item[1].values())))


def by_reason(drops: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """The same over all ports: {"tail": 12, "headroom": 3}."""
    totals: dict[str, int] = {}
    for reasons in drops.values():
        for reason, count in reasons.items():
            totals[reason] = totals.get(reason, 0) + count
    return totals


def peak_queues(raw: RawRun) -> dict[str, int]:
    """Largest depth of each switch port that was not always empty, in bytes: of its queues together as sampled, or of
    one queue as a frame found it, its own bytes included; the larger."""
    peaks = np.zeros(len(raw.fabric.ports), dtype=np.int64)
    if len(raw.series_t_ns):
        peaks = raw.series_depth.sum(axis=2, dtype=np.int64).max(axis=0)
    hops = raw.trace[raw.trace["kind"] == TraceKind.HOP]
    waited = hops[hops["wait_ns"] > 0]
    np.maximum.at(peaks, waited["port"], waited["arg"].astype(np.int64) + waited["bytes"])
    return {raw.fabric.port_name(port.index): int(peaks[port.index]) for port in raw.fabric.ports
            if port.kind == "switch" and peaks[port.index] > 0}


def _marks_by_port(raw: RawRun) -> dict[str, int]:
    before, after = (snapshot.ports["queue"]["wred_ecn_marked_packets"].sum(axis=1).astype(np.int64)
                     for snapshot in (raw.before, raw.after))
    marks = after - before
    return {raw.fabric.port_name(port): int(marks[port]) for port in np.argsort(-marks, kind="stable").tolist()
            if marks[port] > 0}


def _grown(raw: RawRun, rows: str, *names: str) -> int:
    def total(snapshot: Snapshot) -> int:
        values: npt.NDArray[Any] = getattr(snapshot, rows)
        for name in names:
            values = values[name]
        return int(values.sum())

    return total(raw.after) - total(raw.before)


def _reason_name(number: int) -> str:
    try:
        return DropReason(number).name.lower()
    except ValueError:
        return f"reason {number}"
