"""When the RNIC sends: line rate, turns, windows, and times that a request waits for."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.l2 import Ether

from tests.unit.topologies.rnic_harness import MTU, TICK_NS, Endpoint, Wire, pair, wire_ns
from topologies.fabricd._core import ffi, lib

SECOND_NS = 10**9
FRAME_BYTES = MTU + 58  # middle of a message
FRAME_NS = wire_ns(FRAME_BYTES)


def more(wire: Wire, left: Endpoint, **attributes: int) -> tuple[Endpoint, Endpoint]:
    """Another connection between the same NICs."""
    assert left.peer is not None
    one, other = Endpoint(left.nic, left.region, **attributes), Endpoint(wire.nics[1], left.peer.region)
    one.connect(other)
    other.connect(one)
    return one, other


@pytest.mark.parametrize("late_ns", [0, round(0.95 * FRAME_NS)])
def test_line_rate_even_if_ticks_come_late(late_ns: int) -> None:
    """As seen from the wire, which is busy all the time as long as no tick is later than one MTU time."""
    wire, left, _ = pair()
    dice = random.Random(1)
    left.write(120 * MTU)
    now_ns = 0
    while left.nic.count.tx_packets < 120:
        now_ns += TICK_NS + dice.randrange(late_ns + 1)
        wire.tick(now_ns)
    frames = [frame for _, sender, frame in wire.sent if sender == 0]
    wire_free_ns = wire._free_ns[0]
    assert wire_free_ns - wire.sent[0][0] == pytest.approx(sum(wire_ns(len(frame)) for frame in frames), rel=0.01)


def test_at_most_two_frames_stand_in_the_port() -> None:
    wire, left, _ = pair()
    left.write(100 * MTU)
    wire.run(SECOND_NS // 20)
    free_ns = 0.0
    for at_ns, sender, frame in wire.sent:
        if sender == 0:
            free_ns = max(free_ns, at_ns) + wire_ns(len(frame))
            assert free_ns - at_ns <= 2 * wire_ns(MTU + 74)


def test_idle_time_is_not_made_up_for() -> None:
    wire, left, _ = pair()
    wire.run(SECOND_NS // 10)
    left.write(100 * MTU)
    wire.tick(wire.now_ns + TICK_NS)
    assert left.nic.count.tx_packets == 2


def test_queue_pairs_take_turns() -> None:
    wire, left, _ = pair()
    senders = [left] + [more(wire, left)[0] for _ in range(3)]
    for sender in senders:
        sender.write(30 * MTU)
    wire.run(SECOND_NS // 20)
    order = [Ether(frame)[BTH].dqpn for _, sender, frame in wire.sent if sender == 0]
    assert len(set(order)) == 4
    assert all(len(set(order[i : i + 4])) == 4 for i in range(len(order) - 4))


def test_turns_with_all_64_queue_pairs() -> None:
    wire, left, _ = pair()
    senders = [left] + [more(wire, left)[0] for _ in range(63)]
    with pytest.raises(OSError, match="space"):
        Endpoint(left.nic, left.region)
    for sender in senders:
        sender.write(2 * MTU)
    wire.run(SECOND_NS // 2)
    order = [Ether(frame)[BTH].dqpn for _, sender, frame in wire.sent if sender == 0]
    assert set(Counter(order).values()) == {2}
    assert len(set(order[:64])) == 64


@pytest.mark.parametrize("window_packets", [1, 3, 8])
def test_the_window_is_kept(window_packets: int) -> None:
    wire, left, _ = pair(window_bytes=window_packets * MTU, ack_every=16)
    wire.delay_ns = 20_000_000
    left.write(40 * MTU)
    peak = 0

    def done() -> bool:
        nonlocal peak
        peak = max(peak, left.nic.control(lib.RNIC_QUERY_QP, left.qp_num)[3])
        return bool(left.poll())

    wire.run(10 * SECOND_NS, until=done)
    assert peak == window_packets * MTU
    assert left.nic.count.timeouts == 0  # the last packet of a window asks for its ACK
    rounds = -(-40 // window_packets)
    assert wire.now_ns == pytest.approx(rounds * 2 * wire.delay_ns, rel=0.25)


def test_a_window_below_one_packet_still_moves() -> None:
    wire, left, _ = pair(window_bytes=100)
    left.write(5 * MTU)
    wire.run(SECOND_NS // 10)
    assert [completion.status for completion in left.poll()] == [0]


def test_wait_on_time_is_exact() -> None:
    wire, left, _ = pair()
    other, _ = more(wire, left)
    earliest_ns = 50_012_345
    left.write(10, wr_id=1)
    left.write(10, wr_id=2, earliest_ns=earliest_ns)
    left.write(10, wr_id=3)
    other.write(5 * MTU)  # does not wait for a neighbour
    wire.run(SECOND_NS // 10)
    times = {
        bth.psn: at_ns
        for at_ns, sender, frame in wire.sent
        if sender == 0 and (bth := Ether(frame)[BTH]).dqpn == left.qp_num
    }
    first, second, third = (times[left.psn + n] for n in range(3))
    assert first < 1_000_000
    assert earliest_ns <= second < earliest_ns + TICK_NS
    assert third >= second
    assert len([1 for at_ns, sender, _ in wire.sent if sender == 0 and at_ns < 10_000_000]) == 6


def test_acks_overtake_data() -> None:
    wire, left, right = pair()
    right.write(60 * MTU)
    left.write(MTU)
    wire.run(SECOND_NS // 10)
    answers = [at_ns for at_ns, sender, frame in wire.sent if sender == 1 and Ether(frame)[BTH].opcode == 0x11]
    arrival_ns = wire_ns(MTU + 74) + wire.delay_ns
    assert arrival_ns <= answers[0] <= arrival_ns + 2 * FRAME_NS


def test_a_full_send_queue_takes_no_more() -> None:
    wire, left, _ = pair()
    for _ in range(lib.VERBS_SEND_DEPTH):
        left.write(1)
    request = ffi.new("struct verbs_send_wr *")
    assert lib.verbs_post_send(left.nic.shared, left.slot, request, 1) == -12  # ENOMEM
    wire.run(SECOND_NS // 10)
    assert len(left.poll()) == lib.VERBS_SEND_DEPTH
    left.write(1)


def test_unsignalled_requests_complete_silently() -> None:
    wire, left, right = pair()
    cq = left.nic.control(lib.RNIC_CREATE_CQ, 16)[0]
    left.cq = cq
    left.qp_num, left.slot, *_ = left.nic.control(lib.RNIC_CREATE_QP, left.region.pd, cq, cq, 0)
    right = Endpoint(right.nic)
    left.connect(right)
    right.connect(left)
    for number in range(6):
        left.write(10, wr_id=number, send_flags=lib.IBV_SEND_SIGNALED if number % 3 == 2 else 0)
    wire.run(SECOND_NS // 10)
    assert [completion.wr_id for completion in left.poll()] == [2, 5]


def test_an_event_is_raised_once_for_an_armed_queue() -> None:
    wire, left, _ = pair()
    left.write(10)
    wire.run(SECOND_NS // 100)
    assert lib.rnic_event_pending(left.nic.pointer) == 0  # nobody asked
    assert lib.verbs_req_notify_cq(left.nic.shared, left.cq) == 1  # look first
    left.poll()
    assert lib.verbs_req_notify_cq(left.nic.shared, left.cq) == 0
    left.write(10)
    left.write(10)
    wire.run(SECOND_NS // 100)
    assert lib.rnic_event_pending(left.nic.pointer) == 1
    assert lib.rnic_event_pending(left.nic.pointer) == 0
    assert len(left.poll()) == 2


def test_completions_come_in_order_of_time() -> None:
    wire, left, right = pair()
    right.receive(20)
    for number in range(20):
        left.write(MTU, imm=number)
    wire.run(SECOND_NS // 10)
    times = [completion.timestamp_ns for completion in right.poll()]
    gaps = [b - a for a, b in pairwise(times)]
    assert gaps == pytest.approx([wire_ns(MTU + 78)] * 19, abs=2)
