"""`straggler why`, `plot` and `report`: what a person types and reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from labs.cli import main
from labs.measure.store import RunWriter
from tests.unit.labs.measure.synthetic import planted


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("work")
    writer = RunWriter(root / "results" / "synthetic" / "2025-01-31T12-00-00")
    writer.add(planted("collision"))
    writer.add(planted("reordering"))
    return root


@pytest.fixture
def runner(results: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.chdir(results)
    return CliRunner()


def test_why(runner: CliRunner) -> None:
    result = runner.invoke(main, ["why", "latest"])
    assert result.exit_code == 0, result.output
    assert "planted_collision, seed 1, iteration 1: collision" in result.output
    assert "Who shared leaf1->spine2" in result.output


def test_why_of_one_policy_as_json(runner: CliRunner) -> None:
    result = runner.invoke(main, ["why", "synthetic", "--policy", "planted_reordering", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["cause"] == "reordering"


@pytest.mark.parametrize(("arguments", "message"), [
    (["why", "sinthetic"], "did you mean synthetic?"), (["why", "latest", "--run", "ecpm"], "no run with label"),
    (["why", "latest", "--iteration", "7"], "one of: 0, 1"), (["plot", "nowhere"], "no results at nowhere"),
    (["report", "/etc/passwd"], "is not a run.json")])
def test_wrong_use_is_one_line_and_status_2(runner: CliRunner, arguments: list[str], message: str) -> None:
    result = runner.invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) == 1


def test_plot_says_what_it_cannot_draw(runner: CliRunner, results: Path) -> None:
    result = runner.invoke(main, ["plot", "latest"])
    assert result.exit_code == 0, result.output
    assert "plots/overview.png" in result.output
    assert "drops: not drawn. Nothing was dropped" in result.output


def test_report(runner: CliRunner) -> None:
    result = runner.invoke(main, ["report", "latest"])
    assert result.exit_code == 0, result.output
    assert Path(result.output.strip()).read_text().startswith("<!doctype html>")
