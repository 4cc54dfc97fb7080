"""Faults of hosts and of switches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from labs.faults.base import Fault, Request, Scene, check_number
from topologies.errors import LabError
from topologies.qos import CLASSES
from topologies.units import BYTES_PER_KB


@dataclass(frozen=True)
class SlowReceiver(Fault):
    """A host gets rid of what it receives no faster than `drain_gbps` (PCIe-bound), and stops its switch by PFC."""

    host: str
    drain_gbps: float

    name: ClassVar[str] = "slow_receiver"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "drain_gbps", 0.001, 10_000)

    def check(self, scene: Scene) -> None:
        scene.fabric.host(self.host)

    def begin(self, scene: Scene) -> list[Request]:
        return self._drain(scene, scene.fabric.clock.lab_bps(self.drain_gbps))

    def end(self, scene: Scene) -> list[Request]:
        return self._drain(scene, 0)

    def _drain(self, scene: Scene, drain_bps: float) -> list[Request]:
        return [("set_drain", {"port": scene.fabric.nic(self.host).index, "drain_bps": drain_bps})]

    @property
    def where(self) -> dict[str, str]:
        return {"device": self.host}

    @property
    def text(self) -> str:
        return f"{self.host} takes in {self.drain_gbps:g} Gb/s"


@dataclass(frozen=True)
class PauseStorm(Fault):
    """A NIC tells its switch to stop, again and again, whatever happens."""

    host: str
    classes: tuple[int, ...] | list[int] = (3,)

    name: ClassVar[str] = "pause_storm"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "classes", tuple(self.classes))
        if not self.classes or not all(type(c) is int and 0 <= c < CLASSES for c in self.classes):
            raise LabError(f"PauseStorm: classes={self.classes!r}", f"traffic classes 0 to {CLASSES - 1}")

    def check(self, scene: Scene) -> None:
        scene.fabric.host(self.host)
        if scene.fabric.spec.flow_control != "pfc":
            raise LabError(f"PauseStorm: nobody obeys PAUSE with flow_control={scene.fabric.spec.flow_control}",
                           "flow_control=pfc")

    def begin(self, scene: Scene) -> list[Request]:
        return [("pause_storm", {"port": scene.fabric.nic(self.host).index, "classes": list(self.classes)})]

    def end(self, scene: Scene) -> list[Request]:
        return [("pause_storm", {"port": scene.fabric.nic(self.host).index, "classes": []})]

    @property
    def where(self) -> dict[str, str]:
        return {"device": self.host}

    @property
    def text(self) -> str:
        return f"{self.host} sends PAUSE for class {', '.join(map(str, self.classes))} without end"


@dataclass(frozen=True)
class SwitchProfile(Fault):
    """Base of the faults in a switch's configuration, which end with the one that the fabric was built with."""

    switch: str

    def check(self, scene: Scene) -> None:
        scene.fabric.switch(self.switch)

    def end(self, scene: Scene) -> list[Request]:
        return [("restore_switch", {"switch": scene.fabric.switch(self.switch).index})]

    @property
    def where(self) -> dict[str, str]:
        return {"device": self.switch}


@dataclass(frozen=True)
class EcnProfile(SwitchProfile):
    """One switch marks otherwise than the fabric's keys say."""

    kmin_kb: float
    kmax_kb: float
    pmax: float

    name: ClassVar[str] = "ecn_profile"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "kmin_kb", 0, 1 << 20)
        check_number(self, "kmax_kb", self.kmin_kb, 1 << 20)
        check_number(self, "pmax", 0, 1)

    def begin(self, scene: Scene) -> list[Request]:
        spec = scene.fabric.spec.of_switch(self.switch)
        return [("set_ecn", {
            "switch": scene.fabric.switch(self.switch).index, "kmin_bytes": round(self.kmin_kb * BYTES_PER_KB),
            "kmax_bytes": round(self.kmax_kb * BYTES_PER_KB), "pmax": self.pmax,
            "classes": [c for c in range(CLASSES) if c not in spec.strict_classes]})]

    @property
    def text(self) -> str:
        return f"{self.switch} marks from {self.kmin_kb:g} KB, up to {self.pmax:g} at {self.kmax_kb:g} KB"


@dataclass(frozen=True)
class BufferProfile(SwitchProfile):
    """One switch has other buffers; what is not given stays.  See fabric_service's set_buffer.  xoff_kb=0: dynamic."""

    buffer_kb: float | None = None
    xoff_kb: float | None = None
    xon_offset_kb: float | None = None
    headroom_kb: float | None = None
    lossy_pool_kb: float | None = None
    lossless_pool_kb: float | None = None
    alpha: float | None = None
    xoff_alpha: float | None = None

    name: ClassVar[str] = "buffer_profile"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.changes:
            raise LabError(f"BufferProfile of {self.switch} changes nothing", "for example headroom_kb=0")
        for key in self.changes:
            check_number(self, key, 0, 1 << 20)

    @property
    def changes(self) -> dict[str, float]:
        """What it sets."""
        common = {field.name for field in dataclasses.fields(SwitchProfile)}
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {key: value for key, value in values.items() if key not in common and value is not None}

    def begin(self, scene: Scene) -> list[Request]:
        values = {f"{key[:-3]}_bytes" if key.endswith("_kb") else key:
                  round(value * BYTES_PER_KB) if key.endswith("_kb") else value for key, value in self.changes.items()}
        return [("set_buffer", {"switch": scene.fabric.switch(self.switch).index, **values})]

    @property
    def text(self) -> str:
        return f"{self.switch} has " + ", ".join(f"{key}={value:g}" for key, value in self.changes.items())
