"""The path table: matches and entries, differences, and what it predicts for a set of flows."""

from __future__ import annotations

from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.path_table import (
    INDEX_BYTE,
    FlowKey,
    Move,
    difference,
    entry_match,
    flows_per_uplink,
    uplink_of,
    worst_link,
)
from controllers.policy import Index
from topologies.errors import LabError
from topologies.fabricd.binding import flow_hash

sizes = st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 256])
indexes = st.sampled_from(sorted(INDEX_BYTE))


def number(mac: str) -> int:
    return int(mac.replace(":", ""), 16)


@given(size=sizes, index=indexes, byte=st.integers(0, 255), rest=st.integers(0, 2**48 - 1))
def test_every_frame_matches_the_one_entry_that_its_byte_names(size: int, index: Index, byte: int, rest: int) -> None:
    shift = 8 * INDEX_BYTE[index]
    source = rest & ~(0xFF << shift) | byte << shift
    matching = [entry for entry in range(size)
                for match in [entry_match(index, size, entry)]
                if (source ^ number(match.value)) & number(match.mask) == 0]
    assert matching == [byte % size]
    assert uplink_of(np.arange(size), byte) == byte % size


def test_masks_are_those_of_the_metadata() -> None:
    assert entry_match("flow", 256, 0x5A) == ("00:00:5a:00:00:00", "00:00:ff:00:00:00")
    assert entry_match("flowlet", 64, 63) == ("00:00:00:3f:00:00", "00:00:00:3f:00:00")
    assert entry_match("spray", 4, 1) == ("00:00:00:00:01:00", "00:00:00:00:03:00")
    assert entry_match("slot", 256, 255) == ("00:00:00:00:00:ff", "00:00:00:00:00:ff")


@pytest.mark.parametrize(("index", "size", "entry"), [
    ("flow", 48, 0), ("flow", 512, 0), ("flow", 64, 64), ("group", 4, 0)])
def test_what_cannot_be_matched_is_refused(index: Index, size: int, entry: int) -> None:
    with pytest.raises(LabError):
        entry_match(index, size, entry)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=64))
def test_the_difference_turns_one_table_into_the_other(pairs: list[tuple[int, int]]) -> None:
    before, after = (np.array(column) for column in zip(*pairs, strict=True))
    moves = difference(before, after)
    changed = before.copy()
    for move in moves:
        assert changed[move.entry] == move.source != move.target
        changed[move.entry] = move.target
    assert np.array_equal(changed, after)


def test_a_difference() -> None:
    assert difference(np.array([0, 1, 2]), np.array([0, 2, 2])) == [Move(1, 1, 2)]


def test_a_flow_takes_the_uplink_of_its_hash_byte() -> None:
    flows = [FlowKey(0x0A000001, 0x0A000101, 17, port, 4791) for port in range(50_000, 50_100)]
    entries = np.arange(64) % 4
    counts = flows_per_uplink(entries, flows, 7, 4, flow_hash)
    assert counts.sum() == 100
    for flow in flows[:10]:
        byte = flow_hash(7, *flow)
        assert flows_per_uplink(entries, [flow], 7, 4, flow_hash)[byte % 64 % 4] == 1
    assert worst_link(entries, flows, 7, 4, flow_hash) == counts.max()


def test_collisions_of_four_flows_on_four_uplinks_are_those_of_theory() -> None:
    """Balls into bins, the figures that the exercise quotes: mean 2.13; 9.4 %, 70.3 %, 18.75 %, 1.6 %."""
    entries = np.arange(64) % 4
    worst = []
    for seed in range(4000):
        flows = [FlowKey(0x0A000001 + n, 0x0A000101 + n, 17, 49152 + 17 * n, 4791) for n in range(4)]
        worst.append(worst_link(entries, flows, seed << 16 | 1, 4, flow_hash))
    shares = np.bincount(worst, minlength=5)[1:] / len(worst)
    assert mean(worst) == pytest.approx(2.13, abs=0.04)
    assert shares == pytest.approx([0.094, 0.703, 0.1875, 0.016], abs=0.03)
