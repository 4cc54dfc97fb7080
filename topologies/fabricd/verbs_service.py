"""The fabricd side of verbs: creates and destroys a NIC's objects for the agents that are connected.

A connection opens one device, after which its operations are those of ``OPERATIONS``, with arguments by the names that
stand there. What a connection created belongs to it: nobody else can name it, and it goes when the connection does, as
with an ``ibv_context``. A file descriptor sent along with ``open_device`` is an eventfd, and becomes the device's
completion channel; a device has one, so a second connection has to do without or wait until the first is closed.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from topologies.errors import LabError, unknown_name
from topologies.fabricd._core import lib

CoreCall = Callable[[int, int, int, tuple[int, ...]], tuple[int, ...]]
"""(target, NIC, operation of ``enum rnic_op``, arguments) -> results; raises OSError if the core refuses."""


class HostDescription(Protocol):
    """What verbs need to know of a host."""

    @property
    def name(self) -> str: ...
    @property
    def ip(self) -> str: ...


class NicDescription(Protocol):
    """A NIC as an agent finds it: its host, and the file that they share. Its number is its place in the sequence."""

    @property
    def host(self) -> HostDescription: ...
    @property
    def path(self) -> Path: ...
    @property
    def shared_bytes(self) -> int: ...


@dataclass(frozen=True)
class Operation:
    """One operation of the NIC: its number, and the names of its arguments and results in the core's order."""

    number: int
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    creates: str | None = None  # kind of object whose first result is its name
    destroys: str | None = None  # kind of object that its first argument names


OPERATIONS = {
    "alloc_pd": Operation(lib.RNIC_ALLOC_PD, (), ("pd",), creates="pd"),
    "dealloc_pd": Operation(lib.RNIC_DEALLOC_PD, ("pd",), destroys="pd"),
    "reg_mr": Operation(
        lib.RNIC_REG_MR, ("pd", "length", "access"), ("lkey", "rkey", "addr", "offset"), creates="lkey"
    ),
    "dereg_mr": Operation(lib.RNIC_DEREG_MR, ("lkey",), destroys="lkey"),
    "create_cq": Operation(lib.RNIC_CREATE_CQ, ("depth",), ("cq", "depth"), creates="cq"),
    "destroy_cq": Operation(lib.RNIC_DESTROY_CQ, ("cq",), destroys="cq"),
    "create_qp": Operation(
        lib.RNIC_CREATE_QP, ("pd", "send_cq", "recv_cq", "sq_sig_all"), ("qp_num", "slot"), creates="qp_num"
    ),
    "query_qp": Operation(
        lib.RNIC_QUERY_QP, ("qp_num",),
        ("state", "sq_psn", "rq_psn", "unacknowledged_bytes", "rate", "target_rate", "alpha"),
    ),
    "set_dcqcn": Operation(
        lib.RNIC_SET_DCQCN,
        (
            "qp_num", "on", "max_rate", "min_rate", "ai_rate", "hai_rate", "first_rate", "g", "initial_alpha",
            "min_dec_fac", "gd", "alpha_period_ns", "reduce_period_ns", "time_reset_ns", "byte_reset", "threshold",
            "flags", "cnp_interval_ns",
        ),
    ),
    "destroy_qp": Operation(lib.RNIC_DESTROY_QP, ("qp_num",), destroys="qp_num"),
}
"""Every operation but ``open_device`` (device) and ``modify_qp`` (qp_num, state and what MODIFY says)."""

MODIFY = {
    "RESET": (lib.IBV_QPS_RESET, ()),
    "INIT": (lib.IBV_QPS_INIT, ("access",)),
    "RTR": (lib.IBV_QPS_RTR, ("dest_ip", "dest_qp_num", "rq_psn", "path_mtu", "min_rnr_timer", "src_port", "dscp")),
    "RTS": (lib.IBV_QPS_RTS, ("sq_psn", "timeout_ns", "retry_count", "rnr_retry", "window_bytes", "ack_every")),
    "ERR": (lib.IBV_QPS_ERR, ()),
}
"""State of a queue pair -> its number, and the arguments that ``modify_qp`` takes on the way to it."""

_OWNED_BY = {"pd": "pd", "lkey": "lkey", "cq": "cq", "send_cq": "cq", "recv_cq": "cq", "qp_num": "qp_num"}
_KIND_NAMES = {"pd": "protection domain", "lkey": "memory region", "cq": "completion queue", "qp_num": "queue pair"}
# In this order nothing is in use any more when its turn comes.
_DESTRUCTION = (("qp_num", "destroy_qp"), ("cq", "destroy_cq"), ("lkey", "dereg_mr"), ("pd", "dealloc_pd"))

_REFUSALS = {
    errno.EBUSY: "it is still in use",
    errno.EINVAL: "a value is out of range or the change of state does not exist",
    errno.ENOENT: "there is no such object",
    errno.ENOMEM: "the NIC's memory has no gap of that size",
    errno.ENOSPC: "the NIC has no more of them",
}


@dataclass
class _Opened:
    """A connection's device, and what it has created there, kind by kind."""

    nic: int
    owned: dict[str, set[int]] = field(default_factory=lambda: {kind: set() for kind, _ in _DESTRUCTION})
    eventfd: int | None = None


