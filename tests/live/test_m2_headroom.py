"""The exercise m2_headroom: losses in spite of PFC, exactly as many as headroom is short of a round trip."""

from __future__ import annotations

import math

import pytest

from labs.lab import load
from tests.live.exercise import LIVE, play_alone
from topologies import headroom
from topologies.units import BYTES_PER_KB, WIRE_OVERHEAD_BYTES

pytestmark = LIVE

LAB = load("m2_headroom")
FRAME_BYTES = LAB.fabric.mtu_bytes + 58  # as tcpdump shows it, of a packet in the middle of a message


def still_coming(waits_for_a_frame: bool) -> int:
    """Frames that still arrive when the peer was told to stop: those on the way, until the pause has got there.

    The last frame below XOFF has just arrived; the peer may have begun others until one delay, and the PFC frame's own
    time, from now, and what it has begun takes its own time and one delay to come.
    """
    bytes_a_us = LAB.fabric.link_gbps * 1e3 / 8
    frame = FRAME_BYTES + WIRE_OVERHEAD_BYTES
    told = headroom.PFC_FRAME_BYTES + WIRE_OVERHEAD_BYTES + (frame if waits_for_a_frame else 0)
    return math.floor((2 * LAB.fabric.link_delay_us * bytes_a_us + told + frame) / frame)


@pytest.mark.parametrize("headroom_kb", [0, 64, 120])
def test_what_does_not_fit_into_headroom_is_lost(headroom_kb: int) -> None:
    run = play_alone(LAB.variant(f"{headroom_kb} KB")).summary
    fit = headroom_kb * BYTES_PER_KB // FRAME_BYTES
    least, most = still_coming(waits_for_a_frame=False) - fit, still_coming(waits_for_a_frame=True) - fit
    assert least >= 1, "a sweep without losses proves nothing"
    assert least <= run["drops"] <= most
    assert run["drops_by_reason"] == {"headroom": run["drops"]}
    assert run["retransmitted_packets"] >= run["drops"]


@pytest.mark.parametrize("variant", ["132 KB", "auto"])
def test_above_the_formula_nothing_is_lost(variant: str) -> None:
    spec = LAB.variant(variant).fabric
    needed = headroom.physical_bytes(spec.link_gbps, spec.link_delay_us, FRAME_BYTES)
    run = play_alone(LAB.variant(variant)).summary
    assert run["drops"] == run["retransmitted_packets"] == 0
    assert run["pauses"] > 0
    # And not because nothing came: it was full but for the last frames.
    assert still_coming(waits_for_a_frame=False) * FRAME_BYTES <= run["headroom_peak_bytes"]["leaf0"] <= needed
