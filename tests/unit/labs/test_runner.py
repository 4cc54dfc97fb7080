"""What the runner says and returns, from results that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from labs.lab import Expectation, Lab, load
from labs.runner_outcome import DONE, FAILED, INVALID, Outcome, Unfinished
from labs.runner_ui import ConsoleReporter, closing_lines, expectation_lines, parameter_lines
from labs.variants import plan


def run(policy: str = "ecmp", *, valid: bool = True, ratio: float | None = 2.0, next_slowdown: float | None = None,
        seed: int = 1, variant: str = "") -> dict[str, Any]:
    check = {"check": "lateness", "value": 400.0, "limit": 336.0, "unit": "us (lab)", "ok": valid, "explain": "late"}
    return {"policy": policy, "variant": variant, "label": variant or policy, "seed": seed, "valid": valid,
            "verdict": [check], "next_slowdown": next_slowdown, "jct_ratio": ratio,
            "time_us": {"mean": None if ratio is None else ratio * 100}}


@pytest.mark.parametrize(("runs", "reason", "status"), [
    ([run()], None, DONE),
    ([run(), run(valid=False)], None, INVALID),
    ([run(valid=False)], "rank on h2: its process was killed by SIGKILL", FAILED),
    ([run(valid=False)], "fabricd died", FAILED),
    ([run(valid=False)], "the controller died", INVALID),
    ([run()], "interrupted", FAILED),
    ([], "interrupted", FAILED),
])
def test_exit_status(runs: list[dict[str, Any]], reason: str | None, status: int) -> None:
    assert Outcome(Path("x"), runs, reason).exit_status == status


@pytest.mark.parametrize(("expected", "status"), [(True, DONE), (False, FAILED)])
def test_a_run_that_was_given_up_is_a_failure_unless_the_lab_says_so(expected: bool, status: int) -> None:
    given_up = Unfinished("deadlock", 1, "nothing moved", expected)
    outcome = Outcome(Path("x"), [run(variant="deadlock")], None, [given_up])
    assert outcome.exit_status == status
    (line,) = (line for line in closing_lines(load("m5"), outcome, expectations=False) if "given up" in line)
    assert ("as expected" in line) == expected
    assert "nothing moved" in line


def test_the_slowdown_to_try_next_is_named() -> None:
    outcome = Outcome(Path("out"), [run(valid=False, next_slowdown=20_000), run(valid=False, next_slowdown=50_000)])
    lines = closing_lines(load("m5"), outcome, expectations=False)
    assert "try again with --slowdown 50000" in lines
    assert any("lateness = 400 (limit 336 us (lab)): late" in line for line in lines)
    nothing_helps = Outcome(Path("out"), [run(valid=False)])
    assert not any("--slowdown" in line for line in closing_lines(load("m5"), nothing_helps, expectations=False))


def test_expectations_are_compared_with_valid_runs() -> None:
    lab = load("m5").replace(expectations=(Expectation("dlb", "jct_ratio", at_most=1.15, why="because"),
                                           Expectation("spray", "jct_ratio", at_least=1.0)))
    met = expectation_lines(lab, [run("dlb", ratio=1.05), run("dlb", ratio=1.1)])
    assert met == ["dlb: jct_ratio <= 1.15: [green]as expected[/green]; because"]
    of_variant = expectation_lines(lab.replace(expectations=(Expectation("pfc", "jct_ratio", at_most=3),)),
                                   [run(variant="pfc"), run(variant="none", ratio=9)])
    assert of_variant == ["pfc: jct_ratio <= 3: [green]as expected[/green]; "]
    missed = expectation_lines(lab, [run("dlb", ratio=1.05), run("dlb", ratio=1.3)])
    assert "[yellow]not as expected[/yellow] (1.3)" in missed[0]


def reporter() -> tuple[ConsoleReporter, Console]:
    console = Console(width=200, record=True, force_terminal=False)
    return ConsoleReporter(console), console


def test_progress_without_a_terminal_is_plain_lines() -> None:
    report, console = reporter()
    lab: Lab = load("m5").replace(policies=("ecmp", "dlb"), iterations=1, warmup=0)
    report.parameters(lab)
    runs = plan(lab, [1])
    report.runs_begin(runs)
    for planned in runs:
        policy = planned.policy
        report.run_begins(planned)
        report.iteration_begins(0, False)
        report.iteration_ended(0, False, 400.0)
        report.run_ended(run(policy, valid=policy == "ecmp"))
    report.runs_ended()
    text = console.export_text()
    assert "[1/2] ecmp seed 1: 200.0 us, 2.00 times the ideal\n" in text
    assert "[2/2] dlb seed 1: 200.0 us, 2.00 times the ideal  INVALID" in text
    assert text.index("slowdown=10000") < text.index("[1/2]")


def test_the_time_left_learns_from_every_policy() -> None:
    report, _ = reporter()
    lab = load("m5").replace(policies=("ecmp", "dlb"), iterations=2, warmup=0)
    runs = plan(lab, [1, 2])
    report.runs_begin(runs)
    report.run_begins(runs[0])
    begun = report._left_s()
    assert begun == pytest.approx(8 * (2 * lab.ideal_us / 100 + 0.6))  # 100 us of hardware are a second
    report.iteration_ended(0, False, 1000.0)
    assert report._left_s() == pytest.approx(3 * 10.6 + 4 * (2 * lab.ideal_us / 100 + 0.6))
    report.run_begins(runs[1])  # the first was given up
    assert report._left_s() == pytest.approx(2 * 10.6 + 4 * (2 * lab.ideal_us / 100 + 0.6))


def test_a_run_without_a_finished_iteration_is_reported() -> None:
    report, console = reporter()
    runs = plan(load("m5"), [1])
    report.runs_begin(runs)
    report.run_begins(runs[0])
    report.run_ended(run(valid=False, ratio=None))
    assert "not finished  INVALID" in console.export_text()


def test_parameters_are_lines_of_key_and_value() -> None:
    sections = [line.split(":")[0] for line in parameter_lines(load("m5"))]
    assert [section.removeprefix("[dim]") for section in sections] == ["lab", "fabric", "workload", "policy flowlet"]
