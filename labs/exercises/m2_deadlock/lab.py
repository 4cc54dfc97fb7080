"""Four switches in a ring: a cyclic buffer dependency, what it does to a lossless fabric, and what breaks it."""

from labs.lab import Expectation, Lab
from labs.workload import Flow, Transfers
from topologies.spec import FabricSpec

PAIRS = (("h0", "h2"), ("h1", "h3"), ("h2", "h0"), ("h3", "h1"))
OVER_THE_DATELINE = 34  # the DSCP of flows that pass from sw3 to sw0; in class 4

LAB = Lab(
    name="m2_deadlock",
    module=2,
    title="Deadlock",
    question="Nothing is broken and nothing is lost, and yet nothing moves any more. Who waits for whom?",
    fabric=FabricSpec(
        shape="switch_ring",
        leaves=4,
        hosts_per_leaf=1,
        link_gbps=100,
        link_delay_us=0.5,
        buffer_kb=64,  # of what is not lossless
        flow_control="pfc",
        dscp_classes={26: 3, OVER_THE_DATELINE: 4, 48: 6},
        lossless_classes=(3, 4),
        ack_dscp=48,  # acknowledgements go round the rest of the ring: in class 3 or 4 they would close the cycle again
        watchdog_poll_us=1,
        watchdog_detect_us=50,  # SONiC: 200 ms
        watchdog_restore_us=50,
        slowdown=5_000,
    ),
    # Every link between switches is asked for twice what it carries: each flow passes two of them.
    workload=Transfers(
        size_bytes=512 * 1024,
        flows=tuple(Flow(source, target) for source, target in PAIRS),
        timeout_us=131.072,  # 4.096 us * 2^5
        patience_us=500,  # nothing has moved for so long: frozen
    ),
    variants={
        "pfc": {},
        "credits": {"flow_control": "credits"},
        "watchdog": {"watchdog": "drop"},
        "watchdog forward": {"watchdog": "forward"},
        "two classes": {"flows": tuple(
            Flow(source, target, dscp=OVER_THE_DATELINE if target < source else None) for source, target in PAIRS)},
        "drop tail": {"flow_control": "none"},
    },
    iterations=1,
    warmup=0,
    may_fail=("pfc", "credits"),
    expectations=(
        Expectation("two classes", "drops", at_most=0, why="neither class has a cycle"),
        Expectation("two classes", "jct_ratio", at_most=2.2, why="two flows share each link, and that is all"),
        Expectation("watchdog", "drops", at_least=1, why="the watchdog breaks the cycle by throwing a queue away"),
    ),
)
