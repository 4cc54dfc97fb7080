"""Why was that rank late?  The answer, from the recorded packets of one iteration.

The last rank to finish names its ring; of the ring's connections the one that was longest under way is the
critical one, for all others waited for it.  What that connection lost against an ideal fabric is then
booked to what it was lost to:

  late_start  its ring's first bit went out after the common instant
  host        data was there and nothing was sent (a rank computed, or was not scheduled)
  drop        from a packet's drop to the arrival of the same packet sent again (go-back-N, timeouts)
  reordering  the same without a drop: packets overtook each other and the receiver asked for them again
  collision   a link served other flows while packets of this connection stood in its queue

The largest entry is the cause, unless all are small: then nothing was wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from labs.measure.evidence import ACK_FRAME_BYTES, Evidence, reordered
from labs.measure.intervals import Intervals
from labs.measure.raw import RawIteration, RawRank
from labs.measure.sentence import in_words
from topologies.errors import LabError
from topologies.fabricd.telemetry import DropReason, TraceKind

CAUSES = ("collision", "drop", "reordering", "late_start", "host", "none")
WITHIN_IDEAL = 0.05  # BMWG AI fabric draft: a ratio below 1.05 is excellent, there is nothing to explain
SIGNIFICANT = 0.15  # share of the excess that a cause must account for
_NONE = np.zeros(0, dtype=np.int64)
RING_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}  # times (ranks - 1)


@dataclass(frozen=True)
class Sharer:
    """A flow that a link served while the critical connection stood there."""

    flow: str
    rank: int | None
    peer: int | None
    ring: int | None
    bytes: int
    share: float  # of all bytes that the link carried in that time, the critical connection's included


@dataclass(frozen=True)
class LinkWait:
    """What happened to the critical connection's packets at one port."""

    link: str
    packets: int
    wait_mean_us: float
    wait_max_us: float
    lost_us: float  # the link served others while they stood there
    drops: int


@dataclass(frozen=True)
class Connection:
    """One connection of the late rank's ring, in hardware us."""

    rank: int
    peer: int
    flow: str
    bytes: int
    active_us: float  # some packet of it was under way
    sent_again: int
    drops: int
    reordered: int
    timeouts: int


