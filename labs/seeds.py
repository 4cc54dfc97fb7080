"""What a run's seed decides: UDP source ports, and the start jitter of ranks.

ECMP hashes the five-tuple, of which a RoCE queue pair may choose the source port only; so a run's seed deals out the
source ports, and with them the collisions.  Everything is derived from one 64-bit mixing function (splitmix64's
finaliser; Steele, Lea, Flood, OOPSLA 2014), so that a run can be repeated and its collisions can be predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from labs.workload import Job

# RFC 7605 leaves 49152-65535 to whoever wants entropy; Linux' RoCE drivers (rdma_flow_label_to_udp_sport) use the same.
FIRST_PORT = 0xC000
PORTS = 0x4000
_MASK = (1 << 64) - 1


def mix(*values: int) -> int:
    """64 bits that depend on all bits of all values and on their order."""
    state = 0
    for value in values:
        state = (state + (value & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def source_ports(job: Job, lanes: int, seed: int) -> dict[tuple[int, int, int], int]:
    """The UDP source port of every queue pair: (channel, lane, 0 at its sender or 1 at its receiver) -> port.

    FIRST_PORT + mix(seed, rank, channel, lane, end) mod PORTS, or the next one: a rank never uses a port twice.  The
    receiver's end has a port too: its acknowledgements carry it.
    """
    taken: dict[int, set[int]] = {rank.index: set() for rank in job.ranks}
    ports: dict[tuple[int, int, int], int] = {}
    for number, channel in enumerate(job.channels):
        for lane in range(lanes):
            for end, rank in enumerate((channel.source, channel.target)):
                offset = mix(seed, rank, number, lane, end) % PORTS
                while offset in taken[rank]:
                    offset = (offset + 1) % PORTS
                taken[rank].add(offset)
                ports[number, lane, end] = FIRST_PORT + offset
    return ports


def jitters(job: Job, seed: int, iteration: int, jitter_us: float) -> Sequence[float]:
    """Each rank's own delay before it sends, evenly spread over 0..jitter_us."""
    return [mix(seed, 0x6A, iteration, rank.index) / 2**64 * jitter_us for rank in job.ranks]
