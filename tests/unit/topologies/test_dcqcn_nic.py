"""Congestion control in the RNIC: notifications on the wire, and what rates and pauses do to sending."""

from __future__ import annotations

import random
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from tests.unit.topologies.congestion_harness import (
    CLOCK,
    PAPER,
    cnp_to,
    controlled,
    mark,
    marked,
    rate_and_alpha,
    sent,
    set_dcqcn,
)
from tests.unit.topologies.rnic_harness import MTU, RATE_BPS, TICK_NS, Endpoint, pair, wire_ns
from topologies.dcqcn import Dcqcn, preset
from topologies.fabricd._core import lib

SECOND_NS = 10**9
INTERVAL_NS = CLOCK.lab_ns(PAPER.cnp_interval_us)
CNP, ACK = 0x81, 0x11


def fixed_rate(gbps: float) -> Dcqcn:
    return preset("paper", max_rate_mbps=gbps * 1e3)


def one_cnp() -> tuple[Endpoint, bytes]:
    wire, left, _ = controlled(src_port=50_123)
    marked(wire)
    left.write(100)
    wire.run(SECOND_NS // 100)
    [frame] = [frame for _, _, frame in wire.sent if frame[42] == CNP]
    return left, frame


def test_a_cnp_as_scapy_reads_it() -> None:
    left, frame = one_cnp()
    packet = Ether(frame)
    rebuilt = packet.copy()
    for layer, name in ((IP, "chksum"), (IP, "len"), (UDP, "len"), (BTH, "icrc")):
        setattr(rebuilt[layer], name, None)
    assert bytes(rebuilt) == frame
    assert (packet[IP].src, packet[IP].dst, packet[IP].tos) == ("10.0.0.2", "10.0.0.1", 48 << 2)  # not ECN capable
    bth = packet[BTH]
    assert (bth.opcode, bth.dqpn, bth.psn, bth.becn, bth.fecn, bth.ackreq) == (CNP, left.qp_num, 0, 1, 0, 0)
    assert (bth.migreq, bth.padcount, bth.pkey) == (0, 0, 0xFFFF)
    assert bytes(bth.payload) == bytes(16)
    assert len(frame) == 14 + 20 + 8 + 12 + 16 + 4


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_a_cnp_as_tshark_reads_it(tmp_path: Path) -> None:
    """It knows the header; the name of the opcode, and BECN, only newer ones do."""
    left, frame = one_cnp()
    wrpcap(str(tmp_path / "cnp.pcap"), [Ether(frame)])
    fields = [f"infiniband.bth.{name}" for name in ("opcode", "destqp", "psn")] + ["ip.dsfield.dscp", "_ws.malformed"]
    done = subprocess.run(
        ["tshark", "-r", str(tmp_path / "cnp.pcap"), "-T", "fields", *(f"-e{name}" for name in fields)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *numbers, malformed = done.stdout.rstrip("\n").split("\t")
    assert ([int(number, 0) for number in numbers], malformed) == ([CNP, left.qp_num, 0, 48], "")


def test_scapys_cnp_halves_the_rate_once() -> None:
    _, left, _ = controlled()
    assert rate_and_alpha(left) == (RATE_BPS, 1.0)
    left.nic.rx(cnp_to(left), 1000)
    assert rate_and_alpha(left) == (RATE_BPS / 2, 1.0)
    left.nic.rx(cnp_to(left, becn=0), 2000)
    assert left.nic.count.bad_packets == 1
    assert (left.nic.count.rp_cnp_handled, left.nic.count.rp_cnp_ignored) == (1, 0)
    [record] = left.nic.telemetry.trace(lib.TRACE_RATE)
    assert (record.t_ns, record.arg, record.reason) == (1000, left.qp_num, lib.DCQCN_CUT)
    assert (record.wait_ns, record.bytes) == (RATE_BPS / 2, 1_000_000)
    left.nic.advance(CLOCK.lab_ns(56))
    assert rate_and_alpha(left) == pytest.approx((RATE_BPS * 0.75, 255 / 256))


@pytest.mark.parametrize("parameters", [None, PAPER])
def test_without_congestion_control_marks_are_counted_and_nothing_else(parameters: Dcqcn | None) -> None:
    wire, left, right = controlled()
    for end in (left, right):
        set_dcqcn(end, parameters)
    marked(wire)
    left.write(20 * MTU)
    wire.run(SECOND_NS // 10)
    left.nic.rx(cnp_to(left), wire.now_ns)
    assert right.nic.count.np_ecn_marked_roce_packets == 20
    assert (right.nic.count.np_cnp_sent > 0) == (parameters is not None)
    assert left.nic.count.rp_cnp_ignored == (0 if parameters else 1)
    if parameters is None:
        assert rate_and_alpha(left) == (RATE_BPS, 0.0)


def test_one_cnp_an_interval_and_one_for_what_came_late() -> None:
    """Interval 50 us of hardware, 500 ms here; every packet is marked, for about three and a half of them."""
    wire, left, right = controlled(preset("paper", min_rate_mbps=20_000))
    marked(wire)
    duration_ns = round(3.5 * INTERVAL_NS)
    left.write(64 << 10)
    wire.run(duration_ns, until=lambda: wire.now_ns > duration_ns)
    times = [at_ns for at_ns, _ in sent(wire, 1, CNP)]
    assert right.nic.count.np_ecn_marked_roce_packets == 64
    assert len(times) == right.nic.count.np_cnp_sent == left.nic.count.rp_cnp_handled == 2
    assert all(INTERVAL_NS <= later - earlier <= INTERVAL_NS + 2 * TICK_NS for earlier, later in pairwise(times))


@pytest.mark.parametrize("interval_us", [0.0, 1.0, 7.5])
def test_cnps_of_a_marked_stream_keep_their_distance(interval_us: float) -> None:
    wire, left, _ = controlled(preset("paper", cnp_interval_us=interval_us, min_rate_mbps=90_000))
    marked(wire)
    for _ in range(4):
        left.write(100 << 10)
    wire.run(SECOND_NS // 3)
    times = [at_ns for at_ns, _ in sent(wire, 1, CNP)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    packet_ns = wire_ns(MTU + 58) / 0.9
    assert min(gaps) >= CLOCK.lab_ns(interval_us) - 2 * TICK_NS
    assert sum(gaps) / len(gaps) == pytest.approx(max(CLOCK.lab_ns(interval_us) + TICK_NS, packet_ns), rel=0.01)


def test_cnps_go_ahead_of_acks_and_data() -> None:
    wire, left, right = controlled()
    right.write(MTU)
    right.write(MTU)
    left.write(1)
    [frame] = left.nic.advance(0)
    right.nic.rx(mark(frame), 0)
    order = [Ether(frame)[BTH].opcode for tick in range(40) for frame in right.nic.advance(tick * TICK_NS)]
    assert order[:2] == [CNP, ACK]
    assert wire.sent == []


@pytest.mark.parametrize("gbps", [97.0, 50.0, 33.3, 4.2])
@pytest.mark.parametrize("late_ns", [0, 400_000])
def test_pacing_is_exact_even_if_ticks_come_late(gbps: float, late_ns: int) -> None:
    wire, left, _ = controlled(fixed_rate(gbps))
    dice = random.Random(1)
    for _ in range(8):
        left.write(100 * MTU)
    while left.nic.count.tx_packets < 650:
        wire.tick(wire.now_ns + TICK_NS + dice.randrange(late_ns + 1))
    free_ns, bits, begun = 0.0, 0, []  # as the wire sees it
    for at_ns, frame in ((at_ns, frame) for at_ns, who, frame in wire.sent if who == 0):
        begun.append((max(free_ns, at_ns), bits))
        free_ns = begun[-1][0] + wire_ns(len(frame))
        bits += 8 * (len(frame) + 24)
    (start_ns, start_bits), (end_ns, end_bits) = begun[20], begun[-1]
    assert (end_bits - start_bits) * 1e9 / (end_ns - start_ns) == pytest.approx(CLOCK.lab_bps(gbps), rel=1e-3)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([50.0, 25.0, 12.5], [0.5, 0.25, 0.125]),
        ([60.0, 10.0, 10.0, 10.0], [0.6, 0.1, 0.1, 0.1]),
        ([50.0, 25.0, 12.5, None], [0.3125, 0.25, 0.125, 0.3125]),  # taking turns: what is left is halved
        ([70.0, 40.0], [0.6, 0.4]),
    ],
)
def test_queue_pairs_of_different_rates_share_the_wire(rates: list[float | None], expected: list[float]) -> None:
    """Max-min fair: each has its rate, or an equal part of what the others leave."""
    wire, left, right = pair()
    ends = [left]
    for _ in rates[1:]:
        one, other = Endpoint(left.nic, left.region), Endpoint(right.nic, right.region)
        one.connect(other)
        other.connect(one)
        ends.append(one)
    for end, gbps in zip(ends, rates, strict=True):
        set_dcqcn(end, fixed_rate(gbps) if gbps else None)
        for _ in range(40):
            end.write(100 * MTU)
    wire.run(2 * SECOND_NS)
    byte_counts = dict.fromkeys((end.peer.qp_num for end in ends if end.peer), 0)
    for _, packet in sent(wire, 0):
        byte_counts[packet[BTH].dqpn] += len(packet) + 24
    shares = [count * 8 / 2 / RATE_BPS for count in byte_counts.values()]
    assert shares == pytest.approx(expected, rel=3e-3)


def test_overcommitted_queue_pairs_take_turns_and_keep_little_credit() -> None:
    wire, left, right = controlled(fixed_rate(80))
    one, other = Endpoint(left.nic, left.region), Endpoint(right.nic, right.region)
    one.connect(other)
    other.connect(one)
    set_dcqcn(one, fixed_rate(80))
    left.write(100 * MTU)
    one.write(50 * MTU)
    wire.run(SECOND_NS // 2, until=lambda: bool(one.poll()))
    done_ns = wire.now_ns
    wire.run(SECOND_NS // 5)
    times = [at_ns for at_ns, packet in sent(wire, 0) if packet[BTH].dqpn == right.qp_num and at_ns > done_ns]
    gap_ns = wire_ns(MTU + 58) / 0.8
    assert times[-1] - times[0] >= (len(times) - 1 - 5) * gap_ns  # four packets of credit, and one ahead of the wire


def test_reset_forgets_the_rate_but_not_the_parameters() -> None:
    _, left, _ = controlled()
    left.nic.rx(cnp_to(left), 1000)
    left.nic.control(lib.RNIC_MODIFY_QP, left.qp_num, lib.IBV_QPS_RESET)
    assert rate_and_alpha(left) == (RATE_BPS, 1.0)
