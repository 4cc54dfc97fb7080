"""FabricNet: a Mininet network that is built in batches, with fabricd in every link.

    with FabricNet(FabricSpec(leaves=2, spines=2, hosts_per_leaf=2, slowdown=1000)) as net:
        net.route_statically()
        print(net["h0"].cmd("ping -c 1", net["h3"].IP()))

Stock Mininet asks a shell for every single step.  Here all interfaces come from one `ip -batch`, all bridges from one
transaction of OVS's database, and all hosts configure themselves at the same time (`make bench` compares).  What
results is a Mininet network like any other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from mininet.net import Mininet

from topologies import cleanup, ovs
from topologies.errors import LabError
from topologies.fabric import LINK_GROUP, Fabric, build_topo, describe
from topologies.fabricd import process as fabricd_process
from topologies.link import FabricLink
from topologies.server import FabricHost
from topologies.spec import FabricSpec
from topologies.switch import FabricSwitch, static_flows
from topologies.units import interface_mtu_bytes


class FabricdHandle(Protocol):
    """What `topologies.fabricd.process.start` returns."""

    pid: int

    def alive(self) -> bool:
        """Whether it still runs."""

    def stop(self) -> None:
        """End it."""


class FabricNet(Mininet):  # type: ignore[misc]  # Mininet has no types
    """A running fabric: `net["h0"].cmd(...)`, `net.hosts`, `CLI(net)` and all else that Mininet offers.

    spec: with a number for `slowdown` (`calibrate.resolve` finds one for "auto").
    lab: a name, for messages and files.
    controller_port: TCP port of the controller on this machine; may be set any time before `start`.  None: the
    bridges have no controller, and being in fail-secure mode they forward nothing.
    start_fabricd: starts the data path; None: the links carry nothing.
    datapath: "kernel" or "userspace"; None: the best that there is (`ovs.datapath`).

    `build` creates nodes and links with fabricd in them and writes `fabric` to FABRIC_PATH, `start` creates the
    bridges, `stop` removes all of it.  Any failure on the way, and Ctrl-C, end in `stop`.  Raises LabError if another
    lab is running, if OVS is not, and without root.
    """

    fabric: Fabric  # from `build` on

    def __init__(self, spec: FabricSpec, lab: str = "", controller_port: int | None = None,
                 start_fabricd: Callable[[Fabric], FabricdHandle] | None = fabricd_process.start,
                 datapath: str | None = None) -> None:
        _ = spec.clock  # complain about "auto" before anything exists
        if os.geteuid() != 0:
            raise LabError("building a network needs root", "use sudo")
        self.spec = spec
        self.lab = lab
        self.controller_port = controller_port
        self._start_fabricd = start_fabricd
        self._datapath = datapath
        self.fabricd: FabricdHandle | None = None
        self._lock = cleanup.Lock()
        self._state: cleanup.State | None = None
        super().__init__(topo=build_topo(spec), switch=FabricSwitch, host=FabricHost, link=FabricLink, controller=None,
                         build=False)

    def build(self) -> None:
        """Create nodes and links, fabricd in them, and configure the hosts."""
        ovs_version, datapath = ovs.version(), self._datapath or ovs.datapath()
        self._lock.acquire()
        for objects in (self.hosts, self.switches, self.links):
            objects.clear()  # like Mininet's, ours are still there after `stop`
        with self._all_or_nothing():
            cleanup.remove(cleanup.State.load())  # what a killed lab may have left
            ovs_scheduler = self._claim(datapath)
            self._add_nodes(datapath)
            self.fabric = describe(
                self.spec, topo=self.topo, lab=self.lab, datapath=datapath, ovs_version=ovs_version,
                ovs_scheduler=ovs_scheduler, host_pids={host.name: host.pid for host in self.hosts})
            self.fabric.save()
            self._add_links()
            self._create_interfaces()
            with ThreadPoolExecutor(max_workers=1) as pool:  # fabricd needs the interfaces, but not their addresses
                data_path = pool.submit(self._start_data_path)
                self.configHosts()
            data_path.result()
            self.built = True

    def start(self) -> None:
        """Build if that is still to do, then start the bridges."""
        if not self.built:
            self.build()
        with self._all_or_nothing():
            for switch in self.switches:
                switch.controller_port = self.controller_port
            super().start()

    def route_statically(self) -> None:
        """Routes without a controller: every destination over one fixed path (`switch.static_flows`)."""
        for switch in self.switches:
            switch.add_flows(static_flows(self.fabric, self.fabric.switch(switch.name)))

    def stop(self) -> None:
        """Remove everything that was created; harmless when nothing was, and when it is called again."""
        if not self._lock.held:
            return
        with _uninterrupted():
            try:
                if self.fabricd is not None:
                    self.fabricd.stop()
                    self.fabricd = None
                super().stop()
            finally:
                try:
                    cleanup.remove(self._state)
                finally:
                    os.environ.pop(cleanup.TOKEN_VARIABLE, None)
                    self.built = False
                    self._lock.release()

    def __enter__(self) -> FabricNet:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def addLink(self, *nodes: Any, **params: Any) -> FabricLink:  # noqa: N802  (Mininet's name)
        """As in Mininet, until everything is built.  Raises LabError afterwards."""
        if self.built:
            raise LabError("the links of a running fabric are fixed: fabricd would not carry a new one",
                           "build a FabricNet with another spec")
        link: FabricLink = super().addLink(*nodes, **params)
        return link

    def configHosts(self) -> None:  # noqa: N802
        """All hosts at the same time."""
        for host in self.hosts:
            host.begin_config()
        for host in self.hosts:
            host.end_config()

    def _claim(self, datapath: str) -> str:
        """Write down what is going to be ours, then begin; returns how OVS is scheduled from now on."""
        policy = ovs.current_scheduler() if datapath == "userspace" else None
        self._state = cleanup.State(lab=self.lab, pid=os.getpid(), token=uuid.uuid4().hex, ovs_policy=policy)
        self._state.save()
        os.environ[cleanup.TOKEN_VARIABLE] = self._state.token
        return ovs.raise_scheduler(policy) if policy else "unchanged"

    def _add_nodes(self, datapath: str) -> None:
        """Start the nodes' shells, some at a time: a node is a fork and then mostly waiting for a prompt."""
        topo = self.topo
        with ThreadPoolExecutor(max_workers=4) as pool:
            switches = pool.map(lambda name: self.addSwitch(name, datapath=datapath, **topo.nodeInfo(name)),
                                topo.switches())
            hosts = pool.map(lambda name: self.addHost(name, **topo.nodeInfo(name)), topo.hosts())
            # In the order of the topology, not in that in which the shells came up.
            self.switches, self.hosts = list(switches), list(hosts)

    def _add_links(self) -> None:
        mac = {(port.device, port.number): port.mac for port in self.fabric.ports}
        for _one, _other, link in self.topo.links(sort=True, withInfo=True):
            self.addLink(**link, addr1=mac[link["node1"], link["port1"]], addr2=mac[link["node2"], link["port2"]])

    def _create_interfaces(self) -> None:
        """Both veth pairs of all links."""
        mtu_bytes = interface_mtu_bytes(self.spec.mtu_bytes)
        ip_batch([command for link in self.links for command in link.commands(mtu_bytes)])
        for link in self.links:
            for intf in (link.intf1, link.intf2):
                disable_ipv6(intf.tap)
                if not intf.node.inNamespace:
                    disable_ipv6(intf.name)
        # Only now: an interface that comes up with IPv6 sends router solicitations and listener reports.
        ip_batch([f"link set group {LINK_GROUP} up"])

    def _start_data_path(self) -> None:
        if self._start_fabricd is not None:
            self.fabricd = self._start_fabricd(self.fabric)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:  # Ctrl-C too
            self.stop()
            raise


def ip_batch(commands: list[str]) -> None:
    """Run commands of ip(8) in one process.  Raises LabError with the first complaint."""
    done = subprocess.run(["ip", "-batch", "-"], input="\n".join(commands) + "\n", capture_output=True, text=True,
                          check=False)
    if done.returncode:
        raise LabError(f"cannot create the interfaces: {(done.stderr.strip().splitlines() or ['ip failed'])[0]}")


def disable_ipv6(interface: str) -> None:
    """Keep an interface of this namespace from sending router solicitations and listener reports."""
    with suppress(FileNotFoundError):  # a kernel without IPv6
        Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the end of the block, and so it does for the commands that are started in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
