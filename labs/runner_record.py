"""What is recorded while a run plays: the trace and the queue series, drained in time, and how busy the machine was."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.fabricd.telemetry import TRACE_DTYPE, Telemetry

_DRAIN_S = 0.1
_PROC_STAT = Path("/proc/stat")


class Recorder:
    """A thread that empties fabricd's two rings before they wrap around, and keeps what came since `begin`.

    Nobody else may drain them.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._trace: list[npt.NDArray[Any]] = []
        self._times: list[npt.NDArray[np.int64]] = []
        self._depths: list[npt.NDArray[np.uint32]] = []
        self._lost_before = 0
        self._keep = False
        self._thread = threading.Thread(target=self._drain_on_time, name="recorder", daemon=True)
        self._thread.start()

    def _drain_on_time(self) -> None:
        while not self._stop.wait(_DRAIN_S):
            self._drain()

    def _drain(self) -> None:
        with self._lock:
            trace = self._telemetry.drain_trace()
            times, depths = self._telemetry.drain_series()
            if self._keep and len(trace):
                self._trace.append(trace)
            if self._keep and len(times):
                self._times.append(times)
                self._depths.append(depths)

    def begin(self) -> None:
        """A run begins: what was recorded so far is of no interest."""
        self._drain()
        with self._lock:
            self._keep = True
            self._lost_before = self._telemetry.trace_lost + self._telemetry.series_lost

    def take(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.uint32], int]:
        """Trace, series (times, depths) and number of lost records since `begin`; recording ends."""
        self._drain()
        with self._lock:
            self._keep = False
            header = self._telemetry.header
            ports, classes = int(header["ports"]), int(header["classes"])
            trace = _joined(self._trace, np.empty(0, TRACE_DTYPE))
            times = _joined(self._times, np.empty(0, np.int64))
            depths = _joined(self._depths, np.empty((0, ports, classes), np.uint32))
            lost = self._telemetry.trace_lost + self._telemetry.series_lost - self._lost_before
        return trace, times, depths, lost

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()


def _joined(parts: list[npt.NDArray[Any]], nothing: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """All parts in one array; they are let go on the way, for a trace may have millions of records."""
    whole = np.empty((sum(map(len, parts)), *nothing.shape[1:]), nothing.dtype)
    end = len(whole)
    while parts:
        part = parts.pop()
        whole[end - len(part) : end] = part
        end -= len(part)
    return whole


class CpuMeter:
    """Shares of CPU time since `start`, of all processors together."""

    def __init__(self) -> None:
        self._begin = _cpu_ticks()

    def start(self) -> None:
        """The interval begins now."""
        self._begin = _cpu_ticks()

    def shares(self) -> dict[str, float]:
        """`idle_share` and `steal_share`, 0..1; niced work counts as idle, for it gives way to the lab."""
        spent = _cpu_ticks() - self._begin
        total = float(spent.sum()) or 1.0
        idle = float(spent[1] + spent[3] + spent[4])
        return {"idle_share": idle / total, "steal_share": float(spent[7]) / total}


def _cpu_ticks() -> npt.NDArray[np.int64]:
    """user, nice, system, idle, iowait, irq, softirq, steal (proc(5)); guest time is part of user."""
    return np.array(_PROC_STAT.read_text().splitlines()[0].split()[1:9], dtype=np.int64)
