"""What held one connection back: ports that were stopped, and the rate that congestion control gave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from labs.measure.evidence import ACK_FRAME_BYTES, Evidence
from labs.measure.explanation import HeldWait
from labs.measure.intervals import Intervals
from labs.measure.pauses import Chain
from labs.measure.standing import NOWHERE
from topologies.fabricd.telemetry import TraceKind
from topologies.units import WIRE_OVERHEAD_BYTES

NOTHING = Intervals.union([], [])
# Roots that are nothing but the load of a link: on the connection's own path they cost it what the link gave to others,
# which is booked to `collision` (or is the ideal's share, too), and the time in which the link ran dry meanwhile.
OWN_BOTTLENECK = ("incast", "collision", "burst", "link_down")


@dataclass(frozen=True)
class Held:
    """When a connection's packets stood at stopped ports for a reason elsewhere, or its own bottleneck ran dry."""

    pause: Intervals
    credit: Intervals
    waits: tuple[HeldWait, ...]


def held(evidence: Evidence, flows: Sequence[int], begin_ns: int, end_ns: int) -> Held:
    """What the flows of one connection suffered from pauses and missing credits in [begin_ns, end_ns)."""
    holds = evidence.holds
    if not len(holds.rows) or not flows:
        return Held(NOTHING, NOTHING, ())
    rows = _own_stands(evidence, flows, begin_ns, end_ns)
    path = {int(port) for port in np.unique(rows["port"])}
    lost: dict[bool, list[Intervals]] = {False: [], True: []}
    waits: dict[tuple[Any, ...], list[_Stood]] = {}
    busy: dict[int, Intervals] = {}
    for port, traffic_class in {(int(row["port"]), int(row["traffic_class"])) for row in rows}:
        if port == NOWHERE:
            continue
        here = rows[(rows["port"] == port) & (rows["traffic_class"] == traffic_class)]
        standing = Intervals.union(here["came_ns"], np.minimum(here["left_ns"], end_ns))
        for index in holds.overlapping(port, traffic_class, begin_ns, end_ns).tolist():
            hold = holds.rows[index]
            stood = standing.clipped(max(begin_ns, int(hold["begin_ns"])), min(end_ns, int(hold["end_ns"])))
            if not stood.total_ns:
                continue
            chain, for_credits = holds.chain(index), bool(hold["credits"])
            own = chain.root.port in path and chain.root.kind in OWN_BOTTLENECK
            starved = NOTHING
            if own and chain.root.port is not None:
                if chain.root.port not in busy:
                    hops = evidence.hops["port"] == chain.root.port
                    busy[chain.root.port] = Intervals.union(evidence.hop_begin_ns[hops], evidence.hops["t_ns"][hops])
                starved = stood.without(busy[chain.root.port])
            lost[for_credits].append(starved if own else stood)
            key = (port, traffic_class, for_credits, chain.root.kind, chain.root.where, not own)
            waits.setdefault(key, []).append((stood, starved, index, chain))
    found = [_wait(evidence, key, entries) for key, entries in waits.items()]
    found.sort(key=lambda wait: (not wait.lost, -wait.held_us))
    return Held(_union(lost[False]), _union(lost[True]), tuple(found))


_Stood = tuple[Intervals, Intervals, int, Chain]  # all of it; while the root's link was idle; hold; its chain


def _wait(evidence: Evidence, key: tuple[Any, ...], entries: Sequence[_Stood]) -> HeldWait:
    port, traffic_class, for_credits, kind, where, is_lost = key
    name, us = evidence.fabric.port_name, evidence.fabric.clock.hardware_us
    longest, _, _, chain = max(entries, key=lambda entry: entry[0].total_ns)
    return HeldWait(
        link=name(port), traffic_class=traffic_class, credits=for_credits, holds=len(entries),
        held_us=us(float(sum(stood.total_ns for stood, *_ in entries))), longest_us=us(float(longest.total_ns)),
        lost=is_lost, starved_us=us(float(sum(starved.total_ns for _, starved, *_ in entries))),
        chain=tuple(name(int(evidence.holds.rows[index]["port"])) for index in chain.holds), kind=kind, root=where,
        root_flows=chain.root.flows, cycle=chain.root.cycle,
        fault=next((chain.root.fault for *_, chain in entries if chain.root.fault), None))


