"""One row of the benchmark's table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """What ours and the peer took or did, measured in the same run; ``unit`` also says which way round ``ratio`` is."""

    name: str
    ours: float
    peer: float | None  # None: this machine has none, nor a ratio
    ratio: float | None
    unit: str
