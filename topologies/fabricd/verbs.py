"""Verbs for host agents, named as in libibverbs: ``Context``, ``ProtectionDomain``, ``MemoryRegion``, and so on.

Creating objects goes through fabricd's control socket; posting work and polling completions go through memory that is
shared with the NIC, without a system call. Registered memory is numpy arrays in that shared memory, so the NIC moves
data while the agent sleeps. All times are nanoseconds of the laboratory's clock, that is, CLOCK_MONOTONIC.

    context = Context("h0")
    pd = context.alloc_pd()
    memory = pd.reg_mr(1 << 20)
    cq = context.create_cq(256)
    qp = pd.create_qp(cq, cq, timeout_ns=10**9)
    qp.connect(peer_ip, peer_qp_num, peer_psn)
    qp.post_write(memory, 0, 4096, peer_addr, peer_rkey, imm=7)
    cq.wait(timeout_s=1)

One thread uses a Context: its completion channel is one for all its completion queues.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from topologies.errors import LabError
from topologies.fabric import FABRICD_SOCKET
from topologies.fabricd._core import ffi, lib
from topologies.fabricd.client import FabricdClient
from topologies.fabricd.verbs_service import OPERATIONS
from topologies.fabricd.verbs_types import AccessFlags, QpState, WcStatus, WorkCompletion

__all__ = [
    "AccessFlags", "CompletionQueue", "Context", "MemoryRegion", "ProtectionDomain", "QpState", "QueuePair", "WcStatus",
    "WorkCompletion",
]  # fmt: skip

PSN_MASK = 0xFFFFFF
POLL_BATCH = 64


class Context:
    """An open device. Closing it, or the end of the process, destroys all that was created with it."""

    def __init__(self, device: str, socket_path: Path = FABRICD_SOCKET, *, channel: bool = True) -> None:
        """Opens the NIC of host ``device``; without ``channel`` completions can be polled but not waited for.

        Raises LabError if fabricd does not run, has no such device, or its channel is taken.
        """
        self.device = device
        self._client = FabricdClient(socket_path)
        self._channel: int | None = None
        try:
            fds = []
            if channel:
                self._channel = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                fds = [self._channel]
            reply = self._client.call("open_device", fds, device=device)
            self.nic: int = reply["nic"]
            self.ip: str = reply["ip"]
            self.memory = _map(reply["path"], reply["shared_bytes"])
            self.shared = ffi.from_buffer(self.memory)
            if lib.verbs_check(self.shared, len(self.memory)) < 0:
                raise LabError(f"{reply['path']} has another layout than this program", remedy="restart the lab")
        except BaseException:
            self.close()
            raise
        self.mtu_bytes: int = ffi.cast("struct verbs_header *", self.shared).mtu_bytes

    def alloc_pd(self) -> ProtectionDomain:
        """A new protection domain."""
        return ProtectionDomain(self, self.call("alloc_pd")["pd"])

    def create_cq(self, depth: int = 256) -> CompletionQueue:
        """A completion queue of at least ``depth`` entries (at most 4,096)."""
        reply = self.call("create_cq", depth=depth)
        return CompletionQueue(self, reply["cq"], reply["depth"])

    def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        """An operation of ``verbs_service``."""
        return self._client.call(op, **arguments)

    def fileno(self) -> int:
        """The completion channel, readable after an event."""
        if self._channel is None:
            raise LabError(f"{self.device} was opened without a completion channel")
        return self._channel

    def close(self) -> None:
        """Closes the device. Arrays in its memory stay valid but belong to nobody."""
        self._client.close()
        if self._channel is not None:
            os.close(self._channel)
            self._channel = None

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ProtectionDomain:
    """Queue pairs reach only memory of their own protection domain."""

    def __init__(self, context: Context, handle: int) -> None:
        self.context = context
        self.handle = handle

    def reg_mr(self, length: int, access: int = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE) -> MemoryRegion:
        """``length`` bytes of the NIC's memory, zeroed. Raises LabError when the NIC has no room for them."""
        reply = self.context.call("reg_mr", pd=self.handle, length=length, access=int(access))
        region = MemoryRegion(self.context, length, reply)
        region.array(np.uint8)[:] = 0
        return region

    def create_qp(
        self,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        *,
        src_port: int = 0,
        window_bytes: int = 0,
        timeout_ns: int = 0,
        retry_count: int = 7,
        rnr_retry: int = 7,
        min_rnr_timer: int = 12,
        ack_every: int = 0,
        path_mtu: int = 0,
        dscp: int = 0,
        psn: int | None = None,
        sq_sig_all: bool = True,
    ) -> QueuePair:
        """A queue pair (RC). ``connect`` takes it into service, with the attributes given here.

        ``src_port``: UDP source port (0: from the number). ``window_bytes``: payload that may be unacknowledged
        (0: any). ``timeout_ns``: retransmission timeout (0: never). ``retry_count``, ``rnr_retry``: 0..7, the latter 7:
        for ever. ``min_rnr_timer``: code 0..31 of the time that a peer waits when no receive request is posted here
        (hardware time; 12: 0.64 ms). ``ack_every``: ask for an ACK that often (0: every 16 packets). ``path_mtu``:
        payload bytes a packet, ``dscp``: of its packets (0: the NIC's). ``psn``: of the first packet sent (None: from
        the number).
        """
        reply = self.context.call(
            "create_qp", pd=self.handle, send_cq=send_cq.handle, recv_cq=recv_cq.handle, sq_sig_all=int(sq_sig_all)
        )
        to_rtr = {"path_mtu": path_mtu, "min_rnr_timer": min_rnr_timer, "src_port": src_port, "dscp": dscp}
        to_rts = {
            "timeout_ns": timeout_ns, "retry_count": retry_count, "rnr_retry": rnr_retry,
            "window_bytes": window_bytes, "ack_every": ack_every,
        }  # fmt: skip
        return QueuePair(self.context, reply["qp_num"], reply["slot"], psn, to_rtr, to_rts)

    def dealloc(self) -> None:
        """Raises LabError while it has regions or queue pairs."""
        self.context.call("dealloc_pd", pd=self.handle)


