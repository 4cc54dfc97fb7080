"""Why did a port stand still?  Follows pauses, and waits for credits, from the port that was held to what held it.

A switch stops its peer because packets that came from there stand in its queues; most of them in one, the *holder*.
If that queue was itself held for most of the time, its own peer is to blame, and so on.  The chain ends at its root:

  slow_receiver  a host does not take in what comes
  pause_storm    a device says "pause" though nothing has filled up
  incast         more comes for one host than its link carries, or the last link on the way that all must take
  collision      more comes for a link between switches than it carries
  link_down      the same, while another link of that switch was down
  slow_link      packets come in over a faster link than they go out by
  deadlock       ports wait for each other in a circle, and nothing ended that (but a watchdog)
  cycle          the same, but it came free by itself
  round_trip     credits: nothing was full; the advertised buffer is smaller than rate times round trip
  burst          none of these: the queue was drained as fast as its link allows

Found in the recorded packets: which of them stood where while a port was held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labs.measure.intervals import Intervals
from labs.measure.spans import spans
from labs.measure.standing import NOWHERE
from topologies.fabric import Fabric
from topologies.fabricd.telemetry import TraceKind
from topologies.units import mtu_frame_bytes, serialisation_ns

if TYPE_CHECKING:
    from labs.measure.evidence import Evidence

PFC_FRAME_BYTES = 60
FEEDS = 0.05  # an ingress port, or a flow, with less of the bytes than this does not count as one that fills a queue

HOLD_DTYPE = np.dtype([
    ("port", "u2"), ("traffic_class", "u1"),  # the egress that was held
    ("credits", "?"),  # for want of credits, not by a pause
    ("begin_ns", "i8"), ("end_ns", "i8"), ("ended", "?"),
    ("said", "?"),  # the peer's own record says that it had to say so
    ("charged_bytes", "u4"),  # to the peer's ingress then
    ("holder", "u4"),  # the peer's port in whose queue most of them stood then, NOWHERE: not recorded
])


@dataclass(frozen=True)
class Root:
    """Where a chain of pauses ends."""

    kind: str  # see the module
    where: str  # host, device, or the name of the port in whose queue the packets stood
    port: int | None = None  # that port
    flows: tuple[str, ...] = ()  # whose packets stood there, largest first
    cycle: tuple[str, ...] = ()  # names of the ports, in the order in which they wait for each other
    fault: str | None = None  # the planted fault that explains it, in words


@dataclass(frozen=True)
class Chain:
    """Indices into Holds.rows, from the port that was held to the one nearest to the root."""

    holds: tuple[int, ...]
    root: Root


class Holds:
    """All times at which an egress port was held back, of one run; `rows`: HOLD_DTYPE in order of their beginning."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence, self.fabric = evidence, evidence.fabric
        self.rows = _hold_rows(evidence.trace, self.fabric, evidence.last_ns)
        self.watchdogs = spans(evidence.trace, TraceKind.WATCHDOG, evidence.last_ns)
        queues: dict[tuple[int, int], list[int]] = {}
        for index, (port, traffic_class) in enumerate(self.rows[["port", "traffic_class"]].tolist()):
            queues.setdefault((port, traffic_class), []).append(index)
        self._by_queue = {queue: np.array(found) for queue, found in queues.items()}
        self._reasons: dict[int, int | Root] = {}

    def intervals(self, port: int) -> Intervals:
        """When any class of this egress was held."""
        rows = self.rows[self.rows["port"] == port]
        return Intervals.union(rows["begin_ns"], rows["end_ns"])

    def overlapping(self, port: int, traffic_class: int, begin_ns: int, end_ns: int) -> npt.NDArray[np.int64]:
        """Indices of the holds of a queue that lie at least partly within [begin_ns, end_ns)."""
        indices = self._by_queue.get((port, traffic_class), np.zeros(0, np.int64))
        rows = self.rows[indices]
        found: npt.NDArray[np.int64] = indices[(rows["begin_ns"] < end_ns) & (rows["end_ns"] > begin_ns)]
        return found

    def chain(self, index: int) -> Chain:
        """From one hold to its root."""
        path: list[int] = []
        while True:
            row = self.rows[index]
            queue = (int(row["port"]), int(row["traffic_class"]))
            visited = [(int(self.rows[i]["port"]), int(self.rows[i]["traffic_class"])) for i in path]
            if queue in visited:
                return Chain(tuple(path), self._circle(path[visited.index(queue):]))
            path.append(index)
            if index not in self._reasons:
                self._reasons[index] = self._reason(index)
            found = self._reasons[index]
            if isinstance(found, Root):
                return Chain(tuple(path), found)
            index = found

    def _reason(self, index: int) -> int | Root:
        """The hold that explains this one, or the root."""
        row = self.rows[index]
        port, traffic_class = self.fabric.port(int(row["port"])), int(row["traffic_class"])
        ingress = self.fabric.peer(port)
        begin_ns, end_ns = int(row["begin_ns"]), int(row["end_ns"])
        if not row["credits"] and not row["said"]:
            return Root("pause_storm", ingress.device, fault=self._fault("pause_storm", ingress.device, row))
        if ingress.kind == "host":
            fault = self._fault("slow_receiver", ingress.device, row)
            if row["credits"] and fault is None and end_ns - begin_ns <= self._round_trip_ns(port.index):
                return Root("round_trip", self.fabric.port_name(port.index), port.index)
            return Root("slow_receiver", ingress.device, fault=fault)
        holder, since_ns = self._holder(ingress.index, traffic_class, row)
        if holder is None:
            return Root("round_trip" if row["credits"] else "burst", self.fabric.port_name(port.index), port.index)
        held = self.overlapping(holder, traffic_class, since_ns, end_ns)
        overlap = (np.minimum(self.rows["end_ns"][held], end_ns) - np.maximum(self.rows["begin_ns"][held], since_ns))
        here = self._queue(holder)
        here = here[(here["came_ns"] < end_ns) & (here["left_ns"] > since_ns)]
        others = here[(here["ingress"] != ingress.index) | (here["traffic_class"] != traffic_class)]
        served_ns = np.minimum(others["left_ns"], end_ns) - np.maximum(others["begin_ns"], since_ns)
        if len(held) and overlap.sum() >= np.maximum(served_ns, 0).sum():
            return int(held[np.argmax(overlap)])
        return self._congestion(holder, ingress.index, here, row)

    def _holder(self, ingress: int, traffic_class: int, row: Any) -> tuple[int | None, int]:
        """The queue that held most of what an ingress port had taken in, over a hold; and since when it did."""
        begin_ns, end_ns = int(row["begin_ns"]), int(row["end_ns"])
        rows = self._came_by(ingress)
        rows = rows[(rows["traffic_class"] == traffic_class) & (rows["came_ns"] < end_ns)
                    & (rows["left_ns"] > begin_ns)]
        ports = rows["port"].astype(np.int64)
        if row["holder"] != NOWHERE:
            ports = np.where(ports == NOWHERE, int(row["holder"]), ports)
        known = ports != NOWHERE
        rows, ports = rows[known], ports[known]
        if not len(rows):
            return (int(row["holder"]) if row["holder"] != NOWHERE else None), begin_ns
        stood_ns = np.minimum(rows["left_ns"], end_ns) - np.maximum(rows["came_ns"], begin_ns)
        held = np.bincount(ports, weights=stood_ns.astype(float) * rows["bytes"])
        holder = int(np.argmax(held))
        return holder, min(begin_ns, int(rows["came_ns"][ports == holder].min()))

    def _congestion(self, holder: int, ingress: int, here: npt.NDArray[Any], row: Any) -> Root:
        """A queue that was not held, and yet so long that a peer had to be stopped."""
        port = self.fabric.port(holder)
        weight = here["bytes"].astype(float)
        feeders = np.bincount(here["ingress"], weights=weight, minlength=1)
        feeders = np.flatnonzero(feeders >= FEEDS * weight.sum())
        flows = np.bincount(here["flow"], weights=weight, minlength=1)
        largest = [int(flow) for flow in np.argsort(-flows, kind="stable") if flows[flow] >= FEEDS * weight.sum()]
        sources, targets = ({self.evidence.ends_of(flow)[end] for flow in largest} for end in (0, 1))
        down = self._fault("link_down", port.device, row)
        if len(sources) > 1 and len(targets) == 1:
            kind = "incast"
        elif len(feeders) > 1:
            kind = "link_down" if down else "collision"
        elif port.rate_bps < self.fabric.peer(self.fabric.port(ingress)).rate_bps:
            kind = "slow_link"
        else:
            kind = "round_trip" if row["credits"] else "burst"
        names = tuple(self.evidence.flow_name(flow) for flow in largest)
        return Root(kind, self.fabric.port_name(holder), holder, names, fault=down if kind == "link_down" else None)

    def _circle(self, path: Sequence[int]) -> Root:
        rows = self.rows[list(path)]
        bitten = [bool(((self.watchdogs["port"] == row["port"]) & (self.watchdogs["begin_ns"] <= row["end_ns"])
                        & (self.watchdogs["end_ns"] >= row["begin_ns"])).any()) for row in rows]
        first = int(np.argmin(rows["port"]))
        names = [self.fabric.port_name(int(port)) for port in rows["port"]]
        names = names[first:] + names[:first]
        kind = "deadlock" if any(bitten) or not rows["ended"].any() else "cycle"
        devices = [name.partition("->")[0] for name in names]
        return Root(kind, " -> ".join([*devices, devices[0]]), cycle=tuple(names))

    def _fault(self, name: str, device: str, row: Any) -> str | None:
        """What was planted there and then, in words."""
        for fault in active_faults(self.evidence.fault_events, int(row["begin_ns"]), int(row["end_ns"])):
            where = str(fault.get("device") or fault.get("port") or "")
            if fault.get("fault") == name and device in where.split("->"):
                return str(fault["text"])
        return None

    def _round_trip_ns(self, index: int) -> float:
        """The longest wait for credits that a receiver without any delay of its own causes: an update may wait for a
        frame at the far end, and speaks of a quarter of the buffer."""
        port = self.fabric.port(index)
        peer = self.fabric.peer(port)
        frame_ns = serialisation_ns(mtu_frame_bytes(self.fabric.spec.mtu_bytes), port.rate_bps)
        return port.delay_ns + peer.delay_ns + 3 * frame_ns + serialisation_ns(peer.credit_bytes // 4, port.rate_bps)

    @cached_property
    def _sorted_stands(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """By queue, its ports; by ingress, its ports."""
        rows = self.evidence.stands
        queues = rows[np.argsort(rows["port"], kind="stable")]
        ingresses = rows[np.argsort(rows["ingress"], kind="stable")]
        return queues, queues["port"].copy(), ingresses, ingresses["ingress"].copy()

    def _queue(self, port: int) -> npt.NDArray[Any]:
        queues, ports, _, _ = self._sorted_stands
        return queues[np.searchsorted(ports, port) : np.searchsorted(ports, port, side="right")]

    def _came_by(self, port: int) -> npt.NDArray[Any]:
        _, _, ingresses, ports = self._sorted_stands
        return ingresses[np.searchsorted(ports, port) : np.searchsorted(ports, port, side="right")]


def active_faults(events: Sequence[Mapping[str, Any]], begin_ns: int, end_ns: int) -> list[dict[str, Any]]:
    """The faults that were in force at some time in [begin_ns, end_ns]: their beginnings, with `end_ns` (or None)."""
    found: list[dict[str, Any]] = []
    open_faults: dict[tuple[Any, ...], dict[str, Any]] = {}
    for event in sorted(events, key=lambda event: int(event["t_ns"])):
        key = (event.get("fault"), event.get("device"), event.get("port"))
        if event.get("state") == "begin":
            open_faults[key] = {**event, "end_ns": None}
            found.append(open_faults[key])
        elif key in open_faults:
            open_faults.pop(key)["end_ns"] = int(event["t_ns"])
    return [fault for fault in found
            if fault["t_ns"] <= end_ns and (fault["end_ns"] is None or fault["end_ns"] >= begin_ns)]


def _hold_rows(trace: npt.NDArray[Any], fabric: Fabric, end_ns: int) -> npt.NDArray[Any]:
    """HOLD_DTYPE rows in order of their beginning; pauses with the XOFF of the peer that they obey."""
    obeyed, said = spans(trace, TraceKind.PAUSED, end_ns), spans(trace, TraceKind.PAUSE, end_ns)
    stalled = spans(trace, TraceKind.CREDIT_STALL, end_ns)
    rows = np.zeros(len(obeyed) + len(stalled), HOLD_DTYPE)
    for name in ("port", "traffic_class", "begin_ns", "end_ns", "ended"):
        rows[name] = np.concatenate((obeyed[name], stalled[name]))
    rows["credits"][len(obeyed):] = rows["said"][len(obeyed):] = True
    rows["holder"] = NOWHERE
    for port, traffic_class in {(int(row["port"]), int(row["traffic_class"])) for row in obeyed}:
        own = np.flatnonzero((rows["port"] == port) & (rows["traffic_class"] == traffic_class) & ~rows["credits"])
        peer = fabric.port(fabric.port(port).peer)
        xoff = said[(said["port"] == peer.index) & (said["traffic_class"] == traffic_class)]
        if not len(xoff):
            continue
        way_ns = round(serialisation_ns(PFC_FRAME_BYTES, peer.rate_bps)) + peer.delay_ns
        frame_ns = serialisation_ns(mtu_frame_bytes(fabric.spec.mtu_bytes), peer.rate_bps)
        begin, end = rows["begin_ns"][own], rows["end_ns"][own]
        covered = Intervals.union(xoff["begin_ns"] + way_ns, xoff["end_ns"] + way_ns).inside(begin, end)
        # XON may wait for a frame; what nothing explains for longer than that, no full buffer has caused.
        rows["said"][own] = covered >= (end - begin) / 2 - 2 * frame_ns
        at = np.searchsorted(xoff["begin_ns"], begin, side="right") - 1
        at = np.where((at >= 0) & (xoff["end_ns"][at] + way_ns >= begin), at, np.minimum(at + 1, len(xoff) - 1))
        rows["charged_bytes"][own] = xoff["bytes"][at]
        rows["holder"][own] = np.minimum(xoff["arg"][at], NOWHERE)
    return rows[np.argsort(rows["begin_ns"], kind="stable")]


@dataclass(frozen=True)
class Branch:
    """A port that was held, and below it those that were held because of it."""

    name: str
    held_us: float  # hardware us, all its holds that this root explains
    holds: int
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class Tree:
    """All that one root has held up."""

    root: Root
    held_us: float  # of all ports together
    branches: tuple[Branch, ...]  # the ports next to the root


def pause_tree(holds: Holds, begin_ns: int, end_ns: int, most: int = 5_000) -> tuple[Tree, ...]:
    """The trees of the holds within [begin_ns, end_ns), the one with the longest holds first.

    Of more than `most` holds only the longest are followed.
    """
    rows = holds.rows
    lasted_ns = np.minimum(rows["end_ns"], end_ns) - np.maximum(rows["begin_ns"], begin_ns)
    longest = np.argsort(-lasted_ns, kind="stable")[:most]
    roots: dict[tuple[str, str], Root] = {}
    totals: dict[tuple[str, str], dict[tuple[str, ...], list[float]]] = {}
    for index in longest[lasted_ns[longest] > 0].tolist():
        chain = holds.chain(index)
        key = (chain.root.kind, chain.root.where)
        known = roots.setdefault(key, chain.root)
        if known.fault is None and chain.root.fault is not None:
            roots[key] = chain.root
        path = _path(holds, chain)
        entry = totals.setdefault(key, {}).setdefault(path, [0.0, 0])
        entry[0] += holds.fabric.clock.hardware_us(float(lasted_ns[index]))
        entry[1] += 1
    trees = [Tree(roots[key], sum(held for held, _ in of_root.values()), _branches(of_root, ()))
             for key, of_root in totals.items()]
    return tuple(sorted(trees, key=lambda tree: -tree.held_us))


def _path(holds: Holds, chain: Chain) -> tuple[str, ...]:
    """Names of the ports from the root to the one that was held; of a circle only where it is entered."""
    names = [holds.fabric.port_name(int(holds.rows[index]["port"])) for index in chain.holds]
    if chain.root.cycle:
        first = next(number for number, name in enumerate(names) if name in chain.root.cycle)
        names = names[: first + 1]
    return tuple(reversed(names))


def _branches(totals: Mapping[tuple[str, ...], Sequence[float]], path: tuple[str, ...]) -> tuple[Branch, ...]:
    depth = len(path) + 1
    names = dict.fromkeys(other[depth - 1] for other in totals if len(other) >= depth and other[: depth - 1] == path)
    found = []
    for name in names:
        held_us, count = totals.get((*path, name), (0.0, 0))
        found.append(Branch(name, held_us, int(count), _branches(totals, (*path, name))))
    return tuple(sorted(found, key=lambda branch: -branch.held_us))
