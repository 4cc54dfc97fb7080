"""A fabric in virtual time: the native core, and ideal switches that forward at once as OVS is told to.

``uplink_of(leaf, metadata)`` plays the path table; everything else is routing by address, unless there is a ``route``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from topologies.fabric import Fabric, Port, describe
from topologies.fabricd.binding import FabricCore
from topologies.spec import FabricSpec


@dataclass(frozen=True)
class Metadata:
    """What fabricd writes into the MAC addresses of a frame inside a switch."""

    ingress_port: int
    flow: int
    flowlet: int
    spray: int
    slot: int
    time_us: int

    @classmethod
    def of(cls, frame: bytes) -> Metadata:
        assert frame[0] == frame[6] == 2
        return cls(*frame[7:12], time_us=int.from_bytes(frame[1:6], "big"))


Uplink = Callable[[str, Metadata], int]
Route = Callable[[str, Metadata, str], Port]  # switch, metadata, destination host -> where the frame leaves
MAC_CONTROL = 0x8808


class VirtualFabric:
    """Runs a spec in virtual time: ``send`` plans a frame, ``run`` plays until nothing moves any more."""

    def __init__(
        self, spec: FabricSpec, uplink_of: Uplink | None = None, start_ns: int = 1_000_000, route: Route | None = None
    ) -> None:
        self.fabric: Fabric = describe(spec)
        self.core = FabricCore(self.fabric)
        self.now_ns = start_ns
        self.uplink_of: Uplink = uplink_of or (lambda leaf, metadata: metadata.flow % spec.uplinks_per_leaf)
        self.delivered: list[tuple[int, str, bytes]] = []  # time, host, frame
        self.control: list[tuple[int, int, bytes]] = []  # MAC control frames: time, port whose device sees it, frame
        self.inside: list[tuple[str, Metadata]] = []  # of every frame that entered a switch
        self.lost_in_switch: set[str] = set()  # switches that swallow what they get
        self._route = route or self._route_by_address
        self._planned: list[tuple[int, int, int, bytes]] = []
        self._order = 0
        self._host_of = {host.ip: host for host in self.fabric.hosts}

    def send(self, host: str, frame: bytes, at_ns: int) -> None:
        """``host`` emits ``frame`` at ``at_ns``."""
        self._plan(at_ns, self.fabric.nic(host).index, frame)

    def packet(
        self, src: str, dst: str, payload_bytes: int, sport: int = 1000, dport: int = 2000, dscp: int = 0, ecn: int = 0
    ) -> bytes:
        """A UDP datagram from one host to another, as its kernel would emit it."""
        source, target = self.fabric.host(src), self.fabric.host(dst)
        return bytes(
            Ether(src=source.mac, dst=self.fabric.gateway_mac)
            / IP(src=source.ip, dst=target.ip, tos=dscp << 2 | ecn)
            / UDP(sport=sport, dport=dport)
            / bytes(payload_bytes)
        )

    def run(self, until_ns: int = 2**62) -> None:
        """Plays events in order of time, until ``until_ns`` or until there are none."""
        while True:
            planned = self._planned[0][0] if self._planned else None
            event = self.core.next_ns()
            times = [time for time in (planned, event) if time is not None]
            if not times or min(times) > until_ns:
                return
            self.now_ns = max(self.now_ns, min(times))
            while self._planned and self._planned[0][0] <= self.now_ns:
                at_ns, _, port, frame = heapq.heappop(self._planned)
                self.core.rx(port, frame, at_ns)
            for delivery in self.core.advance(self.now_ns):
                self._receive(delivery.port, delivery.frame)

    def _plan(self, at_ns: int, port: int, frame: bytes) -> None:
        self._order += 1
        heapq.heappush(self._planned, (at_ns, self._order, port, frame))

    def _receive(self, port_index: int, frame: bytes) -> None:
        port = self.fabric.port(port_index)
        if int.from_bytes(frame[12:14], "big") == MAC_CONTROL:
            self.control.append((self.now_ns, port_index, frame))
            return
        if port.kind == "host":
            self.delivered.append((self.now_ns, port.device, frame))
            return
        metadata = Metadata.of(frame)
        self.inside.append((port.device, metadata))
        if port.device in self.lost_in_switch:
            return
        target = self._host_of[".".join(map(str, frame[30:34]))]
        self._plan(self.now_ns, self._route(port.device, metadata, target.name).index, frame)

    def _route_by_address(self, switch: str, metadata: Metadata, target: str) -> Port:
        local = self.fabric.leaf_of(target).name
        if switch == local:
            return self.fabric.peer(self.fabric.nic(target))
        if self.fabric.switch(switch).tier == "leaf":
            return self.fabric.uplinks(switch)[self.uplink_of(switch, metadata)]
        return next(p for p in self.fabric.ports_of(switch) if self.fabric.peer(p).device == local)
