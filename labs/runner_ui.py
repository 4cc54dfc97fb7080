"""What a person sees of a run: parameters before, progress with the time left, the table after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from labs.lab import Expectation, Lab
from labs.runner_outcome import INVALID, Outcome
from labs.variants import PlannedRun, means

_OVERHEAD_S = 0.6  # between two iterations: preparation, barrier, drain


class ConsoleReporter:
    """A progress bar on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._planned: Sequence[PlannedRun] = ()
        self._run = ""
        self._run_number = 0
        self._done = self._done_of_run = 0  # iterations
        self._last_us: dict[str, float] = {}  # label -> last iteration's time, for the time left

    def parameters(self, lab: Lab) -> None:
        self._console.print(f"[bold]{lab.title}[/bold]: {escape(lab.question)}", highlight=False)
        for line in parameter_lines(lab):
            self._console.print(line, highlight=False, soft_wrap=True)

    def step(self, what: str) -> None:
        self._say(what)

    def runs_begin(self, planned: Sequence[PlannedRun]) -> None:
        self._planned = planned
        if self._console.is_terminal:
            self._progress = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                                      TextColumn("{task.fields[left]}"), console=self._console, transient=True,
                                      refresh_per_second=4)
            self._task = self._progress.add_task("", total=sum(map(_iterations, planned)), left="")
            self._progress.start()

    def run_begins(self, planned: PlannedRun) -> None:
        self._run = f"{planned.label} seed {planned.seed}"
        self._run_number += 1
        self._done = sum(map(_iterations, self._planned[: self._run_number - 1]))
        self._done_of_run = 0
        self._update()

    def iteration_begins(self, n: int, warmup: bool) -> None:
        self._update(f"{'warm-up' if warmup else 'iteration'} {n}")

    def iteration_ended(self, n: int, warmup: bool, time_us: float) -> None:
        self._done_of_run += 1
        self._last_us[self._planned[self._run_number - 1].label] = time_us
        self._update()

    def run_ended(self, summary: dict[str, Any]) -> None:
        times = summary["time_us"]
        ratio = summary["jct_ratio"]
        verdict = "" if summary["valid"] else "  [red]INVALID[/red]"
        mean = "not finished" if times["mean"] is None else f"{times['mean']:.1f} us, {ratio:.2f} times the ideal"
        self._say(f"[{self._run_number}/{len(self._planned)}] {self._run}: {mean}{verdict}")

    def runs_ended(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def _update(self, what: str = "") -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._done + self._done_of_run,
                                  description=f"{self._run} {what}", left=f"{self._left_s():.0f} s left")

    def _left_s(self) -> float:
        """From the last iteration of each label; one that did not run yet is taken for twice the ideal."""
        left_s = 0.0
        for number, planned in enumerate(self._planned, 1):
            if number < self._run_number:
                continue
            iterations = _iterations(planned) - (self._done_of_run if number == self._run_number else 0)
            time_us = self._last_us.get(planned.label, 2 * planned.lab.ideal_us)
            left_s += iterations * (planned.lab.fabric.clock.lab_ns(time_us) / 1e9 + _OVERHEAD_S)
        return left_s


def _iterations(planned: PlannedRun) -> int:
    return planned.lab.iterations + planned.lab.warmup


def parameter_lines(lab: Lab) -> list[str]:
    """Every effective parameter, a section a line."""
    return [f"[dim]{section}:[/dim] " + ", ".join(f"{key}={_shown(value)}" for key, value in values.items())
            for section, values in lab.parameters().items()]


def _shown(value: Any) -> str:
    return escape(f"{value:g}" if isinstance(value, float) else f"{value}")


def closing_lines(lab: Lab, outcome: Outcome, *, expectations: bool) -> list[str]:
    """What to say under the table: broken invariants, what to try, expectations, where the results are."""
    lines = []
    if outcome.reason is not None:
        lines.append(f"[red]ended early: {escape(outcome.reason)}[/red]")
    lines += [f"{run.label} seed {run.seed}: " + (f"given up, as expected: {escape(run.reason)}" if run.expected else
                                                  f"[red]given up: {escape(run.reason)}[/red]")
              for run in outcome.unfinished]
    for run in outcome.invalid:
        broken = [check for check in run["verdict"] if not check["ok"]]
        lines += [f"[red]INVALID[/red] {_label(run)} seed {run['seed']}: {check['check']} = "
                  f"{_measured(check['value'])} (limit {_measured(check['limit'])} {check['unit']}): "
                  + escape(check["explain"]) for check in broken]
    if outcome.exit_status == INVALID and outcome.next_slowdown is not None:
        lines.append(f"try again with --slowdown {outcome.next_slowdown:.0f}")
    if expectations:
        lines += expectation_lines(lab, [run for run in outcome.runs if run["valid"]])
    if outcome.runs:
        lines.append(f"results: {outcome.directory}/report.html; who was late: straggler why {outcome.directory}")
    return lines


def expectation_lines(lab: Lab, runs: Sequence[dict[str, Any]]) -> list[str]:
    """For every expectation of the lab: met by how many valid runs, and the values of those that did not."""
    lines = []
    for expected in lab.expectations:
        values = [run[expected.key] for run in runs if means(expected.run, run.get("variant", ""), run["policy"])
                  and run.get(expected.key) is not None]
        if not values:
            continue
        missed = [value for value in values if not expected.holds(value)]
        state = "[green]as expected[/green]" if not missed else (
            f"[yellow]not as expected[/yellow] ({', '.join(f'{value:.3g}' for value in missed)})")
        lines.append(f"{expected.run}: {expected.key} {bounds(expected)}: {state}; {escape(expected.why)}")
    return lines


def bounds(expected: Expectation) -> str:
    """ ">= 1 and <= 1.15"."""
    limits = ((">=", expected.at_least), ("<=", expected.at_most))
    return " and ".join(f"{sign} {limit}" for sign, limit in limits if limit is not None)


def _label(run: Mapping[str, Any]) -> str:
    return str(run.get("label") or run["policy"])


def _measured(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4g}"
