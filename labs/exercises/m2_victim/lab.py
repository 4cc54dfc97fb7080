"""An innocent flow: it shares no queue with the incast, only the ports that the incast makes PFC stop."""

from labs.lab import Lab
from labs.workload import Flow, Transfers
from topologies.spec import FabricSpec

MB = 1024 * 1024
INCAST_BYTES, VICTIM_BYTES = 2 * MB, 3 * MB // 2
VICTIM_START_US = 250  # by then the incast is in full swing: PFC pauses all the time, DCQCN has made its first cuts
LANE_DSCP = 34  # of the victim, where it has a lane (class 4) of its own


def flows(victim_dscp: int | None = None) -> tuple[Flow, ...]:
    """Four senders, two of them on leaf0, write to h4; h2, on leaf0 too, writes to h7, which has nothing else to do."""
    return (Flow("h0", "h4"), Flow("h1", "h4"), Flow("h5", "h4"), Flow("h6", "h4"),
            Flow("h2", "h7", size_bytes=VICTIM_BYTES, dscp=victim_dscp, start_us=VICTIM_START_US))


LAB = Lab(
    name="m2_victim",
    module=2,
    title="PFC's victim",
    question="h2 sends to an idle host over links that are not full. Why does it get a third of its rate?",
    fabric=FabricSpec(
        leaves=2,
        spines=1,
        hosts_per_leaf=4,
        link_gbps=100,
        uplink_gbps=400,  # the three senders of leaf0 fit in: only h4's own link is oversubscribed
        link_delay_us=0.5,
        mtu_bytes=4096,
        shared_buffer_kb=4096,
        buffer_kb=4096,
        dscp_classes={26: 3, LANE_DSCP: 4, 48: 6},
        lossless_classes=(3, 4),
        flow_control="pfc",
        slowdown=10_000,
    ),
    workload=Transfers(
        size_bytes=INCAST_BYTES,
        flows=flows(),
        window_bytes=2 * MB,
        timeout_us=8388.608,
    ),
    variants={
        "alone": {"flows": flows()[-1:]},
        "pfc": {},
        "pfc + dcqcn": {"dcqcn": "paper", "dcqcn.ai_rate_mbps": 200,
                        "ecn_kmin_kb": 100, "ecn_kmax_kb": 400, "ecn_pmax": 0.1},
        "pfc + lanes": {"flows": flows(LANE_DSCP)},
        "credits": {"flow_control": "credits"},
        "credits + lanes": {"flow_control": "credits", "flows": flows(LANE_DSCP)},
    },
    iterations=1,
    warmup=0,
)
