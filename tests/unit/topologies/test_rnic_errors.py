"""What goes wrong between two RNICs: silent peers, peers that are not ready, and peers that may not."""

from __future__ import annotations

import errno
import os
from itertools import pairwise

import numpy as np
import pytest
from scapy.contrib.roce import AETH
from scapy.layers.l2 import Ether

from tests.unit.topologies.rnic_harness import ALL_ACCESS, MTU, Endpoint, Region, Wire, fill, pair
from topologies.fabricd._core import ffi, lib

SECOND_NS = 10**9


def statuses(endpoint: Endpoint) -> list[tuple[int, int]]:
    return [(completion.wr_id, completion.status) for completion in endpoint.poll()]


def syndromes(wire: Wire) -> list[int]:
    return [Ether(frame)[AETH].syndrome for _, sender, frame in wire.sent if sender == 1]


def test_a_silent_peer_exhausts_the_retries() -> None:
    wire, left, _ = pair(retry_count=2, timeout_ns=50_000_000)
    wire.fate = lambda sender, number, frame: []
    left.receive(1, wr_id=90)
    left.write(2 * MTU, wr_id=1)
    left.write(10, wr_id=2)
    wire.run(SECOND_NS)
    assert statuses(left) == [
        (1, lib.IBV_WC_RETRY_EXC_ERR),
        (2, lib.IBV_WC_WR_FLUSH_ERR),
        (90, lib.IBV_WC_WR_FLUSH_ERR),
    ]
    assert left.state == lib.IBV_QPS_ERR
    assert left.nic.count.timeouts == 3  # the third finds no retry left
    assert left.nic.count.tx_packets == 3 * 3
    assert left.nic.count.qp_errors == 1
    [record] = left.nic.telemetry.trace(lib.TRACE_QP_ERROR)
    assert (record.arg, record.reason) == (left.qp_num, lib.IBV_WC_RETRY_EXC_ERR)


