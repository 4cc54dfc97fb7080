"""Chains of pauses are followed to what was planted at their root, hop by hop, in the core's own records."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from labs.measure.evidence import Evidence
from labs.measure.pauses import Branch, Tree, pause_tree
from labs.measure.why import Explanation, explain
from tests.unit.labs.measure.lossless import DATA, START_NS, US, LosslessRun, spec
from tests.unit.labs.measure.synthetic import changed
from tests.unit.topologies.test_watchdog import RING, SPEC, Ring
from tests.unit.topologies.virtual_fabric import VirtualFabric
from topologies.fabricd._core import lib
from topologies.fabricd.telemetry import TRACE_DTYPE, TraceKind

FAST = {"leaves": 3, "uplink_gbps": 400}  # links between switches are never the bottleneck
CIRCLE = {f"{a}->{b}" for a, b in zip(RING, RING[1:] + RING[:1], strict=True)}


def drain(run: LosslessRun, host: str, gbps: float) -> None:
    """From the beginning a host takes in so much only."""
    fabric = run.fabric
    fabric.core.control(lib.FABRIC_SET_DRAIN, fabric.fabric.nic(host).index, int(fabric.fabric.clock.lab_bps(gbps)))
    run.fault("slow_receiver", f"{host} takes in {gbps:g} Gb/s", device=host)


def trees(evidence: Evidence) -> tuple[Tree, ...]:
    return pause_tree(evidence.holds, 0, evidence.last_ns)


def edges(branches: tuple[Branch, ...], below: str) -> Iterator[tuple[str, str]]:
    """(port, what it stood still for) of a tree."""
    for branch in branches:
        yield branch.name, below
        yield from edges(branch.branches, branch.name)


def slow_receiver() -> LosslessRun:
    """h0 -> h4 fills the path hop by hop; h1 -> h5 shares only leaf0->spine0 and spine0->leaf1 with it."""
    run = LosslessRun(spec())
    drain(run, "h4", 10)
    run.message("h0", "h4", 100)
    run.message("h1", "h5", 60)
    run.play()
    return run


def test_a_slow_receiver_three_hops_away_is_the_root() -> None:
    evidence = slow_receiver().evidence()
    worst = trees(evidence)[0]
    assert (worst.root.kind, worst.root.where, worst.root.fault) == ("slow_receiver", "h4", "h4 takes in 10 Gb/s")
    assert set(edges(worst.branches, "h4")) == {
        ("leaf1->h4", "h4"), ("spine0->leaf1", "leaf1->h4"), ("leaf0->spine0", "spine0->leaf1"),
        ("h0->leaf0", "leaf0->spine0"), ("h1->leaf0", "leaf0->spine0")}
    # A tenth of the rate: the last link stands nine tenths of the time.
    took_us = evidence.fabric.clock.hardware_us(evidence.iterations[0].ranks[0].end_ns - START_NS)
    assert worst.branches[0].held_us / took_us == pytest.approx(0.9, abs=0.1)
    held_ns = (evidence.holds.rows["end_ns"] - evidence.holds.rows["begin_ns"]).sum()
    assert sum(tree.held_us for tree in trees(evidence)) == pytest.approx(evidence.fabric.clock.hardware_us(held_ns))


def test_the_victim_of_a_slow_receiver_learns_of_it() -> None:
    """Its own destination is idle; its packets stood behind those of the other flow."""
    answer = explain(slow_receiver().evidence(ranks=["h1", "h5"]), 0)
    assert answer.cause == "pause"
    assert (answer.held[0].kind, answer.held[0].root, answer.held[0].lost) == ("slow_receiver", "h4", True)
    longest = max(answer.held, key=lambda wait: len(wait.chain))
    assert longest.chain == ("h1->leaf0", "leaf0->spine0", "spine0->leaf1", "leaf1->h4")
    assert answer.lost_us["pause"] > 0.5 * (answer.time_us or 0)
    assert "leaf1->h4 was paused by h4, which does not take in what comes" in answer.sentence
    assert answer.sentence.endswith("Planted: h4 takes in 10 Gb/s (from the beginning).")


def incast(flow_control: str = "pfc", **changes: object) -> LosslessRun:
    """Five hosts of two leaves to h8 on the third; h2 -> h9 shares no bottleneck with them."""
    run = LosslessRun(spec(**{**FAST, "flow_control": flow_control, **changes}))
    for host in ("h0", "h1", "h4", "h5", "h6"):
        run.message(host, "h8", 60)
    run.message("h2", "h9", 60)
    run.play()
    return run


@pytest.mark.parametrize("flow_control", ["pfc", "credits"])
def test_the_root_of_an_incast_is_the_receivers_access_port(flow_control: str) -> None:
    evidence = incast(flow_control).evidence()
    [tree] = trees(evidence)
    assert (tree.root.kind, tree.root.where) == ("incast", "leaf2->h8")
    assert len(tree.root.flows) == 5
    assert ("leaf0->spine0", "spine0->leaf2") in set(edges(tree.branches, "leaf2->h8"))
    assert ("h2->leaf0", "leaf0->spine0") in set(edges(tree.branches, "leaf2->h8"))


def test_an_incast_costs_its_own_flows_nothing_that_the_ideal_has_not() -> None:
    answer = explain(incast(xoff_kb=60, xon_offset_kb=2).evidence(), 0)
    assert answer.cause == "none"
    assert answer.lost_us["pause"] < 0.02 * (answer.time_us or 0)
    assert answer.held
    assert {(wait.kind, wait.lost) for wait in answer.held} == {("incast", False)}


def test_a_bottleneck_that_ran_dry_because_xon_came_too_late() -> None:
    evidence = incast(xoff_kb=20, xon_offset_kb=16).evidence()
    answer = explain(evidence, 0)
    assert (answer.cause, answer.held[0].lost) == ("pause", False)
    port = next(port.index for port in evidence.fabric.ports if evidence.fabric.port_name(port.index) == "leaf2->h8")
    hops = evidence.hops[evidence.hops["port"] == port]
    gaps_ns = np.maximum(0, evidence.hop_begin_ns[evidence.hops["port"] == port][1:] - hops["t_ns"][:-1]).sum()
    idle_us = evidence.fabric.clock.hardware_us(float(gaps_ns))
    assert 0.5 * idle_us < answer.lost_us["pause"] <= 1.05 * idle_us
    assert "went on too late" in answer.sentence


@pytest.mark.parametrize(("flow_control", "cause", "said"), [
    ("pfc", "pause", "was paused by"), ("credits", "credit", "got no credits from")])
def test_the_victim_of_an_incast_that_it_has_no_part_in(flow_control: str, cause: str, said: str) -> None:
    raw = incast(flow_control).raw(ranks=["h2", "h9"])
    ideal_us = 60 * 4096 * 8 / 1e3 / 100
    answer = explain(Evidence.of(changed(raw, workload={**raw.workload, "ideal_us": ideal_us})), 0)
    assert answer.cause == cause
    asked = explain(incast(flow_control).evidence(), 0, rank=2)
    assert not asked.last
    assert asked.sentence.startswith("Rank 2 (h2) was done with iteration 0 after ")
    assert (asked.cause, asked.lost_us, asked.held) == (cause, answer.lost_us, answer.held)
    assert asked.ideal_us == pytest.approx(ideal_us, rel=0.03)  # with headers
    assert (answer.held[0].kind, answer.held[0].root) == ("incast", "leaf2->h8")
    assert answer.held[0].credits == (cause == "credit")
    assert answer.lost_us[cause] > 0.4 * (answer.time_us or 0)
    for words in (said, "an incast", "5 flows met"):
        assert words in answer.sentence


def test_a_pause_storm_is_told_from_a_receiver_that_is_full() -> None:
    run = LosslessRun(spec())
    run.fabric.core.control(lib.FABRIC_PAUSE_STORM, run.fabric.fabric.nic("h4").index, 1 << 3)
    run.message("h0", "h4", 60)
    run.message("h1", "h5", 60)
    run.play(3000)
    evidence = run.evidence(ranks=["h1", "h5"])
    tree = trees(evidence)[0]
    assert (tree.root.kind, tree.root.where, tree.root.fault) == ("pause_storm", "h4", None)
    assert tree.branches[0].name == "leaf1->h4"
    assert ("h1->leaf0", "leaf0->spine0") in set(edges(tree.branches, "h4"))
    answer = explain(evidence, 0)
    assert (answer.time_us, answer.cause, answer.held[0].kind) == (None, "pause", "pause_storm")
    assert answer.lost_us["pause"] > 2900  # to the end of the run, of which the fabric has no record
    assert "a pause storm" in answer.sentence


def deadlock(watchdog: str = "off") -> LosslessRun:
    run = LosslessRun(SPEC.replace(watchdog=watchdog), Ring)
    for host in range(4):
        run.message(f"h{host}", f"h{(host + 1) % 4}", 100)
        run.message(f"h{4 + host}", f"h{4 + (host + 1) % 4}", 100)
    run.play(2000)
    return run


@pytest.mark.parametrize("watchdog", ["off", "drop"])
def test_a_circle_of_ports_is_a_deadlock_also_if_a_watchdog_ends_it(watchdog: str) -> None:
    evidence = deadlock(watchdog).evidence()
    [tree] = [tree for tree in trees(evidence) if tree.root.cycle]
    assert tree.root.kind == "deadlock"
    assert set(tree.root.cycle) == CIRCLE
    assert {branch.name for branch in tree.branches} == CIRCLE
    answer = explain(evidence, 0)
    assert answer.time_us is None
    assert "4 ports wait for each other in a circle, which cannot end by itself: a deadlock" in answer.sentence
    assert all(port in answer.sentence for port in CIRCLE)
    if watchdog == "off":
        assert answer.cause == "pause"
        assert answer.lost_us["pause"] > 1900
    else:
        assert answer.cause == "drop"
        assert any(place.endswith("(watchdog)") for place in answer.drops)


def test_a_slow_receiver_behind_credits() -> None:
    run = LosslessRun(spec(flow_control="credits"))
    drain(run, "h4", 10)
    run.message("h0", "h4", 60)
    run.message("h1", "h5", 60)
    run.play()
    answer = explain(run.evidence(ranks=["h1", "h5"]), 0)
    assert answer.cause == "credit"
    assert (answer.held[0].kind, answer.held[0].root) == ("slow_receiver", "h4")


def test_a_buffer_smaller_than_the_round_trip_is_no_congestion() -> None:
    run = LosslessRun(spec(flow_control="credits", credit_kb=17, link_delay_us=20.0))
    run.message("h0", "h1", 100)
    run.play()
    answer = explain(run.evidence(), 0)
    assert answer.cause == "credit"
    assert {wait.kind for wait in answer.held} == {"round_trip"}


def colliding() -> LosslessRun:
    """Two flows on the first of two uplinks."""
    run = LosslessRun(spec(spines=2), lambda fabric: VirtualFabric(fabric, uplink_of=lambda leaf, metadata: 0))
    run.message("h0", "h4", 60)
    run.message("h1", "h5", 60)
    run.play()
    return run


def test_a_link_that_was_down_is_named_where_its_load_went() -> None:
    run = colliding()
    run.fault("link_down", "leaf0->spine1 is down", port="leaf0->spine1")
    [tree] = trees(run.evidence())
    assert (tree.root.kind, tree.root.where, tree.root.fault) == ("link_down", "leaf0->spine0", "leaf0->spine1 is down")


def test_flows_that_meet_on_an_uplink_collide_and_their_pauses_are_counted_there() -> None:
    evidence = colliding().evidence()
    assert [(tree.root.kind, tree.root.where) for tree in trees(evidence)] == [("collision", "leaf0->spine0")]
    answer = explain(evidence, 0)
    assert answer.cause == "collision"
    assert answer.lost_us["pause"] == 0
    assert {wait.lost for wait in answer.held} == {False}


def test_what_comes_over_a_fast_link_waits_for_a_slow_one() -> None:
    run = LosslessRun(spec(uplink_gbps=40))
    run.message("h0", "h4", 60)
    run.play()
    [tree] = trees(run.evidence())
    assert (tree.root.kind, tree.root.where) == ("slow_link", "leaf0->spine0")


def test_another_class_is_not_held_by_a_pause() -> None:
    """The lossy class goes by at the same ports; only what is lossless stood there."""
    run = LosslessRun(spec(buffer_kb=1024))
    drain(run, "h4", 10)
    run.message("h0", "h4", 100)
    run.message("h1", "h5", 60, dscp=0)
    run.play()
    answer = explain(run.evidence(ranks=["h1", "h5"]), 0)
    assert answer.held == ()
    assert answer.lost_us["pause"] == 0


def rated(gbps: float, gap_us: float) -> Explanation:
    """A flow whose packets come `gap_us` apart, and a NIC that says that congestion control gave it so much."""
    run = LosslessRun(spec())
    run.message("h0", "h4", 60, dscp=DATA, qp=17, gap_us=gap_us)
    run.play()
    raw = run.raw()
    step = np.zeros(1, TRACE_DTYPE)
    step["t_ns"], step["kind"], step["arg"] = START_NS, TraceKind.RATE, 17
    step["wait_ns"], step["port"] = raw.fabric.clock.lab_bps(gbps), raw.fabric.nic("h0").index
    return explain(Evidence.of(changed(raw, trace=np.concatenate((step, raw.trace)))), 0)


def test_a_nic_that_congestion_control_holds_back() -> None:
    packet_us = (4096 + 58 + 24) * 8 / 1e3 / 100
    answer = rated(25, gap_us=4 * packet_us)
    assert answer.cause == "rate"
    assert answer.rate_gbps == pytest.approx(25, rel=0.01)
    assert answer.lost_us["rate"] == pytest.approx(59 * 3 * packet_us, rel=0.02)
    assert "held by congestion control, 25 Gb/s on average" in answer.sentence
    # What is longer than the rate asks for is not the rate's doing.
    slack = rated(25, gap_us=8 * packet_us)
    assert slack.lost_us["rate"] == pytest.approx(answer.lost_us["rate"], rel=0.02)
    assert rated(100, gap_us=4 * packet_us).lost_us["rate"] == 0


def test_time_is_counted_in_lab_units_of_the_fabric() -> None:
    run = slow_receiver()
    assert run.fabric.fabric.clock.lab_ns(1) == US
