"""The ring of switches on the real machine: everybody reaches everybody, clockwise, and nothing goes round for ever."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator

import pytest

from controllers import process
from topologies.fabric import TELEMETRY_PATH
from topologies.fabricd.telemetry import Telemetry
from topologies.network import FabricNet
from topologies.spec import FabricSpec

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
]

SPEC = FabricSpec(shape="switch_ring", leaves=4, hosts_per_leaf=1, slowdown=1000)


@pytest.fixture(scope="class")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabricNet]:
    directory = tmp_path_factory.mktemp("controller")
    net = FabricNet(SPEC, lab="ring test")
    net.build()
    try:
        with process.start(policy="ecmp", socket_path=directory / "c.sock", log_path=directory / "c.log",
                           wait=False) as controller:
            net.controller_port = controller.port
            net.start()
            controller.wait_ready()
            yield net
    finally:
        net.stop()


class TestUnderTheController:
    """The same pipeline as in a leaf-spine."""

    def test_everybody_reaches_everybody_and_only_clockwise(self, net: FabricNet) -> None:
        assert net.pingAll(timeout="2") == 0
        telemetry = Telemetry.open(TELEMETRY_PATH)
        sent = {net.fabric.port_name(port.index): int(telemetry.ports["tx_frames"][port.index])
                for port in net.fabric.ports if port.role in ("uplink", "downlink")}
        for i in range(4):
            # A ping and its answer pass every link of the ring once: 4 * 3 pings.
            assert sent[f"sw{i}->sw{(i + 1) % 4}"] == 12
            assert sent[f"sw{(i + 1) % 4}->sw{i}"] == 0

    def test_a_frame_that_nobody_wants_goes_round_once(self, net: FabricNet) -> None:
        telemetry = Telemetry.open(TELEMETRY_PATH)
        before = telemetry.snapshot()
        net["h1"].cmd("ping -c 1 -W 1 10.0.2.77")
        time.sleep(0.5)
        after = telemetry.snapshot()
        seen = (after.switches["in_frames"] - before.switches["in_frames"]).tolist()
        left = (after.switches["out_frames"] - before.switches["out_frames"]).tolist()
        assert seen == [1, 2, 1, 1]
        assert left == [1, 1, 1, 1]


def test_static_routes() -> None:
    with FabricNet(SPEC, lab="ring test") as net:
        net.route_statically()
        assert net.pingAll(timeout="2") == 0
