"""What comes out of the runner, and what it cannot begin without."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topologies.errors import LabError

CONTROLLER_DIED = "the controller died"  # the reason that makes a run INVALID, not failed
DONE, FAILED, WRONG_USE, INVALID = 0, 1, 2, 3  # exit status of the command line


@dataclass(frozen=True)
class Unfinished:
    """A run that was given up: nothing moved any more, or a queue pair was in error."""

    label: str
    seed: int
    reason: str
    expected: bool  # by the lab (may_fail)


@dataclass
class Outcome:
    """What came of it.  runs: elements of run.json; reason: why the whole broke off, None if it did not; unfinished:
    runs that were given up, after which the others were played all the same."""

    directory: Path
    runs: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None
    unfinished: list[Unfinished] = field(default_factory=list)

    @property
    def invalid(self) -> list[dict[str, Any]]:
        """Runs that prove nothing."""
        return [run for run in self.runs if not run["valid"]]

    @property
    def next_slowdown(self) -> float | None:
        """The slowdown at which the invalid runs would be worth another try; None if a slower lab would not help."""
        tries = [run["next_slowdown"] for run in self.invalid if run["next_slowdown"] is not None]
        return max(tries, default=None)

    @property
    def exit_status(self) -> int:
        """0 done, 1 failed, 3 INVALID."""
        if self.reason not in (None, CONTROLLER_DIED) or any(not run.expected for run in self.unfinished):
            return FAILED
        return INVALID if self.invalid or self.reason == CONTROLLER_DIED else DONE


def require_root() -> None:
    """Raises LabError unless this process may create namespaces and packet sockets."""
    if os.geteuid() != 0:
        raise LabError("a lab builds network namespaces and needs root", "run it with sudo")
