"""The closed loop in virtual time: RNICs, a marking queue, CNPs on the wire; 100 Gb/s, 1 us a link, MTU 4,096.

What settles: many small cuts. Steep marking, a CNP every 4 us at most, cuts of alpha / 8, alpha
slow (1/1024), and an additive step every 6 us. With the paper's constants a sender gets a CNP every few hundred us,
so chance decides who is cut: over 10 ms four senders' shares are 15 to 30 % apart, whatever R_AI and g.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.topologies.congestion_harness import CLOCK, Marking, Star, jain
from topologies.dcqcn import preset

KB = 1024
MARKING = Marking(100 * KB, 1600 * KB, 0.5)
SETTLING = preset("nvidia", time_reset_us=6, byte_reset_bytes=0, ai_rate_mbps=160, hai_rate_mbps=160, g=1 / 1024, gd=8)
SETTLE_US, WATCH_US = 5_000, 10_000
PAYLOAD_SHARE = 4096 / (4096 + 58 + 24)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("senders", [2, 4])
def test_senders_converge_and_the_queue_settles(senders: int, seed: int) -> None:
    star = Star(senders, SETTLING, MARKING, seed=seed)
    for sender in range(senders):  # each finds the link full, and comes in at line rate
        star.start(sender)
        star.run(500)
    star.run(SETTLE_US)
    since_ns = star.now_ns
    star.run(WATCH_US)
    shares = star.shares(since_ns)
    fair = shares.sum() / senders
    assert np.abs(shares / fair - 1).max() < 0.1
    assert jain(shares) >= 0.98
    assert shares.sum() > 0.95 * PAYLOAD_SHARE * star.rate_bps
    depth = np.array([depth for at_ns, depth in star.depths if at_ns >= since_ns])
    assert MARKING.kmin_bytes < np.median(depth) < MARKING.kmax_bytes
    assert MARKING.kmin_bytes < depth.mean() < MARKING.kmax_bytes
    assert depth.max() < MARKING.kmax_bytes
    notified = star.nics[star.receiver].count
    assert 0 < notified.np_cnp_sent <= notified.np_ecn_marked_roce_packets
    assert sum(nic.count.rp_cnp_handled for nic in star.nics) <= notified.np_cnp_sent


@pytest.mark.parametrize(
    ("name", "marking"),
    [
        ("paper", Marking(5 * KB, 200 * KB, 0.01)),
        ("nvidia", Marking(100 * KB, 400 * KB, 0.2)),
        ("hpcc", Marking(400 * KB, 1600 * KB, 0.2)),
    ],
)
def test_published_parameters_are_fair_and_bound_the_queue(name: str, marking: Marking) -> None:
    star = Star(2, preset(name), marking)
    for sender in range(2):
        star.start(sender)
    star.run(20_000)
    since_ns = star.now_ns
    star.run(10_000)
    assert jain(star.shares(since_ns)) >= 0.98
    assert max(depth for at_ns, depth in star.depths if at_ns >= since_ns) < marking.kmax_bytes


def test_without_congestion_control_the_queue_grows() -> None:
    star = Star(2, None, MARKING)
    for sender in range(2):
        star.start(sender)
    star.run(300)
    grown_bytes = CLOCK.lab_bps(100) / 8 * CLOCK.lab_ns(300) / 1e9
    assert star.depths[-1][1] == pytest.approx(grown_bytes, rel=0.02)
