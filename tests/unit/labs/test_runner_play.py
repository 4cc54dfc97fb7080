"""What a run makes of the trace, and when it gives up."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labs.lab import Lab
from labs.measure.raw import FlowRole, RawIteration, RawRank
from labs.runner_play import ROCE_PORT, UDP, Run, Silent, _with_hash_seeds
from labs.workload import Flow, RingAllReduce, Transfers
from topologies.fabric import describe
from topologies.fabricd.telemetry import FLOW_DTYPE, TRACE_DTYPE, TraceKind
from topologies.spec import FabricSpec

SPEC = FabricSpec(leaves=2, spines=2, hosts_per_leaf=1, slowdown=10_000)
LAB = Lab(name="test", module=0, title="", question="", fabric=SPEC, workload=RingAllReduce(65536))
FRAME_BYTES = 4154
FRAME_NS = (FRAME_BYTES + 24) * 8 * 100  # at 10 Mb/s of lab time


def make_run(lab: Lab = LAB, **session: Any) -> Run:
    fake: Any = SimpleNamespace(fabric=describe(SPEC), fabricd=None, **session)
    return Run(fake, lab, "ecmp", 1, Silent())


def number(ip: str) -> int:
    return int.from_bytes(socket.inet_aton(ip), "big")


def flows_of(roles: list[FlowRole]) -> Any:
    """The flow table: every data flow, and behind it the flow of its acknowledgements."""
    rows = np.zeros(2 * len(roles), FLOW_DTYPE)
    for index, role in enumerate(roles):
        for row, (src, dst, port) in ((rows[2 * index], (role.src_ip, role.dst_ip, role.src_port)),
                                      (rows[2 * index + 1], (role.dst_ip, role.src_ip, 1))):
            row["src_ip"], row["dst_ip"], row["src_port"], row["dst_port"], row["protocol"] = (
                src, dst, port, ROCE_PORT, UDP)
    return rows


def hop(port: int, flow: int, begin_ns: int, kind: int = TraceKind.HOP) -> Any:
    record = np.zeros(1, TRACE_DTYPE)[0]
    record["kind"], record["port"], record["flow"], record["bytes"] = kind, port, flow, FRAME_BYTES
    record["t_ns"] = begin_ns + FRAME_NS
    return record


def test_roles_name_sender_and_receiver_of_every_data_flow() -> None:
    run = make_run()
    roles = run._roles()
    assert [(role.src_ip, role.dst_ip, role.rank, role.peer) for role in roles] == [
        (number("10.0.0.1"), number("10.0.1.1"), 0, 1), (number("10.0.1.1"), number("10.0.0.1"), 1, 0)]
    assert [role.src_port for role in roles] == [run.ports[0, 0, 0], run.ports[1, 0, 0]]


def test_roles_know_when_a_flow_begins_and_its_queue_pair() -> None:
    run = make_run(LAB.replace(workload=Transfers(4096, flows=[Flow("h0", "h1", start_us=3), Flow("h0", "h1")])))
    run._qps = {(0, 0): 17, (1, 0): 18}
    assert [(role.start_us, role.qp) for role in run._roles()] == [(3, 17), (0, 18)]


def test_first_bits_are_those_of_data_in_their_iteration() -> None:
    run = make_run()
    roles = run._roles()
    run._issued_ns = [1_000_000_000, 3_000_000_000]
    ranks = tuple(RawRank(i, f"h{i}", 0, None, 2_000_000_000) for i in range(2))
    run.iterations = [RawIteration(0, True, 1_100_000_000, ranks), RawIteration(1, False, 3_100_000_000, ranks)]
    trace = np.array([
        hop(0, 0, 500_000_000),  # before the first command: of an earlier run
        hop(1, 1, 1_050_000_000),  # an acknowledgement from rank 1's host
        hop(0, 0, 1_100_000_100), hop(0, 0, 1_200_000_000), hop(1, 2, 1_100_000_200),
        hop(4, 0, 1_100_000_050),  # not at the NIC
        hop(0, 0, 3_100_000_300),
        hop(1, 2, 3_050_000_000, TraceKind.RETRANSMIT),
    ])
    first = [[rank.first_tx_ns for rank in iteration.ranks]
             for iteration in run._with_first_bits(trace, flows_of(roles), roles)]
    assert first == [[1_100_000_100, 1_100_000_200], [3_100_000_300, None]]


def test_an_empty_trace_says_nothing() -> None:
    run = make_run()
    run._issued_ns = [0]
    run.iterations = [RawIteration(0, False, 1, (RawRank(0, "h0", 0, None, None),))]
    (iteration,) = run._with_first_bits(np.zeros(0, TRACE_DTYPE), np.zeros(0, FLOW_DTYPE), run._roles())
    assert iteration.ranks[0].first_tx_ns is None


def test_the_fabric_is_recorded_with_the_seeds_that_the_controller_gave() -> None:
    fabric = _with_hash_seeds(describe(SPEC), {"leaf1": {"index": "flow", "entries": [0, 1], "seed": 77}})
    assert fabric.switch("leaf1").hash_seed == 77
    assert fabric.switch("leaf0").hash_seed == describe(SPEC).switch("leaf0").hash_seed


def test_a_job_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    nics = np.zeros(2, [("rx_payload_bytes", "u8")])
    trouble: list[str | None] = [None]
    run = make_run(telemetry=SimpleNamespace(nics=nics), trouble=lambda: trouble[0])
    patience_s = 3 * SPEC.clock.lab_ns(LAB.workload.timeout_us) / 1e9 + 10
    watch = run._stall_watch(start_ns=int(150e9))
    now_s = 150 + patience_s - 1  # nothing needs to move before the start
    assert watch() is None
    nics["rx_payload_bytes"][1] += 4096
    now_s += 2
    assert watch() is None
    now_s += patience_s - 1
    assert watch() is None
    now_s += 2
    assert watch() == f"no NIC has received any data for {patience_s:.0f} s"
    nics["rx_payload_bytes"][0] += 1
    trouble[0] = "fabricd died"
    assert watch() == "fabricd died"


@pytest.mark.parametrize(("patience_us", "expected_s"), [(500, 5), (20, 1)])
def test_a_lab_says_how_long_it_waits(monkeypatch: pytest.MonkeyPatch, patience_us: float, expected_s: float) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    run = make_run(LAB.with_overrides([f"patience_us={patience_us}"]), trouble=lambda: None,
                   telemetry=SimpleNamespace(nics=np.zeros(2, [("rx_payload_bytes", "u8")])))
    watch = run._stall_watch(start_ns=int(100e9))
    assert watch() is None
    now_s += expected_s - 0.1
    assert watch() is None
    now_s += 0.2
    assert watch() == f"no NIC has received any data for {expected_s} s"


def test_what_stands_still_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr("time.monotonic", lambda: now_s)
    monkeypatch.setattr("time.sleep", sleep)
    frames = iter([9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    monkeypatch.setattr("labs.runner_play.frames_in_flight", lambda _: next(frames))
    run = make_run(trouble=lambda: None, telemetry=SimpleNamespace(snapshot=lambda: None))
    run._wait_quiet()
    assert next(frames, None) is None  # to the last frame
    monkeypatch.setattr("labs.runner_play.frames_in_flight", lambda _: 5)
    now_s = 0.0
    run._wait_quiet()
    assert 2 < now_s < 3
