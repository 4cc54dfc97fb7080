"""Runs on lossless fabrics: the native core in virtual time, RoCE packets without NICs behind them.

A host hands a message's packets to its NIC's queue at once and nobody retransmits: what stops them are pauses, credits
and queues, and the core's own trace records say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from labs.measure.evidence import Evidence
from labs.measure.raw import FlowRole, RawIteration, RawRank, RawRun
from labs.measure.stored import number_of
from labs.measure.theory import dotted
from tests.unit.topologies.virtual_fabric import VirtualFabric
from topologies.spec import FabricSpec

US = 10_000_000  # lab ns of a hardware us
START_NS = 5_000_000
PAYLOAD = 4096
DATA = 26  # DSCP of class 3
FIRST_PORT = 49_152
PSN_AT = 14 + 20 + 8 + 8  # in a frame


def spec(**changes: Any) -> FabricSpec:
    """One spine between two leaves of four hosts, lossless, with buffers of a few packets."""
    values: dict[str, Any] = {"leaves": 2, "spines": 1, "hosts_per_leaf": 4, "slowdown": 10_000, "host_buffer_kb": 8192,
                              "flow_control": "pfc", "xoff_kb": 20, "xon_offset_kb": 8}
    return FabricSpec(**{**values, **changes})


class LosslessRun:
    """`message` plans, `play` runs, `raw` is the run as the runner would have recorded it."""

    def __init__(self, spec: FabricSpec, make: Callable[[FabricSpec], VirtualFabric] = VirtualFabric) -> None:
        self.fabric = make(spec)
        self.before = self.fabric.core.telemetry.snapshot()
        self.faults: list[dict[str, Any]] = []
        self._roles: dict[int, FlowRole] = {}
        self._until_ns = 0
        self._packets: dict[int, int] = {}

    def message(self, src: str, dst: str, packets: int, at_us: float = 0.0, dscp: int = DATA, qp: int = 0,
                gap_us: float = 0.0) -> FlowRole:  # fmt: skip
        """A flow of its own: `packets` of full size, `gap_us` from one to the next."""
        fabric = self.fabric.fabric
        source, target, sport = fabric.host(src), fabric.host(dst), FIRST_PORT + len(self._roles)
        role = FlowRole(number_of(source.ip), number_of(target.ip), sport, 4791, 17, source.index, target.index, 0,
                        start_us=at_us, qp=qp)
        self._roles[sport], self._packets[sport] = role, packets
        self.send(role, packets, at_us, dscp, gap_us)
        return role

    def send(self, role: FlowRole, packets: int, at_us: float, dscp: int = DATA, gap_us: float = 0.0,
             payload: int = PAYLOAD) -> None:  # fmt: skip
        """The packets of a flow from PSN 0 on: again, or of a flow in which no rank has data."""
        fabric = self.fabric.fabric
        source = next(host for host in fabric.hosts if number_of(host.ip) == role.src_ip)
        bth = bytes([0x0A, 0, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, 0])
        frame = bytes(Ether(src=source.mac, dst=fabric.gateway_mac)
                      / IP(src=dotted(role.src_ip), dst=dotted(role.dst_ip), tos=dscp << 2)
                      / UDP(sport=role.src_port, dport=4791, chksum=0) / (bth + bytes(payload + 4)))
        for psn in range(packets):
            frame = frame[:PSN_AT] + psn.to_bytes(4, "big") + frame[PSN_AT + 4:]
            self.fabric.send(source.name, frame, START_NS + round((at_us + psn * gap_us) * US))

    def fault(self, fault: str, text: str, begin_us: float = 0.0, **where: str) -> None:
        """What the fault player would have recorded."""
        self.faults.append({"t_ns": START_NS + round(begin_us * US), "kind": "fault", "fault": fault, "state": "begin",
                            "text": text, **where})

    def play(self, until_us: float | None = None) -> None:
        """To the end, or to a time: a frozen fabric has no end."""
        if until_us is None:
            self.fabric.run()
        else:
            self._until_ns = START_NS + round(until_us * US)
            self.fabric.run(self._until_ns)

    def raw(self, collective: str = "transfers", ranks: Sequence[str] | None = None) -> RawRun:
        """One measured iteration; a rank is a host, done when it has sent and received everything."""
        fabric, telemetry = self.fabric.fabric, self.fabric.core.telemetry
        trace = telemetry.drain_trace()
        last: dict[int, int] = {}
        count: dict[int, int] = {}
        for at_ns, _, frame in self.fabric.delivered:
            sport = int.from_bytes(frame[34:36], "big")
            last[sport], count[sport] = at_ns, count.get(sport, 0) + 1
        rows = []
        for host in fabric.hosts:
            own = [port for port, role in self._roles.items() if host.index in (role.rank, role.peer)]
            if not own or (ranks is not None and host.name not in ranks):
                continue
            done = all(count.get(port, 0) == self._packets[port] for port in own)
            rows.append(RawRank(host.index, host.name, 0, None, max(last[port] for port in own) if done else None))
        busiest = max(sum(self._packets[port] for port, role in self._roles.items() if getattr(role, end) == host.index)
                      for host in fabric.hosts for end in ("rank", "peer"))
        times, depth = telemetry.drain_series()
        return RawRun(
            policy="ecmp", label="lossless", seed=1, params={}, fabric=fabric, start_ns=START_NS,
            end_ns=max(self.fabric.now_ns, self._until_ns),
            iterations=(RawIteration(0, False, START_NS, tuple(rows)),), trace=trace, series_t_ns=times,
            series_depth=depth, flows=telemetry.flows.copy(), flow_ranks=tuple(self._roles.values()),
            before=self.before, after=telemetry.snapshot(), cpu={"idle_share": 0.5, "steal_share": 0.0},
            workload={"collective": collective, "ranks": len(rows), "size_bytes": busiest * PAYLOAD,
                      "ideal_us": busiest * PAYLOAD * 8 / 1e3 / fabric.spec.link_gbps},
            fault_events=tuple(self.faults))

    def evidence(self, **arguments: Any) -> Evidence:
        return Evidence.of(self.raw(**arguments))
