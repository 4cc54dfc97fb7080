"""The controller with real frames: switch-overs lose none, and DLB, fed by telemetry, separates elephants."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from controllers import process
from controllers.process import ControllerProcess
from topologies.fabric import TELEMETRY_PATH
from topologies.fabricd.telemetry import Telemetry
from topologies.network import FabricNet
from topologies.spec import FabricSpec

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
]

# 10 Mb/s links: slow enough for an unloaded test machine to carry with ease.
SPEC = FabricSpec.from_dict({"shape": "leaf_spine", "leaves": 2, "spines": 4, "hosts_per_leaf": 4, "slowdown": 10_000})

SENDER = """
import socket, sys, time
target, source_port, count, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", source_port))
due = time.monotonic()
for _ in range(count):
    s.sendto(b"x" * 1400, (target, 7001))
    due += 1 / rate
    time.sleep(max(0, due - time.monotonic()))
"""
RECEIVER = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 7001))
print("listening", flush=True)
count = 0
while s.recv(2000) != b"end":
    count += 1
print(count, flush=True)
"""
END = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'end', ('127.0.0.1', 7001))"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FabricNet, ControllerProcess, Telemetry]]:
    directory = tmp_path_factory.mktemp("controller")
    net = FabricNet(SPEC, lab="controller traffic test")
    net.build()
    try:
        with process.start(policy="ecmp", socket_path=directory / "c.sock", log_path=directory / "c.log",
                           wait=False) as controller:
            net.controller_port = controller.port
            net.start()
            controller.wait_ready()
            yield net, controller, Telemetry.open(TELEMETRY_PATH)
    finally:
        net.stop()


class Streams:
    """UDP from every host of leaf0 to its counterpart on leaf1."""

    def __init__(self, net: FabricNet) -> None:
        self.net = net
        self.senders: list[Any] = []
        self.receivers = [net[f"h{n + 4}"].popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True)
                          for n in range(4)]
        for receiver in self.receivers:
            assert receiver.stdout.readline() == "listening\n"

    def send(self, n: int, source_port: int, packets: int, packets_per_s: float) -> Any:
        """Let h<n> send to its counterpart."""
        target = self.net[f"h{n + 4}"].IP()
        return self.net[f"h{n}"].popen(
            [sys.executable, "-c", SENDER, target, str(source_port), str(packets), str(packets_per_s)])

    def start(self, source_port: int, packets: int, packets_per_s: float) -> None:
        """Let all four send."""
        self.senders = [self.send(n, source_port, packets, packets_per_s) for n in range(4)]

    def collide(self, source_port: int) -> None:
        """Give the flows of `source_port` slots that begin on the same uplink, four apart; 4 packets from each host."""
        for n in range(4):
            for port in (source_port, 7901, 7902, 7903):
                self.send(n, port, 1, 1000).wait()

    def sending(self) -> bool:
        return any(sender.poll() is None for sender in self.senders)

    def received(self, telemetry: Telemetry) -> list[int]:
        """Datagrams that each receiver has got, once nothing is under way any more."""
        deadline = time.monotonic() + 20
        while int(telemetry.ports["queue"]["depth_frames"].sum()) or in_switches(telemetry):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        counts = []
        for n, receiver in enumerate(self.receivers):
            self.net[f"h{n + 4}"].popen([sys.executable, "-c", END]).wait()
            counts.append(int(receiver.stdout.readline()))
            receiver.wait()
        return counts


def in_switches(telemetry: Telemetry) -> int:
    """Frames that went into a switch and have not come out."""
    return int(telemetry.switches["in_frames"].sum() - telemetry.switches["out_frames"].sum())


def test_switching_policies_under_traffic_loses_nothing(live: tuple[FabricNet, ControllerProcess, Telemetry]) -> None:
    net, controller, telemetry = live
    streams = Streams(net)
    streams.start(7000, packets=3000, packets_per_s=300)
    took_ms: dict[str, list[float]] = {}
    switches = 0
    while streams.sending():
        policy = ("spray", "dlb", "group", "flowlet", "ecmp")[switches % 5]
        begun = time.monotonic()
        controller.call("policy", name=policy, seed=switches)
        took_ms.setdefault(policy, []).append((time.monotonic() - begun) * 1e3)
        switches += 1
        time.sleep(0.1)
    assert switches > 20
    assert streams.received(telemetry) == [3000] * 4
    assert in_switches(telemetry) == 0
    print({policy: f"{np.median(times):.1f} ms" for policy, times in took_ms.items()}, f"{switches} switch-overs")


def elephant_moves(controller: ControllerProcess, since: int) -> list[dict[str, Any]]:
    """Moves of entries that carried something in the period before."""
    events = controller.call("events", since=since)["events"]
    return [event for event in events if event["kind"] == "move" and event["bytes"] > 0]


def test_dlb_takes_colliding_elephants_apart(live: tuple[FabricNet, ControllerProcess, Telemetry]) -> None:
    net, controller, telemetry = live
    controller.call("policy", name="ecmp")
    streams = Streams(net)
    streams.collide(7100)
    controller.call("policy", name="dlb")
    seen = controller.call("events")["next"]
    streams.start(7100, packets=5000, packets_per_s=830)  # 98 % of an uplink each, for 6 s
    uplinks = [port.index for port in net.fabric.uplinks("leaf0")]
    deadline = time.monotonic() + 3.0
    while len(elephant_moves(controller, seen)) < 3:
        assert time.monotonic() < deadline, elephant_moves(controller, seen)
        time.sleep(0.05)
    time.sleep(1.0)  # the queue of the uplink that all shared runs empty
    before, begun_ns = telemetry.ports["tx_bytes"][uplinks].copy(), time.monotonic_ns()
    time.sleep(2.0)
    rates_bps = (telemetry.ports["tx_bytes"][uplinks] - before) * 8e9 / (time.monotonic_ns() - begun_ns)
    while streams.sending():
        time.sleep(0.05)
    # What stood in the queue of the common uplink before the moves is late, not lost.
    assert streams.received(telemetry) == [5004] * 4
    assert rates_bps.min() > 0.95 * rates_bps.max()
    moves = elephant_moves(controller, seen)
    print([f"{rate / 1e6:.2f} Mb/s" for rate in rates_bps], moves)
    assert len(moves) == 3
    assert all(move["t_ns"] < begun_ns for move in moves)
    slots = [move["entry"] for move in moves]
    assert len(set(slots)) == 3
