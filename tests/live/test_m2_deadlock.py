"""The exercise m2_deadlock: when a ring of lossless buffers freezes, when it does not, and what thaws it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from labs.lab import Lab, load
from labs.measure import theory
from labs.measure.evidence import Evidence
from labs.measure.raw import RawRun
from labs.measure.results import summarise
from labs.runner_play import Run, Silent
from labs.runner_session import Session
from topologies.fabricd.telemetry import TraceKind

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
]

LAB = load("m2_deadlock")
RING = ("sw0->sw1", "sw1->sw2", "sw2->sw3", "sw3->sw0")
LOSSLESS = 3
MTU_US = theory.mtu_time_us(LAB.fabric.mtu_bytes, LAB.fabric.link_gbps)
XOFF_US = 9 * MTU_US  # more than 8 frames, at line rate
FROZEN_US = 100  # far longer than a full queue needs


def play(session: Session, lab: Lab) -> tuple[RawRun, dict[str, Any]]:
    """One run, in which every packet is accounted for and nothing is wrong, whatever the machine was doing."""
    raw = Run(session, lab, "ecmp", 1, Silent()).play().raw
    summary = summarise(raw)
    packets = summary["packets"]
    assert summary["wrong"] == 0
    assert packets["lost_in_switch"] == 0
    assert packets["sent"] == packets["delivered"] + packets["dropped"] + packets["in_flight"]
    return raw, summary


def alone(lab: Lab) -> tuple[RawRun, dict[str, Any]]:
    """The same on a fabric of its own."""
    with Session(lab) as session:
        return play(session, lab)


def hops(raw: RawRun) -> Any:
    """Trace records of data packets."""
    return raw.trace[(raw.trace["kind"] == TraceKind.HOP) & (raw.trace["bytes"] > 200)]


def us(raw: RawRun, t_ns: Any) -> Any:
    """Hardware us after the common instant."""
    return (t_ns - raw.iterations[0].start_ns) / raw.fabric.clock.lab_ns(1.0)


def first_us(raw: RawRun, kind: TraceKind) -> dict[str, float]:
    """When each port began to send (PAUSE) or to obey (PAUSED) pauses."""
    begins = raw.trace[(raw.trace["kind"] == kind) & (raw.trace["psn"] == 1)]
    return {raw.fabric.port_name(port): float(us(raw, begins["t_ns"][begins["port"] == port].min()))
            for port in np.unique(begins["port"]).tolist()}


def assert_frozen(raw: RawRun, summary: dict[str, Any]) -> None:
    """Nobody has finished, nothing was lost, and long before the end everything stood still."""
    assert summary["drops"] == 0
    assert all(rank.end_ns is None and rank.error for rank in raw.iterations[0].ranks)
    data = hops(raw)
    last_us = float(us(raw, data["t_ns"].max()))
    assert float(us(raw, raw.end_ns)) - last_us > FROZEN_US
    depth = raw.after.ports["queue"]["depth_bytes"][:, LOSSLESS]
    standing = {raw.fabric.port_name(port.index) for port in raw.fabric.ports if depth[port.index] > 0}
    assert standing >= set(RING)
    holds = Evidence.of(raw).holds
    roots = [holds.chain(index).root for index in range(len(holds.rows))]
    assert RING in {root.cycle for root in roots if root.kind == "deadlock"}


@pytest.fixture(scope="class")
def session() -> Iterator[Session]:
    with Session(LAB.variant("two classes")) as session:
        yield session


class TestPfc:
    """One fabric, until it freezes."""

    def test_two_classes_without_a_cycle_share_the_ring(self, session: Session) -> None:
        raw, summary = play(session, LAB.variant("two classes"))
        assert summary["drops"] == 0
        assert summary["retransmitted_packets"] == 0
        assert summary["pauses"] > 0  # it is as crowded as before
        # Two flows a link, headers, and the way over four links.
        least = 2 * theory.wire_overhead_factor(LAB.fabric.mtu_bytes)
        assert least < summary["jct_ratio"] < least + 0.25
        assert set(np.unique(hops(raw)["reason"])) == {3, 4}

    def test_one_class_freezes_for_good_within_microseconds(self, session: Session) -> None:
        lab = LAB.variant("pfc")
        assert lab.fabric == session.lab.fabric
        raw, summary = play(session, lab)
        assert_frozen(raw, summary)
        # From when the neighbour's packets join, a link gets twice what it carries, and each of the two
        # ingress buffers grows with half its rate.
        joined_us = 2 * (MTU_US + lab.fabric.link_delay_us)
        pauses_us = first_us(raw, TraceKind.PAUSE)
        assert min(pauses_us.values()) == pytest.approx(joined_us + 2 * XOFF_US, abs=2 * MTU_US)
        assert max(pauses_us.values()) < joined_us + 4 * XOFF_US
        assert float(us(raw, hops(raw)["t_ns"].max())) < 20


def test_credits_freeze_as_well() -> None:
    raw, summary = alone(LAB.variant("credits"))
    assert_frozen(raw, summary)
    assert summary["pauses"] == 0
    assert summary["credit_stalls"] > 0


def test_the_watchdog_thaws_it_at_the_price_of_packets() -> None:
    raw, summary = alone(LAB.variant("watchdog"))
    assert set(summary["drops_by_reason"]) == {"watchdog"}
    assert summary["drops"] > 0
    assert summary["retransmitted_packets"] > 0
    assert all(rank.error is None for rank in raw.iterations[0].ranks)
    storms = raw.trace[(raw.trace["kind"] == TraceKind.WATCHDOG) & (raw.trace["psn"] == 1)]
    assert {raw.fabric.port_name(int(port)) for port in storms["port"]} <= set(RING)
    detected_us = float(us(raw, storms["t_ns"].min()))
    paused_us = min(first_us(raw, TraceKind.PAUSED)[name] for name in RING)
    assert detected_us - paused_us == pytest.approx(LAB.fabric.watchdog_detect_us, abs=2 * XOFF_US)


def test_a_watchdog_that_forwards_thaws_it_without_dropping_a_queue() -> None:
    raw, summary = alone(LAB.variant("watchdog forward"))
    assert summary["watchdogs"] > 0
    assert "watchdog" not in summary["drops_by_reason"]
    assert all(rank.error is None for rank in raw.iterations[0].ranks)


def test_drop_tail_only_loses_packets() -> None:
    raw, summary = alone(LAB.variant("drop tail"))
    assert set(summary["drops_by_reason"]) == {"tail"}
    assert all(rank.error is None for rank in raw.iterations[0].ranks)


def test_a_cycle_alone_does_not_freeze() -> None:
    """Links between switches with room for two hosts: nothing ever waits, and nobody is told to."""
    _, summary = alone(LAB.variant("pfc").with_overrides(["link_gbps=50", "uplink_gbps=100"]))
    assert summary["pauses"] == summary["drops"] == 0
    assert summary["jct_ratio"] < 1.15
