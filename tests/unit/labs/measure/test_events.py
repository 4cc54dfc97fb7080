"""The table of events: what stopped, what was planted, what was dropped, and `straggler events`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from labs.cli import main
from labs.measure.events import KINDS, SCHEMA, table
from labs.measure.evidence import Evidence
from labs.measure.raw import RawRun
from labs.measure.store import RunWriter
from tests.unit.labs.measure.lossless import LosslessRun
from tests.unit.labs.measure.synthetic import changed, planted
from tests.unit.labs.measure.test_pauses import deadlock, drain, slow_receiver, spec
from topologies.fabricd.telemetry import TraceKind


def rows(raw: RawRun, kind: str | None = None) -> list[dict[str, object]]:
    return [row for row in table(raw, Evidence.of(raw)).to_pylist() if kind in (None, row["kind"])]


def test_every_pause_is_there_with_who_why_and_how_long() -> None:
    raw = slow_receiver().raw()
    pauses = rows(raw, "pause")
    assert len(pauses) == ((raw.trace["kind"] == TraceKind.PAUSED) & (raw.trace["psn"] == 1)).sum()
    first = next(row for row in pauses if row["where"] == "leaf1->h4")
    assert first["text"].startswith("h4 paused leaf1->h4, class 3, for ")
    assert first["text"].endswith("in its receive buffer")
    second = next(row for row in pauses if row["where"] == "spine0->leaf1")
    assert "leaf1 paused spine0->leaf1" in second["text"]
    assert second["text"].endswith("most of it in the queue of leaf1->h4")
    assert second["bytes"] > 20 * 1024
    lasted = raw.trace[(raw.trace["kind"] == TraceKind.PAUSED) & (raw.trace["psn"] == 0)]["wait_ns"].sum()
    assert sum(row["duration_us"] for row in pauses) == pytest.approx(raw.fabric.clock.hardware_us(float(lasted)))


def test_rows_are_in_order_and_of_the_published_columns() -> None:
    found = table(slow_receiver().raw(), Evidence.of(slow_receiver().raw()))
    assert found.schema == SCHEMA
    times = found["t_ns"].to_pylist()
    assert times == sorted(times)
    assert {row["kind"] for row in found.to_pylist()} <= set(KINDS)


def test_faults_watchdogs_and_drops() -> None:
    raw = slow_receiver().raw()
    [fault] = rows(raw, "fault")
    assert (fault["where"], fault["text"], fault["ended"]) == ("h4", "planted: h4 takes in 10 Gb/s", False)
    raw = deadlock("drop").raw()
    assert {row["where"] for row in rows(raw, "watchdog")} <= {"leaf0->spine0", "spine0->leaf1", "leaf1->spine1",
                                                               "spine1->leaf0"}
    dropped = sum(int(row["text"].split()[0].replace(",", "")) for row in rows(raw, "drops"))
    assert dropped == (raw.trace["kind"] == TraceKind.DROP).sum() > 0
    assert all(row["text"].endswith("watchdog") for row in rows(raw, "drops"))


def test_a_stall_of_credits_that_never_ended_says_so() -> None:
    run = LosslessRun(spec(flow_control="credits"))
    drain(run, "h4", 10)
    run.message("h0", "h4", 60)
    run.play(20)
    stalls = rows(run.raw(), "credit_stall")
    assert stalls
    assert any(not row["ended"] and row["text"].endswith("to the end of the run") for row in stalls)


def test_what_the_controller_did() -> None:
    raw = changed(planted("none"), controller_events=(
        {"t_ns": planted("none").start_ns + 10, "kind": "move", "leaf": "leaf0", "entry": 3, "from": 0, "to": 2},
        {"t_ns": planted("none").start_ns + 5, "kind": "disconnect", "switch": "spine1"}))
    assert [(row["kind"], row["where"], row["text"]) for row in rows(raw)] == [
        ("disconnect", "spine1", "controller: disconnect: switch spine1"),
        ("move", "leaf0", "leaf0: entry 3 from 0 to 2")]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("work")
    writer = RunWriter(root / "results" / "lossless" / "2025-01-31T12-00-00")
    writer.add(changed(slow_receiver().raw(), label="slow"))
    writer.add(changed(deadlock().raw(), label="deadlock"))
    return root


def invoke(results: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.chdir(results)
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_events_are_read_back(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = invoke(results, monkeypatch, "events", "latest")
    assert "slow, seed 1: " in output
    assert "the first 50 (--all shows the rest)" in output
    only = invoke(results, monkeypatch, "events", "latest", "--run", "deadlock", "--kind", "pause", "--json")
    assert {json.loads(line)["kind"] for line in only.splitlines()} == {"pause"}


def test_why_finds_the_same_in_stored_results(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = invoke(results, monkeypatch, "why", "latest", "--run", "slow")
    assert "slow, seed 1, iteration 0: pause" in output
    assert "Planted: h4 takes in 10 Gb/s" in " ".join(output.split())
    answer = json.loads(invoke(results, monkeypatch, "why", "latest", "--run", "deadlock", "--json"))
    assert answer["held"][0]["kind"] == "deadlock"
    assert answer["lost_us"]["pause"] > 1900


def test_a_kind_that_is_not_there_is_one_line_and_status_2(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(results)
    result = CliRunner().invoke(main, ["events", "latest", "--kind", "paus"])
    assert result.exit_code == 2
    assert "did you mean pause?" in result.output
