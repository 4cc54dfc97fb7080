"""The recorded facts of a run in the form in which *why* asks for them: journeys of packets, flows and ranks.

Built from a RawRun that has just ended, or from the files of an old one (store.load_run).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labs.measure.pauses import Holds
from labs.measure.raw import FlowRole, RawIteration, RawRun
from labs.measure.standing import stands
from labs.measure.theory import dotted
from topologies.fabricd.telemetry import TraceKind
from topologies.units import WIRE_OVERHEAD_BYTES

if TYPE_CHECKING:
    from topologies.fabric import Fabric

TICK_NS = 5_000_000  # a drop is recorded at the tick that finds it
ACK_FRAME_BYTES = 62  # Ethernet 14, IPv4 20, UDP 8, BTH 12, AETH 4, ICRC 4: nothing with data is shorter

JOURNEY_DTYPE = np.dtype([
    ("flow", "u4"), ("psn", "u4"), ("bytes", "u4"), ("copy", "u4"),  # copy: 0 the first time that this PSN was sent
    ("sent_ns", "i8"),  # first bit on the NIC's wire
    ("end_ns", "i8"),  # last bit at the receiving host, or the moment of the drop; -1 when not seen
    ("port", "u2"),  # the last port: of the access link, or where it was dropped
    ("dropped", "u1"),  # drop reason; 0: delivered (or not seen to end)
])


@dataclass(frozen=True)
class Evidence:
    """One run.  `trace` is in order of time; `flow_keys[i]` is the five-tuple of flow i."""

    fabric: Fabric
    policy: str
    seed: int
    collective: str
    group_ranks: int  # ranks of one ring or group
    ideal_us: float
    iterations: tuple[RawIteration, ...]
    trace: npt.NDArray[Any]
    flow_keys: Sequence[tuple[int, int, int, int, int]]
    roles: Mapping[int, FlowRole]  # flow index -> who sends data on it
    label: str = ""  # what the run is called; "": the policy
    variant: str = ""
    fault_events: Sequence[Mapping[str, Any]] = ()  # as in RawRun
    end_ns: int = 0  # of the run; 0: with its last record.  What froze has no records until then

    @classmethod
    def of(cls, raw: RawRun) -> Evidence:
        """The evidence in a run that has just ended."""
        keys = flow_keys(raw.flows)
        return cls(
            fabric=raw.fabric, policy=raw.policy, seed=raw.seed,
            collective=str(raw.workload.get("collective", "all_reduce")),
            group_ranks=int(raw.workload.get("ranks", 0)), ideal_us=float(raw.workload.get("ideal_us", 0.0)),
            iterations=raw.iterations, trace=raw.trace[np.argsort(raw.trace["t_ns"], kind="stable")],
            flow_keys=keys, roles=roles_by_flow(keys, raw.flow_ranks),
            label=raw.label, variant=raw.variant, fault_events=tuple(raw.fault_events),
            end_ns=raw.end_ns)

    @property
    def name(self) -> str:
        return f"{self.label or self.policy}, seed {self.seed}"

    @cached_property
    def hops(self) -> npt.NDArray[Any]:
        """HOP records in order of departure."""
        records: npt.NDArray[Any] = self.trace[self.trace["kind"] == TraceKind.HOP]
        return records

    @cached_property
    def hop_begin_ns(self) -> npt.NDArray[np.int64]:
        """When each hop's first bit went out."""
        begin: npt.NDArray[np.int64] = self.hops["t_ns"] - serialisation_ns_of(self.hops, self.fabric)
        return begin

    @cached_property
    def journeys(self) -> npt.NDArray[Any]:
        """One JOURNEY_DTYPE row per packet that a host sent, in order of sending."""
        return packet_journeys(self.trace, self.fabric)

    @property
    def last_ns(self) -> int:
        """When the run ended, or its last record, whichever is later."""
        return max(self.end_ns, int(self.trace["t_ns"].max(initial=0)))

    @cached_property
    def stands(self) -> npt.NDArray[Any]:
        """One STAND_DTYPE row per packet and port in whose queue it stood, by arrival."""
        return stands(self.trace, self.fabric)

    @cached_property
    def holds(self) -> Holds:
        """When ports were held back by their peers, and by what in the end."""
        return Holds(self)

    def connection(self, rank: int, peer: int, ring: int) -> list[int]:
        """The flows (one per queue pair) on which `rank` sends to `peer`."""
        return [flow for flow, role in self.roles.items() if (role.rank, role.peer, role.ring) == (rank, peer, ring)]

    def flow_name(self, flow: int) -> str:
        """What a person calls it: "h2->h6 (UDP 49153)"."""
        if not 0 <= flow < len(self.flow_keys):
            return "unknown flow"
        src_ip, dst_ip, src_port, _, _ = self.flow_keys[flow]
        return f"{self._host(src_ip)}->{self._host(dst_ip)} (UDP {src_port})"

    def ends_of(self, flow: int) -> tuple[str, str]:
        """The hosts that a flow comes from and goes to; an address where no host has it."""
        return self._host(self.flow_keys[flow][0]), self._host(self.flow_keys[flow][1])

    def _host(self, ip: int) -> str:
        text = dotted(ip)
        return next((host.name for host in self.fabric.hosts if host.ip == text), text)


def flow_keys(flows: npt.NDArray[Any]) -> list[tuple[int, int, int, int, int]]:
    """Five-tuples of FLOW_DTYPE rows: source and destination address, source and destination port, protocol."""
    columns = [flows[name].tolist() for name in ("src_ip", "dst_ip", "src_port", "dst_port", "protocol")]
    return list(zip(*columns, strict=True))


