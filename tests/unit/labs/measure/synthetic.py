"""Runs that never happened: a small packet simulator writes the records that the data path would have written.

Rings of ranks send go-back-N flows through a leaf-spine fabric of FIFO queues.  Every cause of lateness can be
planted: `route` makes flows collide or spray, small buffers drop, `late_us` and `slow_us` hold a rank back.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from labs.measure import theory
from labs.measure.raw import FlowRole, RawIteration, RawRank, RawRun
from labs.measure.stored import number_of
from topologies.fabric import Fabric, describe
from topologies.fabricd.telemetry import (
    FLOW_DTYPE,
    GLOBAL_DTYPE,
    NIC_DTYPE,
    PORT_DTYPE,
    SLOT_DTYPE,
    SWITCH_DTYPE,
    TRACE_DTYPE,
    DropReason,
    RetransmitReason,
    Snapshot,
    TraceKind,
)
from topologies.spec import FabricSpec

SLOWDOWN = 10_000.0
INSIDE_NS = 300_000  # what a frame spends in a switch
START_NS = 1_000_000_000_000
ACK_BYTES = 62
FIRST_PORT = 49_152

Route = Callable[[int, int, int], int]  # (rank, packet number of its leaf, position of its leaf) -> uplink position


def spec(**changes: Any) -> FabricSpec:
    values: dict[str, Any] = {"leaves": 4, "spines": 4, "hosts_per_leaf": 4, "slowdown": SLOWDOWN}
    return FabricSpec(**{**values, **changes})


def spread(rank: int, packet: int, leaf: int) -> int:
    """Every flow of a leaf has an uplink of its own: no collision anywhere."""
    return rank % 4


def colliding(rank: int, packet: int, leaf: int) -> int:
    """The first three flows of leaf 1 share uplink 2; everywhere else all is well."""
    return 2 if leaf == 1 and rank % 4 < 3 else rank % 4


def spraying(rank: int, packet: int, leaf: int) -> int:
    """Per packet, without regard to anything."""
    return (packet * 2_654_435_761 >> 7) % 4


@dataclass
class Flow:
    """Sender and receiver of one connection, go-back-N."""

    index: int
    role: FlowRole
    packets: int  # of a slice, which is a message
    slices: int  # of a chunk
    messages: int  # of an iteration
    payload: int
    released: int = 0  # messages that may be sent
    next_psn: int = 0
    acknowledged: int = 0
    expected: int = 0
    start_ns: int = 0
    nak_sent: bool = False
    pumping: bool = False
    timer: bool = False
    progress_ns: int = 0
    highest_sent: int = -1


@dataclass
class Simulator:
    """See the module.  After `play` the records are in `trace`, the counters in the structured arrays."""

    fabric: Fabric
    route: Route
    size_bytes: int = 64 * 1024
    slice_packets: int = 4
    window: int = 64
    timeout_us: float = 400.0
    late_us: Mapping[int, float] = field(default_factory=dict)  # rank -> start after the common instant
    slow_us: Mapping[int, float] = field(default_factory=dict)  # rank -> pause before each step
    link_down: int | None = None

    def __post_init__(self) -> None:
        self.ports = np.zeros(len(self.fabric.ports), PORT_DTYPE)
        self.switches = np.zeros(len(self.fabric.switches), SWITCH_DTYPE)
        self.nics = np.zeros(len(self.fabric.hosts), NIC_DTYPE)
        self.globals = np.zeros(1, GLOBAL_DTYPE)
        self.records: list[tuple[int, ...]] = []
        self.occupancy: list[tuple[int, int, int, int]] = []  # port, came, left, bytes
        self._free = [0] * len(self.ports)
        self._queues: list[deque[tuple[int, int]]] = [deque() for _ in self.ports]
        self._sprayed = [0] * len(self.fabric.switches)
        self._last_port: dict[tuple[int, int], int] = {}
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        spec = self.fabric.spec
        self.rings = spec.hosts_per_leaf
        self.ranks = spec.leaves
        hosts = self.fabric.hosts
        chunk = self.size_bytes // self.ranks
        self.flows: list[Flow] = []
        self.keys: list[tuple[int, int, int, int, int]] = []
        for host in hosts:
            peer = hosts[(host.index + self.rings) % len(hosts)]
            role = FlowRole(number_of(host.ip), number_of(peer.ip), FIRST_PORT + host.index, 4791, 17,
                            host.index, peer.index, host.index % self.rings)
            slices = max(1, chunk // spec.mtu_bytes // self.slice_packets)
            self.flows.append(Flow(host.index, role, chunk // spec.mtu_bytes // slices, slices,
                                   2 * (self.ranks - 1) * slices, spec.mtu_bytes))
            self.keys.append(role.key)
        for flow in list(self.flows):  # acknowledgements: flow index + hosts
            self.keys.append((flow.role.dst_ip, flow.role.src_ip, FIRST_PORT + 1000 + flow.index, 4791, 17))
        self.counts = np.zeros(len(self.keys), FLOW_DTYPE)
        for row, key in zip(self.counts, self.keys, strict=True):
            row["src_ip"], row["dst_ip"], row["src_port"], row["dst_port"], row["protocol"] = key

    def play(self, n: int, start_ns: int, warmup: bool = False) -> RawIteration:
        self._first: dict[int, int] = {}
        self._end: dict[int, int] = {}
        for flow in self.flows:
            base = flow.next_psn
            flow.acknowledged = flow.expected = base
            flow.released, flow.nak_sent = base // flow.packets + flow.slices, False
            flow.start_ns = start_ns + self.fabric.clock.lab_ns(self.late_us.get(flow.role.rank, 0.0))
            self._at(flow.start_ns, self._pump, flow)
        self._target = {flow.index: flow.next_psn + flow.packets * flow.messages for flow in self.flows}
        while self._events:
            now, _, action, arguments = heapq.heappop(self._events)
            action(now, *arguments)
        ranks = tuple(RawRank(host.index, host.name, host.index % self.rings, self._first.get(host.index),
                              self._end.get(host.index)) for host in self.fabric.hosts)
        return RawIteration(n, warmup, start_ns, ranks)

    def _at(self, now: int, action: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (now, next(self._order), action, arguments))

    def _release(self, now: int, flow: Flow) -> None:
        flow.released += 1
        if flow.acknowledged == flow.next_psn:
            flow.progress_ns = now
        self._pump(now, flow)

    def _pump(self, now: int, flow: Flow) -> None:
        """Sends what window and messages permit, at the NIC's pace."""
        if flow.pumping or now < flow.start_ns:
            return
        limit = min(flow.released * flow.packets, flow.acknowledged + self.window, self._target[flow.index])
        if flow.next_psn >= limit:
            return
        nic = self.fabric.ports[flow.role.rank]
        begin = max(now, self._free[nic.index])
        if begin > now:
            flow.pumping = True
            self._at(begin, self._resume, flow)
            return
        psn = flow.next_psn
        if psn <= flow.highest_sent:
            self.nics[flow.role.rank]["retransmitted_packets"] += 1
            self._record(TraceKind.RETRANSMIT, now, flow.index, psn, port=nic.index, reason=RetransmitReason.NAK)
        flow.highest_sent = max(flow.highest_sent, psn)
        self._first.setdefault(flow.role.rank, now)
        flow.next_psn += 1
        self._enter(now, nic.index, flow.index, psn, flow.payload + 58, flow)
        if not flow.timer:
            flow.timer, flow.progress_ns = True, now
            self._at(now + self.fabric.clock.lab_ns(self.timeout_us), self._timeout, flow)
        self._pump(now, flow)

    def _resume(self, now: int, flow: Flow) -> None:
        flow.pumping = False
        self._pump(now, flow)

    def _timeout(self, now: int, flow: Flow) -> None:
        due = flow.progress_ns + self.fabric.clock.lab_ns(self.timeout_us)
        flow.timer = flow.acknowledged < flow.next_psn and now < due
        if flow.timer:
            self._at(due, self._timeout, flow)
        elif flow.acknowledged < flow.next_psn:
            self.nics[flow.role.rank]["timeouts"] += 1
            self._record(TraceKind.TIMEOUT, now, 0xFFFFFFFF, flow.acknowledged, port=flow.role.rank)
            flow.next_psn, flow.progress_ns = flow.acknowledged, now
            self._pump(now, flow)

    def _enter(self, now: int, port: int, key: int, psn: int, length: int, flow: Flow) -> None:
        """A frame comes to a port's queue."""
        here, queue, counters = self.fabric.ports[port], self._queues[port], self.ports[port]
        counters["rx_frames"] += 1
        counters["rx_bytes"] += length
        if here.role == "nic":
            self.counts[key]["sent_frames"] += 1
            self.counts[key]["sent_bytes"] += length
        else:
            self.switches[here.node]["out_frames"] += 1
            before = self._last_port.get((here.node, key))
            if before not in (None, port):
                self.switches[here.node]["path_changes"] += 1
                self._record(TraceKind.PATH, now, key, psn, port=port, arg=before or 0)
            self._last_port[here.node, key] = port
        while queue and queue[0][0] <= now:
            queue.popleft()
        depth = sum(size for _, size in queue)
        if depth + length > here.buffer_bytes:
            counters["dropped"][DropReason.TAIL] += 1
            self.counts[key]["dropped_frames"] += 1
            self._record(TraceKind.DROP, now, key, psn, port=port, reason=DropReason.TAIL, bytes_=length, arg=depth)
            return
        begin = max(now, self._free[port])
        left = begin + int((length + 24) * 8e9 / here.rate_bps)
        self._free[port] = left
        queue.append((left, length))
        self.occupancy.append((port, now, left, length))
        self._record(TraceKind.HOP, left, key, psn, port=port, wait=begin - now, bytes_=length, arg=depth)
        counters["tx_frames"] += 1
        counters["tx_bytes"] += length
        counters["delivered_frames"] += 1
        self._at(left + here.delay_ns, self._arrive, here.peer, key, psn, length, flow)

    def _arrive(self, now: int, port: int, key: int, psn: int, length: int, flow: Flow) -> None:
        """A frame is at the far end of a link: a switch forwards it, a host takes it."""
        here = self.fabric.ports[port]
        self.globals[0]["lateness_us"]["bucket"][8] += 1
        if here.kind == "switch":
            switch = self.fabric.switches[here.node]
            self.switches[here.node]["in_frames"] += 1
            self.switches[here.node]["inside_us"]["bucket"][40] += 1
            self._at(now + INSIDE_NS, self._enter, self._next_port(switch.index, key, flow), key, psn, length, flow)
            return
        self.counts[key]["delivered_frames"] += 1
        if key < len(self.flows):
            self._data(now, flow, psn)
        else:
            self._acknowledge(now, flow, psn)

    def _next_port(self, index: int, key: int, flow: Flow) -> int:
        switch = self.fabric.switches[index]
        target = self.fabric.hosts[flow.role.peer if key < len(self.flows) else flow.role.rank]
        if target.leaf == switch.name:
            return self.fabric.ports[target.index].peer
        if switch.tier == "spine":
            return next(p.index for p in self.fabric.ports_of(switch) if self.fabric.peer(p).device == target.leaf)
        uplinks = self.fabric.uplinks(switch)
        if key >= len(self.flows):
            return uplinks[flow.role.rank % len(uplinks)].index
        self._sprayed[index] += 1
        return uplinks[self.route(flow.role.rank, self._sprayed[index], index) % len(uplinks)].index

    def _data(self, now: int, flow: Flow, psn: int) -> None:
        peer = flow.role.peer
        if psn > flow.expected:
            self.nics[peer]["out_of_order"] += 1
            self._record(TraceKind.REORDER, now, 0xFFFFFFFF, psn, port=peer)
            if not flow.nak_sent:
                flow.nak_sent = True
                self.nics[peer]["naks_sent"] += 1
                self._record(TraceKind.NAK_SENT, now, 0xFFFFFFFF, flow.expected, port=peer, reason=0x60)
                self._enter(now, peer, flow.index + len(self.flows), flow.expected - 1 & 0xFFFFFF | 1 << 30, ACK_BYTES,
                            flow)
            return
        if psn == flow.expected:
            flow.expected += 1
            flow.nak_sent = False
            following = self.flows[peer]
            if flow.expected % flow.packets == 0:
                pause = self.fabric.clock.lab_ns(self.slow_us.get(peer, 0.0)) + 100_000
                if flow.expected + flow.slices * flow.packets <= self._target[flow.index]:
                    self._at(now + pause, self._release, following)
                if flow.expected == self._target[flow.index]:
                    self._end[peer] = now
        self._enter(now, peer, flow.index + len(self.flows), flow.expected - 1, ACK_BYTES, flow)

    def _acknowledge(self, now: int, flow: Flow, psn: int) -> None:
        nak, acknowledged = bool(psn & 1 << 30), (psn & ~(1 << 30)) + 1
        if acknowledged > flow.acknowledged:
            flow.acknowledged, flow.progress_ns = acknowledged, now
        if nak and flow.acknowledged <= flow.next_psn:
            flow.next_psn, flow.progress_ns = max(flow.acknowledged, acknowledged), now
        flow.next_psn = max(flow.next_psn, flow.acknowledged)
        self._pump(now, flow)

    def _record(self, kind: int, now: int, flow: int, psn: int, *, port: int, wait: int = 0, bytes_: int = 0,
                arg: int = 0, reason: int = 0) -> None:
        self.records.append((now, wait, flow, psn & 0xFFFFFF, bytes_, arg, port, kind, reason, 0))

    @property
    def trace(self) -> Any:
        return np.array(self.records, TRACE_DTYPE)

    def series(self, interval_ns: int) -> tuple[Any, Any]:
        """Depth of every queue, sampled: int64[n], uint32[n, ports, 1]."""
        port, came, left, size = np.array(self.occupancy).T
        times = np.arange(came.min(), left.max() + interval_ns, interval_ns)
        depth = np.zeros((len(times), len(self.ports)), np.int64)
        np.add.at(depth, (np.searchsorted(times, came), port), size)
        np.add.at(depth, (np.searchsorted(times, left), port), -size)
        return times, np.cumsum(depth, axis=0).astype(np.uint32)[:, :, None]

    def snapshot(self, empty: bool = False) -> Snapshot:
        arrays = (self.globals, self.ports, self.switches, np.zeros((len(self.switches), 256), SLOT_DTYPE),
                  self.counts, self.nics)
        first, *rest = (np.zeros_like(array) if empty else array.copy() for array in arrays)
        return Snapshot(first[0], *rest)


