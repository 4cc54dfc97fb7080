"""Packet spraying: frame after frame, round robin over the uplinks, by the leaf's frame counter.

The load is perfectly even and the order is not: a receiver that goes back N pays for every frame that overtakes
another.  As many entries as uplinks, if that is a power of two; otherwise 64, which is uneven by one entry at most
(3 uplinks: 22, 21, 21).
"""

from __future__ import annotations

from controllers.policy import Entries, LeafView, NoParameters, Policy, round_robin


class Spray(Policy[NoParameters]):
    """Next frame, next uplink."""

    name = "spray"
    index = "spray"

    def table_size(self, uplinks: int) -> int:
        return uplinks if uplinks & (uplinks - 1) == 0 else 64

    def initial(self, leaf: LeafView) -> Entries:
        return round_robin(leaf)


POLICY = Spray
