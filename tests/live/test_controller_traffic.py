"""The controller with real frames: switch-overs lose none, and DLB, fed by telemetry, separates elephants."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

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
target, count, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 7000))
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

    def __init__(self, net: FabricNet, packets: int, rate: float) -> None:
        self.net, self.packets = net, packets
        pairs = [(net[f"h{n}"], net[f"h{n + 4}"]) for n in range(4)]
        self.receivers = [target.popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True)
                          for _, target in pairs]
        for receiver in self.receivers:
            assert receiver.stdout.readline() == "listening\n"
        self.senders = [source.popen([sys.executable, "-c", SENDER, target.IP(), str(packets), str(rate)])
                        for source, target in pairs]

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
    streams = Streams(net, packets=3000, rate=300)
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


def test_dlb_gives_every_elephant_an_uplink_of_its_own(live: tuple[FabricNet, ControllerProcess, Telemetry]) -> None:
    net, controller, telemetry = live
    controller.call("policy", name="ecmp", seed=1)
    controller.call("policy", name="dlb", seed=1)
    events = controller.call("events")["next"]
    streams = Streams(net, packets=5000, rate=830)  # 98 % of an uplink each, for 6 s
    uplinks = [port.index for port in net.fabric.uplinks("leaf0")]
    time.sleep(2.0)
    before = telemetry.ports["tx_bytes"][uplinks].copy()
    begun = time.monotonic()
    time.sleep(2.0)
    rates = (telemetry.ports["tx_bytes"][uplinks] - before) * 8 / (time.monotonic() - begun)
    while streams.sending():
        time.sleep(0.05)
    assert streams.received(telemetry) == [5000] * 4
    print("uplinks", [f"{rate / 1e6:.2f} Mb/s" for rate in rates])
    moves = [event for event in controller.call("events", since=events)["events"] if event["kind"] == "move"]
    print("moves", moves)
    assert rates.min() > 0.85 * rates.max()
    assert [move for move in moves if move["bytes"] and move["t_ns"] > begun * 1e9] == []
