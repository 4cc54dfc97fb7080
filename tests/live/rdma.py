"""RDMA traffic between hosts of a running FabricNet, driven from the test: flows, and what became of them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from topologies.dcqcn import Dcqcn
from topologies.fabric import TELEMETRY_PATH, Fabric
from topologies.fabricd.telemetry import DropReason, Structured, Telemetry, TraceKind
from topologies.fabricd.verbs import Context, MemoryRegion, QueuePair, WcStatus

START_NS = 300_000_000  # from posting to the common instant at which all begin
PERIOD = 251  # of the pattern in a message


@dataclass(frozen=True)
class Flow:
    """One connection with a message: `memory` at the sender, `place` at the receiver."""

    source: str
    target: str
    qp: QueuePair
    memory: MemoryRegion
    place: MemoryRegion
    pattern: np.ndarray[Any, np.dtype[np.uint8]]


class Traffic:
    """Opens the NICs that it needs. ``qp``: attributes of every queue pair (`ProtectionDomain.create_qp`)."""

    def __init__(self, fabric: Fabric, dcqcn: Dcqcn | None = None, **qp: Any) -> None:
        self.fabric = fabric
        self.telemetry = Telemetry.open(TELEMETRY_PATH)
        self._before = self.telemetry.snapshot()
        self._dcqcn = dcqcn.to_lab(fabric.clock) if dcqcn else None
        self._attributes = qp
        self._open: dict[str, Any] = {}
        self.flows: list[Flow] = []

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, *_exception: object) -> None:
        for context, _pd, _cq in self._open.values():
            context.close()

    def connect(self, source: str, target: str, size_bytes: int, **qp: Any) -> Flow:
        """A flow of one message of `size_bytes`, not yet sent."""
        ends = []
        for host in (source, target):
            if host not in self._open:
                context = Context(host, channel=False)
                self._open[host] = (context, context.alloc_pd(), context.create_cq(4096))
            _context, pd, cq = self._open[host]
            attributes = {"timeout_ns": 10**9, **self._attributes, **qp}
            ends.append((pd.reg_mr(size_bytes), pd.create_qp(cq, cq, **attributes)))
        (memory, one), (place, other) = ends
        for end, peer in ((one, other), (other, one)):
            end.connect(peer.context.ip, peer.qp_num, peer.psn)
            end.set_dcqcn(self._dcqcn)
        pattern = np.resize(np.arange(PERIOD, dtype=np.uint8), size_bytes) + np.uint8(len(self.flows))
        memory.array(np.uint8)[:] = pattern
        flow = Flow(source, target, one, memory, place, pattern)
        self.flows.append(flow)
        return flow

    def start(self, flows: Iterable[Flow] | None = None, repeats: int = 1, at_ns: int | None = None) -> int:
        """All send their message, `repeats` times, from a common instant on. Returns it (lab time, ns)."""
        earliest_ns = at_ns or time.monotonic_ns() + START_NS
        for flow in self.flows if flows is None else flows:
            for _ in range(repeats):
                assert flow.qp.post_write(flow.memory, 0, flow.memory.length, flow.place.addr, flow.place.rkey,
                                          earliest_ns=earliest_ns)
        return earliest_ns

    def finish(self, messages: int, deadline_s: float) -> None:
        """Waits for that many completed messages, all of them successful."""
        end = time.monotonic() + deadline_s
        done = 0
        while done < messages:
            assert time.monotonic() < end, f"{done} of {messages} messages in time"
            for _context, _pd, cq in self._open.values():
                for completion in cq.poll():
                    assert completion.status == WcStatus.SUCCESS
                    done += 1
            time.sleep(0.005)

    def delivered(self) -> bool:
        """Every receiver holds what its sender sent."""
        return all((flow.place.array(np.uint8) == flow.pattern).all() for flow in self.flows)

    def drops(self) -> dict[str, int]:
        """Frames that the fabric dropped since this object exists, by reason."""
        grown = (self.telemetry.ports["dropped"] - self._before.ports["dropped"]).sum(axis=0)
        return {reason.name: int(grown[reason]) for reason in DropReason if grown[reason]}

    def nic_counter(self, name: str) -> int:
        """Growth of a counter over all NICs."""
        return int((self.telemetry.nics[name] - self._before.nics[name]).sum())

    def trace(self, kind: TraceKind | None = None) -> Structured:
        """The records since the last call."""
        records = self.telemetry.drain_trace()
        assert self.telemetry.trace_lost == 0
        return records if kind is None else records[records["kind"] == kind]
