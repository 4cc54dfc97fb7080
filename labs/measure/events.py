"""The events of a run in one table: who stopped whom and why, faults, moves of the controller, errors, drops.

A row an event, in order of time; drops and marks are summed up, in the row of the first.

  t_ns           lab time (CLOCK_MONOTONIC); t_us: hardware us after the run's beginning
  kind           pause, credit_stall, watchdog, fault, drops, marks (ECN), qp_error, timeout; move ... (controller)
  where          the port that was stopped, the device that failed
  traffic_class  null where an event has none
  duration_us    null for what has no end
  bytes          charged to the ingress that said "pause"; queued; dropped
  ended          false: it still lasted at the end of the run; null: it has no duration
  text           all of it in words
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from labs.measure.evidence import Evidence
from labs.measure.pauses import active_faults
from labs.measure.raw import RawRun
from labs.measure.standing import NOWHERE
from topologies.fabricd._core import lib
from topologies.fabricd.telemetry import DropReason, TraceKind

SCHEMA = pa.schema([("t_ns", pa.int64()), ("t_us", pa.float64()), ("kind", pa.string()), ("where", pa.string()),
                    ("traffic_class", pa.int8()), ("duration_us", pa.float64()), ("bytes", pa.int64()),
                    ("ended", pa.bool_()), ("text", pa.string())])
KINDS = ("pause", "credit_stall", "watchdog", "fault", "drops", "marks", "qp_error", "timeout")


def table(raw: RawRun, evidence: Evidence) -> pa.Table:
    """The events of a run, see the module."""
    us = evidence.fabric.clock.hardware_us
    rows = [*_holds(evidence), *_watchdogs(evidence), *_faults(raw, evidence), *_drops(evidence), *_marks(evidence),
            *_transport(evidence), *_controller(raw)]
    for row in rows:
        row["t_us"] = us(float(row["t_ns"] - raw.start_ns))
    return pa.Table.from_pylist(sorted(rows, key=lambda row: int(row["t_ns"])), schema=SCHEMA)


def _holds(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Pauses and waits for credits: at the port that was stopped."""
    fabric = evidence.fabric
    name, us = fabric.port_name, fabric.clock.hardware_us
    for row in evidence.holds.rows:
        port = fabric.port(int(row["port"]))
        peer, traffic_class = fabric.peer(port).device, int(row["traffic_class"])
        lasted_us = us(float(row["end_ns"] - row["begin_ns"]))
        until = f"for {lasted_us:.3g} us" if row["ended"] else "to the end of the run"
        if row["credits"]:
            text = f"{name(port.index)} had no credits of {peer} for class {traffic_class} {until}"
        elif not row["said"]:
            text = f"{peer} paused {name(port.index)}, class {traffic_class}, {until}, though nothing was full there"
        else:
            kb = int(row["charged_bytes"]) / 1024
            holder = int(row["holder"])
            held = (f"most of it in the queue of {name(holder)}" if holder != NOWHERE else
                    "in its receive buffer" if fabric.peer(port).kind == "host" else "inside the switch")
            text = f"{peer} paused {name(port.index)}, class {traffic_class}, {until}: it held {kb:.1f} KB, {held}"
        yield {"t_ns": int(row["begin_ns"]), "kind": "credit_stall" if row["credits"] else "pause",
               "where": name(port.index), "traffic_class": traffic_class, "duration_us": lasted_us,
               "bytes": None if row["credits"] else int(row["charged_bytes"]), "ended": bool(row["ended"]),
               "text": text}


def _watchdogs(evidence: Evidence) -> Iterator[dict[str, Any]]:
    fabric = evidence.fabric
    for row in evidence.holds.watchdogs:
        where = fabric.port_name(int(row["port"]))
        action = "drops" if row["arg"] == lib.WATCHDOG_DROP else "sends in spite of the pause"
        lasted_us = fabric.clock.hardware_us(float(row["end_ns"] - row["begin_ns"]))
        yield {"t_ns": int(row["begin_ns"]), "kind": "watchdog", "where": where,
               "traffic_class": int(row["traffic_class"]), "duration_us": lasted_us, "bytes": int(row["bytes"]),
               "ended": bool(row["ended"]),
               "text": f"the watchdog found class {row['traffic_class']} of {where} stopped for too long and {action} "
                       f"what stands there ({row['bytes'] / 1024:.1f} KB)"}


