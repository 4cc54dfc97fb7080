"""Spans from records of beginnings and ends, whatever is missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from labs.measure.spans import spans, total_ns
from topologies.fabricd.telemetry import TRACE_DTYPE, TraceKind


def records(*rows: tuple[int, int, int, int, int]) -> Any:
    """(t_ns, begins, port, class, lasted_ns)"""
    trace = np.zeros(len(rows), TRACE_DTYPE)
    for name, column in zip(("t_ns", "psn", "port", "reason", "wait_ns"), zip(*rows, strict=True), strict=True):
        trace[name] = column
    trace["kind"] = TraceKind.PAUSED
    trace["bytes"] = np.arange(len(rows))
    return trace


def brief(rows: Any) -> list[tuple[int, ...]]:
    names = ["port", "traffic_class", "begin_ns", "end_ns", "ended"]
    return [tuple(int(value) for value in row) for row in rows[names]]


def test_beginnings_and_ends_find_each_other_by_port_and_class() -> None:
    trace = records((10, 1, 4, 3, 0), (12, 1, 4, 5, 0), (15, 1, 7, 3, 0), (20, 0, 4, 3, 10), (30, 0, 7, 3, 15),
                    (31, 1, 4, 3, 0), (40, 0, 4, 3, 9), (44, 0, 4, 5, 32))
    rows = spans(trace, TraceKind.PAUSED, 100)
    assert brief(rows) == [(4, 3, 10, 20, 1), (4, 5, 12, 44, 1), (7, 3, 15, 30, 1), (4, 3, 31, 40, 1)]
    assert rows["bytes"].tolist() == [0, 1, 2, 5]  # of the beginning
    assert total_ns(rows, 0, 100) == 10 + 32 + 15 + 9
    assert total_ns(rows, 18, 32) == 2 + 14 + 12 + 1


def test_what_does_not_end_lasts_to_the_end() -> None:
    assert brief(spans(records((10, 1, 4, 3, 0)), TraceKind.PAUSED, 100)) == [(4, 3, 10, 100, 0)]


def test_what_had_begun_before_the_recording_begins_where_its_end_says() -> None:
    rows = spans(records((10, 0, 4, 3, 25), (20, 1, 4, 3, 0)), TraceKind.PAUSED, 50)
    assert brief(rows) == [(4, 3, -15, 10, 1), (4, 3, 20, 50, 0)]


def test_an_end_and_a_beginning_in_the_same_moment_keep_their_order() -> None:
    trace = records((10, 1, 4, 3, 0), (20, 0, 4, 3, 10), (20, 1, 4, 3, 0), (25, 0, 4, 3, 5))
    assert brief(spans(trace, TraceKind.PAUSED, 50)) == [(4, 3, 10, 20, 1), (4, 3, 20, 25, 1)]


def test_other_kinds_and_nothing_at_all() -> None:
    assert len(spans(records((10, 1, 4, 3, 0)), TraceKind.CREDIT_STALL, 50)) == 0
    assert len(spans(np.zeros(0, TRACE_DTYPE), TraceKind.PAUSE, 50)) == 0
