"""The exercise m4_dcqcn_tuning: senders that come one after the other share a port, and the queue stays on the line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from labs.exercises.m4_dcqcn_tuning.settled import BOTTLENECK, settled, shares_gbps
from labs.lab import Lab, load
from labs.measure import theory
from labs.measure.evidence import Evidence
from labs.measure.results import summarise
from labs.runner_play import Run, Silent
from labs.runner_session import Session
from topologies.units import BYTES_PER_KB

pytestmark = pytest.mark.live

LAB = load("m4_dcqcn_tuning")


def play(lab: Lab) -> tuple[Evidence, dict[str, Any]]:
    """One run, in which every packet is accounted for, whatever the machine was doing."""
    with Session(lab) as session:
        played = Run(session, lab, "ecmp", 1, Silent()).play()
    assert played.reason is None
    summary = summarise(played.raw)
    assert summary["wrong"] == 0
    assert summary["drops"] == 0
    assert summary["packets"]["sent"] == summary["packets"]["delivered"]
    return Evidence.of(played.raw), summary


def cnps_a_us(lab: Lab, senders: int) -> float:
    """CNPs of one sender in equilibrium: what cuts take from its target is what additive increase gives.

    With f CNPs a us, one alpha period a us, alpha is f and a cut takes f / gd of the rate R.  The timer's first period
    after a cut is recovery, each later one adds R_AI: exp(-2 f T) / (1 - exp(-f T)) times between two CNPs that come
    at random.  Solved by bisection: the left side grows with f, the right one falls.
    """
    control = lab.workload.congestion_control(lab.fabric)
    assert control is not None
    assert control.threshold == control.alpha_period_us == 1
    rate_mbps = lab.fabric.link_gbps * 1e3 / senders
    low, high = 1e-6, 1.0
    for _ in range(60):
        f = (low + high) / 2
        periods = math.exp(-2 * f * control.time_reset_us) / (1 - math.exp(-f * control.time_reset_us))
        low, high = (f, high) if rate_mbps * f / control.gd < control.ai_rate_mbps * periods else (low, f)
    return low


@pytest.mark.parametrize(("variant", "senders"), [("tuned", 4), ("tuned 2:1", 2)])
def test_shares_converge_and_the_queue_settles(variant: str, senders: int) -> None:
    lab = LAB.variant(variant)
    evidence, summary = play(lab)
    late = settled(evidence)
    assert late.end_us > late.begin_us + 2000, "too little is left to look at"
    alone = shares_gbps(evidence, 100, 200)
    assert alone.max() == alone.sum() == pytest.approx(late.line_gbps, rel=0.05), "the first one had the whole link"
    assert late.worst < 0.1
    assert theory.jain(late.gbps) >= 0.98
    assert late.utilisation > 0.9
    assert summary["pauses"] == 0
    kmin, kmax = lab.fabric.ecn_kmin_kb, lab.fabric.ecn_kmax_kb
    assert kmin is not None
    assert kmax is not None
    assert kmin < np.median(late.depth_kb) < kmax
    assert kmin < late.depth_kb.mean() < kmax
    cnps = summary["cnps"] / senders / summary["time_us"]["mean"]
    assert cnps == pytest.approx(cnps_a_us(lab, senders), rel=0.25)


def test_marking_that_begins_above_xoff_leaves_the_work_to_pfc() -> None:
    """Four ingress ports may hold XOFF each: with Kmax above that sum the queue never gets there."""
    lab = LAB.variant("late marks")
    assert isinstance(lab.fabric.xoff_kb, float)
    _, summary = play(lab)
    assert summary["pauses"] > 0
    assert summary["marks"] > 0
    held_kb = 4 * lab.fabric.xoff_kb
    assert lab.fabric.ecn_kmax_kb is not None
    assert held_kb < lab.fabric.ecn_kmax_kb
    assert summary["peak_queue_bytes"][BOTTLENECK] / BYTES_PER_KB == pytest.approx(held_kb, rel=0.05)
