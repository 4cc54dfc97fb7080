"""`slowdown auto`: the smallest slowdown at which this machine carries a fabric honestly.

What a packet costs is measured once, on a small fabric under full load for a few seconds, and cached.  From that the
model below predicts, for any fabric with all its hosts sending at line rate, how busy the machine would be and how far
its latencies would be from silicon's; `smallest_slowdown` is the first of 1, 2, 5, 10, 20 ... that stays in bounds.
The bounds leave room for what the model does not know: the ranks, other processes, an unlucky second.  The verdict
of every run judges afterwards, by what was really measured.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from topologies import ovs
from topologies.errors import LabError
from topologies.fabric import TELEMETRY_PATH, Fabric
from topologies.fabricd.binding import TICK_NS_RANGE, TICKS_PER_MTU
from topologies.fabricd.telemetry import Telemetry, histogram_percentile
from topologies.fabricd.verbs import Context
from topologies.network import FabricNet
from topologies.spec import LIMITS, FabricSpec
from topologies.units import LabClock, mtu_frame_bytes, serialisation_ns

CACHE_PATH = Path("/var/cache/straggler/calibration.json")
SCHEMA = 1

# Bounds.  fabricd's data path is one thread and so is OVS's userspace datapath.
THREAD_BUSY_MAX = 0.7  # of one core, each of the two
MACHINE_BUSY_MAX = 0.5  # of all cores, both together: the other half is the ranks'
IN_SWITCH_SHARE_MAX = 0.5  # of an MTU's time, p99; the verdict's limit is 1
LATENESS_SHARE_MAX = 0.08  # of an MTU's time, p99; the verdict's limit is 0.1
PACKETS_PER_ACK = 16  # the RNIC's default

# The fabric that is measured: 8 pairs of hosts, each with a path of its own.
MEASURED_SPEC = FabricSpec(leaves=2, spines=4, hosts_per_leaf=4, slowdown=5000)
# For a machine that chokes on that: what it measures then are its own queues.
_GENTLER_SLOWDOWN = 50_000
_MESSAGE_BYTES, _MESSAGES = 1 << 20, 16
_IDLE_S, _WARMUP_S, _LOAD_S = 0.7, 0.5, 2.0


@dataclass(frozen=True)
class Calibration:
    """What this machine needs.  Times are CPU time or latency in real microseconds."""

    cpus: int
    tick_us: float  # CPU of fabricd for a tick with nothing to do
    crossing_us: float  # CPU of fabricd for a packet over one link, its share of the NICs' work included
    hop_us: float  # CPU of ovs-vswitchd for a packet through one switch; about 0 with the kernel datapath
    in_switch_p99_us: float
    switch_ports: int  # of the fabric on which that was measured
    wakeup_us: float  # how much later than its tick fabricd delivers, p99


@dataclass(frozen=True)
class Load:
    """A prediction: CPU as a share of one core, latencies as a share of an MTU's serialisation time."""

    fabricd: float
    ovs: float
    machine: float  # of all cores
    in_switch: float
    lateness: float

    @property
    def sustainable(self) -> bool:
        """Whether all bounds are kept."""
        return (max(self.fabricd, self.ovs) <= THREAD_BUSY_MAX and self.machine <= MACHINE_BUSY_MAX
                and self.in_switch <= IN_SWITCH_SHARE_MAX and self.lateness <= LATENESS_SHARE_MAX)


