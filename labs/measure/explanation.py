"""The answer to *why*, as data: what `why.explain` returns and `sentence.in_words` puts into words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sharer:
    """A flow that a link served while the critical connection stood there."""

    flow: str
    rank: int | None
    peer: int | None
    ring: int | None
    bytes: int
    share: float  # of all bytes that the link carried in that time, the critical connection's included


@dataclass(frozen=True)
class LinkWait:
    """What happened to the critical connection's packets at one port."""

    link: str
    packets: int
    wait_mean_us: float
    wait_max_us: float
    lost_us: float  # the link served others while they stood there, but for what an ideal fabric makes them wait, too
    drops: int


@dataclass(frozen=True)
class HeldWait:
    """Time that the critical connection's packets stood at a port that its peer had stopped, for one reason."""

    link: str
    traffic_class: int
    credits: bool  # for want of credits, not by a pause
    holds: int
    held_us: float
    longest_us: float
    lost: bool  # False: the connection's own bottleneck is the root, so that this time is counted there,
    starved_us: float  # but for the part in which that link was idle
    chain: tuple[str, ...]  # of the longest: ports, each held because of the next, from `link` to the root
    kind: str  # of the root: see labs.measure.pauses
    root: str  # the host, device or port where the chain ends
    root_flows: tuple[str, ...]  # whose packets stood there
    cycle: tuple[str, ...]  # the ports of a deadlock, in the order in which they wait for each other
    fault: str | None  # the planted fault that is the reason


@dataclass(frozen=True)
class Connection:
    """One connection of the late rank's ring, in hardware us."""

    rank: int
    peer: int
    flow: str
    bytes: int
    active_us: float  # some packet of it was under way, or held back at its NIC
    sent_again: int
    drops: int
    reordered: int
    timeouts: int


@dataclass(frozen=True)
class Explanation:
    """The answer for one iteration; times in hardware us."""

    label: str  # of the run
    policy: str
    seed: int
    collective: str
    iteration: int
    cause: str
    sentence: str
    rank: int
    host: str
    ring: int
    error: str | None
    last: bool  # whether it was the last to finish
    time_us: float | None
    ideal_us: float  # of the iteration; of the rank's own bytes on an idle fabric, if another rank was asked for
    lost_us: Mapping[str, float]
    critical: Connection | None
    links: tuple[LinkWait, ...]  # where the critical connection waited, worst first
    shared_with: tuple[Sharer, ...]  # at the worst of them
    drops: Mapping[str, int]  # "leaf0->spine1 (tail)" -> packets of the critical connection
    lost_acks: Mapping[str, int]  # the same of the acknowledgements that came back to it (or to its neighbours there)
    connections: tuple[Connection, ...]
    held: tuple[HeldWait, ...] = ()  # where the critical connection was held back, longest first
    rate_gbps: float | None = None  # mean rate that congestion control gave it; None: it never cut its rate
    marks: Mapping[str, int] = field(default_factory=dict)  # port -> its packets marked there so far, most first
    faults: tuple[str, ...] = ()  # planted, in force during the iteration, with times from its common instant

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)
