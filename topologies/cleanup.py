"""One lab at a time, and nothing left behind.

A lab takes the lock and writes `State` *before* it creates the first thing, so that what a run killed at any instant
leaves behind can be told from everything else on the machine:

- processes: all of a lab's inherit `STRAGGLER_LAB=<token>` in their environment; no process without the token is
  touched, and it is checked with a pidfd in hand, so that a recycled pid cannot stand in for a dead process;
- interfaces: those of the lab's link group, if they carry our prefix too;
- bridges: those that carry our mark in OVS's database.  That survives a reboot, which /run does not;
- ovs-vswitchd's scheduling policy: as it was;
- files: shared memory and the run directory, except the lock.

Mininet's own clean-up (`mn -c`) deletes every bridge of the machine and kills by name; it is never called.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies import ovs
from topologies.errors import LabError
from topologies.fabric import LINK_GROUP, LOCK_PATH, PREFIX, RUN_DIR, SHM_DIR, STATE_PATH

TOKEN_VARIABLE = "STRAGGLER_LAB"
FORK_TIMEOUT_S = 2.0
FORK_POLL_S = 0.01
_TERMINATION_S = 1.0  # from SIGTERM to SIGKILL


@dataclass(frozen=True)
class State:
    """What a lab is about to create, as in state.json."""

    lab: str
    pid: int  # of the runner
    token: str  # STRAGGLER_LAB of every process of the lab
    ovs_policy: ovs.SchedulingPolicy | None = None  # of ovs-vswitchd before we changed it

    def save(self, path: Path = STATE_PATH) -> None:
        """Write it atomically."""
        draft = path.with_name(path.name + ".new")
        draft.write_text(json.dumps(dataclasses.asdict(self)) + "\n")
        os.replace(draft, path)

    @classmethod
    def load(cls, path: Path = STATE_PATH) -> State | None:
        """The state that a lab left, or None: no lab, or not a file of ours."""
        try:
            values: dict[str, Any] = json.loads(path.read_text())
            policy = values.pop("ovs_policy")
            return cls(**values, ovs_policy=ovs.SchedulingPolicy(**policy) if policy else None)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Lock:
    """The machine's one lab.  The kernel releases it when the process that holds it ends, however it ends."""

    def __init__(self, path: Path = LOCK_PATH) -> None:
        self._path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds it."""
        return self._fd is not None

    def acquire(self) -> None:
        """Take it.  Raises LabError, naming the process that has it."""
        if self.held:
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + FORK_TIMEOUT_S
        while not _lock(fd):
            pid = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            # A lab that was killed has its lock held for a moment more by what it had forked and not yet executed.
            if Path("/proc", pid).exists() or time.monotonic() > deadline:
                os.close(fd)
                raise LabError(f"another lab is running on this machine (pid {pid})",
                               "end it first, or wait until it has ended")
            time.sleep(FORK_POLL_S)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give it back."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def running(path: Path = LOCK_PATH) -> int | None:
    """The pid of the lab that runs, or None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(fd)
    return None


def clean() -> list[str]:
    """Remove what a killed lab left behind; says what that was.  Raises LabError while a lab is running."""
    lock = Lock()
    lock.acquire()
    try:
        return remove(State.load())
    finally:
        lock.release()


def remove(state: State | None) -> list[str]:
    """Remove everything of the lab described by `state` (None: what carries our marks); the caller has the lock."""
    removed = []
    if state is not None:
        removed += [f"process {pid} ({name})" for pid, name in kill_processes(state.token)]
        if state.ovs_policy is not None and ovs.restore_scheduler(state.ovs_policy):
            removed.append("real-time priority of ovs-vswitchd")
    removed += [f"interface {name}" for name in remove_interfaces()]
    removed += [f"bridge {name}" for name in ovs.remove_bridges()]
    for path in _files():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        removed.append(str(path))
    return removed


def _files() -> list[Path]:
    logs = (".log",)  # of the last lab; the next one overwrites them
    files = [path for path in RUN_DIR.glob("*") if path != LOCK_PATH and path.suffix not in logs]
    return files + ([SHM_DIR] if SHM_DIR.exists() else [])


def remove_interfaces() -> list[str]:
    """Remove the interfaces of our link group that carry our prefix; returns their names."""
    group = str(LINK_GROUP)
    listing = _run("ip", "-json", "link", "show", "group", group)
    names = [link["ifname"] for link in json.loads(listing or "[]") if link]  # {} stands for one of another group
    ours = [name for name in names if name.startswith(PREFIX)]
    if not ours:
        return []
    if len(ours) == len(names):
        _run("ip", "link", "delete", "group", group)  # 0.3 s for a thousand, 10 s one by one
    else:
        # Somebody else uses the same group number.  A veth goes with its peer, hence -force.
        _run("ip", "-force", "-batch", "-", stdin="".join(f"link delete {name}\n" for name in ours))
    return ours


def _run(*command: str, stdin: str = "") -> str:
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False).stdout


def kill_processes(token: str) -> list[tuple[int, str]]:
    """End all processes that carry the token, except this one and its ancestors; returns their pids and names.

    SIGHUP and SIGTERM first (an interactive shell ignores SIGTERM), SIGKILL after a second.
    """
    marker = f"{TOKEN_VARIABLE}={token}".encode()
    killed: list[tuple[int, str]] = []
    while True:  # a process may have started another one while we were looking
        found = list(_find_processes(marker))
        if not found:
            return killed
        killed += [(pid, name) for pid, name, _pidfd in found if (pid, name) not in killed]
        pidfds = [pidfd for _pid, _name, pidfd in found]
        try:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
                _signal_all(pidfds, number)
            _wait_for_all(pidfds, _TERMINATION_S)
            _signal_all(pidfds, signal.SIGKILL)
            _wait_for_all(pidfds, _TERMINATION_S)
        finally:
            for pidfd in pidfds:
                os.close(pidfd)


def _find_processes(marker: bytes) -> Iterator[tuple[int, str, int]]:
    """Pid, name and pidfd of every live process with `marker` in its environment."""
    spared = _ancestors()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in spared:
            continue
        try:
            pidfd = os.pidfd_open(int(entry))
        except OSError:
            continue
        process = Path("/proc", entry)
        try:
            # A zombie has no environment any more, so that it is not found again.
            if marker in process.joinpath("environ").read_bytes().split(b"\0"):
                yield int(entry), process.joinpath("comm").read_text().strip(), pidfd
                continue
        except OSError:
            pass
        os.close(pidfd)


def _ancestors() -> set[int]:
    pids = set()
    pid = os.getpid()
    while pid > 0:
        pids.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return pids


def _signal_all(pidfds: list[int], number: signal.Signals) -> None:
    for pidfd in pidfds:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)


def _wait_for_all(pidfds: list[int], timeout_s: float) -> None:
    waiting, deadline = set(pidfds), time.monotonic() + timeout_s
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        waiting -= set(select.select(list(waiting), [], [], left_s)[0])
