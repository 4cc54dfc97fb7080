"""Results on disk: persistent at once, never half written, and read back as they were."""

from __future__ import annotations

import json
from dataclasses import replace
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
                     "flows.parquet", "iterations.parquet", "events.parquet"}
    assert "parts" not in names
    assert not [name for name in names if name.endswith(".new")]


def test_the_document(written: Path) -> None:
    document = json.loads((written / "run.json").read_text())
    assert document["schema"] == 2
    assert document["slowdown"] == 10_000
    assert document["fabric"]["leaves"] == 4
    assert set(document["host"]) >= {"cpus", "kernel", "ovs", "datapath"}
    assert [run["label"] for run in document["runs"]] == ["planted_none", "planted_collision", "planted_drop"]
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
        store.check({"schema": 2, "lab": "x", "started": "now", "host": {"cpus": 1, "kernel": "", "ovs": "",
                     "datapath": "userspace"}, "fabric": {}, "slowdown": "fast", "runs": []})


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


def test_a_fabric_is_described_once_for_all_runs_that_were_played_on_it(written: Path, tmp_path: Path) -> None:
    """Runs 0 and 1 share one, run 2 has smaller buffers; other hash seeds and process numbers make no other fabric."""
    stored = load_run(written)
    assert [run["fabric_file"] for run in stored.runs] == ["fabric.json", "fabric.json", "fabric-1.json"]
    assert stored.fabric == stored.fabric_of(1) == planted("collision").fabric
    assert stored.fabric_of(2) == stored.fabric_of(stored.runs[2]) == planted("drop").fabric
    assert stored.evidence(2).fabric.spec.buffer_kb == 64
    raw = planted("none")
    again = replace(raw.fabric, hosts=tuple(replace(host, pid=99) for host in raw.fabric.hosts),
                    switches=tuple(replace(switch, hash_seed=7) for switch in raw.fabric.switches))
    writer = RunWriter(tmp_path)
    for run in (raw, planted("drop"), changed(raw, fabric=again)):
        writer.add(run)
    assert [run["fabric_file"] for run in writer.runs] == ["fabric.json", "fabric-1.json", "fabric.json"]


def test_a_folder_that_is_written_again_describes_the_new_fabric(tmp_path: Path) -> None:
    for cause in ("none", "drop"):
        RunWriter(tmp_path).add(planted(cause))
    assert load_run(tmp_path).fabric == planted("drop").fabric


def test_labels_variants_and_faults_come_back(tmp_path: Path) -> None:
    raw = planted("none")
    event = {"t_ns": raw.start_ns + 5_000_000, "kind": "fault", "fault": "slow_receiver", "state": "begin",
             "device": "h3", "text": "h3 takes in 25 Gb/s"}
    writer = RunWriter(tmp_path)
    writer.add(changed(raw, label="pfc, dlb", variant="pfc", policy="dlb", fault_events=(event,)))
    writer.add(changed(raw, label="pfc, ecmp", variant="pfc", policy="ecmp", seed=3))
    stored = load_run(tmp_path)
    assert stored.labels == ["pfc, dlb", "pfc, ecmp"]
    assert [stored.select(name) for name in ("pfc, ecmp", "pfc", "ecmp", "dlb")] == [1, 0, 1, 0]
    assert stored.select("pfc", seed=3) == 1
    evidence = stored.evidence(0)
    assert (evidence.label, evidence.variant) == ("pfc, dlb", "pfc")
    assert dict(evidence.fault_events[0]) == {**event, "t_us": 0.5}
    assert stored.table("events", 0).to_pylist()[0]["kind"] == "fault"


def test_a_run_without_a_label_is_called_by_its_policy(written: Path) -> None:
    assert load_run(written).labels == ["planted_none", "planted_collision", "planted_drop"]


def test_results_of_an_older_version_are_refused_with_a_remedy(written: Path, tmp_path: Path) -> None:
    document = json.loads((written / "run.json").read_text())
    for run in document["runs"]:
        del run["label"], run["pauses"]
    (tmp_path / "run.json").write_text(json.dumps({**document, "schema": 1}))
    with pytest.raises(LabError, match="has schema 1, this version of straggler reads 2") as error:
        load_run(tmp_path)
    assert "run the lab again" in error.value.remedy
    (tmp_path / "run.json").write_text(json.dumps(document))
    with pytest.raises(LabError, match="required property"):
        load_run(tmp_path)


@pytest.mark.parametrize("damage", [{"spec": 3}, {"ports": [{"index": 0}]}, {"switches": None}])
def test_a_damaged_fabric_description_is_named(written: Path, tmp_path: Path, damage: dict[str, Any]) -> None:
    for name in ("run.json", "fabric.json", "fabric-1.json"):
        (tmp_path / name).write_text((written / name).read_text())
    fabric = json.loads((written / "fabric-1.json").read_text())
    (tmp_path / "fabric-1.json").write_text(json.dumps({**fabric, **damage}))
    with pytest.raises(LabError, match="fabric"):
        load_run(tmp_path)


def test_selecting_a_run(written: Path) -> None:
    stored = load_run(written)
    assert stored.select() == 0
    assert stored.select("planted_drop") == 2
    assert stored.select(seed=1) == 0
    with pytest.raises(LabError) as error:
        stored.select("planted_dorp")
    assert error.value.remedy == "did you mean planted_drop?"
    with pytest.raises(LabError, match="label 'planted_drop' and seed 7"):
        stored.select("planted_drop", 7)


def test_missing_series_is_named(written: Path, tmp_path: Path) -> None:
    for name in ("run.json", "fabric.json", "fabric-1.json"):
        (tmp_path / name).write_text((written / name).read_text())
    with pytest.raises(LabError, match=r"no trace\.parquet"):
        load_run(tmp_path).trace(0)
    (tmp_path / "trace.parquet").write_text("not a table")
    with pytest.raises(LabError, match="cannot read trace"):
        load_run(tmp_path).trace(0)


def test_the_table_has_a_line_a_run(written: Path) -> None:
    runs = load_run(written).runs
    assert results_table(runs).row_count == 3
    wide = {str(column.header).partition("\n")[0] for column in results_table(runs, width=200).columns}
    assert wide == {name for name, _, _ in COLUMNS} - {"theory", "pauses", "stalls", "marks", "reordered", "moves"}
    paused = [{**runs[0], "pauses": 12, "marks": 3}, *runs[1:]]
    shown = {str(column.header) for column in results_table(paused, width=200).columns}
    assert {"pauses", "marks"} <= shown
    assert "stalls" not in shown
    narrow = [str(column.header) for column in results_table(runs, width=80).columns]
    assert len(narrow) < len(COLUMNS)
    assert {"run", "ratio", "busbw\n(Gb/s)", "#wrong", "verdict"} <= set(narrow)
    line = dict(zip((name for name, _, _ in COLUMNS), cells(runs[1]), strict=True))
    assert line["run"] == "planted_collision"
    assert line["size"] == "262,144"
    assert line["#wrong"] == "0"
    assert line["verdict"] == "valid"
    assert line["theory"] == "-"
    bad = {**runs[1], "valid": False, "verdict": [{**runs[1]["verdict"][0], "ok": False}]}
    assert cells(bad)[-1] == "INVALID (lateness)"
