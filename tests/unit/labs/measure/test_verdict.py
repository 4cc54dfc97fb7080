"""Each invariant holds on a clean run, and notices exactly the violation that is planted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from labs.measure import verdict
from labs.measure.line_rate import carried_rate_errors
from labs.measure.raw import RawRun
from labs.measure.verdict import Check
from tests.unit.labs.measure.synthetic import changed, planted
from tests.unit.labs.measure.test_pauses import incast
from topologies.fabricd.telemetry import DropReason, Snapshot, TraceKind

MTU_US = 3362.0  # 4,096 bytes at 10 Mb/s


def judged(raw: RawRun) -> dict[str, Check]:
    return {check["check"]: check for check in verdict.judge(raw)}


def broken(raw: RawRun) -> set[str]:
    return {name for name, check in judged(raw).items() if not check["ok"]}


def with_counter(raw: RawRun, rows: str, name: str, index: Any, by: int) -> RawRun:
    """The run with one counter of its last snapshot changed."""
    array = getattr(raw.after, rows).copy()
    if rows == "globals":
        array[name] += by
    else:
        array[name][index] = int(array[name][index]) + by
    return changed(raw, after=replace(raw.after, **{rows: array}))


def with_bucket(raw: RawRun, rows: str, name: str, index: int, bucket: int, by: int) -> RawRun:
    array = getattr(raw.after, rows).copy()
    histogram = array[name]["bucket"] if rows == "globals" else array[name]["bucket"][index]
    histogram[bucket] += by
    return changed(raw, after=replace(raw.after, **{rows: array}))


@pytest.mark.parametrize("cause", ["none", "collision", "drop", "reordering", "host"])
def test_a_run_on_a_machine_that_keeps_up_is_valid_whatever_the_fabric_does(cause: str) -> None:
    checks = verdict.judge(planted(cause))
    assert verdict.valid(checks)
    assert verdict.next_slowdown(checks, 10_000) is None


def test_the_six_invariants_are_all_judged() -> None:
    assert set(judged(planted("none"))) >= {
        "lateness", "in_switch", "conservation_switch", "conservation_end_to_end", "overflow", "line_rate",
        "start_skew", "cpu_idle", "cpu_steal", "controller", "ranks"}


def test_mtu_time() -> None:
    assert verdict.mtu_time_us(planted("none").fabric) == pytest.approx(MTU_US, abs=5)


@pytest.mark.parametrize(("bucket", "ok"), [(40, True), (70, False)])  # 128 us; about 1.8 ms
def test_lateness(bucket: int, ok: bool) -> None:
    raw = with_bucket(planted("none"), "globals", "lateness_us", 0, bucket, 5_000)
    assert judged(raw)["lateness"]["ok"] is ok
    assert broken(raw) == (set() if ok else {"lateness"})


def test_lateness_is_that_of_the_run_and_not_of_the_time_before() -> None:
    raw = with_bucket(planted("none"), "globals", "lateness_us", 0, 70, 5_000)
    again = changed(planted("none"), before=raw.after, after=with_bucket(raw, "globals", "lateness_us", 0, 5, 99).after)
    assert judged(again)["lateness"]["ok"]


def test_one_slow_switch_is_named() -> None:
    raw = with_bucket(planted("none"), "switches", "inside_us", 2, 90, 100_000)
    assert broken(raw) == {"in_switch"}
    assert "(leaf2)" in judged(raw)["in_switch"]["explain"]


def test_a_frame_lost_in_a_switch() -> None:
    raw = with_counter(planted("none"), "switches", "out_frames", 1, -1)
    assert judged(raw)["conservation_switch"]["value"] == 1
    assert "conservation_switch" in broken(raw)


def test_two_errors_in_opposite_directions_do_not_cancel() -> None:
    raw = with_counter(planted("none"), "switches", "out_frames", 1, -1)
    raw = with_counter(raw, "switches", "out_frames", 2, 1)
    assert judged(raw)["conservation_switch"]["value"] == 2


@pytest.mark.parametrize(("rows", "name", "index"), [("ports", "rx_frames", 3), ("ports", "delivered_frames", 20)])
def test_a_frame_that_appears_or_vanishes(rows: str, name: str, index: int) -> None:
    raw = with_counter(planted("none"), rows, name, index, 1)
    assert "conservation_end_to_end" in broken(raw)


def test_packets_are_counted_once_each() -> None:
    raw = planted("drop")
    _, _, packets = verdict.conservation(raw.before, raw.after)
    assert packets["dropped"] > 0
    assert packets["sent"] == packets["delivered"] + packets["dropped"]
    assert packets["lost_in_switch"] == packets["in_flight"] == 0


def test_frames_that_a_router_would_not_carry_are_no_drops() -> None:
    raw = with_counter(planted("none"), "ports", "dropped", (0, int(DropReason.NOT_IPV4)), 7)
    assert not broken(raw)


@pytest.mark.parametrize("name", ["ring_overflow", "send_failed", "flows_overflow"])
def test_overflow_of_the_emulator(name: str) -> None:
    raw = with_counter(planted("none"), "globals", name, 0, 3)
    assert broken(raw) == {"overflow"}
    assert f"{name} 3" in judged(raw)["overflow"]["explain"]


def test_pool_drops_and_a_lost_trace_are_overflow() -> None:
    pool = with_counter(planted("none"), "ports", "dropped", (17, int(DropReason.POOL)), 1)
    assert "overflow" in broken(pool)
    assert broken(changed(planted("none"), trace_lost=12)) == {"overflow"}


def test_a_link_that_carries_too_little() -> None:
    """Frames of a busy uplink come to the next queue ever later: the machine carries 3 % less than configured."""
    raw = planted("collision")
    trace = raw.trace.copy()
    uplink = raw.fabric.uplinks("leaf1")[2]
    downlinks = [port.index for port in raw.fabric.ports_of(raw.fabric.peer(uplink).device)]
    start = trace["t_ns"].min()
    slower = (trace["kind"] == TraceKind.HOP) & np.isin(trace["port"], downlinks)
    trace["t_ns"][slower] += ((trace["t_ns"][slower] - start) * 0.03).astype("i8")
    assert broken(changed(raw, trace=trace)) == {"line_rate"}
    explain = judged(changed(raw, trace=trace))["line_rate"]["explain"]
    assert "leaf1->spine2" in explain
    assert "-2.9" in explain


def test_line_rate_of_busy_links_is_measured_at_the_far_end() -> None:
    check = judged(planted("collision"))["line_rate"]
    assert check["value"] is not None
    assert check["value"] < 0.002
    assert "busy links" in check["explain"]


def test_links_that_were_never_busy_prove_nothing_wrong() -> None:
    raw = planted("host")
    assert judged(raw)["line_rate"]["ok"]
    assert "no link was busy" in judged(raw)["line_rate"]["explain"]


def test_a_rank_that_starts_late() -> None:
    raw = planted("late_start")
    assert broken(raw) == {"start_skew"}
    asked_for = changed(raw, rank_jitter_us=50.0)
    assert not broken(asked_for)


def test_a_rank_that_starts_too_early() -> None:
    raw = planted("none")
    first = raw.iterations[0]
    early = replace(first, ranks=(replace(first.ranks[0], first_tx_ns=first.start_ns - 5_000_000), *first.ranks[1:]))
    assert broken(changed(raw, iterations=(early, *raw.iterations[1:]))) == {"start_skew"}


def held(raw: RawRun, kind: TraceKind, host: str, begin_ns: int, end_ns: int) -> RawRun:
    """The run with the NIC of a host stopped for a time."""
    records = np.zeros(2, raw.trace.dtype)
    records["kind"], records["port"], records["reason"] = kind, raw.fabric.nic(host).index, 3
    records["t_ns"], records["psn"], records["wait_ns"] = (begin_ns, end_ns), (1, 0), (0, end_ns - begin_ns)
    return changed(raw, trace=np.concatenate((raw.trace, records)))


@pytest.mark.parametrize("kind", [TraceKind.PAUSED, TraceKind.CREDIT_STALL])
def test_a_rank_whose_nic_was_stopped_did_not_start_late(kind: TraceKind) -> None:
    """Rank 5 begins 40 us late in both iterations; for that the fabric has to account in both."""
    raw = planted("late_start")
    late_ns = raw.fabric.clock.lab_ns(40.0)
    excused = raw
    for iteration in raw.iterations:
        excused = held(excused, kind, "h5", iteration.start_ns - 1_000_000, iteration.start_ns + late_ns)
    assert not broken(excused)
    assert broken(held(raw, kind, "h5", raw.iterations[0].start_ns, raw.iterations[0].start_ns + late_ns)) == {
        "start_skew"}
    other = raw
    for iteration in raw.iterations:
        other = held(other, kind, "h6", iteration.start_ns, iteration.start_ns + late_ns)
    assert broken(other) == {"start_skew"}


def test_a_flow_that_is_planned_later_does_not_start_late() -> None:
    raw = planted("late_start")
    planned = tuple(replace(role, start_us=40.0) if role.rank == 5 else role for role in raw.flow_ranks)
    assert not broken(changed(raw, flow_ranks=planned))
    too_early = tuple(replace(role, start_us=45.0) if role.rank == 5 else role for role in raw.flow_ranks)
    assert broken(changed(raw, flow_ranks=too_early)) == {"start_skew"}


def with_control_frames(raw: RawRun, device: str) -> RawRun:
    """Every eighth frame of a busy uplink of `device` leaves a PFC frame's time later, and so does all behind it."""
    trace = raw.trace.copy()
    uplink = raw.fabric.uplinks(device)[2]
    order = np.flatnonzero((trace["kind"] == TraceKind.HOP) & (trace["port"] == uplink.index))
    order = order[np.argsort(trace["t_ns"][order], kind="stable")]
    later = (np.arange(len(order)) // 8) * round((60 + 24) * 8e9 / uplink.rate_bps)
    trace["t_ns"][order] += later
    trace["wait_ns"][order] += later
    # The next queue sees each of these frames as much later.
    frames = {(int(trace["flow"][at]), int(trace["psn"][at])): int(delay)
              for at, delay in zip(order, later, strict=True)}
    spine = {port.index for port in raw.fabric.ports_of(raw.fabric.peer(uplink).device)}
    for at in np.flatnonzero((trace["kind"] == TraceKind.HOP) & np.isin(trace["port"], list(spine))):
        delay = frames.get((int(trace["flow"][at]), int(trace["psn"][at])))
        trace["t_ns"][at] += delay or 0
    return changed(raw, trace=trace)


def test_control_frames_between_data_are_part_of_what_a_link_carries() -> None:
    raw = with_control_frames(planted("collision"), "leaf1")
    errors = carried_rate_errors(raw.trace, raw.fabric)
    uplink = raw.fabric.uplinks("leaf1")[2].index
    assert uplink in errors  # eight in a row alone would be too few to be judged
    assert abs(errors[uplink]) < 0.002


def test_one_late_frame_does_not_decide_about_a_link() -> None:
    raw = planted("collision")
    trace = raw.trace.copy()
    uplink = raw.fabric.uplinks("leaf1")[2]
    downlinks = [port.index for port in raw.fabric.ports_of(raw.fabric.peer(uplink).device)]
    hops = np.flatnonzero((trace["kind"] == TraceKind.HOP) & np.isin(trace["port"], downlinks))
    trace["t_ns"][hops[len(hops) // 2]] += 3_000_000
    trace["t_ns"][hops[-1]] += 3_000_000
    assert not broken(changed(raw, trace=trace))


def test_a_paused_link_was_not_busy() -> None:
    """h0..h5 through pauses: what links carried between them is their rate, and a pause is no error of it."""
    raw = incast("pfc").raw()
    assert (raw.trace["kind"] == TraceKind.PAUSED).any()
    assert judged(raw)["line_rate"]["ok"]
    assert judged(raw)["conservation_end_to_end"]["ok"]
    assert judged(raw)["conservation_switch"]["ok"]
    assert judged(incast("credits").raw())["line_rate"]["ok"]


def test_ranks_may_fail_where_the_lab_says_so() -> None:
    raw = planted("none")
    last = raw.iterations[-1]
    dead = replace(last, ranks=(replace(last.ranks[0], end_ns=None, error="nothing moves"), *last.ranks[1:]))
    expected = changed(raw, iterations=(*raw.iterations[:-1], dead), may_fail=True)
    assert not broken(expected)
    assert judged(expected)["ranks"]["explain"] == (
        "1 did not finish, which the lab expects: iteration 1, rank 0 on h0: nothing moves")
    assert judged(changed(raw, may_fail=True))["ranks"]["explain"] == "every rank finished every iteration"


@pytest.mark.parametrize(("cpu", "names"), [
    ({"idle_share": 0.01, "steal_share": 0.0}, {"cpu_idle"}), ({"idle_share": 0.5, "steal_share": 0.2}, {"cpu_steal"}),
    ({}, {"cpu_idle", "cpu_steal"}), ({"idle_share": 0.3, "steal_share": 0.0, "idle_min": 0.4}, {"cpu_idle"})])
def test_cpu(cpu: dict[str, float], names: set[str]) -> None:
    assert broken(changed(planted("none"), cpu=cpu)) == names


def test_controller_and_switches() -> None:
    assert broken(changed(planted("none"), controller_alive=False)) == {"controller"}
    raw = changed(planted("none"), switches_missing=("leaf2",))
    assert "leaf2" in judged(raw)["controller"]["explain"]


def test_failed_ranks_and_wrong_data() -> None:
    raw = planted("none")
    last = raw.iterations[-1]
    dead = replace(last, ranks=(replace(last.ranks[0], end_ns=None, error="queue pair in error"), *last.ranks[1:]))
    failed = changed(raw, iterations=(*raw.iterations[:-1], dead))
    assert broken(failed) == {"ranks"}
    assert "rank 0 on h0: queue pair in error" in judged(failed)["ranks"]["explain"]
    wrong = replace(last, ranks=(replace(last.ranks[0], wrong=3), *last.ranks[1:]))
    assert broken(changed(raw, iterations=(*raw.iterations[:-1], wrong))) == {"data"}


def test_no_iteration_is_no_evidence() -> None:
    assert "evidence" in broken(changed(planted("none"), iterations=planted("none").iterations[:1]))


def test_margins() -> None:
    checks = judged(planted("none"))
    assert checks["lateness"]["margin"] == pytest.approx(1 - checks["lateness"]["value"] / checks["lateness"]["limit"])
    assert checks["cpu_idle"]["margin"] == pytest.approx((0.4 - 0.05) / 0.05)
    assert checks["overflow"]["margin"] is None


def failed(name: str, value: float | None, limit: float) -> Check:
    return Check(check=name, value=value, limit=limit, unit="", ok=False, margin=None, explain="")


@pytest.mark.parametrize(("checks", "slowdown", "expected"), [
    ([failed("lateness", 400, 336)], 10_000, 20_000),
    ([failed("lateness", 900, 300)], 10_000, 50_000),
    ([failed("in_switch", 33_000, 3_300)], 10_000, 200_000),
    ([failed("cpu_idle", 0.0, 0.05)], 5_000, 10_000),
    ([failed("conservation_switch", 12, 0)], 10_000, 20_000),
    ([failed("lateness", 301, 300), failed("start_skew", 6_000, 1_500)], 1_000, 5_000),
    ([failed("controller", 1, 0)], 10_000, None),
    ([failed("cpu_steal", 0.3, 0.02)], 10_000, None),
    ([failed("ranks", 1, 0), failed("lateness", 330, 300)], 300, 500),
])
def test_next_slowdown(checks: list[Check], slowdown: float, expected: float | None) -> None:
    assert verdict.next_slowdown(checks, slowdown) == expected


def test_frames_in_flight() -> None:
    quiet: Snapshot = planted("none").after
    assert verdict.frames_in_flight(quiet) == 0
    assert verdict.frames_in_flight(with_counter(planted("none"), "globals", "pool_used", 0, 4).after) == 4
    assert verdict.frames_in_flight(with_counter(planted("none"), "switches", "in_frames", 0, 2).after) == 2
