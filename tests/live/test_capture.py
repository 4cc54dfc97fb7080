"""What tcpdump sees of RDMA on a host's interface, judged by tshark and by scapy."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scapy.contrib.roce import AETH, BTH
from scapy.layers.inet import IP, UDP
from scapy.packet import Packet
from scapy.utils import rdpcap

from topologies.fabricd.verbs import Context, WcStatus
from topologies.network import FabricNet
from topologies.spec import FabricSpec

pytestmark = pytest.mark.live

SPEC = FabricSpec(leaves=2, spines=2, hosts_per_leaf=2, slowdown=1000)
MESSAGE_BYTES = 100_000  # 25 packets of 4,096 bytes, the last one short
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture, on the sender's interface, of one WRITE and one WRITE WITH IMMEDIATE from h0 to h3."""
    path = tmp_path_factory.mktemp("capture") / "roce.pcap"
    with FabricNet(SPEC, lab="capture") as net:
        net.route_statically()
        dump = net["h0"].popen([shutil.which("tcpdump"), "-i", "h0-eth0", "--immediate-mode", "-U", "-w", str(path)],
                               stderr=subprocess.PIPE, text=True)
        assert "listening on" in dump.stderr.readline()
        transfer()
        wait_until(lambda: path.stat().st_size > 2 * MESSAGE_BYTES)
        # The NIC's sink, without which the kernel would answer every packet with "port unreachable".
        assert ":4791" in net["h3"].cmd("ss -Hlun")
        dump.terminate()
        dump.wait(DEADLINE_S)
    return path


def transfer() -> None:
    """Two messages, checked at the receiver."""
    with Context("h0") as here, Context("h3") as there:
        ends = []
        for context in (here, there):
            pd, cq = context.alloc_pd(), context.create_cq()
            ends.append((pd.reg_mr(2 * MESSAGE_BYTES), cq, pd.create_qp(cq, cq, timeout_ns=10**9, src_port=50_001)))
        (source, sent, one), (target, received, other) = ends
        one.connect(there.ip, other.qp_num, other.psn)
        other.connect(here.ip, one.qp_num, one.psn)
        other.post_recv(1)
        source.array(np.uint8)[:] = np.arange(2 * MESSAGE_BYTES) % 251
        one.post_write(source, 0, MESSAGE_BYTES, target.addr, target.rkey)
        one.post_write(source, MESSAGE_BYTES, MESSAGE_BYTES, target.addr + MESSAGE_BYTES, target.rkey, imm=7)
        completions = []
        while len(completions) < 2:
            new = sent.wait(DEADLINE_S)
            assert new, "no completion in time"
            completions += new
        assert {completion.status for completion in completions} == {WcStatus.SUCCESS}
        assert [completion.imm_data for completion in received.wait(DEADLINE_S)] == [7]
        assert (target.array(np.uint8) == source.array(np.uint8)).all()


def wait_until(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Polls until ``condition()`` holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def roce(path: Path) -> list[Packet]:
    """The capture's RoCE packets, as scapy reads them."""
    return [packet for packet in rdpcap(str(path)) if BTH in packet]


def test_tshark_dissects_every_packet_and_finds_no_fault(capture: Path) -> None:
    fields = ["_ws.malformed", "_ws.expert.severity", "ip.checksum.status", "infiniband.bth.opcode"]
    command = ["tshark", "-r", str(capture), "-o", "ip.check_checksum:TRUE", "-Y", "udp.dstport == 4791"]
    command += ["-T", "fields", *(word for field in fields for word in ("-e", field))]
    rows = [line.split("\t") for line in subprocess.check_output(command, text=True).splitlines()]
    packets = roce(capture)
    assert len(rows) == len(packets)
    for malformed, _severity, checksum, opcode in rows:
        assert malformed == ""
        assert checksum == "1"  # good
        assert opcode != ""
    errors = ["tshark", "-r", str(capture), "-Y", "_ws.malformed || _ws.expert.severity == error"]
    assert subprocess.check_output(errors, text=True) == ""


def test_scapy_computes_the_same_icrc_for_every_packet(capture: Path) -> None:
    packets = roce(capture)
    assert len(packets) >= 2 * 25 + 2
    for packet in packets:
        assert packet.original[-4:] == packet[BTH].compute_icrc(b"")


def test_the_messages_are_segmented_and_acknowledged_as_reliable_connections_do(capture: Path) -> None:
    packets = roce(capture)
    data = [packet for packet in packets if packet[BTH].opcode in range(0x06, 0x0C)]
    assert Counter(packet[BTH].opcode for packet in data) == {0x06: 2, 0x07: 46, 0x08: 1, 0x09: 1}
    psns = [packet[BTH].psn for packet in data]
    assert [(psn - psns[0]) & 0xFFFFFF for psn in psns] == list(range(50))
    assert {packet[IP].tos for packet in data} == {26 << 2 | 2}  # DSCP 26, ECT(0)
    assert {packet[UDP].sport for packet in data} == {50_001}
    acks = [packet for packet in packets if AETH in packet]
    assert acks[-1][BTH].psn == psns[-1]
    assert all(packet[AETH].syndrome <= 0x1F for packet in acks)
