"""Starts and stops the controller's process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controllers.client import ControllerClient
from controllers.options import Options
from controllers.registry import create_policy
from topologies.errors import LabError
from topologies.fabric import CONTROLLER_LOG, CONTROLLER_SOCKET, FABRIC_PATH, FABRICD_SOCKET, TELEMETRY_PATH

POLL_S = 0.05
LOG_TAIL_LINES = 8
BACKLOG = 256  # switches that connect while Ryu is still starting


class ControllerProcess:
    """A running controller.  Also a context manager that stops it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, socket_path: Path, log_path: Path) -> None:
        self._process = process
        self._socket_path = socket_path
        self._log_path = log_path
        self.port = port  # on 127.0.0.1, for the switches

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        """One request to the control socket.  Raises LabError."""
        with ControllerClient(self._socket_path) as client:
            return client.call(op, **arguments)

    def wait_listening(self, timeout_s: float = 20.0) -> None:
        """Wait until the control socket answers.  Raises LabError with the end of the log if the process ends."""
        self._poll(timeout_s, lambda: self.call("status"), "the controller does not answer")

    def wait_ready(self, timeout_s: float = 30.0) -> dict[str, Any]:
        """Wait until every switch is connected and has its rules; the last status.

        Raises LabError that names what is missing.
        """
        status: dict[str, Any] = {}

        def ready() -> dict[str, Any] | None:
            status.clear()
            status.update(self.call("status"))
            return status if status["ready"] else None

        def missing() -> str:
            if status.get("problems"):
                return f"the controller is not ready: {'; '.join(status['problems'])}"
            if status.get("missing"):
                return f"not connected to the controller: {', '.join(status['missing'])}"
            return "the controller is not ready"

        self._poll(timeout_s, ready, missing)
        return status

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the process; no error if it has ended."""
        if self.alive():
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._socket_path.unlink(missing_ok=True)

    def _poll(self, timeout_s: float, attempt: Any, complaint: Any) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            if not self.alive():
                raise LabError(f"the controller ended with status {self._process.returncode}: {self._log_tail()}",
                               f"the whole log: {self._log_path}")
            with contextlib.suppress(LabError):
                if attempt() is not None:
                    return
            if time.monotonic() > deadline:
                what = complaint() if callable(complaint) else complaint
                raise LabError(f"{what} (after {timeout_s:g} s)", f"see {self._log_path}")
            time.sleep(POLL_S)

    def _log_tail(self) -> str:
        try:
            lines = self._log_path.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return " | ".join(line.strip() for line in lines[-LOG_TAIL_LINES:] if line.strip()) or "(nothing logged)"

    def __enter__(self) -> ControllerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(fabric_path: Path | str = FABRIC_PATH, policy: str = "ecmp", params: Mapping[str, object] | None = None,
          seed: int | None = None, *, same_seed: bool = False, socket_path: Path = CONTROLLER_SOCKET,
          log_path: Path = CONTROLLER_LOG, fabricd_socket: Path | None = FABRICD_SOCKET,
          telemetry_path: Path = TELEMETRY_PATH, wait: bool = True) -> ControllerProcess:
    """Start a controller for the fabric described in `fabric_path`, which need not exist yet.

    Switches can connect to `.port` at once.  wait: until the control socket answers (1 to 3 s); otherwise call
    `wait_ready` later.  fabricd_socket None: there is no fabricd.  Raises LabError for an unknown policy or parameter,
    and if Ryu cannot be started.
    """
    create_policy(policy, params)
    if policy.endswith(".py"):
        policy = str(Path(policy).absolute())
    for path in (socket_path, log_path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    socket_path.unlink(missing_ok=True)
    options = Options(
        fabric_path=str(Path(fabric_path).absolute()), policy=policy, parameters=dict(params or {}), seed=seed,
        same_seed=same_seed, control_socket=str(socket_path), fabricd_socket=str(fabricd_socket or ""),
        telemetry_path=str(telemetry_path), parent_pid=os.getpid())
    # The listening socket is opened here: nobody else can take the port, and no switch is refused meanwhile.
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener, log_path.open("wb") as log:
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "controllers", "--listen-fd", str(listener.fileno()), "--options",
             options.to_json()],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, pass_fds=[listener.fileno()],
            cwd=Path(__file__).resolve().parent.parent, start_new_session=True)
    handle = ControllerProcess(process, port, socket_path, log_path)
    if wait:
        try:
            handle.wait_listening()
        except LabError:
            handle.stop()
            raise
    return handle
