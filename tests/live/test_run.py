"""The runner against real fabrics: what a run records, and how it ends when something dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labs.lab import Lab
from labs.measure.results import summarise
from labs.runner_play import Played, Run, Silent
from labs.runner_session import Session
from labs.workload import RingAllReduce
from topologies import cleanup
from topologies.fabric import RUN_DIR
from topologies.fabricd.client import FabricdClient
from topologies.spec import FabricSpec

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
]

FABRIC = FabricSpec(leaves=2, spines=2, hosts_per_leaf=2, slowdown=10_000)
LAB = Lab(name="live_test", module=0, title="A test", question="?", fabric=FABRIC, workload=RingAllReduce(128 * 1024),
          policies=("ecmp", "dlb"), iterations=2)
LONG = RingAllReduce(4 * 1024 * 1024)  # some seconds an iteration: time to kill somebody
LAB_PY = """
from labs.lab import Lab
from labs.workload import RingAllReduce
from topologies.spec import FabricSpec
LAB = Lab(name="live_test", module=0, title="A test", question="?", policies=("ecmp", "dlb"), iterations={iterations},
          fabric=FabricSpec(leaves=2, spines=2, hosts_per_leaf=2, slowdown=10_000), workload=RingAllReduce({size}))
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(LAB) as session:
        yield session


def play(session: Session, lab: Lab = LAB, policy: str = "ecmp", seed: int = 1) -> Played:
    return Run(session, lab, policy, seed, Silent()).play()


@pytest.mark.parametrize("policy", ["ecmp", "group", "flowlet", "dlb", "spray"])
def test_every_policy_reduces_right_and_loses_nothing(session: Session, policy: str) -> None:
    played = play(session, policy=policy)
    assert played.reason is None
    summary = summarise(played.raw)
    assert summary["wrong"] == 0
    assert summary["errors"] == []
    assert summary["packets"]["lost_in_switch"] == 0
    assert summary["packets"]["in_flight"] == 0
    assert summary["packets"]["sent"] == summary["packets"]["delivered"] + summary["packets"]["dropped"]
    assert summary["jct_ratio"] > 1.0
    assert len(played.raw.iterations) == 3
    for iteration in played.raw.iterations:
        starts = [rank.first_tx_ns for rank in iteration.ranks]
        assert None not in starts
        # Whatever the machine was doing: never before the common instant.
        assert all(start is not None and start >= iteration.start_ns for start in starts)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_collisions_are_predicted_from_hash_and_path_table(session: Session, seed: int) -> None:
    raw = play(session, LAB.with_overrides(["size_bytes=524288"]), seed=seed).raw
    summary = summarise(raw)
    assert summary["jct_ratio"] == pytest.approx(raw.predicted["factor"], rel=0.15)
    uplinks = [port.index for leaf in raw.fabric.leaves() for port in raw.fabric.uplinks(leaf)]
    frames = raw.after.ports["tx_bytes"][uplinks] - raw.before.ports["tx_bytes"][uplinks]
    assert (frames > frames.mean() / 2).sum() == {1.0: 4, 2.0: 2}.get(raw.predicted["factor"], 3) or max(frames) > 0


def test_seeds_repeat_their_ports(session: Session) -> None:
    one, again, other = (play(session, seed=seed).raw.flow_ranks for seed in (5, 5, 6))
    assert one == again
    assert one != other


def test_jitter_delays_the_start(session: Session) -> None:
    raw = play(session, LAB.with_overrides(["jitter_us=20", "compute_us=5"])).raw
    late_us = [raw.fabric.clock.hardware_us(rank.first_tx_ns - iteration.start_ns)
               for iteration in raw.iterations for rank in iteration.ranks if rank.first_tx_ns is not None]
    assert max(late_us) > 5
    assert min(late_us) >= 0
    assert max(late_us) <= 21


def test_several_queue_pairs_a_connection(session: Session) -> None:
    raw = play(session, LAB.with_overrides(["qps_per_connection=3"])).raw
    assert len(raw.flow_ranks) == 12
    assert summarise(raw)["wrong"] == 0