@dataclass(frozen=True)
class Explanation:
    """The answer for one iteration; times in hardware us."""

    policy: str
    seed: int
    collective: str
    iteration: int
    cause: str
    sentence: str
    rank: int
    host: str
    ring: int
    error: str | None
    time_us: float | None
    ideal_us: float
    lost_us: Mapping[str, float]
    critical: Connection | None
    links: tuple[LinkWait, ...]  # where the critical connection waited, worst first
    shared_with: tuple[Sharer, ...]  # at the worst of them
    drops: Mapping[str, int]  # "leaf0->spine1 (tail)" -> packets of the critical connection
    connections: tuple[Connection, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def explain(evidence: Evidence, n: int) -> Explanation:
    """Explains iteration `n`.  Raises LabError if the run has no such iteration or no rank in it."""
    iteration = next((i for i in evidence.iterations if i.n == n), None)
    if iteration is None or not iteration.ranks:
        known = ", ".join(str(i.n) for i in evidence.iterations) or "none"
        raise LabError(f"no iteration {n} in the run of {evidence.policy}, seed {evidence.seed}", f"one of: {known}")
    return _Inquiry(evidence, iteration).explanation()


def worst_iteration(evidence: Evidence) -> int:
    """The measured iteration that took longest, one that never finished before all others."""
    def took(iteration: RawIteration) -> float:
        ends = [rank.end_ns for rank in iteration.ranks]
        return float("inf") if None in ends else max((end or 0) - iteration.start_ns for end in ends)

    played = [i for i in evidence.iterations if i.ranks]
    measured = [i for i in played if not i.warmup] or played
    if not measured:
        raise LabError(f"the run of {evidence.policy}, seed {evidence.seed} has no iteration")
    return max(measured, key=took).n


class _Inquiry:
    """One iteration under investigation; everything here is in lab ns until it goes into the Explanation."""

    def __init__(self, evidence: Evidence, iteration: RawIteration) -> None:
        self.evidence, self.iteration = evidence, iteration
        self.late = _late_rank(iteration)
        finished = self.late.error is None and self.late.end_ns is not None
        self.begin_ns = iteration.start_ns
        self.end_ns = int(self.late.end_ns or 0) if finished else int(evidence.trace["t_ns"].max(initial=self.begin_ns))
        self.time_ns = self.end_ns - self.begin_ns if finished else None
        sent = evidence.journeys["sent_ns"]
        window = evidence.journeys[np.searchsorted(sent, self.begin_ns - 1) : np.searchsorted(sent, self.end_ns)]
        self.journeys = window[window["bytes"] > ACK_FRAME_BYTES]
        t_ns = evidence.hops["t_ns"]
        hops = slice(int(np.searchsorted(t_ns, self.begin_ns)), int(np.searchsorted(t_ns, self.end_ns, side="right")))
        self.hops, self.hop_begin_ns = evidence.hops[hops], evidence.hop_begin_ns[hops]

    def explanation(self) -> Explanation:
        evidence, late = self.evidence, self.late
        active = {pair: self._active(flows) for pair, flows in self._candidates().items()}
        critical = max(active, key=lambda pair: active[pair].total_ns, default=None)
        connections = tuple(self._connection(pair, active[pair]) for pair in sorted(active))
        rows = self._of(self.evidence.connection(*critical, late.ring) if critical else [])
        links, served, sharers = self._links(rows)
        after_drop, after_overtaking = self._repairs(rows)
        if not reordered(rows).any():  # sent again for nothing (a timer too short): whatever delayed it is the cause
            after_overtaking = Intervals.union([], [])
        repaired = Intervals.union(np.concatenate((after_drop.start, after_overtaking.start)),
                                   np.concatenate((after_drop.end, after_overtaking.end)))
        lost_ns = {
            "collision": served.minus(repaired), "drop": float(after_drop.total_ns),
            "reordering": after_overtaking.minus(after_drop), "late_start": self._late_start(), "host": self._host(),
        }
        cause = self._cause(lost_ns)
        answer = Explanation(
            policy=evidence.policy, seed=evidence.seed, collective=evidence.collective, iteration=self.iteration.n,
            cause=cause, sentence="",
            rank=late.rank, host=late.host, ring=late.ring, error=late.error,
            time_us=None if self.time_ns is None else self._us(self.time_ns), ideal_us=evidence.ideal_us,
            lost_us={name: round(self._us(value), 3) for name, value in lost_ns.items()},
            critical=next((c for c in connections if (c.rank, c.peer) == critical), None),
            links=links, shared_with=sharers, drops=self._drops(rows), connections=connections)
        return replace(answer, sentence=in_words(answer))

    def _candidates(self) -> dict[tuple[int, int], list[int]]:
        """Connections that can have made the rank late: its whole ring's; without a ring those that end at it.

        A rank that only sends is done when all is acknowledged: then those that begin at it.
        """
        rank, ring = self.late.rank, self.evidence.collective in RING_STEPS
        receives = any(role.peer == rank for role in self.evidence.roles.values())
        pairs: dict[tuple[int, int], list[int]] = {}
        for flow, role in self.evidence.roles.items():
            if role.ring == self.late.ring and (ring or (role.peer if receives else role.rank) == rank):
                pairs.setdefault((role.rank, role.peer), []).append(flow)
        return pairs

    def _of(self, flows: Sequence[int]) -> npt.NDArray[Any]:
        return self.journeys[np.isin(self.journeys["flow"], flows)]

    def _active(self, flows: Sequence[int]) -> Intervals:
        """From a packet's first sending to its last arrival, over all packets."""
        rows = self._of(flows)
        first, last = _first_and_last(rows, self.end_ns)
        return Intervals.union(first["sent_ns"], np.minimum(last, self.end_ns))

    def _connection(self, pair: tuple[int, int], active: Intervals) -> Connection:
        flows = self.evidence.connection(*pair, self.late.ring)
        rows = self._of(flows)
        return Connection(
            rank=pair[0], peer=pair[1], flow=" + ".join(self.evidence.flow_name(flow) for flow in flows),
            bytes=int(rows["bytes"].sum()), active_us=self._us(active.total_ns),
            sent_again=int((rows["copy"] > 0).sum()), drops=int((rows["dropped"] > 0).sum()),
            reordered=int(reordered(rows).sum()), timeouts=self._timeouts(pair[0], flows))

    def _timeouts(self, rank: int, flows: Sequence[int]) -> int:
        """Timer events of the sender's NIC; the NIC may not know the fabric's number of the flow."""
        trace = self.evidence.trace
        window = trace[np.searchsorted(trace["t_ns"], self.begin_ns) : np.searchsorted(trace["t_ns"], self.end_ns)]
        nic = self.evidence.fabric.nic(self.evidence.host_of_rank(rank)).index
        mine = (window["kind"] == TraceKind.TIMEOUT) & (window["port"] == nic)
        known = window["flow"] < len(self.evidence.flow_keys)
        return int((mine & (~known | np.isin(window["flow"], flows))).sum())

    def _repairs(self, rows: npt.NDArray[Any]) -> tuple[Intervals, Intervals]:
        """When packets were being repaired after a drop, and after an overtaking without any drop.

        A repair lasts from the drop, or from the arrival at a wrong moment, to the arrival that counted.
        Go-back-N sends what followed a dropped packet again too: a repair that began during one for a drop is
        a part of it.
        """
        ordered, begins = _grouped(rows)
        if not len(begins):
            return Intervals.union([], []), Intervals.union([], [])
        first, last = _first_and_last(rows, self.end_ns)
        copies = np.diff(np.concatenate((begins, [len(ordered)])))
        never = np.iinfo(np.int64).max
        dropped = np.minimum.reduceat(np.where(ordered["dropped"] > 0, ordered["end_ns"], never), begins)
        begin = np.where(dropped < never, dropped, np.where(first["end_ns"] >= 0, first["end_ns"], first["sent_ns"]))
        end = np.minimum(last, self.end_ns)
        core = Intervals.union(begin[dropped < never], end[dropped < never])
        by_drop = (dropped < never) | ((copies > 1) & (core.inside(begin, begin + 1) > 0))
        by_order = (copies > 1) & ~by_drop
        return Intervals.union(begin[by_drop], end[by_drop]), Intervals.union(begin[by_order], end[by_order])

    def _drops(self, rows: npt.NDArray[Any]) -> dict[str, int]:
        drops: dict[str, int] = {}
        for row in rows[rows["dropped"] > 0]:
            place = f"{self.evidence.fabric.port_name(int(row['port']))} ({_reason(int(row['dropped']))})"
            drops[place] = drops.get(place, 0) + 1
        return dict(sorted(drops.items(), key=lambda item: -item[1]))

    def _links(self, rows: npt.NDArray[Any]) -> tuple[tuple[LinkWait, ...], Intervals, tuple[Sharer, ...]]:
        """Per link the waiting and the time given to others; their union; the sharers at the worst link."""
        hops = self.hops
        mine = np.isin(hops["flow"], np.unique(rows["flow"])) & (hops["bytes"] > ACK_FRAME_BYTES)
        # Flows to one receiver share its link on an ideal fabric, too: nothing is lost to them there.
        receivers = {role.peer for flow, role in self.evidence.roles.items() if flow in rows["flow"]}
        same_receiver = [flow for flow, role in self.evidence.roles.items() if role.peer in receivers]
        waits, starts, ends, present = [], [], [], {}
        for index in np.unique(hops["port"][mine]).tolist():
            port = self.evidence.fabric.port(index)
            if port.role == "nic":
                continue  # a NIC sends nothing but its own rank's flows
            here = np.flatnonzero(hops["port"] == index)
            own = here[mine[here]]
            others = here[~mine[here]]
            came = self.hop_begin_ns[own] - hops["wait_ns"][own]
            standing = Intervals.union(came, hops["t_ns"][own])
            begin, end = self.hop_begin_ns[others], hops["t_ns"][others].astype(np.int64)
            while_there = standing.inside(begin, end) > (end - begin) / 2
            alike = np.isin(hops["flow"][others], same_receiver) & (port.role == "access")
            lost = while_there & ~alike
            served = Intervals.union(begin[lost], end[lost])
            starts.append(served.start)
            ends.append(served.end)
            present[index] = (standing, others[while_there])
            wait = hops["wait_ns"][own]
            waits.append((index, LinkWait(
                link=self.evidence.fabric.port_name(index), packets=len(own), wait_mean_us=self._us(wait.mean()),
                wait_max_us=self._us(wait.max()), lost_us=self._us(served.total_ns),
                drops=int(((rows["port"] == index) & (rows["dropped"] > 0)).sum()))))
        waits.sort(key=lambda entry: (entry[1].drops > 0, entry[1].lost_us, entry[1].wait_mean_us), reverse=True)
        sharers: tuple[Sharer, ...] = ()
        if waits:
            standing, others = present[waits[0][0]]
            own_bytes = int(hops["bytes"][mine & (hops["port"] == waits[0][0])].sum())
            sharers = self._sharers(others, own_bytes)
        union = Intervals.union(np.concatenate([_NONE, *starts]), np.concatenate([_NONE, *ends]))
        return tuple(wait for _, wait in waits), union, sharers

    def _sharers(self, others: npt.NDArray[np.int64], own_bytes: int) -> tuple[Sharer, ...]:
        flows, position = np.unique(self.hops["flow"][others], return_inverse=True)
        carried = np.bincount(position, weights=self.hops["bytes"][others], minlength=len(flows))
        total = own_bytes + float(carried.sum())
        found = []
        for flow, count in sorted(zip(flows.tolist(), carried.tolist(), strict=True), key=lambda pair: -pair[1]):
            role = self.evidence.roles.get(flow)
            if count >= 0.02 * total:  # less than that are acknowledgements
                found.append(Sharer(
                    flow=self.evidence.flow_name(flow), rank=role.rank if role else None,
                    peer=role.peer if role else None, ring=role.ring if role else None, bytes=int(count),
                    share=count / total))
        return tuple(found)

    def _late_start(self) -> float:
        """How long after the common instant the last rank of the ring began."""
        firsts = [r.first_tx_ns for r in self.iteration.ranks if r.ring == self.late.ring and r.first_tx_ns is not None]
        return float(max(0, max(firsts, default=self.begin_ns) - self.begin_ns))

    def _host(self) -> float:
        """The longest that one rank kept the ring waiting: from the data of a step to the first bit of the next."""
        evidence, late = self.evidence, self.late
        inbound = [flow for flow, role in evidence.roles.items() if role.peer == late.rank and role.ring == late.ring]
        arrived = self._of(inbound)["end_ns"]
        tail = float(self.end_ns - arrived.max()) if len(arrived) and self.time_ns is not None else 0.0
        steps = RING_STEPS.get(evidence.collective, 0) * (evidence.group_ranks - 1)
        if steps <= 1:
            return max(0.0, tail)
        turnaround: dict[int, float] = {}
        for flow, role in evidence.roles.items():
            feeding = [f for f, r in evidence.roles.items() if r.peer == role.rank and r.ring == role.ring]
            if role.ring != late.ring or len(feeding) != 1:
                continue  # with several queue pairs a step's end cannot be told from one of them
            out, passed_on = _first_and_last(self._of([flow]), self.end_ns)
            into, arrival = _first_and_last(self._of([feeding[0]]), self.end_ns)
            packets = len(out) // steps
            if not packets or len(out) % steps or len(into) != len(out):
                continue
            order = np.argsort(out["sent_ns"])  # PSNs may wrap
            sent, passed_on, arrival = out["sent_ns"][order], passed_on[order], arrival[np.argsort(into["sent_ns"])]
            edges = np.arange(1, steps) * packets
            pause = np.maximum(0, sent[edges] - np.maximum(arrival[edges - 1], sent[edges - 1]))
            # With packets still under way a closed window may have held the NIC back: not the host's fault.
            idle = passed_on[edges - 1] <= sent[edges]
            turnaround[role.rank] = max(turnaround.get(role.rank, 0.0), float(pause[idle].sum()))
        return max(0.0, tail) + max(turnaround.values(), default=0.0)

    def _cause(self, lost_ns: Mapping[str, float]) -> str:
        ideal_ns = float(self.evidence.fabric.clock.lab_ns(self.evidence.ideal_us))
        if self.time_ns is not None and self.time_ns <= ideal_ns * (1 + WITHIN_IDEAL):
            return "none"
        excess = float("inf") if self.time_ns is None else self.time_ns - ideal_ns
        cause = max(lost_ns, key=lambda name: lost_ns[name])
        if self.time_ns is None:
            return cause if lost_ns[cause] > 0 else "host"
        return cause if lost_ns[cause] >= SIGNIFICANT * excess else "none"

    def _us(self, lab_ns: float) -> float:
        return self.evidence.fabric.clock.hardware_us(float(lab_ns))


def _late_rank(iteration: RawIteration) -> RawRank:
    """The rank with an error, else one that never finished, else the last to finish."""
    return max(iteration.ranks, key=lambda r: (r.error is not None, r.end_ns is None, r.end_ns or 0))


def _grouped(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Rows in order of flow, first sending of the PSN, and where each packet's copies begin."""
    ids = rows["flow"].astype(np.int64) << 24 | rows["psn"].astype(np.int64)
    ordered = rows[np.lexsort((rows["sent_ns"], ids))]
    ids = np.sort(ids)
    return ordered, np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1]))) if len(ids) else np.zeros(0, np.int64)


def _first_and_last(rows: npt.NDArray[Any], never_ns: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """For each packet (flow, PSN) the row of its first sending, and its last arrival (`never_ns`: it never came)."""
    ordered, begins = _grouped(rows)
    if not len(begins):
        return ordered, np.zeros(0, dtype=np.int64)
    arrival = np.where((ordered["dropped"] == 0) & (ordered["end_ns"] >= 0), ordered["end_ns"], -1)
    last = np.maximum.reduceat(arrival, begins)
    return ordered[begins], np.where(last < 0, never_ns, last)


def _reason(number: int) -> str:
    try:
        return DropReason(number).name.lower()
    except ValueError:
        return f"reason {number}"
