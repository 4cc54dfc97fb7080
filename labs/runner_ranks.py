"""The runner's end of the ranks: starts them through the zygote, sends them commands, gathers their answers.

All ranks answer over one Unix socket, a JSON line each.  Whatever ends a rank early (an exception, a queue pair in
error, a signal, kill -9) ends the wait for the others within a second, with the reason.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from topologies.errors import LabError
from topologies.fabric import RANKS_SOCKET, RUN_DIR, Fabric

ZYGOTE_LOG = RUN_DIR / "ranks.log"
_START_TIMEOUT_S = 60.0  # an emulated processor needs 20
_WATCH_S = 0.2  # how often `watch` is asked while waiting
_GRACE_S = 0.3  # after a failure, for the others to tell of theirs
_STOP_S = 3.0

Watch = Callable[[], str | None]
"""Asked while waiting; a sentence when the wait is pointless (the controller died, ...), else None."""


@dataclass
class Gathered:
    """What came back: replies and failures by host; `reason` is the first failure in words, None if all is well."""

    replies: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    reason: str | None = None

    def fail(self, host: str, why: str) -> None:
        """Notes a failure of a rank."""
        self.failures.setdefault(host, why)
        self.reason = self.reason or f"rank on {host}: {why}"


class Ranks:
    """One agent in each of some hosts.  A context manager; leaving it ends them all."""

    def __init__(self, fabric: Fabric, hosts: list[str], socket_path: Path = RANKS_SOCKET,
                 log_path: Path = ZYGOTE_LOG) -> None:
        """Starts them.  Raises LabError if they are not all there in time."""
        self.hosts = hosts
        self._selector = selectors.DefaultSelector()
        self._sockets: dict[str, socket.socket] = {}
        self._pending: dict[object, bytes] = {}
        self._gone: dict[str, str] = {}  # host -> how its rank ended
        self.pids: dict[str, int] = {}
        socket_path.unlink(missing_ok=True)
        self._path, self._log_path = socket_path, log_path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._listener.bind(str(socket_path))
        self._listener.listen(len(hosts) + 1)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, "listener")
        self._zygote: subprocess.Popen[bytes] | None = None
        try:
            self._start(fabric)
        except BaseException:
            self.close()
            raise

    def _start(self, fabric: Fabric) -> None:
        with self._log_path.open("wb") as log:
            self._zygote = subprocess.Popen(
                [sys.executable, "-m", "labs.agents.zygote", str(self._path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True,  # Ctrl-C is for the runner, which ends the ranks in order
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": _import_path()})
        for host in self.hosts:
            self._pipe("stdin").write(json.dumps({"host": host, "pid": fabric.host(host).pid}).encode() + b"\n")
        self._pipe("stdin").flush()
        self._selector.register(self._pipe("stdout"), selectors.EVENT_READ, "zygote")
        deadline = time.monotonic() + _START_TIMEOUT_S
        while len(self.pids) < len(self.hosts):
            self._receive(_WATCH_S, Gathered())
            if self._gone or time.monotonic() > deadline:
                how = next(iter(self._gone.values()), f"{len(self.pids)} of {len(self.hosts)} came up")
                raise LabError(f"the ranks did not start: {how}", f"see {self._log_path}: {self._log_tail()}")

    def _pipe(self, name: str) -> IO[bytes]:
        assert self._zygote is not None
        pipe: IO[bytes] | None = getattr(self._zygote, name)
        assert pipe is not None
        return pipe

    @property
    def died(self) -> bool:
        """Whether a rank's process is gone."""
        return bool(self._gone)

    def call(self, commands: Mapping[str, Mapping[str, Any]], timeout_s: float, watch: Watch | None = None) -> Gathered:
        """Sends each host its command and waits for all answers, for the first failure, or for `timeout_s`."""
        gathered = Gathered()
        for host, command in commands.items():
            if host in self._gone:
                gathered.fail(host, self._gone[host])
                continue
            try:
                self._sockets[host].sendall(json.dumps(command).encode() + b"\n")
            except OSError as error:
                gathered.fail(host, f"{error.strerror}")
        deadline = time.monotonic() + timeout_s
        while commands.keys() - gathered.replies.keys() - gathered.failures.keys():
            self._receive(min(_WATCH_S, max(0.0, deadline - time.monotonic())), gathered)
            for host in self._gone.keys() & commands.keys() - gathered.replies.keys():
                gathered.fail(host, self._gone[host])
            if gathered.reason is None and watch is not None:
                gathered.reason = watch()
            if gathered.reason is not None:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
            if time.monotonic() >= deadline:
                late = sorted(commands.keys() - gathered.replies.keys() - gathered.failures.keys())
                gathered.reason = gathered.reason or f"{', '.join(late[:4])} not finished after {timeout_s:.0f} s"
                break
        return gathered

    def _receive(self, timeout_s: float, gathered: Gathered) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.data == "listener":
                connection, _ = self._listener.accept()
                self._selector.register(connection, selectors.EVENT_READ, connection)
                continue
            data = os.read(key.fd, 1 << 20) if key.data == "zygote" else _read(key.data)
            *lines, self._pending[key.data] = (self._pending.get(key.data, b"") + data).split(b"\n")
            for line in lines:
                self._line(key.data, json.loads(line), gathered)
            if not data:
                self._selector.unregister(key.fileobj)
                self._ended(key.data)

    def _line(self, origin: object, message: dict[str, Any], gathered: Gathered) -> None:
        if origin == "zygote":
            status = int(message["status"])
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            self._gone[message["host"]] = f"its process {how}"
        elif "hello" in message:
            assert isinstance(origin, socket.socket)
            self._sockets[message["hello"]] = origin
            self.pids[message["hello"]] = int(message["pid"])
        elif message.pop("ok"):
            gathered.replies[message["host"]] = message
        else:
            gathered.fail(message["host"], message["error"])

    def _ended(self, origin: object) -> None:
        """A connection is closed: a rank's end is reported by the zygote in a moment, the zygote's own by nobody."""
        if origin == "zygote":
            for host in self.hosts:
                self._gone.setdefault(host, f"the zygote ended; {self._log_tail()}")

    def _log_tail(self) -> str:
        try:
            lines = self._log_path.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "its log is empty"

    def close(self) -> None:
        """Ends all ranks and the zygote."""
        for connection in self._sockets.values():
            connection.close()
        if self._zygote is not None:
            for name in ("stdin", "stdout"):
                self._pipe(name).close()
            try:
                self._zygote.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._zygote.kill()
                self._zygote.wait()
        self._selector.close()
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 20)
    except ConnectionError:
        return b""


def _import_path() -> str:
    """So that the child finds the packages wherever this process was started."""
    root = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
