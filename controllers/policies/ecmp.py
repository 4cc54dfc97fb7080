"""Static ECMP: a flow's hash picks its uplink, whatever else is on that uplink.

The table has 64 entries: with 1, 2, 4, ... uplinks that is exactly even.  With any other number some uplinks get one
entry more than others: with 3 uplinks 22, 21 and 21 (34.4 % and 32.8 % of the flows); 256 entries would make it
86, 85 and 85 at four times the rules.  A bias far below what a handful of elephants collide by.
"""

from __future__ import annotations

from dataclasses import dataclass

from controllers.policy import MAX_ENTRIES, Entries, LeafView, Policy, check_range, round_robin


@dataclass(frozen=True)
class EcmpParameters:
    """entries: size of the table, a power of two."""

    entries: int = 64

    def __post_init__(self) -> None:
        check_range("ecmp.entries", self.entries, 1, MAX_ENTRIES)


class Ecmp(Policy[EcmpParameters]):
    """Equal-cost multipath by hash."""

    name = "ecmp"
    index = "flow"
    Parameters = EcmpParameters

    def table_size(self, uplinks: int) -> int:
        return self.parameters.entries

    def initial(self, leaf: LeafView) -> Entries:
        return round_robin(leaf)


POLICY = Ecmp