def predict(spec: FabricSpec, slowdown: float, machine: Calibration) -> Load:
    """The load of `machine` while all hosts of the fabric send full packets at line rate to other leaves."""
    clock = LabClock(slowdown)
    frame_bytes = mtu_frame_bytes(spec.mtu_bytes)
    host_bps, uplink_bps = clock.lab_bps(spec.link_gbps), clock.lab_bps(spec.uplink_rate_gbps)
    sent_per_s = spec.hosts * 1e9 / serialisation_ns(frame_bytes, host_bps) * (1 + 1 / PACKETS_PER_ACK)
    if spec.leaves > 1:
        # What the uplinks cannot take is dropped at the first leaf.
        carried_per_s = sent_per_s * min(1.0, spec.uplinks_per_leaf * uplink_bps / (spec.hosts_per_leaf * host_bps))
        crossings_per_s, hops_per_s = sent_per_s + 3 * carried_per_s, sent_per_s + 2 * carried_per_s
        ports = spec.hosts + 2 * spec.leaves * spec.uplinks_per_leaf
        mtu_us = serialisation_ns(frame_bytes, max(host_bps, uplink_bps)) / 1e3
    else:
        crossings_per_s, hops_per_s, ports = 2 * sent_per_s, sent_per_s, spec.hosts
        mtu_us = serialisation_ns(frame_bytes, host_bps) / 1e3
    tick_us = _tick_us(mtu_us)
    fabricd = machine.tick_us / tick_us + crossings_per_s * machine.crossing_us / 1e6
    vswitchd = hops_per_s * machine.hop_us / 1e6
    # OVS polls one port after the other.
    in_switch_us = machine.in_switch_p99_us * max(1.0, ports / machine.switch_ports)
    return Load(fabricd=fabricd, ovs=vswitchd, machine=(fabricd + vswitchd) / machine.cpus,
                in_switch=in_switch_us / mtu_us, lateness=(tick_us + machine.wakeup_us) / mtu_us)


def _tick_us(mtu_us: float) -> float:
    """fabricd's tick."""
    shortest_us, longest_us = (bound_ns / 1e3 for bound_ns in TICK_NS_RANGE)
    return min(max(mtu_us / TICKS_PER_MTU, shortest_us), longest_us)


def smallest_slowdown(spec: FabricSpec, machine: Calibration) -> float:
    """The first of 1, 2, 5, 10, 20, 50 ... that `machine` sustains.  Raises LabError if there is none."""
    _low, high, _unit = LIMITS["slowdown"]
    for decade in count():
        for digit in (1, 2, 5):
            slowdown = float(digit * 10**decade)
            if slowdown > high:
                raise LabError("this machine does not sustain this fabric at any slowdown", "take a smaller fabric")
            if predict(spec, slowdown, machine).sustainable:
                return slowdown
    raise AssertionError("unreachable")


def resolve(spec: FabricSpec) -> FabricSpec:
    """The spec with a number for `slowdown`; measures this machine if nobody has yet (root, about 6 s)."""
    return spec.replace(slowdown=smallest_slowdown(spec, calibration())) if spec.slowdown == "auto" else spec


def calibration() -> Calibration:
    """This machine's, from the cache or measured now.  Raises LabError as FabricNet does."""
    return cached() or measure()


def cached(path: Path = CACHE_PATH) -> Calibration | None:
    """What was measured on this machine with this kernel and OVS, or None."""
    try:
        entry = json.loads(path.read_text())
        return Calibration(**entry["calibration"]) if entry["machine"] == _machine() else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def measure(path: Path = CACHE_PATH) -> Calibration:
    """Measure, and put it into the cache.  Needs root, Open vSwitch, and no other lab."""
    result = _measure(MEASURED_SPEC)
    load = predict(MEASURED_SPEC, MEASURED_SPEC.clock.slowdown, result)
    if max(load.fabricd, load.ovs) > THREAD_BUSY_MAX:
        result = _measure(MEASURED_SPEC.replace(slowdown=_GENTLER_SLOWDOWN))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps({"machine": _machine(), "calibration": dataclasses.asdict(result)}, indent=1) + "\n")
    os.replace(draft, path)
    return result


