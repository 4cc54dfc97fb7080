"""DLB against a fluid model: where the elephants go, how soon, and that they stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.policies.dlb import Dlb, DlbParameters
from controllers.policy import LeafLoad, LeafView
from tests.unit.controllers.fluid import FluidFabric, FluidFlow

PERIOD_US = DlbParameters().period_us
FEW_PERIODS = 6
ACK_GBPS = 0.5


def dlb(**parameters: float) -> Dlb:
    policy = Dlb.create(parameters)
    assert isinstance(policy, Dlb)
    return policy


def run(fabric: FluidFabric, periods: int, jitter: np.random.Generator | None = None) -> None:
    for _ in range(periods):
        fabric.period(PERIOD_US * (1.0 if jitter is None else jitter.uniform(0.8, 1.6)))


def elephants_and_acks(slots: list[int], elephants: int) -> list[FluidFlow]:
    return [FluidFlow(0, slot) if number < elephants else FluidFlow(0, slot, ACK_GBPS, elastic=False)
            for number, slot in enumerate(slots)]


slots_of_8 = st.lists(st.integers(0, 255), min_size=8, max_size=8, unique=True)


@settings(max_examples=25, deadline=None)
@given(slots=slots_of_8, seed=st.integers(0, 1000))
def test_four_elephants_that_never_pause_get_an_uplink_each_and_stay(slots: list[int], seed: int) -> None:
    fabric = FluidFabric(dlb(), elephants_and_acks(slots, 4))
    jitter = np.random.default_rng(seed)
    run(fabric, FEW_PERIODS, jitter)
    assert fabric.elephants_per_uplink() == [1, 1, 1, 1]
    settled = fabric.now_us
    run(fabric, 150, jitter)
    assert [move for move in fabric.moves if move[0] > settled] == []


@settings(max_examples=25, deadline=None)
@given(slots=slots_of_8, on_us=st.floats(20, 400), off_us=st.floats(1, 400), seed=st.integers(0, 1000))
def test_flows_that_pause_together_find_their_uplinks_as_they_left_them(
        slots: list[int], on_us: float, off_us: float, seed: int) -> None:
    fabric = FluidFabric(dlb(), elephants_and_acks(slots, 4),
                         active=lambda _flow, now_us: now_us % (on_us + off_us) < on_us)
    jitter = np.random.default_rng(seed)
    run(fabric, 12 + int(3 * (on_us + off_us) / PERIOD_US), jitter)
    assert fabric.elephants_per_uplink() == [1, 1, 1, 1]
    settled = fabric.now_us
    run(fabric, 200, jitter)
    # An idle entry of a mouse may be spread anew in a pause: that reorders nothing.
    assert [move for move in fabric.moves if move[0] > settled and move[2] in slots[:4]] == []
    assert fabric.elephants_per_uplink() == [1, 1, 1, 1]


@settings(max_examples=10, deadline=None)
@given(data=st.data(), on_us=st.floats(100, 400), off_us=st.floats(0, 200))
def test_a_job_of_four_rings_over_four_leaves_converges(data: st.DataObject, on_us: float, off_us: float) -> None:
    """Here a collision at one leaf hides those at the others: they come to light one after another."""
    flows = []
    for leaf in range(4):
        slots = data.draw(slots_of_8)
        flows += [FluidFlow(leaf, slots[ring], ring=ring) for ring in range(4)]
        flows += [FluidFlow(leaf, slot, ACK_GBPS, elastic=False) for slot in slots[4:]]
    fabric = FluidFabric(dlb(), flows, leaves=4, active=lambda _flow, now_us: now_us % (on_us + off_us) < on_us)
    run(fabric, 40)
    assert [fabric.elephants_per_uplink(leaf) for leaf in range(4)] == [[1, 1, 1, 1]] * 4
    settled = fabric.now_us
    run(fabric, 100)
    assert [move for move in fabric.moves if move[0] > settled] == []


@pytest.mark.parametrize("flows", [5, 8, 9, 12, 16])
def test_more_elephants_than_uplinks_are_spread_evenly(flows: int) -> None:
    random = np.random.default_rng(flows)
    slots = random.choice(256, flows, replace=False).tolist()
    fabric = FluidFabric(dlb(), elephants_and_acks(slots, flows))
    run(fabric, 30)
    counts = fabric.elephants_per_uplink()
    assert max(counts) - min(counts) <= 1
    settled = fabric.now_us
    run(fabric, 200)
    assert [move for move in fabric.moves if move[0] > settled] == []


def test_one_elephant_at_100_percent_is_told_from_two_at_50() -> None:
    # Slots 0 and 4 begin on uplink 0, slots 1 and 2 on the next two; uplink 3 is idle.
    fabric = FluidFabric(dlb(), elephants_and_acks([0, 4, 1, 2], 4))
    run(fabric, 2)
    assert fabric.elephants_per_uplink() == [1, 1, 1, 1]
    assert len(fabric.moves) == 1


def test_seven_flows_of_half_an_uplink_do_not_wander() -> None:
    """Two fill an uplink exactly, without a queue: they are not held back, and nothing better exists."""
    flows = [FluidFlow(0, slot, limit_gbps=50.0) for slot in (0, 4, 1, 5, 2, 6, 3)]
    fabric = FluidFabric(dlb(), flows)
    run(fabric, 300)
    assert fabric.moves == []


def test_a_small_flow_beside_an_elephant_moves_and_the_elephant_stays() -> None:
    """One shared uplink, another idle: the smaller of the two that would do goes."""
    flows = [FluidFlow(0, 0), FluidFlow(0, 4, limit_gbps=30.0, elastic=False), FluidFlow(0, 1), FluidFlow(0, 2)]
    fabric = FluidFabric(dlb(), flows)
    run(fabric, 100)
    assert [slot for _, _, slot in fabric.moves] == [4]
    assert fabric.tables[0][4] == 3


def test_no_move_that_only_swaps_the_hot_spot() -> None:
    flows = [FluidFlow(0, slot) for slot in (0, 4, 1, 2, 3)]  # 2, 1, 1, 1: it cannot be better
    fabric = FluidFabric(dlb(), flows)
    run(fabric, 300)
    assert fabric.moves == []


def test_acks_alone_never_move() -> None:
    flows = [FluidFlow(0, slot, ACK_GBPS, elastic=False) for slot in range(0, 64, 4)]  # all on uplink 0
    fabric = FluidFabric(dlb(), flows)
    run(fabric, 100)
    assert fabric.moves == []


def test_a_dead_uplink_is_left_at_once_and_shunned() -> None:
    fabric = FluidFabric(dlb(), elephants_and_acks([0, 1, 2, 3], 4))
    run(fabric, 5)
    fabric.up[0, 2] = False
    run(fabric, 1)
    assert 2 not in fabric.tables[0]
    run(fabric, 50)
    assert 2 not in fabric.tables[0]
    assert sorted(fabric.elephants_per_uplink()) == [0, 1, 1, 2]


def test_entries_that_nobody_uses_wait_on_the_least_loaded_uplinks() -> None:
    fabric = FluidFabric(dlb(), elephants_and_acks([0, 1], 2))
    run(fabric, 40)
    assert {int(uplink) for slot, uplink in enumerate(fabric.tables[0]) if slot > 1} == {2, 3}


def test_a_forgotten_flow_no_longer_counts() -> None:
    stopped_us = 3000.0
    flows = [FluidFlow(0, 0), FluidFlow(0, 1), FluidFlow(0, 2)]
    fabric = FluidFabric(dlb(memory_us=500.0), flows, active=lambda flow, now_us: flow != 2 or now_us < stopped_us)
    run(fabric, 200)
    free = {int(uplink) for slot, uplink in enumerate(fabric.tables[0]) if slot > 2}
    assert free == {2, 3}


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10_000), uplinks=st.integers(1, 8))
def test_whatever_is_measured_the_table_is_valid_and_on_live_uplinks(seed: int, uplinks: int) -> None:
    random = np.random.default_rng(seed)
    policy = dlb()
    leaf = LeafView("leaf0", 0, random.choice([40.0, 100.0], uplinks), 256, 1)
    entries = policy.initial(leaf)
    for step in range(10):
        up = random.random(uplinks) < 0.8
        load = LeafLoad(
            period_us=float(random.uniform(1, 100)), queue_bytes=random.uniform(0, 1e6, uplinks),
            tx_gbps=random.uniform(0, 100, uplinks), up=up,
            entry_bytes=random.pareto(1.0, 256) * 1e4 * (random.random(256) < 0.3),
            idle_us=np.where(random.random(256) < 0.5, np.inf, random.exponential(100, 256)))
        before = entries.copy()
        after = policy.update(leaf, load, entries, step * 16.0)
        assert (entries == before).all()
        assert after.shape == (256,)
        assert after.min() >= 0
        assert after.max() < uplinks
        if up.any():
            assert up[after].all()
        entries = after
