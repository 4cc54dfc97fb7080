"""The ring all-reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from labs.measure import theory
from labs.workload.base import Channel, Job, Rank, Workload, check_hosts, host_names
from labs.workload.keys import FLOAT_BYTES
from topologies.errors import LabError, unknown_name
from topologies.spec import FabricSpec

ACROSS_LEAVES: Literal["across_leaves"] = "across_leaves"
MAX_RANKS_PER_RING = 256  # up to here every partial sum of the test pattern is exact in float32


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
        check_hosts((host for ring in rings for host in ring), hosts, "rings")
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

    def parse(self, key: str, text: str) -> Any:
        if key == "rings" and "," in text:
            return tuple(tuple(ring.split(",")) for ring in text.split(";"))
        return super().parse(key, text)
