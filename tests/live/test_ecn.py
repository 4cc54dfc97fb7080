"""Marks and classes on the real machine: a TCP of the hosts' own, and what a NIC sends in which class."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.live.capture import captured, dissected
from tests.live.rdma import Traffic
from topologies.dcqcn import preset
from topologies.fabric import TELEMETRY_PATH
from topologies.fabricd.telemetry import Telemetry
from topologies.network import FabricNet
from topologies.spec import FabricSpec

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
]

DEADLINE_S = 30.0
ECT0, CE = "2", "3"


def test_tcp_of_the_hosts_is_marked_and_reacts(tmp_path: Path) -> None:
    """iperf3 from two hosts to a third: ECT is marked, never dropped; the receiver echoes it, the senders reduce."""
    path = tmp_path / "tcp.pcap"
    spec = FabricSpec(leaves=1, spines=1, hosts_per_leaf=3, slowdown=1000, ecn_kmin_kb=50, ecn_kmax_kb=500,
                      ecn_pmax=0.1)  # fmt: skip
    with FabricNet(spec, lab="ecn") as net:
        net.route_statically()
        for host in net.hosts:
            host.cmd("sysctl -w net.ipv4.tcp_ecn=1")
        server, senders = net["h2"], [net["h0"], net["h1"]]
        for port in (5201, 5202):
            server.cmd(f"iperf3 -s -1 -D -p {port}; until ss -Hltn | grep -q :{port}; do sleep 0.05; done")
        telemetry = Telemetry.open(TELEMETRY_PATH)
        with captured(net, "h2", path, "tcp"):
            clients = [sender.popen(["iperf3", "-J", "-t", "3", "-p", str(port), "-c", server.IP()],
                                    stdout=subprocess.PIPE, text=True)
                       for sender, port in zip(senders, (5201, 5202), strict=True)]  # fmt: skip
            reports = [json.loads(client.communicate(timeout=DEADLINE_S)[0]) for client in clients]
        marks = telemetry.ports["queue"]["wred_ecn_marked_packets"].copy()
        drops = int(telemetry.ports["dropped"].sum())
        access = net.fabric.peer(net.fabric.nic("h2"))

    fields = ("ip.src", "ip.dsfield.ecn", "tcp.flags.ece", "tcp.flags.cwr", "tcp.len")
    packets = dissected(path, fields, "tcp.flags.syn == 0")
    data = [p for p in packets if p["ip.src"] != server.IP() and int(p["tcp.len"]) > 1000]
    marked = [p for p in packets if p["ip.src"] != server.IP() and p["ip.dsfield.ecn"] == CE]
    assert {p["ip.dsfield.ecn"] for p in data} == {ECT0, CE}
    assert len(marked) == marks[access.index, 0] > 0  # what the switch counts is what arrives
    assert marks.sum() == marks[access.index, 0]
    assert any(p["tcp.flags.ece"] in ("1", "True") for p in packets if p["ip.src"] == server.IP())
    for sender in senders:
        assert any(p["tcp.flags.cwr"] in ("1", "True") for p in data if p["ip.src"] == sender.IP())
    assert drops == 0
    received = [report["end"]["sum_received"]["bits_per_second"] for report in reports]
    assert 70e6 < sum(received) < 100e6


def test_data_acknowledgements_and_notifications_have_classes_of_their_own() -> None:
    """A queue pair's own DSCP, ACKs in another class, CNPs in the strict one: counted where hosts send them."""
    spec = FabricSpec(leaves=1, spines=1, hosts_per_leaf=2, slowdown=1000, dscp_classes={26: 3, 34: 4, 10: 1, 48: 6},
                      ack_dscp=10, flow_control="pfc", lossless_classes=(3, 4), ecn_kmin_kb=0,
                      ecn_kmax_kb=8)  # fmt: skip
    packets = 128
    with FabricNet(spec, lab="classes") as net:
        net.route_statically()
        with Traffic(net.fabric, preset("paper")) as traffic:
            for dscp in (0, 34):  # 0: the NIC's own, 26
                traffic.connect("h0", "h1", packets * 4096, dscp=dscp)
            traffic.start()
            traffic.finish(2, DEADLINE_S)
            assert traffic.drops() == {}
            assert traffic.delivered()
            sent = traffic.telemetry.ports["queue"]["sent_frames"]
            sender, receiver = (sent[net.fabric.nic(host).index] for host in ("h0", "h1"))
            acks, cnps = (int(traffic.telemetry.nics[name][1]) for name in ("acks_sent", "np_cnp_sent"))
            handled = int(traffic.telemetry.nics["rp_cnp_handled"][0])
    assert list(sender) == [0, 0, 0, packets, packets, 0, 0, 0]
    assert list(receiver) == [0, acks, 0, 0, 0, 0, cnps, 0]
    assert handled == cnps
    assert acks > 0
