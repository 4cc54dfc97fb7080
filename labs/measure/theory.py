"""What the physics says before anything is measured: the column beside every result.

Pure functions, hardware units (bytes, us, Gb/s).  Sources are named at each function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import ceil, factorial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from topologies.units import WIRE_OVERHEAD_BYTES

if TYPE_CHECKING:
    from labs.measure.raw import FlowRole
    from topologies.fabric import Fabric, Host, Port, Switch

PACKET_HEADER_BYTES = 14 + 20 + 8 + 12 + 4  # Ethernet, IPv4, UDP, BTH, ICRC: of a packet in the middle of a message
RETH_BYTES = 16
IMMEDIATE_BYTES = 4

# nccl-tests, doc/PERFORMANCE.md: what algbw is multiplied by to be comparable with a link's rate.
_BUSBW: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "incast": lambda n: 1.0,
    "permutation": lambda n: 1.0,
    "transfers": lambda n: 1.0,
}

FlowHash = Callable[[int, int, int, int, int, int], int]
"""flow_hash(seed, src_ip, dst_ip, protocol, src_port, dst_port) -> 0..255, as the switch computes it."""


def busbw_factor(collective: str, ranks: int) -> float:
    """busbw = algbw * factor; ValueError for a collective that is not known."""
    try:
        return _BUSBW[collective](ranks)
    except KeyError:
        raise ValueError(f"unknown collective {collective!r}: one of {', '.join(_BUSBW)}") from None


def ring_allreduce_us(size_bytes: int, ranks: int, link_gbps: float) -> float:
    """2(n-1)/n * S / R: every rank sends each of its n chunks but one twice; headers and latency left out."""
    return busbw_factor("all_reduce", ranks) * size_bytes * 8 / (link_gbps * 1e3)


def wire_bytes(message_bytes: int, mtu_bytes: int, immediate: bool = True) -> int:
    """Bytes that one RDMA WRITE of `message_bytes` occupies on a link, preamble and gap included."""
    packets = max(1, ceil(message_bytes / mtu_bytes))
    extra = RETH_BYTES + (IMMEDIATE_BYTES if immediate else 0)
    return message_bytes + packets * (PACKET_HEADER_BYTES + WIRE_OVERHEAD_BYTES) + extra


def wire_overhead_factor(mtu_bytes: int) -> float:
    """Bytes on the wire for one byte of payload in full packets: 1.020 for an MTU of 4,096."""
    return (mtu_bytes + PACKET_HEADER_BYTES + WIRE_OVERHEAD_BYTES) / mtu_bytes


def mtu_time_us(mtu_bytes: int, link_gbps: float) -> float:
    """How long one full packet occupies a link."""
    return (mtu_bytes + PACKET_HEADER_BYTES + WIRE_OVERHEAD_BYTES) * 8 / (link_gbps * 1e3)


@lru_cache(maxsize=256)
def max_load_cdf(flows: int, paths: int) -> tuple[Fraction, ...]:
    """P(fullest path holds <= k flows), k = 0..flows, each flow choosing one of `paths` at random.

    Exact: n!/m^n times the coefficient of x^n in (sum over j <= k of x^j/j!)^m.
    """
    cdf = []
    for bound in range(flows + 1):
        bin_series = [Fraction(1, factorial(j)) if j <= bound else Fraction(0) for j in range(flows + 1)]
        product = [Fraction(1)] + [Fraction(0)] * flows
        for _ in range(paths):
            product = [sum((product[i] * bin_series[n - i] for i in range(n + 1)), Fraction(0))
                       for n in range(flows + 1)]
        cdf.append(product[flows] * factorial(flows) / Fraction(paths) ** flows)
    return tuple(cdf)


def max_load_mean(flows: int, paths: int, leaves: int = 1) -> float:
    """Mean number of flows on the fullest path, over `leaves` independent leaves: 4/4 2.125, four leaves of it 2.66."""
    cdf = max_load_cdf(flows, paths)
    return float(sum((1 - at_most**leaves for at_most in cdf[:-1]), Fraction(0)))


def collision_factor(flows: int, paths: int, leaves: int = 1) -> float:
    """How much longer the slowest link works than with a perfect spread: 8/4 1.77, 8/8 2.60, 16/4 1.53."""
    return max_load_mean(flows, paths, leaves) / max(1.0, flows / paths)


def go_back_n_efficiency(loss: float, window_packets: float) -> float:
    """(1-p)/(1-p+pW): a loss throws away the window behind it (Bertsekas & Gallager, Data Networks, 2.4)."""
    return (1 - loss) / (1 - loss + loss * window_packets)


def jain(x: Sequence[float] | npt.NDArray[Any]) -> float:
    """Jain's fairness index, 1/n (one has all) to 1 (all equal); 1.0 for nothing at all."""
    values = np.asarray(x, dtype=np.float64)
    square = float(np.sum(values**2))
    return float(np.sum(values)) ** 2 / (len(values) * square) if square > 0 else 1.0


def mmr(x: Sequence[float] | npt.NDArray[Any]) -> float:
    """Maximum over mean (BMWG AI fabric draft: max-to-mean ratio); 1.0 for nothing at all."""
    values = np.asarray(x, dtype=np.float64)
    mean = float(np.mean(values)) if len(values) else 0.0
    return float(np.max(values)) / mean if mean > 0 else 1.0


