"""How runs end when something dies, and that nothing is left behind; each test builds a fabric of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
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

# Some seconds an iteration: time to kill somebody.
LAB = Lab(name="live_test", module=0, title="A test", question="?", iterations=2,
          fabric=FabricSpec(leaves=2, spines=2, hosts_per_leaf=2, slowdown=10_000),
          workload=RingAllReduce(4 * 1024 * 1024))
LAB_PY = """
from labs.lab import Lab
from labs.workload import RingAllReduce
from topologies.spec import FabricSpec
LAB = Lab(name="live_test", module=0, title="A test", question="?", policies=("ecmp", "dlb"), iterations={iterations},
          fabric=FabricSpec(leaves=2, spines=2, hosts_per_leaf=2, slowdown=10_000), workload=RingAllReduce({size}))
"""


def play(session: Session, lab: Lab = LAB) -> Played:
    return Run(session, lab, "ecmp", 1, Silent()).play()


def after(delay_s: float, act: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(delay_s, act)
    timer.start()
    return timer


def test_a_killed_rank_ends_the_run_at_once_with_its_reason() -> None:
    with Session(LAB) as session:
        begun = time.monotonic()
        after(1.5, lambda: os.kill(session.ranks.pids["h2"], signal.SIGKILL))
        played = play(session)
        assert time.monotonic() - begun < 6
    assert played.reason == "rank on h2: its process was killed by SIGKILL"
    failed = {rank.host: rank.error for rank in played.raw.iterations[-1].ranks}
    assert failed["h2"] == "its process was killed by SIGKILL"
    assert None not in failed.values()


def test_a_queue_pair_in_error_ends_the_run_with_its_reason() -> None:
    lab = LAB.with_overrides(["timeout_us=30", "retry_count=1"])

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
    with Session(LAB) as session:
        after(1.5, lambda: os.kill(getattr(session, victim).pid, signal.SIGKILL))
        begun = time.monotonic()
        played = play(session)
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
    second = straggler("run", lab_file(tmp_path, 65536, 1), "--out", str(tmp_path / "second"))
    text, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    assert f"another lab is running on this machine (pid {process.pid})" in text
    assert not (tmp_path / "second").exists()
    process.kill()
    process.wait()
    assert leftovers() != []
    process = straggler("run", lab_file(tmp_path, 65536, 1), "--out", str(tmp_path / "next"))
    text, _ = process.communicate(timeout=120)
    assert process.returncode in (0, 3), text
    assert leftovers() == []
    assert cleanup.running() is None


@pytest.mark.parametrize("delay_s", [1.0, 2.0, 3.5])
def test_ended_at_any_moment_it_leaves_nothing(tmp_path: Path, delay_s: float) -> None:
    process = straggler("run", lab_file(tmp_path, 262144, 2), "--out", str(tmp_path / "out"), "--seeds", "50")
    time.sleep(delay_s)  # imports; building; playing
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=60)
    assert process.returncode in (1, -signal.SIGTERM), text
    assert "Traceback" not in text
    assert leftovers() == []
    assert cleanup.running() is None
