"""The peer of the traffic manager: the same network with Linux' token bucket filter (tc-tbf(8)) at every port instead.

A link is one veth pair; both its ends shape what they send. And a load that both networks are offered: datagrams at a
constant rate from several hosts, each beginning at the same instant.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mininet.node import Node

from topologies.errors import LabError
from topologies.fabric import LINK_GROUP, Port
from topologies.fabricd.binding import frame_bytes
from topologies.network import FabricNet, disable_ipv6, ip_batch
from topologies.spec import FabricSpec
from topologies.switch import static_flows
from topologies.units import WIRE_OVERHEAD_BYTES, interface_mtu_bytes

UDP_PORT = 9000
PAYLOAD_BYTES = 4096
DATAGRAM_FRAME_BYTES = PAYLOAD_BYTES + 42  # Ethernet, IPv4 and UDP headers

_SEND = """
import socket, sys, time
target, port, packets, size, gap_ns = sys.argv[1], *map(int, sys.argv[2:])
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
payload = bytes(size)
print("ready", flush=True)
start_ns = int(sys.stdin.readline())
for n in range(packets):
    wait_ns = start_ns + n * gap_ns - time.monotonic_ns()
    if wait_ns > 0:
        time.sleep(wait_ns / 1e9)
    out.sendto(payload, (target, port))
"""
_RECEIVE = """
import socket, sys, time
port, deadline_s, quiet_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
inlet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
inlet.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
inlet.bind(("", port))
print("ready", flush=True)
inlet.settimeout(deadline_s)
received = last_ns = 0
try:
    while True:
        inlet.recv(65536)
        received, last_ns = received + 1, time.monotonic_ns()
        inlet.settimeout(quiet_s)
except TimeoutError:
    print(received, last_ns)
"""


class TbfNet(FabricNet):
    """A FabricNet without fabricd: rates and buffers are the kernel's. Routed statically; no delay, no path bits."""

    def __init__(self, spec: FabricSpec) -> None:
        super().__init__(spec, lab="tbf", start_fabricd=None)

    def _create_interfaces(self) -> None:
        mtu_bytes = interface_mtu_bytes(self.spec.mtu_bytes)
        commands = []
        for link in self.links:
            inner, outer = sorted((link.intf1, link.intf2), key=lambda intf: not intf.node.inNamespace)
            namespace = f" netns {inner.node.pid}" if inner.node.inNamespace else ""
            common = f"mtu {mtu_bytes} group {LINK_GROUP}"
            commands.append(
                f"link add name {outer.name} address {outer.mac} {common} type veth "
                f"peer name {inner.name} address {inner.mac} {common}{namespace}"
            )
        ip_batch(commands)
        for port in self.fabric.ports:
            if port.kind == "switch":
                disable_ipv6(port.interface)
        ip_batch([f"link set group {LINK_GROUP} up"])

    def start(self) -> None:
        """Shapes only now: Open vSwitch removes the queueing disciplines of its ports when it is given them."""
        super().start()
        with self._all_or_nothing():
            _tc([self._discipline(port) for port in self.fabric.ports if port.kind == "switch"])
            for port in self.fabric.ports:
                if port.kind == "host":
                    complaint = self[port.device].cmd(f"tc {self._discipline(port)}").strip()
                    if complaint:
                        raise LabError(f"tc in {port.device}: {complaint}")

    def route_statically(self) -> None:
        """The same paths; with nobody to restore the addresses of hosts, the last switch does it."""
        mac = {host.ip: host.mac for host in self.fabric.hosts}
        for switch in self.switches:
            flows = []
            for flow in static_flows(self.fabric, self.fabric.switch(switch.name)):
                ip = flow.split("nw_dst=")[1].split(",")[0]
                flows.append(flow.replace("actions=", f"actions=mod_dl_dst:{mac[ip]},"))
            switch.add_flows(flows)

    def _discipline(self, port: Port) -> str:
        burst_bytes = frame_bytes(self.fabric) + WIRE_OVERHEAD_BYTES
        return (
            f"qdisc add dev {port.interface} root tbf rate {round(port.rate_bps)}bit burst {burst_bytes} "
            f"limit {port.buffer_bytes} overhead {WIRE_OVERHEAD_BYTES}"
        )


def _tc(commands: Sequence[str]) -> None:
    done = subprocess.run(["tc", "-batch", "-"], input="\n".join(commands) + "\n", capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"tc: {done.stderr.strip()}")


@dataclass(frozen=True)
class Offered:
    """``flows``: (sender, receiver) names; each sends ``packets`` at ``load`` of a host link's rate."""

    flows: tuple[tuple[str, str], ...]
    packets: int
    load: float


@dataclass(frozen=True)
class Carried:
    """What came of it: packets received, seconds from the common start to the last arrival, CPU seconds of all CPUs."""

    received: int
    completion_s: float
    cpu_s: float


def offer(net: FabricNet, offered: Offered) -> Carried:
    """Plays the load on a running network whose routes are there. Raises LabError if a receiver does not answer."""
    rate_bps = net.fabric.nic(offered.flows[0][0]).rate_bps
    gap_ns = round((DATAGRAM_FRAME_BYTES + WIRE_OVERHEAD_BYTES) * 8e9 / rate_bps / offered.load)
    duration_s = offered.packets * gap_ns / 1e9
    receivers = {}
    for name in sorted({receiver for _, receiver in offered.flows}):
        arguments = [UDP_PORT, duration_s + 30, max(2.0, duration_s / 4)]
        receivers[name] = _python(net[name], _RECEIVE, *arguments)
    shape = [UDP_PORT, offered.packets, PAYLOAD_BYTES, gap_ns]
    senders = [
        _python(net[sender], _SEND, net.fabric.host(receiver).ip, *shape) for sender, receiver in offered.flows
    ]
    # Whatever a slow machine needs until the interpreters run: only the traffic is to be counted.
    for process in (*receivers.values(), *senders):
        _expect_ready(process)
    before_s = _busy_s()
    start_ns = time.monotonic_ns() + 500_000_000
    for process in senders:
        assert process.stdin is not None
        process.stdin.write(f"{start_ns}\n")
        process.stdin.flush()
    for process in senders:
        process.wait()
    cpu_s = _busy_s() - before_s
    results = [tuple(map(int, process.communicate()[0].split())) for process in receivers.values()]
    last_ns = max(last for _, last in results)
    return Carried(sum(received for received, _ in results), (last_ns - start_ns) / 1e9, cpu_s)


def _python(node: Node, program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-S", "-c", program, *map(str, arguments)]
    process: subprocess.Popen[str] = node.popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, text=True)
    return process


def _expect_ready(process: subprocess.Popen[str]) -> None:
    if process.stdout is None or process.stdout.readline().strip() != "ready":
        raise LabError("a sender or receiver did not start")


def _busy_s() -> float:
    """CPU seconds of all processors that were neither idle nor niced (others' work), since boot (proc(5))."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, _nice, system, _idle, _iowait, irq, softirq, *_ = map(int, fields)
    return (user + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
