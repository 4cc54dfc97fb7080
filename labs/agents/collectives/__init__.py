"""State machines of collectives: which write may go when, and whether the result is right.

They know memory and messages but no verbs, no sockets and no clock, so that tests can play all ranks in one process and
deliver messages in any order.  labs/agents/rank.py carries their writes to the NIC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Write(NamedTuple):
    """One RDMA WRITE with immediate; offsets are bytes into the memory of the sender and of the receiver."""

    channel: int  # position in the rank's outgoing channels; of a reply: in its incoming ones
    lane: int  # queue pair of the channel
    local_offset: int
    remote_offset: int
    length: int
    immediate: int
    reply: bool = False  # goes back over the queue pair of an incoming channel


class Collective(Protocol):
    """One rank's part.

    memory_bytes: what it needs registered; `attach` hands it over, as bytes.
    arrivals, departures: messages with data that come in and go out in one iteration, for each channel and lane.
    """

    memory_bytes: int

    @property
    def arrivals(self) -> list[list[int]]:
        """[incoming channel][lane]"""

    @property
    def departures(self) -> list[list[int]]:
        """[outgoing channel][lane]"""

    def attach(self, memory: npt.NDArray[np.uint8]) -> None:
        """Takes the registered memory."""

    def prepare(self, iteration: int) -> None:
        """Fills in the iteration's input and forgets the last one.  Called before the barrier."""

    def begin(self) -> Iterable[Write]:
        """The writes that wait for nobody."""

    def arrived(self, channel: int, immediate: int) -> Iterable[Write]:
        """A message is in memory; the writes that it makes possible.  Raises ValueError for one that cannot be."""

    def replied(self, channel: int, immediate: int) -> Iterable[Write]:
        """A reply has come back on an outgoing channel; the same."""

    def lengths(self, channel: int) -> list[int]:
        """Bytes of every write that goes out on a channel in one iteration."""

    @property
    def received_all(self) -> bool:
        """Whether the iteration's result is complete."""

    def wrong(self) -> int:
        """Elements of the result that differ from the true one."""


def create(agent: str, arguments: Mapping[str, Any]) -> Collective:
    """The state machine called `agent` ("ring" or "burst"), imported only when needed."""
    if agent == "ring":
        from labs.agents.collectives.ring import Ring

        return Ring(**arguments)
    if agent == "burst":
        from labs.agents.collectives.burst import Burst

        return Burst(**arguments)
    raise ValueError(f"unknown collective {agent!r}")
