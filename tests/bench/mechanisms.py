"""What flow control, marking, congestion control and the watchdog cost: the same messages with all and with none."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.row import Row
from tests.live.rdma import Traffic
from topologies.dcqcn import Dcqcn, preset
from topologies.errors import LabError
from topologies.network import FabricNet
from topologies.spec import FabricSpec

PLAIN = FabricSpec(leaves=4, spines=4, hosts_per_leaf=4, buffer_kb=16_384, slowdown=2000)
EVERYTHING = PLAIN.replace(
    flow_control="pfc", xoff_kb=256, xon_offset_kb=32, ecn_kmin_kb=100, ecn_kmax_kb=2000, ecn_pmax=0.02,
    watchdog="drop",
)  # fmt: skip
REACTION = preset("paper", ai_rate_mbps=200)
MESSAGE_BYTES = 4 << 20
ROUNDS = 3
WINDOW_S = 4.5  # everything has arrived by then; an idle tick costs something, too, so both get as many ticks


def mechanisms() -> Row:
    """CPU seconds of fabricd for twelve messages, eight of them in pairs that share a link; by turns, summed."""
    plain = everything = 0.0
    for _ in range(ROUNDS):
        plain += _carried(PLAIN, None, lambda traffic: None)
        everything += _carried(EVERYTHING, REACTION, _all_of_it_happened)
    return Row("mechanisms", everything, plain, everything / plain, "CPU s of fabricd; peer: tail drop; ours/peer")


def _carried(spec: FabricSpec, dcqcn: Dcqcn | None, check: Callable[[Traffic], None]) -> float:
    with FabricNet(spec, lab="bench") as net:
        if net.fabricd is None:
            raise LabError("there is no fabricd to measure")
        net.route_statically()
        with Traffic(net.fabric, dcqcn, timeout_ns=10 * 10**9) as traffic:
            for leaf in range(4):
                there = 4 * ((leaf + 1) % 4)
                for source, target in ((0, 2), (1, 2), (3, 3)):
                    traffic.connect(f"h{4 * leaf + source}", f"h{there + target}", MESSAGE_BYTES)
            before_s, end = _cpu_s(net.fabricd.pid), time.monotonic() + WINDOW_S
            traffic.start()
            traffic.finish(len(traffic.flows), WINDOW_S)
            time.sleep(end - time.monotonic())
            used_s = _cpu_s(net.fabricd.pid) - before_s
            if traffic.drops() or not traffic.delivered():
                raise LabError(f"frames were lost: {traffic.drops()}", "try again on a machine that is not busy")
            check(traffic)
    return used_s


def _all_of_it_happened(traffic: Traffic) -> None:
    pauses = int(traffic.telemetry.ports["priority_group"]["pfc_tx_pkts"].sum())
    marks = int(traffic.telemetry.ports["queue"]["wred_ecn_marked_packets"].sum())
    cnps = traffic.nic_counter("rp_cnp_handled")
    if not (pauses and marks and cnps):
        raise LabError(f"{pauses} PFC frames, {marks} marks, {cnps} CNPs: that is no comparison")


def _cpu_s(pid: int) -> float:
    """CPU time of all threads of a process so far, to the nanosecond (schedstat)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int(task.joinpath("schedstat").read_text().split()[0]) for task in tasks) / 1e9
