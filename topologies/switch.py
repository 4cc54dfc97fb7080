"""A switch of the fabric: an Open vSwitch bridge that forwards and never queues."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mininet.node import Controller, OVSSwitch

from topologies import ovs
from topologies.errors import LabError
from topologies.fabric import PREFIX, Fabric, Switch
from topologies.server import Insulated

CONTROLLER_MAX_BACKOFF_MS = 1000
CONTROLLER_INACTIVITY_PROBE_MS = 30_000  # a busy machine must not look like a dead controller


class FabricSwitch(Insulated, OVSSwitch):  # type: ignore[misc]  # Mininet has no types
    """OVSSwitch whose bridge carries our prefix and mark, and which only ever starts in a batch.

    datapath: "userspace" or "kernel".  controller_port: the controller's TCP port on this machine, None: none.
    """

    def __init__(self, name: str, datapath: str = "userspace", **params: Any) -> None:
        params["batch"] = True
        mininets = "user" if datapath == "userspace" else "kernel"
        super().__init__(name, datapath=mininets, protocols="OpenFlow13", **params)
        self.bridge = PREFIX + name
        self.controller_port: int | None = None

    @classmethod
    def setup(cls) -> None:
        """Nothing: FabricNet has seen already that OVS runs; Mininet would end the process if it did not."""

    def dpctl(self, *args: str) -> str:
        """Run ovs-ofctl on the bridge: `dpctl("dump-flows", "table=1")`."""
        return str(self.cmd("ovs-ofctl", "-O", "OpenFlow13", args[0], self.bridge, *args[1:]))

    def connected(self) -> bool:
        """Whether the bridge has its controller."""
        controllers = ovs.vsctl("--bare", "get", "Bridge", self.bridge, "controller").strip().strip("[]")
        return bool(controllers) and ovs.vsctl("--bare", "get", "Controller", controllers, "is_connected") == "true\n"

    def add_flows(self, flows: Sequence[str]) -> None:
        """Install flows, in ovs-ofctl's syntax, all at once.  Raises LabError if the switch refuses one."""
        done = subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "--bundle", "add-flows", self.bridge, "-"],
                              input="\n".join(flows) + "\n", capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise LabError(f"{self.name} refuses flows: {reason}")

    def transaction(self) -> list[str]:
        """Arguments of ovs-vsctl that create the bridge with its ports, their OpenFlow numbers, and its controller."""
        words = ["--", "add-br", self.bridge,
                 "--", "set", "Bridge", self.bridge,
                 f"datapath_type={'netdev' if self.datapath == 'user' else 'system'}", "fail_mode=secure",
                 "protocols=OpenFlow13", f"other_config:datapath-id={self.dpid}",
                 f"other_config:dp-desc={self.name}", "other_config:disable-in-band=true",
                 f"external_ids:{ovs.MARK[0]}={ovs.MARK[1]}"]
        for number, intf in self.intfs.items():
            if number:  # 0 is the loopback of Mininet's switches
                # The exact-match cache only costs time here: the addresses differ from packet to packet.
                words += ["--", "add-port", self.bridge, intf.name,
                          "--", "set", "Interface", intf.name, f"ofport_request={number}",
                          "other_config:emc-enable=false"]
        if self.controller_port is not None:
            words += ["--", f"--id=@{self.name}", "create", "Controller",
                      f'target="tcp:127.0.0.1:{self.controller_port}"', f"max_backoff={CONTROLLER_MAX_BACKOFF_MS}",
                      f"inactivity_probe={CONTROLLER_INACTIVITY_PROBE_MS}",
                      "--", "set", "Bridge", self.bridge, f"controller=@{self.name}"]
        return words

    def start(self, controllers: Iterable[Controller]) -> None:
        """Nothing yet; see `batchStartup`."""

    @classmethod
    def batchStartup(cls, switches: Sequence[FabricSwitch], run: Callable[..., Any] | None = None,  # noqa: N802
                     ) -> Sequence[FabricSwitch]:
        """Start all switches in one transaction of OVS's database."""
        ovs.vsctl(*(word for switch in switches for word in switch.transaction()))
        return switches

    @classmethod
    def batchShutdown(cls, switches: Sequence[FabricSwitch], run: Callable[..., Any] | None = None,  # noqa: N802
                      ) -> Sequence[FabricSwitch]:
        """Nothing: FabricNet removes all bridges at once."""
        return switches


def static_flows(fabric: Fabric, switch: Switch) -> list[str]:
    """Flows (ovs-ofctl's syntax) that route by destination alone, without a controller.

    The n-th host of every leaf is reached over the n-th uplink (modulo their number), from everywhere, so that a
    permutation of the hosts between the leaves meets no collision.
    """
    uplinks = fabric.uplinks(switch)
    downlinks = {fabric.peer(port).device: port for port in fabric.ports_of(switch) if port.role == "downlink"}
    flows = []
    for host in fabric.hosts:
        access = fabric.peer(fabric.nic(host))
        if host.leaf == switch.name:
            out = access
        elif switch.tier == "leaf":
            out = uplinks[(access.number - 1) % len(uplinks)]
        else:
            out = downlinks[host.leaf]
        flows.append(f"priority=1,ip,nw_dst={host.ip},actions=output:{out.number}")
    return flows
