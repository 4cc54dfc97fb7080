"""What the runner hands over: the complete record of one run (one policy, one seed), nothing computed yet.

All times are nanoseconds of the laboratory's clock (CLOCK_MONOTONIC), that is, after slow motion;
`fabric.clock` converts to hardware units.  Everything here is frozen: `summarise`, `judge` and
`explain` read it and never change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from topologies.fabric import Fabric
    from topologies.fabricd.telemetry import Snapshot


@dataclass(frozen=True)
class RawRank:
    """One rank in one iteration."""

    rank: int  # global rank of the job, 0..n-1
    host: str  # name of its Mininet host, "h0"
    ring: int  # ring or group that it belongs to, 0 when there is one only
    first_tx_ns: int | None  # when its first bit went out (None: it never sent, or was killed before)
    end_ns: int | None  # when it held the finished result (None: never)
    wrong: int = 0  # elements of the result that differ from the true one
    error: str | None = None  # why it did not finish, in words; None when all is well


@dataclass(frozen=True)
class RawIteration:
    """One iteration: the common instant `start_ns` and what every rank made of it."""

    n: int  # counts from 0, warm-up included
    warmup: bool
    start_ns: int  # the common instant at which the NICs may begin to send, the compute phase being over
    ranks: tuple[RawRank, ...]


@dataclass(frozen=True)
class FlowRole:
    """Which rank sends on a flow: addresses are host byte order, as in FLOW_DTYPE."""

    src_ip: int
    dst_ip: int
    src_port: int
    dst_port: int
    protocol: int
    rank: int  # the sender of data
    peer: int  # the receiver
    ring: int
    start_us: float = 0.0  # when it is planned to begin, hardware us after the common instant
    qp: int = 0  # number of the sending queue pair, which a NIC's trace records name; 0: not known

    @property
    def key(self) -> tuple[int, int, int, int, int]:
        return (self.src_ip, self.dst_ip, self.src_port, self.dst_port, self.protocol)


@dataclass(frozen=True)
class RawRun:
    """One run.  `before` and `after` are taken while the fabric is quiet (see `verdict.frames_in_flight`).

    workload: "collective" ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "incast",
        "permutation"), "size_bytes" (a rank's buffer), "ranks" (of one ring or group), "ideal_us" (hardware
        time of one iteration's communication on an ideal fabric), optionally "rings", "compute_us" and
        whatever else should be recorded.
    predicted: what theory says, "factor" (see theory.predicted_factor) when the policy lets it be known.
    cpu: "idle_share", "steal_share" (0..1) over the run; optionally "idle_min", "steal_max" as its bounds.
    path_tables_*: as the controller's `tables` reply: {"leaf0": {"index": "flow", "entries": [0, 1, ...]}},
        entries are positions in `fabric.uplinks(leaf)`; a policy without a table has no entry here.
    controller_events: "t_ns", "kind" ("move", "reconnect", "disconnect", ...), for a move also "leaf", "entry",
        "from", "to".
    variant: name of the lab's variant, "" when it has none; label: what the run is called in tables and plots.
    fault_events: "t_ns", "kind": "fault", "fault" ("slow_receiver", ...), "state" ("begin" or "end"), "text", and
        "device" or "port" (name) where it acts.
    may_fail: the lab expects that ranks do not finish (a deadlock), and no process of the emulator died.
    trace, flows: TRACE_DTYPE and FLOW_DTYPE arrays; series_depth: uint32 bytes [rows, ports, classes].
    """

    policy: str
    seed: int
    params: Mapping[str, Any]
    fabric: Fabric
    start_ns: int
    end_ns: int
    iterations: tuple[RawIteration, ...]
    trace: npt.NDArray[Any]
    series_t_ns: npt.NDArray[np.int64]
    series_depth: npt.NDArray[np.uint32]
    flows: npt.NDArray[Any]
    flow_ranks: tuple[FlowRole, ...]
    before: Snapshot
    after: Snapshot
    path_tables_before: Mapping[str, Any] = field(default_factory=dict)
    path_tables_after: Mapping[str, Any] = field(default_factory=dict)
    controller_events: Sequence[Mapping[str, Any]] = ()
    controller_alive: bool = True
    switches_missing: tuple[str, ...] = ()  # leaves and spines that the controller had no connection to at the end
    trace_lost: int = 0
    cpu: Mapping[str, float] = field(default_factory=dict)
    rank_jitter_us: float = 0.0  # start jitter that the lab asks for, hardware us
    workload: Mapping[str, Any] = field(default_factory=dict)
    predicted: Mapping[str, float] = field(default_factory=dict)
    variant: str = ""
    label: str = ""  # "": the policy
    fault_events: Sequence[Mapping[str, Any]] = ()
    may_fail: bool = False

    @property
    def measured(self) -> tuple[RawIteration, ...]:
        """The iterations that count: those after the warm-up."""
        return tuple(iteration for iteration in self.iterations if not iteration.warmup)

    @property
    def name(self) -> str:
        return f"{self.label or self.policy}/seed {self.seed}"
