"""A rank: the process on one host that takes part in a collective.

It opens its host's NIC, creates queue pairs, and from then on waits: for the runner's commands on a Unix socket and for
completions on the NIC's event channel.  Commands are JSON lines {"op": ...}, each answered by one line
{"host", "ok": true, ...} or {"host", "ok": false, "error"}:

setup     rank, agent and arguments (labs.agents.collectives.create); incoming and outgoing: a list of channels, each
          {ports: UDP source port of each queue pair [lane], dscp: of its packets (0: the NIC's), delay_ns: its first
          write goes so much later than the others}; window_bytes, timeout_ns, retry_count; dcqcn: as Dcqcn.to_lab, or
          null.  Answers with ip, addr, rkey, incoming and outgoing: {qp_num, psn} [channel][lane].
connect   incoming and outgoing: the peers' {ip, qp_num, psn} [channel][lane]; sources and targets: the {addr, rkey} of
          their memory [channel]
prepare   iteration: fills in the input
run       earliest_ns: nothing goes on the wire before.  Answers when the result is complete and all that was sent is
          acknowledged: end_ns (completion time stamp of the last message that it needed), wrong
teardown  destroys everything
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from labs.agents import collectives
from labs.agents.collectives import Collective, Write
from topologies.errors import LabError
from topologies.fabricd.verbs import (
    CompletionQueue,
    Context,
    MemoryRegion,
    QueuePair,
    WcStatus,
    WorkCompletion,
)

_CQ_DEPTH = 4096
_RECV_DEPTH = 256  # receive requests posted ahead on each queue pair, and posted again one for one
_POLL = 64


class Lane:
    """One queue pair of a channel, with the writes that its send queue has no room for yet."""

    def __init__(self, qp: QueuePair, channel: int, *, outgoing: bool, delay_ns: int) -> None:
        self.qp, self.channel, self.outgoing, self.delay_ns = qp, channel, outgoing, delay_ns
        self.peer: dict[str, int] = {}  # addr and rkey of the memory at the other end
        self.backlog: deque[Write] = deque()
        self.unacknowledged = 0


class Agent:
    """The state of a rank between `setup` and `teardown`.  Raises LabError for everything that the NIC refuses."""

    def __init__(self, host: str, command: dict[str, Any]) -> None:
        self.rank = int(command["rank"])
        self.collective: Collective = collectives.create(command["agent"], command["arguments"])
        self.context = Context(host)
        pd = self.context.alloc_pd()
        self.memory: MemoryRegion = pd.reg_mr(self.collective.memory_bytes)
        self.collective.attach(self.memory.array(np.uint8))
        self.cq: CompletionQueue = self.context.create_cq(_CQ_DEPTH)

        def lanes(side: str) -> list[list[Lane]]:
            return [[Lane(pd.create_qp(self.cq, self.cq, src_port=port, window_bytes=command["window_bytes"],
                                       timeout_ns=command["timeout_ns"], retry_count=command["retry_count"],
                                       dscp=channel["dscp"]),
                          number, outgoing=side == "outgoing", delay_ns=channel["delay_ns"])
                     for port in channel["ports"]] for number, channel in enumerate(command[side])]

        self.incoming, self.outgoing = lanes("incoming"), lanes("outgoing")
        self._lanes = {lane.qp.qp_num: lane for channels in (self.incoming, self.outgoing)
                       for channel in channels for lane in channel}
        self._dcqcn: dict[str, int] | None = command["dcqcn"]
        self._earliest_ns = 0
        self._end_ns = 0
        self.running = False
        self.failed = False

    def describe(self) -> dict[str, Any]:
        """What the peers must know."""
        return {
            "ip": self.context.ip, "addr": self.memory.addr, "rkey": self.memory.rkey,
            **{name: [[{"qp_num": lane.qp.qp_num, "psn": lane.qp.psn} for lane in channel] for channel in channels]
               for name, channels in (("incoming", self.incoming), ("outgoing", self.outgoing))},
        }

    def connect(self, command: dict[str, Any]) -> None:
        for name, memories in (("incoming", "sources"), ("outgoing", "targets")):
            channels: list[list[Lane]] = getattr(self, name)
            for channel, peers, memory in zip(channels, command[name], command[memories], strict=True):
                for lane, peer in zip(channel, peers, strict=True):
                    lane.peer = memory
                    lane.qp.connect(peer["ip"], peer["qp_num"], peer["psn"])
                    if self._dcqcn is not None:
                        lane.qp.set_dcqcn(self._dcqcn)
                    lane.qp.post_recv(_RECV_DEPTH)
        self.cq.req_notify()

    def run(self, earliest_ns: int) -> None:
        """Posts what waits for nobody; the NIC holds it back until `earliest_ns`."""
        self._earliest_ns, self._end_ns, self.running = earliest_ns, 0, True
        self._post(self.collective.begin())

    def progress(self) -> dict[str, Any] | None:
        """Handles all completions that are there; the answer to `run` once everything is done.

        Arms the event channel before it looks for the last time, so that no completion is slept over.
        """
        while True:
            completions = self.cq.poll(_POLL)
            for completion in completions:
                self._completed(completion)
            if not completions and not self.cq.req_notify():
                break
        busy = not self.collective.received_all or any(
            lane.unacknowledged or lane.backlog for lane in self._lanes.values())
        if busy or not self.running:
            return None
        self.running = False
        return {"end_ns": self._end_ns, "wrong": self.collective.wrong()}

    def _completed(self, completion: WorkCompletion) -> None:
        lane = self._lanes[completion.qp_num]
        if completion.status != WcStatus.SUCCESS:
            raise LabError(f"rank {self.rank}: queue pair {completion.qp_num} towards {lane.qp.remote_ip} is in error: "
                           f"{WcStatus(completion.status).name}")
        if completion.is_recv:
            lane.qp.post_recv(1)
            if lane.outgoing:
                self._post(self.collective.replied(lane.channel, completion.imm_data))
                return
            self._post(self.collective.arrived(lane.channel, completion.imm_data))
            self._end_ns = max(self._end_ns, completion.timestamp_ns)
        else:
            lane.unacknowledged -= 1
            self._send(lane)
            if not self.incoming:  # a pure sender is done when its last byte is acknowledged
                self._end_ns = max(self._end_ns, completion.timestamp_ns)

    def _post(self, writes: Iterable[Write]) -> None:
        for write in writes:
            lane = (self.incoming if write.reply else self.outgoing)[write.channel][write.lane]
            lane.backlog.append(write)
            self._send(lane)

    def _send(self, lane: Lane) -> None:
        while lane.backlog:
            write = lane.backlog[0]
            taken = lane.qp.post_write(
                self.memory, write.local_offset, write.length, lane.peer["addr"] + write.remote_offset,
                lane.peer["rkey"], imm=write.immediate, earliest_ns=self._earliest_ns + lane.delay_ns)
            if not taken:
                return
            lane.backlog.popleft()
            lane.unacknowledged += 1

    def close(self) -> None:
        self.context.close()


class Server:
    """The connection to the runner."""

    def __init__(self, host: str, connection: socket.socket) -> None:
        self._host, self._connection = host, connection
        self._agent: Agent | None = None
        self._pending = b""

    def serve(self) -> None:
        """Returns when the runner closes the connection."""
        self._connection.sendall(json.dumps({"hello": self._host, "pid": os.getpid()}).encode() + b"\n")
        while True:
            wanted: list[Any] = [self._connection]
            if self._agent is not None and not self._agent.failed:
                wanted.append(self._agent.cq)
            ready, _, _ = select.select(wanted, [], [])
            if self._connection in ready:
                chunk = self._connection.recv(1 << 20)
                if not chunk:
                    return
                *lines, self._pending = (self._pending + chunk).split(b"\n")
                for line in lines:
                    self._guarded(json.loads(line))
            if self._agent is not None and self._agent.cq in ready:
                self._agent.cq.clear_event()
                self._guarded(None)

    def _guarded(self, command: dict[str, Any] | None) -> None:
        """Executes a command, or (None) looks at the completions; whatever goes wrong is the answer."""
        try:
            reply = self._execute(command) if command is not None else self._progress()
        except LabError as error:
            reply = {"ok": False, "error": error.message}
        except Exception as error:
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        if reply is not None and not reply.get("ok", True) and self._agent is not None:
            self._agent.failed = True  # one reason is enough; the queue pairs flush what else was posted
        if reply is not None:
            self._connection.sendall(json.dumps({"ok": True, "host": self._host, **reply}).encode() + b"\n")

    def _execute(self, command: dict[str, Any]) -> dict[str, Any] | None:
        op = command["op"]
        if op == "setup":
            self._close()
            self._agent = Agent(self._host, command)
            return self._agent.describe()
        if op == "teardown":
            self._close()
            return {}
        agent = self._agent
        if agent is None:
            raise LabError(f"{op} before setup")
        if op == "connect":
            agent.connect(command)
            return {}
        if op == "prepare":
            agent.collective.prepare(command["iteration"])
            return {}
        if op == "run":
            agent.run(command["earliest_ns"])
            return self._progress()
        raise LabError(f"unknown command {op!r}")

    def _progress(self) -> dict[str, Any] | None:
        return self._agent.progress() if self._agent is not None else None

    def _close(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.close()


def serve(host: str, socket_path: Path) -> None:
    """The whole life of a rank."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(socket_path))
        Server(host, connection).serve()
