"""A run's summary: the issue's keys, numbers that agree with each other and with what was planted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from labs.measure import theory, why
from labs.measure.results import statistics, summarise
from tests.unit.labs.measure.synthetic import changed, planted, run

KEYS = {"policy", "seed", "valid", "verdict", "iterations", "time_us", "ideal_us", "jct_ratio", "algbw_gbps",
        "busbw_gbps", "wrong", "drops", "drops_by_port", "retransmitted_packets", "uplink_bytes", "jain", "mmr",
        "path_changes", "reordered_packets", "packets", "lab_s", "label", "variant", "drops_by_reason", "marks", "cnps",
        "pauses", "pause_us", "credit_stalls", "credit_stall_us", "watchdogs", "flow_gbps", "peak_queue_bytes",
        "headroom_peak_bytes", "frozen", "faults"}


def test_the_keys_are_there() -> None:
    assert set(summarise(planted("none"))) >= KEYS


def test_times_are_hardware_times_and_lab_seconds_stand_beside_them() -> None:
    summary = summarise(planted("none"))
    (iteration,) = summary["iterations"]
    assert iteration["lab_s"] == pytest.approx(iteration["time_us"] * 1e-6 * 10_000)
    assert summary["time_us"]["mean"] == iteration["time_us"] == summary["time_us"]["max"]
    assert summary["jct_ratio"] == pytest.approx(iteration["time_us"] / summary["ideal_us"])
    assert iteration["start_skew_us"] == 0


def test_bandwidths_are_those_of_nccl_tests() -> None:
    summary = summarise(planted("none"))
    assert summary["algbw_gbps"] == pytest.approx(256 * 1024 * 8 / summary["time_us"]["mean"] / 1e3)
    assert summary["busbw_gbps"] == pytest.approx(1.5 * summary["algbw_gbps"])
    assert summary["busbw_gbps"] == pytest.approx(100 / summary["jct_ratio"])  # the ideal is the link's rate
    assert summary["busbw_gbps"] < 100


def test_load_of_the_uplinks() -> None:
    even, uneven = summarise(planted("none")), summarise(planted("collision"))
    assert even["mmr"] == pytest.approx(1.0, abs=0.05)
    assert even["jain"] == pytest.approx(1.0, abs=0.01)
    assert uneven["mmr"] == pytest.approx(3.0, abs=0.1)
    assert len(even["uplink_bytes"]) == 16
    data = 16 * 6 * 64 * 1024 * 2  # ranks, steps, chunk, iterations
    assert sum(even["uplink_bytes"].values()) == pytest.approx(data, rel=0.06)  # headers and acknowledgements


def test_drops_and_retransmissions() -> None:
    summary = summarise(planted("drop"))
    assert summary["drops"] == sum(sum(reasons.values()) for reasons in summary["drops_by_port"].values())
    assert list(summary["drops_by_port"]) == ["leaf1->spine2"]
    assert set(summary["drops_by_port"]["leaf1->spine2"]) == {"tail"}
    assert summary["drops_by_reason"] == {"tail": summary["drops"]}
    assert summary["drops"] == summary["packets"]["dropped"] > 0
    assert summary["retransmitted_packets"] > 0
    assert summary["reordered_packets"] == 0


def test_reordering_and_path_changes() -> None:
    summary = summarise(planted("reordering"))
    assert summary["reordered_packets"] > 0
    assert summary["path_changes"] > 0
    assert summary["drops"] == 0


@pytest.mark.parametrize("cause", ["none", "collision", "drop", "reordering"])
def test_the_cause_is_recorded_with_every_iteration(cause: str) -> None:
    summary = summarise(planted(cause))
    assert [i["straggler"]["cause"] for i in summary["iterations"]] == [cause]
    assert summary["causes"] == {cause: 1}


def test_the_warm_up_counts_for_nothing() -> None:
    raw = planted("none")
    slow = replace(raw.iterations[0], ranks=tuple(
        replace(rank, end_ns=(rank.end_ns or 0) + 10**9) for rank in raw.iterations[0].ranks))
    summary = summarise(changed(raw, iterations=(slow, raw.iterations[1])))
    assert summary["time_us"]["max"] == summarise(raw)["time_us"]["max"]
    assert summary["warmup_iterations"][0]["time_us"] > 10**9 / 1e3 / 10_000


def test_no_factor_is_predicted_for_flows_that_are_not_alike() -> None:
    raw = planted("none")
    assert summarise(changed(raw, predicted={"factor": 1.0}))["predicted_factor"] == 1.0
    for collective in ("transfers", "incast"):
        other = summarise(changed(raw, predicted={"factor": 1.0}, workload={**raw.workload, "collective": collective}))
        assert other["predicted_factor"] is other["expected_factor"] is None


def test_every_cause_is_one_of_the_schema() -> None:
    schema = json.loads((Path(why.__file__).parent / "schema.json").read_text())
    allowed = schema["$defs"]["iteration"]["properties"]["straggler"]["properties"]["cause"]["enum"]
    assert set(why.CAUSES) <= set(allowed)


def test_a_run_that_broke_off() -> None:
    raw = planted("none")
    dead = replace(raw.iterations[1], ranks=(
        replace(raw.iterations[1].ranks[0], end_ns=None, error="killed"), *raw.iterations[1].ranks[1:]))
    summary = summarise(changed(raw, iterations=(raw.iterations[0], dead)))
    assert not summary["valid"]
    assert summary["jct_ratio"] is summary["busbw_gbps"] is summary["time_us"]["mean"] is None
    assert summary["errors"] == [{"iteration": 1, "rank": 0, "host": "h0", "error": "killed"}]


def test_a_run_that_never_began() -> None:
    raw = planted("none")
    empty = changed(raw, iterations=(), trace=raw.trace[:0], series_t_ns=raw.series_t_ns[:0],
                    series_depth=raw.series_depth[:0], before=raw.after)
    summary = summarise(empty)
    assert not summary["valid"]
    assert summary["packets"]["sent"] == 0


def test_counters_are_those_of_this_run_only() -> None:
    raw = planted("drop")
    assert summarise(changed(raw, before=raw.after))["drops"] == 0


def test_measurement_agrees_with_theory() -> None:
    """Collisions only: the ratio is the number of flows on the fullest link."""
    raw = run(lambda rank, packet, leaf: 0 if leaf == 2 else rank % 4, size_bytes=512 * 1024, iterations=1, warmup=0)
    summary = summarise(raw)
    assert summary["jct_ratio"] == pytest.approx(4.0, rel=0.1)
    assert summary["time_us"]["mean"] > 4 * theory.wire_overhead_factor(4096) * summary["ideal_us"]


def test_statistics_of_nothing() -> None:
    assert statistics([]) == {"mean": None, "p50": None, "p99": None, "max": None}
    assert statistics([1.0, 3.0])["mean"] == 2.0
