"""What a controller's process is told when it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from topologies.fabric import CONTROLLER_SOCKET, FABRIC_PATH, FABRICD_SOCKET, TELEMETRY_PATH

OPTIONS_VARIABLE = "STRAGGLER_CONTROLLER"  # Ryu creates its applications itself and hands them nothing


@dataclass(frozen=True)
class Options:
    """Paths as text.

    fabric_path: read when it appears, and again when it is replaced.  policy, parameters, seed, same_seed: to begin
    with; seed None: the fabric's.  fabricd_socket: "" when there is no fabricd to tell seeds and gaps.
    parent_pid: the controller ends when its parent is another one; 0: it does not look.
    """

    fabric_path: str = str(FABRIC_PATH)
    policy: str = "ecmp"
    parameters: Mapping[str, object] = field(default_factory=dict)
    seed: int | None = None
    same_seed: bool = False
    control_socket: str = str(CONTROLLER_SOCKET)
    fabricd_socket: str = str(FABRICD_SOCKET)
    telemetry_path: str = str(TELEMETRY_PATH)
    parent_pid: int = 0

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Options:
        """The inverse of `to_json`."""
        return cls(**json.loads(text))
