"""Soft RDMA NICs in virtual time: two of them back to back, with a wire between that a test controls.

The wire serialises at the NICs' rate and delays; what becomes of a frame is up to ``Wire.fate``. Nothing here has a
clock: ``Wire.run`` ticks as fabricd does.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.fabricd import binding
from topologies.fabricd._core import ffi, lib

RATE_BPS = 10e6
MTU = 1024
TICK_NS = 50_000
DELAY_NS = 500_000
TIMEOUT_NS = 1_000_000_000
WIRE_OVERHEAD_BYTES = 24
ARENA_BYTES = 1 << 20
ALL_ACCESS = lib.IBV_ACCESS_LOCAL_WRITE | lib.IBV_ACCESS_REMOTE_WRITE

Fate = Callable[[int, int, bytes], list[int]]
"""(sender, number of the frame, frame) -> extra delays in ns of its copies; [] loses it, [0] delivers it once."""


def wire_ns(frame_bytes: int, rate_bps: float = RATE_BPS) -> float:
    """How long a frame of that length keeps the wire busy."""
    return (frame_bytes + WIRE_OVERHEAD_BYTES) * 8e9 / rate_bps


@dataclass(frozen=True)
class HarnessHost:
    """As much of a host as verbs need."""

    name: str
    ip: str


class TelemetryBlock:
    """The telemetry of two NICs, or of ``nics``."""

    def __init__(self, nics: int = 2) -> None:
        shape = ffi.new(
            "struct telemetry_shape *",
            {
                "ports": nics,
                "switches": 0,
                "nics": nics,
                "classes": 1,
                "flows": 1,
                "series_rows": 1,
                "trace_records": 1 << 16,
            },
        )
        self._memory = binding.sparse_memory(lib.telemetry_bytes(shape))
        self.pointer = ffi.new("struct telemetry *")
        lib.telemetry_init(self.pointer, ffi.from_buffer(self._memory), shape)

    def trace(self, kind: int) -> list[Any]:
        """All records of one ``enum trace_kind``, oldest first."""
        written = getattr(self.pointer, "global").trace_head
        return [self.pointer.trace[i] for i in range(written) if self.pointer.trace[i].kind == kind]


class HarnessNic:
    """One NIC: its state, its shared memory, a protection domain, a completion queue and one big region."""

    def __init__(
        self, index: int, telemetry: TelemetryBlock, *, mtu: int = MTU, rate_bps: float = RATE_BPS,
        path: Path | None = None, **config: int,
    ) -> None:  # fmt: skip
        """``config``: more of ``struct rnic_config``."""
        self.index = index
        self.telemetry = telemetry
        self.host = HarnessHost(f"h{index}", f"10.0.0.{index + 1}")
        self.ip = 0x0A000001 + index
        self.mac = bytes([2, 0x53, 0, 0, 0, index])
        self.path = path or Path("/nonexistent")
        self.shared_bytes = int(lib.rnic_shared_bytes(ARENA_BYTES))
        self.memory = (
            binding.shared_memory(str(path), self.shared_bytes) if path else binding.sparse_memory(self.shared_bytes)
        )
        self.shared = ffi.from_buffer(self.memory)
        self._state = binding.sparse_memory(lib.rnic_bytes())
        self.pointer = ffi.cast("struct rnic *", ffi.from_buffer(self._state))
        values = {
            "index": index, "port": index, "ip": self.ip, "mtu_bytes": mtu, "dscp": 26, "mac": self.mac,
            "gateway_mac": bytes([2, 0x53, 0, 0, 0, index ^ 1]), "rate_bps": rate_bps, "arena_bytes": ARENA_BYTES,
            **config,
        }  # fmt: skip
        assert lib.rnic_init(self.pointer, ffi.new("struct rnic_config *", values), self.shared, telemetry.pointer) == 0

    @property
    def count(self) -> Any:
        """``struct telemetry_nic``."""
        return self.telemetry.pointer.nic[self.index]

    def control(self, op: int, *args: int) -> tuple[int, ...]:
        """One of ``enum rnic_op``. Raises OSError when refused."""
        request = binding.control_request(lib.CONTROL_NIC, self.index, op, args)
        lib.rnic_control(self.pointer, request)
        if request.status < 0:
            raise OSError(-request.status, os.strerror(-request.status))
        return tuple(request.result)

    def rx(self, frame: bytes, now_ns: int = 0) -> None:
        """A frame arrives."""
        lib.rnic_rx(self.pointer, frame, len(frame), now_ns)

    def advance(self, now_ns: int) -> list[bytes]:
        """Frames that the NIC emits at ``now_ns``."""
        frames: list[bytes] = []

        @ffi.callback("void(void *, uint32_t, const uint8_t *, uint32_t)")  # type: ignore[untyped-decorator]
        def emit(_ctx: Any, nic: int, frame: Any, length: int) -> None:
            assert nic == self.index
            frames.append(ffi.buffer(frame, length)[:])

        lib.rnic_advance(self.pointer, now_ns, emit, ffi.NULL)
        return frames

    @property
    def arena(self) -> NDArray[np.uint8]:
        """All memory that could be registered."""
        offset = ffi.cast("struct verbs_header *", self.shared).arena_offset
        return np.frombuffer(self.memory, np.uint8, ARENA_BYTES, offset)


class Region:
    """A memory region of a NIC, in a protection domain of its own unless one is given."""

    def __init__(self, nic: HarnessNic, length: int, access: int = ALL_ACCESS, pd: int | None = None) -> None:
        self.pd = nic.control(lib.RNIC_ALLOC_PD)[0] if pd is None else pd
        self.lkey, self.rkey, self.addr, offset, *_ = nic.control(lib.RNIC_REG_MR, self.pd, length, access)
        self.array: NDArray[np.uint8] = np.frombuffer(nic.memory, np.uint8, length, offset)


class Endpoint:
    """A queue pair with its region and its completion queue."""

    def __init__(self, nic: HarnessNic, region: Region | None = None, cq_depth: int = 1024, **attributes: int) -> None:
        self.nic = nic
        self.region = region or Region(nic, 128 << 10)
        self.cq = nic.control(lib.RNIC_CREATE_CQ, cq_depth)[0]
        self.qp_num, self.slot, *_ = nic.control(lib.RNIC_CREATE_QP, self.region.pd, self.cq, self.cq, 1)
        self.psn = attributes.pop("psn", 1000 + self.qp_num)
        self.attributes = attributes
        self.peer: Endpoint | None = None

    def connect(self, peer: Endpoint) -> None:
        """From RESET to RTS."""
        a = {
            "access": ALL_ACCESS, "rnr_timer": 1, "src_port": 0, "dscp": 0, "timeout_ns": TIMEOUT_NS, "retry_count": 7,
            "rnr_retry": 7, "window_bytes": 0, "ack_every": 0, **self.attributes,
        }  # fmt: skip
        self.peer = peer
        modify = lib.RNIC_MODIFY_QP
        self.nic.control(modify, self.qp_num, lib.IBV_QPS_INIT, a["access"])
        self.nic.control(
            modify, self.qp_num, lib.IBV_QPS_RTR, peer.nic.ip, peer.qp_num, peer.psn, 0, a["rnr_timer"], a["src_port"],
            a["dscp"],
        )
        self.nic.control(
            modify, self.qp_num, lib.IBV_QPS_RTS, self.psn, a["timeout_ns"], a["retry_count"], a["rnr_retry"],
            a["window_bytes"], a["ack_every"],
        )  # fmt: skip

    def write(self, length: int, *, at: int = 0, to: int = 0, imm: int | None = None, **overrides: int) -> None:
        """Posts an RDMA WRITE from ``at`` in the own region to ``to`` in the peer's."""
        assert self.peer is not None
        values = {
            "addr": self.region.addr + at, "lkey": self.region.lkey, "length": length,
            "remote_addr": self.peer.region.addr + to, "rkey": self.peer.region.rkey,
            "send_flags": lib.IBV_SEND_SIGNALED, "imm_data": imm or 0,
            "opcode": lib.IBV_WR_RDMA_WRITE if imm is None else lib.IBV_WR_RDMA_WRITE_WITH_IMM, **overrides,
        }  # fmt: skip
        assert lib.verbs_post_send(self.nic.shared, self.slot, ffi.new("struct verbs_send_wr *", values), 1) == 1

    def receive(self, count: int = 1, wr_id: int = 0) -> None:
        """Posts receive requests."""
        requests = ffi.new("struct verbs_recv_wr[]", [{"wr_id": wr_id + i} for i in range(count)])
        assert lib.verbs_post_recv(self.nic.shared, self.slot, requests, count) == count

    def poll(self) -> list[Any]:
        """All completions."""
        entries = ffi.new("struct verbs_wc[]", 4096)
        count = lib.verbs_poll_cq(self.nic.shared, self.cq, entries, 4096)
        assert count >= 0
        return [ffi.new("struct verbs_wc *", entries[i]) for i in range(count)]

    @property
    def state(self) -> int:
        """``enum ibv_qp_state``."""
        return self.nic.control(lib.RNIC_QUERY_QP, self.qp_num)[0]


