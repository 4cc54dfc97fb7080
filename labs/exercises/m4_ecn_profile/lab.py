"""One leaf got the wrong ECN profile: nothing is lost, nothing is paused, and the job is slow."""

from labs.lab import Expectation, Lab
from labs.workload import RingAllReduce
from topologies.spec import FabricSpec

WRONG = {"ecn_kmin_kb": 3, "ecn_kmax_kb": 6, "ecn_pmax": 1}  # somebody took cells, or a 10G port's profile, for KB

LAB = Lab(
    name="m4_ecn_profile",
    module=4,
    title="The wrong ECN profile",
    question="The job became slow over night. No drops, no pauses, no link is full. Which switch is it?",
    fabric=FabricSpec(
        leaves=4,
        spines=2,
        hosts_per_leaf=2,
        link_gbps=100,
        link_delay_us=0.5,
        mtu_bytes=4096,
        flow_control="pfc",
        ecn_kmin_kb=100,
        ecn_kmax_kb=400,
        ecn_pmax=0.1,
        slowdown=10_000,
    ),
    workload=RingAllReduce(size_bytes=768 * 1024, window_bytes=960 * 1024, dcqcn="paper"),
    policies=("dlb",),  # every flow has an uplink of its own: there is no congestion at all
    variants={
        "as planned": {},
        "one leaf differs": {"switch_profiles": {"leaf2": WRONG}},
    },
    iterations=3,
    warmup=1,
    expectations=(
        Expectation("as planned", "jct_ratio", at_most=1.15, why="nothing queues, so nothing is marked"),
        Expectation("as planned", "marks", at_most=0, why="no queue ever holds Kmin"),
        Expectation("one leaf differs", "jct_ratio", at_least=1.3, why="a ring is as slow as its slowest link"),
        Expectation("one leaf differs", "drops", at_most=0, why="marking loses nothing"),
        Expectation("one leaf differs", "pauses", at_most=0, why="the queues stay far below XOFF"),
    ),
)
