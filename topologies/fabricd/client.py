"""The client of a control socket: one JSON line there, one JSON line back."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from topologies.errors import LabError


class ControlClient:
    """A connection to a process of the lab that serves ``serve_control``'s protocol. Also a context manager."""

    def __init__(self, path: Path, timeout_s: float = 10.0) -> None:
        """Connects. Raises LabError if nobody listens at ``path``."""
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        self._pending = b""
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise LabError(f"nobody answers at {path}: {error.strerror}", remedy="is a lab running?") from error

    def call(self, op: str, fds: list[int] | None = None, **arguments: Any) -> dict[str, Any]:
        """Sends ``op`` (with file descriptors ``fds``) and returns the answer. Raises LabError if it is a refusal."""
        line = json.dumps({"op": op, **arguments}).encode() + b"\n"
        try:
            socket.send_fds(self._socket, [line], fds or [])
            while b"\n" not in self._pending:
                chunk = self._socket.recv(65536)
                if not chunk:
                    raise LabError(f"{self._path.stem} ended while it was asked for '{op}'", remedy="see its log")
                self._pending += chunk
        except OSError as error:
            raise LabError(f"{self._path.stem} did not answer '{op}': {error}", remedy="see its log") from error
        answer, _, self._pending = self._pending.partition(b"\n")
        reply: dict[str, Any] = json.loads(answer)
        if not reply.pop("ok"):
            raise LabError(f"{self._path.stem} refused '{op}': {reply['error']}")
        return reply

    def close(self) -> None:
        """Ends the connection; what was opened over it is closed with it."""
        self._socket.close()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FabricdClient(ControlClient):
    """A connection to fabricd; see ``process.py`` for the operations."""
