"""OVS's kernel datapath in the place of the userspace one: what tests/live asks of a fabric, slow enough for TCG.

Run in the guest by guest.sh, for it needs the kernel's module openvswitch. The tests of tests/live that do not depend
on speed are not repeated here: guest.sh runs them too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from topologies import ovs
from topologies.fabric import TELEMETRY_PATH
from topologies.fabricd.telemetry import Telemetry, histogram_percentile
from topologies.network import FabricNet
from topologies.spec import FabricSpec

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
    pytest.mark.skipif(ovs.datapath() != "kernel", reason="needs the kernel's module openvswitch"),
]

SPEC = FabricSpec(leaves=2, spines=2, hosts_per_leaf=2, slowdown=100_000)  # 1 Mb/s, 50 ms a link
MTU_US = 33_584  # one full frame on the wire


@pytest.fixture(scope="module")
def net() -> Iterator[FabricNet]:
    with FabricNet(SPEC, lab="kernel datapath") as net:
        net.route_statically()
        yield net


def dpctl(*arguments: str) -> str:
    return subprocess.run(["ovs-appctl", *arguments], capture_output=True, text=True, check=True).stdout


def test_the_kernel_forwards(net: FabricNet) -> None:
    assert net.fabric.datapath == "kernel"
    assert net.pingAll(timeout=5) == 0
    shown = dpctl("dpctl/show", "system@ovs-system")
    assert {f"sg-leaf0-eth{n}" for n in (1, 2, 3, 4)} <= set(re.findall(r"port \d+: (\S+)", shown))
    hits, misses, lost = (int(number) for number in re.findall(r"(?:hit|missed|lost):(\d+)", shown)[:3])
    assert lost == 0
    assert hits > misses > 0


def test_round_trip_takes_as_long_as_the_links_say(net: FabricNet) -> None:
    reply = net["h0"].cmd("ping -c 5 -s 1000", net["h3"].IP())
    fastest_ms = float(reply.rpartition("= ")[2].split("/")[0])
    ideal_ms = 8 * (50 + 1066 * 8 / 1e3)
    assert ideal_ms <= fastest_ms < 1.05 * ideal_ms, reply


# Of the hosts only the kernel's own segmentation (gso): what a NIC's hardware does is for the hosts to do (server.py).
# What fabricd sends into a switch is complete: there all offloads may be on, and find nothing to do.
@pytest.mark.parametrize("offloads", ["on", "off"])
def test_tcp_is_carried_at_line_rate(net: FabricNet, offloads: str) -> None:
    for port in net.fabric.ports:
        if port.kind == "switch":
            subprocess.run(["ethtool", "-K", port.interface, "tx", offloads, "tso", offloads, "gso", offloads,
                            "gro", offloads], capture_output=True, check=True)
    for host in net.hosts:
        host.cmd("ethtool -K", host.defaultIntf(), "gso", offloads)
        assert f"generic-segmentation-offload: {offloads}" in host.cmd("ethtool -k", host.defaultIntf())
    server, client = net["h3"], net["h0"]
    server.cmd("iperf3 -s -1 -D; until ss -Hltn | grep -q :5201; do sleep 0.1; done")
    report = json.loads(client.cmd("iperf3 -J -t 15 -w 128K -c", server.IP()))
    assert "error" not in report, report
    # Of 1 Mb/s the headers take 2 %, and the slow start of a round trip of 0.4 s some more.
    assert 0.75e6 < report["end"]["sum_received"]["bits_per_second"] < 1e6, report["end"]


def test_nothing_was_lost_and_the_switches_were_quick(net: FabricNet) -> None:
    telemetry = Telemetry.open(TELEMETRY_PATH)
    deadline = time.monotonic() + 20
    while int(telemetry.ports["queue"]["depth_frames"].sum()) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    now = telemetry.snapshot()
    assert now.switches["in_frames"].sum() > 1000
    assert (now.switches["in_frames"] == now.switches["out_frames"]).all()
    inside_us = now.switches["inside_us"]["bucket"].sum(axis=0)
    print(f"inside a switch: p50 {histogram_percentile(inside_us, 50):.0f} us, "
          f"p99 {histogram_percentile(inside_us, 99):.0f} us")
    assert histogram_percentile(inside_us, 99) < MTU_US
