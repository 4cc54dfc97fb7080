"""N senders and one receiver: what a buffer can hold, and what PFC and credits do about the rest."""

from labs.lab import Expectation, Lab
from labs.workload import Incast
from topologies.spec import FabricSpec

SENDERS = (2, 4, 5, 6, 8, 12)
FLOW_CONTROLS = {"drop-tail": "none", "pfc": "pfc", "credits": "credits"}

LAB = Lab(
    name="m2_lossy_vs_lossless",
    module=2,
    title="Lossy and lossless incast",
    question="Five senders fit into the buffer, six do not. What happens to the sixth, and who pays for it?",
    fabric=FabricSpec(
        shape="leaf_spine",
        leaves=1,
        spines=1,
        hosts_per_leaf=13,
        link_gbps=100,
        link_delay_us=0.5,
        mtu_bytes=4096,
        buffer_kb=1024,  # of the receiver's port: (N-1) * 240 KB stay there while N senders send 240 KB each
        slowdown=10_000,
    ),
    workload=Incast(size_bytes=240 * 1024, window_bytes=240 * 1024, receiver="h0", timeout_us=524.288),
    variants={
        f"{name} {senders}:1": {"flow_control": flow_control, "senders": senders}
        for name, flow_control in FLOW_CONTROLS.items()
        for senders in SENDERS
    },
    iterations=1,
    warmup=0,
    expectations=(
        Expectation("drop-tail 5:1", "drops", at_most=0, why="4 * 240 KB are less than 1,024 KB"),
        Expectation("drop-tail 6:1", "drops", at_least=1, why="5 * 240 KB are more than 1,024 KB"),
        *(Expectation(f"{name} 12:1", key, at_most=most, why=why) for name in ("pfc", "credits")
          for key, most, why in (("drops", 0, "nobody sends what there is no room for"),
                                 ("jct_ratio", 1.10, "and the receiver's link never waits"))),
    ),
)
