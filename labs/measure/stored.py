"""Reads results back: finds a run's directory by path, by "latest" or by the lab's name, and checks what is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from labs.measure.evidence import Evidence
from labs.measure.raw import FlowRole, RawIteration, RawRank
from labs.measure.schema import SCHEMA, check
from topologies.errors import LabError, nearest
from topologies.fabric import Fabric
from topologies.fabricd.telemetry import TRACE_DTYPE

RESULTS = Path("results")
LATEST = "latest"


@dataclass(frozen=True)
class StoredRun:
    """A results directory.  `run` below is an index into run.json's `runs`."""

    directory: Path
    document: Mapping[str, Any]
    fabrics: Mapping[str, Fabric]  # by the name of their file

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The elements of run.json's `runs`."""
        return list(self.document["runs"])

    @property
    def fabric(self) -> Fabric:
        """That of the first run."""
        return self.fabrics["fabric.json"]

    def fabric_of(self, run: int | Mapping[str, Any]) -> Fabric:
        """The fabric that a run (its index, or itself) was played on."""
        summary = self.runs[run] if isinstance(run, int) else run
        return self.fabrics[summary["fabric_file"]]

    def table(self, name: str, run: int | None = None) -> Any:
        """A pyarrow table (one of store.TABLES, "trace" for instance), of one run or of all.  Raises LabError."""
        whole = self.directory / f"{name}.parquet"
        parts = sorted((self.directory / "parts").glob(f"{name}-*.parquet"))
        try:
            if whole.is_file():
                return pq.read_table(whole, filters=None if run is None else [("run", "==", run)])
            if parts and run is not None and run < len(parts):
                return pq.read_table(parts[run])
            if parts:
                return pq.read_table(parts)
        except (OSError, ValueError) as error:
            raise LabError(f"cannot read {name} of {self.directory}: {error}", "run the lab again") from None
        raise LabError(f"{self.directory} has no {name}.parquet", "run the lab again")

    def select(self, label: str | None = None, seed: int | None = None) -> int:
        """Index of the first run with a label (or variant, or policy) and a seed; of all, where not given.

        Raises LabError.
        """
        for names in (("label",), ("variant", "policy")):
            for index, run in enumerate(self.runs):
                if (label is None or label in (run[name] for name in names)) and seed in (None, run["seed"]):
                    return index
        have = ", ".join(f"{run['label']}/{run['seed']}" for run in self.runs) or "no run at all"
        wanted = " and ".join([f"label {label!r}"] * (label is not None) + [f"seed {seed}"] * (seed is not None))
        guess = nearest(label, {run["label"] for run in self.runs}) if label else None
        raise LabError(f"{self.directory} has no run with {wanted or 'any label'}",
                       f"did you mean {guess}?" if guess and guess != label else f"it has {have}")

    def series(self, run: int) -> tuple[npt.NDArray[np.float64], dict[str, npt.NDArray[np.int64]]]:
        """Times (hardware us since the run's beginning) and depth in bytes, all classes together, of each port."""
        table = self.table("series", run)
        times, at = np.unique(np.asarray(table["t_us"]), return_inverse=True)
        index, depth = np.asarray(table["port_index"]), np.asarray(table["depth_bytes"])
        depths = {}
        for port in np.unique(index).tolist():
            here = index == port
            depths[self.fabric_of(run).port_name(port)] = np.bincount(
                at[here], weights=depth[here], minlength=len(times)).astype(np.int64)
        return times, depths

    def trace(self, run: int) -> npt.NDArray[Any]:
        """The trace as a TRACE_DTYPE array, in order of time."""
        table = self.table("trace", run)
        trace = np.zeros(len(table), dtype=TRACE_DTYPE)
        for name in table.column_names:
            if name in (TRACE_DTYPE.names or ()):
                trace[name] = np.asarray(table[name])
        return trace

    def iterations(self, run: int) -> tuple[RawIteration, ...]:
        """Iterations with their ranks, warm-up included."""
        by_number: dict[int, list[dict[str, Any]]] = {}
        for row in self.table("iterations", run).to_pylist():
            by_number.setdefault(row["n"], []).append(row)
        names = ("rank", "host", "ring", "first_tx_ns", "end_ns", "wrong", "error")
        return tuple(
            RawIteration(n, rows[0]["warmup"], rows[0]["start_ns"],
                         tuple(RawRank(**{name: row[name] for name in names}) for row in rows))
            for n, rows in sorted(by_number.items()))

    def evidence(self, run: int) -> Evidence:
        """What `why.explain` wants."""
        summary, flows = self.runs[run], self.table("flows", run).to_pylist()
        keys = [(number_of(f["src"]), number_of(f["dst"]), f["src_port"], f["dst_port"], f["protocol"]) for f in flows]
        roles = {index: FlowRole(*keys[index], flow["rank"], flow["peer"], flow["ring"], flow["start_us"], flow["qp"])
                 for index, flow in enumerate(flows) if flow["rank"] is not None}
        workload = summary.get("workload", {})
        return Evidence(
            fabric=self.fabric_of(run), policy=summary["policy"], seed=summary["seed"], label=summary["label"],
            variant=summary["variant"], fault_events=tuple(summary.get("faults", ())),
            collective=str(workload.get("collective", "all_reduce")), group_ranks=int(workload.get("ranks", 0)),
            ideal_us=float(summary["ideal_us"] or 0.0), iterations=self.iterations(run), trace=self.trace(run),
            flow_keys=keys, roles=roles, end_ns=int(summary.get("end_ns", 0)))

    @cached_property
    def labels(self) -> list[str]:
        """Labels in the order in which they were run."""
        return list(dict.fromkeys(run["label"] for run in self.runs))


