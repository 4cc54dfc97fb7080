"""Slow motion: conversion between hardware units and the laboratory's clock.

A lab is written, and its results are shown, in *hardware units* (Gb/s, us).  It is played `slowdown` times
slower, on *lab time*: real nanoseconds of CLOCK_MONOTONIC and real bits per second.  Bytes stay bytes.
At slowdown 10,000, 100 Gb/s is 10 Mb/s and 1 us is 10 ms.  This is the only place that converts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# What a frame occupies on the wire beyond the bytes that tcpdump shows: FCS 4, preamble and delimiter 8, gap 12.
WIRE_OVERHEAD_BYTES = 24
# What an RDMA WRITE with immediate adds to its payload: IPv4 20, UDP 8, BTH 12, RETH 16, ImmDt 4, ICRC 4.
ROCE_HEADER_BYTES = 64
# Interface MTU over the RoCE path MTU: the headers, and spare room for what later transports add.
MTU_OVERHEAD_BYTES = 104
ETHERNET_HEADER_BYTES = 14
BYTES_PER_KB = 1024


@dataclass(frozen=True)
class LabClock:
    """Converts for one `slowdown` (lab time over hardware time, a finite number above 0)."""

    slowdown: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.slowdown) and self.slowdown > 0):
            raise ValueError(f"slowdown must be a finite number above 0, not {self.slowdown!r}")

    def lab_ns(self, hardware_us: float) -> int:
        """Microseconds of hardware, in nanoseconds of lab time."""
        return round(hardware_us * 1e3 * self.slowdown)

    def hardware_us(self, lab_ns: float) -> float:
        """Nanoseconds of lab time, in microseconds of hardware."""
        return lab_ns / 1e3 / self.slowdown

    def lab_bps(self, hardware_gbps: float) -> float:
        """Gigabits a second of hardware, in bits a second of lab time."""
        return hardware_gbps * 1e9 / self.slowdown

    def hardware_gbps(self, lab_bps: float) -> float:
        """Bits a second of lab time, in gigabits a second of hardware."""
        return lab_bps * self.slowdown / 1e9


def serialisation_ns(frame_bytes: int, rate_bps: float) -> float:
    """Time that a frame of `frame_bytes` (as tcpdump shows it, without FCS) keeps a link of `rate_bps` busy."""
    return (frame_bytes + WIRE_OVERHEAD_BYTES) * 8e9 / rate_bps


def mtu_frame_bytes(mtu_bytes: int) -> int:
    """The largest frame with `mtu_bytes` of RoCE payload, as tcpdump shows it."""
    return mtu_bytes + ETHERNET_HEADER_BYTES + ROCE_HEADER_BYTES


def interface_mtu_bytes(mtu_bytes: int) -> int:
    """MTU of every interface of a fabric whose RoCE path MTU is `mtu_bytes`."""
    return mtu_bytes + MTU_OVERHEAD_BYTES
