"""Turns fabricd's telemetry (counters, lab time) into what policies see (LeafLoad, hardware units)."""

from __future__ import annotations

import ipaddress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from controllers.path_table import FlowHash
from controllers.policy import FloatArray, Index, LeafLoad
from topologies.fabric import Fabric, Switch

UNUSED = np.iinfo(np.uint32).max  # a slot without a flow, or without an output port yet


class TelemetryArrays(Protocol):
    """The part of topologies.fabricd.telemetry.Telemetry that is read here; structured arrays."""

    @property
    def ports(self) -> NDArray[np.void]:
        """[ports]"""

    @property
    def slots(self) -> NDArray[np.void]:
        """[switches, 256]"""

    @property
    def flows(self) -> NDArray[np.void]:
        """[flows in use]"""


class LeafSampler:
    """Takes one leaf's load; remembers the counters of the last time to subtract.

    index, size: of the path table.  seed, flow_hash: of the leaf, to find the entry of a flow under index "flow".
    """

    def __init__(self, fabric: Fabric, leaf: Switch, index: Index, size: int, seed: int,
                 flow_hash: FlowHash | None = None) -> None:
        self._leaf = leaf.index
        self._clock = fabric.clock
        self._index = index
        self._size = size
        self._seed = seed
        self._flow_hash = flow_hash
        self._ports = np.array([port.index for port in fabric.uplinks(leaf)])
        self._far_ports = np.array([port.peer for port in fabric.uplinks(leaf)])
        self._local_ips = np.array([int(ipaddress.IPv4Address(host.ip)) for host in fabric.hosts
                                    if host.leaf == leaf.name], dtype=np.uint32)
        self._entry_of_flow: dict[int, int] = {}
        self._before: tuple[int, NDArray[np.void], NDArray[np.uint64]] | None = None

    def sample(self, telemetry: TelemetryArrays, now_ns: int) -> LeafLoad | None:
        """The load since the last call; None at the first one."""
        slots = telemetry.slots[self._leaf].copy()
        ports = telemetry.ports[self._ports]
        sent_bytes = ports["tx_bytes"].astype(np.uint64)
        before, self._before = self._before, (now_ns, slots, sent_bytes)
        if before is None or now_ns <= before[0]:
            return None
        period_ns = now_ns - before[0]
        entry_bytes, last_seen_ns = self._by_entry(telemetry.flows, before[1], slots)
        return LeafLoad(
            period_us=self._clock.hardware_us(period_ns),
            queue_bytes=ports["queue"]["depth_bytes"].sum(axis=1).astype(float),
            tx_gbps=(sent_bytes - before[2]).astype(float) * self._clock.hardware_gbps(8e9 / period_ns),
            up=(ports["up"] != 0) & (telemetry.ports["up"][self._far_ports] != 0),
            entry_bytes=entry_bytes,
            idle_us=np.maximum(now_ns - last_seen_ns, 0.0) / self._clock.lab_ns(1.0),
        )

    def _by_entry(self, flows: NDArray[np.void], before: NDArray[np.void],
                  slots: NDArray[np.void]) -> tuple[FloatArray, FloatArray]:
        """Bytes of the period and time of the last frame (-inf: none) of every entry; uplink traffic only."""
        entry_bytes, last_seen_ns = np.zeros(self._size), np.full(self._size, -np.inf)
        known = np.flatnonzero(slots["flow"] < len(flows))
        known = known[~np.isin(flows["dst_ip"][slots["flow"][known]], self._local_ips)]
        if self._index == "slot":
            entries = known & (self._size - 1)
        elif self._index == "flow" and self._flow_hash is not None:
            entries = np.array([self._entry(flows, int(slots["flow"][slot])) for slot in known], dtype=np.int64)
        else:
            return entry_bytes, last_seen_ns
        grown = slots["bytes"][known].astype(float)
        same = slots["flow"][known] == before["flow"][known]
        grown -= np.where(same & (before["bytes"][known] <= slots["bytes"][known]), before["bytes"][known], 0)
        np.add.at(entry_bytes, entries, grown)
        np.maximum.at(last_seen_ns, entries, slots["last_seen_ns"][known].astype(float))
        return entry_bytes, last_seen_ns

    def _entry(self, flows: NDArray[np.void], flow: int) -> int:
        if flow not in self._entry_of_flow:
            row: Any = flows[flow]
            assert self._flow_hash is not None
            self._entry_of_flow[flow] = (self._size - 1) & self._flow_hash(
                self._seed, int(row["src_ip"]), int(row["dst_ip"]), int(row["protocol"]), int(row["src_port"]),
                int(row["dst_port"]))
        return self._entry_of_flow[flow]
