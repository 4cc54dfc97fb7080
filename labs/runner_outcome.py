"""What comes out of the runner, and what it cannot begin without."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topologies.errors import LabError

CONTROLLER_DIED = "the controller died"  # the reason that makes a run INVALID, not failed
DONE, FAILED, WRONG_USE, INVALID = 0, 1, 2, 3  # exit status of the command line


@dataclass
class Outcome:
    """What came of it.  runs: elements of run.json; reason: why it broke off, None if it did not."""

    directory: Path
    runs: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None

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
        if self.reason not in (None, CONTROLLER_DIED):
            return FAILED
        return INVALID if self.invalid or self.reason == CONTROLLER_DIED else DONE


def require_root() -> None:
    """Raises LabError unless this process may create namespaces and packet sockets."""
    if os.geteuid() != 0:
        raise LabError("a lab builds network namespaces and needs root", "run it with sudo")