def _machine() -> dict[str, Any]:
    """What a calibration depends on."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    return {"schema": SCHEMA, "cpu": models[0] if models else platform.machine(), "cpus": _cpus(),
            "kernel": platform.release(), "ovs": ovs.version(), "datapath": ovs.datapath()}


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class _Sample:
    """What happened within some seconds of real time."""

    seconds: float
    fabricd_s: float  # CPU
    ovs_s: float  # CPU
    crossings: int
    hops: int
    in_switch_p99_us: float  # of the slowest switch
    lateness_p99_us: float


def _measure(spec: FabricSpec) -> Calibration:
    with FabricNet(spec, lab="calibration") as net:
        net.route_statically()
        return _measure_on(net)


def _measure_on(net: FabricNet) -> Calibration:
    telemetry = Telemetry.open(TELEMETRY_PATH)
    idle = _sample(net, telemetry, _IDLE_S)
    with ExitStack() as stack:
        _saturate(net.fabric, stack)
        time.sleep(_WARMUP_S)
        busy = _sample(net, telemetry, _LOAD_S)
    if busy.crossings == 0 or busy.hops == 0:
        raise LabError("the calibration's fabric carried nothing", "see the logs in /run/straggler")
    tick_us = _tick_us(min(serialisation_ns(mtu_frame_bytes(net.spec.mtu_bytes), port.rate_bps)
                           for port in net.fabric.ports) / 1e3)
    idle_share = idle.fabricd_s / idle.seconds
    return Calibration(
        cpus=_cpus(), tick_us=idle_share * tick_us,
        crossing_us=max(busy.fabricd_s - idle_share * busy.seconds, 0.0) * 1e6 / busy.crossings,
        hop_us=max(busy.ovs_s - idle.ovs_s / idle.seconds * busy.seconds, 0.0) * 1e6 / busy.hops,
        in_switch_p99_us=busy.in_switch_p99_us,
        switch_ports=sum(port.kind == "switch" for port in net.fabric.ports),
        wakeup_us=max(busy.lateness_p99_us - tick_us, 0.0))


def _saturate(fabric: Fabric, stack: ExitStack) -> None:
    """Every host writes to its counterpart on the next leaf, for longer than anybody will look."""
    contexts = [stack.enter_context(Context(host.name, channel=False)) for host in fabric.hosts]
    domains = [context.alloc_pd() for context in contexts]
    queues = [context.create_cq() for context in contexts]
    regions = [domain.reg_mr(_MESSAGE_BYTES) for domain in domains]
    writes = []
    for i, context in enumerate(contexts):
        j = (i + fabric.spec.hosts_per_leaf) % len(contexts)
        near = domains[i].create_qp(queues[i], queues[i])  # no window: an ACK may be far away
        far = domains[j].create_qp(queues[j], queues[j])
        near.connect(contexts[j].ip, far.qp_num, far.psn)
        far.connect(context.ip, near.qp_num, near.psn)
        writes.append((near, regions[i], regions[j]))
    for _ in range(_MESSAGES):
        for qp, local, remote in writes:
            qp.post_write(local, 0, _MESSAGE_BYTES, remote.addr, remote.rkey)


def _sample(net: FabricNet, telemetry: Telemetry, seconds: float) -> _Sample:
    assert net.fabricd is not None
    vswitchd = ovs.vswitchd_pid()
    assert vswitchd is not None
    pids = (net.fabricd.pid, vswitchd)
    start, before, cpu_before = time.monotonic(), telemetry.snapshot(), [_cpu_s(pid) for pid in pids]
    time.sleep(seconds)
    after, cpu_after = telemetry.snapshot(), [_cpu_s(pid) for pid in pids]

    def grown(rows: str, name: str) -> int:
        return int((getattr(after, rows)[name] - getattr(before, rows)[name]).sum())

    inside = after.switches["inside_us"]["bucket"] - before.switches["inside_us"]["bucket"]
    lateness = after.globals["lateness_us"]["bucket"] - before.globals["lateness_us"]["bucket"]
    return _Sample(
        seconds=time.monotonic() - start, fabricd_s=cpu_after[0] - cpu_before[0], ovs_s=cpu_after[1] - cpu_before[1],
        crossings=grown("ports", "delivered_frames"), hops=grown("switches", "in_frames"),
        in_switch_p99_us=max(histogram_percentile(switch, 99) for switch in inside),
        lateness_p99_us=histogram_percentile(lateness, 99))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
