"""Spans of time from pairs of trace records that say when something began (psn 1) and when it ended (psn 0).

That is how the data path records pauses, credit stalls and watchdog actions (topologies/fabricd/core/telemetry.h).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.fabricd.telemetry import TraceKind

SPAN_DTYPE = np.dtype([
    ("port", "u2"), ("traffic_class", "u1"),
    ("begin_ns", "i8"), ("end_ns", "i8"), ("ended", "?"),  # not ended: it went on when the recording ended
    ("bytes", "u4"), ("arg", "u4"),  # of the record of its beginning, or of its end where that is the only one
])
NOWHERE = 0xFFFFFFFF  # `arg` of a pause whose bytes stand in no queue


def spans(trace: npt.NDArray[Any], kind: TraceKind, end_ns: int) -> npt.NDArray[Any]:
    """SPAN_DTYPE rows in order of their beginning, of PAUSE, PAUSED, CREDIT_STALL or WATCHDOG records.

    trace: TRACE_DTYPE in the order of recording or of time; end_ns: where spans that did not end are cut.  One that had
    begun before the recording begins where its end says so.
    """
    records = trace[trace["kind"] == kind]
    records = records[np.lexsort((records["t_ns"], records["reason"], records["port"]))]
    begins = records["psn"] == 1
    same = np.zeros(len(records), dtype=bool)  # as the record before: port and class
    same[1:] = (records["port"][1:] == records["port"][:-1]) & (records["reason"][1:] == records["reason"][:-1])
    paired = np.zeros(len(records), dtype=bool)  # an end whose beginning is the record before
    paired[1:] = same[1:] & ~begins[1:] & begins[:-1]
    rows = np.zeros(len(records), dtype=SPAN_DTYPE)
    for name, source in (("port", "port"), ("traffic_class", "reason"), ("bytes", "bytes"), ("arg", "arg")):
        rows[name] = records[source]
    rows["begin_ns"] = np.where(begins, records["t_ns"], records["t_ns"] - records["wait_ns"])
    rows["end_ns"] = np.where(begins, max(end_ns, int(records["t_ns"].max(initial=end_ns))), records["t_ns"])
    rows["ended"] = ~begins
    ends = np.flatnonzero(paired)
    rows["end_ns"][ends - 1], rows["ended"][ends - 1] = records["t_ns"][ends], True
    rows = rows[~paired]
    return rows[np.argsort(rows["begin_ns"], kind="stable")]


def total_ns(rows: npt.NDArray[Any], begin_ns: int, end_ns: int) -> int:
    """Sum of the parts of all spans between two moments; spans of several ports or classes count each."""
    return int(np.maximum(0, np.minimum(rows["end_ns"], end_ns) - np.maximum(rows["begin_ns"], begin_ns)).sum())
