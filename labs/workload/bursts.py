"""Bursts: messages that depend on nothing but the common instant."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from labs.agents.collectives.burst import Incoming, Outgoing
from labs.workload.base import Channel, Job, Rank, Workload, check_host, check_hosts, half_size, host_names
from labs.workload.keys import FLOAT_BYTES, check_number, check_size
from topologies.errors import LabError
from topologies.spec import FabricSpec
from topologies.units import BYTES_PER_KB


@dataclass(frozen=True)
class Burst(Workload):
    """Base of the bursts: a message on every channel, all of them independent.

    admission_kb: receiver-driven admission: senders ask first, and a receiver grants so much to all of them together,
        in turn; more is never on its way to it.  None: everybody sends at once.  The receiver's process answers, which
        takes about a millisecond of lab time: what the link carries meanwhile has to be admitted, or it idles.
    """

    admission_kb: float | None = None

    agent: ClassVar[str] = "burst"

    def arguments(self, job: Job, rank: Rank) -> dict[str, Any]:
        def elements(number: int) -> int:
            return job.channels[number].size_bytes // FLOAT_BYTES

        def before(number: int) -> int:
            """Elements of the channels that the target knows before this one."""
            incoming = job.incoming(job.channels[number].target)
            return sum(elements(other) for other in incoming[: incoming.index(number)])

        return {"incoming": [Incoming(c, elements(c)) for c in job.incoming(rank.index)],
                "outgoing": [Outgoing(c, elements(c), before(c)) for c in job.outgoing(rank.index)],
                "lanes": self.qps_per_connection, "admission_bytes": round((self.admission_kb or 0) * BYTES_PER_KB)}

    def communication_us(self, spec: FabricSpec) -> float:
        """Bytes of the busiest NIC, in or out, over its rate; of what starts later, only that counts."""
        job = self.plan(spec)
        times_us = [0.0]
        for rank in job.ranks:
            for numbers in (job.outgoing(rank.index), job.incoming(rank.index)):
                flows = [job.channels[number] for number in numbers]
                times_us += [start_us + sum(f.size_bytes for f in flows if f.start_us >= start_us) * 8
                             / (spec.link_gbps * 1e3) for start_us in {flow.start_us for flow in flows}]
        return max(times_us)


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
        check_hosts([self.receiver], hosts, "receiver")
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
            check_hosts([*senders, self.receiver], hosts, "senders")
        ranks = [Rank(i, host, 0, i) for i, host in enumerate([self.receiver, *senders])]
        return Job(tuple(ranks), tuple(Channel(i, 0, 0, self.size_bytes) for i in range(1, len(ranks))))

    def parse(self, key: str, text: str) -> Any:
        if key == "senders":
            return int(text) if text.isdecimal() else tuple(text.split(","))
        return super().parse(key, text)


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
        return Job(ranks, tuple(Channel(i, shuffled[(i + shift) % len(hosts)], 0, self.size_bytes)
                                for i in range(len(hosts))))


@dataclass(frozen=True)
class Flow:
    """One message of `Transfers`, with a queue pair of its own.

    size_bytes: None: the workload's.  dscp: of its packets, which the fabric's dscp_classes turn into a traffic class
    (None: the NIC's own, 26).  start_us: so long after the common instant.
    """

    source: str
    target: str
    _: dataclasses.KW_ONLY
    size_bytes: int | None = None
    dscp: int | None = None
    start_us: float = 0.0

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise LabError(f"a flow from {self.source} to itself", "it needs two hosts")
        if self.size_bytes is not None:
            check_size("size_bytes", self.size_bytes)
        if self.dscp is not None:
            check_number("dscp", self.dscp)
        check_number("start_us", self.start_us)


@dataclass(frozen=True)
class Transfers(Burst):
    """Any pattern: each of `flows` is one message; a host may appear in several, on both sides."""

    flows: tuple[Flow, ...] | list[Flow] = ()

    collective: ClassVar[str] = "transfers"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "flows", tuple(self.flows))
        if not self.flows:
            raise LabError("flows is empty", 'for example flows=(Flow("h0", "h4"), Flow("h1", "h4"))')
        for flow in self.flows:
            if not isinstance(flow, Flow):
                raise LabError(f"flows: {flow!r} is not a Flow", 'write Flow("h0", "h4")')

    def plan(self, spec: FabricSpec) -> Job:
        hosts = host_names(spec)
        for flow in self.flows:
            check_host(flow.source, hosts, "flows")
            check_host(flow.target, hosts, "flows")
        taking_part = sorted({end for flow in self.flows for end in (flow.source, flow.target)}, key=hosts.index)
        index = {host: i for i, host in enumerate(taking_part)}
        return Job(
            tuple(Rank(i, host, 0, i) for host, i in index.items()),
            tuple(Channel(index[flow.source], index[flow.target], 0, flow.size_bytes or self.size_bytes, flow.dscp or 0,
                          flow.start_us) for flow in self.flows))

    def quick(self) -> Workload:
        smaller = [flow if flow.size_bytes is None else dataclasses.replace(flow, size_bytes=half_size(flow.size_bytes))
                   for flow in self.flows]
        return dataclasses.replace(self, size_bytes=half_size(self.size_bytes), flows=tuple(smaller))

    def describe(self, spec: FabricSpec) -> dict[str, Any]:
        return {**super().describe(spec), "flows": [dataclasses.asdict(flow) for flow in self.flows]}

    def parse(self, key: str, text: str) -> Any:
        return tuple(_flows(text)) if key == "flows" else super().parse(key, text)


def _flows(text: str) -> Iterable[Flow]:
    """ "h0->h4,h1->h4:34": flows, with their DSCP if it is not the NIC's own."""
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\w+)-?>(\w+)(?::(\d+))?\s*", part)
        if not found:
            raise LabError(f"flows={text}: {part!r} is not a flow", "write for example 'flows=h0->h4,h1->h4:34'")
        source, target, dscp = found.groups()
        yield Flow(source, target, dscp=None if dscp is None else int(dscp))
