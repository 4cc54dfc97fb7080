"""Where every packet stood: one row for each packet and each port in whose queue it waited.

A lossless switch charges a packet to the port by which it came in, and holds it in the queue of the port by which it
goes out; both are here, also for packets that never went out (a deadlock has many of them).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.fabric import Fabric
from topologies.fabricd.telemetry import DropReason, TraceKind
from topologies.units import WIRE_OVERHEAD_BYTES

NOWHERE = 0xFFFF  # no port: a NIC's packets came in by none; where a packet that never left was to go is not known
NEVER_NS = np.iinfo(np.int64).max

STAND_DTYPE = np.dtype([
    ("flow", "u4"), ("psn", "u4"), ("bytes", "u4"), ("traffic_class", "u1"),
    ("port", "u2"),  # in whose queue
    ("ingress", "u2"),  # by which it came into the switch
    ("came_ns", "i8"),  # into the switch, or into the NIC's queue
    ("begin_ns", "i8"),  # first bit out; NEVER_NS when it never left
    ("left_ns", "i8"),  # last bit out, or dropped from the queue; NEVER_NS when it never left
])


def stands(trace: npt.NDArray[Any], fabric: Fabric) -> npt.NDArray[Any]:
    """STAND_DTYPE rows of a trace (TRACE_DTYPE, HOP and DROP records of known flows), by arrival."""
    known = ((trace["kind"] == TraceKind.HOP) | (trace["kind"] == TraceKind.DROP)) & (trace["flow"] != 0xFFFFFFFF)
    records = trace[known]
    records = records[np.lexsort((records["t_ns"], records["psn"], records["flow"]))]
    if not len(records):
        return np.zeros(0, STAND_DTYPE)
    peer = np.array([port.peer for port in fabric.ports])
    delay_ns = np.array([port.delay_ns for port in fabric.ports])
    rate_bps = np.array([port.rate_bps for port in fabric.ports])
    names = {name: number for number, name in enumerate(dict.fromkeys(port.device for port in fabric.ports))}
    device = np.array([names[port.device] for port in fabric.ports])
    switch = np.array([port.kind == "switch" for port in fabric.ports])

    at, hop = records["port"].astype(np.int64), records["kind"] == TraceKind.HOP
    over = peer[at]  # the port at which a hop comes out
    same = (records["flow"][1:] == records["flow"][:-1]) & (records["psn"][1:] == records["psn"][:-1])
    onward = same & hop[:-1] & (device[over[:-1]] == device[at[1:]])
    follows = np.concatenate(([False], onward))
    before = np.arange(len(records)) - 1

    rows = np.zeros(len(records), STAND_DTYPE)
    for name in ("flow", "psn", "bytes"):
        rows[name] = records[name]
    rows["port"], rows["left_ns"] = at, records["t_ns"]
    rows["traffic_class"] = np.where(hop, records["reason"], np.where(follows, records["reason"][before], 0))
    wire_ns = ((records["bytes"].astype(np.float64) + WIRE_OVERHEAD_BYTES) * 8e9 / rate_bps[at]).astype(np.int64)
    rows["begin_ns"] = np.where(hop, records["t_ns"] - wire_ns, records["t_ns"])
    rows["ingress"] = np.where(follows, over[before], NOWHERE)
    arrival = records["t_ns"] + delay_ns[at]
    rows["came_ns"] = np.where(follows, arrival[before], rows["begin_ns"] - records["wait_ns"])
    stood = hop | (follows & (records["reason"] == DropReason.WATCHDOG))

    # A hop after which nothing more was seen of the packet, though a switch must have got it.
    lost_next = np.concatenate((same & ~hop[1:], [False]))  # dropped at the next port, or on the link
    stuck = hop & switch[over] & ~np.concatenate((onward, [False])) & ~lost_next
    frozen = rows[stuck]
    frozen["port"] = _usual_port(rows[stood & follows], device, frozen["flow"], device[over[stuck]])
    frozen["ingress"], frozen["came_ns"] = over[stuck], arrival[stuck]
    frozen["begin_ns"] = frozen["left_ns"] = NEVER_NS
    found = np.concatenate((rows[stood], frozen))
    return found[np.argsort(found["came_ns"], kind="stable")]


def _usual_port(known: npt.NDArray[Any], device: npt.NDArray[Any], flow: npt.NDArray[Any],
                where: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """By which port a flow's packets leave a device, from those that did; NOWHERE for the others."""
    keys = known["flow"].astype(np.int64) << 20 | device[known["port"]]
    order = np.argsort(keys, kind="stable")
    keys, ports = keys[order], known["port"][order]
    wanted = flow.astype(np.int64) << 20 | where
    if not len(keys):
        return np.full(len(wanted), NOWHERE)
    last = np.searchsorted(keys, wanted, side="right") - 1
    return np.where((last >= 0) & (keys[np.maximum(last, 0)] == wanted), ports[np.maximum(last, 0)], NOWHERE)
