"""What a seed decides."""

from __future__ import annotations

import numpy as np

from labs.lab import load
from labs.seeds import FIRST_PORT, PORTS, jitters, mix, source_ports
from labs.workload import Incast, RingAllReduce
from topologies.spec import FabricSpec

JOB = RingAllReduce(65536).plan(FabricSpec(leaves=4, spines=4, hosts_per_leaf=4))


def test_ports_are_the_same_for_a_seed_and_different_for_another() -> None:
    assert source_ports(JOB, 2, 1) == source_ports(JOB, 2, 1)
    same = sum(source_ports(JOB, 2, 1)[key] == port for key, port in source_ports(JOB, 2, 2).items())
    assert same <= 1


def test_ports_do_not_change_with_the_version() -> None:
    """Published figures name seeds: whoever changes the mixing changes them."""
    assert mix(1, 2, 3) == 0x6ae515c1c0ac7e37
    assert [source_ports(JOB, 1, 1)[channel, 0, 0] for channel in range(3)] == [51429, 63917, 59946]


def test_a_rank_never_uses_a_port_twice() -> None:
    job = Incast(4096, senders=60).plan(FabricSpec(leaves=8, hosts_per_leaf=8))
    for seed in range(20):
        ports = source_ports(job, 16, seed)
        assert all(FIRST_PORT <= port < FIRST_PORT + PORTS for port in ports.values())
        at_receiver = [port for (_, _, end), port in ports.items() if end == 1]
        assert len(set(at_receiver)) == len(at_receiver) == 60 * 16


def test_ports_spread_evenly() -> None:
    low_bits = np.array([port & 15 for seed in range(200) for port in source_ports(JOB, 1, seed).values()])
    counts = np.bincount(low_bits, minlength=16)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 40  # chi square, 15 degrees of freedom, p = 0.0005


def test_jitter_is_even_and_repeatable() -> None:
    drawn = np.array([jitters(JOB, 1, iteration, 10.0) for iteration in range(100)])
    assert drawn.min() >= 0
    assert drawn.max() < 10
    assert abs(drawn.mean() - 5) < 0.3
    assert jitters(JOB, 1, 3, 10.0) == list(drawn[3])
    assert set(jitters(JOB, 1, 0, 0.0)) == {0.0}


def test_exercise_seeds_fit_the_controller() -> None:
    assert load("m5").seeds < 1 << 31
