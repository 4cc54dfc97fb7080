"""The verdict: did the emulator keep up?  A run with one broken invariant is INVALID, whatever it shows.

Every check is a pure function of counters, the trace or plain numbers and returns a `Check`.  Times are of
the laboratory's clock, because that is what the machine has to keep; `explain` says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt

from labs.measure.line_rate import carried_rate_errors
from labs.measure.raw import RawIteration, RawRun
from labs.measure.spans import spans, total_ns
from topologies.fabricd.telemetry import DropReason, TraceKind, histogram_percentile
from topologies.units import mtu_frame_bytes, serialisation_ns

if TYPE_CHECKING:
    from topologies.fabric import Fabric
    from topologies.fabricd.telemetry import Snapshot

LATENESS_SHARE = 0.10  # of one MTU's serialisation time, p99
LINE_RATE_ERROR = 0.01
START_SKEW_SHARE = 0.5  # of one MTU's serialisation time
CPU_IDLE_MIN = 0.05
CPU_STEAL_MAX = 0.02
FABRIC_DROPS = slice(1, 8)  # drop reasons of a carried frame; from 8 on a router would not carry it (telemetry.h)

_NO_REMEDY = {"controller", "ranks", "data", "evidence"}  # a slower lab would not help
_LOST = {"conservation_switch", "conservation_end_to_end", "overflow", "line_rate"}  # no ratio to go by: double it


class Check(TypedDict):
    """One invariant.  `margin`: share of the limit that is left (negative: exceeded); None where the limit is zero."""

    check: str
    value: float | None
    limit: float
    unit: str
    ok: bool
    margin: float | None
    explain: str


def at_most(check: str, value: float | None, limit: float, unit: str, explain: str) -> Check:
    """A check that holds while value <= limit; a value that was not measured (None) never holds."""
    margin = None if value is None or limit == 0 else (limit - value) / abs(limit)
    ok = value is not None and value <= limit
    return Check(check=check, value=value, limit=limit, unit=unit, ok=ok, margin=margin, explain=explain)


def at_least(check: str, value: float | None, limit: float, unit: str, explain: str) -> Check:
    """A check that holds while value >= limit."""
    margin = None if value is None or limit == 0 else (value - limit) / abs(limit)
    ok = value is not None and value >= limit
    return Check(check=check, value=value, limit=limit, unit=unit, ok=ok, margin=margin, explain=explain)


def mtu_time_us(fabric: Fabric) -> float:
    """Lab us that a full packet occupies the fastest link of the fabric: the unit of most limits."""
    rate_bps = max(port.rate_bps for port in fabric.ports)
    return serialisation_ns(mtu_frame_bytes(fabric.spec.mtu_bytes), rate_bps) / 1e3


def frames_in_flight(snapshot: Snapshot) -> int:
    """Frames queued, on a link or inside a switch.  0: the fabric is quiet, and a snapshot accounts for everything."""
    inside = int(snapshot.switches["in_frames"].sum()) - int(snapshot.switches["out_frames"].sum())
    return int(snapshot.globals["pool_used"]) + inside


def lateness(before: Snapshot, after: Snapshot, mtu_us: float) -> Check:
    """fabricd hands frames over when they are due: p99 of the delay below 10 % of an MTU's serialisation time."""
    histogram = after.globals["lateness_us"]["bucket"] - before.globals["lateness_us"]["bucket"]
    value = histogram_percentile(histogram, 99) if histogram.any() else None
    return at_most("lateness", value, LATENESS_SHARE * mtu_us, "us (lab)",
                   "p99 of how late fabricd delivered a frame; limit: 10 % of one MTU time")


def in_switch(before: Snapshot, after: Snapshot, mtu_us: float, names: Sequence[str]) -> Check:
    """Open vSwitch forwards like silicon would: p99 inside the slowest switch below one MTU time."""
    worst, where = None, ""
    for index, name in enumerate(names):
        histogram = after.switches["inside_us"]["bucket"][index] - before.switches["inside_us"]["bucket"][index]
        value = histogram_percentile(histogram, 99) if histogram.any() else None
        if value is not None and (worst is None or value > worst):
            worst, where = value, f" ({name})"
    return at_most("in_switch", worst, mtu_us, "us (lab)",
                   f"p99 of a frame's time inside Open vSwitch, slowest switch{where}; limit: one MTU time")


