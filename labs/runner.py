"""The runner: takes a lab from its description to results on disk, and leaves nothing else behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from labs.lab import Lab
from labs.measure.store import RunWriter
from labs.runner_outcome import Outcome, require_root
from labs.runner_play import Observer, Run
from labs.runner_session import Session
from topologies.errors import LabError

RESULTS = Path("results")


class Reporter(Observer, Protocol):
    """Is told how a whole lab gets on."""

    def parameters(self, lab: Lab) -> None:
        """Every effective parameter, before anything is built."""

    def step(self, what: str) -> None:
        """A phase begins, e.g. "building the fabric"."""

    def runs_begin(self, lab: Lab, total: int) -> None:
        """`total` runs follow."""

    def run_begins(self, policy: str, seed: int) -> None:
        """The next one."""

    def run_ended(self, summary: dict[str, Any]) -> None:
        """Its element of run.json."""

    def runs_ended(self) -> None:
        """No more progress to show."""


def run_lab(lab: Lab, seeds: Sequence[int], out: Path | None, report: Reporter) -> Outcome:
    """Plays every policy with every seed and writes run.json, series, plots and report into a folder.

    out: the folder; None: results/<lab>/<time>.  Ctrl-C and SIGTERM end it early, with what was finished.
    Raises LabError when it cannot begin.
    """
    lab.check()
    require_root()
    if lab.fabric.slowdown == "auto":
        from topologies import calibrate

        report.step("calibrating: how slow must the lab be for this machine to keep up?")
        lab = lab.replace(fabric=calibrate.resolve(lab.fabric))
    report.parameters(lab)
    directory = out or RESULTS / lab.name / time.strftime("%Y-%m-%dT%H-%M-%S")
    outcome = Outcome(directory)
    writer = RunWriter(directory, lab.parameters())
    with _terminated_as_interrupted():
        try:
            report.step("building the fabric")
            with Session(lab) as session:
                report.runs_begin(lab, len(lab.policies) * len(seeds))
                for seed, policy in product(seeds, lab.policies):
                    report.run_begins(policy, seed)
                    outcome.reason = _play(Run(session, lab, policy, seed, report), writer)
                    if len(writer.runs) > len(outcome.runs):
                        outcome.runs.append(writer.runs[-1])
                        report.run_ended(outcome.runs[-1])
                    if outcome.reason is not None:
                        break
        except KeyboardInterrupt:
            outcome.reason = "interrupted"
        finally:
            report.runs_ended()
            if not outcome.runs:
                writer.finish()  # nothing, but for the folder
                with suppress(OSError):
                    if out is None:
                        os.removedirs(directory)
                    else:
                        directory.rmdir()
        if outcome.runs:
            report.step("writing results, plots and the report")
            writer.finish()
    return outcome


def _play(run: Run, writer: RunWriter) -> str | None:
    """Plays and records a run; why it makes no sense to go on, if so."""
    try:
        played = run.play()
    except LabError as error:
        return run.session.trouble() or error.message
    writer.add(played.raw)
    return played.reason


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM takes the same orderly way out as Ctrl-C."""
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
