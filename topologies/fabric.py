"""Fabric: the description of a built network, and the only one.

FabricNet writes it to `FABRIC_PATH`; fabricd, the controllers and the labs read it.  Everything in it is in lab
time (ns, bit/s) and bytes.  Ports carry one global index, which telemetry and trace records use: the NICs first,
in the order of the hosts (so a NIC, its host and its port have the same index), then the switches' ports, switch by
switch and by OpenFlow number.  A port is the sending end of a link: `rate_bps`, `delay_ns` and `buffer_bytes`
are those of the direction from it to its peer.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mininet.topo import Topo

from topologies.errors import LabError, unknown_name
from topologies.qos import SwitchQos, credit_bytes, headroom_bytes, switch_qos
from topologies.shapes import SHAPES
from topologies.spec import FabricSpec
from topologies.units import BYTES_PER_KB, LabClock, interface_mtu_bytes

SCHEMA = 1

RUN_DIR = Path("/run/straggler")
LOCK_PATH = RUN_DIR / "lock"
STATE_PATH = RUN_DIR / "state.json"
FABRIC_PATH = RUN_DIR / "fabric.json"
FABRICD_SOCKET = RUN_DIR / "fabricd.sock"
CONTROLLER_SOCKET = RUN_DIR / "controller.sock"
RANKS_SOCKET = RUN_DIR / "ranks.sock"
FABRICD_LOG = RUN_DIR / "fabricd.log"
CONTROLLER_LOG = RUN_DIR / "controller.log"
SHM_DIR = Path("/dev/shm/straggler")
TELEMETRY_PATH = SHM_DIR / "telemetry"

PREFIX = "sg-"  # of every bridge and every interface in the root namespace
LINK_GROUP = 0x5347  # of every interface that a lab creates, so that one command removes them all

# Every host's only neighbour.  All leaves answer to the same address, as an anycast gateway does.
GATEWAY_IP = "169.254.1.1"
GATEWAY_MAC = "02:53:fe:00:00:01"

_INTERFACE_NAME_LENGTH = 15  # IFNAMSIZ less the terminating zero


@dataclass(frozen=True)
class Switch:
    """One Open vSwitch bridge, and the buffer and hashing that fabricd gives it."""

    index: int
    name: str
    bridge: str
    dpid: int
    tier: str  # "leaf": has hosts; "spine": has none
    shared_buffer_bytes: int  # 0: no pool, only the ports' own limits
    alpha: float
    hash_seed: int
    flowlet_gap_ns: int
    qos: SwitchQos = field(default_factory=SwitchQos)


@dataclass(frozen=True)
class Host:
    """One Mininet host; `pid` is its shell's, whose namespace holds the NIC (0: not built)."""

    index: int
    name: str
    ip: str
    mac: str
    pid: int
    leaf: str


@dataclass(frozen=True)
class Port:
    """The sending end of a link: a host's NIC (number 0) or a switch's port (OpenFlow number, from 1)."""

    index: int
    device: str
    kind: str  # "host" or "switch"
    node: int  # index into hosts or switches
    number: int
    interface: str
    tap: str  # the other end of the veth pair, where fabricd listens
    peer: int  # index of the port at the far end
    role: str  # "nic", "access" (switch port to a host), "uplink" or "downlink"
    rate_bps: float
    delay_ns: int
    buffer_bytes: int
    mac: str
    headroom_bytes: int = 0  # of what comes in, each lossless class
    credit_bytes: int = 0  # advertised to the peer, each lane


