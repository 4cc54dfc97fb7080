"""Workloads: what the ranks of a job send each other, in hardware units.

A workload is a frozen dataclass that a lab.py fills in; `plan(spec)` turns it into a `Job`: who the ranks are and
which of them sends to which.  The agents of labs/agents play the job, labs/runner.py conducts it.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from labs.measure import theory
from topologies.errors import LabError, nearest, unknown_name
from topologies.spec import FabricSpec

# key: (smallest, largest, unit, whole number)
LIMITS: Mapping[str, tuple[float, float, str, bool]] = {
    "size_bytes": (256, 1 << 28, "bytes", True),
    "slice_bytes": (256, 1 << 24, "bytes", True),
    "window_bytes": (1024, 1 << 28, "bytes", True),
    "qps_per_connection": (1, 16, "", True),
    "timeout_us": (1, 1e7, "us", False),
    "retry_count": (0, 7, "", True),
    "compute_us": (0, 1e6, "us", False),
    "jitter_us": (0, 1e6, "us", False),
    "seed": (0, 1 << 31, "", True),
}
ACROSS_LEAVES: Literal["across_leaves"] = "across_leaves"
MAX_RANKS_PER_RING = 256  # up to here every partial sum of the test pattern is exact in float32
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Rank:
    """One process of the job; it has a host, and with it a NIC, of its own."""

    index: int  # of the whole job
    host: str
    ring: int  # ring or group it belongs to
    position: int  # in its ring


@dataclass(frozen=True)
class Channel:
    """Data flows from rank `source` to rank `target`, over `qps_per_connection` queue pairs."""

    source: int
    target: int
    ring: int


@dataclass(frozen=True)
class Job:
    """A workload on a given fabric."""

    ranks: tuple[Rank, ...]
    channels: tuple[Channel, ...]


@dataclass(frozen=True)
class Workload:
    """What all workloads have in common.

    size_bytes: a rank's buffer (for bursts: what each sender sends).
    window_bytes: most that a queue pair has unacknowledged.
    timeout_us, retry_count: of the queue pairs; after so many retransmissions in vain the pair is in error.
    compute_us: every rank computes for so long before it sends; jitter_us: and up to so much longer, at random.
    """

    size_bytes: int
    _: dataclasses.KW_ONLY
    window_bytes: int = 256 * 1024
    qps_per_connection: int = 1
    timeout_us: float = 524.288  # 4.096 us * 2^7; NCCL's default of 2^20 is 4.3 s: half a day of slow motion
    retry_count: int = 7
    compute_us: float = 0.0
    jitter_us: float = 0.0

    collective: ClassVar[str] = ""
    agent: ClassVar[str] = ""  # "ring" or "burst": which state machine the ranks run

    def __post_init__(self) -> None:
        for key in (field.name for field in dataclasses.fields(self)):
            if key in LIMITS:
                _check_number(key, getattr(self, key))
        if self.size_bytes % FLOAT_BYTES:
            raise LabError(f"size_bytes={self.size_bytes} is not a whole number of float32", "a multiple of 4")

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Names that a lab.py or `--set` may give."""
        return tuple(field.name for field in dataclasses.fields(cls))

    def plan(self, spec: FabricSpec) -> Job:
        """The job on a fabric.  Raises LabError when the fabric has not the hosts for it."""
        raise NotImplementedError

    def communication_us(self, spec: FabricSpec) -> float:
        """One iteration's communication on an ideal fabric, headers and latency left out."""
        raise NotImplementedError

    def arguments(self, job: Job, rank: Rank) -> dict[str, Any]:
        """What a rank's state machine is made with, see labs.agents.collectives.create."""
        raise NotImplementedError

    def quick(self) -> Workload:
        """The same, but small enough for a first look."""
        return dataclasses.replace(self, size_bytes=max(256, self.size_bytes // 8 * 4))

    def describe(self, spec: FabricSpec) -> dict[str, Any]:
        """What the results record: every key, and what follows from the fabric."""
        job = self.plan(spec)
        groups = {rank.ring for rank in job.ranks}
        return {
            **{key: getattr(self, key) for key in self.keys()},
            "collective": self.collective,
            "ranks": sum(1 for rank in job.ranks if rank.ring == 0),
            "groups": len(groups),
            "ideal_us": self.communication_us(spec),
        }

    def with_overrides(self, settings: Iterable[str]) -> Workload:
        """A copy with "key=value" strings applied.  Raises LabError, see `check_key`."""
        values = {}
        for setting in settings:
            key, _, text = (part.strip() for part in setting.partition("="))
            check_key(key, self.keys(), f"{type(self).__name__}")
            values[key] = _parse(key, text)
        return dataclasses.replace(self, **values)


@dataclass(frozen=True)
class RingAllReduce(Workload):
    """Ring all-reduce of float32 (reduce-scatter, then all-gather), summed for real and checked.

    rings: "across_leaves" (ring j joins host j of every leaf), or lists of host names, one a ring.
    slice_bytes: chunks travel in slices; one is passed on as soon as it is reduced, so that the wire never idles.
    """

    rings: Literal["across_leaves"] | tuple[tuple[str, ...], ...] | list[list[str]] = ACROSS_LEAVES
    slice_bytes: int = 64 * 1024

    collective: ClassVar[str] = "all_reduce"
    agent: ClassVar[str] = "ring"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.rings, str):
            if self.rings != ACROSS_LEAVES:
                raise unknown_name("way to lay rings", self.rings, [ACROSS_LEAVES])
        else:
            object.__setattr__(self, "rings", tuple(tuple(ring) for ring in self.rings))

    def plan(self, spec: FabricSpec) -> Job:
        hosts = host_names(spec)
        if isinstance(self.rings, str):
            rings = [hosts[j :: spec.hosts_per_leaf] for j in range(spec.hosts_per_leaf)]
        else:
            rings = [list(ring) for ring in self.rings]
        _check_hosts((host for ring in rings for host in ring), hosts, "rings")
        ranks: list[Rank] = []
        channels: list[Channel] = []
        for j, ring in enumerate(rings):
            n = len(ring)
            if not 2 <= n <= MAX_RANKS_PER_RING:
                raise LabError(f"ring {j} has {n} ranks", f"a ring takes 2 to {MAX_RANKS_PER_RING}; see rings, leaves")
            if self.size_bytes < n * FLOAT_BYTES:
                raise LabError(f"size_bytes={self.size_bytes} is less than one element for each of {n} ranks",
                               f"at least {n * FLOAT_BYTES}")
            first = len(ranks)
            ranks += [Rank(first + i, host, j, i) for i, host in enumerate(ring)]
            channels += [Channel(first + i, first + (i + 1) % n, j) for i in range(n)]
        return Job(tuple(ranks), tuple(channels))

    def arguments(self, job: Job, rank: Rank) -> dict[str, Any]:
        members = sum(1 for other in job.ranks if other.ring == rank.ring)
        return {"position": rank.position, "ranks": members, "elements": self.size_bytes // FLOAT_BYTES,
                "slice_elements": max(1, self.slice_bytes // FLOAT_BYTES), "lanes": self.qps_per_connection}

    def communication_us(self, spec: FabricSpec) -> float:
        job = self.plan(spec)
        longest = max(sum(1 for rank in job.ranks if rank.ring == ring) for ring in {rank.ring for rank in job.ranks})
        return theory.ring_allreduce_us(self.size_bytes, longest, spec.link_gbps)


@dataclass(frozen=True)
class Burst(Workload):
    """Base of the bursts: a message on every channel, all of them independent."""

    agent: ClassVar[str] = "burst"

    def arguments(self, job: Job, rank: Rank) -> dict[str, Any]:
        def sources(target: int) -> list[int]:
            return [channel.source for channel in job.channels if channel.target == target]

        return {"rank": rank.index, "elements": self.size_bytes // FLOAT_BYTES, "sources": sources(rank.index),
                "places": [sources(channel.target).index(rank.index) for channel in job.channels
                           if channel.source == rank.index],
                "lanes": self.qps_per_connection}


@dataclass(frozen=True)
class Incast(Burst):
    """N:1 burst: every sender writes size_bytes to the receiver, all at the same instant.

    senders: host names, or how many (taken from the other leaves first).
    """

    senders: int | tuple[str, ...] | list[str] = 4
    receiver: str = "h0"

    collective: ClassVar[str] = "incast"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.senders, bool) or (isinstance(self.senders, int) and self.senders < 1):
            raise LabError(f"senders={self.senders!r} is not possible", "a number from 1, or host names")
        if not isinstance(self.senders, int):
            object.__setattr__(self, "senders", tuple(self.senders))

    def plan(self, spec: FabricSpec) -> Job:
        hosts = host_names(spec)
        _check_hosts([self.receiver], hosts, "receiver")
        if isinstance(self.senders, int):
            leaf = hosts.index(self.receiver) // spec.hosts_per_leaf
            others = sorted((host for host in hosts if host != self.receiver),
                            key=lambda host: hosts.index(host) // spec.hosts_per_leaf == leaf)
            if self.senders > len(others):
                raise LabError(f"senders={self.senders}, but the fabric has {len(hosts)} hosts",
                               f"at most {len(others)}, or more leaves or hosts_per_leaf")
            senders = others[: self.senders]
        else:
            senders = list(self.senders)
            _check_hosts([*senders, self.receiver], hosts, "senders")
        ranks = [Rank(i, host, 0, i) for i, host in enumerate([self.receiver, *senders])]
        return Job(tuple(ranks), tuple(Channel(i, 0, 0) for i in range(1, len(ranks))))

    def communication_us(self, spec: FabricSpec) -> float:
        """The receiver's link is the bottleneck: N S / R."""
        return len(self.plan(spec).channels) * self.size_bytes * 8 / (spec.link_gbps * 1e3)


@dataclass(frozen=True)
class Permutation(Burst):
    """Every host writes size_bytes to one other host of another leaf, and receives from one; `seed` draws who."""

    seed: int = 1

    collective: ClassVar[str] = "permutation"

    def plan(self, spec: FabricSpec) -> Job:
        hosts = host_names(spec)
        if spec.leaves < 2:
            raise LabError(f"a permutation crosses leaves, but leaves={spec.leaves}", "at least 2 leaves")
        # Shuffle within the leaves and rotate by at least one leaf: never a pair below the same leaf.
        draw = random.Random(self.seed)
        shift = draw.randrange(1, spec.leaves) * spec.hosts_per_leaf
        shuffled: list[int] = []
        for leaf in range(spec.leaves):
            members = list(range(leaf * spec.hosts_per_leaf, (leaf + 1) * spec.hosts_per_leaf))
            draw.shuffle(members)
            shuffled += members
        ranks = tuple(Rank(i, host, 0, i) for i, host in enumerate(hosts))
        return Job(ranks, tuple(Channel(i, shuffled[(i + shift) % len(hosts)], 0) for i in range(len(hosts))))

    def communication_us(self, spec: FabricSpec) -> float:
        """Every link carries one flow: S / R."""
        return self.size_bytes * 8 / (spec.link_gbps * 1e3)


def host_names(spec: FabricSpec) -> list[str]:
    """The hosts of a fabric, leaf by leaf."""
    return [f"h{index}" for index in range(spec.hosts)]


def check_key(key: str, known: Iterable[str], what: str) -> None:
    """Raises LabError, with the nearest valid name, unless `key` is one of `known`."""
    names = list(known)
    if key not in names:
        guess = nearest(key, names)
        raise LabError(f"unknown key {key!r} of {what}",
                       f"did you mean {guess}?" if guess else f"one of: {', '.join(names)}")


def _check_hosts(chosen: Iterable[str], hosts: list[str], key: str) -> None:
    seen: set[str] = set()
    for host in chosen:
        if host not in hosts:
            guess = nearest(str(host), hosts)
            raise LabError(f"{key}: there is no host {host!r}",
                           f"hosts are {hosts[0]} to {hosts[-1]}" + (f"; did you mean {guess}?" if guess else ""))
        if host in seen:
            raise LabError(f"{key}: host {host} appears twice", "one NIC, one rank: name every host once")
        seen.add(host)


def _permitted(key: str) -> str:
    low, high, unit, _whole = LIMITS[key]
    return f"{key} takes {low:,g} to {high:,.0f}" + (f" {unit}" if unit else "")


def _check_number(key: str, value: object) -> None:
    low, high, _unit, whole = LIMITS[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise LabError(f"{key}={value!r} is not a number", _permitted(key))
    if whole and not isinstance(value, int):
        raise LabError(f"{key}={value!r} is not a whole number", _permitted(key))
    if not low <= value <= high:
        raise LabError(f"{key}={value:g} is out of range", _permitted(key))


def _parse(key: str, text: str) -> Any:
    """The value of `--set key=text`."""
    if key not in LIMITS:
        if key == "senders" and text.isdecimal():
            return int(text)
        if key == "senders":
            return tuple(text.split(","))
        if key == "rings" and "," in text:
            return tuple(tuple(ring.split(",")) for ring in text.split(";"))
        return text
    try:
        return int(text) if LIMITS[key][3] else float(text)
    except ValueError:
        unit = LIMITS[key][2]
        remedy = f"the unit is in the name of the key ({unit}): write only the number; " if unit else ""
        raise LabError(f"{key}={text}: {text!r} is not a {'whole ' if LIMITS[key][3] else ''}number",
                       remedy + _permitted(key)) from None
