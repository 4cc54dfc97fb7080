"""The exercise m4_ecn_profile: one leaf marks too early, the job takes twice as long, and the data name the leaf."""

from __future__ import annotations

from labs.lab import load
from labs.measure.events import table
from tests.live.exercise import LIVE, Result, play_alone

pytestmark = LIVE
LAB = load("m4_ecn_profile")


def play(variant: str) -> Result:
    """A run in which nothing was lost or stopped."""
    result = play_alone(LAB.variant(variant))
    assert [result.summary[key] for key in ("drops", "pauses", "timeouts")] == [0, 0, 0]
    return result


def test_as_planned_nothing_is_marked_and_the_job_runs_at_line_rate() -> None:
    summary = play("as planned").summary
    assert summary["marks"] == 0
    assert summary["jct_ratio"] <= 1.15


def test_one_leaf_slows_the_job_and_gives_itself_away() -> None:
    result = play("one leaf differs")
    # A CNP at a link that carries one flow at line rate halves that flow at once, and the ring with it.
    assert result.summary["jct_ratio"] > 1.5
    assert result.summary["cnps"] > 0
    assert set(result.summary["causes"]) == {"rate"}
    events = table(result.raw, result.evidence).to_pylist()
    assert {row["where"].partition("->")[0] for row in events if row["kind"] == "marks"} == {"leaf2"}
