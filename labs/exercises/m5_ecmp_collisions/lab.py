"""Four rings across four leaves: what static hashing costs a job, and what load-aware path tables give back."""

from labs.lab import Expectation, Lab
from labs.workload import RingAllReduce
from topologies.spec import FabricSpec

LAB = Lab(
    name="m5_ecmp_collisions",
    module=5,
    title="ECMP collisions",
    question="No link is oversubscribed, and yet the all-reduce takes more than twice the ideal time. Why?",
    fabric=FabricSpec(
        shape="leaf_spine",
        leaves=4,
        spines=4,
        hosts_per_leaf=4,
        link_gbps=100,
        link_delay_us=0.5,
        mtu_bytes=4096,
        buffer_kb=4096,  # four colliding windows fit: collisions cost time, not packets
        slowdown=10_000,
    ),
    workload=RingAllReduce(
        size_bytes=768 * 1024,  # 94 us on an ideal fabric: 0.94 s at 10,000 times slower
        slice_bytes=64 * 1024,
        window_bytes=960 * 1024,  # more than a ring ever has in flight: late acknowledgements hold nobody back
        rings="across_leaves",
    ),
    policies=("ecmp", "flowlet", "dlb", "spray"),
    policy_params={"flowlet": {"gap_us": 20}},  # less than the pause between two iterations, more than a ring's own
    iterations=5,
    warmup=1,
    expectations=(
        Expectation("ecmp", "jct_ratio", at_least=1.0, at_most=4.4, why="the fullest link carries one to four flows"),
        Expectation("dlb", "jct_ratio", at_most=1.15, why="after the first update every flow has a link of its own"),
    ),
)