@dataclass(frozen=True)
class Fabric:
    """A network as built.  Raises LabError for names that it does not have."""

    lab: str
    slowdown: float
    datapath: str  # "userspace" or "kernel" (to OVS: netdev, system)
    ovs_version: str
    ovs_scheduler: str  # of ovs-vswitchd's threads: "SCHED_RR 19", "nice -20", "unchanged" ...
    mtu_bytes: int  # of the interfaces; the RoCE path MTU is spec.mtu_bytes
    gateway_ip: str
    gateway_mac: str
    link_group: int
    spec: FabricSpec
    switches: tuple[Switch, ...]
    hosts: tuple[Host, ...]
    ports: tuple[Port, ...]
    schema: int = field(default=SCHEMA)

    @classmethod
    def load(cls, path: Path | str = FABRIC_PATH) -> Fabric:
        """Read what `save` wrote.  Raises LabError when there is nothing, or another version's."""
        try:
            values = json.loads(Path(path).read_text())
        except FileNotFoundError:
            raise LabError(f"no fabric is up: {path} does not exist", "start a lab first") from None
        except (OSError, ValueError) as error:
            raise LabError(f"cannot read {path}: {error}") from None
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Fabric:
        """The inverse of `to_dict`."""
        if values.get("schema") != SCHEMA:
            raise LabError(f"the fabric's description has schema {values.get('schema')}, this version reads {SCHEMA}",
                           "end the running lab (straggler clean) and start it again")
        return cls(**{
            **values,
            "spec": FabricSpec.from_dict(values["spec"]),
            "switches": tuple(Switch(**{**switch, "qos": _switch_qos(switch["qos"])}) for switch in values["switches"]),
            "hosts": tuple(Host(**host) for host in values["hosts"]),
            "ports": tuple(Port(**port) for port in values["ports"]),
        })

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in fabric.json."""
        return {"schema": self.schema, **dataclasses.asdict(self), "spec": self.spec.to_dict()}

    def save(self, path: Path | str = FABRIC_PATH) -> None:
        """Write it atomically, so that no reader sees half of it."""
        path = Path(path)
        draft = path.with_name(path.name + ".new")
        draft.write_text(json.dumps(self.to_dict(), indent=1) + "\n")
        os.replace(draft, path)

    @cached_property
    def clock(self) -> LabClock:
        """Between lab time and hardware units."""
        return LabClock(self.slowdown)

    @cached_property
    def _hosts_by_name(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def _switches_by_name(self) -> dict[str, Switch]:
        return {switch.name: switch for switch in self.switches}

    @cached_property
    def _ports_by_device(self) -> dict[str, list[Port]]:
        ports: dict[str, list[Port]] = {}
        for port in self.ports:
            ports.setdefault(port.device, []).append(port)
        return ports

    def host(self, name: str) -> Host:
        """The host called `name`, e.g. "h0"."""
        if name not in self._hosts_by_name:
            raise unknown_name("host", name, self._hosts_by_name)
        return self._hosts_by_name[name]

    def switch(self, name: str) -> Switch:
        """The switch called `name`, e.g. "leaf0"."""
        if name not in self._switches_by_name:
            raise unknown_name("switch", name, self._switches_by_name)
        return self._switches_by_name[name]

    def port(self, index: int) -> Port:
        """The port with this global index."""
        if not 0 <= index < len(self.ports):
            raise LabError(f"port {index} does not exist", f"0 to {len(self.ports) - 1}")
        return self.ports[index]

    def ports_of(self, device: str | Switch | Host) -> list[Port]:
        """All ports of a switch or host, by number."""
        name = device if isinstance(device, str) else device.name
        if name not in self._ports_by_device:
            raise unknown_name("device", name, self._ports_by_device)
        return list(self._ports_by_device[name])

    def switch_port(self, device: str | Switch, number: int) -> Port:
        """The port of a switch with this OpenFlow number."""
        for port in self.ports_of(device):
            if port.number == number:
                return port
        raise LabError(f"{device if isinstance(device, str) else device.name} has no port {number}")

    def nic(self, host: str | Host) -> Port:
        """A host's own port."""
        name = host if isinstance(host, str) else host.name
        return self.ports[self.host(name).index]

    def peer(self, port: Port) -> Port:
        """The port at the far end of the link."""
        return self.ports[port.peer]

    def uplinks(self, leaf: str | Switch) -> list[Port]:
        """A leaf's ports towards the spines (in a ring: its clockwise one), by OpenFlow number."""
        return [port for port in self.ports_of(leaf) if port.role == "uplink"]

    def leaf_of(self, host: str | Host) -> Switch:
        """The switch that a host hangs on."""
        return self.switch(self.host(host if isinstance(host, str) else host.name).leaf)

    def leaves(self) -> list[Switch]:
        """Switches with hosts."""
        return [switch for switch in self.switches if switch.tier == "leaf"]

    def port_name(self, index: int) -> str:
        """What a person calls it: "leaf0->spine2"."""
        port = self.port(index)
        return f"{port.device}->{self.ports[port.peer].device}"


def _switch_qos(values: Mapping[str, Any]) -> SwitchQos:
    return SwitchQos(**{**values, "ets_shares": tuple(values["ets_shares"])})


def switch_hash_seed(fabric_seed: int, switch_index: int) -> int:
    """A switch's own seed (32 bits): different on every switch, and for every `fabric_seed`."""
    return (fabric_seed << 16 | switch_index + 1) & 0xFFFFFFFF


def interface_name(device: str, number: int) -> str:
    """Name of a switch's interface in the root namespace: "sg-leaf0-eth1"."""
    return _short_enough(f"{PREFIX}{device}-eth{number}", f"{PREFIX}{device}e{number}")


def tap_name(device: str, number: int) -> str:
    """Name of the far end of a veth pair, where fabricd listens: "sg-leaf0-tap1"."""
    return _short_enough(f"{PREFIX}{device}-tap{number}", f"{PREFIX}{device}t{number}")


def _short_enough(*candidates: str) -> str:
    for name in candidates:
        if len(name) <= _INTERFACE_NAME_LENGTH:
            return name
    raise LabError(f"{candidates[-1]} is too long for the name of an interface", "give the switches shorter names")


