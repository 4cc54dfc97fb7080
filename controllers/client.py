"""The client of the controller's control socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from topologies.fabric import CONTROLLER_SOCKET
from topologies.fabricd.client import ControlClient


class ControllerClient(ControlClient):
    """A connection to the controller; controllers/app.py lists the operations.  Raises LabError."""

    def __init__(self, path: Path = CONTROLLER_SOCKET, timeout_s: float = 30.0) -> None:
        super().__init__(path, timeout_s)

    def call(self, op: str, fds: list[int] | None = None, **arguments: Any) -> dict[str, Any]:
        """As ControlClient's; a policy file is looked for from here, not from where the controller runs."""
        if op == "policy" and str(arguments.get("name", "")).endswith(".py"):
            arguments["name"] = str(Path(arguments["name"]).absolute())
        return super().call(op, fds, **arguments)
