"""The native core as Python objects: memory, configuration from a Fabric, and the pure interface for a virtual clock.

``fabricd`` and the tests build the same objects; only who moves the frames and the time differs.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

from topologies.errors import LabError
from topologies.fabric import Fabric, Port, Switch
from topologies.fabricd._core import ffi, lib
from topologies.fabricd.telemetry import Telemetry
from topologies.qos import DSCPS, SwitchQos, mask, switch_qos
from topologies.units import ETHERNET_HEADER_BYTES, serialisation_ns

FLOWS = 16_384
TRACE_RECORDS = 1 << 19
SERIES_ROWS = 1 << 13
BUFFERED_FRAME_BYTES = 1024  # mean size of a buffered frame for which the packet pool has room at least
POOL_FRAMES_MAX = 1 << 18
RING_FRAMES = 128
TICKS_PER_MTU = 15  # a wake-up costs as much as a crossing; lateness may reach a tenth of an MTU time
TICK_NS_RANGE = (50_000, 250_000)
FLOW_CONTROLS = {
    "none": lib.FLOW_CONTROL_NONE, "pfc": lib.FLOW_CONTROL_PFC, "credits": lib.FLOW_CONTROL_CREDITS,
}  # fmt: skip
WATCHDOG_ACTIONS = {"off": 0, "drop": lib.WATCHDOG_DROP, "forward": lib.WATCHDOG_FORWARD}
FABRICD_PRIORITY = 20  # of SCHED_RR; OVS's threads run one below


def flow_hash(seed: int, src_ip: int, dst_ip: int, protocol: int, src_port: int, dst_port: int) -> int:
    """The byte that a switch with ``seed`` writes into the frames of a flow (addresses in host byte order)."""
    return int(lib.flow_hash(seed, src_ip, dst_ip, protocol, src_port, dst_port))


def sparse_memory(size_bytes: int) -> mmap.mmap:
    """Zeroed memory of which only the pages that are touched exist."""
    no_reserve = 0x4000  # MAP_NORESERVE, which the mmap module does not name
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)


def shared_memory(path: str, size_bytes: int) -> mmap.mmap:
    """A new, zeroed, sparse file mapped for reading and writing, readable by root alone."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size_bytes)
        return mmap.mmap(fd, size_bytes)
    finally:
        os.close(fd)


def frame_bytes(fabric: Fabric) -> int:
    """The largest frame that the fabric carries, without FCS."""
    return fabric.mtu_bytes + ETHERNET_HEADER_BYTES


def mtu_time_ns(fabric: Fabric) -> float:
    """Serialisation time of a full frame on the fastest link: the unit of all fidelity limits."""
    return min(serialisation_ns(frame_bytes(fabric), port.rate_bps) for port in fabric.ports)


def tick_ns(fabric: Fabric) -> int:
    """The loop's period: a small part of an MTU's time within reason."""
    low, high = TICK_NS_RANGE
    return round(min(max(mtu_time_ns(fabric) / TICKS_PER_MTU, low), high))


def mac_bytes(mac: str) -> bytes:
    """``02:53:00:00:00:01`` as six bytes."""
    return bytes.fromhex(mac.replace(":", ""))


@dataclass(frozen=True)
class Delivery:
    """A frame that the device at ``port`` receives; it was due at ``due_ns``."""

    port: int
    frame: bytes
    due_ns: int


class FabricCore:
    """All links, queues and switch tables of a fabric. Nothing happens in it but what is called."""

    def __init__(self, fabric: Fabric, telemetry_memory: mmap.mmap | None = None) -> None:
        """Lays the core out for ``fabric``; ``telemetry_memory`` is as long as ``telemetry_bytes(fabric)`` says."""
        self.fabric = fabric
        self._config = core_config(fabric)
        self._memory = sparse_memory(lib.fabric_bytes(self._config))
        self._telemetry_memory = telemetry_memory or sparse_memory(telemetry_bytes(fabric))
        self.pointer = lib.fabric_init(
            ffi.from_buffer(self._memory), ffi.from_buffer(self._telemetry_memory), self._config
        )
        lib.fabric_set_gateway_mac(self.pointer, mac_bytes(fabric.gateway_mac))
        for port in fabric.ports:
            _check(lib.fabric_set_port(self.pointer, port.index, _port_config(fabric, port)), f"port {port.interface}")
        for switch in fabric.switches:
            _check(lib.fabric_set_switch(self.pointer, switch.index, _switch_config(switch)), f"switch {switch.name}")
        self.telemetry = Telemetry(self._telemetry_memory)

    def rx(self, port: int, frame: bytes, arrival_ns: int) -> None:
        """The device at ``port`` emits a frame."""
        lib.fabric_rx(self.pointer, port, frame, len(frame), arrival_ns)

    def advance(self, now_ns: int) -> list[Delivery]:
        """Moves the time to ``now_ns`` and returns what devices receive up to then."""
        lib.fabric_advance(self.pointer, now_ns)
        count = ffi.new("uint32_t *")
        out = lib.fabric_out(self.pointer, count)
        frames = [
            Delivery(out[i].port, ffi.buffer(out[i].frame, out[i].len)[:], out[i].due_ns) for i in range(count[0])
        ]
        lib.fabric_out_done(self.pointer)
        return frames

    def next_ns(self) -> int | None:
        """When something happens next if no frame comes in; None: never."""
        at = int(lib.fabric_next_ns(self.pointer))
        return None if at == 2**63 - 1 else at

    def paused_classes(self, port: int) -> tuple[int, ...]:
        """The lossless classes in which the device at ``port`` must hold back."""
        held = int(lib.fabric_paused_classes(self.pointer, port))
        return tuple(c for c in range(lib.MAX_CLASSES) if held >> c & 1)

    def control(self, op: int, index: int = 0, *args: int) -> None:
        """One of ``enum fabric_op``, executed at once. Raises LabError if it is refused."""
        request = control_request(lib.CONTROL_FABRIC, index, op, args)
        lib.fabric_control(self.pointer, request)
        _check(request.status, f"operation {op} on {index}")


