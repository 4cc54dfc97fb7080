"""Results on disk: persistent at once, never half written, and read back as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest

from labs.measure import store
from labs.measure.evidence import Evidence
from labs.measure.store import RunWriter
from labs.measure.stored import find_run, load_run
from labs.measure.table import COLUMNS, cells, results_table
from labs.measure.why import explain
from tests.unit.labs.measure.synthetic import changed, planted
from topologies.errors import LabError


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("results") / "lab" / "time"
    writer = RunWriter(directory, {"lab": {"name": "synthetic"}})
    for cause in ("none", "collision", "drop"):
        writer.add(planted(cause))
    writer.finish()
    return directory


def test_everything_is_there(written: Path) -> None:
    names = {path.name for path in written.iterdir()}
    assert names >= {"run.json", "fabric.json", "report.html", "plots", "trace.parquet", "series.parquet",
                     "flows.parquet", "iterations.parquet"}
    assert "parts" not in names
    assert not [name for name in names if name.endswith(".new")]


def test_the_document(written: Path) -> None:
    document = json.loads((written / "run.json").read_text())
    assert document["schema"] == 1
    assert document["slowdown"] == 10_000
    assert document["fabric"]["leaves"] == 4
    assert set(document["host"]) >= {"cpus", "kernel", "ovs", "datapath"}
    assert [run["policy"] for run in document["runs"]] == ["planted_none", "planted_collision", "planted_drop"]
    assert document["finished"] >= document["started"]


def test_tables_carry_the_run_and_nothing_is_thinned(written: Path) -> None:
    trace = pq.read_table(written / "trace.parquet")
    assert len(trace) == sum(len(planted(cause).trace) for cause in ("none", "collision", "drop"))
    assert set(np.asarray(trace["run"]).tolist()) == {0, 1, 2}
    iterations = pq.read_table(written / "iterations.parquet").to_pylist()
    assert len(iterations) == 3 * 2 * 16
    flows = pq.read_table(written / "flows.parquet").to_pylist()
    assert flows[0]["src"] == "10.0.0.1"
    assert flows[0]["rank"] == 0
    assert flows[16]["rank"] is None  # acknowledgements


def test_why_says_the_same_afterwards(written: Path) -> None:
    stored = load_run(written)
    for index, cause in enumerate(("none", "collision", "drop")):
        assert explain(stored.evidence(index), 1) == explain(Evidence.of(planted(cause)), 1)


def test_the_series_come_back(written: Path) -> None:
    raw = planted("collision")
    times, depths = load_run(written).series(1)
    port = raw.fabric.uplinks("leaf1")[2]
    assert np.array_equal(depths["leaf1->spine2"], raw.series_depth[:, port.index, 0])
    assert times[0] == pytest.approx((raw.series_t_ns[0] - raw.start_ns) / 1e3 / 10_000)


def test_a_run_is_on_disk_as_soon_as_it_is_added(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "out")
    writer.add(planted("collision"))
    stored = load_run(tmp_path / "out")  # no finish(): the power failed
    assert stored.document["finished"] is None
    assert explain(stored.evidence(0), 1).cause == "collision"
    assert len(stored.table("trace")) == len(planted("collision").trace)


def test_a_crash_while_writing_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RunWriter(tmp_path)
    writer.add(planted("none"))

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(store.os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        writer.add(planted("collision"))
    monkeypatch.undo()
    assert [run["policy"] for run in load_run(tmp_path).runs] == ["planted_none"]


def test_nothing_was_run(tmp_path: Path) -> None:
    RunWriter(tmp_path / "out").finish()
    assert not (tmp_path / "out" / "run.json").exists()


def test_nowhere_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="cannot write results"):
        RunWriter(tmp_path / "file")


def test_an_empty_run_can_be_stored(tmp_path: Path) -> None:
    raw = planted("none")
    RunWriter(tmp_path).add(changed(raw, iterations=(), trace=raw.trace[:0], series_t_ns=raw.series_t_ns[:0],
                                    series_depth=raw.series_depth[:0], before=raw.after))
    assert load_run(tmp_path).series(0)[1] == {}


def test_the_published_schema_is_a_schema() -> None:
    published = json.loads((Path(store.__file__).parent / "schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(published)


def test_a_document_against_the_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"run\.json: slowdown"):
        store.check({"schema": 1, "lab": "x", "started": "now", "host": {"cpus": 1, "kernel": "", "ovs": "",
                     "datapath": "netdev"}, "fabric": {}, "slowdown": "fast", "runs": []})


@pytest.mark.parametrize(("content", "message"), [
    (None, "no results"), ("{", "is not JSON"), ("[]", "is not the result of a run"), ('{"a": 1}', "no schema"),
    ('{"schema": 99}', "has schema 99")])
def test_bad_results_are_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(LabError, match=message):
        load_run(tmp_path)


def test_finding_results(written: Path, tmp_path: Path) -> None:
    results = written.parent.parent
    assert find_run("latest", results) == find_run("lab", results) == written / "run.json"
    assert find_run(written) == find_run(written / "run.json") == find_run(written.parent)
    with pytest.raises(LabError) as error:
        find_run("lap", results)
    assert error.value.remedy == "did you mean lab?"
    with pytest.raises(LabError, match="there are no results in"):
        find_run("latest", tmp_path)
    with pytest.raises(LabError, match=r"is not a run\.json"):
        find_run(written / "fabric.json")


def test_selecting_a_run(written: Path) -> None:
    stored = load_run(written)
    assert stored.select() == 0
    assert stored.select("planted_drop") == 2
    assert stored.select(seed=1) == 0
    with pytest.raises(LabError) as error:
        stored.select("planted_dorp")
    assert error.value.remedy == "did you mean planted_drop?"
    with pytest.raises(LabError, match="policy 'planted_drop' and seed 7"):
        stored.select("planted_drop", 7)


def test_missing_series_is_named(written: Path, tmp_path: Path) -> None:
    for name in ("run.json", "fabric.json"):
        (tmp_path / name).write_text((written / name).read_text())
    with pytest.raises(LabError, match=r"no trace\.parquet"):
        load_run(tmp_path).trace(0)
    (tmp_path / "trace.parquet").write_text("not a table")
    with pytest.raises(LabError, match="cannot read trace"):
        load_run(tmp_path).trace(0)


def test_the_table_has_a_line_a_run(written: Path) -> None:
    runs = load_run(written).runs
    assert results_table(runs).row_count == 3
    assert len(results_table(runs, width=200).columns) == len(COLUMNS)
    narrow = [str(column.header) for column in results_table(runs, width=80).columns]
    assert len(narrow) < len(COLUMNS)
    assert {"policy", "ratio", "busbw\n(Gb/s)", "#wrong", "verdict"} <= set(narrow)
    line = dict(zip((name for name, _, _ in COLUMNS), cells(runs[1]), strict=True))
    assert line["policy"] == "planted_collision"
    assert line["size"] == "262,144"
    assert line["#wrong"] == "0"
    assert line["verdict"] == "valid"
    assert line["theory"] == "-"
    bad = {**runs[1], "valid": False, "verdict": [{**runs[1]["verdict"][0], "ok": False}]}
    assert cells(bad)[-1] == "INVALID (lateness)"