def test_progress_restores_the_retries() -> None:
    wire, left, _ = pair(retry_count=1, timeout_ns=50_000_000)
    data = iter(range(1 << 30))
    # Every packet is lost the first time: one retry each, never two in a row for the same.
    wire.fate = lambda sender, number, frame: [0] if sender or next(data) % 2 else []
    for number in range(4):
        left.write(10, wr_id=number)
        wire.run(SECOND_NS // 5)
    assert statuses(left) == [(number, lib.IBV_WC_SUCCESS) for number in range(4)]
    assert left.nic.count.timeouts == 4


def test_timeout_zero_waits_for_ever() -> None:
    wire, left, _ = pair(timeout_ns=0)
    wire.fate = lambda sender, number, frame: []
    left.write(10)
    wire.run(20 * SECOND_NS, tick_ns=10_000_000)
    assert len(wire.sent) == 1
    assert left.state == lib.IBV_QPS_RTS


def test_what_is_posted_after_an_error_is_flushed() -> None:
    wire, left, _ = pair()
    left.nic.control(lib.RNIC_MODIFY_QP, left.qp_num, lib.IBV_QPS_ERR)
    left.write(10, wr_id=7)
    left.receive(1, wr_id=8)
    wire.run(SECOND_NS // 100)
    assert statuses(left) == [(7, lib.IBV_WC_WR_FLUSH_ERR), (8, lib.IBV_WC_WR_FLUSH_ERR)]
    assert wire.sent == []


def test_receiver_not_ready_waits_and_succeeds() -> None:
    wire, left, right = pair(rnr_retry=7)
    fill(left)
    left.write(MTU + 4, imm=3)
    left.write(MTU, at=2 * MTU, to=2 * MTU)  # must wait too, though it needs no receive request
    wire.run(SECOND_NS // 20)
    assert left.nic.count.rnr_received > 1
    assert set(syndromes(wire)) == {0x21}
    assert right.region.array[:MTU].any()
    assert not right.region.array[MTU:].any()
    right.receive(1)
    wire.run(SECOND_NS // 20)
    assert np.array_equal(right.region.array[: MTU + 4], left.region.array[: MTU + 4])
    assert np.array_equal(right.region.array[2 * MTU : 3 * MTU], left.region.array[2 * MTU : 3 * MTU])
    assert [status for _, status in statuses(left)] == [0, 0]
    assert [completion.imm_data for completion in right.poll()] == [3]
    assert right.nic.count.naks_sent == 0  # the packets behind are no gap
    assert {r.reason for r in left.nic.telemetry.trace(lib.TRACE_RETRANSMIT)} == {lib.RETRANSMIT_RNR}


def test_receiver_never_ready() -> None:
    wire, left, _ = pair(rnr_retry=3, rnr_timer=20)  # 10.24 ms
    left.write(10, imm=1, wr_id=4)
    wire.run(SECOND_NS // 10)
    assert statuses(left) == [(4, lib.IBV_WC_RNR_RETRY_EXC_ERR)]
    assert left.nic.count.rnr_received == 4
    times = [time for time, sender, _ in wire.sent if sender == 0]
    assert len(times) == 4
    assert min(b - a for a, b in pairwise(times)) >= 10_240_000
    assert left.nic.count.timeouts == 0


@pytest.mark.parametrize(
    "change",
    [
        {"rkey": 0x12345},
        {"rkey": 0},
        {"remote_addr": 0},
        {"remote_addr": 2**64 - 1},
        {"offset": 64 << 10, "length": (64 << 10) + 1},
        {"offset": -1},
    ],
)
def test_a_bad_write_touches_no_byte(change: dict[str, int]) -> None:
    wire, left, right = pair()
    fill(left)
    right.receive(1, wr_id=30)
    overrides = dict(change)
    if "offset" in overrides:
        overrides["remote_addr"] = right.region.addr + overrides.pop("offset")
    left.write(MTU, wr_id=1)
    left.write(overrides.pop("length", 3 * MTU), wr_id=2, imm=0, **overrides)
    left.write(MTU, wr_id=3)
    wire.run(SECOND_NS // 10)
    assert statuses(left) == [
        (1, lib.IBV_WC_SUCCESS),
        (2, lib.IBV_WC_REM_ACCESS_ERR),
        (3, lib.IBV_WC_WR_FLUSH_ERR),
    ]
    assert statuses(right) == [(30, lib.IBV_WC_WR_FLUSH_ERR)]
    assert (left.state, right.state) == (lib.IBV_QPS_ERR, lib.IBV_QPS_ERR)
    assert 0x62 in syndromes(wire)
    assert right.nic.count.access_errors == 1
    assert not right.region.array[MTU:].any()
    reasons = [(r.arg, r.port, r.reason) for r in left.nic.telemetry.trace(lib.TRACE_QP_ERROR)]
    assert reasons == [
        (right.qp_num, 1, lib.IBV_WC_LOC_ACCESS_ERR),
        (left.qp_num, 0, lib.IBV_WC_REM_ACCESS_ERR),
    ]


def test_rights_are_checked() -> None:
    for what in ("region", "queue pair", "protection domain"):
        wire, left, right = pair()
        if what == "region":
            target = Region(right.nic, 4096, lib.IBV_ACCESS_LOCAL_WRITE, right.region.pd)
        elif what == "protection domain":
            target = Region(right.nic, 4096, ALL_ACCESS)
        else:
            target = right.region
            right = Endpoint(right.nic, right.region, access=lib.IBV_ACCESS_REMOTE_READ)
            left = Endpoint(left.nic, left.region)
            left.connect(right)
            right.connect(left)
        fill(left)
        left.write(100, remote_addr=target.addr, rkey=target.rkey)
        wire.run(SECOND_NS // 10)
        assert [status for _, status in statuses(left)] == [lib.IBV_WC_REM_ACCESS_ERR], what
        assert not target.array.any()


def test_a_region_that_goes_during_a_message() -> None:
    wire, left, right = pair()
    fill(left)
    left.write(100 * MTU)
    wire.run(SECOND_NS // 100)
    right.nic.control(lib.RNIC_DEREG_MR, right.region.rkey)
    again = Region(right.nic, len(right.region.array))
    assert again.addr == right.region.addr
    again.array[:] = 0
    wire.run(SECOND_NS // 10)
    assert not again.array.any()
    assert [status for _, status in statuses(left)] == [lib.IBV_WC_REM_ACCESS_ERR]


@pytest.mark.parametrize(
    ("overrides", "status"),
    [
        ({"opcode": 99}, "IBV_WC_LOC_QP_OP_ERR"),
        ({"lkey": 1}, "IBV_WC_LOC_PROT_ERR"),
        ({"addr": 0}, "IBV_WC_LOC_PROT_ERR"),
        ({"length": 2**31 + 1}, "IBV_WC_LOC_LEN_ERR"),
    ],
)
def test_a_bad_request_fails_in_its_turn(overrides: dict[str, int], status: str) -> None:
    wire, left, _ = pair()
    left.write(20 * MTU, wr_id=1)
    length = overrides.pop("length", 10)
    left.write(length, wr_id=2, **overrides)
    left.write(10, wr_id=3)
    wire.run(SECOND_NS // 10)
    assert statuses(left) == [(1, 0), (2, getattr(lib, status)), (3, lib.IBV_WC_WR_FLUSH_ERR)]


def test_nonsense_in_the_shared_memory_harms_its_owner_only() -> None:
    wire, left, right = pair()
    other_left, other_right = Endpoint(left.nic, left.region), Endpoint(right.nic, right.region)
    other_left.connect(other_right)
    other_right.connect(other_left)
    header = ffi.cast("struct verbs_header *", left.nic.shared)
    header.doorbell = 2**64 - 1
    queue = ffi.cast("struct verbs_queue_pair *", ffi.cast("char *", left.nic.shared) + header.qp_offset)
    queue[left.slot].send_producer = 0x80000000
    queue[left.slot].recv_producer = 0x80000000
    other_left.write(100, wr_id=5)
    wire.run(SECOND_NS // 100)
    assert left.state == lib.IBV_QPS_ERR
    assert statuses(other_left) == [(5, 0)]


def test_a_completion_queue_that_overruns_stops_its_queue_pair() -> None:
    wire, left, right = pair()
    small = Endpoint(left.nic, left.region, cq_depth=4)
    partner = Endpoint(right.nic, right.region)
    small.connect(partner)
    partner.connect(small)
    for number in range(6):
        small.write(10, wr_id=number)
    wire.run(SECOND_NS // 100)
    assert small.state == lib.IBV_QPS_ERR
    assert left.nic.count.cq_overruns > 0
    assert [wr_id for wr_id, _ in statuses(small)] == [0, 1, 2, 3]
    entry = ffi.new("struct verbs_wc *")
    assert lib.verbs_poll_cq(left.nic.shared, small.cq, entry, 1) == -errno.EOVERFLOW
    assert left.state == lib.IBV_QPS_RTS


@pytest.mark.parametrize(
    ("op", "args", "error"),
    [
        (0, (), errno.EINVAL),
        (lib.RNIC_REG_MR, (0, 0, 0), errno.EINVAL),
        (lib.RNIC_REG_MR, (0, 1 << 40, 0), errno.ENOMEM),
        (lib.RNIC_REG_MR, (0, 2**63 - 1, 0), errno.ENOMEM),
        (lib.RNIC_REG_MR, (0, 1, 8), errno.EINVAL),
        (lib.RNIC_REG_MR, (99, 1, 0), errno.ENOENT),
        (lib.RNIC_DEREG_MR, (-1,), errno.ENOENT),
        (lib.RNIC_CREATE_CQ, (0,), errno.EINVAL),
        (lib.RNIC_CREATE_CQ, (4097,), errno.EINVAL),
        (lib.RNIC_DESTROY_CQ, (0,), errno.EBUSY),
        (lib.RNIC_DESTROY_CQ, (-1,), errno.ENOENT),
        (lib.RNIC_DEALLOC_PD, (0,), errno.EBUSY),
        (lib.RNIC_DEALLOC_PD, (1 << 40,), errno.ENOENT),
        (lib.RNIC_CREATE_QP, (0, 0, 63), errno.ENOENT),
        (lib.RNIC_MODIFY_QP, (17, lib.IBV_QPS_RTS), errno.EINVAL),  # it is there already
        (lib.RNIC_MODIFY_QP, (17 + (1 << 32), lib.IBV_QPS_ERR), errno.ENOENT),
        (lib.RNIC_QUERY_QP, (0,), errno.ENOENT),
        (lib.RNIC_DESTROY_QP, (18,), errno.ENOENT),
    ],
)
def test_control_refuses(op: int, args: tuple[int, ...], error: int) -> None:
    _, left, _ = pair()
    assert left.qp_num == 17
    with pytest.raises(OSError, match=os.strerror(error)):
        left.nic.control(op, *args)


def test_memory_is_found_again() -> None:
    _, left, _ = pair()
    pd = left.region.pd
    regions = [Region(left.nic, 100_000, pd=pd) for _ in range(8)]
    with pytest.raises(OSError, match="memory"):
        Region(left.nic, 200_000, pd=pd)
    for region in regions[2:4]:
        left.nic.control(lib.RNIC_DEREG_MR, region.lkey)
    again = Region(left.nic, 200_000, pd=pd)
    assert again.addr == regions[2].addr
    assert again.rkey not in {region.rkey for region in regions}
