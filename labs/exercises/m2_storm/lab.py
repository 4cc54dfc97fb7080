"""One receiver that cannot keep up, or one NIC gone mad, and how far the pauses reach."""

from labs.faults import PauseStorm, SlowReceiver
from labs.lab import Expectation, Lab
from labs.workload import Flow, Transfers
from topologies.spec import FabricSpec

FAULT_AT_US, FAULT_FOR_US = 20, 400
SLOW_GBPS, STUCK_GBPS = 10, 0.1

LAB = Lab(
    name="m2_storm",
    module=2,
    title="PFC storm",
    question="One NIC in the fabric is sick. Why do flows stand still that never meet it, and what ends it?",
    fabric=FabricSpec(
        leaves=3,
        spines=1,
        hosts_per_leaf=2,
        link_gbps=100,
        uplink_gbps=200,  # room for both hosts of a leaf: without the fault nobody ever waits
        link_delay_us=0.5,
        flow_control="pfc",
        watchdog_poll_us=1,
        watchdog_detect_us=50,  # SONiC: 200 ms
        watchdog_restore_us=50,
        slowdown=8_000,
    ),
    workload=Transfers(
        size_bytes=768 * 1024,
        flows=(
            Flow("h0", "h2"),  # to the sick one
            Flow("h1", "h4"),  # shares leaf0's uplink with that flow, and nothing else
            Flow("h5", "h3"),  # shares leaf1's downlink with it, and nothing else
        ),
        timeout_us=524.288,  # 4.096 us * 2^7: the fault lasts less
    ),
    variants={
        "healthy": {},
        "slow": {"faults": (SlowReceiver("h2", SLOW_GBPS, at_us=FAULT_AT_US),)},
        "slow + watchdog": {"faults": (SlowReceiver("h2", SLOW_GBPS, at_us=FAULT_AT_US),), "watchdog": "drop"},
        "stuck": {"faults": (SlowReceiver("h2", STUCK_GBPS, at_us=FAULT_AT_US, for_us=FAULT_FOR_US),)},
        "stuck + watchdog": {"faults": (SlowReceiver("h2", STUCK_GBPS, at_us=FAULT_AT_US, for_us=FAULT_FOR_US),),
                             "watchdog": "drop"},
        "storm": {"faults": (PauseStorm("h2", at_us=FAULT_AT_US, for_us=FAULT_FOR_US),)},
        "storm + watchdog": {"faults": (PauseStorm("h2", at_us=FAULT_AT_US, for_us=FAULT_FOR_US),),
                             "watchdog": "drop"},
    },
    iterations=1,
    warmup=0,
    expectations=(
        Expectation("healthy", "pauses", at_most=0, why="no link is asked for more than it carries"),
        Expectation("slow", "jct_ratio", at_least=6, why="the fabric goes as fast as its slowest receiver"),
        Expectation("slow + watchdog", "watchdogs", at_most=0, why="a queue that moves is no storm"),
        Expectation("storm + watchdog", "watchdogs", at_least=1, why="a queue that does not is one"),
    ),
)
