"""The runner against a real fabric: what a run records."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from labs.lab import Lab
from labs.measure.results import summarise
from labs.runner_play import Played, Run, Silent
from labs.runner_session import Session
from labs.workload import RingAllReduce
from topologies.spec import FabricSpec

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
]

FABRIC = FabricSpec(leaves=2, spines=2, hosts_per_leaf=2, slowdown=10_000)
LAB = Lab(name="live_test", module=0, title="A test", question="?", fabric=FABRIC, workload=RingAllReduce(128 * 1024),
          policies=("ecmp", "dlb"), iterations=2)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(LAB) as session:
        yield session


def play(session: Session, lab: Lab = LAB, policy: str = "ecmp", seed: int = 1) -> Played:
    return Run(session, lab, policy, seed, Silent()).play()


@pytest.mark.parametrize("policy", ["ecmp", "group", "flowlet", "dlb", "spray"])
def test_every_policy_reduces_right_and_loses_nothing(session: Session, policy: str) -> None:
    played = play(session, policy=policy)
    assert played.reason is None
    summary = summarise(played.raw)
    assert summary["wrong"] == 0
    assert summary["errors"] == []
    assert summary["packets"]["lost_in_switch"] == 0
    assert summary["packets"]["in_flight"] == 0
    assert summary["packets"]["sent"] == summary["packets"]["delivered"] + summary["packets"]["dropped"]
    assert summary["jct_ratio"] > 1.0
    assert len(played.raw.iterations) == 3
    for iteration in played.raw.iterations:
        starts = [rank.first_tx_ns for rank in iteration.ranks]
        assert None not in starts
        # Whatever the machine was doing: never before the common instant.
        assert all(start is not None and start >= iteration.start_ns for start in starts)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_collisions_are_predicted_from_hash_and_path_table(session: Session, seed: int) -> None:
    size_bytes = 512 * 1024
    raw = play(session, LAB.with_overrides([f"size_bytes={size_bytes}"]), seed=seed).raw
    factor = raw.predicted["factor"]
    assert summarise(raw)["jct_ratio"] == pytest.approx(factor, rel=0.15)
    uplinks = [port.index for leaf in raw.fabric.leaves() for port in raw.fabric.uplinks(leaf)]
    carried = raw.after.ports["tx_bytes"][uplinks] - raw.before.ports["tx_bytes"][uplinks]
    of_one_flow = size_bytes * len(raw.iterations)  # 2(n-1)/n is 1 for two ranks
    assert carried.max() / of_one_flow == pytest.approx(factor, rel=0.05)


def test_seeds_repeat_their_ports(session: Session) -> None:
    one, again, other = ([role.key for role in play(session, seed=seed).raw.flow_ranks] for seed in (5, 5, 6))
    assert one == again
    assert one != other


def test_jitter_delays_the_start(session: Session) -> None:
    raw = play(session, LAB.with_overrides(["jitter_us=20", "compute_us=5"])).raw
    late_us = [raw.fabric.clock.hardware_us(rank.first_tx_ns - iteration.start_ns)
               for iteration in raw.iterations for rank in iteration.ranks if rank.first_tx_ns is not None]
    assert max(late_us) > 5
    assert min(late_us) >= 0
    assert max(late_us) <= 21


def test_several_queue_pairs_a_connection(session: Session) -> None:
    raw = play(session, LAB.with_overrides(["qps_per_connection=3"])).raw
    assert len(raw.flow_ranks) == 12
    assert summarise(raw)["wrong"] == 0
