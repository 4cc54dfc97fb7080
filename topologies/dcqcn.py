"""DCQCN's parameters in hardware units: what a lab writes down, and the published sets of them.

The state machine is ``fabricd/core/dcqcn.h``; names follow ``/sys/class/net/*/ecn`` of mlx5 (``rpg_time_reset`` is
``time_reset_us`` here). Marking (Kmin, Kmax, Pmax) belongs to the switches.

    qp.set_dcqcn(preset("hpcc", link_gbps=100, ai_rate_mbps=40).to_lab(clock))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from topologies.errors import LabError, unknown_name
from topologies.fabricd._core import lib
from topologies.units import LabClock

RATE_UNITS = int(lib.CONTROL_RATE_UNITS)
FRACTION_UNITS = int(lib.CONTROL_FRACTION_UNITS)


@dataclass(frozen=True)
class Dcqcn:
    """One set of parameters, for both ends of a queue pair. Raises LabError for a value out of range."""

    time_reset_us: float
    """Period of the rate increase timer; 0: no timer."""
    byte_reset_bytes: int
    """Period of the byte counter, in bytes on the wire; 0: no byte counter."""
    threshold: int
    """Periods of fast recovery (F)."""
    ai_rate_mbps: float
    """Additive increase of the target."""
    hai_rate_mbps: float
    """Hyper increase of the target."""
    g: float
    """Weight of a new value in alpha."""
    initial_alpha: float
    alpha_period_us: float
    """Period of alpha's update (mlx5: dce_tcp_rtt)."""
    reduce_period_us: float
    """Shortest time between two cuts (mlx5: rate_reduce_monitor_period); 0: every CNP cuts."""
    min_rate_mbps: float
    cnp_interval_us: float
    """Shortest time between two CNPs of a queue pair (mlx5: min_time_between_cnps)."""
    alpha_per_cnp: bool
    """True: each CNP moves alpha, as in the paper; False: the end of each alpha period does, as in mlx5."""
    clamp_target_rate: bool
    """Every cut sets the target to the rate before it."""
    clamp_target_rate_after_timer: bool
    """If not every cut: one after an increase of either kind does (False: only after one by the byte counter)."""
    min_dec_fac: float = 0.0
    """A cut leaves at least this share of the rate."""
    gd: float = 2.0
    """A cut takes away the share alpha / gd (mlx5: rpg_gd, as a power of 2 with ten bits behind the point)."""
    max_rate_mbps: float = 0.0
    """0: line rate."""
    first_rate_mbps: float = 0.0
    """What the first CNP sets both rates to (mlx5: rate_to_set_on_first_cnp); 0: it cuts like any other."""

    def __post_init__(self) -> None:
        limits = {"g": (0, 1), "initial_alpha": (0, 1), "min_dec_fac": (0, 1), "gd": (1, 1e6), "threshold": (0, 65_535)}
        for field in fields(self):
            value = getattr(self, field.name)
            low, high = limits.get(field.name, (0, 1e12))
            if not (math.isfinite(value) and low <= value <= high):
                raise LabError(f"dcqcn: {field.name} must be {low:g}..{high:g}, not {value!r}")
        if self.alpha_period_us == 0 or self.min_rate_mbps == 0:
            raise LabError("dcqcn: alpha_period_us and min_rate_mbps must be above 0")
        if self.time_reset_us == 0 and self.byte_reset_bytes == 0:
            raise LabError("dcqcn: a rate that was cut would never rise again", remedy="set time_reset_us")

    def to_lab(self, clock: LabClock) -> dict[str, int]:
        """The arguments of ``RNIC_SET_DCQCN`` (``verbs_service``: ``set_dcqcn``): ns and bit/s of lab time."""

        def rate(mbps: float) -> int:
            units = round(clock.lab_bps(mbps / 1e3) * RATE_UNITS)
            return max(units, 1) if mbps else 0

        def fraction(value: float) -> int:
            return round(value * FRACTION_UNITS)

        flags = (
            lib.DCQCN_ALPHA_PER_CNP * self.alpha_per_cnp
            | lib.DCQCN_CLAMP_TARGET * self.clamp_target_rate
            | lib.DCQCN_CLAMP_TARGET_AFTER_TIMER * self.clamp_target_rate_after_timer
        )
        return {
            "max_rate": rate(self.max_rate_mbps),
            "min_rate": rate(self.min_rate_mbps),
            "ai_rate": rate(self.ai_rate_mbps),
            "hai_rate": rate(self.hai_rate_mbps),
            "first_rate": rate(self.first_rate_mbps),
            "g": fraction(self.g),
            "initial_alpha": fraction(self.initial_alpha),
            "min_dec_fac": fraction(self.min_dec_fac),
            "gd": fraction(self.gd),
            "alpha_period_ns": max(clock.lab_ns(self.alpha_period_us), 1),
            "reduce_period_ns": clock.lab_ns(self.reduce_period_us),
            "time_reset_ns": clock.lab_ns(self.time_reset_us),
            "byte_reset": self.byte_reset_bytes,
            "threshold": self.threshold,
            "flags": int(flags),
            "cnp_interval_ns": clock.lab_ns(self.cnp_interval_us),
        }