def _faults(raw: RawRun, evidence: Evidence) -> Iterator[dict[str, Any]]:
    for fault in active_faults(raw.fault_events, raw.start_ns, evidence.last_ns):
        end_ns = fault["end_ns"]
        row = {"t_ns": int(fault["t_ns"]), "kind": "fault",
               "where": str(fault.get("device") or fault.get("port") or ""), "text": f"planted: {fault['text']}"}
        if fault.get("fault") != "lost_packet":  # that is over at once
            lasted_ns = (evidence.last_ns if end_ns is None else end_ns) - fault["t_ns"]
            row |= {"duration_us": evidence.fabric.clock.hardware_us(float(lasted_ns)), "ended": end_ns is not None}
        yield row


def _drops(evidence: Evidence) -> Iterator[dict[str, Any]]:
    fabric, trace = evidence.fabric, evidence.trace
    drops = trace[trace["kind"] == TraceKind.DROP]
    for port, number in np.unique(drops[["port", "reason"]]).tolist():
        here = drops[(drops["port"] == port) & (drops["reason"] == number)]
        reason = DropReason(number)
        where = fabric.port_name(fabric.port(port).peer if reason == DropReason.HEADROOM else port)
        since, last = int(here["t_ns"][0]), int(here["t_ns"][-1])
        packets = f"{len(here):,} packet{'' if len(here) == 1 else 's'}"
        yield {"t_ns": since, "kind": "drops", "where": where, "bytes": int(here["bytes"].sum()),
               "duration_us": fabric.clock.hardware_us(float(last - since)), "ended": True,
               "text": f"{packets} dropped at {where}: {reason.name.lower().replace('_', ' ')}"}


def _marks(evidence: Evidence) -> Iterator[dict[str, Any]]:
    fabric, trace = evidence.fabric, evidence.trace
    marked = trace[trace["kind"] == TraceKind.MARK]
    for port in np.unique(marked["port"]).tolist():
        here = marked[marked["port"] == port]
        where, since, last = fabric.port_name(port), int(here["t_ns"][0]), int(here["t_ns"][-1])
        least, most = int(here["arg"].min()) / 1024, int(here["arg"].max()) / 1024
        yield {"t_ns": since, "kind": "marks", "where": where, "bytes": int(here["bytes"].sum()),
               "duration_us": fabric.clock.hardware_us(float(last - since)), "ended": True,
               "text": f"{where} marked {len(here):,} packets, behind {least:.1f} to {most:.1f} KB in its queue"}


def _transport(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Queue pairs that gave up, and timers that ran out."""
    trace, kinds = evidence.trace, {int(TraceKind.QP_ERROR): "qp_error", int(TraceKind.TIMEOUT): "timeout"}
    for row in trace[np.isin(trace["kind"], list(kinds))]:
        kind, host = kinds[int(row["kind"])], evidence.fabric.port(int(row["port"])).device
        what = f"failed (status {row['reason']})" if kind == "qp_error" else "heard nothing for its time-out"
        yield {"t_ns": int(row["t_ns"]), "kind": kind, "where": host,
               "text": f"queue pair {row['arg']} of {host} {what}, packet {row['psn']} unacknowledged"}


def _controller(raw: RawRun) -> Iterator[dict[str, Any]]:
    for event in raw.controller_events:
        kind, details = str(event.get("kind", "controller")), _details(event)
        if kind == "move":
            text = f"{event.get('leaf')}: entry {event.get('entry')} from {event.get('from')} to {event.get('to')}"
        else:
            text = f"controller: {kind.replace('_', ' ')}{': ' + details if details else ''}"
        yield {"t_ns": int(event["t_ns"]), "kind": kind, "where": str(event.get("leaf") or event.get("switch") or ""),
               "text": text}


def _details(event: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in event.items() if name not in ("t_ns", "kind") and value)
