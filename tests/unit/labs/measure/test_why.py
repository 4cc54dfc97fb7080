"""Every planted cause is found, at the place where it was planted, with numbers that fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.measure.evidence import Evidence, reordered
from labs.measure.why import CAUSES, Explanation, explain, worst_iteration
from tests.unit.labs.measure.synthetic import PLANTED, changed, planted, run, spread
from topologies.errors import LabError


def explained(cause: str) -> Explanation:
    return explain(Evidence.of(planted(cause)), 1)


@pytest.mark.parametrize("cause", PLANTED)
def test_the_planted_cause_is_found(cause: str) -> None:
    answer = explained(cause)
    assert answer.cause == cause
    assert answer.cause in CAUSES
    assert answer.sentence.startswith(f"Rank {answer.rank} ({answer.host}) was last in iteration 1: ")


def test_every_cause_can_be_planted() -> None:
    assert {*PLANTED, "pause", "credit", "rate"} == set(CAUSES)  # those three: test_pauses.py


def test_collision_names_link_sharers_and_share() -> None:
    answer = explained("collision")
    assert answer.ring in (0, 1, 2)  # ring 3 had an uplink of its own
    assert answer.critical is not None
    assert answer.critical.rank == 4 + answer.ring
    assert answer.links[0].link == "leaf1->spine2"
    assert {s.rank for s in answer.shared_with} == {4, 5, 6} - {answer.critical.rank}
    assert [s.share for s in answer.shared_with] == pytest.approx([1 / 3, 1 / 3], abs=0.02)
    assert answer.time_us is not None
    # It lost two thirds of the link: about two ideals.
    assert answer.lost_us["collision"] == pytest.approx(2 * answer.ideal_us, rel=0.1)
    for word in ("leaf1->spine2", "(33%)", f"rank {answer.critical.rank}"):
        assert word in answer.sentence


def test_the_critical_connection_is_followed_upstream() -> None:
    """The rank that is last need not be the one that receives the slow flow: then the ring waited for that flow."""
    raw = planted("collision")
    last = raw.iterations[1]
    latest = max(rank.end_ns or 0 for rank in last.ranks)
    moved = replace(last, ranks=tuple(
        replace(rank, end_ns=latest + 1_000_000) if rank.rank == 1 else rank for rank in last.ranks))
    answer = explain(Evidence.of(changed(raw, iterations=(raw.iterations[0], moved))), 1)
    assert answer.rank == 1
    assert answer.cause == "collision"
    assert "Its ring waited for rank 5 -> rank 9, flow h5->h9" in answer.sentence


def test_drop_names_place_count_and_repairs() -> None:
    answer = explained("drop")
    assert set(answer.drops) == {"leaf1->spine2 (tail)"}
    assert answer.critical is not None
    assert answer.critical.drops == answer.drops["leaf1->spine2 (tail)"] == answer.links[0].drops
    assert answer.critical.sent_again > 0
    assert answer.lost_us["drop"] > answer.lost_us["collision"]
    assert "leaf1->spine2 (tail)" in answer.sentence
    assert "again" in answer.sentence


def test_reordering_is_not_mistaken_for_loss() -> None:
    answer = explained("reordering")
    assert not answer.drops
    assert answer.critical is not None
    assert answer.critical.reordered > 0
    assert "Nothing was dropped" in answer.sentence
    assert len(answer.links) > 4  # it went everywhere


def test_late_start_and_host_acquit_the_fabric() -> None:
    late, slow = explained("late_start"), explained("host")
    assert late.ring == slow.ring - 1 == 1
    assert late.lost_us["late_start"] == pytest.approx(40, abs=0.5)
    assert slow.lost_us["host"] == max(slow.lost_us.values())
    assert late.sentence.endswith("The fabric is not to blame.")
    assert slow.sentence.endswith("The fabric is not to blame.")


def test_nothing_wrong_is_said() -> None:
    assert "Nothing was wrong" in explained("none").sentence


def test_within_five_per_cent_of_the_ideal_nothing_is_looked_for() -> None:
    raw = planted("collision")
    easy = changed(raw, workload={**raw.workload, "ideal_us": (explained("collision").time_us or 0) / 1.04})
    assert explain(Evidence.of(easy), 1).cause == "none"


def test_a_rank_that_never_finished() -> None:
    raw = planted("drop")
    last = raw.iterations[-1]
    dead = replace(last, ranks=(*last.ranks[:8], replace(last.ranks[8], end_ns=None, error="retry count exceeded"),
                                *last.ranks[9:]))
    answer = explain(Evidence.of(changed(raw, iterations=(raw.iterations[0], dead))), 1)
    assert (answer.rank, answer.time_us, answer.cause) == (8, None, "drop")
    assert answer.sentence.startswith("Rank 8 (h8) never finished iteration 1: retry count exceeded.")


def test_a_rank_that_died_without_a_packet() -> None:
    raw = planted("none")
    last = raw.iterations[-1]
    dead = replace(last, start_ns=last.start_ns + 10**12, ranks=tuple(
        replace(rank, end_ns=None, first_tx_ns=None, error="killed") for rank in last.ranks))
    answer = explain(Evidence.of(changed(raw, iterations=(dead,))), 1)
    assert answer.cause == "host"
    assert answer.time_us is None


def test_only_inbound_connections_matter_where_there_is_no_ring() -> None:
    raw = planted("collision")
    burst = changed(raw, workload={**raw.workload, "collective": "permutation"})
    answer = explain(Evidence.of(burst), 1)
    assert [c.peer for c in answer.connections] == [answer.rank]
    assert answer.cause == "collision"


def test_a_rank_that_only_sends_is_late_for_its_own_data() -> None:
    raw = planted("collision")
    one = tuple(role for role in raw.flow_ranks if role.rank == 5)
    last = raw.iterations[1]
    sender = replace(last, ranks=tuple(rank for rank in last.ranks if rank.rank == 5))
    burst = changed(raw, workload={**raw.workload, "collective": "incast"}, flow_ranks=one,
                    iterations=(raw.iterations[0], sender))
    answer = explain(Evidence.of(burst), 1)
    assert [(c.rank, c.peer) for c in answer.connections] == [(5, 9)]
    assert "Its data to rank 9 was under way" in answer.sentence


def test_flows_to_one_receiver_lose_nothing_to_each_other_on_its_link() -> None:
    raw = planted("collision")
    meeting = tuple(replace(role, peer=8) for role in raw.flow_ranks)
    burst = changed(raw, workload={**raw.workload, "collective": "incast"}, flow_ranks=meeting)
    answer = explain(Evidence.of(burst), 1)
    assert all(link.lost_us == 0 for link in answer.links if link.link.startswith("leaf2->h"))


def test_the_worst_iteration_is_a_measured_one() -> None:
    raw = run(spread, iterations=2, warmup=1, size_bytes=64 * 1024)
    slow = replace(raw.iterations[2], ranks=tuple(
        replace(rank, end_ns=(rank.end_ns or 0) + 9_000_000) for rank in raw.iterations[2].ranks))
    slowest = replace(raw.iterations[0], ranks=tuple(
        replace(rank, end_ns=(rank.end_ns or 0) + 99_000_000) for rank in raw.iterations[0].ranks))
    assert worst_iteration(Evidence.of(changed(raw, iterations=(slowest, raw.iterations[1], slow)))) == 2


def test_unknown_iteration() -> None:
    with pytest.raises(LabError) as error:
        explain(Evidence.of(planted("none")), 9)
    assert error.value.remedy == "one of: 0, 1"


def test_an_explanation_is_plain_data() -> None:
    import json

    answer = explained("drop")
    assert json.loads(json.dumps(answer.to_dict()))["cause"] == "drop"


def test_journeys_follow_every_packet() -> None:
    raw = planted("drop")
    journeys = Evidence.of(raw).journeys
    assert len(journeys) == int(raw.after.flows["sent_frames"].sum())
    assert int((journeys["dropped"] > 0).sum()) == int(raw.after.flows["dropped_frames"].sum())
    assert (journeys["end_ns"] > journeys["sent_ns"]).all()
    assert (journeys["copy"] > 0).any()


def test_reordering_counts_overtaken_packets_only() -> None:
    assert not reordered(Evidence.of(planted("collision")).journeys).any()
    assert not reordered(Evidence.of(planted("drop")).journeys).any()  # sent again is not out of order
    assert reordered(Evidence.of(planted("reordering")).journeys).any()
