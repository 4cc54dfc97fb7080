"""Open vSwitch's own ECMP, for comparison: a select group with one bucket an uplink.

Open vSwitch hashes the five-tuple itself (`dp_hash`), the same way on every leaf and in every run, so the seed changes
nothing and the collisions of a set of flows are always the same ones.  Nothing here predicts them.
"""

from __future__ import annotations

from controllers.policy import Entries, LeafView, NoParameters, Policy, round_robin


class Group(Policy[NoParameters]):
    """Equal-cost multipath by a native select group."""

    name = "group"
    index = "group"

    def table_size(self, uplinks: int) -> int:
        return uplinks

    def initial(self, leaf: LeafView) -> Entries:
        return round_robin(leaf)


POLICY = Group
