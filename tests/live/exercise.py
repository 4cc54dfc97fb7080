"""Plays a run of an exercise for its test; what every run owes, whatever the machine is doing, is asserted here."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from labs.lab import Lab
from labs.measure.evidence import Evidence
from labs.measure.raw import RawRun
from labs.measure.results import summarise
from labs.runner_play import Run, Silent
from labs.runner_session import Session

LIVE = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
]


@dataclass(frozen=True)
class Result:
    """A run and its element of run.json; reason: why it broke off, None if it did not."""

    raw: RawRun
    summary: dict[str, Any]
    reason: str | None

    @cached_property
    def evidence(self) -> Evidence:
        return Evidence.of(self.raw)


def play(session: Session, lab: Lab, policy: str | None = None, seed: int = 1, *, may_fail: bool = False) -> Result:
    """One run of a lab without variants, with its first policy unless another is given.

    Every packet is accounted for, none was lost inside a switch, and every result is right.
    may_fail: ranks need not finish, and frames may stand in the fabric for good.
    """
    played = Run(session, lab, policy or lab.policies[0], seed, Silent()).play()
    summary = summarise(played.raw)
    packets = summary["packets"]
    assert may_fail or played.reason is None, played.reason
    assert summary["wrong"] == 0
    assert packets["lost_in_switch"] == 0
    assert packets["sent"] == packets["delivered"] + packets["dropped"] + packets["in_flight"]
    assert may_fail or packets["in_flight"] == 0
    return Result(played.raw, summary, played.reason)


def play_alone(lab: Lab, policy: str | None = None, seed: int = 1, *, may_fail: bool = False) -> Result:
    """The same, on a fabric of its own."""
    with Session(lab) as session:
        return play(session, lab, policy, seed, may_fail=may_fail)
