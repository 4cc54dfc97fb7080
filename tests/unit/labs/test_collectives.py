"""All ranks of a collective in one process: messages are delivered in any order, by a wire that copies memory."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.agents.collectives import Collective, Write
from labs.agents.collectives.burst import ASK, Burst
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
            route = {there: here for here, there in self.route.items()} if write.reply else self.route
            target, channel = route[source, write.channel]
            data = self.memory[source][write.local_offset : write.local_offset + write.length]
            assert len(data) == write.length > 0
            place = self.memory[target][write.remote_offset : write.remote_offset + write.length]
            assert len(place) == write.length
            place[:] = data
            self.delivered += 1
            machine = self.ranks[target]
            react = machine.replied if write.reply else machine.arrived
            flying += [(target, answer) for answer in react(channel, write.immediate)]
            self.watch(flying)

    def watch(self, flying: list[tuple[int, Write]]) -> None:
        """Sees what is on its way, after every delivery."""


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


Pattern = list[tuple[int, int, int]]  # (source, target, elements) of every message


def bursts(pattern: Pattern, lanes: int = 1, admission_bytes: int = 0) -> tuple[list[Burst], Route]:
    """All ranks of a pattern."""
    n = 1 + max(max(source, target) for source, target, _ in pattern)
    outgoing: list[list[tuple[int, int, int]]] = [[] for _ in range(n)]
    incoming: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    route: Route = {}
    for number, (source, target, elements) in enumerate(pattern):
        route[source, len(outgoing[source])] = (target, len(incoming[target]))
        outgoing[source].append((number, elements, sum(other for _, other in incoming[target])))
        incoming[target].append((number, elements))
    return [Burst(incoming[i], outgoing[i], lanes, admission_bytes) for i in range(n)], route


patterns = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(4, 400)), min_size=1, max_size=8).map(
    lambda pattern: [message for message in pattern if message[0] != message[1]]).filter(bool)


@settings(max_examples=100, deadline=None)
@given(pattern=patterns, lanes=st.integers(1, 4), admission_bytes=st.sampled_from([0, 64, 100, 1000, 100_000]),
       seed=st.integers(0, 1000))
def test_messages_arrive_whole_whatever_the_pattern(pattern: Pattern, lanes: int, admission_bytes: int,
                                                    seed: int) -> None:
    ranks, route = bursts(pattern, lanes, admission_bytes)
    wire = AdmittedWire(ranks, route, random.Random(seed), admission_bytes)
    for iteration in range(2):
        wire.play(iteration)
        assert all(rank.received_all for rank in ranks)
        assert [rank.wrong() for rank in ranks] == [0] * len(ranks)
    receiver = ranks[pattern[0][1]]
    receiver._memory[1] += 1
    assert receiver.wrong() == 1
    sent = sum(length for rank in ranks for channel in range(len(rank.outgoing)) for length in rank.lengths(channel))
    asked = len(pattern) * 4 if admission_bytes else 0
    assert sent == sum(elements for _, _, elements in pattern) * 4 + asked


class AdmittedWire(Wire):
    """Sees to it that no more is on its way to anybody than he admits."""

    def __init__(self, ranks: Sequence[Collective], route: Route, draw: random.Random, admission_bytes: int) -> None:
        super().__init__(ranks, route, draw)
        self.admission_bytes = admission_bytes

    def watch(self, flying: list[tuple[int, Write]]) -> None:
        if self.admission_bytes:
            towards = [0] * len(self.ranks)
            for source, write in flying:
                if not write.reply and write.immediate != ASK:
                    towards[self.route[source, write.channel][0]] += write.length
            assert max(towards) <= self.admission_bytes


def test_senders_are_admitted_in_turn() -> None:
    (receiver, *_), _ = bursts([(1, 0, 400), (2, 0, 400), (3, 0, 400)], admission_bytes=1600)
    receiver.attach(np.zeros(receiver.memory_bytes, np.uint8))
    receiver.prepare(0)
    granted = [write.channel for sender in (0, 1, 2) for write in receiver.arrived(sender, ASK)]
    assert granted == [0, 0, 0, 0]  # the first to ask finds everything free: 4 pieces of 400 bytes
    order = []
    for piece in range(4):
        order += [write.channel for write in receiver.arrived(0, piece)]
    assert order == [1, 2, 1, 2]


def test_nothing_is_sent_unasked() -> None:
    ranks, _ = bursts([(1, 0, 400)], admission_bytes=800)
    for rank in ranks:
        rank.attach(np.zeros(rank.memory_bytes, np.uint8))
        rank.prepare(0)
    (ask,) = ranks[1].begin()
    assert (ask.immediate, ask.length, ask.reply) == (ASK, 4, False)
    grants = list(ranks[0].arrived(0, ASK))
    assert [(grant.immediate, grant.reply) for grant in grants] == [(0, True), (1, True), (2, True), (3, True)]
    (data,) = ranks[1].replied(0, 2)
    assert (data.immediate, data.length) == (2, 200)


def test_bursts_refuse_what_cannot_be() -> None:
    ranks, _ = bursts([(1, 0, 400)])
    for rank in ranks:
        rank.attach(np.zeros(rank.memory_bytes, np.uint8))
        rank.prepare(0)
    list(ranks[0].arrived(0, 0))
    for channel, immediate in ((0, 0), (0, 1), (1, 0), (0, ASK)):
        with pytest.raises(ValueError, match="was not due"):
            list(ranks[0].arrived(channel, immediate))
    with pytest.raises(ValueError, match="was not due"):
        list(ranks[1].replied(0, 0))
    with pytest.raises(ValueError, match="nobody replies"):
        Ring(0, 4, 400, 50).replied(0, 0)
    with pytest.raises(ValueError, match="2 elements on 3 lanes"):
        Burst([(0, 2)], [], 3)


def test_messages_differ() -> None:
    """Two messages from one rank to another that change places are noticed."""
    ranks, _ = bursts([(1, 0, 8), (1, 0, 8)])
    for rank in ranks:
        rank.attach(np.zeros(rank.memory_bytes, np.uint8))
        rank.prepare(0)
    sent = ranks[1]._memory[1:]
    ranks[0]._memory[1:9], ranks[0]._memory[9:] = sent[8:], sent[:8]
    assert ranks[0].wrong() == 16


def test_ring_says_how_long_its_writes_are() -> None:
    assert sum(Ring(0, 4, 4096, 256).lengths(0)) == 2 * 3 * 4096
