"""The exercise m2_storm: how fast pauses spread, what they cost the innocent, and what the watchdog sees of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from labs.lab import load
from labs.measure import theory
from labs.measure.evidence import Evidence
from labs.measure.pauses import Tree, pause_tree
from labs.measure.raw import RawRun
from labs.measure.results import summarise
from labs.runner_play import Run, Silent
from labs.runner_session import Session
from topologies.fabricd.telemetry import DropReason, TraceKind
from topologies.units import mtu_frame_bytes

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
]

LAB = load("m2_storm")
SPEC = LAB.fabric
MTU_US = theory.mtu_time_us(SPEC.mtu_bytes, SPEC.link_gbps)
IDEAL_US = LAB.ideal_us
XOFF_BYTES = 8 * mtu_frame_bytes(SPEC.mtu_bytes)
# From one pause to the next: the link's delay, and then XOFF bytes come in at the rate of one sender.
HOP_US = SPEC.link_delay_us + XOFF_BYTES * 8 / (SPEC.link_gbps * 1e3)
FAULT_AT_US, FAULT_ENDS_US = 20, 420
INNOCENT = ("h3", "h4")
HOPS = (  # who tells whom to stop, from the sick one outwards
    ("leaf1->spine0",),
    ("spine0->leaf0", "spine0->leaf2"),
    ("leaf0->h0", "leaf0->h1", "leaf2->h5"),
)


class Played:
    """One run, in which every packet is accounted for and nothing is wrong, whatever the machine was doing."""

    def __init__(self, session: Session, name: str) -> None:
        self.raw: RawRun = Run(session, LAB.variant(name), "ecmp", 1, Silent()).play().raw
        self.summary: dict[str, Any] = summarise(self.raw)
        packets = self.summary["packets"]
        assert self.summary["wrong"] == 0
        assert packets["lost_in_switch"] == 0
        assert packets["sent"] == packets["delivered"] + packets["dropped"]
        self.end_us = {rank.host: self.us(rank.end_ns) for rank in self.raw.iterations[0].ranks}

    def us(self, t_ns: Any) -> float:
        """Hardware us after the common instant."""
        return self.raw.fabric.clock.hardware_us(int(t_ns) - self.raw.iterations[0].start_ns)

    def fault_us(self) -> float:
        """When the fault began, by the record."""
        return self.us(next(event["t_ns"] for event in self.raw.fault_events if event["state"] == "begin"))

    def records(self, kind: TraceKind) -> Any:
        """Beginnings of pauses, of storms."""
        return self.raw.trace[(self.raw.trace["kind"] == kind) & (self.raw.trace["psn"] == 1)]

    def first_pauses_us(self) -> dict[str, float]:
        """When each port first told its peer to stop."""
        pauses = self.records(TraceKind.PAUSE)
        return {self.raw.fabric.port_name(port): self.us(pauses["t_ns"][pauses["port"] == port].min())
                for port in np.unique(pauses["port"]).tolist()}

    def largest_tree(self) -> Tree:
        """Of all that was held up, what has the root that held up most."""
        return pause_tree(Evidence.of(self.raw).holds, self.raw.start_ns, self.raw.end_ns)[0]


def assert_spreads_hop_by_hop(run: Played, since_us: float) -> None:
    """Pauses reach every uplink and every sender, each hop after the time that it takes to fill a buffer."""
    pauses_us = run.first_pauses_us()
    for hop in HOPS:
        for name in hop:
            assert pauses_us[name] - since_us == pytest.approx(HOP_US, abs=3 * MTU_US), name
        since_us = min(pauses_us[name] for name in hop)


def assert_tree_names(run: Played, kind: str, fault: str) -> None:
    """The tree grows from h2 to every sender, and says what was planted there."""
    tree = run.largest_tree()
    assert (tree.root.kind, tree.root.where) == (kind, "h2")
    assert fault in str(tree.root.fault)
    [trunk] = tree.branches
    assert trunk.name == "leaf1->h2"
    [spine] = trunk.branches
    assert spine.name == "spine0->leaf1"
    assert {uplink.name: {nic.name for nic in uplink.branches} for uplink in spine.branches} == {
        "leaf0->spine0": {"h0->leaf0", "h1->leaf0"}, "leaf2->spine0": {"h5->leaf2"}}


def assert_only_the_sick_one_is_cut_off(run: Played) -> None:
    """The watchdog acts where the fault is, in its time, and on nothing else; the others lose that time only."""
    [storm] = run.records(TraceKind.WATCHDOG)
    paused = run.records(TraceKind.PAUSED)
    port = int(storm["port"])
    assert run.raw.fabric.port_name(port) == "leaf1->h2"
    stopped_us = run.us(paused["t_ns"][paused["port"] == port].min())
    assert run.us(storm["t_ns"]) - stopped_us == pytest.approx(SPEC.watchdog_detect_us, abs=4)
    assert set(run.summary["drops_by_reason"]) == {"watchdog"}
    dropped = run.raw.after.ports["dropped"][:, DropReason.WATCHDOG] - run.raw.before.ports["dropped"][
        :, DropReason.WATCHDOG]
    assert np.flatnonzero(dropped).tolist() == [port]
    lost_us = run.us(storm["t_ns"]) - FAULT_AT_US
    for host in INNOCENT:
        assert run.end_us[host] == pytest.approx(IDEAL_US + lost_us, rel=0.1), host
    assert run.end_us["h2"] > FAULT_ENDS_US  # what it lost it gets when it takes it in again


@pytest.fixture(scope="class")
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(LAB.variant(request.cls.FIRST)) as session:
        yield session


class TestWithoutWatchdog:
    """What one sick NIC does to a lossless fabric."""

    FIRST = "healthy"

    def test_healthy(self, session: Session) -> None:
        run = Played(session, "healthy")
        assert run.summary["pauses"] == run.summary["drops"] == 0
        assert run.summary["jct_ratio"] < 1.2

    def test_a_slow_receiver_slows_down_everybody(self, session: Session) -> None:
        run = Played(session, "slow")
        assert run.summary["drops"] == 0
        fault_us, drain_gbps = run.fault_us(), 10.0
        # What had come before the fault, and the rest as fast as it is taken in.
        before_bytes = (fault_us - 3 * (MTU_US + SPEC.link_delay_us)) * SPEC.link_gbps * 1e3 / 8
        size_bytes = LAB.workload.size_bytes * theory.wire_overhead_factor(SPEC.mtu_bytes)
        ends_us = fault_us + (size_bytes - before_bytes) * 8 / (drain_gbps * 1e3)
        assert run.end_us["h2"] == pytest.approx(ends_us, rel=0.05)
        for host in INNOCENT:
            assert run.end_us[host] > 0.6 * ends_us
        # Its own buffer fills at what the link brings more than it takes in.
        nic_us = run.first_pauses_us()["h2->leaf1"]
        full_us = XOFF_BYTES * 8 / ((SPEC.link_gbps - drain_gbps) * 1e3)
        assert nic_us - fault_us == pytest.approx(full_us, abs=3 * MTU_US)
        assert_spreads_hop_by_hop(run, nic_us)
        assert_tree_names(run, "slow_receiver", "10 Gb/s")

    def test_a_stuck_receiver_stops_everybody(self, session: Session) -> None:
        run = Played(session, "stuck")
        assert run.summary["drops"] == 0
        assert all(run.end_us[host] > FAULT_ENDS_US for host in INNOCENT)
        assert_tree_names(run, "slow_receiver", "0.1 Gb/s")

    def test_a_storm_stops_everybody(self, session: Session) -> None:
        run = Played(session, "storm")
        assert run.summary["drops"] == 0
        assert all(run.end_us[host] > FAULT_ENDS_US for host in INNOCENT)
        assert_spreads_hop_by_hop(run, run.fault_us())
        assert_tree_names(run, "pause_storm", "PAUSE for class 3")


class TestWithWatchdog:
    """What the watchdog makes of it."""

    FIRST = "slow + watchdog"

    def test_it_does_not_see_a_slow_receiver(self, session: Session) -> None:
        run = Played(session, "slow + watchdog")
        assert run.summary["watchdogs"] == run.summary["drops"] == 0
        assert all(run.end_us[host] > 3 * IDEAL_US for host in INNOCENT)

    @pytest.mark.parametrize("fault", ["stuck", "storm"])
    def test_it_cuts_off_the_sick_one_and_frees_the_others(self, session: Session, fault: str) -> None:
        assert_only_the_sick_one_is_cut_off(Played(session, f"{fault} + watchdog"))
