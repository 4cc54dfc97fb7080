"""Bursts on a real fabric: what theory says about an incast and a permutation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from labs.lab import Lab
from labs.measure.results import summarise
from labs.runner_play import Run, Silent
from labs.runner_session import Session
from labs.workload import Incast, Permutation, RingAllReduce, Workload
from topologies.spec import FabricSpec

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
]

LAB = Lab(name="live_bursts", module=0, title="Bursts", question="?", iterations=1, warmup=0,
          fabric=FabricSpec(leaves=2, spines=2, hosts_per_leaf=3, buffer_kb=256, slowdown=10_000),
          workload=Incast(64 * 1024, senders=5, receiver="h0"))


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(LAB, all_hosts=True) as session:
        yield session


def play(session: Session, workload: Workload) -> dict[str, object]:
    played = Run(session, LAB.replace(workload=workload), "dlb", 1, Silent()).play()
    assert played.reason is None
    summary = summarise(played.raw)
    assert summary["wrong"] == 0
    assert summary["packets"]["lost_in_switch"] == 0
    return summary


def test_an_incast_that_fits_takes_as_long_as_the_receivers_link(session: Session) -> None:
    """Four times 48 KB stay below the buffer's 256 KB: nothing is dropped, and the last link is never idle."""
    summary = play(session, Incast(48 * 1024, senders=5, receiver="h0"))
    assert summary["drops"] == 0
    ratio = summary["jct_ratio"]
    assert isinstance(ratio, float)
    assert 1.0 < ratio < 1.3


def test_an_incast_that_does_not_fit_drops_and_still_arrives(session: Session) -> None:
    summary = play(session, Incast(192 * 1024, senders=5, receiver="h0"))
    drops = summary["drops_by_port"]
    assert isinstance(drops, dict)
    assert "leaf0->h0" in drops
    resent = summary["retransmitted_packets"]
    assert isinstance(resent, int)
    assert resent > 0


@pytest.mark.parametrize("workload", [
    Permutation(96 * 1024, seed=3), RingAllReduce(96 * 1024, rings=[["h0", "h3", "h1"], ["h4", "h2"]]),
    Permutation(96 * 1024, qps_per_connection=4)], ids=["permutation", "uneven rings", "four queue pairs"])
def test_other_workloads_arrive_whole(session: Session, workload: Workload) -> None:
    play(session, workload)
