"""Verbs end to end without a network: agents' objects, fabricd's control socket, and two NICs in virtual time."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.topologies.rnic_harness import RATE_BPS, HarnessNic, TelemetryBlock, Wire
from topologies.dcqcn import preset
from topologies.errors import LabError
from topologies.fabricd._core import lib
from topologies.fabricd.client import FabricdClient
from topologies.fabricd.process import ControlServer
from topologies.fabricd.verbs import AccessFlags, Context, QpState, QueuePair, WcStatus
from topologies.fabricd.verbs_service import VerbsService
from topologies.units import LabClock


class VerbsOnly:
    """A fabricd of two NICs back to back, whose data path runs when the test says so."""

    def __init__(self, directory: Path) -> None:
        telemetry = TelemetryBlock()
        self.wire = Wire([HarnessNic(index, telemetry, path=directory / f"nic-h{index}") for index in range(2)])
        self.eventfds = [-1, -1]
        self._lock = threading.Lock()
        self.verbs = VerbsService(self._call, self.wire.nics, self._set_eventfd)
        self.path = directory / "fabricd.sock"
        self.server = ControlServer(self.path, self)  # type: ignore[arg-type]
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()

    def handle(self, connection: Any, op: str, arguments: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        return self.verbs.handle(connection, op, arguments, fds)

    def run(self, duration_ns: int = 100_000_000) -> None:
        with self._lock:
            self.wire.run(duration_ns)
            for nic, fd in zip(self.wire.nics, self.eventfds, strict=True):
                if lib.rnic_event_pending(nic.pointer) and fd >= 0:
                    os.eventfd_write(fd, 1)

    def _call(self, target: int, index: int, op: int, args: tuple[int, ...]) -> tuple[int, ...]:
        assert target == lib.CONTROL_NIC
        with self._lock:
            return self.wire.nics[index].control(op, *args)

    def _set_eventfd(self, nic: int, fd: int) -> None:
        self.eventfds[nic] = fd


@pytest.fixture
def fabricd(tmp_path: Path) -> Iterator[VerbsOnly]:
    fabricd = VerbsOnly(tmp_path)
    yield fabricd
    fabricd.server.stop()
    fabricd.thread.join()


@pytest.fixture
def contexts(fabricd: VerbsOnly) -> Iterator[list[Context]]:
    with Context("h0", fabricd.path) as one, Context("h1", fabricd.path) as other:
        yield [one, other]


def connected(contexts: list[Context], **attributes: Any) -> list[QueuePair]:
    cqs = [context.create_cq(64) for context in contexts]
    qps = [
        context.alloc_pd().create_qp(cq, cq, timeout_ns=10**9, **attributes)
        for context, cq in zip(contexts, cqs, strict=True)
    ]
    for qp, peer in (qps, qps[::-1]):
        qp.connect(peer.context.ip, peer.qp_num, peer.psn)
    return qps


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not become true within 5 s")


def test_a_write_between_two_agents(fabricd: VerbsOnly, contexts: list[Context]) -> None:
    assert [context.ip for context in contexts] == ["10.0.0.1", "10.0.0.2"]
    pds = [context.alloc_pd() for context in contexts]
    source, target = (pd.reg_mr(1 << 16) for pd in pds)
    cqs = [context.create_cq(100) for context in contexts]
    assert cqs[0].depth == 128
    qps = [pd.create_qp(cq, cq, window_bytes=4096, timeout_ns=10**9) for pd, cq in zip(pds, cqs, strict=True)]
    for qp, peer in (qps, qps[::-1]):
        assert qp.query()["state"] == QpState.RESET
        qp.connect(peer.context.ip, peer.qp_num, peer.psn)
        assert qp.query()["state"] == QpState.RTS
    numbers = source.array(np.float32)
    numbers[:] = np.arange(len(numbers))
    assert qps[1].post_recv(3, wr_id=9) == 3
    assert qps[0].post_write(source, 400, 40_000, target.addr + 800, target.rkey, imm=2**32 - 1, wr_id=2**64 - 1)
    fabricd.run()
    [sent], [received] = cqs[0].poll(), cqs[1].poll()
    assert (sent.wr_id, sent.status, sent.is_recv) == (2**64 - 1, WcStatus.SUCCESS, False)
    assert (received.wr_id, received.imm_data, received.byte_len, received.is_recv) == (9, 2**32 - 1, 40_000, True)
    assert np.array_equal(target.array(np.float32)[200:10_200], numbers[100:10_100])
    assert qps[0].query()["unacknowledged_bytes"] == 0


def test_congestion_control_is_set_and_queried(fabricd: VerbsOnly, contexts: list[Context]) -> None:
    qps = connected(contexts, dscp=10)
    assert (qps[0].query()["rate_bps"], qps[0].query()["alpha"]) == (RATE_BPS, 0.0)
    for qp in qps:
        qp.set_dcqcn(preset("nvidia", max_rate_mbps=40_000).to_lab(LabClock(10_000.0)))
    state = qps[0].query()
    assert (state["rate_bps"], state["target_rate_bps"]) == (0.4 * RATE_BPS, 0.4 * RATE_BPS)
    assert state["alpha"] == 1023 / 1024
    with pytest.raises(LabError, match="set_dcqcn is refused"):
        qps[0].set_dcqcn({**preset("paper").to_lab(LabClock(10_000.0)), "min_rate": 0})
    qps[0].set_dcqcn(None)
    assert qps[0].query()["rate_bps"] == RATE_BPS


def test_memory_is_zeroed_again(contexts: list[Context]) -> None:
    pd = contexts[0].alloc_pd()
    first = pd.reg_mr(10_000)
    first.array()[:] = 7
    first.dereg()
    second = pd.reg_mr(10_000, AccessFlags.LOCAL_WRITE)
    assert second.addr == first.addr
    assert not second.array().any()
    assert len(second.array(np.float64)) == 1250


def test_waiting_for_a_completion(fabricd: VerbsOnly, contexts: list[Context]) -> None:
    pd, cq = contexts[0].alloc_pd(), contexts[0].create_cq(8)
    region, qp = pd.reg_mr(4096), pd.create_qp(cq, cq)
    qp.connect(contexts[1].ip, 99, 0)
    assert cq.wait(timeout_s=0.01) == []
    waited: list[int] = []
    thread = threading.Thread(target=lambda: waited.extend(c.status for c in cq.wait(timeout_s=5)))
    thread.start()
    qp.post_write(region, 0, 10, 0, 0)
    qp.modify(QpState.ERR)
    fabricd.run(1_000_000)
    thread.join()
    assert waited == [WcStatus.WR_FLUSH_ERR]


def test_the_channel_can_be_selected_on(fabricd: VerbsOnly, contexts: list[Context]) -> None:
    qps = connected(contexts)
    pd = contexts[1].alloc_pd()
    cq = contexts[1].create_cq(8)
    qp = pd.create_qp(cq, cq)
    qp.connect(qps[0].context.ip, qps[0].qp_num, qps[0].psn)
    assert not cq.req_notify()
    assert select.select([cq], [], [], 0)[0] == []
    qp.post_recv(1)
    qp.modify(QpState.ERR)
    fabricd.run(1_000_000)
    assert select.select([cq], [], [], 0)[0] == [cq]
    cq.clear_event()
    cq.clear_event()
    assert select.select([cq], [], [], 0)[0] == []
    assert len(cq.poll()) == 1


def test_a_connection_that_closes_takes_everything_along(fabricd: VerbsOnly, contexts: list[Context]) -> None:
    qps = connected(contexts)
    with Context("h0", fabricd.path, channel=False) as visitor:
        visitors = connected([visitor, contexts[1]])
        number = visitors[0].qp_num
        visitor.alloc_pd().reg_mr(1 << 19)
        with pytest.raises(LabError, match="gap of that size"):
            contexts[0].alloc_pd().reg_mr(1 << 20)
    nic = fabricd.wire.nics[0]

    def gone() -> bool:
        try:
            nic.control(lib.RNIC_QUERY_QP, number)
        except OSError:
            return True
        return False

    wait_until(gone)
    assert qps[0].query()["state"] == QpState.RTS
    contexts[0].close()
    wait_until(lambda: fabricd.eventfds[0] == -1)
    with Context("h0", fabricd.path) as again:
        assert again.alloc_pd().handle == 0
        again.alloc_pd().reg_mr(1 << 20)  # all of it is free


def test_only_one_channel_a_device(fabricd: VerbsOnly, contexts: list[Context]) -> None:
    with pytest.raises(LabError, match="channel of h0 is taken"):
        Context("h0", fabricd.path)
    with Context("h0", fabricd.path, channel=False) as visitor, pytest.raises(LabError, match="without a completion"):
        visitor.create_cq(1).wait(0)


def test_nobody_reaches_what_another_connection_created(fabricd: VerbsOnly, contexts: list[Context]) -> None:
    qp = connected(contexts)[0]
    with Context("h0", fabricd.path, channel=False) as stranger:
        for op, arguments in (
            ("destroy_qp", {"qp_num": qp.qp_num}),
            ("modify_qp", {"qp_num": qp.qp_num, "state": "ERR"}),
            ("query_qp", {"qp_num": qp.qp_num}),
            ("reg_mr", {"pd": 0, "length": 1, "access": 0}),
            ("dereg_mr", {"lkey": 0x101}),
            ("destroy_cq", {"cq": 0}),
            ("create_qp", {"pd": 0, "send_cq": 0, "recv_cq": 0, "sq_sig_all": 1}),
        ):
            with pytest.raises(LabError, match="this connection has no"):
                stranger.call(op, **arguments)
    assert qp.query()["state"] == QpState.RTS


@pytest.mark.parametrize(
    ("op", "arguments", "words"),
    [
        ("open_device", {"device": "h00"}, "unknown device 'h00'"),
        ("alloc_dp", {}, "unknown operation 'alloc_dp'"),
        ("alloc_pd", {}, "has not opened a device"),
    ],
)
def test_first_steps_that_fail(fabricd: VerbsOnly, op: str, arguments: dict[str, Any], words: str) -> None:
    with FabricdClient(fabricd.path) as client, pytest.raises(LabError, match=words):
        client.call(op, **arguments)


@pytest.mark.parametrize(
    ("op", "arguments", "words"),
    [
        ("open_device", {"device": "h1"}, "opened a device already"),
        ("create_cq", {}, "depth is missing"),
        ("create_cq", {"depth": "9"}, "no integer"),
        ("create_cq", {"depth": 2**70}, "no integer"),
        ("create_cq", {"depth": 5000}, "out of range"),
        ("create_cq", {"deep": 9}, "unknown argument of create_cq 'deep'"),
        ("modify_qp", {"qp_num": 17, "state": "RTX"}, "unknown queue pair state 'RTX'"),
        ("modify_qp", {"qp_num": 17, "state": "RTR", "dest_ip": "10.0.0.256"}, "10.0.0.256"),
    ],
)
def test_refusals_say_why(contexts: list[Context], op: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(LabError, match=words):
        contexts[0].call(op, **arguments)


def test_a_queue_pair_that_is_not_connected_takes_no_work(contexts: list[Context]) -> None:
    pd, cq = contexts[0].alloc_pd(), contexts[0].create_cq(8)
    region, qp = pd.reg_mr(64), pd.create_qp(cq, cq)
    with pytest.raises(LabError, match="is not connected"):
        qp.post_write(region, 0, 1, 0, 0)
    with pytest.raises(LabError, match="is not connected"):
        qp.post_recv(1)
    with pytest.raises(LabError, match="still in use"):
        cq.destroy()
    with pytest.raises(LabError, match="still in use"):
        pd.dealloc()
    qp.destroy()
    region.dereg()
    cq.destroy()
    pd.dealloc()
    with pytest.raises(LabError, match="does not exist"):
        cq.poll()


def test_a_full_send_queue_says_so(fabricd: VerbsOnly, contexts: list[Context]) -> None:
    qp = connected(contexts)[0]
    pd, cq = contexts[0].alloc_pd(), contexts[0].create_cq(4096)
    region, qp = pd.reg_mr(64), pd.create_qp(cq, cq)
    qp.connect(contexts[1].ip, 99, 0)
    taken = 0
    while qp.post_write(region, 0, 1, 0, 0, earliest_ns=2**62):
        taken += 1
    assert taken == lib.VERBS_SEND_DEPTH


def test_descriptors_do_not_leak(fabricd: VerbsOnly) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with FabricdClient(fabricd.path) as client, socket.socket() as some:
            client.call("open_device", [some.fileno(), some.fileno()], device="h0")
            client.call("alloc_pd", [some.fileno()])
        wait_until(lambda: fabricd.eventfds[0] == -1)
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)
