"""Do busy links carry the rate that they are configured for?  Seen from the far end, by the wall clock.

fabricd computes departures exactly, so a port's own record cannot show that the machine fell behind.  What can
is the next device: the moment at which the frame, having crossed the link and the switch behind it, came to
the next queue.  That moment is read from a clock.  A link that had a frame waiting all the time must
therefore feed the next queue at its own rate: from frame to frame the way there must not take longer and longer.  How
much longer is the slope of a straight line through the delays of all its frames (least squares, an offset for each
stretch), so that no single frame decides, be it late by itself or the last of its stretch.

A link that was paused, had no credits, or whose NIC sends at a rate of DCQCN's, was not busy: the pause ends a stretch
of frames back to back.  A PFC frame or an update of credits between two frames does not: the link carried that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from topologies.fabricd.telemetry import TraceKind
from topologies.headroom import PFC_FRAME_BYTES
from topologies.units import WIRE_OVERHEAD_BYTES

if TYPE_CHECKING:
    from topologies.fabric import Fabric

MIN_STRETCH_FRAMES = 32  # back to back, for a stretch to count
MIN_FRAMES = 256  # of a port in all: below that an endpoint's jitter exceeds a fraction of a per cent
_BACK_TO_BACK_NS = 1_000
_CONTROL_BYTES = PFC_FRAME_BYTES + WIRE_OVERHEAD_BYTES  # the largest control frame; in no record


def carried_rate_errors(trace: npt.NDArray[Any], fabric: Fabric) -> dict[int, float]:
    """Relative error of the carried rate of every port that was busy long enough, by global port index."""
    hops = trace[trace["kind"] == TraceKind.HOP]
    hops = hops[np.argsort(hops["t_ns"], kind="stable")]
    rates = np.array([port.rate_bps for port in fabric.ports])
    wire_bits = (hops["bytes"].astype(np.float64) + WIRE_OVERHEAD_BYTES) * 8
    begin_ns = hops["t_ns"] - (wire_bits * 1e9 / rates[hops["port"]]).astype(np.int64)
    came_ns = _arrival_at_next_queue(hops, begin_ns - hops["wait_ns"], fabric)
    errors: dict[int, float] = {}
    for port in np.unique(hops["port"]):
        of_port = np.flatnonzero(hops["port"] == port)
        delay_time, time_time, frames = 0.0, 0.0, 0
        gap_ns = begin_ns[of_port][1:] - hops["t_ns"][of_port][:-1]
        control_ns = _CONTROL_BYTES * 8e9 / rates[port]
        follows = (gap_ns >= -_BACK_TO_BACK_NS) & (gap_ns <= control_ns + _BACK_TO_BACK_NS)
        breaks = np.flatnonzero(~follows) + 1
        for stretch in np.split(of_port, breaks):
            seen = stretch[came_ns[stretch] >= 0]
            if len(stretch) < MIN_STRETCH_FRAMES or len(seen) < 2:
                continue
            due_ns = hops["t_ns"][seen].astype(np.float64)
            delay_ns = came_ns[seen] - due_ns
            due_ns -= due_ns.mean()
            delay_time += float((due_ns * (delay_ns - delay_ns.mean())).sum())
            time_time += float((due_ns**2).sum())
            frames += len(seen)
        if frames >= MIN_FRAMES:
            errors[int(port)] = 1 / (1 + delay_time / time_time) - 1
    return errors


def _arrival_at_next_queue(
    hops: npt.NDArray[Any], queued_ns: npt.NDArray[np.int64], fabric: Fabric
) -> npt.NDArray[np.int64]:
    """For each hop the time at which the same frame came to the queue of the next device; -1 where there is none.

    A frame is known by flow and PSN; a PSN that was sent again is left out where the copies cannot be told apart.
    """
    next_device = np.array([_device_number(fabric, port.peer) for port in fabric.ports])
    device = np.array([_device_number(fabric, port.index) for port in fabric.ports])
    came = np.full(len(hops), -1, dtype=np.int64)
    leaving = _keys(hops, next_device[hops["port"]])
    entering = _keys(hops, device[hops["port"]])
    order = np.argsort(entering, kind="stable")
    keys = entering[order]
    left = np.searchsorted(keys, leaving, side="left")
    once = (np.searchsorted(keys, leaving, side="right") - left) == 1
    unique, counts = np.unique(leaving, return_counts=True)
    once &= counts[np.searchsorted(unique, leaving)] == 1
    came[once] = queued_ns[order[left[once]]]
    return came


def _device_number(fabric: Fabric, port_index: int) -> int:
    port = fabric.port(port_index)
    return port.node + (0 if port.kind == "host" else len(fabric.hosts))


def _keys(hops: npt.NDArray[Any], device: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """One number for (device, flow, PSN): 12, 27 and 24 bits."""
    keys: npt.NDArray[np.int64] = (
        device.astype(np.int64) << 51 | (hops["flow"].astype(np.int64) & 0x7FFFFFF) << 24
        | hops["psn"].astype(np.int64) & 0xFFFFFF
    )
    return keys
