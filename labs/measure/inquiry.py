"""One iteration under investigation: see why.py for what is looked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from labs.measure.backpressure import held, marks, rate_limited
from labs.measure.evidence import ACK_FRAME_BYTES, Evidence, reordered
from labs.measure.explanation import Connection, Explanation, LinkWait, Sharer
from labs.measure.intervals import Intervals
from labs.measure.pauses import active_faults
from labs.measure.raw import RawIteration, RawRank
from labs.measure.sentence import in_words, us
from topologies.fabricd.telemetry import DropReason, TraceKind

WITHIN_IDEAL = 0.05  # BMWG AI fabric draft: a ratio below 1.05 is excellent, there is nothing to explain
SIGNIFICANT = 0.15  # share of the excess that a cause must account for
_NONE = np.zeros(0, dtype=np.int64)
RING_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}  # times (ranks - 1)


class Inquiry:
    """One iteration under investigation; everything here is in lab ns until it goes into the Explanation."""

    def __init__(self, evidence: Evidence, iteration: RawIteration, rank: RawRank | None = None) -> None:
        self.evidence, self.iteration = evidence, iteration
        last = _late_rank(iteration)
        self.late = rank or last
        self.is_last = self.late == last
        finished = self.late.error is None and self.late.end_ns is not None
        self.begin_ns = iteration.start_ns
        later = [other.start_ns for other in evidence.iterations if other.start_ns > self.begin_ns]
        self.end_ns = int(self.late.end_ns or 0) if finished else min([*later, max(self.begin_ns, evidence.last_ns)])
        self.time_ns = self.end_ns - self.begin_ns if finished else None
        sent = evidence.journeys["sent_ns"]
        window = evidence.journeys[np.searchsorted(sent, self.begin_ns - 1) : np.searchsorted(sent, self.end_ns)]
        self.journeys, self.acks = (window[window["bytes"] > ACK_FRAME_BYTES],
                                    window[window["bytes"] <= ACK_FRAME_BYTES])
        t_ns = evidence.hops["t_ns"]
        hops = slice(int(np.searchsorted(t_ns, self.begin_ns)), int(np.searchsorted(t_ns, self.end_ns, side="right")))
        self.hops, self.hop_begin_ns = evidence.hops[hops], evidence.hop_begin_ns[hops]
        self.ideal_us = evidence.ideal_us if self.is_last or evidence.collective in RING_STEPS else self._alone_us()

    def explanation(self) -> Explanation:
        evidence, late = self.evidence, self.late
        active = {pair: self._active(flows) for pair, flows in self._candidates().items()}
        critical = max(active, key=lambda pair: active[pair].total_ns, default=None)
        connections = tuple(self._connection(pair, active[pair]) for pair in sorted(active))
        flows = self.evidence.connection(*critical, late.ring) if critical else []
        rows = self._of(flows)
        turn = self._turn_of_others(rows)
        links, served, sharers = self._links(rows, turn)
        after_drop, after_overtaking = self._repairs(rows)
        lost_acks = self._lost_acks(flows)
        if lost_acks:  # what had arrived was sent again
            after_drop = after_drop.joined(after_overtaking)
        if not reordered(rows).any():  # sent again for nothing (a timer too short): whatever delayed it is the cause
            after_overtaking = Intervals.union([], [])
        repaired = Intervals.union(np.concatenate((after_drop.start, after_overtaking.start)),
                                   np.concatenate((after_drop.end, after_overtaking.end)))
        stopped = held(evidence, flows, self.begin_ns, self.end_ns)
        slowed, rate_bps = rate_limited(evidence, flows, self.journeys)
        stood = stopped.pause.joined(stopped.credit)
        elsewhere = repaired.joined(turn)  # booked to something else, or not lost at all
        lost_ns = {
            "collision": served.minus(elsewhere), "drop": float(after_drop.total_ns),
            "reordering": after_overtaking.minus(after_drop), "late_start": self._late_start(), "host": self._host(),
            "pause": stopped.pause.minus(elsewhere), "credit": stopped.credit.minus(elsewhere),
            "rate": slowed.minus(stood.joined(elsewhere)),
        }
        cause = self._cause(lost_ns)
        answer = Explanation(
            label=evidence.label or evidence.policy, policy=evidence.policy, seed=evidence.seed,
            collective=evidence.collective, iteration=self.iteration.n, cause=cause, sentence="",
            rank=late.rank, host=late.host, ring=late.ring, error=late.error, last=self.is_last,
            time_us=None if self.time_ns is None else self._us(self.time_ns), ideal_us=self.ideal_us,
            lost_us={name: round(self._us(value), 3) for name, value in lost_ns.items()},
            critical=next((c for c in connections if (c.rank, c.peer) == critical), None),
            links=links, shared_with=sharers, drops=self._drops(rows), lost_acks=lost_acks,
            connections=connections,
            held=stopped.waits, marks=marks(evidence, flows, self.end_ns), faults=self._faults(),
            rate_gbps=None if rate_bps is None else evidence.fabric.clock.hardware_gbps(rate_bps))
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
        """From a packet's first sending to its last arrival, over all packets, and while its NIC was held back."""
        rows = self._of(flows)
        first, last = _first_and_last(rows, self.end_ns)
        under_way = Intervals.union(first["sent_ns"], np.minimum(last, self.end_ns))
        if not len(rows):
            return under_way
        nic = self.evidence.fabric.nic(self.evidence.ends_of(flows[0])[0])
        stopped = self.evidence.holds.intervals(nic.index).clipped(self.begin_ns, int(rows["sent_ns"].max()))
        return under_way.joined(stopped).joined(rate_limited(self.evidence, flows, self.journeys)[0])

    def _connection(self, pair: tuple[int, int], active: Intervals) -> Connection:
        flows = self.evidence.connection(*pair, self.late.ring)
        rows = self._of(flows)
        return Connection(
            rank=pair[0], peer=pair[1], flow=" + ".join(self.evidence.flow_name(flow) for flow in flows),
            bytes=int(rows["bytes"].sum()), active_us=self._us(active.total_ns),
            sent_again=int((rows["copy"] > 0).sum()), drops=int((rows["dropped"] > 0).sum()),
            reordered=int(reordered(rows).sum()), timeouts=self._timeouts(flows))

    def _timeouts(self, flows: Sequence[int]) -> int:
        """Timer events of the sender's NIC; the NIC may not know the fabric's number of the flow."""
        trace = self.evidence.trace
        window = trace[np.searchsorted(trace["t_ns"], self.begin_ns) : np.searchsorted(trace["t_ns"], self.end_ns)]
        nic = self.evidence.fabric.nic(self.evidence.ends_of(flows[0])[0]).index
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
            place = f"{self._drop_place(row)} ({_reason(int(row['dropped']))})"
            drops[place] = drops.get(place, 0) + 1
        return dict(sorted(drops.items(), key=lambda item: -item[1]))

    def _lost_acks(self, flows: Sequence[int]) -> dict[str, int]:
        """As `_drops`, of the acknowledgements that came back to the connection's sender."""
        ends = {self.evidence.ends_of(flow)[::-1] for flow in flows}
        lost = self.acks[self.acks["dropped"] > 0]
        back = [flow for flow in np.unique(lost["flow"]).tolist() if self.evidence.ends_of(flow) in ends]
        return self._drops(lost[np.isin(lost["flow"], back)])

    def _drop_place(self, row: Any) -> str:
        """The link by which a packet came to, or was to leave, the place where there was no room for it."""
        port = self.evidence.fabric.port(int(row["port"]))
        at_receiver = port.role == "nic" and port.device != self.evidence.ends_of(int(row["flow"]))[0]
        came_by = row["dropped"] == DropReason.HEADROOM or at_receiver
        return self.evidence.fabric.port_name(port.peer if came_by else port.index)

    def _links(
        self, rows: npt.NDArray[Any], turn: Intervals,
    ) -> tuple[tuple[LinkWait, ...], Intervals, tuple[Sharer, ...]]:
        """Per link the waiting and the time given to others; their union; the sharers at the worst link."""
        hops = self.hops
        mine = np.isin(hops["flow"], np.unique(rows["flow"])) & (hops["bytes"] > ACK_FRAME_BYTES)
        # Flows to one receiver share its link on an ideal fabric, too: nothing is lost to them there, nor where they
        # wait for it.
        same_receiver, access = self._alike(rows)
        receiving_bps = max((self.evidence.fabric.port(index).rate_bps for index in access), default=0.0)
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
            alike = np.isin(hops["flow"][others], same_receiver) & (port.rate_bps >= receiving_bps)
            lost = while_there & ~alike
            served = Intervals.union(begin[lost], end[lost])
            starts.append(served.start)
            ends.append(served.end)
            present[index] = (standing, others[while_there])
            wait = hops["wait_ns"][own]
            waits.append((index, LinkWait(
                link=self.evidence.fabric.port_name(index), packets=len(own), wait_mean_us=self._us(wait.mean()),
                wait_max_us=self._us(wait.max()), lost_us=self._us(served.minus(turn)),
                drops=int(((rows["port"] == index) & (rows["dropped"] > 0)).sum()))))
        waits.sort(key=lambda entry: (entry[1].drops > 0, entry[1].lost_us, entry[1].wait_mean_us), reverse=True)
        sharers: tuple[Sharer, ...] = ()
        if waits:
            standing, others = present[waits[0][0]]
            own_bytes = int(hops["bytes"][mine & (hops["port"] == waits[0][0])].sum())
            sharers = self._sharers(others, own_bytes)
        union = Intervals.union(np.concatenate([_NONE, *starts]), np.concatenate([_NONE, *ends]))
        return tuple(wait for _, wait in waits), union, sharers

    def _alike(self, rows: npt.NDArray[Any]) -> tuple[list[int], list[int]]:
        """The data flows to the receivers of the connection's, and the ports by which these are reached."""
        own = np.unique(rows["flow"]).tolist()
        receivers = {self.evidence.ends_of(flow)[1] for flow in own}
        alike = [flow for flow in self.evidence.roles if self.evidence.ends_of(flow)[1] in receivers]
        return alike, [self.evidence.fabric.nic(host).peer for host in receivers]

    def _turn_of_others(self, rows: npt.NDArray[Any]) -> Intervals:
        """When the receiver's link was busy and other flows that go there stood at it: so it is on an ideal fabric."""
        alike, access = self._alike(rows)
        here = np.isin(self.hops["port"], access) & np.isin(self.hops["flow"], alike)
        hops, begin_ns = self.hops[here], self.hop_begin_ns[here]
        busy, other = Intervals.union(begin_ns, hops["t_ns"]), ~np.isin(hops["flow"], np.unique(rows["flow"]))
        standing = Intervals.union((begin_ns - hops["wait_ns"])[other], hops["t_ns"][other])
        return standing.without(standing.without(busy))

    def _alone_us(self) -> float:
        """What the rank's own bytes, sent and received, take on an idle fabric's link."""
        fabric, roles = self.evidence.fabric, self.evidence.roles
        first = self.journeys[self.journeys["copy"] == 0]
        bits = [8.0 * int(first["bytes"][np.isin(first["flow"], flows)].sum()) for flows in (
            [flow for flow, role in roles.items() if role.rank == self.late.rank],
            [flow for flow, role in roles.items() if role.peer == self.late.rank])]
        return self._us(max(bits) * 1e9 / fabric.nic(self.late.host).rate_bps)

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
        """How long after its time the last rank of the ring began, without the time that its NIC was held back."""
        late = 0.0
        for rank in self.iteration.ranks:
            if rank.ring != self.late.ring or rank.first_tx_ns is None:
                continue
            planned = [role.start_us for role in self.evidence.roles.values() if role.rank == rank.rank]
            due_ns = self.begin_ns + self.evidence.fabric.clock.lab_ns(min(planned, default=0.0))
            stopped = self.evidence.holds.intervals(self.evidence.fabric.nic(rank.host).index)
            late = max(late, rank.first_tx_ns - due_ns - stopped.clipped(due_ns, rank.first_tx_ns).total_ns)
        return late

    def _faults(self) -> tuple[str, ...]:
        """What was planted and in force, in words, with hardware us after the common instant."""
        found = []
        first = next((i.n for i in self.evidence.iterations if not i.warmup), 0)
        for fault in active_faults(self.evidence.fault_events, self.begin_ns, self.end_ns):
            if fault.get("fault") == "lost_packet":  # one, of the first measured iteration
                found += [str(fault["text"])] * (self.iteration.n == first)
                continue
            since_ns, until = fault["t_ns"] - self.begin_ns, fault["end_ns"]
            since = f"from {us(self._us(since_ns))}" if since_ns > 0 else "from the beginning"
            text = f" to {us(self._us(until - self.begin_ns))}" if until is not None and until < self.end_ns else ""
            found.append(f"{fault['text']} ({since}{text})")
        return tuple(found)

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
            ready = np.maximum(arrival[edges - 1], sent[edges - 1])
            stopped = evidence.holds.intervals(evidence.fabric.nic(evidence.ends_of(flow)[0]).index)
            pause = np.maximum(0, sent[edges] - ready - stopped.inside(ready, sent[edges]))
            # With packets still under way a closed window may have held the NIC back: not the host's fault.
            idle = passed_on[edges - 1] <= sent[edges]
            turnaround[role.rank] = max(turnaround.get(role.rank, 0.0), float(pause[idle].sum()))
        return max(0.0, tail) + max(turnaround.values(), default=0.0)

    def _cause(self, lost_ns: Mapping[str, float]) -> str:
        ideal_ns = float(self.evidence.fabric.clock.lab_ns(self.ideal_us))
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
