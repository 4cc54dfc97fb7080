"""A job's agents on NICs that are made up: short send queues, any order of delivery, errors."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from labs.agents import rank as rank_module
from labs.agents.rank import Agent, Server
from labs.seeds import source_ports
from labs.workload import Flow, Incast, Job, RingAllReduce, Transfers, Workload
from topologies.errors import LabError
from topologies.fabricd.verbs import WcStatus, WorkCompletion
from topologies.spec import FabricSpec

SPEC = FabricSpec(leaves=3, spines=2, hosts_per_leaf=2)
SEND_DEPTH = 3
RECV, SEND = 129, 1


class Posted(NamedTuple):
    qp: FakeQp
    data: npt.NDArray[np.uint8]  # a view: read when it is delivered, as by a NIC
    remote_addr: int
    immediate: int


class FakeNet:
    """All NICs.  `deliver` carries one message, chosen by chance."""

    def __init__(self, seed: int = 0) -> None:
        self.draw = random.Random(seed)
        self.contexts: dict[str, FakeContext] = {}
        self.flying: list[Posted] = []
        self.now_ns = 0
        self.fail: set[int] = set()  # QP numbers that end in error

    def open(self, host: str) -> FakeContext:
        self.contexts[host] = FakeContext(self, host)
        return self.contexts[host]

    def deliver(self) -> None:
        # In order on each queue pair, in any order between them.
        first: dict[FakeQp, int] = {}
        for index, posted in enumerate(self.flying):
            first.setdefault(posted.qp, index)
        posted = self.flying.pop(self.draw.choice(list(first.values())))
        sender, receiver = posted.qp, self.contexts[posted.qp.remote_ip].qps[posted.qp.remote_qp]
        self.now_ns += 1000
        sender.sent -= 1
        if sender.qp_num in self.fail:
            sender.context.queue.append(self._completion(sender, SEND, WcStatus.RETRY_EXC_ERR))
            return
        begin = posted.remote_addr - receiver.context.base
        receiver.context.memory[begin : begin + len(posted.data)] = posted.data
        assert receiver.receives > 0
        receiver.receives -= 1
        receiver.context.queue.append(self._completion(receiver, RECV, WcStatus.SUCCESS, posted.immediate))
        sender.context.queue.append(self._completion(sender, SEND, WcStatus.SUCCESS))

    def _completion(self, qp: FakeQp, opcode: int, status: WcStatus, immediate: int = 0) -> WorkCompletion:
        return WorkCompletion(0, int(status), opcode, 0, immediate, qp.qp_num, 0, self.now_ns)


class FakeContext:
    """Context, protection domain, memory region and completion queue in one."""

    def __init__(self, net: FakeNet, host: str) -> None:
        self.net, self.ip = net, host
        self.base = 1_000_000 * (1 + len(net.contexts))
        self.addr, self.rkey, self.lkey = self.base, self.base + 1, 0
        self.memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self.qps: dict[int, FakeQp] = {}
        self.queue: list[WorkCompletion] = []
        self.closed = False
        self._event_read, self._event_write = socket.socketpair()

    def alloc_pd(self) -> FakeContext:
        return self

    def reg_mr(self, length: int) -> FakeContext:
        self.memory = np.zeros(length, np.uint8)
        return self

    def array(self, dtype: Any) -> npt.NDArray[Any]:
        return self.memory.view(dtype)

    def create_cq(self, depth: int) -> FakeContext:
        return self

    def create_qp(self, send_cq: FakeContext, recv_cq: FakeContext, **attributes: Any) -> FakeQp:
        number = self.base + 16 + len(self.qps)
        self.qps[number] = FakeQp(self, number, attributes)
        return self.qps[number]

    def poll(self, count: int) -> list[WorkCompletion]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        return taken

    def req_notify(self) -> bool:
        return bool(self.queue)

    def fileno(self) -> int:
        return self._event_read.fileno()

    def clear_event(self) -> None:
        self._event_read.recv(64)

    def wake(self) -> None:
        self._event_write.send(b"!")

    def close(self) -> None:
        self.closed = True


class FakeQp:
    def __init__(self, context: FakeContext, number: int, attributes: dict[str, Any]) -> None:
        self.context, self.qp_num, self.psn, self.attributes = context, number, number & 0xFFFFFF, attributes
        self.remote_ip = ""
        self.remote_qp = 0
        self.sent = self.receives = 0
        self.dcqcn: dict[str, int] | None = None
        self.earliest_ns: list[int] = []

    def connect(self, ip: str, qp_num: int, psn: int) -> None:
        assert psn == qp_num & 0xFFFFFF
        self.remote_ip, self.remote_qp = ip, qp_num

    def set_dcqcn(self, parameters: dict[str, int]) -> None:
        assert self.remote_ip  # it needs a queue pair that is connected
        self.dcqcn = parameters

    def post_recv(self, count: int) -> int:
        self.receives += count
        return count

    def post_write(self, memory: FakeContext, offset: int, length: int, remote_addr: int, rkey: int, *, imm: int,
                   earliest_ns: int) -> bool:
        self.earliest_ns.append(earliest_ns)
        assert rkey == self.context.net.contexts[self.remote_ip].rkey
        if self.sent == SEND_DEPTH:
            return False
        self.sent += 1
        self.context.net.flying.append(Posted(self, memory.memory[offset : offset + length], remote_addr, imm))
        return True


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> FakeNet:
    net = FakeNet(seed=4)
    monkeypatch.setattr(rank_module, "Context", net.open)
    return net


def setup_commands(workload: Workload, job: Job) -> dict[str, dict[str, Any]]:
    """As the runner makes them."""
    ports = source_ports(job, workload.qps_per_connection, 1)

    def of(channels: list[int], end: int) -> list[dict[str, Any]]:
        return [{"ports": [ports[c, lane, end] for lane in range(workload.qps_per_connection)],
                 "dscp": job.channels[c].dscp, "delay_ns": 0 if end else int(job.channels[c].start_us * 1e3)}
                for c in channels]

    # Through JSON, as the runner's socket carries it.
    return {rank.host: json.loads(json.dumps({
        "op": "setup", "rank": rank.index, "agent": workload.agent, "arguments": workload.arguments(job, rank),
        "incoming": of(job.incoming(rank.index), 1), "outgoing": of(job.outgoing(rank.index), 0),
        "window_bytes": 1 << 18, "timeout_ns": 10**9, "retry_count": 7,
        "dcqcn": None if workload.dcqcn == "none" else {"g": 17}})) for rank in job.ranks}


def agents(workload: Workload) -> list[Agent]:
    job = workload.plan(SPEC)
    made = [Agent(host, command) for host, command in setup_commands(workload, job).items()]
    known = [agent.describe() for agent in made]
    def end(c: int, side: str) -> list[dict[str, Any]]:
        rank = job.channels[c].source if side == "outgoing" else job.channels[c].target
        numbers = job.outgoing(rank) if side == "outgoing" else job.incoming(rank)
        return [{**qp, "ip": known[rank]["ip"]} for qp in known[rank][side][numbers.index(c)]]

    def memory(rank: int) -> dict[str, int]:
        return {"addr": known[rank]["addr"], "rkey": known[rank]["rkey"]}

    for i, agent in enumerate(made):
        agent.connect({
            "incoming": [end(c, "outgoing") for c in job.incoming(i)],
            "outgoing": [end(c, "incoming") for c in job.outgoing(i)],
            "sources": [memory(job.channels[c].source) for c in job.incoming(i)],
            "targets": [memory(job.channels[c].target) for c in job.outgoing(i)]})
    return made


@pytest.mark.parametrize("workload", [
    RingAllReduce(4800, slice_bytes=256), RingAllReduce(4800, slice_bytes=256, qps_per_connection=3),
    RingAllReduce(4800, slice_bytes=256, rings=[["h0", "h3", "h5"], ["h1", "h2"]]),
    Incast(4096, senders=5, qps_per_connection=2), Incast(4096, senders=5, admission_kb=1),
    Transfers(4096, flows=[Flow("h0", "h1"), Flow("h0", "h1"), Flow("h1", "h2"), Flow("h2", "h0", size_bytes=1024)]),
    Transfers(4096, flows=[Flow("h0", "h1"), Flow("h1", "h0"), Flow("h2", "h1")], admission_kb=2,
              qps_per_connection=3)],
    ids=["ring", "three queue pairs", "uneven rings", "incast", "admission", "transfers", "transfers with admission"])
def test_a_job_plays_to_its_end_with_short_send_queues(net: FakeNet, workload: Workload) -> None:
    job = agents(workload)
    for iteration in range(3):
        for agent in job:
            agent.collective.prepare(iteration)
        begun_ns = net.now_ns
        for agent in job:
            agent.run(12345)
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < len(job):
            for agent in job:
                answer = agent.progress()
                if answer is not None:
                    answers[agent.rank] = answer
            if net.flying:
                net.deliver()
        assert [answer["wrong"] for answer in answers.values()] == [0] * len(job)
        assert all(begun_ns < answer["end_ns"] <= net.now_ns for answer in answers.values())
        assert not net.flying
        qps = [qp for context in net.contexts.values() for qp in context.qps.values()]
        assert all(qp.sent == 0 for qp in qps)
        assert {earliest_ns for qp in qps for earliest_ns in qp.earliest_ns} == {12345}


def test_queue_pairs_get_what_the_runner_says(net: FakeNet) -> None:
    workload = RingAllReduce(4800)
    job = workload.plan(SPEC)
    agents(workload)
    ports = source_ports(job, 1, 1)
    for c, channel in enumerate(job.channels):
        sender, receiver = (net.contexts[job.ranks[rank].host] for rank in (channel.source, channel.target))
        (out,) = [qp for qp in sender.qps.values() if qp.attributes["src_port"] == ports[c, 0, 0]]
        assert out.remote_ip == receiver.ip
        assert receiver.qps[out.remote_qp].attributes["src_port"] == ports[c, 0, 1]
        assert receiver.qps[out.remote_qp].remote_qp == out.qp_num
        assert out.attributes["window_bytes"] == 1 << 18


def test_flows_have_their_own_class_and_start_and_both_ends_control_congestion(net: FakeNet) -> None:
    job = agents(Transfers(4096, flows=[Flow("h0", "h1", dscp=34), Flow("h0", "h2", start_us=2)], dcqcn="paper"))
    qps = {qp.remote_ip: qp for qp in net.contexts["h0"].qps.values()}
    assert [qps[host].attributes["dscp"] for host in ("h1", "h2")] == [34, 0]
    (other_end,) = net.contexts["h1"].qps.values()
    assert other_end.attributes["dscp"] == 34  # acknowledgements travel in the class of the data
    for agent in job:
        agent.collective.prepare(0)
        agent.run(12345)
    assert [qps[host].earliest_ns for host in ("h1", "h2")] == [[12345], [14345]]
    assert all(qp.dcqcn == {"g": 17} for context in net.contexts.values() for qp in context.qps.values())


def test_without_dcqcn_nothing_is_set(net: FakeNet) -> None:
    agents(RingAllReduce(4800))
    assert all(qp.dcqcn is None for context in net.contexts.values() for qp in context.qps.values())


def test_a_queue_pair_in_error_is_named(net: FakeNet) -> None:
    job = agents(RingAllReduce(4800))
    (out,) = [qp for qp in net.contexts["h2"].qps.values() if qp.remote_ip == "h4"]
    net.fail.add(out.qp_num)
    for agent in job:
        agent.collective.prepare(0)
        agent.run(12345)

    def play() -> None:
        while True:
            for agent in job:
                agent.progress()
            net.deliver()

    with pytest.raises(LabError, match=rf"queue pair {out.qp_num} towards h4 is in error: RETRY_EXC_ERR"):
        play()


@pytest.fixture
def server(net: FakeNet) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """A rank behind its socket: sends a command, unless it is empty, and returns the next answer."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=Server("h0", theirs).serve, daemon=True)
    thread.start()
    ours.settimeout(5)
    lines = ours.makefile("r")
    assert "pid" in json.loads(lines.readline())

    def ask(command: dict[str, Any]) -> dict[str, Any]:
        if command:
            ours.sendall(json.dumps(command).encode() + b"\n")
        answer = json.loads(lines.readline())
        assert isinstance(answer, dict)
        return answer

    yield ask
    ours.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    assert not thread.is_alive()


