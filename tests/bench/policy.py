"""Switching the policy of eight leaves, against ovs-ofctl installing tables of the same size."""

from __future__ import annotations

import statistics
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from controllers import process as controller_process
from controllers.client import ControllerClient
from tests.bench.row import Row
from topologies.network import FabricNet
from topologies.spec import FabricSpec

SPEC = FabricSpec(leaves=8, spines=4, hosts_per_leaf=2, slowdown=10_000)
ENTRIES = 256  # of dlb's table on each leaf
ROUNDS = 10
READY_TIMEOUT_S = 30.0


def policy_switch() -> Row:
    """Seconds until every leaf has confirmed dlb's table, median of ten; the peer calls a process for each leaf."""
    net = FabricNet(SPEC, lab="bench")
    try:
        net.build()
        with controller_process.start(policy="ecmp", wait=False) as controller:
            net.controller_port = controller.port
            net.start()
            controller.wait_ready(READY_TIMEOUT_S)
            with ControllerClient() as client:
                ours = statistics.median(_switch_s(client) for _ in range(ROUNDS))
            peer = statistics.median(_ofctl_s(net) for _ in range(ROUNDS))
    finally:
        net.stop()
    return Row("policy_switch", ours, peer, peer / ours, "s for 8 leaves of 256 entries; peer: ovs-ofctl; peer/ours")


def _switch_s(client: ControllerClient) -> float:
    client.call("policy", name="ecmp", params={})
    begin = time.monotonic()
    client.call("policy", name="dlb", params={})
    return time.monotonic() - begin


def _ofctl_s(net: FabricNet) -> float:
    """The same number of rules into a table that nothing leads to, one ovs-ofctl a leaf, all at the same time."""
    leaves = net.fabric.leaves()
    with TemporaryDirectory() as folder:
        rules = Path(folder) / "rules"
        rules.write_text("".join(
            f"table=9,dl_src=00:00:00:00:00:{entry:02x}/00:00:00:00:00:ff,actions=output:{entry % SPEC.spines + 3}\n"
            for entry in range(ENTRIES)))  # fmt: skip
        begin = time.monotonic()
        processes = [
            subprocess.Popen(["ovs-ofctl", "-O", "OpenFlow13", "--bundle", "add-flows", leaf.bridge, rules])
            for leaf in leaves
        ]
        for process in processes:
            process.wait()
        return time.monotonic() - begin