def flow_path(
    flow: FlowRole, fabric: Fabric, tables: Mapping[str, Any], flow_hash: FlowHash
) -> tuple[Port, ...] | None:
    """The ports between switches that path tables indexed by flow hash give a flow, in order.

    Leaf-spine: (uplink of the source leaf, downlink of the spine); a ring: one uplink of each switch on the way.  None
    for a flow that stays below its leaf, or where a table is indexed by anything else than the flow hash, so that
    nobody can know.
    """
    at, target = leaf_of_ip(fabric, flow.src_ip), leaf_of_ip(fabric, flow.dst_ip)
    path: list[Port] = []
    while at != target and len(path) < len(fabric.switches):
        if at.tier == "leaf":
            table = tables.get(at.name)
            if table is None or table["index"] != "flow":
                return None
            value = flow_hash(at.hash_seed, flow.src_ip, flow.dst_ip, flow.protocol, flow.src_port, flow.dst_port)
            entries = table["entries"]
            port = fabric.uplinks(at)[int(entries[value % len(entries)])]
        else:
            port = next(port for port in fabric.ports_of(at) if fabric.peer(port).device == target.name)
        path.append(port)
        at = fabric.switch(fabric.peer(port).device)
    return tuple(path) or None


def predicted_factor(
    flows: Sequence[FlowRole], fabric: Fabric, tables: Mapping[str, Any], flow_hash: FlowHash
) -> float | None:
    """Slowest link's load over its rate, when ranks send as fast as their and their receivers' links: 1.0 is ideal.

    With one flow a rank and equal rates this is the largest number of flows on one link between switches.
    None when a flow's path does not follow from its hash.
    """
    flows_from, flows_to = Counter(flow.src_ip for flow in flows), Counter(flow.dst_ip for flow in flows)
    demand_bps: dict[int, float] = {}
    for flow in flows:
        if leaf_of_ip(fabric, flow.src_ip) == leaf_of_ip(fabric, flow.dst_ip):
            continue
        path = flow_path(flow, fabric, tables, flow_hash)
        if path is None:
            return None
        receiver = fabric.peer(fabric.nic(host_of_ip(fabric, flow.dst_ip)))
        share_bps = min(fabric.nic(host_of_ip(fabric, flow.src_ip)).rate_bps / flows_from[flow.src_ip],
                        receiver.rate_bps / flows_to[flow.dst_ip])
        for port in path:
            demand_bps[port.index] = demand_bps.get(port.index, 0.0) + share_bps
    return max((demand / fabric.port(index).rate_bps for index, demand in demand_bps.items()), default=1.0)


def expected_factor(flows: Sequence[FlowRole], fabric: Fabric) -> float | None:
    """The mean of `predicted_factor` over all hashes: each flow takes an uplink at random, the slowest leaf counts.

    Four leaves with four flows over four uplinks each: 2.66.  None where flows or uplinks are not all alike, where
    several leaves send to the same one (their flows meet again on the way down), where a
    host receives more flows than another one sends, and where leaves pass on what others send (a ring).
    """
    if any(port.role == "downlink" for leaf in fabric.leaves() for port in fabric.ports_of(leaf)):
        return None
    to_host, from_host = (Counter(flow.dst_ip for flow in flows), Counter(flow.src_ip for flow in flows))
    if flows and max(to_host.values()) > min(from_host.values()):
        return None
    crossing: dict[str, list[FlowRole]] = {}
    targets: dict[str, set[str]] = {}
    for flow in flows:
        leaf, target = leaf_of_ip(fabric, flow.src_ip).name, leaf_of_ip(fabric, flow.dst_ip).name
        if leaf != target:
            crossing.setdefault(leaf, []).append(flow)
            targets.setdefault(target, set()).add(leaf)
    if not crossing or any(len(sources) > 1 for sources in targets.values()):
        return None
    sources = [flow.src_ip for leaf_flows in crossing.values() for flow in leaf_flows]
    demands = {fabric.nic(host_of_ip(fabric, ip)).rate_bps / sources.count(ip) for ip in sources}
    rates = {port.rate_bps for leaf in crossing for port in fabric.uplinks(leaf)}
    if len(demands) != 1 or len(rates) != 1:
        return None
    relative = demands.pop() / rates.pop()
    cdfs = [max_load_cdf(len(leaf_flows), len(fabric.uplinks(leaf))) for leaf, leaf_flows in crossing.items()]
    mean, below = 0.0, Fraction(0)
    for load in range(max(len(cdf) for cdf in cdfs)):
        at_most = Fraction(1)
        for cdf in cdfs:
            at_most *= cdf[min(load, len(cdf) - 1)]
        mean += max(1.0, load * relative) * float(at_most - below)
        below = at_most
    return mean


def host_of_ip(fabric: Fabric, ip: int) -> Host:
    """The host with an address given as a number in host byte order.  Raises KeyError."""
    text = dotted(ip)
    for host in fabric.hosts:
        if host.ip == text:
            return host
    raise KeyError(f"no host has address {text}")


def leaf_of_ip(fabric: Fabric, ip: int) -> Switch:
    """The leaf of the host with this address."""
    return fabric.leaf_of(host_of_ip(fabric, ip))


def dotted(ip: int) -> str:
    """An IPv4 address in host byte order as text."""
    return ".".join(str(ip >> shift & 255) for shift in (24, 16, 8, 0))