def paper(link_gbps: float) -> Dcqcn:
    """Zhu et al., SIGCOMM 2015, section 5 (40 Gb/s links), whatever the link; marking there: 5 KB, 200 KB, 1 %.

    Unconfirmed: hyper increase and smallest rate, which the paper does not state (ten times R_AI, as HPCC's runs of the
    same algorithm have it; R_AI), and 10 MB of the byte counter.
    """
    del link_gbps
    return Dcqcn(
        time_reset_us=55, byte_reset_bytes=10_000_000, threshold=5, ai_rate_mbps=40, hai_rate_mbps=400,
        g=1 / 256, initial_alpha=1.0, alpha_period_us=55, reduce_period_us=0, min_rate_mbps=40, cnp_interval_us=50,
        alpha_per_cnp=True, clamp_target_rate=True, clamp_target_rate_after_timer=False,
    )  # fmt: skip


def nvidia(link_gbps: float) -> Dcqcn:
    """Firmware defaults of ConnectX-4 and later, whatever the link: NVIDIA's "DCQCN CC parameters", ``mlxconfig``.

    Unconfirmed: that rpg_byte_reset counts bytes on the wire, and that the first CNP cuts at once and not at the end
    of a rate_reduce_monitor_period. min_time_between_cnps is 4 us in most published queries (0 and 2 in some).
    """
    del link_gbps
    return Dcqcn(
        time_reset_us=300, byte_reset_bytes=32_767, threshold=1, ai_rate_mbps=5, hai_rate_mbps=50,
        g=5 / 1024, initial_alpha=1023 / 1024, alpha_period_us=1, reduce_period_us=4, min_rate_mbps=1,
        cnp_interval_us=4, alpha_per_cnp=False, clamp_target_rate=False, clamp_target_rate_after_timer=True,
        min_dec_fac=0.5,
    )  # fmt: skip


def hpcc(link_gbps: float) -> Dcqcn:
    """DCQCN as HPCC's authors ran it (SIGCOMM 2019; ``simulation/run.py``, cc "dcqcn"): increases grow with the link.

    Marking there: 100 KB and 400 KB for each 25 Gb/s, 20 %. Unconfirmed: the interval of CNPs, since their receivers
    echo marks in every ACK (4 us has the same effect: cuts are that far apart), and the first cut, 4 us earlier here.
    """
    return Dcqcn(
        time_reset_us=300, byte_reset_bytes=0, threshold=1, ai_rate_mbps=5 * link_gbps / 25,
        hai_rate_mbps=50 * link_gbps / 25, g=1 / 256, initial_alpha=1.0, alpha_period_us=1, reduce_period_us=4,
        min_rate_mbps=1000, cnp_interval_us=4, alpha_per_cnp=False, clamp_target_rate=False,
        clamp_target_rate_after_timer=True,
    )  # fmt: skip


PRESETS: dict[str, Callable[[float], Dcqcn]] = {"paper": paper, "nvidia": nvidia, "hpcc": hpcc}


def preset(name: str, link_gbps: float = 100.0, **changes: Any) -> Dcqcn:
    """A published set for links of ``link_gbps``, with ``changes``. Raises LabError that names what is unknown."""
    if name not in PRESETS:
        raise unknown_name("DCQCN preset", name, PRESETS)
    known = [field.name for field in fields(Dcqcn)]
    for key in changes:
        if key not in known:
            raise unknown_name("DCQCN parameter", key, known)
    return replace(PRESETS[name](link_gbps), **changes)
