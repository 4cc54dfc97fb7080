"""FabricNet on the real machine: it is a Mininet, it carries packets, and it leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mininet.cli import CLI
from mininet.net import Mininet
from mininet.node import Host, OVSSwitch

from topologies import cleanup, ovs
from topologies.errors import LabError
from topologies.fabric import LINK_GROUP, LOCK_PATH, RUN_DIR, SHM_DIR, Fabric
from topologies.network import FabricNet
from topologies.spec import FabricSpec

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
]

ROOT = Path(__file__).resolve().parents[2]
SPEC = FabricSpec(leaves=2, spines=2, hosts_per_leaf=2, slowdown=1000)  # 100 Mb/s, 0.5 ms a link

RUNNER = """
import sys, time
from topologies.network import FabricNet
from topologies.spec import FabricSpec
print("begin", flush=True)
with FabricNet(FabricSpec(leaves=2, spines=2, hosts_per_leaf=4, slowdown=1000), lab="runner") as net:
    server = net["h0"].popen(["sleep", "1000"])
    net["h1"].sendCmd("sleep 1000")
    print("up", flush=True)
    time.sleep(1000)
"""


@dataclass(frozen=True)
class Machine:
    """Everything that a lab creates or changes."""

    interfaces: frozenset[str]
    bridges: frozenset[str]
    ports: frozenset[str]
    controllers: frozenset[str]
    processes: frozenset[str]
    files: frozenset[str]
    scheduler: object

    @classmethod
    def now(cls) -> Machine:
        """As it is."""
        links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
        return cls(
            interfaces=frozenset(link["ifname"] for link in links),
            bridges=table("Bridge", "name"), ports=table("Interface", "name"),
            controllers=table("Controller", "target"),
            processes=frozenset(lab_processes()),
            files=frozenset(str(path) for path in (*RUN_DIR.glob("*"), *SHM_DIR.parent.glob("straggler*"))
                            if path != LOCK_PATH and path.suffix != ".log"),
            scheduler=ovs.current_scheduler())


def table(name: str, column: str) -> frozenset[str]:
    return frozenset(ovs.vsctl("--bare", f"--columns={column}", "list", name).split())


def lab_processes() -> Iterator[str]:
    """Mininet's shells, and whatever a lab has started."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()
                ours = f"{cleanup.TOKEN_VARIABLE}=".encode() in process.joinpath("environ").read_bytes()
            except OSError:
                continue
            if ours or "mininet:" in command:
                yield f"{process.name} {command}"


@pytest.fixture
def untouched() -> Iterator[Machine]:
    """The test must leave the machine as it found it."""
    before = Machine.now()
    yield before
    assert Machine.now() == before


@pytest.fixture(scope="class")
def net() -> Iterator[FabricNet]:
    before = Machine.now()
    with FabricNet(SPEC, lab="test") as net:
        net.route_statically()
        yield net
    assert Machine.now() == before


def start_runner() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", RUNNER], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, start_new_session=True)


def wait_for(runner: subprocess.Popen[str], word: str) -> None:
    assert runner.stdout is not None
    for line in runner.stdout:
        if line.strip() == word:
            return
    raise AssertionError(f"the runner ended: {runner.stderr.read() if runner.stderr else ''}")


