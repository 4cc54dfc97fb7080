"""Control operations on the fabric: what can be changed, and broken on purpose, while a lab runs.

Lab units: bytes, bit/s and ns of the laboratory. What is left out stays as it is. ``switch`` is an index or ``"*"``.

====================  ================================================================================================
``set_switch``        ``switch``, ``flowlet_gap_ns``, ``hash_seed``
``set_port``          ``port`` (index), ``up``
``series_interval``   ``interval_ns`` (0 stops the series)
``set_ecn``           ``switch``, ``kmin_bytes``, ``kmax_bytes``, ``pmax`` (0..1), ``classes`` (that mark; [] for none)
``set_buffer``        ``switch``, ``lossy_pool_bytes``, ``lossless_pool_bytes``, ``alpha``, ``xoff_alpha``; of all its
                      ports ``buffer_bytes``, ``xoff_bytes`` (0: dynamic), ``xon_offset_bytes``, ``headroom_bytes``
``restore_switch``    ``switch``: marking and buffers as they were when the fabric was built
``set_drain``         ``port`` (of a host), ``drain_bps`` at which its NIC gets rid of what it receives; 0: no limit
``set_bit_errors``    ``port``, ``probability`` that a frame which leaves by it arrives broken, ``seed``
``plant_drop``        ``port``; the frames to lose on its link: ``src_ip``, ``dst_ip`` (dotted; any), ``least_bytes``
                      (0), after ``let_through`` (0) of them ``lose`` (1)
``pause_storm``       ``port``, ``classes`` in which it tells its peer to stop for ever; [] ends it
``clear_watermarks``  every peak and watermark of the telemetry becomes what is there now
====================  ================================================================================================
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from topologies.fabric import Fabric
from topologies.fabricd._core import lib
from topologies.qos import mask

Call = Callable[[int, int, int, tuple[int, ...]], tuple[int, ...]]


class FabricService:
    """Executes the operations with ``call(target, index, op, args)``, which raises OSError for what is refused."""

    def __init__(self, fabric: Fabric, call: Call) -> None:
        self._fabric = fabric
        self._call = call
        self._handlers: Mapping[str, Callable[[dict[str, Any]], None]] = {
            "set_switch": self._set_switch,
            "set_port": lambda a: self._port(a, lib.FABRIC_SET_PORT_UP, int(a["up"])),
            "series_interval": lambda a: self._do(0, lib.FABRIC_SERIES_INTERVAL, int(a["interval_ns"])),
            "set_ecn": self._set_ecn,
            "set_buffer": self._set_buffer,
            "restore_switch": self._restore_switch,
            "set_drain": lambda a: self._port(a, lib.FABRIC_SET_DRAIN, round(a["drain_bps"])),
            "set_bit_errors": lambda a: self._port(
                a, lib.FABRIC_SET_BIT_ERRORS, fraction(a["probability"]), int(a.get("seed", 0))
            ),
            "plant_drop": self._plant_drop,
            "clear_watermarks": lambda _: self._do(0, lib.FABRIC_CLEAR_WATERMARKS),
            "pause_storm": lambda a: self._port(a, lib.FABRIC_PAUSE_STORM, mask(a["classes"])),
        }

    def handles(self, op: str) -> bool:
        """True for the operations above."""
        return op in self._handlers

    def handle(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Executes one. Raises OSError, KeyError, ValueError or TypeError for what makes no sense."""
        self._handlers[op](arguments)
        return {}

    def _do(self, index: int, op: int, *args: int) -> None:
        self._call(lib.CONTROL_FABRIC, index, op, args)

    def _port(self, arguments: dict[str, Any], op: int, *args: int) -> None:
        self._do(int(arguments["port"]), op, *args)

    def _named(self, arguments: dict[str, Any]) -> list[int]:
        everyone = [switch.index for switch in self._fabric.switches]
        return everyone if arguments["switch"] == "*" else [int(arguments["switch"])]

    def _switches(self, arguments: dict[str, Any], op: int, *args: int) -> None:
        for switch in self._named(arguments):
            self._do(switch, op, *args)

    def _set_switch(self, arguments: dict[str, Any]) -> None:
        values = (int(arguments.get(key, -1)) for key in ("hash_seed", "flowlet_gap_ns"))
        self._switches(arguments, lib.FABRIC_SET_SWITCH, *values)

    def _set_ecn(self, arguments: dict[str, Any]) -> None:
        classes = mask(arguments["classes"]) if "classes" in arguments else -1
        self._switches(
            arguments, lib.FABRIC_SET_ECN, int(arguments.get("kmin_bytes", -1)), int(arguments.get("kmax_bytes", -1)),
            fraction(arguments.get("pmax")), classes,
        )  # fmt: skip

    def _set_buffer(self, arguments: dict[str, Any]) -> None:
        self._switches(
            arguments, lib.FABRIC_SET_BUFFER, int(arguments.get("lossy_pool_bytes", -1)),
            int(arguments.get("lossless_pool_bytes", -1)), fraction(arguments.get("alpha")),
            fraction(arguments.get("xoff_alpha")),
        )  # fmt: skip
        keys = ("buffer_bytes", "xoff_bytes", "xon_offset_bytes", "headroom_bytes")
        switches = self._named(arguments)
        for port in self._fabric.ports:
            if port.kind == "switch" and port.node in switches:
                self._do(port.index, lib.FABRIC_SET_PORT_BUFFER, *(int(arguments.get(key, -1)) for key in keys))

    def _restore_switch(self, arguments: dict[str, Any]) -> None:
        for index in self._named(arguments):
            switch = self._fabric.switches[index]
            qos = switch.qos
            self._do(
                index, lib.FABRIC_SET_ECN, qos.ecn_kmin_bytes, qos.ecn_kmax_bytes, fraction(qos.ecn_pmax),
                qos.ecn_classes,
            )  # fmt: skip
            self._do(
                index, lib.FABRIC_SET_BUFFER, qos.lossy_pool_bytes, qos.lossless_pool_bytes, fraction(switch.alpha),
                fraction(qos.xoff_alpha),
            )  # fmt: skip
            for port in self._fabric.ports_of(switch):
                self._do(
                    port.index, lib.FABRIC_SET_PORT_BUFFER, port.buffer_bytes, qos.xoff_bytes, qos.xon_offset_bytes,
                    port.headroom_bytes,
                )  # fmt: skip

    def _plant_drop(self, arguments: dict[str, Any]) -> None:
        addresses = (socket.inet_aton(arguments.get(key, "0.0.0.0")) for key in ("src_ip", "dst_ip"))
        usual = {"let_through": 0, "lose": 1, "least_bytes": 0}
        counts = (int(arguments.get(key, value)) for key, value in usual.items())
        self._port(arguments, lib.FABRIC_PLANT_DROP, *(int.from_bytes(a, "big") for a in addresses), *counts)


def fraction(value: float | None) -> int:
    """A fraction as control requests carry it; None leaves what is there."""
    return -1 if value is None else round(value * lib.CONTROL_FRACTION_UNITS)
