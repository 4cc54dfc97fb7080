"""What is left of a run when the beginning is over: shares, queue and waiting time once DCQCN had time to settle.

    python -m labs.exercises.m4_dcqcn_tuning.settled latest
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from labs.measure import rates, theory
from labs.measure.evidence import ACK_FRAME_BYTES, Evidence
from labs.measure.rates import Array
from labs.measure.stored import load_run
from topologies.units import BYTES_PER_KB

SETTLED_US = 4000.0  # after the last sender came
BIN_US = 1000.0
BOTTLENECK = "leaf0->h4"


@dataclass(frozen=True)
class Settled:
    """From `begin_us` to `end_us` after the common instant, when the first sender was done.

    gbps: [senders], payload.  depth_kb, wait_us: [packets], what each packet found at the bottleneck.
    converged_us: after the last one came, until all stayed within 10 % of their mean in bins of `BIN_US`; None: never.
    """

    begin_us: float
    end_us: float
    gbps: Array
    depth_kb: Array
    wait_us: Array
    line_gbps: float
    converged_us: float | None

    @property
    def worst(self) -> float:
        """The largest deviation from the senders' mean, as a share of it."""
        return float(np.abs(self.gbps / self.gbps.mean() - 1).max())

    @property
    def utilisation(self) -> float:
        """Payload over what headers leave of the link."""
        return float(self.gbps.sum() / self.line_gbps)


def shares_gbps(evidence: Evidence, begin_us: float, end_us: float) -> Array:
    """Payload that arrived of each flow between two moments of the only iteration, in Gb/s."""
    [iteration] = evidence.iterations
    flows = sorted(evidence.roles)
    rows = rates.arrivals(evidence, iteration, flows)
    at_us = (rows["end_ns"] - iteration.start_ns) / 1e3 / evidence.fabric.clock.slowdown
    rows = rows[(at_us >= begin_us) & (at_us < end_us)]
    payload = rates.payload_bytes(rows)
    return np.array([payload[rows["flow"] == flow].sum() for flow in flows]) * 8 / 1e3 / (end_us - begin_us)


def settled(evidence: Evidence) -> Settled:
    """The evidence of a run of the exercise, from `SETTLED_US` on."""
    [iteration] = evidence.iterations
    flows, fabric = sorted(evidence.roles), evidence.fabric
    last_us, end_us = rates.common_window_us(evidence, iteration, flows)
    begin_us = min(last_us + SETTLED_US, (last_us + end_us) / 2)
    [port] = [port.index for port in fabric.ports if fabric.port_name(port.index) == BOTTLENECK]
    hops = evidence.hops
    hops = hops[(hops["port"] == port) & (hops["bytes"] > ACK_FRAME_BYTES)]
    arrived_us = (hops["t_ns"] - hops["wait_ns"] - iteration.start_ns) / 1e3 / fabric.clock.slowdown
    hops = hops[(arrived_us >= begin_us) & (arrived_us < end_us)]
    series = rates.throughput(evidence, iteration, flows, BIN_US)
    mean = np.maximum(series.gbps.mean(axis=0), 1e-9)
    relative = rates.Throughput(series.flows, series.edges_us, series.gbps / mean)
    return Settled(
        begin_us, end_us, shares_gbps(evidence, begin_us, end_us), hops["arg"] / BYTES_PER_KB,
        hops["wait_ns"] / 1e3 / fabric.clock.slowdown,
        fabric.spec.link_gbps / theory.wire_overhead_factor(fabric.spec.mtu_bytes),
        rates.convergence_us(relative, np.ones(len(flows)), (last_us, end_us)),
    )  # fmt: skip


def main() -> None:
    """A line for each run of the results that the first argument names."""
    stored = load_run(sys.argv[1] if len(sys.argv) > 1 else "latest")
    print(f"{'run':12} {'converged':>10} {'worst':>6} {'Jain':>6} {'use':>5} {'queue p10':>9} {'p50':>5} {'mean':>5} "
          f"{'p90':>5} {'peak KB':>8} {'wait p99 us':>11} {'pauses':>6} {'CNPs':>6}")
    for number, run in enumerate(stored.runs):
        found = settled(stored.evidence(number))
        p10, p50, p90 = np.percentile(found.depth_kb, [10, 50, 90])
        after = "-" if found.converged_us is None else f"{found.converged_us / 1e3:.1f} ms"
        peak_kb = run["peak_queue_bytes"][BOTTLENECK] / BYTES_PER_KB
        print(f"{run['label']:12} {after:>10} {found.worst:6.1%} {theory.jain(found.gbps):6.3f} "
              f"{found.utilisation:5.0%} {p10:9.0f} {p50:5.0f} {found.depth_kb.mean():5.0f} {p90:5.0f} {peak_kb:8.0f} "
              f"{np.percentile(found.wait_us, 99):11.0f} {run['pauses']:6} {run['cnps']:6,}")


if __name__ == "__main__":
    main()