class TestMininet:
    """A FabricNet is a Mininet."""

    def test_objects(self, net: FabricNet) -> None:
        assert isinstance(net, Mininet)
        assert [host.name for host in net.hosts] == ["h0", "h1", "h2", "h3"]
        assert sorted(switch.name for switch in net.switches) == ["leaf0", "leaf1", "spine0", "spine1"]
        assert len(net.links) == 8
        assert all(isinstance(host, Host) for host in net.hosts)
        assert all(isinstance(switch, OVSSwitch) for switch in net.switches)
        assert net["leaf0"].connectionsTo(net["spine1"])[0][0].name == "sg-leaf0-eth4"
        assert [str(link) for link in net.linksBetween(net["h3"], net["leaf1"])] == ["h3-eth0<->sg-leaf1-eth2"]

    def test_hosts_are_what_they_say(self, net: FabricNet) -> None:
        for host in net.hosts:
            described = net.fabric.host(host.name)
            assert (host.IP(), host.MAC(), host.pid) == (described.ip, described.mac, described.pid)
            assert host.cmd("cat /sys/class/net/*-eth0/address").strip() == host.MAC()
            assert f" {host.IP()}/32 " in host.cmd("ip -4 addr show", host.defaultIntf())
            assert "inet6" not in host.cmd("ip addr")
            assert host.cmd("cat /sys/class/net/*-eth0/mtu").strip() == "4200"
            assert "tx-checksumming: off" in host.cmd("ethtool -k", host.defaultIntf())

    def test_description_is_on_disk(self, net: FabricNet) -> None:
        assert Fabric.load() == net.fabric
        assert net.fabric.datapath == ovs.datapath()
        assert net.fabric.ovs_version == ovs.version()
        assert os.stat(RUN_DIR).st_mode & 0o777 == 0o700

    def test_ports_have_the_numbers_of_the_description(self, net: FabricNet) -> None:
        for port in net.fabric.ports:
            if port.kind == "switch":
                assert ovs.vsctl("get", "Interface", port.interface, "ofport").strip() == str(port.number)
        for switch in net.fabric.switches:
            assert f"dpid:{switch.dpid:016x}" in net[switch.name].dpctl("show")

    def test_nothing_talks_by_itself(self, net: FabricNet) -> None:
        counters = [Path(f"/sys/class/net/{port.tap}/statistics/rx_packets") for port in net.fabric.ports]
        before = [counter.read_text() for counter in counters]
        time.sleep(1)
        assert [counter.read_text() for counter in counters] == before

    def test_ping(self, net: FabricNet) -> None:
        assert net.pingAll(timeout=2) == 0

    def test_round_trip_takes_as_long_as_the_links_say(self, net: FabricNet) -> None:
        reply = net["h0"].cmd("ping -c 5 -i 0.2 -s 1000", net["h3"].IP())
        fastest_ms = float(reply.rpartition("= ")[2].split("/")[0])
        # Four links each way: 0.5 ms of propagation and 1,066 bytes at 100 Mb/s.
        ideal_ms = 8 * (0.5 + 1066 * 8 / 100e3)
        assert ideal_ms <= fastest_ms < ideal_ms + 3, reply

    @pytest.mark.parametrize("options", ["", "-u -b 50M"], ids=["tcp", "udp"])
    def test_iperf3(self, net: FabricNet, options: str) -> None:
        server, client = net["h3"], net["h0"]
        server.cmd("iperf3 -s -1 -D; until ss -Hltn | grep -q :5201; do sleep 0.05; done")
        report = json.loads(client.cmd("iperf3 -J -t 3 -c", server.IP(), options))
        assert "error" not in report, report
        if options:
            assert report["end"]["sum"]["bits_per_second"] == pytest.approx(50e6, rel=0.05)
            assert report["end"]["sum"]["lost_percent"] < 1
        else:
            assert 50e6 < report["end"]["sum_received"]["bits_per_second"] < 100e6

    @pytest.mark.parametrize("offload", ["on", "off"])
    def test_tcp_with_the_hosts_segmentation_offload(self, net: FabricNet, offload: str) -> None:
        server, client = net["h3"], net["h0"]
        client.cmd("ethtool -K", client.defaultIntf(), "gso", offload)
        assert f"generic-segmentation-offload: {offload}" in client.cmd("ethtool -k", client.defaultIntf())
        server.cmd("iperf3 -s -1 -D; until ss -Hltn | grep -q :5201; do sleep 0.05; done")
        report = json.loads(client.cmd("iperf3 -J -t 2 -c", server.IP()))
        assert "error" not in report, report
        assert 50e6 < report["end"]["sum_received"]["bits_per_second"] < 100e6

    def test_links_are_fixed(self, net: FabricNet) -> None:
        with pytest.raises(LabError, match="links of a running fabric are fixed"):
            net.addLink(net["h0"], net["leaf1"])

    def test_cli(self, net: FabricNet, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        script = tmp_path / "script"
        script.write_text("nodes\nh0 ping -c1 h3\ndpctl dump-flows\nlinks\npingall 2\n")
        with open(os.devnull) as nothing:
            CLI(net, stdin=nothing, script=str(script))
        text = "".join(caplog.messages)
        assert "h0 h1 h2 h3 leaf0 leaf1 spine0 spine1" in text
        assert "h0-eth0<->sg-leaf0-eth1 (OK OK)" in text
        assert "nw_dst=10.0.1.2 actions=output:" in text


class TestTeardown:
    """Whatever happens, the machine is as it was."""

    def test_stop_twice(self, untouched: Machine) -> None:
        net = FabricNet(SPEC)
        net.stop()
        net.start()
        assert Machine.now() != untouched
        net.stop()
        net.stop()

    def test_and_again(self, untouched: Machine) -> None:
        net = FabricNet(SPEC)
        for _ in range(2):
            net.start()
            net.stop()

    def test_fabricd_does_not_start(self, untouched: Machine) -> None:
        def broken(_fabric: Fabric) -> None:
            raise LabError("no data path today")

        with pytest.raises(LabError, match="no data path today"), FabricNet(SPEC, start_fabricd=broken):
            pass

    def test_exception_in_the_lab(self, untouched: Machine) -> None:
        with pytest.raises(ZeroDivisionError), FabricNet(SPEC):
            _ = 1 / 0

    @pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3])
    def test_control_c_while_building(self, untouched: Machine, delay_s: float) -> None:
        runner = start_runner()
        wait_for(runner, "begin")
        time.sleep(delay_s)
        os.killpg(runner.pid, signal.SIGINT)
        assert runner.wait(20) != 0

    def test_control_c(self, untouched: Machine) -> None:
        runner = start_runner()
        wait_for(runner, "up")
        os.killpg(runner.pid, signal.SIGINT)
        assert runner.wait(20) != 0

    @pytest.mark.parametrize("delay_s", [0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4])
    def test_killed_while_building(self, untouched: Machine, delay_s: float) -> None:
        runner = start_runner()
        wait_for(runner, "begin")
        time.sleep(delay_s)
        runner.kill()
        runner.wait()
        cleanup.clean()

    def test_killed_while_running(self, untouched: Machine) -> None:
        runner = start_runner()
        wait_for(runner, "up")
        runner.kill()
        runner.wait()
        assert cleanup.running() is None
        assert any("topologies.fabricd" in process for process in lab_processes())
        removed = cleanup.clean()
        assert {"bridge sg-leaf0", "bridge sg-spine1", "interface sg-leaf0-tap1"} <= set(removed)
        assert cleanup.clean() == []

    def test_next_lab_cleans_up_by_itself(self, untouched: Machine) -> None:
        runner = start_runner()
        wait_for(runner, "up")
        runner.kill()
        runner.wait()
        with FabricNet(SPEC) as net:
            net.route_statically()
            assert net.ping([net["h0"], net["h3"]], timeout=2) == 0

    def test_state_lost(self, untouched: Machine) -> None:
        """After a reboot the bridges are still in OVS's database, but /run is empty."""
        runner = start_runner()
        wait_for(runner, "up")
        runner.kill()
        runner.wait()
        state = cleanup.State.load()
        assert state is not None
        cleanup.kill_processes(state.token)
        if state.ovs_policy:
            ovs.restore_scheduler(state.ovs_policy)
        shutil.rmtree(RUN_DIR)
        assert "bridge sg-leaf0" in cleanup.clean()