class MemoryRegion:
    """Registered memory: ``addr``, ``lkey`` and ``rkey`` as work requests want them."""

    def __init__(self, context: Context, length: int, reply: dict[str, int]) -> None:
        self.context = context
        self.length = length
        self.addr = reply["addr"]
        self.lkey = reply["lkey"]
        self.rkey = reply["rkey"]
        self._offset = reply["offset"]

    def array(self, dtype: DTypeLike = np.uint8) -> NDArray[Any]:
        """All of it as a writable array (what is left over after the last whole element is not in it)."""
        count = self.length // np.dtype(dtype).itemsize
        return np.frombuffer(self.context.memory, dtype, count, self._offset)

    def dereg(self) -> None:
        """Takes the memory back; packets that still name it are refused."""
        self.context.call("dereg_mr", lkey=self.lkey)


class CompletionQueue:
    """Completions of the queue pairs that were created with it. ``select`` and ``poll`` take it as a file."""

    def __init__(self, context: Context, handle: int, depth: int) -> None:
        self.context = context
        self.handle = handle
        self.depth = depth
        self._batch = ffi.new("struct verbs_wc[]", POLL_BATCH)

    def poll(self, count: int = POLL_BATCH) -> list[WorkCompletion]:
        """At most ``count`` completions (and at most 64), oldest first. Raises LabError if some were lost."""
        n = lib.verbs_poll_cq(self.context.shared, self.handle, self._batch, min(count, POLL_BATCH))
        if n < 0:
            overrun = n == -errno.EOVERFLOW
            raise LabError(
                f"completion queue {self.handle} of {self.context.device} "
                + ("has overrun and lost completions" if overrun else "does not exist any more"),
                remedy="create it deeper or poll it more often" if overrun else None,
            )
        return [
            WorkCompletion(
                wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.imm_data, wc.qp_num, wc.src_qp, wc.timestamp_ns
            )
            for wc in self._batch[0:n]
        ]

    def req_notify(self) -> bool:
        """Asks for an event with the next completion. True: some are there already, poll before sleeping."""
        return bool(lib.verbs_req_notify_cq(self.context.shared, self.handle) != 0)

    def fileno(self) -> int:
        """The completion channel, readable after an event."""
        return self.context.fileno()

    def clear_event(self) -> None:
        """Makes the channel unreadable until the next event."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.context.fileno())

    def wait(self, timeout_s: float | None = None, count: int = POLL_BATCH) -> list[WorkCompletion]:
        """Like ``poll``, but sleeps until there is something. Empty only after ``timeout_s``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self.clear_event()
            completions = self.poll(count)
            if completions or (deadline is not None and time.monotonic() >= deadline):
                return completions
            if not self.req_notify():
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                select.select([self], [], [], left)

    def destroy(self) -> None:
        """Raises LabError while a queue pair uses it."""
        self.context.call("destroy_cq", cq=self.handle)


