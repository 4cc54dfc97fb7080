"""How fast flows were, from the recorded packets: throughput over time, fair shares, convergence, and DCQCN's steps.

Throughput is payload as it arrived at the receiving host, each packet once, at its first arrival (one that overtook
another counts then, though go-back-N makes its sender repeat it).  Times are hardware us after an iteration's common
instant, rates Gb/s of hardware.  "Converged: all flows within 10 % of fair share" is the BMWG AI fabric draft's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labs.measure import theory
from labs.measure.evidence import ACK_FRAME_BYTES, Evidence
from labs.measure.raw import RawIteration
from topologies.fabricd.telemetry import TraceKind

if TYPE_CHECKING:
    from topologies.fabric import Fabric

Array = npt.NDArray[np.float64]

TOLERANCE = 0.10  # of the fair share
PACKETS_A_BIN = 20  # at fair share: one packet more or less is 5 %, half of what convergence tolerates
STAYS_BINS = 3  # a flow that comes within the tolerance in the last moment has not converged
_SHARE_OF_PATH = 0.02  # of a flow's frames: fewer on a link are no path of its


@dataclass(frozen=True)
class Throughput:
    """Of some flows in one iteration."""

    flows: tuple[int, ...]  # indices of the evidence's flows
    edges_us: Array  # [bins + 1]
    gbps: Array  # [flows, bins]

    @property
    def middle_us(self) -> Array:
        return (self.edges_us[1:] + self.edges_us[:-1]) / 2


def summary(evidence: Evidence) -> dict[str, Any]:
    """flow_gbps, fair_gbps, jain_goodput and convergence_us for run.json (schema.json says what they are)."""
    measured = [iteration for iteration in evidence.iterations if not iteration.warmup]
    flows = sorted(evidence.roles)
    if not measured or not flows:
        return {"flow_gbps": {}, "fair_gbps": {}, "jain_goodput": None, "convergence_us": None}
    goodput = np.mean([goodput_gbps(evidence, iteration, flows) for iteration in measured], axis=0)
    fair = fair_gbps(evidence, flows)
    names = [evidence.flow_name(flow) for flow in flows]
    converged = [converged_us(evidence, iteration) for iteration in measured]
    complete = [value for value in converged if value is not None]
    known = fair > 0
    return {
        "flow_gbps": dict(zip(names, goodput.tolist(), strict=True)),
        "fair_gbps": dict(zip(names, fair.tolist(), strict=True)),
        "jain_goodput": theory.jain(goodput[known] / fair[known]) if known.any() else None,
        "convergence_us": float(np.mean(complete)) if len(complete) == len(measured) else None,
    }


def is_burst(evidence: Evidence) -> bool:
    """Whether every flow sends all it has from its beginning on: no rank waits for what another one sends."""
    return evidence.collective in ("incast", "permutation", "transfers")


def iteration_end_ns(evidence: Evidence, iteration: RawIteration) -> int:
    """When its last rank was done; when the next iteration or nothing followed, if one never was."""
    ends = [rank.end_ns for rank in iteration.ranks if rank.end_ns is not None]
    if ends and len(ends) == len(iteration.ranks):
        return max(ends)
    following = [other.start_ns for other in evidence.iterations if other.start_ns > iteration.start_ns]
    return min(following, default=max(evidence.last_ns, iteration.start_ns))


def arrivals(evidence: Evidence, iteration: RawIteration, flows: Sequence[int]) -> npt.NDArray[Any]:
    """JOURNEY_DTYPE rows of the first arrival of each data packet of an iteration, in order of arrival."""
    rows = evidence.journeys
    end_ns = iteration_end_ns(evidence, iteration)
    rows = rows[np.searchsorted(rows["sent_ns"], iteration.start_ns - 1) : np.searchsorted(rows["sent_ns"], end_ns)]
    rows = rows[(rows["bytes"] > ACK_FRAME_BYTES) & (rows["dropped"] == 0) & (rows["end_ns"] >= 0)
                & np.isin(rows["flow"], list(flows))]
    rows = rows[np.argsort(rows["end_ns"], kind="stable")]
    _, first = np.unique(rows["flow"].astype(np.int64) << 24 | rows["psn"].astype(np.int64), return_index=True)
    arrived: npt.NDArray[Any] = rows[np.sort(first)]
    return arrived


def payload_bytes(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Of data frames; RETH and immediate of a message's first and last packet count as payload."""
    payload: npt.NDArray[np.int64] = rows["bytes"].astype(np.int64) - theory.PACKET_HEADER_BYTES
    return payload


