"""What all workloads have in common: who takes part, who sends to whom, and how their queue pairs behave."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from labs.agents import collectives
from labs.workload.keys import FLOAT_BYTES, LIMITS, check_key, check_number, check_size, parse
from topologies import dcqcn
from topologies.dcqcn import Dcqcn
from topologies.errors import LabError, nearest, unknown_name
from topologies.spec import FabricSpec

NO_DCQCN = "none"
DCQCN_PREFIX = "dcqcn."  # "dcqcn.ai_rate_mbps" is a field of topologies.dcqcn.Dcqcn


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
    size_bytes: int = 0  # of a burst's message
    dscp: int = 0  # of its packets; 0: the NIC's own
    start_us: float = 0.0  # so long after the common instant


@dataclass(frozen=True)
class Job:
    """A workload on a given fabric."""

    ranks: tuple[Rank, ...]
    channels: tuple[Channel, ...]

    def outgoing(self, rank: int) -> list[int]:
        """Numbers of the channels that a rank sends on, in the order in which it knows them."""
        return [number for number, channel in enumerate(self.channels) if channel.source == rank]

    def incoming(self, rank: int) -> list[int]:
        """Numbers of the channels that a rank receives from, in the order in which it knows them."""
        return [number for number, channel in enumerate(self.channels) if channel.target == rank]

    def between(self, source: str, target: str) -> list[int]:
        """Numbers of the channels from one host to another."""
        return [number for number, channel in enumerate(self.channels)
                if (self.ranks[channel.source].host, self.ranks[channel.target].host) == (source, target)]


@dataclass(frozen=True)
class Workload:
    """What all workloads have in common.

    size_bytes: a rank's buffer (for bursts: what each sender sends).
    window_bytes: most that a queue pair has unacknowledged.
    timeout_us, retry_count: of the queue pairs; after so many retransmissions in vain the pair is in error.
    compute_us: every rank computes for so long before it sends; jitter_us: and up to so much longer, at random.
    dcqcn: congestion control of all queue pairs: "none", or a set of `topologies.dcqcn.PRESETS`; dcqcn_params: fields
        of `topologies.dcqcn.Dcqcn` that are different, in hardware units (`--set dcqcn.ai_rate_mbps=200`).
    patience_us: a run in which no data has moved for so long is given up (at least a second of lab time); None: three
        timeouts and ten seconds.
    """

    size_bytes: int
    _: dataclasses.KW_ONLY
    window_bytes: int = 256 * 1024
    qps_per_connection: int = 1
    timeout_us: float = 524.288  # 4.096 us * 2^7; NCCL's default of 2^20 is 4.3 s: half a day of slow motion
    retry_count: int = 7
    compute_us: float = 0.0
    jitter_us: float = 0.0
    dcqcn: str = NO_DCQCN
    dcqcn_params: Mapping[str, Any] = field(default_factory=dict)
    patience_us: float | None = None

    collective: ClassVar[str] = ""
    agent: ClassVar[str] = ""  # "ring" or "burst": which state machine the ranks run

    def __post_init__(self) -> None:
        for key in self.keys():
            if key in LIMITS:
                check_number(key, getattr(self, key))
        check_size("size_bytes", self.size_bytes)
        if self.dcqcn not in (NO_DCQCN, *dcqcn.PRESETS):
            raise unknown_name("DCQCN preset", str(self.dcqcn), (NO_DCQCN, *dcqcn.PRESETS))
        object.__setattr__(self, "dcqcn_params", {key: _dcqcn_value(key, value)
                                                  for key, value in self.dcqcn_params.items()})
        dcqcn.preset("paper" if self.dcqcn == NO_DCQCN else self.dcqcn, **self.dcqcn_params)

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Names that a lab.py or `--set` may give."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def takes(cls, key: str) -> bool:
        """Whether `key` is one of them, or "dcqcn." and something."""
        own = cls.keys()
        return key in own or key.startswith(DCQCN_PREFIX)

    def plan(self, spec: FabricSpec) -> Job:
        """The job on a fabric.  Raises LabError when the fabric has not the hosts for it."""
        raise NotImplementedError

    def communication_us(self, spec: FabricSpec) -> float:
        """One iteration's communication on an ideal fabric, headers and latency left out."""
        raise NotImplementedError

    def arguments(self, job: Job, rank: Rank) -> dict[str, Any]:
        """What a rank's state machine is made with, see labs.agents.collectives.create."""
        raise NotImplementedError

    def congestion_control(self, spec: FabricSpec) -> Dcqcn | None:
        """The parameters of every queue pair; None: there is no congestion control."""
        return None if self.dcqcn == NO_DCQCN else dcqcn.preset(self.dcqcn, spec.link_gbps, **self.dcqcn_params)

    def packets(self, job: Job, number: int, mtu_bytes: int) -> int:
        """Data packets that channel `number` carries in one iteration, if none is sent twice."""
        rank = job.ranks[job.channels[number].source]
        machine = collectives.create(self.agent, self.arguments(job, rank))
        return sum(-(-length // mtu_bytes) for length in machine.lengths(job.outgoing(rank.index).index(number)))

    def quick(self) -> Workload:
        """The same, but small enough for a first look."""
        return dataclasses.replace(self, size_bytes=half_size(self.size_bytes))

    def describe(self, spec: FabricSpec) -> dict[str, Any]:
        """What the results record: every key, and what follows from the fabric."""
        job = self.plan(spec)
        control = self.congestion_control(spec)
        return {
            **{key: getattr(self, key) for key in self.keys()},
            "dcqcn_params": dataclasses.asdict(control) if control is not None else {},
            "collective": self.collective,
            "ranks": sum(1 for rank in job.ranks if rank.ring == 0),
            "groups": len({rank.ring for rank in job.ranks}),
            "ideal_us": self.communication_us(spec),
        }

    def with_values(self, values: Mapping[str, Any]) -> Workload:
        """A copy with some keys changed; "dcqcn.<field>" and `dcqcn_params` go on top of what there is."""
        params = dict(self.dcqcn_params)
        plain = {}
        for key, value in values.items():
            if key == "dcqcn_params":
                params |= value
            elif key.startswith(DCQCN_PREFIX):
                params[key.removeprefix(DCQCN_PREFIX)] = value
            else:
                check_key(key, self.keys(), type(self).__name__)
                plain[key] = value
        return dataclasses.replace(self, **plain, dcqcn_params=params)

    def with_overrides(self, settings: Iterable[str]) -> Workload:
        """A copy with "key=value" strings applied.  Raises LabError, see `check_key`."""
        values = {}
        for setting in settings:
            key, _, text = (part.strip() for part in setting.partition("="))
            if key == "dcqcn_params":
                raise LabError("dcqcn_params cannot be set as a whole", "for example --set dcqcn.ai_rate_mbps=200")
            values[key] = text if key.startswith(DCQCN_PREFIX) else self.parse(key, text)
        return self.with_values(values)

    def parse(self, key: str, text: str) -> Any:
        """The value of `--set key=text`."""
        return parse(key, text)


def host_names(spec: FabricSpec) -> list[str]:
    """The hosts of a fabric, leaf by leaf."""
    return [f"h{index}" for index in range(spec.hosts)]


def check_host(host: str, hosts: list[str], key: str) -> None:
    """Raises LabError unless `host` is one of `hosts`."""
    if host not in hosts:
        guess = nearest(str(host), hosts)
        raise LabError(f"{key}: there is no host {host!r}",
                       f"hosts are {hosts[0]} to {hosts[-1]}" + (f"; did you mean {guess}?" if guess else ""))


def check_hosts(chosen: Iterable[str], hosts: list[str], key: str) -> None:
    """The same for several, of which none may appear twice."""
    seen: set[str] = set()
    for host in chosen:
        check_host(host, hosts, key)
        if host in seen:
            raise LabError(f"{key}: host {host} appears twice", "one NIC, one rank: name every host once")
        seen.add(host)


def half_size(size_bytes: int) -> int:
    """Half as much, in whole float32."""
    return max(256, size_bytes // (2 * FLOAT_BYTES) * FLOAT_BYTES)


def _dcqcn_value(key: str, value: Any) -> Any:
    """The value of a field of Dcqcn, which may be text (from `--set`).  Raises LabError for what it is not."""
    kinds = {field.name: field.type for field in dataclasses.fields(Dcqcn)}
    if key not in kinds:
        raise unknown_name("DCQCN parameter", key, kinds)
    if kinds[key] == "bool":
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if str(value).lower() not in words:
            raise LabError(f"dcqcn.{key}={value!r} is neither true nor false")
        return words[str(value).lower()]
    try:
        return int(value) if kinds[key] == "int" else float(value)
    except (TypeError, ValueError):
        raise LabError(f"dcqcn.{key}={value!r} is not a {'whole ' if kinds[key] == 'int' else ''}number") from None