def load_run(where: Path | str, results: Path = RESULTS) -> StoredRun:
    """The results at a directory or run.json, the "latest" below `results`, or the newest of a lab there.

    Raises LabError for whatever is not there, not readable, or not of this schema.
    """
    path = find_run(where, results)
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise LabError(f"{path} is not JSON: {error}", "it was edited or damaged: run the lab again") from None
    if not isinstance(document, dict) or "schema" not in document:
        raise LabError(f"{path} is not the result of a run: it has no schema")
    if document["schema"] != SCHEMA:
        raise LabError(f"{path} has schema {document['schema']!r}, this version of straggler reads {SCHEMA}",
                       "run the lab again, or read it with the version that wrote it")
    check(document)
    names = {"fabric.json", *(run["fabric_file"] for run in document["runs"])}
    try:
        fabrics = {name: Fabric.load(path.parent / name) for name in sorted(names)}
    except (KeyError, TypeError) as error:
        raise LabError(f"a fabric description in {path.parent} is not of this version: {error}",
                       "run the lab again") from None
    return StoredRun(path.parent, document, fabrics)


def find_run(where: Path | str, results: Path = RESULTS) -> Path:
    """Path of the run.json that is meant.  Raises LabError."""
    path = Path(where)
    if path.is_file():
        if path.name != "run.json":
            raise LabError(f"{path} is not a run.json", "give the directory of the results, or its run.json")
        return path
    if (path / "run.json").is_file():
        return path / "run.json"
    if path.is_dir():
        below = _newest(path.glob("**/run.json"))
        if below is None:
            raise LabError(f"{path} holds no results: there is no run.json", "run a lab first: straggler run LAB")
        return below
    found = {run.parent.parent.name for run in results.glob("*/*/run.json")}
    if str(where) == LATEST:
        newest = _newest(results.glob("*/*/run.json"))
        if newest is None:
            raise LabError(f"there are no results in {results}", "run a lab first: straggler run LAB")
        return newest
    newest = _newest(results.glob(f"{where}/*/run.json")) if _is_name(str(where)) else None
    if newest is not None:
        return newest
    guess = nearest(str(where), {*found, LATEST})
    raise LabError(f"no results at {where}", f"did you mean {guess}?" if guess else
                   f"a directory, a run.json, latest, or a lab that was run ({', '.join(sorted(found)) or 'none yet'})")


def _newest(paths: Any) -> Path | None:
    return max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)


def _is_name(text: str) -> bool:
    return bool(text) and "/" not in text and "*" not in text and ".." not in text


def number_of(address: str) -> int:
    """An IPv4 address as a number in host byte order."""
    first, second, third, fourth = (int(part) for part in address.split("."))
    return first << 24 | second << 16 | third << 8 | fourth
