"""Results on disk: run.json, Parquet series and the fabric's description; written run by run, read back whole.

A run is on disk, complete, as soon as `RunWriter.add` returns: Ctrl-C, or a crash later on, costs none of the earlier
ones.  Until `finish` each run has its own Parquet files in `parts/`; then they become one file each, with a `run`
column.

  run.json             schema-checked (schema.json), one element of `runs` for each variant, policy and seed
  fabric.json          topologies.fabric.Fabric of the first run; fabric-1.json, ... where others were built
  trace.parquet        every packet at every hop, drops, path changes, transport events: nothing is thinned out
  series.parquet       queue depths over time; a port and class that stayed empty for the whole run has no rows
  flows.parquet        counters of each flow
  iterations.parquet   each rank in each iteration
  events.parquet       pauses, stalls, watchdogs, faults, the controller's moves: labs.measure.events
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from labs.measure import events
from labs.measure.evidence import Evidence
from labs.measure.raw import RawRun
from labs.measure.results import flow_table, summarise
from labs.measure.schema import SCHEMA, check
from labs.measure.stored import load_run
from topologies.errors import LabError
from topologies.fabric import Fabric

TABLES = ("trace", "series", "flows", "iterations", "events")


class RunWriter:
    """Writes into `directory`, which it creates.  `parameters`: every effective parameter, for run.json."""

    def __init__(self, directory: Path | str, parameters: Mapping[str, Any] | None = None) -> None:
        self.directory = Path(directory)
        self._document: dict[str, Any] = {"schema": SCHEMA, "started": _now(), "finished": None,
                                          "parameters": dict(parameters or {}), "runs": []}
        self._fabrics: list[Fabric] = []
        try:
            (self.directory / "parts").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LabError(f"cannot write results to {self.directory}: {error.strerror}",
                           "choose another place with --out") from None

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Summaries of the runs added so far."""
        return list(self._document["runs"])

    def add(self, raw: RawRun) -> dict[str, Any]:
        """Summarises the run, makes it persistent and returns the summary."""
        index = len(self._document["runs"])
        evidence = Evidence.of(raw)
        summary = summarise(raw, evidence)
        if index == 0:
            self._document |= {
                "lab": raw.fabric.lab, "slowdown": raw.fabric.slowdown, "fabric": raw.fabric.spec.to_dict(),
                "host": {"cpus": os.cpu_count() or 1, "kernel": platform.release(), "ovs": raw.fabric.ovs_version,
                         "datapath": raw.fabric.datapath, "python": platform.python_version()}}
        summary["fabric_file"] = self._fabric_file(raw.fabric)
        for name, table in _tables(raw, evidence, index).items():
            _atomically(self._part(name, index), partial(pq.write_table, table, compression="zstd"))
        self._document["runs"].append(_plain(summary))
        self._save()
        return summary

    def finish(self) -> Path:
        """Joins the Parquet files, writes the final run.json, the plots and the report; returns run.json's path."""
        runs = len(self._document["runs"])
        for name in TABLES if runs else ():
            def join(draft: Path, name: str = name) -> None:
                first = pq.read_schema(self._part(name, 0))
                with pq.ParquetWriter(draft, first, compression="zstd") as writer:
                    for index in range(runs):
                        writer.write_table(pq.read_table(self._part(name, index)).cast(first))
            _atomically(self.directory / f"{name}.parquet", join)
        self._document["finished"] = _now()
        if runs:
            self._save()
        shutil.rmtree(self.directory / "parts", ignore_errors=True)
        if runs:
            # matplotlib is slow to import, and nobody needs it before.
            from labs.plots.report import write_report

            write_report(load_run(self.directory))
        return self.directory / "run.json"

    def _fabric_file(self, fabric: Fabric) -> str:
        """The file that describes the run's fabric, written when it is a new one.

        Hash seeds, which the controller draws anew for each seed, and process numbers make no other fabric.
        """
        bare = replace(fabric, hosts=tuple(replace(host, pid=0) for host in fabric.hosts),
                       switches=tuple(replace(switch, hash_seed=0) for switch in fabric.switches))
        new = bare not in self._fabrics
        if new:
            self._fabrics.append(bare)
        number = self._fabrics.index(bare)
        name = f"fabric-{number}.json" if number else "fabric.json"
        if new:
            fabric.save(self.directory / name)
        return name

    def _part(self, name: str, index: int) -> Path:
        return self.directory / "parts" / f"{name}-{index:04d}.parquet"

    def _save(self) -> None:
        check(self._document)
        text = json.dumps(self._document, indent=1, allow_nan=False) + "\n"
        _atomically(self.directory / "run.json", lambda draft: draft.write_text(text))