def roles_by_flow(keys: Sequence[tuple[int, int, int, int, int]], roles: Sequence[FlowRole]) -> dict[int, FlowRole]:
    """Flow index -> role, for the flows that carry data of a rank."""
    known = {role.key: role for role in roles}
    return {index: known[key] for index, key in enumerate(keys) if key in known}


def serialisation_ns_of(records: npt.NDArray[Any], fabric: Fabric) -> npt.NDArray[np.int64]:
    """How long the frame of each record occupies its port's link."""
    rates = np.array([port.rate_bps for port in fabric.ports])
    bits = (records["bytes"].astype(np.float64) + WIRE_OVERHEAD_BYTES) * 8
    return np.asarray(bits * 1e9 / rates[records["port"]], dtype=np.int64)


def packet_journeys(trace: npt.NDArray[Any], fabric: Fabric) -> npt.NDArray[Any]:
    """Follows every packet from the NIC to its end; JOURNEY_DTYPE rows in order of sending.

    A packet is known by flow and PSN.  When a PSN was sent several times, the copies end in the order in
    which they were sent (a copy is sent long after the one before it was lost or overtaken).
    """
    roles = np.array([{"nic": 0, "access": 1}.get(port.role, 2) for port in fabric.ports])
    delay_ns = np.array([port.delay_ns for port in fabric.ports])
    hop, drop = trace["kind"] == TraceKind.HOP, (trace["kind"] == TraceKind.DROP) & (trace["flow"] != 0xFFFFFFFF)
    role = roles[np.minimum(trace["port"], len(roles) - 1)]
    records = _by_packet(trace[(hop & (role < 2)) | drop])
    hop, role = records["kind"] == TraceKind.HOP, roles[records["port"]]
    after_hop = _lost_after_hop(records, fabric, delay_ns)
    sends = records[(role == 0) & (hop | ~after_hop)]
    ends = records[(hop & (role == 1) & ~np.append(after_hop[1:], False)) | ~hop]
    send_id, end_id = _packet_id(sends), _packet_id(ends)
    copy, end_copy = _number_in_group(send_id), _number_in_group(end_id)

    rows = np.zeros(len(sends), dtype=JOURNEY_DTYPE)
    for name in ("flow", "psn", "bytes"):
        rows[name] = sends[name]
    rows["copy"] = copy
    serialising = np.where(sends["kind"] == TraceKind.HOP, serialisation_ns_of(sends, fabric), 0)
    rows["sent_ns"] = sends["t_ns"] - serialising
    rows["end_ns"] = -1
    if len(ends):
        at = np.searchsorted(end_id, send_id, side="left") + copy
        at_safe = np.minimum(at, len(ends) - 1)
        match = (at < len(ends)) & (end_id[at_safe] == send_id) & (end_copy[at_safe] == copy)
        last = ends[at_safe[match]]
        dropped = last["kind"] == TraceKind.DROP
        rows["port"][match] = last["port"]
        rows["end_ns"][match] = last["t_ns"] + np.where(dropped, 0, delay_ns[last["port"]])
        rows["dropped"][match] = np.where(dropped, last["reason"], 0)
    return rows[np.argsort(rows["sent_ns"], kind="stable")]


def _lost_after_hop(records: npt.NDArray[Any], fabric: Fabric, delay_ns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which records (by packet) are drops of what has just left a port: on its link, or for want of room behind it.

    The HOP is the record before, at the same port or at its peer, and not longer ago than the link takes and a tick.
    """
    if not len(records):
        return np.zeros(0, dtype=bool)
    peer = np.array([port.peer for port in fabric.ports])
    port, ids = records["port"].astype(np.int64), _packet_id(records)
    before = np.maximum(np.arange(len(records)) - 1, 0)
    lately = records["t_ns"] - records["t_ns"][before] <= delay_ns[port[before]] + TICK_NS
    there = (port[before] == port) | (peer[port[before]] == port)
    found: npt.NDArray[np.bool_] = ((records["kind"] == TraceKind.DROP) & (records["kind"][before] == TraceKind.HOP)
                                    & (ids[before] == ids) & there & lately)
    return found


def reordered(journeys: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which delivered packets arrived after one of their flow that was sent later (RFC 4737, by order of sending)."""
    late = np.zeros(len(journeys), dtype=bool)
    delivered = np.flatnonzero((journeys["dropped"] == 0) & (journeys["end_ns"] >= 0))
    order = delivered[np.lexsort((journeys["end_ns"][delivered], journeys["flow"][delivered]))]
    flow, sent = journeys["flow"][order], journeys["sent_ns"][order]
    for begin, end in _runs(flow):
        latest = np.maximum.accumulate(sent[begin:end])
        late[order[begin:end]] = sent[begin:end] < latest
    return late


def _by_packet(records: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return records[np.lexsort((records["t_ns"], records["psn"], records["flow"]))]


def _packet_id(records: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    ids: npt.NDArray[np.int64] = records["flow"].astype(np.int64) << 24 | records["psn"].astype(np.int64) & 0xFFFFFF
    return ids


def _number_in_group(sorted_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, 2, ... within each run of equal ids."""
    return np.arange(len(sorted_ids)) - np.searchsorted(sorted_ids, sorted_ids, side="left")


def _runs(values: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """[begin, end) of each run of equal values."""
    if not len(values):
        return []
    edges = np.flatnonzero(values[1:] != values[:-1]) + 1
    bounds = [0, *edges.tolist(), len(values)]
    return list(pairwise(bounds))
