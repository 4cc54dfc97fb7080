"""The controller against real Open vSwitch bridges; no frames flow here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controllers import process
from controllers.process import ControllerProcess
from topologies.errors import LabError
from topologies.network import FabricNet
from topologies.spec import FabricSpec

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
]

SPEC = FabricSpec.from_dict({"shape": "leaf_spine", "leaves": 2, "spines": 2, "hosts_per_leaf": 2, "slowdown": 10_000})
DEADLINE_S = 20.0


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.05)
    return value


def vsctl(*words: str) -> str:
    return subprocess.run(["ovs-vsctl", "--timeout=10", *words], check=True, capture_output=True, text=True).stdout


def set_controller(bridges: list[str], port: int) -> None:
    vsctl(*(word for bridge in bridges for word in ("--", "set-controller", bridge, f"tcp:127.0.0.1:{port}")))


def ofctl(*words: str) -> str:
    return subprocess.run(["ovs-ofctl", "-OOpenFlow13", *words], check=True, capture_output=True, text=True).stdout


class Live:
    """A fabric without a data path, and its controller."""

    def __init__(self, net: FabricNet, controller: ControllerProcess, log: Path) -> None:
        self.net, self.controller, self.log = net, controller, log

    def rules(self, switch: str, table: int) -> list[str]:
        out = ofctl("--no-stats", "dump-flows", self.net.fabric.switch(switch).bridge, f"table={table}")
        return [line.strip() for line in out.splitlines() if "actions" in line]

    def status(self) -> dict[str, Any]:
        return self.controller.call("status")

    def wait_ready(self) -> None:
        self.controller.wait_ready(DEADLINE_S)

    def bank(self, leaf: str) -> int:
        (rule,) = [rule for rule in self.rules(leaf, 0) if "goto_table" in rule]
        return int(rule.rpartition("goto_table:")[2])


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    directory = tmp_path_factory.mktemp("controller")
    net = FabricNet(SPEC, lab="controller test", start_fabricd=None)
    net.build()
    try:
        with process.start(policy="ecmp", socket_path=directory / "c.sock", log_path=directory / "c.log",
                           fabricd_socket=None, wait=False) as controller:
            net.controller_port = controller.port
            net.start()
            controller.wait_ready(DEADLINE_S)
            yield Live(net, controller, directory / "c.log")
    finally:
        net.stop()


def test_every_switch_has_its_rules(live: Live) -> None:
    status = live.status()
    assert status["ready"]
    assert status["connected"] == ["leaf0", "leaf1", "spine0", "spine1"]
    assert status["missing"] == status["problems"] == []
    assert live.rules("leaf0", 0) == [
        "priority=200,ip,nw_dst=10.0.0.1 actions=output:1",
        "priority=200,ip,nw_dst=10.0.0.2 actions=output:2",
        "priority=100,ip,nw_dst=10.0.0.0/23 actions=goto_table:1",
    ]
    assert [rule.rpartition(":")[2] for rule in live.rules("spine1", 0)] == ["1", "1", "2", "2"]
    assert len(live.rules("leaf1", 1)) == 64
    assert live.rules("leaf1", 2) == []


@pytest.mark.parametrize(("policy", "byte", "size"), [
    ("spray", 4, 2), ("flowlet", 3, 64), ("ecmp", 2, 64), ("group", None, 1), ("dlb", 5, 256)])
def test_a_policy_fills_the_other_bank_and_the_old_one_is_emptied(
        live: Live, policy: str, byte: int | None, size: int) -> None:
    before = live.bank("leaf0")
    reply = live.controller.call("policy", name=policy, seed=5)
    assert reply["policy"] == policy
    assert reply["seed"] == 5
    assert live.bank("leaf0") == live.bank("leaf1") == 3 - before
    rules = live.rules("leaf0", 3 - before)
    assert len(rules) == size
    if byte is not None:
        mask = ["00"] * 6
        mask[byte] = f"{size - 1:02x}"
        assert all(f"/{':'.join(mask)}" in rule for rule in rules)
    wait_until(lambda: live.rules("leaf0", before) == [], "the old bank is empty")
    tables = live.controller.call("tables")["leaves"]
    assert tables["leaf0"]["entries"] == [entry % 2 for entry in range(2 if policy == "group" else size)]
    assert tables["leaf0"]["seed"] != tables["leaf1"]["seed"]
    counters = live.controller.call("flow_stats")["leaves"]
    assert sorted(map(int, counters["leaf1"])) == list(range(size))


def test_the_same_seed_everywhere_can_be_asked_for(live: Live) -> None:
    live.controller.call("policy", name="ecmp", seed=9, same_seed=True)
    assert {leaf["seed"] for leaf in live.controller.call("tables")["leaves"].values()} == {9}


def test_port_counters_are_there_for_every_port(live: Live) -> None:
    switches = live.controller.call("port_stats")["switches"]
    for switch in live.net.fabric.switches:
        assert set(map(int, switches[switch.name])) == {port.number for port in live.net.fabric.ports_of(switch)}


def test_wrong_requests_are_refused_with_a_remedy(live: Live) -> None:
    for arguments, words in [({"name": "elmp"}, "did you mean ecmp"), ({"name": "ecmp", "colour": 1}, "colour"),
                             ({"name": "dlb", "params": {"idel_us": 1}}, "did you mean idle_us"),
                             ({"name": "ecmp", "seed": -1}, "seed")]:
        with pytest.raises(LabError, match=words):
            live.controller.call("policy", **arguments)
    with pytest.raises(LabError, match="did you mean status"):
        live.controller.call("statsu")
    assert live.status()["ready"]


@pytest.mark.parametrize("policy", ["ecmp", "group"])
def test_a_switch_that_reconnects_without_rules_gets_them_again(live: Live, policy: str) -> None:
    live.controller.call("policy", name=policy)
    bridge = live.net.fabric.switch("leaf0").bridge
    expected = len(live.rules("leaf0", live.bank("leaf0")))
    seen = live.controller.call("events")["next"]
    vsctl("del-controller", bridge)
    wait_until(lambda: "leaf0" in live.status()["missing"], "leaf0 is missed")
    ofctl("del-flows", bridge)
    ofctl("del-groups", bridge)
    with pytest.raises(LabError, match="leaf0 not connected"):
        live.controller.call("policy", name="spray")
    set_controller([bridge], live.controller.port)
    live.wait_ready()
    assert len(live.rules("leaf0", 0)) == 3
    assert len(live.rules("leaf0", live.bank("leaf0"))) == expected
    assert live.rules("leaf0", 3 - live.bank("leaf0")) == []
    kinds = [(event["kind"], event.get("switch")) for event in live.controller.call("events", since=seen)["events"]]
    assert kinds == [("disconnect", "leaf0"), ("connect", "leaf0")]


def test_rules_that_somebody_deletes_are_noticed(live: Live) -> None:
    live.controller.call("policy", name="ecmp")
    bridge = live.net.fabric.switch("leaf1").bridge
    match = f"table={live.bank('leaf1')},ip,dl_src=00:00:03:00:00:00/00:00:3f:00:00:00"
    ofctl("del-flows", bridge, match)
    wait_until(lambda: any("leaf1 holds 63 rules" in problem for problem in live.status()["problems"]), "it is said")
    live.controller.call("policy", name="ecmp")
    live.wait_ready()


def test_a_port_that_goes_is_a_problem(live: Live) -> None:
    port = live.net.fabric.uplinks("leaf0")[0]
    bridge = live.net.fabric.switch("leaf0").bridge
    vsctl("del-port", bridge, port.interface)
    complaint = f"leaf0: port {port.number} ({port.interface}) is missing"
    wait_until(lambda: complaint in live.status()["problems"], "it is said")
    vsctl("add-port", bridge, port.interface, "--", "set", "interface", port.interface, f"ofport_request={port.number}")
    live.wait_ready()


def test_a_strange_switch_is_ignored(live: Live) -> None:
    vsctl("add-br", "sg-strange", "--", "set", "bridge", "sg-strange", "datapath_type=netdev", "fail_mode=secure",
          "protocols=OpenFlow13", "other_config:datapath-id=00000000000000aa",
          "--", "set-controller", "sg-strange", f"tcp:127.0.0.1:{live.controller.port}")
    try:
        wait_until(lambda: "not of this fabric: dpid 0xaa" in live.log.read_text(), "a warning")
        assert live.status()["ready"]
        assert "actions" not in ofctl("dump-flows", "sg-strange")
    finally:
        vsctl("del-br", "sg-strange")


def test_without_telemetry_dlb_says_so_and_goes_on(live: Live, tmp_path: Path) -> None:
    live.controller.call("policy", name="dlb")
    wait_until(lambda: any("telemetry" in problem for problem in live.status()["problems"]), "it is said")
    live.controller.call("policy", name="ecmp")
    live.wait_ready()


def test_the_control_socket_is_for_root_alone(live: Live) -> None:
    assert (live.log.parent / "c.sock").stat().st_mode & 0o777 == 0o600


def test_a_second_controller_takes_over_a_fabric(live: Live, tmp_path: Path) -> None:
    with process.start(policy="group", socket_path=tmp_path / "c.sock", log_path=tmp_path / "c.log",
                       fabricd_socket=None) as second:
        bridges = [switch.bridge for switch in live.net.fabric.switches]
        set_controller(bridges, second.port)
        second.wait_ready(DEADLINE_S)
        assert live.rules("leaf0", 1) == ["table=1, priority=100,ip actions=group:1"]
        os.kill(second.pid, signal.SIGKILL)
        wait_until(lambda: not second.alive(), "its death is seen")
        with pytest.raises(LabError, match="nobody answers"):
            second.call("status")
        with pytest.raises(LabError, match="the controller ended with status -9"):
            second.wait_ready(1)
        set_controller(bridges, live.controller.port)
    live.wait_ready()
