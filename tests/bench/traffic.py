"""The same delivered traffic over our links and over TBF's, and what one link crossing costs."""

from __future__ import annotations

import os
from pathlib import Path

from tests.bench.row import Row
from tests.live.tbf import Carried, Offered, TbfNet, offer
from topologies import ovs
from topologies.errors import LabError
from topologies.fabric import TELEMETRY_PATH
from topologies.fabricd.telemetry import Telemetry
from topologies.network import FabricNet
from topologies.spec import FabricSpec

SPEC = FabricSpec(leaves=4, spines=4, hosts_per_leaf=4, link_delay_us=0, buffer_kb=1024, slowdown=10_000)
# Each host sends to its counterpart on the next leaf; the static routes give every flow an uplink of its own.
LOAD = Offered(flows=tuple((f"h{n}", f"h{(n + 4) % 16}") for n in range(16)), packets=2000, load=0.9)


def cpu_same_traffic() -> Row:
    """CPU seconds of the whole machine while 16 flows are carried without loss."""
    ours = _carried(FabricNet(SPEC, lab="bench"))
    peer = _carried(TbfNet(SPEC))
    for name, one in (("ours", ours), ("TBF's", peer)):
        if one.received != len(LOAD.flows) * LOAD.packets:
            raise LabError(f"{name} lost packets ({one.received} arrived): the machine was too busy", "try again")
    return Row("cpu_same_traffic", ours.cpu_s, peer.cpu_s, ours.cpu_s / peer.cpu_s, "CPU s; peer: TBF links; ours/peer")


def link_crossing() -> Row:
    """CPU time of fabricd for a frame on a link, beside that of Open vSwitch for a frame in a switch, of one run."""
    # What forwards in the kernel has no process whose CPU time could be read.
    with FabricNet(SPEC, lab="bench", datapath="userspace") as net:
        assert net.fabricd is not None
        net.route_statically()
        telemetry = Telemetry.open(TELEMETRY_PATH)
        before, cpu_before = telemetry.snapshot(), (_cpu_s(net.fabricd.pid), _cpu_s(_switch_pid()))
        offer(net, LOAD)
        after, cpu_after = telemetry.snapshot(), (_cpu_s(net.fabricd.pid), _cpu_s(_switch_pid()))
    crossings = int((after.ports["tx_frames"] - before.ports["tx_frames"]).sum())
    hops = int((after.switches["out_frames"] - before.switches["out_frames"]).sum())
    ours = (cpu_after[0] - cpu_before[0]) / crossings * 1e6
    peer = (cpu_after[1] - cpu_before[1]) / hops * 1e6
    return Row("link_crossing", ours, peer, ours / peer, "us of CPU a frame; peer: an OVS hop; ours/peer")


def _carried(net: FabricNet) -> Carried:
    with net:
        net.route_statically()
        return offer(net, LOAD)


def _cpu_s(pid: int) -> float:
    """User and system time of a process so far (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _switch_pid() -> int:
    pid = ovs.vswitchd_pid()
    if pid is None:
        raise LabError("Open vSwitch is gone")
    return pid