def throughput(evidence: Evidence, iteration: RawIteration, flows: Sequence[int], bin_us: float) -> Throughput:
    """Payload rate of each flow in bins of `bin_us`, from the common instant to the last rank's end."""
    clock, rows = evidence.fabric.clock, arrivals(evidence, iteration, flows)
    length_us = clock.hardware_us(iteration_end_ns(evidence, iteration) - iteration.start_ns)
    edges_us = np.arange(max(1, int(np.ceil(length_us / bin_us))) + 1, dtype=np.float64) * bin_us
    at_us = (rows["end_ns"] - iteration.start_ns) / 1e3 / clock.slowdown
    payload, flow_of = payload_bytes(rows), rows["flow"]
    counts = [np.histogram(at_us[flow_of == flow], edges_us, weights=payload[flow_of == flow])[0] for flow in flows]
    gbps = np.array(counts, dtype=np.float64).reshape(len(flows), -1) * 8 / (bin_us * 1e3)
    return Throughput(tuple(flows), edges_us, gbps)


def goodput_gbps(evidence: Evidence, iteration: RawIteration, flows: Sequence[int]) -> Array:
    """Each flow's payload over the time from its planned beginning to its last byte; to the end of the iteration where
    its sender or receiver was never done."""
    clock, rows = evidence.fabric.clock, arrivals(evidence, iteration, flows)
    end_ns = iteration_end_ns(evidence, iteration)
    undone = {rank.rank for rank in iteration.ranks if rank.end_ns is None}
    found = np.zeros(len(flows))
    for at, flow in enumerate(flows):
        own, role = rows[rows["flow"] == flow], evidence.roles[flow]
        if len(own):
            last_ns = end_ns if undone & {role.rank, role.peer} else int(own["end_ns"].max())
            took_us = clock.hardware_us(last_ns - iteration.start_ns) - role.start_us
            found[at] = float(payload_bytes(own).sum()) * 8 / 1e3 / took_us if took_us > 0 else 0.0
    return found


def fair_gbps(evidence: Evidence, flows: Sequence[int]) -> Array:
    """Max-min fair share of each flow on the links that its frames took, while all of them send; 0 without frames."""
    fabric = evidence.fabric
    hops = evidence.hops[evidence.hops["bytes"] > ACK_FRAME_BYTES]
    counts = [np.bincount(hops["port"][hops["flow"] == flow], minlength=len(fabric.ports)) for flow in flows]
    weight = np.array([link_shares(fabric, count, evidence.roles[flow].src_ip)
                       for flow, count in zip(flows, counts, strict=True)]).reshape(len(flows), len(fabric.ports))
    rates = np.array([fabric.clock.hardware_gbps(port.rate_bps) for port in fabric.ports])
    return max_min(weight, rates / theory.wire_overhead_factor(fabric.spec.mtu_bytes))


def link_shares(fabric: Fabric, frames: npt.NDArray[Any], src_ip: int) -> Array:
    """Share of a flow's traffic on each port, were nothing dropped: every device splits what it gets as it was seen to.

    frames [ports]: of the flow, that left by each port.
    """
    names = [*(host.name for host in fabric.hosts), *(switch.name for switch in fabric.switches)]
    number = {name: at for at, name in enumerate(names)}
    device = np.array([number[port.device] for port in fabric.ports])
    peer = np.array([number[fabric.peer(port).device] for port in fabric.ports])
    sent = np.bincount(device, weights=frames, minlength=len(names))
    split = np.where(frames > _SHARE_OF_PATH * sent[device], frames / np.maximum(1, sent[device]), 0.0)
    source = number[theory.host_of_ip(fabric, src_ip).name]
    share = np.zeros(len(fabric.ports))
    for _ in range(len(fabric.switches) + 1):  # as many as a path can have
        arriving = np.bincount(peer, weights=share, minlength=len(names))
        arriving[source] = 1.0
        share = arriving[device] * split
    return share


def max_min(weight: Array, capacity: Array) -> Array:
    """Rates [flows] by water filling.  weight [flows, links]: share of a flow's traffic on a link; 0 without a link."""
    rate = np.zeros(len(weight))
    growing = weight.any(axis=1)
    while growing.any():
        load = weight[growing].sum(axis=0)
        left = capacity - weight.T @ rate
        room = np.full(len(capacity), np.inf)
        np.divide(left, load, out=room, where=load > 0)
        step = max(0.0, float(room.min()))
        rate[growing] += step
        full = (load > 0) & (room <= step * (1 + 1e-9) + 1e-12)
        growing &= ~weight[:, full].any(axis=1)
    return rate


