"""Reads the telemetry block of fabricd with numpy: counters, flow tables, queue series and the packet trace.

The layout is that of ``core/telemetry.h``; structure types are taken from the compiled core, so that the
two cannot drift apart. All times are nanoseconds of the laboratory's clock.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.errors import LabError
from topologies.fabricd._core import ffi, lib

Structured = NDArray[np.void]
START_AGAIN = "run 'straggler clean' and start again"


class DropReason(IntEnum):
    """Why a frame was dropped; below 8 by the fabric, from 8 on because a fabric of IP routers does not carry it."""

    TAIL = lib.DROP_TAIL
    SHARED = lib.DROP_SHARED
    LINK_DOWN = lib.DROP_LINK_DOWN
    POOL = lib.DROP_POOL
    HEADROOM = lib.DROP_HEADROOM
    WATCHDOG = lib.DROP_WATCHDOG
    BIT_ERROR = lib.DROP_BIT_ERROR
    RUNT = lib.DROP_RUNT
    GIANT = lib.DROP_GIANT
    NOT_IPV4 = lib.DROP_NOT_IPV4
    FOREIGN_MAC = lib.DROP_FOREIGN_MAC
    BAD_HEADER = lib.DROP_BAD_HEADER
    MULTICAST = lib.DROP_MULTICAST


class TraceKind(IntEnum):
    """Kinds of trace records; their fields are explained in ``core/telemetry.h``."""

    HOP = lib.TRACE_HOP
    DROP = lib.TRACE_DROP
    PATH = lib.TRACE_PATH
    MARK = lib.TRACE_MARK
    PAUSE = lib.TRACE_PAUSE
    PAUSED = lib.TRACE_PAUSED
    WATCHDOG = lib.TRACE_WATCHDOG
    CREDIT_STALL = lib.TRACE_CREDIT_STALL
    RETRANSMIT = lib.TRACE_RETRANSMIT
    TIMEOUT = lib.TRACE_TIMEOUT
    NAK_SENT = lib.TRACE_NAK_SENT
    REORDER = lib.TRACE_REORDER
    QP_ERROR = lib.TRACE_QP_ERROR
    MESSAGE = lib.TRACE_MESSAGE
    RATE = lib.TRACE_RATE


class RetransmitReason(IntEnum):
    """Why a requester sent a packet again."""

    NAK = lib.RETRANSMIT_NAK
    TIMEOUT = lib.RETRANSMIT_TIMEOUT
    RNR = lib.RETRANSMIT_RNR


def _dtype(ctype: Any) -> np.dtype[np.void]:
    """The numpy type with the same fields, offsets and size as a C structure of the core."""
    if ctype.kind == "primitive":
        signed = "int" in ctype.cname and not ctype.cname.startswith("u")
        return np.dtype(f"{'i' if signed else 'u'}{ffi.sizeof(ctype)}")
    if ctype.kind == "array":
        return np.dtype((_dtype(ctype.item), (ctype.length,)))
    fields = ctype.fields
    return np.dtype(
        {
            "names": [name for name, _ in fields],
            "formats": [_dtype(field.type) for _, field in fields],
            "offsets": [field.offset for _, field in fields],
            "itemsize": ffi.sizeof(ctype),
        }
    )


HEADER_DTYPE = _dtype(ffi.typeof("struct telemetry_header"))
GLOBAL_DTYPE = _dtype(ffi.typeof("struct telemetry_global"))
PORT_DTYPE = _dtype(ffi.typeof("struct telemetry_port"))
SWITCH_DTYPE = _dtype(ffi.typeof("struct telemetry_switch"))
SLOT_DTYPE = _dtype(ffi.typeof("struct telemetry_slot"))
FLOW_DTYPE = _dtype(ffi.typeof("struct telemetry_flow"))
NIC_DTYPE = _dtype(ffi.typeof("struct telemetry_nic"))
TRACE_DTYPE = _dtype(ffi.typeof("struct trace_record"))


def histogram_percentile(bucket: NDArray[np.uint64], q: float) -> float:
    """The q-th percentile (0..100) of a histogram's counts, in its unit (us), interpolated; 0.0 if it is empty."""
    total = int(bucket.sum())
    if total == 0:
        return 0.0
    rank = q / 100.0 * total
    cumulative = np.cumsum(bucket)
    at = int(np.searchsorted(cumulative, rank))
    low = lib.histogram_lower_bound(at)
    high = lib.histogram_lower_bound(at + 1) if at + 1 < len(bucket) else 2 * low
    before = float(cumulative[at - 1]) if at else 0.0
    return float(low + (high - low) * (rank - before) / float(bucket[at]))


