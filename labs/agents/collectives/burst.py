"""Bursts: messages from some ranks to others, all independent (incast N:1, permutation, any pattern of transfers).

Memory is a word for asking and granting, a place for every incoming message, and behind them what this rank sends.  A
receiver knows from the channel's number what must stand in a place.

With admission (as in receiver-driven transports: ExpressPass, Homa, NDP) nobody sends unasked.  A sender writes a word,
ASK, and waits.  The receiver answers with grants, a word each, for one piece of the message at a time: to all senders
in turn, and never for more than `admission_bytes` that are granted and not there yet, all of them together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from labs.agents.collectives import Write

Floats = npt.NDArray[np.float32]
PATTERN_PERIOD = 251
ASK = 0xFFFF_FFFF  # immediate of a request; of all else it is the number of a piece
PIECES = 4  # so many pieces are on their way when all that may be granted is
_ITEM = 4
_WORD = 1  # elements in front of the places


class Incoming(NamedTuple):
    """A channel that this rank receives from."""

    number: int  # of the whole job
    elements: int  # float32 of its message


class Outgoing(NamedTuple):
    """A channel that this rank sends on."""

    number: int
    elements: int
    before: int  # elements of the places in front of this message's at the receiver


class Burst:
    """One rank.  lanes: queue pairs a channel, among which the message is divided.

    admission_bytes: 0: everything is sent at once.
    """

    def __init__(self, incoming: Sequence[Sequence[int]], outgoing: Sequence[Sequence[int]], lanes: int = 1,
                 admission_bytes: int = 0) -> None:
        self.incoming = [Incoming(*values) for values in incoming]
        self.outgoing = [Outgoing(*values) for values in outgoing]
        self.lanes, self.admission_bytes = lanes, admission_bytes
        elements = [channel.elements for channel in self.incoming] + [channel.elements for channel in self.outgoing]
        if min(elements, default=lanes) < lanes:
            raise ValueError(f"{min(elements)} elements on {lanes} lanes")
        ends = np.cumsum([_WORD, *elements]).tolist()
        self._places, self._own = ends[: len(self.incoming)], ends[len(self.incoming) : -1]
        self.memory_bytes = ends[-1] * _ITEM
        self._memory: Floats = np.empty(0, np.float32)
        self._seen: set[tuple[int, int]] = set()
        self._asking: deque[tuple[int, int]] = deque()  # incoming channels in turn, with the next piece to be granted
        self._free_bytes = admission_bytes
        self._iteration = 0

    def attach(self, memory: npt.NDArray[np.uint8]) -> None:
        """Takes `memory_bytes` bytes."""
        self._memory = memory[: self.memory_bytes].view(np.float32)

    @property
    def arrivals(self) -> list[list[int]]:
        return [self._messages(channel.elements) for channel in self.incoming]

    @property
    def departures(self) -> list[list[int]]:
        return [self._messages(channel.elements) for channel in self.outgoing]

    def prepare(self, iteration: int) -> None:
        self._iteration = iteration
        self._seen.clear()
        self._asking.clear()
        self._free_bytes = self.admission_bytes
        for channel, begin in zip(self.outgoing, self._own, strict=True):
            self._memory[begin : begin + channel.elements] = self._expected(channel)

    def begin(self) -> Iterator[Write]:
        for index, channel in enumerate(self.outgoing):
            if self.admission_bytes:
                yield Write(index, 0, 0, 0, _ITEM, ASK)
            else:
                for piece in range(self._pieces(channel.elements)):
                    yield self._data(index, piece)

    def arrived(self, channel: int, immediate: int) -> Iterator[Write]:
        known = 0 <= channel < len(self.incoming)
        if known and self.admission_bytes and immediate == ASK:
            self._asking.append((channel, 0))
        elif known and immediate < self._pieces(self.incoming[channel].elements) and (
                channel, immediate) not in self._seen:
            self._seen.add((channel, immediate))
            self._free_bytes += self._length(self.incoming[channel].elements, immediate)
        else:
            raise ValueError(f"message {immediate} on channel {channel} was not due")
        return self._grants()

    def replied(self, channel: int, immediate: int) -> Iterator[Write]:
        """A grant for a piece."""
        if not (self.admission_bytes and 0 <= channel < len(self.outgoing)
                and immediate < self._pieces(self.outgoing[channel].elements)):
            raise ValueError(f"grant {immediate} on channel {channel} was not due")
        yield self._data(channel, immediate)

    def lengths(self, channel: int) -> list[int]:
        elements = self.outgoing[channel].elements
        asking = [_ITEM] if self.admission_bytes else []
        return asking + [self._length(elements, piece) for piece in range(self._pieces(elements))]

    @property
    def received_all(self) -> bool:
        return len(self._seen) == sum(self._pieces(channel.elements) for channel in self.incoming)

    def wrong(self) -> int:
        return sum(int(np.count_nonzero(self._memory[begin : begin + channel.elements] != self._expected(channel)))
                   for channel, begin in zip(self.incoming, self._places, strict=True))

    def _grants(self) -> Iterator[Write]:
        """To whoever's turn it is, as long as what he gets does not exceed what is free; nobody overtakes him."""
        while self._asking and self.admission_bytes:
            channel, piece = self._asking[0]
            elements = self.incoming[channel].elements
            length = self._length(elements, piece)
            if length > self._free_bytes:
                return
            self._free_bytes -= length
            self._asking.popleft()
            if piece + 1 < self._pieces(elements):
                self._asking.append((channel, piece + 1))
            yield Write(channel, 0, 0, 0, _ITEM, piece, reply=True)

    def _data(self, channel: int, piece: int) -> Write:
        _, elements, before = self.outgoing[channel]
        begin, end = self._span(elements, piece)
        return Write(channel, piece % self.lanes, (self._own[channel] + begin) * _ITEM,
                     (_WORD + before + begin) * _ITEM, (end - begin) * _ITEM, piece)

    def _pieces(self, elements: int) -> int:
        """A lane each; with admission so many that each is a quarter of it at most."""
        if not self.admission_bytes:
            return self.lanes
        return max(self.lanes, -(-elements * _ITEM * PIECES // self.admission_bytes))

    def _span(self, elements: int, piece: int) -> tuple[int, int]:
        pieces = self._pieces(elements)
        return piece * elements // pieces, (piece + 1) * elements // pieces

    def _length(self, elements: int, piece: int) -> int:
        begin, end = self._span(elements, piece)
        return (end - begin) * _ITEM

    def _messages(self, elements: int) -> list[int]:
        return [len(range(lane, self._pieces(elements), self.lanes)) for lane in range(self.lanes)]

    def _expected(self, channel: Incoming | Outgoing) -> Floats:
        pattern = np.resize(np.arange(PATTERN_PERIOD, dtype=np.float32), channel.elements)
        pattern += 256 * channel.number + self._iteration % 256  # below 2^24 for 65,000 channels
        return pattern