@dataclass
class Wire:
    """Two NICs back to back. ``sent`` holds (time, sender, frame) of all that was emitted."""

    nics: list[HarnessNic]
    fate: Fate = lambda sender, number, frame: [0]
    delay_ns: int = DELAY_NS
    now_ns: int = 0
    sent: list[tuple[int, int, bytes]] = field(default_factory=list)
    _free_ns: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _flying: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    _order: int = 0

    def tick(self, now_ns: int) -> None:
        """What fabricd does at one tick: deliver what has arrived, then let the NICs send."""
        self.now_ns = now_ns
        while self._flying and self._flying[0][0] <= now_ns:
            at_ns, _, receiver, frame = heapq.heappop(self._flying)
            self.nics[receiver].rx(frame, at_ns)
        for nic in self.nics:
            for frame in nic.advance(now_ns):
                self._launch(nic.index, frame)

    def run(self, duration_ns: int, tick_ns: int = TICK_NS, until: Callable[[], bool] = lambda: False) -> None:
        """Ticks for ``duration_ns``, or until ``until()``."""
        end_ns = self.now_ns + duration_ns
        while self.now_ns < end_ns and not until():
            self.tick(self.now_ns + tick_ns)

    def _launch(self, sender: int, frame: bytes) -> None:
        self._free_ns[sender] = max(self._free_ns[sender], self.now_ns) + wire_ns(len(frame))
        for extra_ns in self.fate(sender, len(self.sent), frame):
            at_ns = round(self._free_ns[sender]) + self.delay_ns + extra_ns
            self._order += 1
            heapq.heappush(self._flying, (at_ns, self._order, 1 - sender, frame))
        self.sent.append((self.now_ns, sender, frame))


def pair(mtu: int = MTU, **attributes: int) -> tuple[Wire, Endpoint, Endpoint]:
    """Two NICs and one connection between them; ``attributes`` are those of both queue pairs."""
    telemetry = TelemetryBlock()
    wire = Wire([HarnessNic(index, telemetry, mtu=mtu) for index in range(2)])
    left, right = (Endpoint(nic, None, **attributes) for nic in wire.nics)
    left.connect(right)
    right.connect(left)
    return wire, left, right


def fill(endpoint: Endpoint, seed: int = 1) -> None:
    """Random bytes into the endpoint's whole region."""
    endpoint.region.array[:] = np.random.default_rng(seed).integers(0, 256, len(endpoint.region.array), np.uint8)
