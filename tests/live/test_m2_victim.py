"""The exercise m2_victim: what an innocent flow keeps of its rate beside an incast."""

from __future__ import annotations

from typing import Any

import pytest

from labs.lab import load
from labs.measure import theory
from labs.measure.why import explain
from tests.live.exercise import LIVE, play_alone

pytestmark = LIVE
LAB = load("m2_victim")
VICTIM, FLOW = 2, "h2->h7"  # its rank, and its name
# Nothing of the victim's own path is oversubscribed: its fair share is the link, less headers.
FAIR_GBPS = LAB.fabric.mtu_bytes * 8 / theory.mtu_time_us(LAB.fabric.mtu_bytes, LAB.fabric.link_gbps) / 1e3


def share(summary: dict[str, Any]) -> float:
    """The victim's goodput over its fair share."""
    [gbps] = [gbps for flow, gbps in summary["flow_gbps"].items() if flow.startswith(FLOW)]
    return float(gbps) / FAIR_GBPS


def test_pfc_takes_the_victim_down_to_what_the_flows_beside_it_get() -> None:
    """Its uplink passes three flows in turn, and two of them get a quarter of a link each: so does the third."""
    result = play_alone(LAB.variant("pfc"))
    assert result.summary["drops"] == 0
    assert result.summary["pauses"] > 0
    assert share(result.summary) == pytest.approx(0.25, abs=0.10)
    answer = explain(result.evidence, 0, rank=VICTIM)
    assert answer.cause == "pause"
    assert "leaf1->h4" in answer.sentence, "the root is the port of a host that the victim never talks to"


def test_dcqcn_gives_it_back() -> None:
    summary = play_alone(LAB.variant("pfc + dcqcn")).summary
    assert summary["drops"] == 0
    assert summary["cnps"] > 0
    assert share(summary) > 0.9


def test_a_lane_of_its_own_gives_it_back_too() -> None:
    summary = play_alone(LAB.variant("credits + lanes")).summary
    assert summary["drops"] == 0
    assert summary["credit_stalls"] > 0, "the incast was held back, and the victim was not"
    assert share(summary) > 0.9