@dataclass(frozen=True)
class Snapshot:
    """Copies of all counters at one moment: ``after.ports["tx_bytes"] - before.ports["tx_bytes"]``."""

    globals: Structured  # scalar of GLOBAL_DTYPE
    ports: Structured  # [ports]
    switches: Structured  # [switches]
    slots: Structured  # [switches, 256]
    flows: Structured  # [flows in use]
    nics: Structured  # [nics]


class Telemetry:
    """Live views into the block, and cursors into its two rings."""

    def __init__(self, memory: Any) -> None:
        """Maps ``memory`` (a buffer that starts with the header). Raises LabError if it is not such a block."""
        header = np.frombuffer(memory, HEADER_DTYPE, count=1)[0] if len(memory) >= HEADER_DTYPE.itemsize else None
        if header is None or header["magic"] != lib.TELEMETRY_MAGIC:
            raise LabError("the telemetry block is not one of fabricd's", remedy=START_AGAIN)
        if header["version"] != lib.TELEMETRY_VERSION:
            raise LabError(
                f"the telemetry block has layout {header['version']}, this program reads {lib.TELEMETRY_VERSION}",
                remedy=START_AGAIN,
            )
        self.header = header
        n_ports, n_switches = int(header["ports"]), int(header["switches"])

        def view(dtype: np.dtype[np.void], count: int, offset: str) -> Structured:
            return np.frombuffer(memory, dtype, count=count, offset=int(header[offset]))

        self.globals: Structured = view(GLOBAL_DTYPE, 1, "global_offset")[0:1]
        self.ports = view(PORT_DTYPE, n_ports, "port_offset")
        self.switches = view(SWITCH_DTYPE, n_switches, "switch_offset")
        self.slots = view(SLOT_DTYPE, n_switches * lib.SLOTS_PER_SWITCH, "slot_offset").reshape(n_switches, -1)
        self.nics = view(NIC_DTYPE, int(header["nics"]), "nic_offset")
        self._flows = view(FLOW_DTYPE, int(header["flows"]), "flow_offset")
        self._trace = view(TRACE_DTYPE, int(header["trace_records"]), "trace_offset")
        n_classes = int(header["classes"])
        # A row holds only the classes that frames can be in; readers get all, by their numbers.
        self._series_classes = [c for c in range(n_classes) if int(header["series_classes"]) >> c & 1]
        shape = (n_ports, len(self._series_classes))
        row = np.dtype(
            {"names": ["t_ns", "depth"], "formats": ["i8", ("u4", shape)],
             "offsets": [0, 8], "itemsize": (8 + 4 * shape[0] * shape[1] + 7) // 8 * 8}
        )  # fmt: skip
        self._series = view(row, int(header["series_rows"]), "series_offset")
        self._trace_tail = int(self.globals[0]["trace_head"])
        self._series_tail = int(self.globals[0]["series_head"])
        self.trace_lost = 0
        self.series_lost = 0

    @classmethod
    def open(cls, path: Path) -> Telemetry:
        """Maps the running fabricd's block read-only. Raises LabError if there is none."""
        try:
            with path.open("rb") as file:
                return cls(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        except (OSError, ValueError) as error:
            raise LabError(f"no telemetry at {path}: {error}", remedy="is a lab running? start one first") from error

    @property
    def flows(self) -> Structured:
        """Rows of the flows seen so far."""
        return self._flows[: int(self.globals[0]["flows_used"])]

    def snapshot(self) -> Snapshot:
        """Copies of all counters. Single counters are exact; the copy as a whole spans some microseconds."""
        return Snapshot(
            self.globals[0].copy(), self.ports.copy(), self.switches.copy(),
            self.slots.copy(), self.flows.copy(), self.nics.copy(),
        )  # fmt: skip

    def drain_trace(self) -> Structured:
        """The trace records written since the last call; what was overwritten unread is counted in ``trace_lost``."""
        records, self._trace_tail, lost = self._drain(self._trace, self._trace_tail, "trace_head")
        self.trace_lost += lost
        return records

    def drain_series(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Times [n] and queue depths in bytes [n, ports, classes] recorded since the last call."""
        rows, self._series_tail, lost = self._drain(self._series, self._series_tail, "series_head")
        self.series_lost += lost
        depth = np.zeros((len(rows), len(self.ports), int(self.header["classes"])), np.uint32)
        depth[:, :, self._series_classes] = rows["depth"]
        return rows["t_ns"], depth

    def _drain(self, ring: Structured, tail: int, head_name: str) -> tuple[Structured, int, int]:
        head = int(self.globals[0][head_name])
        begin = max(tail, head - len(ring))
        records = ring[np.arange(begin, head) % len(ring)]
        # The writer went on while we copied: what it has overtaken by now is torn.
        overtaken = max(0, int(self.globals[0][head_name]) - len(ring) - begin)
        return records[overtaken:], head, begin - tail + min(overtaken, head - begin)