def describe(spec: FabricSpec, *, lab: str = "", datapath: str = "userspace", ovs_version: str = "",
             ovs_scheduler: str = "unchanged", host_pids: Mapping[str, int] | None = None,
             topo: Topo | None = None) -> Fabric:
    """The Fabric that a spec stands for; nothing is built and nothing needs root.

    topo: the shape's topology, if the caller has it already.  host_pids: of the hosts' shells, once they run.
    Raises LabError while `spec.slowdown` is "auto".
    """
    clock = spec.clock
    if topo is None:
        topo = build_topo(spec)
    pids = host_pids or {}
    for name in spec.switch_profiles:
        if name not in topo.switches():
            raise unknown_name("switch", name, topo.switches())
    switch_names = sorted(topo.switches(), key=lambda name: int(topo.nodeInfo(name)["dpid"], 16))
    host_names = topo.hosts()
    switch_index = {name: index for index, name in enumerate(switch_names)}
    host_index = {name: index for index, name in enumerate(host_names)}

    ends: dict[tuple[str, int], tuple[str, int]] = {}
    uplink_ends = set()
    for _one, _other, link in topo.iterLinks(withInfo=True):
        near, far = (link["node1"], link["port1"]), (link["node2"], link["port2"])
        ends[near], ends[far] = far, near
        uplink_ends.add(near)
    order = sorted(ends, key=lambda end: (end[0] in switch_index, host_index.get(end[0], switch_index.get(end[0])),
                                          end[1]))
    port_index = {end: index for index, end in enumerate(order)}

    def port(index: int, device: str, number: int) -> Port:
        far, far_number = ends[device, number]
        is_host = device in host_index
        to_host = is_host or far in host_index
        rate_gbps = spec.link_gbps if to_host else spec.uplink_rate_gbps
        link = (rate_gbps, spec.link_delay_us, spec.mtu_bytes)
        return Port(
            index=index, device=device, kind="host" if is_host else "switch",
            node=host_index[device] if is_host else switch_index[device], number=number,
            interface=f"{device}-eth{number}" if is_host else interface_name(device, number),
            tap=tap_name(device, number), peer=port_index[far, far_number],
            role="nic" if is_host else "access" if to_host else
                 "uplink" if (device, number) in uplink_ends else "downlink",
            rate_bps=clock.lab_bps(rate_gbps),
            delay_ns=clock.lab_ns(spec.link_delay_us),
            buffer_bytes=round((spec.host_buffer_kb if is_host else spec.buffer_kb) * BYTES_PER_KB),
            mac=topo.nodeInfo(device)["mac"] if is_host else f"02:53:01:{switch_index[device]:02x}:00:{number:02x}",
            headroom_bytes=headroom_bytes(spec.of_switch(device), *link), credit_bytes=credit_bytes(spec, *link))

    def switch(index: int, name: str) -> Switch:
        own = spec.of_switch(name)
        shared_bytes = round(own.shared_buffer_kb * BYTES_PER_KB)
        reserved = sum(port.headroom_bytes for port in ports if port.device == name) * len(own.lossless_classes)
        return Switch(
            index=index, name=name, bridge=PREFIX + name, dpid=int(topo.nodeInfo(name)["dpid"], 16),
            tier=topo.nodeInfo(name)["tier"], shared_buffer_bytes=shared_bytes, alpha=own.alpha,
            hash_seed=switch_hash_seed(spec.hash_seed, index), flowlet_gap_ns=clock.lab_ns(spec.flowlet_gap_us),
            qos=switch_qos(own, name=name, shared_bytes=shared_bytes, reserved_bytes=reserved,
                           mtu_bytes=spec.mtu_bytes, clock=clock))

    ports = tuple(port(index, *end) for index, end in enumerate(order))
    return Fabric(
        lab=lab, slowdown=clock.slowdown, datapath=datapath, ovs_version=ovs_version, ovs_scheduler=ovs_scheduler,
        mtu_bytes=interface_mtu_bytes(spec.mtu_bytes), gateway_ip=GATEWAY_IP, gateway_mac=GATEWAY_MAC,
        link_group=LINK_GROUP, spec=spec,
        switches=tuple(switch(index, name) for index, name in enumerate(switch_names)),
        hosts=tuple(Host(
            index=index, name=name, ip=topo.nodeInfo(name)["ip"].partition("/")[0], mac=topo.nodeInfo(name)["mac"],
            pid=pids.get(name, 0), leaf=ends[name, 0][0]) for index, name in enumerate(host_names)),
        ports=ports)


def build_topo(spec: FabricSpec) -> Topo:
    """The Mininet topology of a spec."""
    shape = SHAPES[spec.shape]
    return shape(**{key: getattr(spec, key) for key in shape.SIZES})
