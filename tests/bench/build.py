"""Building and starting 64 hosts and 96 links, against stock Mininet with TCLink and Open vSwitch."""

from __future__ import annotations

import time
from functools import partial

from mininet.link import TCLink
from mininet.net import Mininet
from mininet.node import OVSSwitch

from tests.bench.row import Row
from topologies import ovs
from topologies.fabric import build_topo
from topologies.network import FabricNet
from topologies.spec import FabricSpec

SPEC = FabricSpec(leaves=8, spines=4, hosts_per_leaf=8, slowdown=10_000)
SETTLE_S = 3  # the kernel goes on removing namespaces in the background


def build_64_hosts() -> Row:
    """Seconds until everything is up, fabricd included; ours is the mean of a run before and a run after the peer's."""
    Mininet.init()  # sets limits of the kernel, the first time
    before = _seconds(FabricNet(SPEC, lab="bench"))
    peer = _seconds(_stock())
    ours = (before + _seconds(FabricNet(SPEC, lab="bench"))) / 2
    return Row(name="build_64_hosts", ours=ours, peer=peer, ratio=peer / ours, unit="s")


def _stock() -> Mininet:
    """The same shape and rate as a Mininet user builds it; `bw` only, since not every kernel has netem."""
    datapath = "user" if ovs.datapath() == "userspace" else "kernel"
    rate_mbps = SPEC.clock.lab_bps(SPEC.link_gbps) / 1e6
    return Mininet(topo=build_topo(SPEC), switch=partial(OVSSwitch, datapath=datapath), controller=None,
                   link=partial(TCLink, bw=rate_mbps), build=False)


def _seconds(net: Mininet) -> float:
    begin = time.monotonic()
    try:
        net.build()
        net.start()
        return time.monotonic() - begin
    finally:
        net.stop()
        time.sleep(SETTLE_S)
