"""One run as run.json shows it: what was measured, what theory says beside it, and the verdict.

Times are in hardware units; lab seconds stand beside them as `lab_s`.  Iterations of the warm-up are listed apart
and count for nothing but the verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from labs.measure import rates, theory, verdict, why
from labs.measure.congestion import by_reason, congestion, drops_by_port, peak_queues
from labs.measure.evidence import ACK_FRAME_BYTES, Evidence, reordered, roles_by_flow
from labs.measure.raw import RawIteration, RawRun
from topologies.fabric import Fabric
from topologies.fabricd.telemetry import Snapshot


def summarise(raw: RawRun, evidence: Evidence | None = None) -> dict[str, Any]:
    """An element of run.json's `runs` (schema.json says what each key means)."""
    evidence = evidence or Evidence.of(raw)
    checks = verdict.judge(raw)
    _, _, packets = verdict.conservation(raw.before, raw.after)
    iterations = [summarise_iteration(raw, evidence, iteration) for iteration in raw.measured]
    times_us = [iteration["time_us"] for iteration in iterations if iteration["time_us"] is not None]
    complete = len(times_us) == len(iterations) and bool(times_us)
    mean_us = float(np.mean(times_us)) if complete else None
    ideal_us = float(raw.workload.get("ideal_us", 0.0)) or None
    compute_us = float(raw.workload.get("compute_us", 0.0))  # part of both sides, as in the BMWG's AI fabric draft
    algbw_gbps = raw.workload["size_bytes"] * 8 / mean_us / 1e3 if mean_us and "size_bytes" in raw.workload else None
    factor = theory.busbw_factor(evidence.collective, evidence.group_ranks) if evidence.group_ranks else 1.0
    drops = drops_by_port(raw.before, raw.after, raw.fabric, verdict.FABRIC_DROPS)
    uplinks = uplink_bytes(raw.before, raw.after, raw.fabric)
    # A hash says how long a job takes if links between switches limit it, and all its flows are alike.
    alike = evidence.collective not in ("transfers", "incast")
    loads = [load for load in uplink_loads(uplinks, raw.fabric).values() if sum(load) > 0]
    nics = {name: grown(raw.before, raw.after, "nics", name) for name in ("retransmitted_packets", "timeouts",
                                                                        "naks_sent", "qp_errors")}
    late = reordered(evidence.journeys) & (evidence.journeys["bytes"] > ACK_FRAME_BYTES)
    late &= np.isin(evidence.journeys["flow"], list(evidence.roles))
    return {
        "label": raw.label or raw.policy,
        "variant": raw.variant,
        "policy": raw.policy,
        "seed": raw.seed,
        "params": dict(raw.params),
        "valid": verdict.valid(checks),
        "verdict": checks,
        "next_slowdown": verdict.next_slowdown(checks, raw.fabric.slowdown),
        "iterations": iterations,
        "warmup_iterations": [summarise_iteration(raw, evidence, i) for i in raw.iterations if i.warmup],
        "time_us": statistics(times_us),
        "lab_s": (raw.end_ns - raw.start_ns) / 1e9,
        "end_ns": raw.end_ns,
        "ideal_us": ideal_us,
        "jct_ratio": (compute_us + mean_us) / (compute_us + ideal_us) if mean_us and ideal_us else None,
        "predicted_factor": raw.predicted.get("factor") if alike else None,
        "expected_factor": theory.expected_factor(raw.flow_ranks, raw.fabric) if alike else None,
        "algbw_gbps": algbw_gbps,
        "busbw_gbps": algbw_gbps * factor if algbw_gbps else None,
        "wrong": sum(rank.wrong for iteration in raw.iterations for rank in iteration.ranks),
        "errors": errors(raw.iterations),
        "causes": dict(Counter(iteration["straggler"]["cause"] for iteration in iterations)),
        "drops": sum(sum(reasons.values()) for reasons in drops.values()),
        "drops_by_reason": by_reason(drops),
        "drops_by_port": drops,
        **congestion(raw),
        **rates.summary(evidence),
        "faults": [{**event, "t_us": raw.fabric.clock.hardware_us(event["t_ns"] - raw.start_ns)}
                   for event in raw.fault_events],
        "retransmitted_packets": nics["retransmitted_packets"],
        "timeouts": nics["timeouts"],
        "naks": nics["naks_sent"],
        "qp_errors": nics["qp_errors"],
        "uplink_bytes": uplinks,
        "jain": min((theory.jain(load) for load in loads), default=1.0),
        "mmr": max((theory.mmr(load) for load in loads), default=1.0),
        "jain_flows": theory.jain(flow_rates(evidence)),
        "path_changes": grown(raw.before, raw.after, "switches", "path_changes"),
        "flowlets": grown(raw.before, raw.after, "switches", "flowlets"),
        "reordered_packets": int(late.sum()),
        "packets": packets,
        "peak_queue_bytes": peak_queues(raw),
        "trace": {"records": len(raw.trace), "lost": raw.trace_lost},
        "cpu": dict(raw.cpu),
        "workload": dict(raw.workload),
        "controller_events": len(raw.controller_events),
    }