def run(
    route: Route = spread, *, policy: str = "ecmp", seed: int = 1, iterations: int = 2, warmup: int = 1,
    fabric_spec: FabricSpec | None = None, predicted: float | None = None, **simulation: Any,
) -> RawRun:
    """A RawRun with `warmup` + `iterations` iterations; `simulation`: fields of Simulator."""
    fabric = describe(fabric_spec or spec(), lab="synthetic", datapath="userspace", ovs_version="3.1.0")
    simulator = Simulator(fabric, route, **simulation)
    played, now = [], START_NS
    for n in range(warmup + iterations):
        played.append(simulator.play(n, now, warmup=n < warmup))
        now = max([simulator.records[-1][0], *(r.end_ns or 0 for r in played[-1].ranks)]) + 50_000_000
    times, depth = simulator.series(20_000_000)
    return RawRun(
        policy=policy, seed=seed, params={}, fabric=fabric, start_ns=START_NS - 1_000_000, end_ns=now,
        iterations=tuple(played), trace=simulator.trace, series_t_ns=times, series_depth=depth, flows=simulator.counts,
        flow_ranks=tuple(flow.role for flow in simulator.flows), before=simulator.snapshot(empty=True),
        after=simulator.snapshot(), cpu={"idle_share": 0.4, "steal_share": 0.0},
        workload={"collective": "all_reduce", "size_bytes": simulator.size_bytes, "ranks": simulator.ranks,
                  "rings": simulator.rings,
                  "ideal_us": theory.ring_allreduce_us(simulator.size_bytes, simulator.ranks, 100.0)},
        predicted={} if predicted is None else {"factor": predicted})


def changed(raw: RawRun, **changes: Any) -> RawRun:
    """The same run with some fields replaced."""
    return replace(raw, **changes)


PLANTED: Mapping[str, Mapping[str, Any]] = {
    "none": {"route": spread},
    "collision": {"route": colliding},
    "drop": {"route": colliding, "fabric_spec": spec(buffer_kb=64), "window": 32},
    "reordering": {"route": spraying},
    "late_start": {"late_us": {5: 40.0}, "size_bytes": 64 * 1024},
    "host": {"slow_us": {6: 12.0}, "size_bytes": 64 * 1024},
}


@cache
def planted(cause: str) -> RawRun:
    """A run whose iterations are late for a known cause; 36,000 records, one warm-up and one measured iteration."""
    return run(**{"size_bytes": 256 * 1024, "iterations": 1, "policy": f"planted_{cause}", **PLANTED[cause]})
