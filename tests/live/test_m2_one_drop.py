"""The exercise m2_one_drop: a lost packet costs one round trip if another follows it, and a timeout if none does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from labs.lab import load
from labs.measure.raw import RawRun
from labs.measure.theory import mtu_time_us
from labs.runner_session import Session
from tests.live.exercise import LIVE, play
from topologies.fabricd.telemetry import TraceKind

pytestmark = LIVE

LAB = load("m2_one_drop")
PACKET_US = mtu_time_us(LAB.fabric.mtu_bytes, LAB.fabric.link_gbps)
LINKS = 4  # from h7 to h8: NIC, leaf, spine, leaf
NAK_US = 0.01  # on the wire, at most
FLIGHT_US = 2 * LINKS * LAB.fabric.link_delay_us + (LINKS - 1) * PACKET_US + LINKS * NAK_US
"""From the end of a packet at the sender's NIC until its answer is back there, if neither has to wait."""
NICS_US = 3 * PACKET_US
"""At most: each NIC sends what it has begun first, the answer and the repair; and six crossings of Open vSwitch."""


@dataclass(frozen=True)
class Played:
    """A run; for the planted packet, when it was sent in vain and then again (us after the common instant).

    waits_us: how long the packets that the repair depends on stood in queues behind others.
    """

    summary: dict[str, Any]
    raw: RawRun
    sent_us: tuple[float, ...]
    waits_us: float

    @property
    def time_us(self) -> float:
        return float(self.summary["time_us"]["mean"])


@pytest.fixture(scope="module")
def played() -> dict[str, Played]:
    """All variants, on one fabric."""
    runs = {}
    with Session(LAB) as session:
        for name in LAB.variants:
            result = play(session, LAB.variant(name))
            runs[name] = Played(result.summary, result.raw, *_repair(result.raw))
    return runs


def _repair(raw: RawRun) -> tuple[tuple[float, ...], float]:
    """Both sendings of the packet that was dropped, and the waits of the next packet, the NAK and the repair."""
    drops = raw.trace[raw.trace["kind"] == TraceKind.DROP]
    if not len(drops):
        return (), 0.0
    [drop] = drops
    hops = raw.trace[raw.trace["kind"] == TraceKind.HOP]
    data = hops[hops["flow"] == drop["flow"]]
    first, again = data[(data["psn"] == drop["psn"]) & (data["port"] == raw.fabric.nic("h7").index)]
    flow = raw.flows[drop["flow"]]
    answers = np.flatnonzero((raw.flows["src_ip"] == flow["dst_ip"]) & (raw.flows["dst_ip"] == flow["src_ip"]))
    repair = hops[(hops["t_ns"] > first["t_ns"]) & (hops["t_ns"] < again["t_ns"])]
    revealing = repair[(repair["flow"] == drop["flow"]) & (repair["psn"] == drop["psn"] + 1)]
    nak = repair[np.isin(repair["flow"], answers) & (repair["psn"] == drop["psn"])]
    waits_ns = int(revealing["wait_ns"].sum() + nak["wait_ns"].sum() + again["wait_ns"])
    [measured] = raw.measured
    us = raw.fabric.clock.hardware_us
    return tuple(us(int(sent["t_ns"]) - measured.start_ns) for sent in (first, again)), us(waits_ns)


def test_without_a_drop_the_ring_is_near_its_ideal(played: dict[str, Played]) -> None:
    run = played["no drop"].summary
    assert run["drops"] == run["retransmitted_packets"] == 0
    assert run["predicted_factor"] == 1  # no two of its flows share a link
    assert 1.02 < run["jct_ratio"] < 1.20


def test_a_drop_in_the_middle_costs_about_one_round_trip(played: dict[str, Played]) -> None:
    run = played["middle"]
    assert (run.summary["drops"], run.summary["naks"], run.summary["timeouts"]) == (1, 1, 0)
    in_vain, again = run.sent_us
    # The next packet reveals it; then a NAK, and the packet itself once more.
    lost_us = PACKET_US + FLIGHT_US + PACKET_US
    assert -0.05 <= again - in_vain - run.waits_us - lost_us <= NICS_US
    # Go-back-N: all that the wire carried meanwhile was for nothing.
    assert run.summary["retransmitted_packets"] == pytest.approx((again - in_vain) / PACKET_US, abs=1.5)
    assert run.summary["iterations"][0]["straggler"]["cause"] == "drop"
    assert run.time_us - played["no drop"].time_us < again - in_vain + 0.08 * run.summary["ideal_us"]


def test_the_last_packet_costs_the_whole_job_a_timeout(played: dict[str, Played]) -> None:
    run = played["last"]
    assert (run.summary["drops"], run.summary["naks"], run.summary["timeouts"]) == (1, 0, 1)
    in_vain, again = run.sent_us
    timeout_us = LAB.workload.timeout_us
    # The timer started with the last answer that came, to the message before.
    assert timeout_us < again - in_vain < timeout_us + 3 * FLIGHT_US
    late_us = run.time_us - played["no drop"].time_us
    assert late_us == pytest.approx(timeout_us + FLIGHT_US, rel=0.05)
    # Fifteen of sixteen ranks have nothing to do but wait.
    [measured] = run.raw.measured
    ends_us = sorted(run.raw.fabric.clock.hardware_us(r.end_ns - measured.start_ns) for r in measured.ranks if r.end_ns)
    assert len(ends_us) == 16
    assert ends_us[-2] < 1.2 * run.summary["ideal_us"]
    assert run.summary["iterations"][0]["straggler"] == run.summary["iterations"][0]["straggler"] | {
        "host": "h8", "cause": "drop"}
