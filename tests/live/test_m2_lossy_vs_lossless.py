"""The exercise m2_lossy_vs_lossless: drop-tail loses what its buffer cannot hold; PFC and credits lose nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labs.lab import load
from labs.measure.theory import mtu_time_us
from labs.runner_session import Session
from tests.live.exercise import LIVE, play, play_alone
from topologies.fabricd.telemetry import TraceKind
from topologies.units import BYTES_PER_KB, WIRE_OVERHEAD_BYTES

pytestmark = LIVE

LAB = load("m2_lossy_vs_lossless").with_overrides(["timeout_us=262.144"])  # the test is over sooner
FRAME_BYTES = LAB.fabric.mtu_bytes + 58  # as tcpdump shows it, of a packet in the middle of a message
FRAMES = LAB.workload.size_bytes // LAB.fabric.mtu_bytes  # of each sender
BUFFER_BYTES = LAB.fabric.buffer_kb * BYTES_PER_KB
FRAME_BYTES_A_US = LAB.fabric.link_gbps * 1e3 / 8 * FRAME_BYTES / (FRAME_BYTES + WIRE_OVERHEAD_BYTES)


@pytest.fixture(scope="class")
def session() -> Iterator[Session]:
    with Session(LAB.variant("drop-tail 12:1")) as session:
        yield session


class TestDropTail:
    def test_five_senders_fit(self, session: Session) -> None:
        assert 4 * FRAMES * FRAME_BYTES < BUFFER_BYTES < 5 * FRAMES * FRAME_BYTES
        run = play(session, LAB.variant("drop-tail 5:1")).summary
        assert run["drops"] == run["retransmitted_packets"] == 0
        assert run["jct_ratio"] < 1.10

    @pytest.mark.parametrize("senders", [6, 12])
    def test_what_does_not_fit_is_lost_and_the_first_when_the_buffer_is_full(
        self, session: Session, senders: int
    ) -> None:
        result = play(session, LAB.variant(f"drop-tail {senders}:1"))
        raw, run = result.raw, result.summary
        assert run["drops_by_reason"] == {"tail": run["drops"]}
        [measured] = raw.measured
        drops = raw.trace[raw.trace["kind"] == TraceKind.DROP]
        dropped_us = (drops["t_ns"] - measured.start_ns) / 1e3 / raw.fabric.slowdown
        # All senders are at line rate; one part in N leaves, the rest stays until the buffer is full.
        arrival_us = mtu_time_us(LAB.fabric.mtu_bytes, LAB.fabric.link_gbps) + LAB.fabric.link_delay_us
        full_us = BUFFER_BYTES / ((senders - 1) * FRAME_BYTES_A_US)
        assert dropped_us.min() - arrival_us == pytest.approx(full_us, rel=0.05)
        # What does not fit is lost. (Timers that run out together may make another incast, with losses of its own.)
        too_many = (senders - 1) * FRAMES - BUFFER_BYTES / FRAME_BYTES
        assert (dropped_us < LAB.workload.timeout_us).sum() == pytest.approx(too_many, rel=0.02, abs=3)
        assert run["timeouts"] > 0
        assert run["time_us"]["mean"] > LAB.workload.timeout_us


@pytest.mark.parametrize("flow_control", ["pfc", "credits"])
def test_lossless_is_as_fast_as_the_receivers_link(flow_control: str) -> None:
    variant = f"{flow_control} 12:1"
    run = play_alone(LAB.variant(variant)).summary
    assert run["drops"] == run["retransmitted_packets"] == run["timeouts"] == 0
    wire_us = 12 * FRAMES * (FRAME_BYTES + WIRE_OVERHEAD_BYTES) * 8 / (LAB.fabric.link_gbps * 1e3)
    assert run["time_us"]["mean"] == pytest.approx(wire_us, rel=0.02)
    # It is the NICs that wait now.
    assert run["pauses" if flow_control == "pfc" else "credit_stalls"] > 0
    assert sum(run["peak_queue_bytes"].values()) < BUFFER_BYTES
