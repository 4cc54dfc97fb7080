"""PFC headroom: how many bytes an ingress port must still take after it has said XOFF.

Two answers.  `sonic` is what a SONiC switch reserves (buffer_headroom_mellanox.lua, with the peer response of
its pg_profile tables): lossless MTU + (port MTU + cable + gearboxes + MAC/PHY + peer response) * cell occupancy.
`physical_bytes` is what this laboratory's links need, where a peer responds at the next frame boundary: 2 * delay *
rate + 2 frames + the PFC frame itself.  All in bytes of hardware, which are bytes of the laboratory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from topologies.units import WIRE_OVERHEAD_BYTES, mtu_frame_bytes

# Port speed in Gb/s: how long the peer takes to stop, in units of 64 bytes at that speed.
PEER_RESPONSE_UNITS = {10: 67, 25: 80, 40: 118, 100: 394, 200: 453, 400: 905}
PEER_RESPONSE_UNIT_BYTES = 64
PFC_FRAME_BYTES = 60


@dataclass(frozen=True)
class Headroom:
    """SONiC's formula, item by item. Bytes, but for `cell_occupancy`: memory taken over bytes held (1: no waste)."""

    lossless_mtu_bytes: int
    port_mtu_bytes: int
    cable_bytes: int
    gearbox_bytes: int
    mac_phy_bytes: int
    peer_response_bytes: int
    cell_occupancy: float = 1.0

    @property
    def total_bytes(self) -> int:
        """What is reserved for one lossless class of one port."""
        delay_bytes = (self.port_mtu_bytes + self.cable_bytes + self.gearbox_bytes + self.mac_phy_bytes
                       + self.peer_response_bytes)
        return math.ceil(self.lossless_mtu_bytes + delay_bytes * self.cell_occupancy)

    def items(self) -> list[tuple[str, int]]:
        """The computation for a report: (what it is for, bytes) down to the total."""
        rows = [
            ("one frame that the peer has begun to send", self.lossless_mtu_bytes),
            ("one frame that the pause has to wait for", self.port_mtu_bytes),
            ("on the cable, both ways", self.cable_bytes),
            ("in gearboxes, both ways", self.gearbox_bytes),
            ("in MAC and PHY", self.mac_phy_bytes),
            ("until the peer responds", self.peer_response_bytes),
        ]
        used = sum(size for _, size in rows)
        if self.total_bytes != used:
            rows.append((f"cells that are not full (occupancy {self.cell_occupancy:g})", self.total_bytes - used))
        return [*rows, ("headroom", self.total_bytes)]


def peer_response_bytes(rate_gbps: float) -> int:
    """Of the slowest tabulated speed that is not below `rate_gbps`; beyond the table in proportion to the last."""
    for speed, units in PEER_RESPONSE_UNITS.items():
        if rate_gbps <= speed:
            return units * PEER_RESPONSE_UNIT_BYTES
    speed, units = max(PEER_RESPONSE_UNITS.items())
    return math.ceil(units * PEER_RESPONSE_UNIT_BYTES * rate_gbps / speed)


def sonic(rate_gbps: float, delay_us: float, mtu_bytes: int, *, gearbox_us: float = 0.0, mac_phy_bytes: int = 0,
          cell_occupancy: float = 1.0) -> Headroom:
    """SONiC's headroom for a port of `rate_gbps` with `delay_us` of cable (5 ns a metre), MTU of the port in bytes."""
    bytes_a_us = rate_gbps * 1e3 / 8
    return Headroom(
        lossless_mtu_bytes=mtu_bytes, port_mtu_bytes=mtu_bytes, cable_bytes=math.ceil(2 * delay_us * bytes_a_us),
        gearbox_bytes=math.ceil(2 * gearbox_us * bytes_a_us), mac_phy_bytes=mac_phy_bytes,
        peer_response_bytes=peer_response_bytes(rate_gbps), cell_occupancy=cell_occupancy)


def of_link(rate_gbps: float, delay_us: float, mtu_bytes: int) -> Headroom:
    """`headroom_kb: auto`: SONiC's headroom for frames with `mtu_bytes` of RoCE payload."""
    return sonic(rate_gbps, delay_us, mtu_frame_bytes(mtu_bytes))


def physical_bytes(rate_gbps: float, delay_us: float, frame_bytes: int, *, dynamic_xoff: bool = False) -> int:
    """The least that loses nothing here, whatever the traffic: 2 * delay * rate + 2 frames + PFC.

    frame_bytes: of the largest frame, as tcpdump shows it.  dynamic_xoff: one frame more, since other ports can make
    the threshold fall below what this one holds already, and then its next frame is the first to notice.
    """
    frames = (3 if dynamic_xoff else 2) * (frame_bytes + WIRE_OVERHEAD_BYTES) + PFC_FRAME_BYTES + WIRE_OVERHEAD_BYTES
    return math.ceil(2 * delay_us * rate_gbps * 1e3 / 8) + frames
