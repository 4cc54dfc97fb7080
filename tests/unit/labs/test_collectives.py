"""All ranks of a collective in one process: messages are delivered in any order, by a wire that copies memory."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.agents.collectives import Collective, Write
from labs.agents.collectives.burst import Burst
from labs.agents.collectives.ring import Ring

Route = dict[tuple[int, int], tuple[int, int]]  # (rank, outgoing channel) -> (rank, its incoming channel)


class Wire:
    """Carries writes between the memories of `ranks`; reads the source when it delivers, as a NIC may."""

    def __init__(self, ranks: Sequence[Collective], route: Route, draw: random.Random) -> None:
        self.ranks, self.route, self.draw = ranks, route, draw
        self.memory = [np.zeros(rank.memory_bytes, np.uint8) for rank in ranks]
        for rank, memory in zip(ranks, self.memory, strict=True):
            rank.attach(memory)
        self.delivered = 0

    def play(self, iteration: int) -> None:
        for rank in self.ranks:
            rank.prepare(iteration)
        flying: list[tuple[int, Write]] = [(i, write) for i, rank in enumerate(self.ranks) for write in rank.begin()]
        while flying:
            source, write = flying.pop(self.draw.randrange(len(flying)))
            target, channel = self.route[source, write.channel]
            data = self.memory[source][write.local_offset : write.local_offset + write.length]
            assert len(data) == write.length > 0
            place = self.memory[target][write.remote_offset : write.remote_offset + write.length]
            assert len(place) == write.length
            place[:] = data
            self.delivered += 1
            flying += [(target, reply) for reply in self.ranks[target].arrived(channel, write.immediate)]


def ring(n: int, elements: int, slice_elements: int, lanes: int, draw: random.Random) -> Wire:
    ranks = [Ring(position, n, elements, slice_elements, lanes) for position in range(n)]
    return Wire(ranks, {(i, 0): ((i + 1) % n, 0) for i in range(n)}, draw)


@settings(max_examples=150, deadline=None)
@given(n=st.integers(2, 8), elements=st.integers(8, 600), slice_elements=st.integers(1, 700), lanes=st.integers(1, 3),
       seed=st.integers(0, 10_000))
def test_ring_sums_right_in_any_order_of_arrival(
    n: int, elements: int, slice_elements: int, lanes: int, seed: int
) -> None:
    wire = ring(n, elements, slice_elements, lanes, random.Random(seed))
    for iteration in range(2):  # the second finds the first one's remains everywhere
        wire.play(iteration)
        for rank in wire.ranks:
            assert rank.received_all
            assert rank.wrong() == 0
    bytes_sent = sum(sum(map(sum, rank.departures)) for rank in wire.ranks)
    assert wire.delivered == 2 * bytes_sent


def test_ring_result_is_the_sum_of_the_inputs() -> None:
    wire = ring(4, 1000, 64, 1, random.Random(1))
    inputs = []
    for rank in wire.ranks:
        rank.prepare(7)
        assert isinstance(rank, Ring)
        inputs.append(rank.data.astype(np.float64))
    wire.play(7)
    for rank in wire.ranks:
        assert isinstance(rank, Ring)
        np.testing.assert_array_equal(rank.data, np.sum(inputs, axis=0))


def test_ring_sends_every_chunk_but_one_twice() -> None:
    n, elements = 4, 4096
    wire = ring(n, elements, 256, 2, random.Random(1))
    sent = [0] * n
    arrived = Ring.arrived

    def count(source: int, write: Write) -> None:
        sent[source] += write.length

    for i, rank in enumerate(wire.ranks):
        rank.prepare(0)
        for write in rank.begin():
            count(i, write)
        for step in range(2 * (n - 1)):
            for index in range(4):
                for write in arrived(rank, 0, step * 4 + index):  # type: ignore[arg-type]
                    count(i, write)
    assert sent == [2 * (n - 1) * elements // n * 4] * n


@pytest.mark.parametrize("n", [2, 3, 4, 8, 256])
def test_ring_pattern_is_exact_in_float32(n: int) -> None:
    last = Ring(n - 1, n, 1024, 64)
    last.attach(np.zeros(last.memory_bytes, np.uint8))
    last.prepare(999)
    exact = last.expected().astype(np.float64)
    assert exact.max() < 2**24
    assert np.array_equal(exact, np.round(exact))


@pytest.mark.parametrize("kind", ["flipped", "stale", "swapped"])
def test_ring_counts_wrong_elements(kind: str) -> None:
    wire = ring(3, 3000, 100, 1, random.Random(3))
    wire.play(0)
    rank = wire.ranks[1]
    assert isinstance(rank, Ring)
    if kind == "flipped":
        rank.data[17] += 1
        assert rank.wrong() == 1
    elif kind == "stale":
        rank._iteration += 1
        assert rank.wrong() == 3000
    else:
        rank.data[0:100], rank.data[100:200] = rank.data[100:200].copy(), rank.data[0:100].copy()
        assert rank.wrong() == 200


def test_ring_refuses_what_cannot_be() -> None:
    rank = Ring(0, 4, 400, 50)
    rank.attach(np.zeros(rank.memory_bytes, np.uint8))
    rank.prepare(0)
    list(rank.arrived(0, 3))
    with pytest.raises(ValueError, match="was not due"):
        list(rank.arrived(0, 3))
    with pytest.raises(ValueError, match="was not due"):
        list(rank.arrived(0, 6 * rank.slices))
    with pytest.raises(ValueError, match="was not due"):
        list(rank.arrived(1, 0))
    for arguments in ((4, 4, 400, 50), (0, 1, 400, 50), (0, 4, 3, 50), (0, 4, 400, 0), (0, 4, 400, 50, 0)):
        with pytest.raises(ValueError, match="of"):
            Ring(*arguments)


@settings(max_examples=50, deadline=None)
@given(senders=st.integers(1, 6), elements=st.integers(4, 300), lanes=st.integers(1, 4), seed=st.integers(0, 1000))
def test_incast_arrives_whole(senders: int, elements: int, lanes: int, seed: int) -> None:
    receiver = Burst(0, elements, list(range(1, senders + 1)), [], lanes)
    ranks = [receiver, *(Burst(i, elements, [], [i - 1], lanes) for i in range(1, senders + 1))]
    wire = Wire(ranks, {(i, 0): (0, i - 1) for i in range(1, senders + 1)}, random.Random(seed))
    for iteration in range(2):
        wire.play(iteration)
        assert [rank.received_all for rank in ranks] == [True] * (senders + 1)
        assert [rank.wrong() for rank in ranks] == [0] * (senders + 1)
    wire.memory[0][0] ^= 1
    assert receiver.wrong() == 1


def test_permutation_arrives_whole() -> None:
    n = 5
    ranks = [Burst(i, 64, [(i - 2) % n], [0]) for i in range(n)]
    wire = Wire(ranks, {(i, 0): ((i + 2) % n, 0) for i in range(n)}, random.Random(0))
    wire.play(3)
    assert all(rank.received_all and rank.wrong() == 0 for rank in ranks)