def _tables(raw: RawRun, evidence: Evidence, run: int) -> dict[str, pa.Table]:
    trace = {name: evidence.trace[name] for name in evidence.trace.dtype.names or () if name != "reserved"}
    return {
        "trace": _with_run(pa.table(trace), run),
        "series": _with_run(_series(raw), run),
        "flows": _with_run(pa.Table.from_pylist(flow_table(raw), schema=_FLOWS), run),
        "iterations": _with_run(pa.Table.from_pylist([
            {"n": iteration.n, "warmup": iteration.warmup, "start_ns": iteration.start_ns, "rank": rank.rank,
             "host": rank.host, "ring": rank.ring, "first_tx_ns": rank.first_tx_ns, "end_ns": rank.end_ns,
             "wrong": rank.wrong, "error": rank.error}
            for iteration in raw.iterations for rank in iteration.ranks], schema=_ITERATIONS), run),
        "events": _with_run(events.table(raw, evidence), run),
    }


def _series(raw: RawRun) -> pa.Table:
    """Long form: a row per time, port and class, for the ports and classes that ever held a byte."""
    depth = raw.series_depth
    port, traffic_class = np.nonzero(depth.max(axis=0)) if len(depth) else (np.zeros(0, int), np.zeros(0, int))
    rows = len(depth)
    names = [raw.fabric.port_name(int(index)) for index in port]
    return pa.table({
        "t_ns": np.tile(raw.series_t_ns, len(port)),
        "t_us": np.tile((raw.series_t_ns - raw.start_ns) / 1e3 / raw.fabric.slowdown, len(port)),
        "port": pa.array(np.repeat(np.array(names, dtype=object), rows), pa.string()),
        "port_index": np.repeat(port, rows).astype(np.uint16),
        "traffic_class": np.repeat(traffic_class, rows).astype(np.uint8),
        "depth_bytes": depth[:, port, traffic_class].T.ravel(),
    })


_FLOWS = pa.schema([("flow", pa.uint32()), ("src", pa.string()), ("dst", pa.string()), ("src_port", pa.uint16()),
                    ("dst_port", pa.uint16()), ("protocol", pa.uint8()), ("sent_frames", pa.int64()),
                    ("sent_bytes", pa.int64()), ("delivered_frames", pa.int64()), ("delivered_bytes", pa.int64()),
                    ("dropped_frames", pa.int64()), ("path_changes", pa.int64()), ("rank", pa.int32()),
                    ("peer", pa.int32()), ("ring", pa.int32()), ("start_us", pa.float64()), ("qp", pa.uint32())])
_ITERATIONS = pa.schema([("n", pa.int32()), ("warmup", pa.bool_()), ("start_ns", pa.int64()), ("rank", pa.int32()),
                         ("host", pa.string()), ("ring", pa.int32()), ("first_tx_ns", pa.int64()),
                         ("end_ns", pa.int64()), ("wrong", pa.int64()), ("error", pa.string())])


def _with_run(table: pa.Table, run: int) -> pa.Table:
    return table.add_column(0, "run", pa.array(np.full(len(table), run, dtype=np.uint16)))


def _atomically(path: Path, write: Callable[[Path], object]) -> None:
    """The file is there whole, or as it was before."""
    draft = path.with_name(f".{path.name}.new")
    write(draft)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(draft, path)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _plain(value: Any) -> Any:
    """The same with Python's own numbers only."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value
