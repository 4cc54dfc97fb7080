"""The RNIC's frames, judged by scapy's RoCE layers, and scapy's frames, judged by the RNIC."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib.roce import AETH, BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from tests.unit.topologies.rnic_harness import ALL_ACCESS, MTU, Endpoint, HarnessNic, Region, fill, pair
from topologies.fabricd._core import lib

WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM, ACK = 6, 7, 8, 9, 10, 11, 0x11
CARRIED = st.sampled_from(range(58 * 8))


def frames_of(endpoint: Endpoint, length: int, imm: int | None = None) -> list[bytes]:
    """What a write of ``length`` bytes looks like on the wire; the peer receives nothing of it."""
    endpoint.write(length, imm=imm)
    frames: list[bytes] = []
    for tick in range(2000):
        frames += endpoint.nic.advance(tick * 50_000)
    return frames


def reth(addr: int, rkey: int, length: int) -> bytes:
    return struct.pack("!QII", addr, rkey, length)


def frame_to(
    endpoint: Endpoint, opcode: int, behind: bytes, *, psn: int | None = None, ackreq: int = 1, pad: int = 0,
    src: str = "10.0.0.1",
) -> bytes:  # fmt: skip
    """A frame of the endpoint's peer, built by scapy."""
    assert endpoint.peer is not None
    mac = ":".join(f"{byte:02x}" for byte in endpoint.nic.mac)
    return bytes(
        Ether(src="02:00:00:00:00:99", dst=mac)
        / IP(src=src, dst=endpoint.nic.host.ip, tos=26 << 2 | 2, flags="DF")
        / UDP(sport=50_000, dport=4791, chksum=0)
        / BTH(
            opcode=opcode, dqpn=endpoint.qp_num, ackreq=ackreq, padcount=pad,
            psn=endpoint.peer.psn if psn is None else psn,
        )
        / Raw(behind)
    )  # fmt: skip


def replies(nic: HarnessNic, now_ns: int = 10**9) -> list[Packet]:
    return [Ether(frame) for frame in nic.advance(now_ns)]


def assert_sound(frame: bytes) -> Packet:
    """Header checksum, lengths and ICRC are what scapy computes for the same packet."""
    packet = Ether(frame)
    rebuilt = packet.copy()
    for layer, name in ((IP, "chksum"), (IP, "len"), (UDP, "len"), (BTH, "icrc")):
        setattr(rebuilt[layer], name, None)
    assert bytes(rebuilt) == frame
    return packet


def test_a_single_packet_write() -> None:
    _, left, right = pair(src_port=50_123, psn=0xABCDE)
    fill(left)
    [frame] = frames_of(left, 100)
    packet = assert_sound(frame)
    assert packet.src == "02:53:00:00:00:00"
    assert packet.dst == "02:53:00:00:00:01"
    ip = packet[IP]
    assert (ip.src, ip.dst, ip.tos, ip.flags, ip.ihl, ip.proto) == ("10.0.0.1", "10.0.0.2", 26 << 2 | 2, "DF", 5, 17)
    assert (packet[UDP].sport, packet[UDP].dport, packet[UDP].chksum) == (50_123, 4791, 0)
    bth = packet[BTH]
    assert (bth.opcode, bth.version, bth.pkey, bth.padcount) == (WRITE_ONLY, 0, 0xFFFF, 0)
    assert (bth.dqpn, bth.psn, bth.ackreq, bth.becn) == (right.qp_num, 0xABCDE, 1, 0)
    assert bytes(bth.payload) == reth(right.region.addr, right.region.rkey, 100) + left.region.array[:100].tobytes()


def test_a_long_write_is_cut_by_the_mtu() -> None:
    _, left, _ = pair(psn=0xFFFFFE)
    fill(left)
    packets = [assert_sound(frame) for frame in frames_of(left, 2 * MTU + 10, imm=0x01020304)]
    assert [p[BTH].opcode for p in packets] == [WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST_IMM]
    assert [p[BTH].psn for p in packets] == [0xFFFFFE, 0xFFFFFF, 0]  # 24 bits
    assert [p[BTH].ackreq for p in packets] == [0, 0, 1]
    assert [p[BTH].padcount for p in packets] == [0, 0, 2]
    bodies = [bytes(p[BTH].payload) for p in packets]
    assert bodies[2][:4] == b"\x01\x02\x03\x04"
    assert bodies[2][-2:] == b"\0\0"
    assert bodies[0][16:] + bodies[1] + bodies[2][4:-2] == left.region.array[: 2 * MTU + 10].tobytes()


