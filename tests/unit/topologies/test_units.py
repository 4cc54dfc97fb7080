"""Slow motion converts without losing anything."""

import pytest

from topologies.units import LabClock, interface_mtu_bytes, mtu_frame_bytes, serialisation_ns


def test_a_hundred_gigabits_ten_thousand_times_slower() -> None:
    clock = LabClock(10_000)
    assert clock.lab_bps(100) == 10e6
    assert clock.lab_ns(1) == 10_000_000
    assert clock.hardware_us(10_000_000) == 1
    assert clock.hardware_gbps(10e6) == 100


@pytest.mark.parametrize("slowdown", [1, 3.7, 10_000])
def test_there_and_back(slowdown: float) -> None:
    clock = LabClock(slowdown)
    assert clock.hardware_gbps(clock.lab_bps(25.0)) == pytest.approx(25.0)
    assert clock.hardware_us(clock.lab_ns(256.0)) == pytest.approx(256.0, rel=1e-6)


@pytest.mark.parametrize("slowdown", [0, -1, float("nan"), float("inf")])
def test_impossible_slowdown(slowdown: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        LabClock(slowdown)


def test_serialisation_counts_preamble_gap_and_fcs() -> None:
    # A 64-byte Ethernet frame (60 without FCS) takes 672 bit times, as every network engineer knows.
    assert serialisation_ns(60, 1e9) == pytest.approx(672)


def test_largest_roce_frame_fits_the_interface() -> None:
    assert mtu_frame_bytes(4096) == 4174
    assert mtu_frame_bytes(4096) - 14 <= interface_mtu_bytes(4096)