class TestNeighbours:
    """A lab shares the machine."""

    def test_second_lab_is_refused(self, untouched: Machine) -> None:
        with FabricNet(SPEC):
            assert cleanup.running() == os.getpid()
            with pytest.raises(LabError, match=f"another lab is running on this machine \\(pid {os.getpid()}\\)"):
                FabricNet(SPEC).build()
            with pytest.raises(LabError, match=f"pid {os.getpid()}"):
                cleanup.clean()
            assert ovs.our_bridges()
        assert cleanup.running() is None

    @pytest.fixture
    def foreigners(self) -> Iterator[subprocess.Popen[bytes]]:
        """A bridge with our prefix, a veth pair with our prefix, one in our link group, and a Mininet shell."""
        shell = subprocess.Popen(["bash", "--norc", "-is", "mininet:h0"], stdin=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        group = str(LINK_GROUP)
        ovs.vsctl("add-br", "sg-foreign", "--", "set", "Bridge", "sg-foreign", "datapath_type=netdev")
        subprocess.run(["ip", "link", "add", "sg-a", "type", "veth", "peer", "name", "sg-b"], check=True)
        subprocess.run(["ip", "link", "add", "foreign", "group", group, "type", "veth", "peer", "name", "foreign2"],
                       check=True)
        yield shell
        assert shell.poll() is None
        shell.kill()
        shell.wait()
        for name in ("sg-a", "foreign"):
            subprocess.run(["ip", "link", "delete", name], check=True)
        ovs.vsctl("del-br", "sg-foreign")

    @pytest.mark.usefixtures("foreigners")
    def test_foreigners_survive(self, untouched: Machine) -> None:
        runner = start_runner()
        wait_for(runner, "up")
        runner.kill()
        runner.wait()
        cleanup.clean()
        with FabricNet(SPEC):
            pass


def test_no_open_vswitch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ovs, "vswitchd_pid", lambda: None)
    with pytest.raises(LabError, match="ovs-vswitchd is not running") as caught:
        FabricNet(SPEC).build()
    assert "ovs-ctl" in str(caught.value.remedy)


@pytest.mark.slow  # OVS's spanning tree needs half a minute
@pytest.mark.parametrize(("topo", "pings"), [("leafspine,2,2,2", 12), ("switchring,3,1", 6)])
def test_mn_custom(untouched: Machine, topo: str, pings: int) -> None:
    datapath = "user" if ovs.datapath() == "userspace" else "kernel"
    # Should anything fail, `mn` would remove every bridge of this machine and kill by name: not in a test.
    harmless = "import mininet.clean, runpy; mininet.clean.cleanup = print; runpy.run_path({mn!r}, run_name='__main__')"
    done = subprocess.run(
        ["/usr/bin/python3", "-c", harmless.format(mn=shutil.which("mn")),
         "--custom", "topologies/mn.py", "--topo", topo,
         "--switch", f"ovsbr,stp=1,datapath={datapath}", "--controller", "none", "--test", "pingall"],
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert f"0% dropped ({pings}/{pings} received)" in done.stdout + done.stderr
