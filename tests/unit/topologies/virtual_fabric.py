"""A fabric in virtual time: the native core, and ideal switches that forward at once as OVS is told to.

``uplink_of(leaf, metadata)`` plays the path table; everything else is routing by address.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from topologies.fabric import Fabric, describe
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


class VirtualFabric:
    """Runs a spec in virtual time: ``send`` plans a frame, ``run`` plays until nothing moves any more."""

    def __init__(self, spec: FabricSpec, uplink_of: Uplink | None = None, start_ns: int = 1_000_000) -> None:
        self.fabric: Fabric = describe(spec)
        self.core = FabricCore(self.fabric)
        self.now_ns = start_ns
        self.uplink_of: Uplink = uplink_of or (lambda leaf, metadata: metadata.flow % spec.spines)
        self.delivered: list[tuple[int, str, bytes]] = []  # time, host, frame
        self.inside: list[tuple[str, Metadata]] = []  # of every frame that entered a switch
        self._planned: list[tuple[int, int, int, bytes]] = []
        self._order = 0
        self._host_of = {host.ip: host for host in self.fabric.hosts}

    def send(self, host: str, frame: bytes, at_ns: int) -> None:
        """``host`` emits ``frame`` at ``at_ns``."""
        self._plan(at_ns, self.fabric.nic(host).index, frame)

    def packet(self, src: str, dst: str, payload_bytes: int, sport: int = 1000, dport: int = 2000) -> bytes:
        """A UDP datagram from one host to another, as its kernel would emit it."""
        source, target = self.fabric.host(src), self.fabric.host(dst)
        return bytes(
            Ether(src=source.mac, dst=self.fabric.gateway_mac)
            / IP(src=source.ip, dst=target.ip)
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
        if port.kind == "host":
            self.delivered.append((self.now_ns, port.device, frame))
            return
        metadata = Metadata.of(frame)
        self.inside.append((port.device, metadata))
        target = self._host_of[".".join(map(str, frame[30:34]))]
        local = self.fabric.leaf_of(target.name).name
        if port.device == local:
            out = self.fabric.peer(self.fabric.nic(target.name))
        elif self.fabric.switch(port.device).tier == "leaf":
            out = self.fabric.uplinks(port.device)[self.uplink_of(port.device, metadata)]
        else:
            out = next(p for p in self.fabric.ports_of(port.device) if self.fabric.peer(p).device == local)
        self._plan(self.now_ns, out.index, frame)
