"""Interval sets against sets of integers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labs.measure.intervals import Intervals

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)
START = 1_000_000_000_000_000_000  # a monotonic clock's magnitude: beyond what a float holds exactly


def points(intervals: list[tuple[int, int]]) -> set[int]:
    return {x for a, b in intervals for x in range(a, b)}


def make(intervals: list[tuple[int, int]]) -> Intervals:
    array = np.array(intervals, dtype=np.int64).reshape(-1, 2) + START
    return Intervals.union(array[:, 0], array[:, 1])


@given(pairs)
def test_the_union_holds_every_point_once(intervals: list[tuple[int, int]]) -> None:
    union = make(intervals)
    assert union.total_ns == len(points(intervals))
    assert (union.start[1:] > union.end[:-1]).all()


@given(pairs, pairs)
def test_what_is_inside_and_what_is_left(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    assert make(one).minus(make(other)) == len(points(one) - points(other))
    begin, end = 10 + START, 40 + START
    assert make(one).inside([begin], [end])[0] == len(points(one) & set(range(10, 40)))


@given(pairs, pairs)
def test_sets_are_cut_joined_and_taken_away(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    def same(found: Intervals, expected: set[int]) -> None:
        got = {x - START for a, b in zip(found.start.tolist(), found.end.tolist(), strict=True) for x in range(a, b)}
        assert got == expected
        assert (found.start[1:] > found.end[:-1]).all()

    same(make(one).joined(make(other)), points(one) | points(other))
    same(make(one).without(make(other)), points(one) - points(other))
    same(make(one).clipped(10 + START, 40 + START), points(one) & set(range(10, 40)))
