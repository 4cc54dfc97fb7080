"""A fluid model of leaves whose elephants share uplinks equally, to see where a policy takes them.

Flows are elastic up to a limit (their NIC, or what the application sends).  A queue stands on an uplink whose flows
want more than it carries.  Flows of one ring move at the pace of the slowest, as a bulk-synchronous job does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from controllers.path_table import difference
from controllers.policy import Entries, LeafLoad, LeafView, Policy

GBPS_TO_BYTES_PER_US = 125.0
WINDOW_BYTES = 256 * 1024.0


@dataclass(frozen=True)
class FluidFlow:
    """A flow at one leaf; flows of all leaves with the same ring (not None) go at the same pace."""

    leaf: int
    slot: int
    limit_gbps: float = 100.0
    ring: int | None = None
    elastic: bool = True  # False: sends just limit_gbps and queues nothing (ACKs, say)


@dataclass
class FluidFabric:
    """Leaves with `uplinks` of `uplink_gbps` each under one policy.  active(flow number, time): whether it sends."""

    policy: Policy[Any]
    flows: Sequence[FluidFlow]
    leaves: int = 1
    uplinks: int = 4
    uplink_gbps: float = 100.0
    active: Callable[[int, float], bool] = lambda _flow, _now_us: True
    now_us: float = 1000.0
    moves: list[tuple[float, int, int]] = field(default_factory=list)  # time, leaf, slot; only of flows that exist

    def __post_init__(self) -> None:
        size = self.policy.table_size(self.uplinks)
        self.views = [LeafView(f"leaf{i}", i, np.full(self.uplinks, self.uplink_gbps), size, i + 1)
                      for i in range(self.leaves)]
        self.tables: list[Entries] = [self.policy.initial(view) for view in self.views]
        self.up = np.ones((self.leaves, self.uplinks), dtype=bool)
        self.last_seen_us = np.full((self.leaves, size), -np.inf)

    def rates_gbps(self) -> np.ndarray:
        """[flows] at this moment; shares of an uplink are equal among those that could use more."""
        rates = np.array([flow.limit_gbps if self.active(number, self.now_us) else 0.0
                          for number, flow in enumerate(self.flows)])
        where = np.array([flow.leaf * self.uplinks + self.tables[flow.leaf][flow.slot] for flow in self.flows])
        for uplink in set(where.tolist()):
            here = np.flatnonzero(where == uplink)
            left, sharing = self.uplink_gbps, sorted(here.tolist(), key=lambda number: rates[number])
            while sharing:  # water-filling
                smallest = sharing.pop(0)
                rates[smallest] = min(rates[smallest], left / (len(sharing) + 1))
                left -= rates[smallest]
        rings: dict[int, list[int]] = {}
        for number, flow in enumerate(self.flows):
            if flow.ring is not None and self.active(number, self.now_us):
                rings.setdefault(flow.ring, []).append(number)
        for members in rings.values():
            rates[members] = rates[members].min()
        return rates

    def period(self, length_us: float, steps: int = 8) -> None:
        """Let the flows run for so long and the policy look at all leaves."""
        size = self.last_seen_us.shape[1]
        sent = np.zeros((self.leaves, size))
        tx = np.zeros((self.leaves, self.uplinks))
        rates = np.zeros(len(self.flows))
        for _ in range(steps):
            rates = self.rates_gbps()
            for flow, rate in zip(self.flows, rates, strict=True):
                if rate > 0:
                    amount = rate * GBPS_TO_BYTES_PER_US * length_us / steps
                    sent[flow.leaf, flow.slot] += amount
                    tx[flow.leaf, self.tables[flow.leaf][flow.slot]] += amount
                    self.last_seen_us[flow.leaf, flow.slot] = self.now_us
            self.now_us += length_us / steps
        queue = np.zeros((self.leaves, self.uplinks))
        for flow, rate in zip(self.flows, rates, strict=True):
            uplink = self.tables[flow.leaf][flow.slot]
            total = sum(r for f, r in zip(self.flows, rates, strict=True)
                        if f.leaf == flow.leaf and self.tables[f.leaf][f.slot] == uplink)
            if 0 < rate < flow.limit_gbps * 0.99 and flow.elastic and total > 0.99 * self.uplink_gbps:
                queue[flow.leaf, uplink] += WINDOW_BYTES
        for leaf, view in enumerate(self.views):
            load = LeafLoad(
                period_us=length_us, queue_bytes=queue[leaf], tx_gbps=tx[leaf] / GBPS_TO_BYTES_PER_US / length_us,
                up=self.up[leaf], entry_bytes=sent[leaf], idle_us=self.now_us - self.last_seen_us[leaf])
            after = self.policy.update(view, load, self.tables[leaf].copy(), self.now_us)
            existing = {flow.slot for flow in self.flows if flow.leaf == leaf}
            self.moves += [(self.now_us, leaf, move.entry) for move in difference(self.tables[leaf], after)
                           if move.entry in existing]
            self.tables[leaf] = after

    def elephants_per_uplink(self, leaf: int = 0, least_gbps: float = 10.0) -> list[int]:
        """[uplinks]: how many large flows each carries."""
        where = [self.tables[leaf][flow.slot] for flow in self.flows
                 if flow.leaf == leaf and flow.limit_gbps >= least_gbps]
        return np.bincount(np.array(where, dtype=int), minlength=self.uplinks).tolist()