class VerbsService:
    """Verbs for all NICs. ``handle`` and ``closed`` are called by one thread."""

    def __init__(
        self, core_call: CoreCall, nics: Sequence[NicDescription], set_eventfd: Callable[[int, int], None]
    ) -> None:
        """``set_eventfd(nic, fd)`` names the eventfd that a NIC's completion events are written to (-1: none)."""
        self._core_call = core_call
        self._nics = {nic.host.name: (index, nic) for index, nic in enumerate(nics)}
        self._set_eventfd = set_eventfd
        self._opened: dict[Hashable, _Opened] = {}

    def handle(self, connection: Hashable, op: str, arguments: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Executes ``op`` for ``connection``. The service owns ``fds`` from here on.

        Raises LabError that says what was refused and why.
        """
        if op != "open_device":
            _close(fds)
        if op == "open_device":
            return self._open_device(connection, arguments, fds)
        if op not in OPERATIONS and op != "modify_qp":
            raise unknown_name("operation", op, [*OPERATIONS, "open_device", "modify_qp"])
        opened = self._opened.get(connection)
        if opened is None:
            raise LabError(f"{op} on a connection that has not opened a device", remedy="call open_device first")
        if op == "modify_qp":
            return self._modify_qp(opened, arguments)
        operation = OPERATIONS[op]
        values = _values(op, operation.arguments, arguments)
        self._check_owner(opened, op, operation.arguments, values)
        results = self._call(opened, op, operation.number, values)
        if operation.creates:
            opened.owned[operation.creates].add(results[0])
        if operation.destroys:
            opened.owned[operation.destroys].discard(values[0])
        return dict(zip(operation.results, results, strict=False))

    def closed(self, connection: Hashable) -> None:
        """The connection has ended: everything that it created goes."""
        opened = self._opened.pop(connection, None)
        if opened is None:
            return
        if opened.eventfd is not None:
            self._set_eventfd(opened.nic, -1)
        for kind, op in _DESTRUCTION:
            for name in opened.owned[kind]:
                with contextlib.suppress(OSError):
                    self._core_call(lib.CONTROL_NIC, opened.nic, OPERATIONS[op].number, (name,))
        if opened.eventfd is not None:
            # The data path may still be writing to it; after any request of ours has been answered it is not.
            with contextlib.suppress(OSError):
                self._core_call(lib.CONTROL_NIC, opened.nic, lib.RNIC_QUERY_QP, (0,))
            os.close(opened.eventfd)

    def _open_device(self, connection: Hashable, arguments: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        try:
            device = arguments.get("device")
            if device not in self._nics:
                raise unknown_name("device", str(device), self._nics)
            if connection in self._opened:
                raise LabError("this connection has opened a device already")
            index, nic = self._nics[device]
            if fds and any(other.nic == index and other.eventfd is not None for other in self._opened.values()):
                raise LabError(
                    f"the completion channel of {device} is taken by another process",
                    remedy="end it, or open the device without a channel and poll",
                )
        except LabError:
            _close(fds)
            raise
        opened = self._opened[connection] = _Opened(index)
        if fds:
            opened.eventfd = fds[0]
            _close(fds[1:])
            self._set_eventfd(index, fds[0])
        return {"nic": index, "ip": nic.host.ip, "path": str(nic.path), "shared_bytes": nic.shared_bytes}

    def _modify_qp(self, opened: _Opened, arguments: dict[str, Any]) -> dict[str, Any]:
        state = arguments.pop("state", None)
        if state not in MODIFY:
            raise unknown_name("queue pair state", str(state), MODIFY)
        number, names = MODIFY[state]
        if "dest_ip" in arguments:
            try:
                arguments["dest_ip"] = int(ipaddress.IPv4Address(arguments["dest_ip"]))
            except ValueError as error:
                raise LabError(f"modify_qp: dest_ip: {error}") from error
        qp_num, *values = _values("modify_qp", ("qp_num", *names), arguments)
        self._check_owner(opened, "modify_qp", ("qp_num",), (qp_num,))
        self._call(opened, f"modify_qp to {state}", lib.RNIC_MODIFY_QP, (qp_num, number, *values))
        return {}

    def _check_owner(self, opened: _Opened, op: str, names: tuple[str, ...], values: tuple[int, ...]) -> None:
        for name, value in zip(names, values, strict=True):
            kind = _OWNED_BY.get(name)
            if kind and value not in opened.owned[kind]:
                raise LabError(f"{op}: this connection has no {_KIND_NAMES[kind]} {value}")

    def _call(self, opened: _Opened, what: str, number: int, values: tuple[int, ...]) -> tuple[int, ...]:
        try:
            return self._core_call(lib.CONTROL_NIC, opened.nic, number, values)
        except OSError as error:
            reason = _REFUSALS.get(error.errno or 0, str(error))
            raise LabError(f"{what} is refused: {reason}") from error


def _values(op: str, names: tuple[str, ...], arguments: dict[str, Any]) -> tuple[int, ...]:
    """The arguments in the order of ``names``, all of them integers of 64 bits."""
    for name in arguments:
        if name not in names:
            raise unknown_name(f"argument of {op}", name, names)
    for name in names:
        value = arguments.get(name)
        if not isinstance(value, int) or not -(2**63) <= value < 2**63:
            raise LabError(f"{op}: argument {name} is missing or no integer of 64 bits")
    return tuple(int(arguments[name]) for name in names)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
