"""Faults of links, and of single packets on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from labs.faults.base import Fault, Request, Scene, check_number, port_index
from labs.measure.evidence import ACK_FRAME_BYTES
from topologies.errors import LabError


@dataclass(frozen=True)
class BitErrors(Fault):
    """Frames that leave by one end of a link ("leaf0->spine1") arrive broken with a probability."""

    link: str
    probability: float
    seed: int = 1

    name: ClassVar[str] = "bit_errors"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "probability", 0, 1)

    def check(self, scene: Scene) -> None:
        port_index(scene.fabric, self.link)

    def begin(self, scene: Scene) -> list[Request]:
        return [("set_bit_errors", {"port": port_index(scene.fabric, self.link), "probability": self.probability,
                                    "seed": self.seed})]

    def end(self, scene: Scene) -> list[Request]:
        return [("set_bit_errors", {"port": port_index(scene.fabric, self.link), "probability": 0})]

    @property
    def where(self) -> dict[str, str]:
        return {"port": self.link}

    @property
    def text(self) -> str:
        return f"{self.link} breaks one frame in {1 / self.probability:.4g}" if self.probability else (
            f"{self.link} breaks no frame")


@dataclass(frozen=True)
class LinkDown(Fault):
    """A link is cut, in both directions."""

    link: str

    name: ClassVar[str] = "link_down"

    def check(self, scene: Scene) -> None:
        port_index(scene.fabric, self.link)

    def begin(self, scene: Scene) -> list[Request]:
        return self._set(scene, up=False)

    def end(self, scene: Scene) -> list[Request]:
        return self._set(scene, up=True)

    def _set(self, scene: Scene, *, up: bool) -> list[Request]:
        near = port_index(scene.fabric, self.link)
        return [("set_port", {"port": port, "up": up}) for port in (near, scene.fabric.port(near).peer)]

    @property
    def where(self) -> dict[str, str]:
        return {"port": self.link}

    @property
    def text(self) -> str:
        return f"{self.link} is down, in both directions"


@dataclass(frozen=True)
class LostPacket(Fault):
    """One data packet from a host to another is lost, of those of the first measured iteration.

    packet: its number, from 0, or "middle", or "last".  It goes lost on the link of the sender's NIC.
    """

    source: str
    target: str
    packet: int | Literal["middle", "last"] = "middle"

    name: ClassVar[str] = "lost_packet"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at_us or self.for_us is not None:
            raise LabError("LostPacket has no time of its own", "the number of the packet says when")
        if self.packet not in ("middle", "last") and (type(self.packet) is not int or self.packet < 0):
            raise LabError(f"LostPacket: packet={self.packet!r}", "a number from 0, 'middle' or 'last'")

    def check(self, scene: Scene) -> None:
        for host in (self.source, self.target):
            scene.fabric.host(host)
        if not scene.job.between(self.source, self.target):
            raise LabError(f"LostPacket: nothing is sent from {self.source} to {self.target}",
                           "name the two ends of a flow of the workload")
        if self.number(scene) >= self.packets(scene):
            raise LabError(f"LostPacket: packet={self.packet}, but {self.source} sends only {self.packets(scene)} to "
                           f"{self.target}", "packets are counted from 0")

    def packets(self, scene: Scene) -> int:
        """How many there are."""
        mtu_bytes = scene.fabric.spec.mtu_bytes
        return sum(scene.workload.packets(scene.job, channel, mtu_bytes)
                   for channel in scene.job.between(self.source, self.target))

    def number(self, scene: Scene) -> int:
        """Which of them is lost."""
        if isinstance(self.packet, int):
            return self.packet
        return self.packets(scene) // 2 if self.packet == "middle" else self.packets(scene) - 1

    def begin(self, scene: Scene) -> list[Request]:
        return [("plant_drop", {**self._flow(scene), "let_through": self.number(scene), "lose": 1})]

    def end(self, scene: Scene) -> list[Request]:
        return [("plant_drop", {**self._flow(scene), "lose": 0})]

    def _flow(self, scene: Scene) -> dict[str, Any]:
        return {"port": scene.fabric.nic(self.source).index, "src_ip": scene.fabric.host(self.source).ip,
                "dst_ip": scene.fabric.host(self.target).ip, "least_bytes": ACK_FRAME_BYTES + 1}

    @property
    def where(self) -> dict[str, str]:
        return {"device": self.source}

    @property
    def text(self) -> str:
        which = f"packet {self.packet}" if isinstance(self.packet, int) else f"the {self.packet} packet"
        return f"{which} from {self.source} to {self.target} is lost"

    @property
    def planned(self) -> str:
        return self.text
