"""What a fault is, and where it happens."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from labs.workload import Job, Workload
from topologies.errors import LabError, nearest
from topologies.fabric import Fabric

Request = tuple[str, dict[str, Any]]
"""An operation of fabricd's control socket and its arguments (topologies/fabricd/fabric_service.py)."""


@dataclass(frozen=True)
class Scene:
    """Where a fault happens."""

    fabric: Fabric
    workload: Workload
    job: Job


@dataclass(frozen=True)
class Fault:
    """Base of all faults.  at_us, for_us: see above."""

    _: dataclasses.KW_ONLY
    at_us: float = 0.0
    for_us: float | None = None

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_number(self, "at_us", 0, 1e9)
        if self.for_us is not None:
            check_number(self, "for_us", 0.001, 1e9)

    def check(self, scene: Scene) -> None:
        """Raises LabError for what the fabric has not, or cannot do."""
        raise NotImplementedError

    def begin(self, scene: Scene) -> list[Request]:
        """What makes it."""
        raise NotImplementedError

    def end(self, scene: Scene) -> list[Request]:
        """What undoes it."""
        raise NotImplementedError

    @property
    def where(self) -> dict[str, str]:
        """{"device": name} or {"port": "leaf0->spine1"}."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """What is broken, in words."""
        raise NotImplementedError

    @property
    def planned(self) -> str:
        """The same with its times."""
        until = "" if self.for_us is None else f" to {self.at_us + self.for_us:g} us"
        return f"{self.text} from {self.at_us:g} us{until or ' on'}"


def check_number(fault: Fault, key: str, low: float, high: float) -> None:
    """Raises LabError unless a field is a number within bounds."""
    value = getattr(fault, key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise LabError(f"{type(fault).__name__}: {key}={value!r} is not possible", f"{low:g} to {high:g}")


def port_index(fabric: Fabric, link: str) -> int:
    """Index of the port called `link`."""
    names = [fabric.port_name(port.index) for port in fabric.ports]
    if link not in names:
        guess = nearest(link, names)
        raise LabError(f"there is no link {link!r}", f"did you mean {guess}?" if guess else "for example leaf0->spine1")
    return names.index(link)
