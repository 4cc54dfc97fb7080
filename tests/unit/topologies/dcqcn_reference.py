"""DCQCN's reaction point written down from the paper's equations, one event after another: the judge of the C core.

Zhu et al., SIGCOMM 2015, section 3.1, and for what mlx5 adds, NVIDIA's description of its parameters. Nothing here is
shared with the core: periods are walked through one by one, and rates are plain numbers in bits/s, times in ns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

RATE_UNITS, FRACTION_UNITS = 1000, 2**30  # as integers travel to the core
PER_CNP, CLAMP, CLAMP_AFTER_TIMER = 1, 2, 4


class Change(NamedTuple):
    """A new rate, and when."""

    at_ns: int
    what: str
    rate: float


@dataclass
class Reference:
    """Times are handed in and never go back. ``lab`` is what ``Dcqcn.to_lab`` returns."""

    lab: dict[str, int]
    line_rate: float
    changes: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rc = self.rt = self.line_rate
        self.alpha = self.lab["initial_alpha"] / FRACTION_UNITS
        self.g = self.lab["g"] / FRACTION_UNITS
        self.now = 0
        self.seen_cnp = False
        self.alpha_due: int | None = None
        self.timer_due: int | None = None
        self.cut_due: int | None = None
        self.cut_allowed = 0
        self.cnp_in_alpha_period = False
        self.t = self.bc = 0  # completed periods of the timer and of the byte counter
        self.bytes = 0
        self.last = ""

    def run(self, to: int) -> None:
        while True:
            due = [(self.alpha_due, 0), (self.cut_due, 1), (self.timer_due, 2)]
            pending = sorted((at, kind) for at, kind in due if at is not None and at <= to)
            if not pending:
                break
            self.now, kind = pending[0]
            if kind == 0:
                self._alpha_timer()
            elif kind == 1:
                self._cut()
            else:
                self.timer_due = self.now + self.lab["time_reset_ns"]
                self._increase("timer")
        self.now = to

    def cnp(self) -> None:
        per_cnp = self.lab["flags"] & PER_CNP
        if not self.seen_cnp:
            self.seen_cnp = True
            self.alpha = self.lab["initial_alpha"] / FRACTION_UNITS
            self.alpha_due = self.now + self.lab["alpha_period_ns"]
            self._cut()
        else:
            self.cnp_in_alpha_period = not per_cnp
            if self.now < self.cut_allowed:
                self.cut_due = self.cut_allowed
            else:
                self._cut()
        if per_cnp:
            self.alpha = (1 - self.g) * self.alpha + self.g
            self.alpha_due = self.now + self.lab["alpha_period_ns"]

    def sent(self, wire_bytes: int) -> None:
        if not self.seen_cnp or not self.lab["byte_reset"]:
            return
        self.bytes += wire_bytes
        while self.bytes >= self.lab["byte_reset"]:
            self.bytes -= self.lab["byte_reset"]
            self._increase("bytes")

    def _alpha_timer(self) -> None:
        self.alpha_due = self.now + self.lab["alpha_period_ns"]
        if self.cnp_in_alpha_period:
            self.alpha = (1 - self.g) * self.alpha + self.g
        else:
            self.alpha = (1 - self.g) * self.alpha
        self.cnp_in_alpha_period = False

    def _cut(self) -> None:
        flags = self.lab["flags"]
        if flags & CLAMP or self.last == "bytes" or (flags & CLAMP_AFTER_TIMER and self.last == "timer"):
            self.rt = self.rc
        kept = max(1 - self.alpha / (self.lab["gd"] / FRACTION_UNITS), self.lab["min_dec_fac"] / FRACTION_UNITS)
        self._set("cut", max(self.rc * kept, self.lab["min_rate"] / RATE_UNITS))
        self.t = self.bc = self.bytes = 0
        self.last = ""
        self.timer_due = self.now + self.lab["time_reset_ns"] if self.lab["time_reset_ns"] else None
        self.cut_allowed = self.now + self.lab["reduce_period_ns"]
        self.cut_due = None

    def _increase(self, by: str) -> None:
        counts = [count for count, name in ((self.t, "time_reset_ns"), (self.bc, "byte_reset")) if self.lab[name]]
        what = "fast recovery"
        if max(counts) >= self.lab["threshold"]:
            hyper = min(counts) > self.lab["threshold"]
            what = "hyper" if hyper else "additive"
            self.rt = min(self.rt + self.lab["hai_rate" if hyper else "ai_rate"] / RATE_UNITS, self.line_rate)
        self._set(what, (self.rc + self.rt) / 2)
        if by == "timer":
            self.t += 1
        else:
            self.bc += 1
        self.last = by

    def _set(self, what: str, rate: float) -> None:
        if rate != self.rc:
            self.changes.append(Change(self.now, what, rate))
        self.rc = rate
