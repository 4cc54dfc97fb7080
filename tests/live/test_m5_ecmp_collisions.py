"""The exercise m5_ecmp_collisions: what the hash puts on one uplink is what the job waits for, in every seed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labs.lab import load
from labs.runner_session import Session
from tests.live.exercise import LIVE, play, play_alone

pytestmark = LIVE

LAB = load("m5_ecmp_collisions")
SEEDS = range(1, 11)


@pytest.fixture(scope="class")
def session() -> Iterator[Session]:
    with Session(LAB) as session:
        yield session


class TestDefaultBuffers:
    """The first act."""

    def test_ecmp_takes_as_long_as_its_fullest_uplink_says_in_every_seed(self, session: Session) -> None:
        lab = LAB.replace(iterations=1, warmup=0)
        runs = {seed: play(session, lab, "ecmp", seed).summary for seed in SEEDS}
        factors = {run["predicted_factor"] for run in runs.values()}
        assert len(factors) > 1, "ten throws of the dice that all fall alike prove nothing"
        for seed, run in runs.items():
            assert run["jct_ratio"] == pytest.approx(run["predicted_factor"], rel=0.10), f"seed {seed}"
            assert run["drops"] == 0

    def test_dlb_gives_every_flow_an_uplink_of_its_own_in_every_seed(self, session: Session) -> None:
        lab = LAB.replace(iterations=1, warmup=1)
        for seed in SEEDS:
            run = play(session, lab, "dlb", seed).summary
            assert run["jct_ratio"] <= 1.15, f"seed {seed}"

    def test_spraying_reorders_and_go_back_n_pays_for_it(self, session: Session) -> None:
        run = play(session, LAB.replace(iterations=1, warmup=0), "spray").summary
        assert run["mmr"] < 1.1  # even, but for the counter's also counting acknowledgements; and yet
        assert run["reordered_packets"] > 0
        assert run["retransmitted_packets"] > 0
        assert run["drops"] == 0
        assert run["jct_ratio"] > 2
        assert {iteration["straggler"]["cause"] for iteration in run["iterations"]} == {"reordering"}


def test_small_buffers_turn_collisions_into_drops() -> None:
    """The second act."""
    lab = LAB.with_overrides(["buffer_kb=64"]).replace(iterations=1, warmup=0)
    run = play_alone(lab, "ecmp").summary
    assert run["drops"] > 0
    assert run["retransmitted_packets"] >= run["drops"]
    assert run["jct_ratio"] > run["predicted_factor"]


def test_a_slowdown_that_is_far_too_small_is_invalid_for_the_right_reason(tmp_path: Path) -> None:
    """One MTU lasts 336 us then, of which a tenth is less than fabricd's shortest tick: it cannot be on time."""
    command = [sys.executable, "-m", "labs.cli", "run", "m5", "--policies", "ecmp", "--slowdown", "1000", "--quick"]
    for setting in ("leaves=2", "spines=2", "hosts_per_leaf=2", "size_bytes=524288"):
        command += ["--set", setting]
    done = subprocess.run([*command, "--out", str(tmp_path / "run")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stdout + done.stderr
    [run] = json.loads((tmp_path / "run/run.json").read_text())["runs"]
    assert run["valid"] is False
    assert "lateness" in {check["check"] for check in run["verdict"] if not check["ok"]}
    assert run["next_slowdown"] > 1000
    assert f"--slowdown {run['next_slowdown']:.0f}" in done.stdout + done.stderr
