"""Sets of time intervals as two sorted arrays: union, length, and how much of something falls inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Intervals:
    """Disjoint intervals [start, end), ascending; ns."""

    start: Int64
    end: Int64

    @classmethod
    def union(cls, start: npt.ArrayLike, end: npt.ArrayLike) -> Intervals:
        """The union of any intervals; empty and inverted ones are left out."""
        first, last = np.asarray(start, dtype=np.int64), np.asarray(end, dtype=np.int64)
        keep = last > first
        first, last = first[keep], last[keep]
        if not len(first):
            return cls(first, last)
        order = np.argsort(first, kind="stable")
        first, last = first[order], np.maximum.accumulate(last[order])
        begins = np.concatenate(([True], first[1:] > last[:-1]))
        return cls(first[begins], last[np.concatenate((begins[1:], [True]))])

    @property
    def total_ns(self) -> int:
        return int((self.end - self.start).sum())

    def below(self, t_ns: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Length of the set before each time."""
        times = np.asarray(t_ns, dtype=np.int64)
        if not len(self.start):
            return np.zeros(len(times))
        origin = int(self.start[0])  # subtracted before anything becomes a float: a clock may exceed its 53 bits
        edges = np.column_stack((self.start, self.end)).ravel() - origin
        lengths = self.end - self.start
        covered = np.column_stack((np.cumsum(lengths) - lengths, np.cumsum(lengths))).ravel()
        covered_at: npt.NDArray[np.float64] = np.interp(times - origin, edges, covered)
        return covered_at

    def inside(self, start: npt.ArrayLike, end: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """How many ns of each interval [start, end) lie in the set."""
        return self.below(end) - self.below(start)

    def clipped(self, begin_ns: int, end_ns: int) -> Intervals:
        """The part within [begin_ns, end_ns)."""
        return Intervals.union(np.maximum(self.start, begin_ns), np.minimum(self.end, end_ns))

    def joined(self, other: Intervals) -> Intervals:
        """What is in this set or in the other."""
        return Intervals.union(np.concatenate((self.start, other.start)), np.concatenate((self.end, other.end)))

    def without(self, other: Intervals) -> Intervals:
        """What is in this set and not in the other."""
        edges = np.unique(np.concatenate((self.start, self.end, other.start, other.end)))
        first, last = edges[:-1], edges[1:]
        keep = (self.inside(first, last) > 0) & (other.inside(first, last) == 0)
        return Intervals.union(first[keep], last[keep])

    def minus(self, other: Intervals) -> float:
        """ns of this set that are not in the other."""
        return self.total_ns - float(other.inside(self.start, self.end).sum())