def after(delay_s: float, act: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(delay_s, act)
    timer.start()
    return timer


def test_a_killed_rank_ends_the_run_at_once_with_its_reason() -> None:
    lab = LAB.replace(workload=LONG)
    with Session(lab) as session:
        begun = time.monotonic()
        after(1.5, lambda: os.kill(session.ranks.pids["h2"], signal.SIGKILL))
        played = play(session, lab)
        assert time.monotonic() - begun < 6
    assert played.reason == "rank on h2: its process was killed by SIGKILL"
    failed = {rank.host: rank.error for rank in played.raw.iterations[-1].ranks}
    assert failed["h2"] == "its process was killed by SIGKILL"
    assert None not in failed.values()


def test_a_queue_pair_in_error_ends_the_run_with_its_reason() -> None:
    lab = LAB.replace(workload=LONG).with_overrides(["timeout_us=30", "retry_count=1"])

    def cut(session: Session) -> None:
        with FabricdClient(RUN_DIR / "fabricd.sock") as client:
            client.call("set_port", port=session.fabric.nic("h1").index, up=False)

    with Session(lab) as session:
        begun = time.monotonic()
        after(1.5, lambda: cut(session))
        played = play(session, lab)
        assert time.monotonic() - begun < 10
    assert played.reason is not None
    assert "RETRY_EXC_ERR" in played.reason


@pytest.mark.parametrize(("victim", "reason"), [("_controller", "the controller died"), ("_fabricd", "fabricd died")])
def test_a_dead_process_is_noticed_within_seconds(victim: str, reason: str) -> None:
    lab = LAB.replace(workload=LONG)
    with Session(lab) as session:
        after(1.5, lambda: os.kill(getattr(session, victim).pid, signal.SIGKILL))
        begun = time.monotonic()
        played = play(session, lab)
        assert time.monotonic() - begun < 6
    assert played.reason == reason
    assert not summarise(played.raw)["valid"]
    assert played.raw.controller_alive == (victim != "_controller")


def straggler(*words: str, **keywords: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "labs.cli", *words], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, start_new_session=True, **keywords)


def lab_file(directory: Path, size_bytes: int, iterations: int) -> str:
    path = directory / "lab.py"
    path.write_text(LAB_PY.format(size=size_bytes, iterations=iterations))
    return str(path)


def leftovers() -> list[str]:
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    bridges = subprocess.run(["ovs-vsctl", "list-br"], capture_output=True, text=True, check=True).stdout
    files = [str(path) for path in RUN_DIR.glob("*") if path.suffix != ".log" and path.name != "lock"]
    return [word for word in (links + bridges).split() if word.startswith("sg-")] + files


def read_until(process: subprocess.Popen[str], text: str, deadline_s: float = 60.0) -> None:
    """Reads the output up to a line with `text`."""
    timer = after(deadline_s, process.kill)
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            timer.cancel()
            return
    raise AssertionError(f"{text!r} was not printed, but:\n{''.join(seen)}")


def test_a_run_from_the_command_line_leaves_results_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = straggler("run", lab_file(tmp_path, 65536, 2), "--out", str(out), "--seeds", "2")
    text, _ = process.communicate(timeout=120)
    assert process.returncode in (0, 3), text
    document = json.loads((out / "run.json").read_text())
    assert [(run["policy"], run["seed"]) for run in document["runs"]] == [
        ("ecmp", 1), ("dlb", 1), ("ecmp", 2), ("dlb", 2)]
    assert process.returncode == (0 if all(run["valid"] for run in document["runs"]) else 3)
    assert document["parameters"]["workload"]["window_bytes"] == 256 * 1024
    assert "size_bytes=65536" in text
    assert leftovers() == []


def test_interrupted_it_keeps_what_was_finished_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = straggler("run", lab_file(tmp_path, 262144, 2), "--out", str(out), "--seeds", "50")
    read_until(process, "[1/100] ecmp")
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ended early: interrupted" in text
    assert len(json.loads((out / "run.json").read_text())["runs"]) >= 1
    assert leftovers() == []


def test_after_kill_9_the_next_run_cleans_up(tmp_path: Path) -> None:
    process = straggler("run", lab_file(tmp_path, 262144, 2), "--out", str(tmp_path / "killed"), "--seeds", "50")
    read_until(process, "[1/100] ecmp")
    second = straggler("run", lab_file(tmp_path, 65536, 1))
    text, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    assert f"another lab is running on this machine (pid {process.pid})" in text
    process.kill()
    process.wait()
    assert leftovers() != []
    process = straggler("run", lab_file(tmp_path, 65536, 1), "--out", str(tmp_path / "next"))
    text, _ = process.communicate(timeout=120)
    assert process.returncode in (0, 3), text
    assert leftovers() == []
    assert cleanup.running() is None
