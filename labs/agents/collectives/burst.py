"""Bursts: some ranks write their whole buffer to another one, all at once (incast N:1, permutation).

A receiver has a place for every incoming channel, and knows from the sender's number what must stand there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from labs.agents.collectives import Write

Floats = npt.NDArray[np.float32]
PATTERN_PERIOD = 251
_ITEM = 4


class Burst:
    """One rank: `rank` sends to the rank at the end of each outgoing channel, and receives from `sources`.

    elements: float32 of one message.  places: for each outgoing channel, the place of this sender at the receiver (its
    position among the receiver's sources).  lanes: queue pairs a channel; the message is cut into one part each.
    """

    def __init__(self, rank: int, elements: int, sources: list[int], places: list[int], lanes: int = 1) -> None:
        if elements < lanes:
            raise ValueError(f"{elements} elements on {lanes} lanes")
        self.rank, self.elements, self.sources, self.places, self.lanes = rank, elements, sources, places, lanes
        self._own = 1 if places else 0
        self.memory_bytes = (self._own + len(sources)) * elements * _ITEM
        self._memory: Floats = np.empty((0, elements), np.float32)
        self._seen: set[tuple[int, int]] = set()
        self._iteration = 0

    def attach(self, memory: npt.NDArray[np.uint8]) -> None:
        """Takes `memory_bytes` bytes: a place for each source, and behind them what this rank sends."""
        self._memory = memory[: self.memory_bytes].view(np.float32).reshape(-1, self.elements)

    @property
    def arrivals(self) -> list[list[int]]:
        return [[1] * self.lanes for _ in self.sources]

    @property
    def departures(self) -> list[list[int]]:
        return [[1] * self.lanes for _ in self.places]

    def prepare(self, iteration: int) -> None:
        self._iteration = iteration
        self._seen.clear()
        if self._own:
            self._memory[len(self.sources)] = self._expected(self.rank)

    def begin(self) -> Iterator[Write]:
        own = len(self.sources) * self.elements
        for channel, place in enumerate(self.places):
            for lane in range(self.lanes):
                begin, end = self._part(lane)
                yield Write(channel, lane, (own + begin) * _ITEM, (place * self.elements + begin) * _ITEM,
                            (end - begin) * _ITEM, lane)

    def arrived(self, channel: int, immediate: int) -> Iterator[Write]:
        if not 0 <= channel < len(self.sources) or immediate >= self.lanes or (channel, immediate) in self._seen:
            raise ValueError(f"message {immediate} on channel {channel} was not due")
        self._seen.add((channel, immediate))
        return iter(())

    @property
    def received_all(self) -> bool:
        return len(self._seen) == len(self.sources) * self.lanes

    def wrong(self) -> int:
        return sum(int(np.count_nonzero(self._memory[place] != self._expected(source)))
                   for place, source in enumerate(self.sources))

    def _part(self, lane: int) -> tuple[int, int]:
        return lane * self.elements // self.lanes, (lane + 1) * self.elements // self.lanes

    def _expected(self, rank: int) -> Floats:
        pattern = np.resize(np.arange(PATTERN_PERIOD, dtype=np.float32), self.elements)
        pattern += 256 * rank + self._iteration % 256  # below 2^24 for 65,000 ranks
        return pattern
