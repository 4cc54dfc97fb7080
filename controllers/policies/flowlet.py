"""LetFlow (Vanini et al., NSDI 2017): every flowlet takes a random uplink, and nobody looks at loads.

A flow that pauses for longer than the gap begins a new flowlet; the flowlet's number goes into the hash, so the next
uplink is as good as drawn at random.  An RDMA elephant that never pauses is one flowlet, and LetFlow is then ECMP.
"""

from __future__ import annotations

from dataclasses import dataclass

from controllers.policy import MAX_ENTRIES, Entries, LeafView, Policy, check_range, round_robin


@dataclass(frozen=True)
class FlowletParameters:
    """entries: size of the table, a power of two.

    gap_us: the pause that ends a flowlet; 0: the fabric's flowlet_gap_us.
    """

    entries: int = 64
    gap_us: float = 0.0

    def __post_init__(self) -> None:
        check_range("flowlet.entries", self.entries, 1, MAX_ENTRIES)
        check_range("flowlet.gap_us", self.gap_us, 0, 1e6)


class Flowlet(Policy[FlowletParameters]):
    """Random path per flowlet."""

    name = "flowlet"
    index = "flowlet"
    Parameters = FlowletParameters

    @property
    def flowlet_gap_us(self) -> float | None:
        return self.parameters.gap_us or None

    def table_size(self, uplinks: int) -> int:
        return self.parameters.entries

    def initial(self, leaf: LeafView) -> Entries:
        return round_robin(leaf)


POLICY = Flowlet