def control_request(target: int, index: int, op: int, args: tuple[int, ...] | list[int]) -> Any:
    """A request for the mailbox (``struct control_request *``)."""
    request = ffi.new("struct control_request *", {"target": target, "index": index, "op": op})
    for position, value in enumerate(args):
        request.arg[position] = value
    return request


def telemetry_bytes(fabric: Fabric) -> int:
    """Size of the telemetry block of ``fabric``."""
    return int(lib.fabric_telemetry_bytes(core_config(fabric)))


def core_config(fabric: Fabric) -> Any:
    """``struct fabric_config *`` for a fabric."""
    spec = fabric.spec
    buffered_bytes = sum(port.buffer_bytes for port in fabric.ports)
    if spec.flow_control != "none":
        # What is charged to ingress ports is not bounded by the egress buffers.
        buffered_bytes += sum(ingress_bytes(fabric, port) for port in fabric.ports)
    pool_frames = buffered_bytes // BUFFERED_FRAME_BYTES + 256 * len(fabric.ports)
    watchdogs = any(switch.qos.watchdog != "off" for switch in fabric.switches)
    return ffi.new(
        "struct fabric_config *",
        {
            "ports": len(fabric.ports), "switches": len(fabric.switches), "nics": len(fabric.hosts),
            "flows": FLOWS, "frame_bytes": frame_bytes(fabric), "pool_frames": min(pool_frames, POOL_FRAMES_MAX),
            "series_rows": SERIES_ROWS, "trace_records": TRACE_RECORDS, "series_classes": mask(spec.classes_in_use),
            "flow_control": FLOW_CONTROLS[spec.flow_control], "pause_quanta": spec.pause_quanta,
            "watchdog_poll_ns": fabric.clock.lab_ns(spec.watchdog_poll_us) if watchdogs else 0,
            "dscp_class": dscp_classes(fabric),
        },
    )  # fmt: skip


def dscp_classes(fabric: Fabric) -> list[int]:
    """The traffic class of every DSCP."""
    return [fabric.spec.dscp_classes.get(dscp, 0) for dscp in range(DSCPS)]


def ingress_bytes(fabric: Fabric, port: Port) -> int:
    """The most that the lossless classes of a port's ingress can hold."""
    qos = _qos_of(fabric, port)
    xoff_bytes = qos.xoff_bytes or qos.lossless_pool_bytes
    return qos.lossless_classes.bit_count() * max(xoff_bytes + port.headroom_bytes, port.credit_bytes)


def _qos_of(fabric: Fabric, port: Port) -> SwitchQos:
    """The profile of the port's switch; that of a host's NIC is the fabric's, without a shared buffer."""
    if port.kind == "switch":
        return fabric.switches[port.node].qos
    spec = fabric.spec
    return switch_qos(
        spec, name=port.device, shared_bytes=0, reserved_bytes=0, mtu_bytes=spec.mtu_bytes, clock=fabric.clock
    )


def _port_config(fabric: Fabric, port: Port) -> Any:
    qos = _qos_of(fabric, port)
    return ffi.new(
        "struct port_config *",
        {
            "kind": lib.DEVICE_HOST if port.kind == "host" else lib.DEVICE_SWITCH, "node": port.node,
            "number": port.number, "peer": port.peer, "rate_bps": round(port.rate_bps),
            "delay_ns": port.delay_ns, "buffer_bytes": port.buffer_bytes, "mac": mac_bytes(port.mac),
            "lossless_classes": qos.lossless_classes, "strict_classes": qos.strict_classes,
            "ets_share": list(qos.ets_shares), "xoff_bytes": qos.xoff_bytes, "xon_offset_bytes": qos.xon_offset_bytes,
            "headroom_bytes": port.headroom_bytes, "credit_bytes": port.credit_bytes,
        },
    )  # fmt: skip


def _switch_config(switch: Switch) -> Any:
    qos = switch.qos
    return ffi.new(
        "struct switch_config *",
        {
            "hash_seed": switch.hash_seed, "flowlet_gap_ns": switch.flowlet_gap_ns, "alpha": switch.alpha,
            "lossy_pool_bytes": qos.lossy_pool_bytes, "lossless_pool_bytes": qos.lossless_pool_bytes,
            "xoff_alpha": qos.xoff_alpha, "ecn_kmin_bytes": qos.ecn_kmin_bytes, "ecn_kmax_bytes": qos.ecn_kmax_bytes,
            "ecn_pmax": qos.ecn_pmax, "ecn_classes": qos.ecn_classes, "watchdog_action": WATCHDOG_ACTIONS[qos.watchdog],
            "watchdog_detect_ns": qos.watchdog_detect_ns, "watchdog_restore_ns": qos.watchdog_restore_ns,
        },
    )  # fmt: skip


def _check(status: int, what: str) -> None:
    if status < 0:
        raise LabError(f"the native core refuses {what}: {os.strerror(-status)}")
