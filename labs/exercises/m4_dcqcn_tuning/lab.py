"""DCQCN's knobs: senders come to one port, one after the other, under published settings and under one that settles."""

from labs.lab import Expectation, Lab
from labs.workload import Flow, Transfers
from topologies.spec import FabricSpec

BYTES = 30_000_000  # 10 ms of the bottleneck, however many share it
TUNED = {  # for 25 Gb/s; why these: README.md
    "ecn_kmin_kb": 20, "ecn_kmax_kb": 400, "ecn_pmax": 1.0, "dcqcn": "nvidia",
    "dcqcn.time_reset_us": 6, "dcqcn.byte_reset_bytes": 0, "dcqcn.ai_rate_mbps": 40, "dcqcn.hai_rate_mbps": 40,
    "dcqcn.g": 1 / 1024, "dcqcn.gd": 8,
}  # fmt: skip
MLX5 = {**TUNED, "dcqcn.gd": 2, "dcqcn.min_dec_fac": 0.9, "dcqcn.ai_rate_mbps": 20, "dcqcn.hai_rate_mbps": 20}


def incast(senders: int) -> tuple[Flow, ...]:
    """One more sender every 300 us, each at line rate, as an RDMA NIC begins."""
    return tuple(Flow(f"h{n}", "h4", size_bytes=BYTES // senders, start_us=300.0 * n) for n in range(senders))


LAB = Lab(
    name="m4_dcqcn_tuning",
    module=4,
    title="DCQCN tuning",
    question="Which Kmin, Kmax, Pmax and timers keep the queue short, the shares fair and PFC silent?",
    fabric=FabricSpec(
        shape="leaf_spine",
        leaves=1,
        spines=1,
        hosts_per_leaf=5,
        link_gbps=25,
        link_delay_us=1.0,
        buffer_kb=8192,
        flow_control="pfc",
        xoff_kb=256,  # of each ingress port: what PFC leaves to congestion control
        headroom_kb=64,
        slowdown=500,  # 1 ms lasts half a second
    ),
    workload=Transfers(
        size_bytes=BYTES // 4,
        window_bytes=8 << 20,  # more than the queue ever holds: nothing but DCQCN limits a sender
        timeout_us=20_000,
        flows=incast(4),
    ),
    variants={
        "pfc only": {"dcqcn": "none"},
        "paper": {"dcqcn": "paper", "ecn_kmin_kb": 5, "ecn_kmax_kb": 200, "ecn_pmax": 0.01},
        "nvidia": {"dcqcn": "nvidia", "ecn_kmin_kb": 100, "ecn_kmax_kb": 400, "ecn_pmax": 0.2},
        "tuned": TUNED,
        "tuned 2:1": {**TUNED, "flows": incast(2)},
        "tuned mlx5": MLX5,
        "late marks": {**TUNED, "ecn_kmin_kb": 400, "ecn_kmax_kb": 1600},
        "few marks": {**TUNED, "ecn_pmax": 0.01},
        "slow timer": {**TUNED, "dcqcn.time_reset_us": 300},
    },
    iterations=1,
    warmup=0,
    expectations=(
        Expectation("pfc only", "pauses", at_least=1, why="nothing else slows the senders down"),
        Expectation("tuned", "pauses", at_most=0, why="the queue never comes near XOFF"),
        Expectation("tuned", "jain_goodput", at_least=0.98, why="within 10 % of fair share"),
    ),
)
