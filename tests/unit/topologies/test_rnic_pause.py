"""Traffic classes of the RNIC: what a pause of its port silences, and the DSCPs that decide on it."""

from __future__ import annotations

from typing import Any

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP

from tests.unit.topologies.congestion_harness import PAPER, cnp_to, controlled, marked, sent, set_dcqcn
from tests.unit.topologies.rnic_harness import MTU, TICK_NS, Endpoint, HarnessNic, Region, TelemetryBlock, Wire
from topologies.fabricd._core import ffi, lib

SECOND_NS = 10**9
CNP, ACK, WRITE_MIDDLE = 0x81, 0x11, 7
ROCE, NOTIFY = 1 << 3, 1 << 6


def test_a_paused_nic_is_silent_and_goes_on() -> None:
    wire, left, right = controlled()
    left.write(100 * MTU)
    right.write(100 * MTU)
    wire.run(SECOND_NS // 50)
    for nic in wire.nics:
        lib.rnic_set_paused(nic.pointer, ROCE)
    before = len(wire.sent)
    wire.run(SECOND_NS // 10)
    assert len(wire.sent) == before
    left.nic.rx(cnp_to(left), wire.now_ns)
    lib.rnic_set_paused(left.nic.pointer, 0)
    wire.tick(wire.now_ns + TICK_NS)
    assert len([1 for _, who, _ in wire.sent[before:] if who == 0]) <= 2  # no burst to make up for the pause
    lib.rnic_set_paused(right.nic.pointer, NOTIFY | 1)
    wire.run(SECOND_NS)
    assert [completion.status for end in (left, right) for completion in end.poll()] == [0, 0]
    assert left.nic.count.retransmitted_packets == right.nic.count.retransmitted_packets == 0


@pytest.mark.parametrize(("paused", "silent"), [(ROCE, {ACK, WRITE_MIDDLE}), (NOTIFY, {CNP}), (ROCE | NOTIFY, None)])
def test_classes_are_paused_one_by_one(paused: int, silent: set[int] | None) -> None:
    wire, left, right = controlled()
    marked(wire)
    lib.rnic_set_paused(right.nic.pointer, paused)
    right.write(4 * MTU)
    left.write(4 * MTU)
    wire.run(SECOND_NS // 20)
    seen = {packet[BTH].opcode for _, packet in sent(wire, 1)}
    if silent is None:
        assert seen == set()
        return
    assert not seen & silent
    assert seen & {ACK, WRITE_MIDDLE, CNP}


def test_classes_follow_the_dscps_that_are_set() -> None:
    """Data and ACKs apart; a queue pair with a DSCP of its own; a class for each."""
    telemetry = TelemetryBlock()
    table = ffi.new("uint8_t[64]", [0] * 64)
    table[10], table[20], table[30], table[40] = 1, 2, 4, 5
    settings: dict[str, Any] = {"dscp": 10, "ack_dscp": 20, "cnp_dscp": 30, "dscp_class": table}
    wire = Wire([HarnessNic(index, telemetry, **settings) for index in range(2)])
    ends = [[Endpoint(nic, Region(nic, 1 << 16), dscp=dscp) for dscp in (0, 40)] for nic in wire.nics]
    for left, right in zip(*ends, strict=True):
        for end, peer in ((left, right), (right, left)):
            end.connect(peer)
            set_dcqcn(end, PAPER)
    marked(wire)
    for left in ends[0]:
        left.write(2 * MTU)
    wire.run(SECOND_NS // 20)
    assert sorted(packet[IP].tos for _, packet in sent(wire, 0)) == [10 << 2 | 2] * 2 + [40 << 2 | 2] * 2
    assert {packet[IP].tos >> 2 for _, packet in sent(wire, 1, ACK)} == {20}
    assert {packet[IP].tos for _, packet in sent(wire, 1, CNP)} == {30 << 2}
    before = len(sent(wire, 0))
    lib.rnic_set_paused(wire.nics[0].pointer, 1 << 1)
    for left in ends[0]:
        left.write(2 * MTU)
    wire.run(SECOND_NS // 10)
    assert {packet[IP].tos >> 2 for _, packet in sent(wire, 0)[before:]} == {40}