def test_the_server_answers_mistakes_and_lives_on(server: Callable[[dict[str, Any]], dict[str, Any]],
                                                  net: FakeNet) -> None:
    assert server({"op": "run"})["error"] == "run before setup"
    workload = RingAllReduce(4800)
    setup = setup_commands(workload, workload.plan(SPEC))["h0"]
    assert server({**setup, "agent": "tree"}) == {"ok": False, "host": "h0",
                                                  "error": "ValueError: unknown collective 'tree'"}
    answer = server(setup)
    assert answer["ok"]
    assert answer["addr"] == net.contexts["h0"].addr
    assert server({"op": "prepare", "iteration": 0}) == {"ok": True, "host": "h0"}
    assert server({"op": "dance"})["error"] == "unknown command 'dance'"
    assert server({"op": "teardown"}) == {"ok": True, "host": "h0"}
    assert net.contexts["h0"].closed


def test_the_server_reports_what_happens_while_nobody_asks(server: Callable[[dict[str, Any]], dict[str, Any]],
                                                           net: FakeNet) -> None:
    workload = RingAllReduce(4800)
    server(setup_commands(workload, workload.plan(SPEC))["h0"])
    context = net.contexts["h0"]
    qp = next(iter(context.qps.values()))
    context.queue.append(net._completion(qp, SEND, WcStatus.WR_FLUSH_ERR))
    context.wake()
    assert "WR_FLUSH_ERR" in server({})["error"]