def summarise_iteration(raw: RawRun, evidence: Evidence, iteration: RawIteration) -> dict[str, Any]:
    """Time from the common instant to the last rank's result, and who was last and why."""
    clock = raw.fabric.clock
    ends = [rank.end_ns for rank in iteration.ranks]
    finished = bool(ends) and None not in ends
    took_ns = max(end or 0 for end in ends) - iteration.start_ns if finished else None
    firsts = [rank.first_tx_ns - iteration.start_ns for rank in iteration.ranks if rank.first_tx_ns is not None]
    straggler: dict[str, Any] = {"rank": None, "host": None, "cause": "none", "why": "no rank took part"}
    if iteration.ranks:
        answer = why.explain(evidence, iteration.n)
        straggler = {"rank": answer.rank, "host": answer.host, "cause": answer.cause, "why": answer.sentence}
    return {
        "n": iteration.n,
        "time_us": clock.hardware_us(took_ns) if took_ns is not None else None,
        "lab_s": took_ns / 1e9 if took_ns is not None else None,
        "start_skew_us": clock.hardware_us(max(firsts)) if firsts else None,
        "straggler": straggler,
    }


def statistics(values: Sequence[float]) -> dict[str, float | None]:
    """mean, p50, p99 and max; None for all of them without values."""
    if not values:
        return {"mean": None, "p50": None, "p99": None, "max": None}
    return {"mean": float(np.mean(values)), "p50": float(np.percentile(values, 50)),
            "p99": float(np.percentile(values, 99)), "max": float(np.max(values))}


def errors(iterations: Sequence[RawIteration]) -> list[dict[str, Any]]:
    """Ranks that failed, with their reason."""
    return [{"iteration": iteration.n, "rank": rank.rank, "host": rank.host, "error": rank.error or "never finished"}
            for iteration in iterations for rank in iteration.ranks if rank.error is not None or rank.end_ns is None]


def grown(before: Snapshot, after: Snapshot, rows: str, name: str) -> int:
    """By how much the sum of a counter over all `rows` has grown."""
    return int(getattr(after, rows)[name].sum()) - int(getattr(before, rows)[name].sum())


def uplink_bytes(before: Snapshot, after: Snapshot, fabric: Fabric) -> dict[str, int]:
    """Bytes (frames as tcpdump sees them) that each uplink carried."""
    difference = after.ports["tx_bytes"].astype(np.int64) - before.ports["tx_bytes"].astype(np.int64)
    return {fabric.port_name(port.index): int(difference[port.index]) for port in fabric.ports if port.role == "uplink"}


def uplink_loads(uplinks: dict[str, int], fabric: Fabric) -> dict[str, list[int]]:
    """The same by leaf, in the order of its uplinks."""
    return {leaf.name: [uplinks[fabric.port_name(port.index)] for port in fabric.uplinks(leaf)]
            for leaf in fabric.leaves()}


def flow_rates(evidence: Evidence) -> npt.NDArray[np.float64]:
    """Bytes over time under way of each data flow in the measured iterations, for Jain's index."""
    windows = [i for i in evidence.iterations if not i.warmup]
    if not windows:
        return np.zeros(0)
    rows = evidence.journeys
    rows = rows[(rows["sent_ns"] >= windows[0].start_ns) & (rows["dropped"] == 0) & (rows["end_ns"] >= 0)]
    rates = []
    for flow in evidence.roles:
        own = rows[rows["flow"] == flow]
        if len(own):
            busy = sum(int(part["end_ns"].max() - part["sent_ns"].min()) for part in _by_window(own, windows))
            rates.append(float(own["bytes"].sum()) / max(1, busy))
    return np.array(rates)


def _by_window(rows: npt.NDArray[Any], windows: Sequence[RawIteration]) -> list[npt.NDArray[Any]]:
    """Rows (in order of sending) cut at the beginnings of the iterations; empty parts left out."""
    cuts = np.searchsorted(rows["sent_ns"], [window.start_ns for window in windows[1:]])
    return [part for part in np.split(rows, cuts) if len(part)]


def flow_table(raw: RawRun) -> list[dict[str, Any]]:
    """One row a flow for flows.parquet: who, and by how much its counters grew in this run."""
    roles = roles_by_flow([(int(f["src_ip"]), int(f["dst_ip"]), int(f["src_port"]), int(f["dst_port"]),
                            int(f["protocol"])) for f in raw.flows], raw.flow_ranks)
    rows = []
    for index, flow in enumerate(raw.flows):
        old = raw.before.flows[index] if index < len(raw.before.flows) else None
        role = roles.get(index)
        row: dict[str, Any] = {"flow": index, "src": theory.dotted(int(flow["src_ip"])),
                               "dst": theory.dotted(int(flow["dst_ip"]))}
        row |= {name: int(flow[name]) for name in ("src_port", "dst_port", "protocol")}
        row |= {name: int(flow[name]) - (int(old[name]) if old is not None else 0)
                for name in ("sent_frames", "sent_bytes", "delivered_frames", "delivered_bytes", "dropped_frames",
                             "path_changes")}
        row |= {name: getattr(role, name) if role else None for name in ("rank", "peer", "ring", "start_us", "qp")}
        rows.append(row)
    return rows
