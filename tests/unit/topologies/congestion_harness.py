"""Soft NICs around one switch in virtual time: senders, a receiver, and the marking queue in front of it.

Hardware units outside, the laboratory's clock inside. The switch does what a test of congestion control needs: one
egress queue of unlimited depth to the receiver, marked by its instantaneous length as packets come in, and CNPs and
ACKs on an idle way back.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from scapy.contrib.roce import BTH, cnp
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from tests.unit.topologies.rnic_harness import Endpoint, HarnessNic, Region, TelemetryBlock, Wire, pair, wire_ns
from topologies.dcqcn import Dcqcn, preset
from topologies.fabricd._core import ffi, lib
from topologies.units import LabClock

CLOCK = LabClock(10_000.0)  # 100 Gb/s are the 10 Mb/s of rnic_harness
PAPER = preset("paper")
MTU = 4096
MESSAGE_BYTES = 64 * MTU
MESSAGES = 16  # outstanding ones of each sender
POLL_TICKS = 64  # the time of about 16 packets


def set_dcqcn(end: Endpoint, parameters: Dcqcn | None) -> None:
    """Switches congestion control on or off."""
    names = ("max_rate", "min_rate", "ai_rate", "hai_rate", "first_rate", "g", "initial_alpha", "min_dec_fac", "gd",
             "alpha_period_ns", "reduce_period_ns", "time_reset_ns", "byte_reset", "threshold", "flags",
             "cnp_interval_ns")  # fmt: skip
    lab = parameters.to_lab(CLOCK) if parameters else {}
    end.nic.control(lib.RNIC_SET_DCQCN, end.qp_num, int(bool(parameters)), *(lab.get(name, 0) for name in names))


def rate_and_alpha(end: Endpoint) -> tuple[float, float]:
    """Current rate in lab bits/s, and alpha."""
    result = end.nic.control(lib.RNIC_QUERY_QP, end.qp_num)
    return result[4] / lib.CONTROL_RATE_UNITS, result[6] / lib.CONTROL_FRACTION_UNITS


def mark(frame: bytes) -> bytes:
    """The frame with congestion experienced, and its IP checksum put right (RFC 1624)."""
    marked = bytearray(frame)
    marked[15] |= 3
    total = (~int.from_bytes(frame[24:26], "big") & 0xFFFF) + (marked[15] - frame[15])
    total = (total & 0xFFFF) + (total >> 16)
    marked[24:26] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(marked)


def controlled(parameters: Dcqcn = PAPER, **attributes: int) -> tuple[Wire, Endpoint, Endpoint]:
    """Two NICs back to back and one connection, both ends under congestion control."""
    wire, left, right = pair(**attributes)
    for end in (left, right):
        set_dcqcn(end, parameters)
    return wire, left, right


def marked(wire: Wire) -> None:
    """From now on the wire marks what the first NIC sends."""
    receive = wire.nics[1].rx
    wire.nics[1].rx = lambda frame, now_ns=0: receive(mark(frame), now_ns)  # type: ignore[method-assign]


def sent(wire: Wire, sender: int, opcode: int | None = None) -> list[tuple[int, Any]]:
    """(time, packet) of all that the NIC ``sender`` emitted, or of one opcode."""
    packets = [(at_ns, Ether(frame)) for at_ns, who, frame in wire.sent if who == sender]
    return [(at_ns, packet) for at_ns, packet in packets if opcode in (None, packet[BTH].opcode)]


def cnp_to(end: Endpoint, **bth: int) -> bytes:
    """A CNP from the peer, built by scapy."""
    packet = cnp(end.qp_num)
    for name, value in bth.items():
        setattr(packet, name, value)
    mac = ":".join(f"{byte:02x}" for byte in end.nic.mac)
    return bytes(
        Ether(dst=mac, src="02:00:00:00:00:99") / IP(src="10.0.0.2", dst=end.nic.host.ip, tos=48 << 2, flags="DF")
        / UDP(sport=50_000, dport=4791, chksum=0) / packet
    )  # fmt: skip


@dataclass(frozen=True)
class Marking:
    """Probability 0 below ``kmin_bytes``, ``pmax`` at ``kmax_bytes`` with a line between, 1 above."""

    kmin_bytes: float
    kmax_bytes: float
    pmax: float

    def probability(self, depth_bytes: float) -> float:
        if depth_bytes <= self.kmin_bytes:
            return 0.0
        if depth_bytes > self.kmax_bytes:
            return 1.0
        return self.pmax * (depth_bytes - self.kmin_bytes) / (self.kmax_bytes - self.kmin_bytes)


class Star:
    """``senders`` NICs that write to one, all links of ``gbps`` and ``delay_us``; all senders have work without end."""

    def __init__(
        self, senders: int, parameters: Dcqcn | None, marking: Marking, *, gbps: float = 100.0, delay_us: float = 1.0,
        seed: int = 1,
    ) -> None:  # fmt: skip
        self.rate_bps = CLOCK.lab_bps(gbps)
        self.delay_ns = CLOCK.lab_ns(delay_us)
        self.marking = marking
        self.dice = random.Random(seed)
        telemetry = TelemetryBlock(senders + 1)
        self.nics = [
            HarnessNic(index, telemetry, mtu=MTU, rate_bps=self.rate_bps) for index in range(senders + 1)
        ]
        self.receiver = senders
        target = Region(self.nics[senders], MESSAGE_BYTES)
        self.ends: list[Endpoint] = []
        for nic in self.nics[:senders]:
            one, other = Endpoint(nic, Region(nic, MESSAGE_BYTES)), Endpoint(self.nics[senders], target)
            for end, peer in ((one, other), (other, one)):
                end.attributes["timeout_ns"] = 0
                end.connect(peer)
                set_dcqcn(end, parameters)
            self.ends.append(one)
        self.started = [False] * senders
        self.now_ns = 0
        self._ticks = 0
        self.depths: list[tuple[int, float]] = []  # (time, bytes) as each packet found it
        self.arrivals: list[list[tuple[int, int]]] = [[] for _ in range(senders)]  # (time, payload so far)
        self._free_ns = [0.0] * (senders + 1)  # of each NIC's wire
        self._egress_free_ns = 0.0
        self._flying: list[tuple[int, int, int, bytes]] = []
        self._order = itertools.count()
        self._emit = ffi.callback("void(void *, uint32_t, const uint8_t *, uint32_t)", self._emitted)

    def start(self, sender: int) -> None:
        """From now on it has work."""
        self.started[sender] = True
        for _ in range(MESSAGES):
            self.ends[sender].write(MESSAGE_BYTES)

    def run(self, us: float, tick_ns: int | None = None) -> None:
        """``us`` of hardware time."""
        end_ns = self.now_ns + CLOCK.lab_ns(us)
        tick_ns = tick_ns or round(wire_ns(MTU + 58, self.rate_bps) / 4)
        while self.now_ns < end_ns:
            self.now_ns += tick_ns
            while self._flying and self._flying[0][0] <= self.now_ns:
                at_ns, _, to, frame = heapq.heappop(self._flying)
                self.nics[to].rx(frame, at_ns)
            for nic in self.nics:
                lib.rnic_advance(nic.pointer, self.now_ns, self._emit, ffi.NULL)
            self._ticks += 1
            if self._ticks % POLL_TICKS == 0:
                self._post_more()

    def _post_more(self) -> None:
        for end, started in zip(self.ends, self.started, strict=True):
            for completion in end.poll() if started else []:
                assert completion.status == 0
                end.write(MESSAGE_BYTES)

    def shares(self, since_ns: int) -> Any:
        """Each sender's bits/s of payload since then, at the receiver."""
        spans = []
        for arrivals in self.arrivals:
            recent = [entry for entry in arrivals if entry[0] >= since_ns]
            spans.append((recent[-1][1] - recent[0][1]) * 8e9 / (recent[-1][0] - recent[0][0]) if recent else 0.0)
        return np.array(spans)

    def _emitted(self, _ctx: Any, nic: int, data: Any, length: int) -> None:
        frame = ffi.buffer(data, length)[:]
        self._free_ns[nic] = max(self._free_ns[nic], self.now_ns) + wire_ns(length, self.rate_bps)
        at_ns = self._free_ns[nic] + self.delay_ns
        if nic != self.receiver:
            depth = max(0.0, self._egress_free_ns - at_ns) * self.rate_bps / 8e9
            if self.dice.random() < self.marking.probability(depth):
                frame = mark(frame)
            self.depths.append((round(at_ns), depth))
            self._egress_free_ns = max(self._egress_free_ns, at_ns) + wire_ns(length, self.rate_bps)
            at_ns = self._egress_free_ns
            so_far = self.arrivals[nic][-1][1] if self.arrivals[nic] else 0
            self.arrivals[nic].append((round(at_ns), so_far + length - 58))
            to = self.receiver
        else:
            to = frame[33] - 1  # the last byte of 10.0.0.n
        at_ns += self.delay_ns
        heapq.heappush(self._flying, (round(at_ns), next(self._order), to, self.nics[to].mac + frame[6:]))


def jain(rates: Any) -> float:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has all."""
    return float(rates.sum() ** 2 / (len(rates) * (rates**2).sum()))
