"""A pause takes a round trip to act: what is on the way meanwhile needs room, or it is lost in spite of PFC."""

from labs.faults import PauseStorm
from labs.lab import Expectation, Lab
from labs.workload import Flow, Transfers
from topologies.spec import FabricSpec

SWEEP_KB = (0, 32, 64, 96, 120, 132)

LAB = Lab(
    name="m2_headroom",
    module=2,
    title="PFC headroom",
    question="PFC is on, the switch says XOFF in time, and packets of the lossless class are dropped. Why?",
    fabric=FabricSpec(
        shape="leaf_spine",
        leaves=1,
        spines=1,
        hosts_per_leaf=3,
        link_gbps=100,
        link_delay_us=5,  # 1 km of fibre: 2 * 5 us * 100 Gb/s are 122 KB on the way
        mtu_bytes=4096,
        flow_control="pfc",
        xoff_kb=32,
        slowdown=10_000,
    ),
    workload=Transfers(
        size_bytes=1024 * 1024,
        window_bytes=1024 * 1024,
        # The second one in a lossy class: a PFC frame to h1 may have to wait for one of its packets.
        flows=(Flow("h1", "h0"), Flow("h2", "h1", dscp=10)),
    ),
    # The receiver says stop, so that nothing leaves the switch: the worst case that headroom is made for.
    faults=(PauseStorm("h0", at_us=40, for_us=30),),
    variants={
        **{f"{headroom} KB": {"headroom_kb": headroom} for headroom in SWEEP_KB},
        "auto": {"headroom_kb": "auto"},  # SONiC's formula, with 25 KB for the peer's response
    },
    iterations=1,
    warmup=0,
    expectations=(
        *(Expectation(f"{headroom} KB", "drops", at_least=1, why="less than 2 * delay * rate + 2 MTU = 130 KB")
          for headroom in SWEEP_KB[:-1]),
        *(Expectation(run, "drops", at_most=0, why="more than 2 * delay * rate + 2 MTU = 130 KB")
          for run in (f"{SWEEP_KB[-1]} KB", "auto")),
    ),
)