@pytest.mark.parametrize(
    ("length", "imm", "opcodes"),
    [
        (0, None, [WRITE_ONLY]),
        (MTU, None, [WRITE_ONLY]),
        (MTU + 1, None, [WRITE_FIRST, WRITE_LAST]),
        (2 * MTU, None, [WRITE_FIRST, WRITE_LAST]),
        (1, 5, [WRITE_ONLY_IMM]),
    ],
)
def test_opcodes(length: int, imm: int | None, opcodes: list[int]) -> None:
    _, left, _ = pair()
    assert [assert_sound(frame)[BTH].opcode for frame in frames_of(left, length, imm)] == opcodes


def test_every_length_has_a_valid_icrc() -> None:
    _, left, _ = pair()
    fill(left)
    for number, length in enumerate([*range(33), *range(90, 107), 500, 777, MTU]):
        left.write(length)
        [frame] = left.nic.advance(number * 10**7)
        assert assert_sound(frame)[BTH].padcount == -length % 4


def test_ack_is_requested_on_every_nth_packet() -> None:
    _, left, _ = pair(ack_every=3)
    assert [Ether(f)[BTH].ackreq for f in frames_of(left, 8 * MTU)] == [0, 0, 1, 0, 0, 1, 0, 1]


def test_scapys_write_is_accepted_and_acknowledged() -> None:
    _, _, right = pair()
    data = bytes(range(1, 8))
    behind = reth(right.region.addr + 16, right.region.rkey, len(data)) + data + b"\0"
    right.nic.rx(frame_to(right, WRITE_ONLY, behind, pad=1))
    assert right.region.array[16:23].tobytes() == data
    assert not right.region.array[23:].any()
    [ack] = replies(right.nic)
    assert_sound(bytes(ack))
    assert right.peer is not None
    assert (ack[BTH].opcode, ack[BTH].dqpn, ack[BTH].psn) == (ACK, right.peer.qp_num, right.peer.psn)
    assert (ack[AETH].syndrome, ack[AETH].msn) == (0x1F, 1)
    assert len(bytes(ack)) == 62


def test_what_routers_change_is_not_covered() -> None:
    _, _, right = pair()
    packet = Ether(frame_to(right, WRITE_ONLY, reth(right.region.addr, right.region.rkey, 4) + b"abcd"))
    packet[IP].ttl = 3
    packet[IP].tos |= 3  # congestion experienced
    packet[IP].chksum = None
    packet[BTH].becn = 1
    icrc = bytes(packet)[-4:]
    right.nic.rx(bytes(packet)[:-4] + icrc + bytes(6))  # and Ethernet may pad behind
    assert right.region.array[:4].tobytes() == b"abcd"