def _own_stands(evidence: Evidence, flows: Sequence[int], begin_ns: int, end_ns: int) -> npt.NDArray[Any]:
    rows: npt.NDArray[Any] = evidence.stands
    rows = rows[: np.searchsorted(rows["came_ns"], end_ns)]
    rows = rows[(rows["left_ns"] > begin_ns) & (rows["bytes"] > ACK_FRAME_BYTES) & np.isin(rows["flow"], flows)].copy()
    # Packets that never went on, of a flow of which none did: they are where their fellows from that port are.
    holds, peer = evidence.holds, [port.peer for port in evidence.fabric.ports]
    for ingress, traffic_class in {(int(row["ingress"]), int(row["traffic_class"]))
                                   for row in rows[rows["port"] == NOWHERE]}:
        indices = holds.overlapping(peer[ingress], traffic_class, begin_ns, end_ns)
        known = [int(holds.rows[index]["holder"]) for index in indices if holds.rows[index]["holder"] != NOWHERE]
        if known:
            rows["port"][(rows["port"] == NOWHERE) & (rows["ingress"] == ingress)] = known[-1]
    return rows


def rate_limited(
    evidence: Evidence, flows: Sequence[int], journeys: npt.NDArray[Any],
) -> tuple[Intervals, float | None]:
    """When congestion control kept a connection below its ideal share; and its mean rate, in lab bit/s.

    journeys: JOURNEY_DTYPE rows of an iteration.  The ideal share is the line rate over the number of data flows that
    its NIC sends, or its receiver gets, in the iteration.  The rate is None if it was never cut.
    """
    parts, rates = [], []
    playing = set(np.unique(journeys["flow"]).tolist())
    for flow in flows:
        role = evidence.roles.get(flow)
        if role is None or not role.qp or flow not in playing:
            continue
        nic = evidence.fabric.nic(evidence.ends_of(flow)[0])
        steps = evidence.trace[evidence.trace["kind"] == TraceKind.RATE]
        steps = steps[(steps["port"] == nic.index) & (steps["arg"] == role.qp)]
        if not len(steps):
            continue
        others = [other for index, other in evidence.roles.items() if index in playing]
        crowd = max(sum(other.dst_ip == role.dst_ip for other in others),
                    sum(other.src_ip == role.src_ip for other in others))
        own = journeys[journeys["flow"] == flow]
        bits = (own["bytes"][:-1].astype(float) + WIRE_OVERHEAD_BYTES) * 8
        sent, following = own["sent_ns"][:-1], own["sent_ns"][1:]
        at = np.searchsorted(steps["t_ns"], following, side="right") - 1
        rate = np.where(at >= 0, steps["wait_ns"][np.maximum(at, 0)].astype(float), nic.rate_bps)
        ideal = nic.rate_bps / crowd
        begin = sent + (bits * 1e9 / ideal).astype(np.int64)
        end = np.minimum(following, sent + (bits * 1e9 / rate).astype(np.int64))
        low = rate < ideal
        parts.append(Intervals.union(begin[low], end[low]))
        span = np.minimum(following - sent, bits * 1e9 / rate)  # idle time is nobody's rate
        rates.append(float((rate * span).sum() / max(1.0, float(span.sum()))))
    return _union(parts), float(np.mean(rates)) if rates else None


def marks(evidence: Evidence, flows: Sequence[int], end_ns: int) -> dict[str, int]:
    """How many packets of the flows were marked where, most first.

    Since the run began: a rate that was cut in one iteration is still low in the next.
    """
    window = evidence.trace[: np.searchsorted(evidence.trace["t_ns"], end_ns)]
    marked = window["port"][(window["kind"] == TraceKind.MARK) & np.isin(window["flow"], flows)]
    ports, counts = np.unique(marked, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {evidence.fabric.port_name(int(ports[i])): int(counts[i]) for i in order}


def _union(parts: Sequence[Intervals]) -> Intervals:
    if not parts:
        return NOTHING
    return Intervals.union(np.concatenate([part.start for part in parts]), np.concatenate([part.end for part in parts]))
