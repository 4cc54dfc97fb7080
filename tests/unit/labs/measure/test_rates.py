"""Throughput, fair shares and convergence against numbers worked out by hand, and on runs of the native core."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.measure import rates, theory
from labs.measure.evidence import Evidence
from labs.measure.rates import Throughput
from labs.measure.raw import RawRun
from tests.unit.labs.measure.lossless import START_NS, LosslessRun, spec
from tests.unit.labs.measure.synthetic import changed, planted
from topologies.fabricd.telemetry import TRACE_DTYPE, TraceKind

LINE_GBPS = 100 / theory.wire_overhead_factor(4096)  # of payload


def two_to_one(**changes: Any) -> RawRun:
    """h0 and h1 to h3 behind the same leaf; h2 to h4 by another link."""
    run = LosslessRun(spec(**changes))
    for source, target in (("h0", "h3"), ("h1", "h3"), ("h2", "h4")):
        run.message(source, target, 200)
    run.play()
    return run.raw()


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return Evidence.of(two_to_one())


def flow_of(evidence: Evidence, name: str) -> int:
    return next(flow for flow in evidence.roles if evidence.flow_name(flow).startswith(f"{name} "))


# ---- water filling

@pytest.mark.parametrize(("weight", "capacity", "expected"), [
    ([[1], [1]], [10], [5, 5]),
    ([[1, 0], [1, 1], [0, 1]], [10, 4], [8, 2, 2]),  # the flow over both links is held by the small one
    ([[0.5, 0.5], [1, 0]], [10, 10], [20 / 3, 20 / 3]),  # a sprayed flow and one beside it
    ([[0, 0], [1, 0]], [10, 10], [0, 10]),
])
def test_max_min(weight: Any, capacity: Any, expected: Any) -> None:
    found = rates.max_min(np.array(weight, float), np.array(capacity, float))
    assert found == pytest.approx(expected)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=6),
       st.lists(st.floats(1, 100), min_size=3, max_size=3))
def test_max_min_fills_a_link_of_every_flow_and_none_beyond_its_rate(paths: Any, capacity: Any) -> None:
    weight, limit = np.array(paths, float), np.array(capacity)
    rate = rates.max_min(weight, limit)
    load = weight.T @ rate
    assert (load <= limit * (1 + 1e-6)).all()
    full = load >= limit * (1 - 1e-6)
    for flow, path in enumerate(weight > 0):
        assert rate[flow] == 0 if not path.any() else (path & full).any()


def test_fair_shares_follow_the_links_that_frames_took(evidence: Evidence) -> None:
    flows = sorted(evidence.roles)
    shares = dict(zip((evidence.flow_name(flow).split(" ")[0] for flow in flows), rates.fair_gbps(evidence, flows),
                      strict=True))
    assert shares == pytest.approx({"h0->h3": LINE_GBPS / 2, "h1->h3": LINE_GBPS / 2, "h2->h4": LINE_GBPS})


def test_what_is_dropped_on_the_way_changes_no_fair_share() -> None:
    lossy = Evidence.of(planted("drop"))
    hops = lossy.hops[(lossy.hops["flow"] == 4) & (lossy.hops["bytes"] > 62)]
    counts = np.bincount(hops["port"], minlength=len(lossy.fabric.ports))
    shares = rates.link_shares(lossy.fabric, counts, lossy.roles[4].src_ip)
    assert sorted(shares[shares > 0].tolist()) == [1.0] * 4  # NIC, uplink, downlink, access


def test_a_sprayed_flow_has_its_part_of_every_uplink() -> None:
    sprayed = Evidence.of(planted("reordering"))
    hops = sprayed.hops[(sprayed.hops["flow"] == 0) & (sprayed.hops["bytes"] > 62)]
    counts = np.bincount(hops["port"], minlength=len(sprayed.fabric.ports))
    shares = rates.link_shares(sprayed.fabric, counts, sprayed.roles[0].src_ip)
    uplinks = [port.index for port in sprayed.fabric.uplinks("leaf0")]
    assert shares[uplinks].sum() == pytest.approx(1.0)
    assert (shares[uplinks] > 0.1).all()
    assert shares[sprayed.fabric.nic("h4").peer] == pytest.approx(1.0)


# ---- goodput and throughput

def test_goodput_is_payload_over_the_time_to_the_last_byte(evidence: Evidence) -> None:
    flows = [flow_of(evidence, "h2->h4"), flow_of(evidence, "h0->h3")]
    alone, shared = rates.goodput_gbps(evidence, evidence.iterations[0], flows)
    assert alone == pytest.approx(LINE_GBPS, rel=0.05)  # five links' latency in 67 us
    assert alone < LINE_GBPS
    assert shared == pytest.approx(LINE_GBPS / 2, rel=0.03)


def test_a_flow_that_is_planned_later_is_timed_from_then_on() -> None:
    run = LosslessRun(spec())
    run.message("h0", "h4", 200)
    run.message("h1", "h5", 200, at_us=300)
    run.play()
    late = run.evidence()
    found = rates.summary(late)
    first, second = found["flow_gbps"].values()
    assert second == pytest.approx(first, rel=0.02)
    assert found["jain_goodput"] == pytest.approx(1.0, abs=1e-3)


def test_a_flow_that_never_ended_is_timed_to_the_end_of_the_run(evidence: Evidence) -> None:
    iteration = evidence.iterations[0]
    undone = replace(iteration, ranks=tuple(replace(rank, end_ns=None) if rank.host == "h4" else rank
                                            for rank in iteration.ranks))
    longer = replace(evidence, iterations=(undone,), end_ns=evidence.last_ns + 10 * (evidence.last_ns - START_NS))
    victim, other = flow_of(evidence, "h2->h4"), flow_of(evidence, "h0->h3")
    before = rates.goodput_gbps(evidence, iteration, [victim, other])
    after = rates.goodput_gbps(longer, undone, [victim, other])
    assert after[0] < before[0] / 10
    assert after[1] == before[1]


def test_throughput_adds_up_to_the_bytes_of_every_flow(evidence: Evidence) -> None:
    flows = sorted(evidence.roles)
    series = rates.throughput(evidence, evidence.iterations[0], flows, bin_us=5.0)
    payload = series.gbps.sum(axis=1) * 5.0 * 1e3 / 8
    assert payload == pytest.approx([200 * 4096] * 3)
    assert series.middle_us[0] == 2.5
    steady = series.gbps[flows.index(flow_of(evidence, "h2->h4"))][1:10]
    assert steady == pytest.approx([LINE_GBPS] * 9, rel=0.1)


def test_a_packet_that_is_sent_again_counts_once() -> None:
    dropped = Evidence.of(planted("drop"))
    rows = rates.arrivals(dropped, dropped.iterations[-1], sorted(dropped.roles))
    identity = rows["flow"].astype(np.int64) << 24 | rows["psn"]
    assert len(np.unique(identity)) == len(rows) == 16 * 6 * 16  # ranks, steps, packets of a chunk
    assert (np.diff(rows["end_ns"]) >= 0).all()


# ---- convergence

def series(*rows: list[float]) -> Throughput:
    return Throughput(tuple(range(len(rows))), np.arange(len(rows[0]) + 1) * 10.0, np.array(rows, float))


FAIR = np.array([50.0, 50.0])
ALL = (0.0, 1e9)


@pytest.mark.parametrize(("first", "second", "window", "expected"), [
    ([50, 50, 50, 50], [50, 50, 50, 50], ALL, 0.0),
    ([90, 60, 54, 50, 48], [10, 40, 46, 50, 52], ALL, 20.0),
    ([50, 50, 50, 50, 30], [50, 50, 50, 50, 70], ALL, None),  # left it again
    ([50, 90, 50, 50, 50, 50], [50, 10, 50, 50, 50, 50], ALL, 20.0),
    ([90, 90, 90, 50, 50], [10, 10, 10, 50, 50], ALL, None),  # two bins are not long enough
    ([90, 50, 50, 50, 0], [10, 50, 50, 50, 90], (0.0, 40.0), 10.0),  # one ended after 40 us
    ([0, 0, 50, 50, 50], [90, 90, 50, 50, 50], (20.0, 50.0), 0.0),  # and one began after 20 us
    ([55, 55, 55], [45, 45, 45], ALL, 0.0),
    ([55.1, 55, 55], [45, 45, 45], ALL, None),
])
def test_convergence(first: list[float], second: list[float], window: tuple[float, float], expected: Any) -> None:
    assert rates.convergence_us(series(first, second), FAIR, window) == expected


def test_flows_with_shares_of_their_own_converge_to_those() -> None:
    assert rates.convergence_us(series([30, 20, 20, 20], [70, 80, 80, 80]), np.array([20.0, 80.0]), ALL) == 10.0


def test_a_bin_holds_enough_packets_of_the_slowest_flow() -> None:
    assert rates.bin_us_for(np.array([10.0, 50.0, 0.0]), 4096) == pytest.approx(20 * 4096 * 8 / 1e3 / 10)


def test_two_flows_that_share_from_the_beginning_have_converged_at_once() -> None:
    run = LosslessRun(spec(xoff_kb=400))
    for source in ("h0", "h1"):
        run.message(source, "h3", 200)
    run.play()
    evidence = run.evidence(collective="incast")
    assert rates.converged_us(evidence, evidence.iterations[0]) == pytest.approx(0.0, abs=15)
    fairness = rates.jain_in(evidence, evidence.iterations[0], sorted(evidence.roles), 10, 100)
    assert fairness == pytest.approx(1, abs=1e-3)


def test_steps_of_a_collective_do_not_converge() -> None:
    evidence = Evidence.of(planted("none"))
    assert rates.converged_us(evidence, evidence.iterations[-1]) is None
    assert rates.summary(evidence)["convergence_us"] is None


def test_a_run_without_iterations_has_no_rates() -> None:
    empty = changed(planted("none"), iterations=())
    assert rates.summary(Evidence.of(empty)) == {
        "flow_gbps": {}, "fair_gbps": {}, "jain_goodput": None, "convergence_us": None}


# ---- DCQCN's steps

def with_steps(raw: RawRun, *steps: tuple[int, str, int, float]) -> Evidence:
    """(t_ns, host, queue pair, Gb/s)"""
    trace = np.zeros(len(steps), TRACE_DTYPE)
    trace["kind"] = TraceKind.RATE
    for row, (t_ns, host, qp, gbps) in zip(trace, steps, strict=True):
        row["t_ns"], row["port"], row["arg"] = t_ns, raw.fabric.nic(host).index, qp
        row["wait_ns"] = round(raw.fabric.clock.lab_bps(gbps))
    return Evidence.of(changed(raw, trace=np.concatenate((raw.trace, trace))))


def test_rate_steps_belong_to_the_queue_pair_of_a_flow() -> None:
    raw = planted("none")
    roles = (replace(raw.flow_ranks[0], qp=7), *raw.flow_ranks[1:])
    start_ns = raw.iterations[-1].start_ns
    evidence = with_steps(changed(raw, flow_ranks=roles), (start_ns + 10_000_000, "h0", 7, 50.0),
                          (start_ns - 10_000_000, "h0", 7, 100.0), (start_ns, "h0", 8, 12.0), (start_ns, "h2", 3, 25.0))
    assert rates.rate_steps(evidence, 0)["arg"].tolist() == [7, 7]
    limits = rates.rate_limits(evidence, evidence.iterations[-1], [0, 1, 2])
    assert set(limits) == {0, 2}  # h2's only flow needs no number
    at_us, gbps = limits[0]
    assert at_us == pytest.approx([-1.0, 1.0])
    assert gbps == pytest.approx([100.0, 50.0])


def test_without_a_number_two_flows_of_a_nic_are_not_told_apart() -> None:
    raw = planted("none")
    twice = (*raw.flow_ranks, replace(raw.flow_ranks[0], dst_ip=raw.flow_ranks[1].dst_ip, src_port=5))
    flows = np.concatenate((raw.flows, raw.flows[:1]))
    flows[-1]["dst_ip"], flows[-1]["src_port"] = raw.flow_ranks[1].dst_ip, 5
    evidence = with_steps(changed(raw, flow_ranks=twice, flows=flows), (raw.start_ns, "h0", 7, 50.0))
    assert len(rates.rate_steps(evidence, 0)) == 0
