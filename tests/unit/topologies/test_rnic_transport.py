"""Two NICs and a bad wire: every message arrives once and intact, whatever the wire does."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.contrib.roce import AETH, BTH
from scapy.layers.l2 import Ether

from tests.unit.topologies.rnic_harness import MTU, TIMEOUT_NS, Endpoint, Fate, Wire, fill, pair, wire_ns
from topologies.fabricd._core import lib

SECOND_NS = 10**9


def finish(wire: Wire, sender: Endpoint, writes: int, limit_s: int = 60) -> list[int]:
    """Runs until ``writes`` completions came, all successful; returns their wr_ids."""
    seen: list[int] = []

    def done() -> bool:
        for completion in sender.poll():
            assert completion.status == lib.IBV_WC_SUCCESS
            seen.append(completion.wr_id)
        return len(seen) >= writes

    wire.run(limit_s * SECOND_NS, until=done)
    return seen


def lose(*numbers: int) -> Fate:
    """Loses the sender's data packets with these numbers (the receiver's frames all arrive)."""
    sent = iter(range(1 << 30))
    return lambda sender, number, frame: [0] if sender or next(sent) not in numbers else []


def syndromes(wire: Wire) -> list[int]:
    answers = [Ether(frame) for _, sender, frame in wire.sent if sender == 1]
    return [answer[AETH].syndrome for answer in answers]


def test_messages_of_all_sizes_arrive() -> None:
    wire, left, right = pair()
    fill(left)
    at = 0
    lengths = [0, 1, 3, MTU - 1, MTU, MTU + 1, 5 * MTU, 17 * MTU + 5]
    for number, length in enumerate(lengths):
        left.write(length, at=at, to=at, wr_id=number)
        at += length
    assert finish(wire, left, len(lengths)) == list(range(len(lengths)))
    assert np.array_equal(right.region.array[:at], left.region.array[:at])
    assert not right.region.array[at:].any()
    assert left.nic.count.retransmitted_packets == 0
    assert left.nic.count.tx_payload_bytes == right.nic.count.rx_payload_bytes == at
    assert [record.bytes for record in left.nic.telemetry.trace(lib.TRACE_MESSAGE)] == lengths


def test_acks_are_coalesced() -> None:
    wire, left, right = pair(ack_every=16)
    left.write(64 * MTU)
    finish(wire, left, 1)
    assert right.nic.count.acks_sent == 4
    answers = [Ether(frame)[BTH].psn for _, sender, frame in wire.sent if sender == 1]
    assert answers == [left.psn + n for n in (15, 31, 47, 63)]


def test_a_completion_says_when_and_what() -> None:
    wire, left, right = pair()
    right.receive(1, wr_id=77)
    left.write(MTU, imm=0xCAFE, wr_id=5)
    wire.run(SECOND_NS // 10)
    [sent], [received] = left.poll(), right.poll()
    assert (sent.wr_id, sent.opcode, sent.qp_num, sent.byte_len) == (5, lib.IBV_WC_RDMA_WRITE, left.qp_num, MTU)
    assert (received.wr_id, received.opcode) == (77, lib.IBV_WC_RECV_RDMA_WITH_IMM)
    assert (received.imm_data, received.wc_flags, received.byte_len) == (0xCAFE, lib.IBV_WC_WITH_IMM, MTU)
    assert (received.qp_num, received.src_qp) == (right.qp_num, left.qp_num)
    frame_bytes = len(wire.sent[0][2])
    assert received.timestamp_ns == pytest.approx(wire.sent[0][0] + wire_ns(frame_bytes) + wire.delay_ns, abs=1)
    assert sent.timestamp_ns > received.timestamp_ns


def test_one_loss_costs_one_nak_and_one_window() -> None:
    wire, left, right = pair()
    fill(left)
    wire.fate = lose(3)
    left.write(20 * MTU)
    finish(wire, left, 1)
    assert np.array_equal(right.region.array[: 20 * MTU], left.region.array[: 20 * MTU])
    assert syndromes(wire).count(0x60) == 1
    assert left.nic.count.timeouts == 0
    assert right.nic.count.out_of_order == left.nic.count.retransmitted_packets - 1
    [nak] = left.nic.telemetry.trace(lib.TRACE_NAK_SENT)
    assert (nak.psn, nak.reason, nak.arg) == (left.psn + 3, 0x60, right.qp_num)
    again = left.nic.telemetry.trace(lib.TRACE_RETRANSMIT)
    assert again[0].psn == left.psn + 3
    assert {record.reason for record in again} == {lib.RETRANSMIT_NAK}


def test_no_second_nak_until_the_gap_is_closed() -> None:
    wire, left, right = pair()
    wire.fate = lose(3, 4, 5)  # while the NAK for 3 is under way, nothing new is reported
    left.write(20 * MTU)
    finish(wire, left, 1)
    assert syndromes(wire).count(0x60) == 1
    assert right.nic.count.naks_sent == left.nic.count.naks_received == 1


def test_a_lost_last_packet_costs_a_timeout() -> None:
    wire, left, _ = pair()
    wire.fate = lose(4)
    left.write(5 * MTU)
    finish(wire, left, 1)
    assert left.nic.count.timeouts == 1
    assert left.nic.count.retransmitted_packets == 5  # one ACK was asked for, and it never came
    assert wire.now_ns > TIMEOUT_NS
    [record] = left.nic.telemetry.trace(lib.TRACE_TIMEOUT)
    assert record.psn == left.psn


def test_a_lost_ack_makes_duplicates_that_change_nothing() -> None:
    wire, left, right = pair()
    fill(left)
    wire.fate = lambda sender, number, frame: [] if sender == 1 and wire.now_ns < SECOND_NS else [0]
    right.receive(2)
    left.write(5 * MTU, imm=1)
    wire.run(SECOND_NS // 2)
    right.region.array[:] = 0  # what arrived once must not be written again
    finish(wire, left, 1)
    assert not right.region.array.any()
    assert right.nic.count.duplicates > 0
    assert len(right.poll()) == 1


def test_an_ack_that_comes_after_the_timeout_still_counts() -> None:
    wire, left, right = pair(timeout_ns=100_000_000, window_bytes=1000 * MTU)
    fill(left)
    wire.fate = lambda sender, number, frame: [0] if sender == 0 or wire.now_ns > 100_000_000 else [105_000_000]
    for number in range(3):
        left.write(20 * MTU, at=number * 20 * MTU, to=number * 20 * MTU, wr_id=number)
    assert finish(wire, left, 3) == [0, 1, 2]
    assert left.nic.count.timeouts == 1
    assert 0 < left.nic.count.retransmitted_packets < 20  # the ACK stopped it, and it went on behind
    left.write(MTU, at=100 * MTU, to=100 * MTU)
    finish(wire, left, 1)
    assert np.array_equal(right.region.array[: 60 * MTU], left.region.array[: 60 * MTU])
    assert np.array_equal(right.region.array[100 * MTU : 101 * MTU], left.region.array[100 * MTU : 101 * MTU])


@pytest.mark.parametrize(("loss", "window"), [(0.02, 16), (0.05, 8), (0.1, 8)])
def test_go_back_n_efficiency(loss: float, window: int) -> None:
    """(1-p) / (1-p+pW): each lost packet costs the window that was in flight behind it."""
    wire, left, _ = pair(window_bytes=window * MTU, ack_every=1, timeout_ns=200_000_000)
    flight_ns = window * wire_ns(MTU + 58)
    wire.delay_ns = round(flight_ns / 2 - wire_ns(62))  # a window fills the round trip
    dice = random.Random(7)
    wire.fate = lambda sender, number, frame: [0] if sender or dice.random() >= loss else []
    packets = 0
    for _ in range(24):
        left.write(100 * MTU)
        packets += 100
    finish(wire, left, 24)
    # Timeouts are what the formula does not know: a lost retransmission is noticed by nothing else.
    stalled_ns = left.nic.count.timeouts * 200_000_000
    line_ns = packets * wire_ns(MTU + 58)
    efficiency = line_ns / (wire.now_ns - stalled_ns)
    assert efficiency == pytest.approx((1 - loss) / (1 - loss + loss * window), rel=0.15)


def test_reordering_is_what_spraying_costs() -> None:
    wire, left, right = pair()
    fill(left)
    dice = random.Random(3)
    wire.fate = lambda sender, number, frame: [dice.choice([0, 3_000_000])]
    left.write(100 * MTU)
    finish(wire, left, 1)
    assert np.array_equal(right.region.array[: 100 * MTU], left.region.array[: 100 * MTU])
    assert right.nic.count.out_of_order > 0
    assert left.nic.count.retransmitted_packets > 0
    assert len(left.nic.telemetry.trace(lib.TRACE_REORDER)) == right.nic.count.out_of_order


fates = st.lists(
    st.sampled_from([(0,), (0,), (0,), (), (0, 0), (0, 5_000_000), (4_000_000,), (30_000_000,), (130_000_000,)]),
    max_size=60,
)
messages = st.lists(st.tuples(st.integers(0, 4 * MTU), st.booleans()), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(fates, messages, st.integers(0, 0xFFFFFF), st.sampled_from([1, 3, 16]), st.sampled_from([0, 2 * MTU]))
def test_exactly_once_whatever_happens(
    pattern: list[tuple[int, ...]], plan: list[tuple[int, bool]], psn: int, ack_every: int, window: int
) -> None:
    """Loss, duplication and reordering of the first frames in both directions, then a good wire."""
    wire, left, right = pair(psn=psn, ack_every=ack_every, window_bytes=window, timeout_ns=100_000_000, retry_count=7)
    fill(left)
    wire.fate = lambda sender, number, frame: list(pattern[number]) if number < len(pattern) else [0]
    at = 0
    right.receive(len(plan))
    for number, (length, immediate) in enumerate(plan):
        left.write(length, at=at, to=at, imm=number if immediate else None, wr_id=number)
        at += length
    assert finish(wire, left, len(plan)) == list(range(len(plan)))
    assert np.array_equal(right.region.array[:at], left.region.array[:at])
    assert not right.region.array[at:].any()
    received = right.poll()
    assert [c.imm_data for c in received] == [n for n, (_, immediate) in enumerate(plan) if immediate]
    assert [c.byte_len for c in received] == [length for length, immediate in plan if immediate]
    assert right.nic.count.rx_payload_bytes == left.nic.count.tx_payload_bytes == at