def common_window_us(evidence: Evidence, iteration: RawIteration, flows: Sequence[int]) -> tuple[float, float]:
    """From the last flow's planned beginning to the first flow's last byte: while all of them send."""
    rows = arrivals(evidence, iteration, flows)
    begin_us = max((evidence.roles[flow].start_us for flow in flows), default=0.0)
    lasts = [rows["end_ns"][rows["flow"] == flow].max(initial=iteration.start_ns) for flow in flows]
    return begin_us, evidence.fabric.clock.hardware_us(int(min(lasts, default=iteration.start_ns)) - iteration.start_ns)


def bin_us_for(fair: Array, mtu_bytes: int) -> float:
    """Width of a bin that holds `PACKETS_A_BIN` packets of the slowest flow at its fair share."""
    slowest = float(fair[fair > 0].min(initial=np.inf))
    return PACKETS_A_BIN * mtu_bytes * 8 / 1e3 / slowest if np.isfinite(slowest) else 1.0


def convergence_us(series: Throughput, fair: Array, window_us: tuple[float, float],
                   tolerance: float = TOLERANCE) -> float | None:
    """From the window's beginning until all flows are within `tolerance` of their fair shares, and stay to its end.

    None: they never were for the last `STAYS_BINS` bins together.
    """
    inside = (series.edges_us[:-1] >= window_us[0] - 1e-9) & (series.edges_us[1:] <= window_us[1] + 1e-9)
    gbps, begins_us = series.gbps[:, inside], series.edges_us[:-1][inside]
    within = np.all(np.abs(gbps - fair[:, None]) <= tolerance * fair[:, None], axis=0).reshape(-1)
    outside = np.flatnonzero(~within)
    first = int(outside[-1]) + 1 if len(outside) else 0
    return float(begins_us[first] - window_us[0]) if first + STAYS_BINS <= len(within) else None


def converged_us(evidence: Evidence, iteration: RawIteration, flows: Sequence[int] | None = None) -> float | None:
    """`convergence_us` of one iteration of a burst, of all its flows or of some; None for collectives with steps."""
    if not is_burst(evidence) or any(rank.end_ns is None for rank in iteration.ranks):
        return None
    chosen = sorted(evidence.roles) if flows is None else list(flows)
    fair = fair_gbps(evidence, chosen)
    series = throughput(evidence, iteration, chosen, bin_us_for(fair, evidence.fabric.spec.mtu_bytes))
    return convergence_us(series, fair, common_window_us(evidence, iteration, chosen))


def jain_in(evidence: Evidence, iteration: RawIteration, flows: Sequence[int], begin_us: float, end_us: float) -> float:
    """Jain's index of what the flows got between two moments of an iteration."""
    rows = arrivals(evidence, iteration, flows)
    at_us = (rows["end_ns"] - iteration.start_ns) / 1e3 / evidence.fabric.clock.slowdown
    rows = rows[(at_us >= begin_us) & (at_us < end_us)]
    return theory.jain([float(payload_bytes(rows[rows["flow"] == flow]).sum()) for flow in flows])


def rate_steps(evidence: Evidence, flow: int) -> npt.NDArray[Any]:
    """RATE records of the queue pair that sends on a flow, in order of time: t_ns; wait_ns: the new rate, lab bit/s;
    bytes: alpha in millionths; reason: dcqcn_change.  None where its NIC has several queue pairs and `qp` is 0."""
    role, trace = evidence.roles[flow], evidence.trace
    nic = evidence.fabric.nic(theory.host_of_ip(evidence.fabric, role.src_ip)).index
    steps: npt.NDArray[Any] = trace[(trace["kind"] == TraceKind.RATE) & (trace["port"] == nic)]
    alone = sum(other.src_ip == role.src_ip for other in evidence.roles.values()) == 1
    mine: npt.NDArray[Any] = steps[steps["arg"] == role.qp] if role.qp else steps if alone else steps[:0]
    return mine


def rate_limits(evidence: Evidence, iteration: RawIteration, flows: Sequence[int]) -> Mapping[int, tuple[Array, Array]]:
    """flow -> (us after the common instant, Gb/s on the wire from then on) of the flows that DCQCN ever held back."""
    clock, found = evidence.fabric.clock, {}
    for flow in flows:
        steps = rate_steps(evidence, flow)
        if len(steps):
            found[flow] = ((steps["t_ns"] - iteration.start_ns) / 1e3 / clock.slowdown,
                           steps["wait_ns"] * clock.hardware_gbps(1.0))
    return found
