"""Faults: what a lab breaks on purpose while it runs, in hardware units.

A fault begins `at_us` after the common instant of the first measured iteration (0: before anything is sent), and lasts
`for_us` (None: to the end of the run).  It says what it asks of fabricd; labs/fault_player.py plays it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from labs.faults.base import Fault, Request, Scene
from labs.faults.links import BitErrors, LinkDown, LostPacket
from labs.faults.nodes import BufferProfile, EcnProfile, PauseStorm, SlowReceiver
from topologies.errors import LabError

FAULTS: tuple[type[Fault], ...] = (SlowReceiver, PauseStorm, BitErrors, LinkDown, EcnProfile, BufferProfile, LostPacket)
__all__ = ["FAULTS", "BitErrors", "BufferProfile", "EcnProfile", "Fault", "LinkDown", "LostPacket", "PauseStorm",
           "Request", "Scene", "SlowReceiver", "check_all"]


def check_all(faults: Iterable[Fault], scene: Scene) -> None:
    """Raises LabError for a fault that the fabric cannot have, and for two that would undo each other."""
    seen: list[Fault] = []
    for fault in faults:
        if not isinstance(fault, FAULTS):
            raise LabError(f"faults: {fault!r} is not a fault", "one of " + ", ".join(kind.__name__ for kind in FAULTS))
        fault.check(scene)
        for other in seen:
            same = type(other) is type(fault) or {type(other), type(fault)} == {EcnProfile, BufferProfile}
            if same and other.where == fault.where and _overlap(other, fault):
                raise LabError(f"two faults at the same time: {other.planned}; {fault.planned}",
                               "the end of one would end the other: let them follow each other")
        seen.append(fault)


def _overlap(one: Fault, other: Fault) -> bool:
    def end_us(fault: Fault) -> float:
        return math.inf if fault.for_us is None else fault.at_us + fault.for_us

    return one.at_us < end_us(other) and other.at_us < end_us(one)
