"""Who sends to whom."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.agents import collectives
from labs.cli import sentence
from labs.workload import Flow, Incast, Permutation, RingAllReduce, Transfers, Workload
from topologies.errors import LabError
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
    Incast(4096, senders=6, qps_per_connection=3), Incast(4096, senders=["h1", "h2"]), Permutation(4096, seed=5),
    Transfers(4096, flows=[Flow("h1", "h2"), Flow("h1", "h2"), Flow("h2", "h1"), Flow("h3", "h2")], admission_kb=1)])
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


def test_transfers_have_a_rank_for_each_host_and_a_channel_for_each_flow() -> None:
    job = Transfers(4096, flows=[Flow("h5", "h0", dscp=34), Flow("h0", "h5", start_us=3, size_bytes=512),
                                 Flow("h5", "h0")]).plan(M5)
    assert [rank.host for rank in job.ranks] == ["h0", "h5"]
    assert [(c.source, c.target, c.size_bytes, c.dscp, c.start_us) for c in job.channels] == [
        (1, 0, 4096, 34, 0), (0, 1, 512, 0, 3), (1, 0, 4096, 0, 0)]
    assert job.between("h5", "h0") == [0, 2]


def test_the_ideal_of_transfers_is_that_of_the_busiest_nic() -> None:
    flows = [Flow("h0", "h4"), Flow("h1", "h4", size_bytes=500_000), Flow("h0", "h5")]
    assert Transfers(1_000_000, flows=flows).communication_us(M5) == pytest.approx(160)  # h0 sends twice
    late = Transfers(1_000_000, flows=[*flows, Flow("h6", "h7", start_us=100)])
    assert late.communication_us(M5) == pytest.approx(180)
    later = Transfers(1_000_000, flows=[*flows, Flow("h0", "h7", start_us=10)])
    assert later.communication_us(M5) == pytest.approx(240)


def test_quick_halves_every_flow() -> None:
    quick = Transfers(8192, flows=[Flow("h0", "h1"), Flow("h0", "h1", size_bytes=2048)]).quick()
    assert [channel.size_bytes for channel in quick.plan(M5).channels] == [4096, 1024]


def test_congestion_control_is_a_preset_with_changes() -> None:
    assert Incast(4096).congestion_control(M5) is None
    control = Incast(4096, dcqcn="hpcc", dcqcn_params={"g": 0.5}).with_overrides(
        ["dcqcn.ai_rate_mbps=200", "dcqcn.threshold=3", "dcqcn.alpha_per_cnp=yes"]).congestion_control(M5)
    assert control is not None
    assert (control.g, control.ai_rate_mbps, control.threshold, control.alpha_per_cnp) == (0.5, 200, 3, True)
    assert control.hai_rate_mbps == 200  # 50 for each 25 Gb/s
    recorded = Incast(4096, dcqcn="paper").describe(M5)
    assert recorded["dcqcn_params"]["time_reset_us"] == 55


@pytest.mark.parametrize(("make", "expected"), [
    (lambda: Incast(4096, dcqcn="papr"), "unknown DCQCN preset 'papr' (did you mean paper?)"),
    (lambda: Incast(4096, dcqcn_params={"gg": 1}), "unknown DCQCN parameter 'gg' (did you mean g?)"),
    (lambda: Incast(4096, dcqcn_params={"threshold": "x"}), "dcqcn.threshold='x' is not a whole number"),
    (lambda: Incast(4096, dcqcn_params={"alpha_per_cnp": "maybe"}), "dcqcn.alpha_per_cnp='maybe' is neither true nor "
                                                                     "false"),
    (lambda: Incast(4096, dcqcn_params={"g": 3}), "dcqcn: g must be 0..1, not 3.0"),
    (lambda: Incast(4096, admission_kb=0), "admission_kb=0 is out of range (admission_kb takes 1 to 1,048,576 KB of "
                                           "1,024 bytes)"),
    (lambda: Incast(4096).with_overrides(["dcqcn_params=3"]),
     "dcqcn_params cannot be set as a whole (for example --set dcqcn.ai_rate_mbps=200)"),
    (lambda: Transfers(4096), 'flows is empty (for example flows=(Flow("h0", "h4"), Flow("h1", "h4")))'),
    (lambda: Transfers(4096, flows=[("h0", "h1")]),  # type: ignore[list-item]
     """flows: ('h0', 'h1') is not a Flow (write Flow("h0", "h4"))"""),
    (lambda: Flow("h0", "h0"), "a flow from h0 to itself (it needs two hosts)"),
    (lambda: Flow("h0", "h1", dscp=64), "dscp=64 is out of range (dscp takes 1 to 63)"),
    (lambda: Flow("h0", "h1", size_bytes=301), "size_bytes=301 is not a whole number of float32 (a multiple of 4)"),
    (lambda: Transfers(4096, flows=[Flow("h0", "h99")]).plan(M5),
     "flows: there is no host 'h99' (hosts are h0 to h15; did you mean h9?)"),
])
def test_what_no_workload_can_be(make: Callable[[], object], expected: str) -> None:
    with pytest.raises(LabError) as caught:
        make()
    assert sentence(caught.value) == expected


def test_what_the_results_record() -> None:
    recorded = RingAllReduce(65536).describe(M5)
    assert recorded["collective"] == "all_reduce"
    assert (recorded["ranks"], recorded["groups"]) == (4, 4)
    assert json.loads(json.dumps(recorded)) == recorded


def test_lists_come_from_the_command_line() -> None:
    assert Incast(4096).with_overrides(["senders=h1,h2", "receiver=h7"]).plan(M5).ranks[2].host == "h2"
    assert len(Incast(4096).with_overrides(["senders=7"]).plan(M5).channels) == 7
    flows = Transfers(4096, flows=[Flow("h0", "h1")]).with_overrides(["flows=h0->h4, h1>h4:34"]).plan(M5).channels
    assert [(c.source, c.target, c.dscp) for c in flows] == [(0, 2, 0), (1, 2, 34)]
    with pytest.raises(LabError, match="'h0 to h4' is not a flow"):
        Transfers(4096, flows=[Flow("h0", "h1")]).with_overrides(["flows=h0 to h4"])
    assert Incast(4096, admission_kb=4).with_overrides(["admission_kb=none"]).admission_kb is None  # type: ignore[attr-defined]
    assert len(RingAllReduce(4096).with_overrides(["rings=h0,h4;h1,h5,h9"]).plan(M5).channels) == 5
