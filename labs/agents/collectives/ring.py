"""Ring all-reduce of float32: n-1 steps of reduce-scatter, n-1 of all-gather.

The buffer is cut into n chunks.  In step k rank r sends chunk (r-k) mod n to rank r+1 and receives chunk (r-k-1) mod n
from rank r-1; in the first n-1 steps it adds what comes to its own, afterwards it keeps it.  Chunks travel in slices,
and slice s of step k+1 goes as soon as slice s of step k is there: with a few slices a chunk, the wire never idles.

Where messages land, and why nothing is overwritten too early.  Reduce-scatter writes go to a staging area with one
place for every (step, slice); all-gather writes go straight to the chunk's place in the result.
- No staging place is used twice in an iteration, and between iterations there is a barrier.
- Chunk c of rank r is overwritten by an all-gather write only.  That write carries the sum, the sum contains r's
  own partial sum of chunk c, so r's last write from that place has arrived; should it be sent again because its
  acknowledgement was lost, the receiver's NIC takes it for the duplicate that it is.
So the ring is its own flow control, and no credits have to be sent.

The input is a pattern of small integers for which every partial sum is exact in float32 in any order, and that differs
by rank, iteration and place: a slice that is lost, doubled, stale or misplaced makes the result wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from labs.agents.collectives import Write

Floats = npt.NDArray[np.float32]
PATTERN_PERIOD = 251  # a prime: no slice looks like its neighbour
EXACT_RANKS = 256  # 250 * n(n+1)/2 + n * 1000 stays below 2^24
_ITERATION_PERIOD = 1000
_ITEM = 4


class Ring:
    """Rank `position` of `ranks`; `elements` float32 in all, slices of at most about `slice_elements`.

    lanes: queue pairs a channel; slice s travels on lane s mod lanes.
    """

    def __init__(self, position: int, ranks: int, elements: int, slice_elements: int, lanes: int = 1) -> None:
        if not 2 <= ranks <= EXACT_RANKS or not 0 <= position < ranks:
            raise ValueError(f"rank {position} of {ranks}")
        if elements < ranks or slice_elements < 1 or lanes < 1:
            raise ValueError(f"{elements} elements in slices of {slice_elements} on {lanes} lanes")
        self.position, self.ranks, self.elements, self.lanes = position, ranks, elements, lanes
        self._chunk_begin = [chunk * elements // ranks for chunk in range(ranks + 1)]
        self._longest = -(-elements // ranks)
        self.slices = min(-(-self._longest // slice_elements), elements // ranks)
        self.steps = 2 * (ranks - 1)
        self.memory_bytes = (elements + (ranks - 1) * self._longest) * _ITEM
        self.data: Floats = np.empty(0, np.float32)
        self._staging: Floats = np.empty(0, np.float32)
        self._seen: set[int] = set()
        self._iteration = 0

    def attach(self, memory: npt.NDArray[np.uint8]) -> None:
        """Takes `memory_bytes` bytes: the buffer, and behind it the staging area."""
        floats = memory[: self.memory_bytes].view(np.float32)
        self.data, self._staging = floats[: self.elements], floats[self.elements :]

    @property
    def arrivals(self) -> list[list[int]]:
        return [[self.steps * len(range(lane, self.slices, self.lanes)) for lane in range(self.lanes)]]

    @property
    def departures(self) -> list[list[int]]:
        return self.arrivals

    def prepare(self, iteration: int) -> None:
        self._iteration = iteration % _ITERATION_PERIOD
        self._seen.clear()
        np.multiply(_pattern(self.elements), self.position + 1, out=self.data)
        self.data += self.position + self._iteration

    def begin(self) -> Iterator[Write]:
        for index in range(self.slices):
            yield self._write(0, index)

    def arrived(self, channel: int, immediate: int) -> Iterator[Write]:
        step, index = divmod(immediate, self.slices)
        if channel != 0 or step >= self.steps or immediate in self._seen:
            raise ValueError(f"message {immediate} on channel {channel}: step {step}, slice {index} was not due")
        self._seen.add(immediate)
        if step < self.ranks - 1:
            begin, end = self._span(self.position - step - 1, index)
            place = self._staging_place(step, begin, self.position - step - 1)
            self.data[begin:end] += self._staging[place : place + end - begin]
        if step + 1 < self.steps:
            yield self._write(step + 1, index)

    def replied(self, channel: int, immediate: int) -> Iterator[Write]:
        raise ValueError(f"reply {immediate} on channel {channel}: nobody replies in a ring")

    def lengths(self, channel: int) -> list[int]:
        return [self._write(step, index).length for step in range(self.steps) for index in range(self.slices)]

    @property
    def received_all(self) -> bool:
        return len(self._seen) == self.steps * self.slices

    def wrong(self) -> int:
        return int(np.count_nonzero(self.data != self.expected()))

    def expected(self) -> Floats:
        """The true sum over all ranks."""
        n = self.ranks
        total = _pattern(self.elements)
        total *= n * (n + 1) // 2
        total += n * (n - 1) // 2 + n * self._iteration
        return total

    def _span(self, chunk: int, index: int) -> tuple[int, int]:
        """First element and the one behind the last of a slice."""
        begin = self._chunk_begin[chunk % self.ranks]
        length = self._chunk_begin[chunk % self.ranks + 1] - begin
        return begin + index * length // self.slices, begin + (index + 1) * length // self.slices

    def _staging_place(self, step: int, begin: int, chunk: int) -> int:
        return step * self._longest + begin - self._chunk_begin[chunk % self.ranks]

    def _write(self, step: int, index: int) -> Write:
        chunk = self.position - step
        begin, end = self._span(chunk, index)
        target = self.elements + self._staging_place(step, begin, chunk) if step < self.ranks - 1 else begin
        return Write(0, index % self.lanes, begin * _ITEM, target * _ITEM, (end - begin) * _ITEM,
                     step * self.slices + index)


def _pattern(elements: int) -> Floats:
    period = np.arange(PATTERN_PERIOD, dtype=np.float32)
    return np.resize(period, elements)
