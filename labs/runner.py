"""The runner: takes a lab from its description to results on disk, and leaves nothing else behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from labs.lab import Lab
from labs.measure.store import RunWriter
from labs.runner_outcome import Outcome, Unfinished, require_root
from labs.runner_play import Observer, Played, Run
from labs.runner_session import Session
from labs.variants import PlannedRun, plan
from topologies.errors import LabError

RESULTS = Path("results")


class Reporter(Observer, Protocol):
    """Is told how a whole lab gets on."""

    def parameters(self, lab: Lab) -> None:
        """Every effective parameter, before anything is built."""

    def step(self, what: str) -> None:
        """A phase begins, e.g. "building the fabric"."""

    def runs_begin(self, planned: Sequence[PlannedRun]) -> None:
        """These runs follow."""

    def run_begins(self, planned: PlannedRun) -> None:
        """The next one."""

    def run_ended(self, summary: dict[str, Any]) -> None:
        """Its element of run.json."""

    def runs_ended(self) -> None:
        """No more progress to show."""


def run_lab(lab: Lab, seeds: Sequence[int], out: Path | None, report: Reporter) -> Outcome:
    """Plays every variant with every seed and policy and writes run.json, series, plots and report into a folder.

    The fabric is built again only for a variant whose FabricSpec is another, and after a run that left it in disorder.
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
    runs = plan(lab, seeds)
    with _terminated_as_interrupted():
        try:
            with _Stage(report) as stage:
                report.runs_begin(runs)
                for number, planned in enumerate(runs):
                    session = stage.ready_for(runs[number:])
                    report.run_begins(planned)
                    played = _play(Run(session, planned.lab, planned.policy, planned.seed, report))
                    writer.add(played.raw)
                    outcome.runs.append(writer.runs[-1])
                    report.run_ended(outcome.runs[-1])
                    if played.fatal:
                        outcome.reason = played.reason
                        break
                    stage.spoilt = played.spoilt
                    if played.reason is not None:
                        outcome.unfinished.append(Unfinished(planned.label, planned.seed, played.reason,
                                                             planned.lab.run_may_fail(planned.policy)))
        except KeyboardInterrupt:
            outcome.reason = "interrupted"
        except LabError as error:
            if not outcome.runs:
                raise
            outcome.reason = error.message
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


def _play(run: Run) -> Played:
    """Plays a run.  Raises LabError when it cannot even begin."""
    try:
        return run.play()
    except LabError as error:
        trouble = run.session.trouble()
        raise error if trouble is None else LabError(trouble) from None


class _Stage:
    """The fabric that is up, if any.  A context manager.

    spoilt: the next run needs a new one, whatever it is.
    """

    def __init__(self, report: Reporter) -> None:
        self._report = report
        self._stack = ExitStack()
        self._session: Session | None = None
        self.spoilt = False

    def ready_for(self, runs: Sequence[PlannedRun]) -> Session:
        """A session for the first of `runs`, and with the hosts that those after it need which can share it."""
        lab = runs[0].lab
        if self._session is None or self.spoilt or self._session.lab.fabric != lab.fabric:
            self._stack.close()
            self._session, self.spoilt = None, False
            alike = list(takewhile(lambda run: run.lab.fabric == lab.fabric, runs))
            self._report.step("building the fabric" + (f" of {lab.variant_name}" if lab.variant_name else ""))
            self._session = self._stack.enter_context(Session(lab, hosts=set().union(*(run.hosts for run in alike))))
        return self._session

    def __enter__(self) -> _Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


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
