"""Counts of pauses, stalls and drops, and a frozen fabric, from the native core's own records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.measure import verdict
from labs.measure.congestion import congestion, frozen_ports
from labs.measure.raw import RawRun
from labs.measure.results import summarise
from tests.unit.labs.measure.lossless import LosslessRun, spec
from tests.unit.labs.measure.synthetic import changed, planted
from tests.unit.labs.measure.test_pauses import CIRCLE, deadlock, incast
from topologies.fabricd.telemetry import TraceKind


@pytest.fixture(scope="module")
def paused() -> RawRun:
    return incast("pfc").raw()


@pytest.fixture(scope="module")
def stalled() -> RawRun:
    return incast("credits").raw()


def test_pauses_are_those_that_ports_obeyed(paused: RawRun) -> None:
    found = congestion(paused)
    begun = (paused.trace["kind"] == TraceKind.PAUSED) & (paused.trace["psn"] == 1)
    assert found["pauses"] == int(begun.sum()) > 10
    counted_ns = int(paused.after.ports["priority_group"]["rx_pause_ns"].sum())
    assert found["pause_us"] == pytest.approx(paused.fabric.clock.hardware_us(counted_ns), rel=1e-6)
    assert found["credit_stalls"] == found["credit_stall_us"] == found["watchdogs"] == found["marks"] == 0
    assert found["frozen"] == []
    headroom = found["headroom_peak_bytes"]
    assert set(headroom) <= {"leaf0", "leaf1", "leaf2", "spine0"}
    assert max(headroom.values()) > 0


def test_stalls_are_those_of_the_counters(stalled: RawRun) -> None:
    found = congestion(stalled)
    groups = stalled.after.ports["priority_group"]
    assert found["credit_stalls"] == int(groups["credit_stalls"].sum()) > 10
    counted_us = stalled.fabric.clock.hardware_us(int(groups["credit_stall_ns"].sum()))
    assert found["credit_stall_us"] == pytest.approx(counted_us, rel=1e-6)
    assert found["pauses"] == found["pause_us"] == 0


def test_a_run_without_flow_control_has_none_of_it() -> None:
    found = congestion(planted("drop"))
    assert {name: found[name] for name in ("pauses", "pause_us", "credit_stalls", "credit_stall_us", "marks", "cnps",
                                           "marks_by_port", "watchdogs", "frozen", "headroom_peak_bytes")} == {
        "pauses": 0, "pause_us": 0, "credit_stalls": 0, "credit_stall_us": 0, "marks": 0, "cnps": 0, "watchdogs": 0,
        "marks_by_port": {}, "frozen": [], "headroom_peak_bytes": {}}


def test_marks_cnps_and_watchdogs_are_those_of_this_run() -> None:
    raw = planted("none")
    before, after = (replace(raw.after, ports=raw.after.ports.copy(), nics=raw.after.nics.copy()) for _ in range(2))
    for snapshot, marks in ((before, 5), (after, 17)):
        snapshot.ports["queue"]["wred_ecn_marked_packets"][20, 3] = marks
        snapshot.ports["priority_group"]["wd_deadlock_detected"][21, 3] = marks - 3
        snapshot.nics["np_cnp_sent"][4] = marks - 4
    found = congestion(changed(raw, before=before, after=after))
    assert (found["marks"], found["watchdogs"], found["cnps"]) == (12, 12, 12)
    assert found["marks_by_port"] == {raw.fabric.port_name(20): 12}


def test_the_deepest_queue_is_exact(paused: RawRun) -> None:
    peaks = summarise(paused)["peak_queue_bytes"]
    port = paused.fabric.nic("h8").peer
    assert peaks["leaf2->h8"] == int(paused.after.ports["queue"]["peak_bytes"][port, 3]) > 20_000
    assert not any(name.startswith("h") for name in peaks)


def test_a_deadlock_names_the_ports_that_stand() -> None:
    raw = deadlock().raw()
    nics = {f"{host.name}->{host.leaf}" for host in raw.fabric.hosts}
    assert CIRCLE <= set(congestion(raw)["frozen"]) <= CIRCLE | nics


def test_nothing_is_frozen_where_all_is_done_or_a_watchdog_acts(paused: RawRun) -> None:
    assert frozen_ports(paused) == []
    assert frozen_ports(deadlock("drop").raw()) == []


def test_a_rank_that_died_on_a_quiet_fabric_freezes_nothing() -> None:
    raw = planted("none")
    dead = tuple(replace(iteration, ranks=tuple(replace(rank, end_ns=None, error="killed") for rank in iteration.ranks))
                 for iteration in raw.iterations)
    assert frozen_ports(changed(raw, iterations=dead, end_ns=raw.end_ns + 10**10)) == []


def test_frames_of_a_deadlock_are_in_flight_and_the_run_is_valid_if_the_lab_expects_it() -> None:
    raw = deadlock().raw()
    checks = {check["check"]: check for check in verdict.judge(raw)}
    broken = {name for name, check in checks.items() if not check["ok"]}
    assert broken == {"ranks", "start_skew"}  # no first bits are known here
    expected = {check["check"]: check for check in verdict.judge(changed(raw, may_fail=True))}
    assert expected["ranks"]["ok"]
    assert expected["ranks"]["explain"].startswith("8 did not finish, which the lab expects: iteration 0, rank ")
    _, _, packets = verdict.conservation(raw.before, raw.after)
    assert packets["in_flight"] > 100
    assert packets["sent"] == packets["delivered"] + packets["in_flight"]
    # What stood there before counts for nothing: this one carried nothing at all.
    again = verdict.conservation(raw.after, raw.after)
    assert again[0]["ok"]
    assert again[1]["ok"]
    assert not any(again[2].values())


def test_headroom_drops_stand_under_the_link_that_brought_the_frame() -> None:
    run = LosslessRun(spec(headroom_kb=1))
    for host in ("h0", "h1", "h2"):
        run.message(host, "h3", 60)
    run.play()
    summary = summarise(run.raw())
    assert summary["drops_by_reason"]["headroom"] == summary["drops"] > 0
    assert set(summary["drops_by_port"]) == {"h0->leaf0", "h1->leaf0", "h2->leaf0"}
