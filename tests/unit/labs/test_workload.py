"""Who sends to whom."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.agents import collectives
from labs.workload import Incast, Permutation, RingAllReduce, Workload
from topologies.spec import FabricSpec

M5 = FabricSpec(leaves=4, spines=4, hosts_per_leaf=4)


def test_rings_across_leaves_have_one_host_of_each_leaf() -> None:
    job = RingAllReduce(65536).plan(M5)
    assert [rank.host for rank in job.ranks if rank.ring == 1] == ["h1", "h5", "h9", "h13"]
    assert [(job.ranks[c.source].host, job.ranks[c.target].host) for c in job.channels if c.ring == 1] == [
        ("h1", "h5"), ("h5", "h9"), ("h9", "h13"), ("h13", "h1")]
    assert [rank.index for rank in job.ranks] == list(range(16))


def test_rings_may_be_named() -> None:
    job = RingAllReduce(65536, rings=[["h0", "h1"], ["h2", "h3", "h4"]]).plan(M5)
    assert [(c.source, c.target) for c in job.channels] == [(0, 1), (1, 0), (2, 3), (3, 4), (4, 2)]


def test_ideal_times() -> None:
    assert RingAllReduce(1_000_000).communication_us(M5) == pytest.approx(1.5 * 80)
    assert Incast(1_000_000, senders=3).communication_us(M5) == pytest.approx(3 * 80)
    assert Permutation(1_000_000).communication_us(M5) == pytest.approx(80)


def test_incast_takes_senders_of_other_leaves_first() -> None:
    job = Incast(4096, senders=13, receiver="h5").plan(M5)
    assert job.ranks[0].host == "h5"
    assert [rank.host for rank in job.ranks[1:5]] == ["h0", "h1", "h2", "h3"]
    assert job.ranks[13].host == "h4"
    assert {(c.source, c.target) for c in job.channels} == {(i, 0) for i in range(1, 14)}


@given(leaves=st.integers(2, 6), hosts_per_leaf=st.integers(1, 5), seed=st.integers(0, 1000))
def test_a_permutation_crosses_leaves_and_hits_everybody_once(leaves: int, hosts_per_leaf: int, seed: int) -> None:
    job = Permutation(4096, seed=seed).plan(FabricSpec(leaves=leaves, hosts_per_leaf=hosts_per_leaf))
    everybody = list(range(len(job.ranks)))
    assert sorted(c.source for c in job.channels) == everybody
    assert sorted(c.target for c in job.channels) == everybody
    assert all(c.source // hosts_per_leaf != c.target // hosts_per_leaf for c in job.channels)


@pytest.mark.parametrize("workload", [
    RingAllReduce(65536), RingAllReduce(4096, rings=[["h0", "h9", "h3"]], qps_per_connection=2),
    Incast(4096, senders=6, qps_per_connection=3), Incast(4096, senders=["h1", "h2"]), Permutation(4096, seed=5)])
def test_ranks_can_be_made_and_agree_on_the_messages(workload: Workload) -> None:
    job = workload.plan(M5)
    machines = {rank.index: collectives.create(workload.agent, workload.arguments(job, rank)) for rank in job.ranks}
    for rank, machine in machines.items():
        incoming = [c for c in job.channels if c.target == rank]
        outgoing = [c for c in job.channels if c.source == rank]
        assert len(machine.arrivals) == len(incoming)
        assert len(machine.departures) == len(outgoing)
        for channel, lanes in zip(incoming, machine.arrivals, strict=True):
            mine = [c for c in job.channels if c.source == channel.source].index(channel)
            assert machines[channel.source].departures[mine] == lanes
            assert len(lanes) == workload.qps_per_connection


def test_what_the_results_record() -> None:
    recorded = RingAllReduce(65536).describe(M5)
    assert recorded["collective"] == "all_reduce"
    assert (recorded["ranks"], recorded["groups"]) == (4, 4)
    assert Counter(type(value) for value in recorded.values()).keys() <= {int, float, str}


def test_lists_come_from_the_command_line() -> None:
    assert Incast(4096).with_overrides(["senders=h1,h2", "receiver=h7"]).plan(M5).ranks[2].host == "h2"
    assert len(Incast(4096).with_overrides(["senders=7"]).plan(M5).channels) == 7
    assert len(RingAllReduce(4096).with_overrides(["rings=h0,h4;h1,h5,h9"]).plan(M5).channels) == 5
