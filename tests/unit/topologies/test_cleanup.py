"""The lock, the log of intentions, and who is killed; without root."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from topologies import cleanup, ovs
from topologies.cleanup import Lock, State
from topologies.errors import LabError


def test_state_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for policy in (None, ovs.SchedulingPolicy(1, 2, 0, 0, -10)):
        state = State(lab="test", pid=1, token="t", ovs_policy=policy)
        state.save(path)
        assert State.load(path) == state


@pytest.mark.parametrize("text", [
    "", "{", "[]", "{}", '{"lab": 1, "ovs_policy": {}}', '{"lab": "", "ovs_policy": null, "x": 1}',
])
def test_a_state_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    assert State.load(path) is None
    path.write_text(text)
    assert State.load(path) is None


def test_one_lab_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lock"
    first, second = Lock(path), Lock(path)
    assert cleanup.running(path) is None
    first.acquire()
    assert cleanup.running(path) == os.getpid()
    with pytest.raises(LabError, match=f"another lab is running on this machine \\(pid {os.getpid()}\\)"):
        second.acquire()
    first.acquire()  # harmless
    first.release()
    assert cleanup.running(path) is None
    second.acquire()
    second.release()


def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = "import pathlib, sys; from topologies.cleanup import Lock; Lock(pathlib.Path(sys.argv[1])).acquire()"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert cleanup.running(path) is None
    Lock(path).acquire()


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def start(sleepers: list[subprocess.Popen[bytes]], *command: str, token: str | None) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if key != cleanup.TOKEN_VARIABLE}
    if token is not None:
        environment[cleanup.TOKEN_VARIABLE] = token
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    sleepers.append(process)
    return process


def test_only_those_with_the_token_are_killed(sleepers: list[subprocess.Popen[bytes]]) -> None:
    ours = start(sleepers, "sleep", "100", token="0123")
    others = [start(sleepers, "sleep", "100", token=token) for token in (None, "012", "01234")]
    assert cleanup.kill_processes("0123") == [(ours.pid, "sleep")]
    assert ours.wait(5) != 0
    assert all(other.poll() is None for other in others)
    assert cleanup.kill_processes("0123") == []


def test_a_process_that_ignores_signals_is_killed(sleepers: list[subprocess.Popen[bytes]],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "_TERMINATION_S", 0.2)
    stubborn = start(sleepers, "sh", "-c", "trap '' HUP TERM; echo; sleep 100; sleep 100", token="0123")
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    assert (stubborn.pid, "sh") in cleanup.kill_processes("0123")
    assert stubborn.wait(5) == -9


def test_neither_itself_nor_its_ancestors() -> None:
    """Somebody cleans up from a shell that the lab itself had opened."""
    code = "from topologies.cleanup import kill_processes as k; print(k('0123'))"
    shell = ["sh", "-c", f'{sys.executable} -c "{code}"; echo alive']
    environment = {**os.environ, cleanup.TOKEN_VARIABLE: "0123"}
    done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nalive\n"
