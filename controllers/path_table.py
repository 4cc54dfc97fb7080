"""The path table: entries and the bits of the source MAC that select them, and what they do to a set of flows.

Inside a switch a frame's source MAC is 02 | ingress port | flow hash | flowlet hash | spray counter | slot, one byte
each.  A table of N entries (a power of two) is indexed by the low bits of one of these bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controllers.policy import Entries, Index
from topologies.errors import LabError

# Position of the byte from the right end of the MAC.
INDEX_BYTE: dict[Index, int] = {"flow": 3, "flowlet": 2, "spray": 1, "slot": 0}


class MacMatch(NamedTuple):
    """A masked match on the source MAC, as OpenFlow writes it."""

    value: str
    mask: str


class Move(NamedTuple):
    """An entry whose uplink changed."""

    entry: int
    source: int
    target: int


class FlowKey(NamedTuple):
    """A flow's five-tuple; addresses as numbers in host byte order."""

    src_ip: int
    dst_ip: int
    protocol: int
    src_port: int
    dst_port: int


# As topologies.fabricd.binding.flow_hash: (seed, src_ip, dst_ip, protocol, src_port, dst_port) -> byte.
FlowHash = Callable[[int, int, int, int, int, int], int]


def mac(number: int) -> str:
    """48 bits as "02:00:..."."""
    return ":".join(f"{byte:02x}" for byte in number.to_bytes(6, "big"))


def entry_match(index: Index, size: int, entry: int) -> MacMatch:
    """The frames that use `entry` of a table with `size` entries.  Raises LabError if bits cannot select it."""
    if index not in INDEX_BYTE:
        raise LabError(f"index {index!r} is not made of path bits", f"one of {', '.join(INDEX_BYTE)}")
    if not (1 <= size <= 256 and size & (size - 1) == 0 and 0 <= entry < size):
        raise LabError(f"entry {entry} of a table of {size} cannot be matched", "a power of two up to 256")
    shift = 8 * INDEX_BYTE[index]
    return MacMatch(mac(entry << shift), mac((size - 1) << shift))


def difference(before: Entries, after: Entries) -> list[Move]:
    """The entries of two tables of one size that differ."""
    return [Move(int(entry), int(before[entry]), int(after[entry])) for entry in np.flatnonzero(before != after)]


def uplink_of(entries: Entries | Sequence[int], index_byte: int) -> int:
    """The uplink that a frame with this index byte (flow hash, flowlet hash, spray counter or slot) takes."""
    return int(entries[index_byte & (len(entries) - 1)])


def flows_per_uplink(entries: Entries | Sequence[int], flows: Sequence[FlowKey], seed: int, uplinks: int,
                     flow_hash: FlowHash) -> NDArray[np.int64]:
    """How many of a leaf's `flows` take each of its uplinks under index "flow": [uplinks].

    seed: the leaf's hash seed.  flow_hash: `topologies.fabricd.binding.flow_hash`.
    """
    taken = [uplink_of(entries, flow_hash(seed, *flow)) for flow in flows]
    return np.bincount(np.asarray(taken, dtype=np.int64), minlength=uplinks)


def worst_link(entries: Entries | Sequence[int], flows: Sequence[FlowKey], seed: int, uplinks: int,
               flow_hash: FlowHash) -> int:
    """The most flows on one uplink: with as many equal flows as uplinks, the factor by which the slowest is late."""
    return int(flows_per_uplink(entries, flows, seed, uplinks, flow_hash).max())