def conservation(before: Snapshot, after: Snapshot) -> tuple[Check, Check, dict[str, int]]:
    """Every frame is accounted for, at each switch and from host to host.

    Returns both checks and the frame counts: sent = delivered + dropped + lost_in_switch + in_flight.
    """
    def grown(rows: str, name: str) -> npt.NDArray[np.int64]:
        then, now = (getattr(snapshot, rows)[name].astype(np.int64) for snapshot in (before, after))
        difference: npt.NDArray[np.int64] = now - then
        return difference

    nics = len(after.nics)  # their ports come first (topologies.fabric)
    entered, left = grown("switches", "in_frames"), grown("switches", "out_frames")
    packets = {
        "sent": int(grown("ports", "rx_frames")[:nics].sum()),
        # What ports hand over goes into a switch or to a host.
        "delivered": int(grown("ports", "delivered_frames").sum() - entered.sum()),
        "dropped": int(grown("ports", "dropped")[:, FABRIC_DROPS].sum()),
        "lost_in_switch": int((entered - left).sum()),
        "in_flight": int(after.globals["pool_used"]) - int(before.globals["pool_used"]),
    }
    inside = np.abs(entered - left)
    unaccounted = abs(packets["sent"] - sum(count for name, count in packets.items() if name != "sent"))
    at_switches = at_most("conservation_switch", float(inside.sum()), 0, "frames",
                          "frames that went into a switch and did not come out again")
    end_to_end = at_most("conservation_end_to_end", float(unaccounted), 0, "frames",
                         "sent - delivered - dropped - in flight, over the whole fabric")
    return at_switches, end_to_end, packets


def overflow(before: Snapshot, after: Snapshot, trace_lost: int) -> Check:
    """Nothing was lost by the emulator itself: rings, sockets, packet memory, flow table, trace."""
    counts = {name: int(after.globals[name]) - int(before.globals[name])
              for name in ("ring_overflow", "send_failed", "flows_overflow")}
    counts["pool"] = int((after.ports["dropped"] - before.ports["dropped"])[:, DropReason.POOL].sum())
    counts["trace_lost"] = trace_lost
    guilty = ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"
    return at_most("overflow", float(sum(counts.values())), 0, "records",
                   f"frames or records that the emulator lost for want of room: {guilty}")


def line_rate(trace: npt.NDArray[Any], fabric: Fabric) -> Check:
    """A link that always had a frame waiting carried its configured rate, seen by the clock of the far end."""
    errors = carried_rate_errors(trace, fabric)
    if not errors:
        return at_most("line_rate", 0.0, LINE_RATE_ERROR, "share",
                       "no link was busy long enough to measure its rate (256 frames back to back)")
    port, error = max(errors.items(), key=lambda item: abs(item[1]))
    return at_most("line_rate", abs(error), LINE_RATE_ERROR, "share",
                   f"worst of {len(errors)} busy links, {fabric.port_name(port)}: {error:+.2%} of its configured rate")


def start_skew(raw: RawRun, mtu_us: float) -> Check:
    """All ranks of a burst begin when they are planned to, but for the jitter that the lab asks for.

    A rank is planned to begin with its first flow.  Time in which its NIC was paused or had no credits is the fabric's.
    """
    clock = raw.fabric.clock
    held = np.concatenate([spans(raw.trace, kind, raw.end_ns) for kind in (TraceKind.PAUSED, TraceKind.CREDIT_STALL)])
    planned_ns: dict[int, int] = {}
    for role in raw.flow_ranks:
        start_ns = clock.lab_ns(role.start_us)
        planned_ns[role.rank] = min(planned_ns.get(role.rank, start_ns), start_ns)
    value = None
    for iteration in raw.iterations:
        for rank in iteration.ranks:
            if rank.first_tx_ns is None:
                continue
            due_ns = iteration.start_ns + planned_ns.get(rank.rank, 0)
            late_us = (rank.first_tx_ns - due_ns) / 1e3
            if late_us > 0:
                of_nic = held[held["port"] == raw.fabric.nic(rank.host).index]
                late_us -= total_ns(of_nic, due_ns, rank.first_tx_ns) / 1e3 + clock.lab_ns(raw.rank_jitter_us) / 1e3
            value = max(value or 0.0, late_us if rank.first_tx_ns > due_ns else -late_us)
    return at_most("start_skew", value, START_SKEW_SHARE * mtu_us, "us (lab)",
                   "latest (or too early) first bit of a rank after its planned start, less the lab's own jitter and "
                   "pauses of its NIC; limit: half an MTU time")