class QueuePair:
    """A reliable connection. ``psn`` is that of the first packet it will send; the peer's ``connect`` needs it."""

    def __init__(
        self,
        context: Context,
        qp_num: int,
        slot: int,
        psn: int | None,
        to_rtr: dict[str, int],
        to_rts: dict[str, int],
    ) -> None:
        self.context = context
        self.qp_num = qp_num
        self.psn = (qp_num * 0x9E3779) & PSN_MASK if psn is None else psn
        self.remote_ip: str | None = None
        self._slot = slot
        self._to_rtr = to_rtr
        self._to_rts = to_rts
        self._send = ffi.new("struct verbs_send_wr *")
        self._recv = ffi.new("struct verbs_recv_wr[]", lib.VERBS_RECV_DEPTH)

    def connect(
        self, remote_ip: str, remote_qp_num: int, remote_psn: int, access: int = AccessFlags.REMOTE_WRITE
    ) -> None:
        """From RESET through INIT and RTR to RTS, towards a peer that does the same; ``access``: what it may do."""
        self.modify(QpState.INIT, access=int(access))
        self.modify(QpState.RTR, dest_ip=remote_ip, dest_qp_num=remote_qp_num, rq_psn=remote_psn, **self._to_rtr)
        self.modify(QpState.RTS, sq_psn=self.psn, **self._to_rts)
        self.remote_ip = remote_ip

    def modify(self, state: QpState, **attributes: Any) -> None:
        """One change of state, with the attributes of ``verbs_service.MODIFY``."""
        self.context.call("modify_qp", qp_num=self.qp_num, state=state.name, **attributes)

    def query(self) -> dict[str, Any]:
        """``state`` (QpState), ``sq_psn`` and ``rq_psn`` (next ones), ``unacknowledged_bytes``; and of congestion
        control ``rate_bps``, ``target_rate_bps`` (lab bits/s on the wire) and ``alpha`` (without: line rate and 0).
        """
        reply = self.context.call("query_qp", qp_num=self.qp_num)
        rate, target, alpha = (reply.pop(name) for name in ("rate", "target_rate", "alpha"))
        return {
            **reply, "state": QpState(reply["state"]), "rate_bps": rate / lib.CONTROL_RATE_UNITS,
            "target_rate_bps": target / lib.CONTROL_RATE_UNITS, "alpha": alpha / lib.CONTROL_FRACTION_UNITS,
        }  # fmt: skip

    def set_dcqcn(self, parameters: Mapping[str, int] | None) -> None:
        """Congestion control as ``Dcqcn.to_lab`` says, from full rate on; None: none. Both ends need it, to notify."""
        off = dict.fromkeys(OPERATIONS["set_dcqcn"].arguments[2:], 0)
        self.context.call("set_dcqcn", qp_num=self.qp_num, on=int(parameters is not None), **(parameters or off))

    def post_write(
        self,
        local: MemoryRegion,
        local_offset: int,
        length: int,
        remote_addr: int,
        rkey: int,
        *,
        imm: int | None = None,
        wr_id: int = 0,
        signaled: bool = True,
        earliest_ns: int = 0,
    ) -> bool:
        """RDMA WRITE of ``length`` bytes at ``local_offset``, with immediate data if ``imm`` is given.

        ``earliest_ns``: it and all behind it wait for that time. False: the send queue is full; poll, and try again.
        Raises LabError if the queue pair is not connected.
        """
        wr = self._send
        wr.wr_id = wr_id
        wr.addr = local.addr + local_offset
        wr.lkey = local.lkey
        wr.length = length
        wr.remote_addr = remote_addr
        wr.rkey = rkey
        wr.earliest_ns = earliest_ns
        wr.send_flags = lib.IBV_SEND_SIGNALED if signaled else 0
        wr.opcode = lib.IBV_WR_RDMA_WRITE if imm is None else lib.IBV_WR_RDMA_WRITE_WITH_IMM
        wr.imm_data = imm or 0
        return self._posted(lib.verbs_post_send(self.context.shared, self._slot, wr, 1)) == 1

    def post_recv(self, count: int = 1, wr_id: int = 0) -> int:
        """``count`` receive requests, which writes with immediate data consume. Returns how many the queue took."""
        if not 0 <= count <= lib.VERBS_RECV_DEPTH:
            raise ValueError(f"count must be 0..{lib.VERBS_RECV_DEPTH}, not {count}")
        for i in range(count):
            self._recv[i].wr_id = wr_id
        return self._posted(lib.verbs_post_recv(self.context.shared, self._slot, self._recv, count))

    def destroy(self) -> None:
        """Completions that it has left behind stay in their queue."""
        self.context.call("destroy_qp", qp_num=self.qp_num)

    def _posted(self, status: int) -> int:
        if status == -errno.ENOMEM:
            return 0
        if status < 0:
            raise LabError(f"queue pair {self.qp_num} of {self.context.device} is not connected")
        return status


def _map(path: str, size_bytes: int) -> mmap.mmap:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise LabError(f"cannot open {path}: {error.strerror}", remedy="run it as root, inside the lab") from error
    try:
        return mmap.mmap(fd, size_bytes)
    except (OSError, ValueError) as error:
        raise LabError(f"cannot map {path}: {error}", remedy="restart the lab") from error
    finally:
        os.close(fd)