@given(CARRIED)
def test_a_flipped_bit_is_noticed(bit: int) -> None:
    _, _, right = pair()
    frame = bytearray(frame_to(right, WRITE_ONLY, reth(right.region.addr, right.region.rkey, 4) + b"abcd"))
    frame[14 + bit // 8] ^= 1 << bit % 8
    right.nic.rx(bytes(frame))
    harmless = {26, 27, 32}  # the UDP checksum, which RoCEv2 leaves to the ICRC; FECN, BECN and reserved bits
    assert bool(right.region.array.any()) == (bit // 8 in harmless)


@given(st.binary(max_size=200), st.integers(0, 255), st.integers(0, 3))
def test_no_body_of_a_packet_touches_other_memory(body: bytes, opcode: int, pad: int) -> None:
    _, _, right = pair()
    guard = Region(right.nic, 4096, ALL_ACCESS)
    right.nic.rx(frame_to(right, opcode, reth(right.region.addr, right.region.rkey, 64) + body, pad=pad))
    right.nic.rx(frame_to(right, opcode, body, pad=pad))
    assert not guard.array.any()
    assert not right.region.array[64:].any()
    replies(right.nic)


@given(st.binary(max_size=120), st.booleans())
def test_noise_is_ignored(noise: bytes, plausible: bool) -> None:
    _, _, right = pair()
    if plausible:
        noise = frame_to(right, WRITE_ONLY, b"")[: 14 + 28] + noise
    right.nic.rx(noise)
    assert not right.nic.arena.any()
    assert replies(right.nic) == []


@pytest.mark.parametrize(
    ("change", "counter"),
    [
        ({"dst": "10.0.0.9"}, None),
        ({"frag": 5}, "bad_packets"),
        ({"flags": "MF"}, "bad_packets"),
        ({"src": "10.0.0.77"}, "no_qp"),
    ],
)
def test_foreign_packets_are_dropped(change: dict[str, object], counter: str | None) -> None:
    _, _, right = pair()
    packet = Ether(frame_to(right, WRITE_ONLY, reth(right.region.addr, right.region.rkey, 4) + b"abcd"))
    for name, value in change.items():
        setattr(packet[IP], name, value)
    packet[IP].chksum = packet[BTH].icrc = None
    right.nic.rx(bytes(packet))
    assert not np.any(right.region.array)
    assert replies(right.nic) == []
    assert right.nic.count.rx_packets == (0 if counter is None else 1)
    if counter:
        assert getattr(right.nic.count, counter) == 1


@pytest.mark.parametrize(
    "sequence",
    [
        [(WRITE_MIDDLE, None, MTU)],
        [(WRITE_LAST, None, 4)],
        [(WRITE_ONLY, 8, 4)],
        [(WRITE_ONLY, 4, 8)],
        [(WRITE_ONLY, 2 * MTU, 2 * MTU)],
        [(WRITE_FIRST, 2 * MTU, 4)],
        [(WRITE_FIRST, MTU, MTU)],
        [(WRITE_FIRST, 2**32 - 4, MTU)],
        [(WRITE_FIRST, 2 * MTU, MTU), (WRITE_FIRST, 2 * MTU, MTU)],
        [(WRITE_FIRST, 2 * MTU, MTU), (WRITE_ONLY, 4, 4)],
        [(WRITE_FIRST, 2 * MTU, MTU), (WRITE_MIDDLE, None, MTU)],
        [(WRITE_FIRST, 3 * MTU, MTU), (WRITE_MIDDLE, None, 4)],
        [(WRITE_FIRST, 2 * MTU, MTU), (WRITE_LAST, None, 4)],
        [(WRITE_FIRST, MTU + 4, MTU), (WRITE_LAST, None, 8)],
    ],
)
def test_a_message_that_does_not_add_up_is_refused(sequence: list[tuple[int, int | None, int]]) -> None:
    """Each entry: opcode, the length that its RETH states, the length of its payload. The last one is wrong."""
    _, left, right = pair()
    for number, (opcode, stated, payload) in enumerate(sequence):
        before = right.region.array.tobytes()
        head = b"" if stated is None else reth(right.region.addr, right.region.rkey, stated)
        right.nic.rx(frame_to(right, opcode, head + b"x" * payload, psn=left.psn + number, ackreq=0))
    assert right.region.array.tobytes() == before
    [nak] = replies(right.nic)
    assert (nak[AETH].syndrome, nak[BTH].psn) == (0x61, left.psn + len(sequence) - 1)
    assert right.state == lib.IBV_QPS_ERR


@pytest.mark.parametrize(
    ("syndrome", "status"), [(0x61, "REM_INV_REQ_ERR"), (0x62, "REM_ACCESS_ERR"), (0x63, "REM_OP_ERR")]
)
def test_what_a_nak_means_to_the_requester(syndrome: int, status: str) -> None:
    _, left, _ = pair()
    frames_of(left, 2 * MTU)
    left.nic.rx(frame_to(left, ACK, struct.pack("!I", syndrome << 24), psn=left.psn + 1, src="10.0.0.2"))
    assert [completion.status for completion in left.poll()] == [getattr(lib, f"IBV_WC_{status}")]


@pytest.mark.parametrize("syndrome", [0x40, 0x64, 0x80, 0xFF])
def test_answers_that_mean_nothing_change_nothing(syndrome: int) -> None:
    _, left, _ = pair()
    frames_of(left, 2 * MTU)
    for psn in (left.psn - 1, left.psn, left.psn + 1, left.psn + 2):
        left.nic.rx(frame_to(left, ACK, struct.pack("!I", syndrome << 24), psn=psn, src="10.0.0.2"))
    left.nic.rx(frame_to(left, ACK, struct.pack("!I", 0x1F << 24), psn=left.psn + 2, src="10.0.0.2"))  # never sent
    assert left.poll() == []
    assert left.state == lib.IBV_QPS_RTS
    assert left.nic.count.bad_packets == 4


def test_a_destroyed_queue_pair_receives_nothing() -> None:
    _, _, right = pair()
    frame = frame_to(right, WRITE_ONLY, reth(right.region.addr, right.region.rkey, 4) + b"abcd")
    right.nic.control(lib.RNIC_DESTROY_QP, right.qp_num)
    again = Endpoint(right.nic, right.region)
    assert again.slot == right.slot
    assert again.qp_num != right.qp_num
    right.nic.rx(frame)
    assert right.nic.count.no_qp == 1
    assert not right.region.array.any()
