"""What the tests of buffers and flow control share: RoCE-like traffic, and what must hold when all is quiet."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tests.unit.topologies.virtual_fabric import VirtualFabric
from topologies.fabric import Port
from topologies.fabricd.telemetry import DropReason, TraceKind
from topologies.spec import FabricSpec

MS = 1_000_000
KB = 1024
DATA, CNP = 26, 48  # DSCPs
LOSSLESS = 3  # the class of DATA
FRAME = 4096 + 42  # of `burst`
WIRE = FRAME + 24


def burst(fabric: VirtualFabric, src: str, dst: str, frames: int, at_ns: int = 5 * MS, payload: int = 4096,
          dscp: int = DATA, ecn: int = 0, sport: int = 1000) -> None:  # fmt: skip
    """``src`` hands ``frames`` datagrams to its NIC at once."""
    frame = fabric.packet(src, dst, payload, sport=sport, dscp=dscp, ecn=ecn)
    for _ in range(frames):
        fabric.send(src, frame, at_ns)


def incast(spec: FabricSpec, senders: int, frames: int) -> tuple[VirtualFabric, Port]:
    """``senders`` hosts of one leaf send to one host of it. Returns also the port of the leaf towards that host."""
    fabric = VirtualFabric(spec)
    target = f"h{senders}"
    for sender in range(senders):
        burst(fabric, f"h{sender}", target, frames, sport=1000 + sender)
    return fabric, access(fabric, target)


def access(fabric: VirtualFabric, host: str) -> Port:
    """The switch port that ``host`` hangs on."""
    return fabric.fabric.peer(fabric.fabric.nic(host))


def drops(fabric: VirtualFabric) -> dict[str, int]:
    """Frames that the fabric dropped, by reason."""
    total = fabric.core.telemetry.ports["dropped"].sum(axis=0)
    return {reason.name: int(total[reason]) for reason in DropReason if total[reason]}


def events(fabric: VirtualFabric, kind: TraceKind) -> NDArray[np.void]:
    """All trace records of one kind since the last call of any of these."""
    trace = fabric.core.telemetry.drain_trace()
    return trace[trace["kind"] == kind]


def quiet(fabric: VirtualFabric, lost: Iterable[str] = ()) -> None:
    """Nothing is left anywhere, and every frame was delivered or counted as dropped."""
    t = fabric.core.telemetry
    ports = fabric.fabric.ports
    sent = t.ports["rx_frames"][[p.index for p in ports if p.kind == "host"]].sum()
    delivered = t.ports["delivered_frames"][[p.index for p in ports if fabric.fabric.peer(p).kind == "host"]].sum()
    assert len(fabric.delivered) == delivered
    swallowed = (t.switches["in_frames"] - t.switches["out_frames"]).sum()
    assert sent == delivered + t.ports["dropped"][:, 1:8].sum() + swallowed
    assert bool(swallowed) == bool(tuple(lost))
    assert t.globals["pool_used"][0] == 0
    assert not t.ports["queue"]["depth_bytes"].any()
    assert not t.ports["priority_group"]["curr_occupancy_bytes"].any()
    assert not t.ports["priority_group"]["xoff_room_curr_occupancy_bytes"].any()
    for name in ("buffer_used_bytes", "lossless_used_bytes", "headroom_used_bytes"):
        assert not t.switches[name].any()
