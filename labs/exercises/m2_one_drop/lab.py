"""One ring of sixteen ranks, one packet lost: what the whole job pays, and why it matters which packet it was."""

from labs.faults import LostPacket
from labs.lab import Expectation, Lab
from labs.workload import RingAllReduce
from topologies.spec import FabricSpec

LAB = Lab(
    name="m2_one_drop",
    module=2,
    title="One drop",
    question="One packet of 5,760 is lost, and the all-reduce of 16 ranks takes five times as long. Why?",
    fabric=FabricSpec(
        shape="leaf_spine",
        leaves=4,
        spines=4,
        hosts_per_leaf=4,
        link_gbps=100,
        link_delay_us=0.5,
        mtu_bytes=4096,
        buffer_kb=4096,  # nothing else is ever lost
        slowdown=10_000,
    ),
    workload=RingAllReduce(
        size_bytes=768 * 1024,  # 30 steps of 48 KB: 118 us on an ideal fabric
        slice_bytes=16 * 1024,  # three slices a step keep a ring of 16 busy; with one, it waits for its own latency
        window_bytes=960 * 1024,
        timeout_us=524.288,  # 4.096 us * 2^7
        rings=(tuple(f"h{host}" for host in range(16)),),  # leaf by leaf: one flow leaves each, and none collide
    ),
    variants={
        "no drop": {},
        "middle": {"faults": (LostPacket("h7", "h8", "middle"),)},
        "last": {"faults": (LostPacket("h7", "h8", "last"),)},
    },
    iterations=1,
    warmup=1,
    expectations=(
        Expectation("no drop", "jct_ratio", at_most=1.20, why="headers, and four crossings of the spine"),
        Expectation("middle", "timeouts", at_most=0, why="the packet behind the lost one reveals it: NAK"),
        Expectation("middle", "jct_ratio", at_most=1.25, why="about one round trip is lost, 7 us"),
        Expectation("last", "timeouts", at_least=1, at_most=1, why="nothing comes behind the last packet"),
        Expectation("last", "jct_ratio", at_least=5.3, why="the timeout is 524 us, the step 118 us"),
    ),
)