def cpu(measured: Mapping[str, float]) -> tuple[Check, Check]:
    """The machine had time left, and nobody took any away from it."""
    return (
        at_least("cpu_idle", measured.get("idle_share"), measured.get("idle_min", CPU_IDLE_MIN), "share",
                 "share of all CPUs that was idle, or doing niced work, over the run"),
        at_most("cpu_steal", measured.get("steal_share"), measured.get("steal_max", CPU_STEAL_MAX), "share",
                "share of CPU time that the hypervisor gave to others"),
    )


def controller(alive: bool, missing: Sequence[str]) -> Check:
    """The controller lived to the end and held every switch."""
    explain = "the controller died" if not alive else (
        f"not connected: {', '.join(missing)}" if missing else "controller alive, every switch connected")
    return at_most("controller", float(len(missing) + (not alive)), 0, "failures", explain)


def ranks(iterations: Sequence[RawIteration], may_fail: bool = False) -> Check:
    """Every rank finished every iteration, or the lab is about those that do not."""
    failed = [(iteration.n, rank) for iteration in iterations for rank in iteration.ranks
              if rank.error is not None or rank.end_ns is None]
    explain = "every rank finished every iteration"
    if failed:
        n, first = failed[0]
        explain = f"iteration {n}, rank {first.rank} on {first.host}: {first.error or 'never finished'}"
        if may_fail:
            explain = f"{len(failed)} did not finish, which the lab expects: {explain}"
    return at_most("ranks", 0.0 if may_fail else float(len(failed)), 0, "failures", explain)


def data(iterations: Sequence[RawIteration]) -> Check:
    """The reduced data is the true sum."""
    wrong = sum(rank.wrong for iteration in iterations for rank in iteration.ranks)
    return at_most("data", float(wrong), 0, "elements", "elements of the results that differ from the true ones")


def judge(raw: RawRun) -> list[Check]:
    """All checks of one run, warm-up included: the emulator has to keep up there as well."""
    mtu_us = mtu_time_us(raw.fabric)
    at_switches, end_to_end, _ = conservation(raw.before, raw.after)
    missing = at_most("evidence", float(not raw.measured), 0, "runs", "runs without an iteration after the warm-up")
    return [
        lateness(raw.before, raw.after, mtu_us),
        in_switch(raw.before, raw.after, mtu_us, [switch.name for switch in raw.fabric.switches]),
        at_switches,
        end_to_end,
        overflow(raw.before, raw.after, raw.trace_lost),
        line_rate(raw.trace, raw.fabric),
        start_skew(raw, mtu_us),
        *cpu(raw.cpu),
        controller(raw.controller_alive, raw.switches_missing),
        ranks(raw.iterations, raw.may_fail),
        data(raw.iterations),
        missing,
    ]


def valid(checks: Sequence[Check]) -> bool:
    """Whether every check holds."""
    return all(check["ok"] for check in checks)


def next_slowdown(checks: Sequence[Check], slowdown: float) -> float | None:
    """The slowdown to try next (of the series 1, 2, 5, 10, ...), or None where a slower lab would not help.

    A limit in time grows with the slowdown and the load shrinks with it, so that the worst ratio of value to
    limit says by how much; one fifth on top, for a run that just passes is no use.
    """
    ratio = 0.0
    for check in checks:
        if check["ok"] or check["check"] in _NO_REMEDY:
            continue
        value, limit = check["value"], check["limit"]
        if check["check"] == "cpu_idle" and value is not None:
            ratio = max(ratio, (1 - value) / (1 - limit))
        elif check["check"] in _LOST or value is None or limit == 0:
            ratio = max(ratio, 2.0 / 1.2)
        elif check["check"] != "cpu_steal":
            ratio = max(ratio, value / limit)
    return _series_125(slowdown, slowdown * ratio * 1.2) if ratio else None


def _series_125(above: float, at_least_: float) -> float:
    decade = 10.0 ** np.floor(np.log10(above))
    while True:
        for step in (1, 2, 5):
            candidate = float(step * decade)
            if candidate > above and candidate >= at_least_ * (1 - 1e-9):
                return candidate
        decade *= 10
