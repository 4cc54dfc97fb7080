"""Hashes, flowlets, spray counters, slots and path changes."""

from __future__ import annotations

from collections import Counter

from tests.unit.topologies.virtual_fabric import VirtualFabric
from topologies.fabricd._core import lib
from topologies.fabricd.binding import flow_hash
from topologies.fabricd.telemetry import TraceKind
from topologies.spec import FabricSpec

SPEC = FabricSpec(leaves=2, spines=4, hosts_per_leaf=4, slowdown=10_000, flowlet_gap_us=2)
MS = 1_000_000


def ip(fabric: VirtualFabric, host: str) -> int:
    """A host's address in host byte order."""
    return int.from_bytes(bytes(map(int, fabric.fabric.host(host).ip.split("."))), "big")


def leaf_metadata(fabric: VirtualFabric) -> list[tuple[int, int, int, int]]:
    """(flow, flowlet, spray, slot) of every frame that entered leaf0."""
    return [(m.flow, m.flowlet, m.spray, m.slot) for device, m in fabric.inside if device == "leaf0"]


def test_the_flow_hash_is_the_published_function_of_seed_and_five_tuple() -> None:
    fabric = VirtualFabric(SPEC)
    for sport in range(1000, 1032):
        fabric.send("h0", fabric.packet("h0", "h5", 64, sport=sport, dport=4791), 5 * MS)
    fabric.run()
    seed = fabric.fabric.switch("leaf0").hash_seed
    expected = [flow_hash(seed, ip(fabric, "h0"), ip(fabric, "h5"), 17, sport, 4791) for sport in range(1000, 1032)]
    assert [flow for flow, _, _, _ in leaf_metadata(fabric)] == expected


def test_the_hash_spreads_flows_evenly_and_seeds_are_independent() -> None:
    a = [flow_hash(1, 0x0A000001, 0x0A000102, 17, sport, 4791) for sport in range(20_000, 60_000)]
    b = [flow_hash(2, 0x0A000001, 0x0A000102, 17, sport, 4791) for sport in range(20_000, 60_000)]
    for values in (a, b):
        counts = Counter(value % 4 for value in values)
        assert max(counts.values()) < 10_000 * 1.03  # 3 % is five standard deviations
    pairs = Counter((x % 4, y % 4) for x, y in zip(a, b, strict=True))
    assert max(pairs.values()) < 2_500 * 1.12


def test_a_pause_longer_than_the_gap_begins_a_flowlet() -> None:
    fabric = VirtualFabric(SPEC)
    gap_ns = fabric.fabric.switch("leaf0").flowlet_gap_ns
    at = 5 * MS
    for pause in [0, gap_ns // 2, gap_ns * 2, gap_ns // 2, gap_ns * 3]:
        at += pause
        fabric.send("h0", fabric.packet("h0", "h5", 64), at)
    fabric.run()
    flowlets = [flowlet for _, flowlet, _, _ in leaf_metadata(fabric)]
    assert flowlets[0] == flowlets[1]
    assert flowlets[2] == flowlets[3]
    assert fabric.core.telemetry.switches["flowlets"][fabric.fabric.switch("leaf0").index] == 2
    assert len({flow for flow, _, _, _ in leaf_metadata(fabric)}) == 1
    fabric.core.control(lib.FABRIC_SET_SWITCH, fabric.fabric.switch("leaf0").index, -1, 0)
    fabric.send("h0", fabric.packet("h0", "h5", 64), at + 100 * gap_ns)
    fabric.run()
    assert leaf_metadata(fabric)[-1][1] == flowlets[4]


def test_the_spray_counter_counts_frames() -> None:
    fabric = VirtualFabric(SPEC, uplink_of=lambda leaf, metadata: metadata.spray % 4)
    for _ in range(300):
        fabric.send("h0", fabric.packet("h0", "h5", 64), 5 * MS)
    fabric.run()
    assert [spray for _, _, spray, _ in leaf_metadata(fabric)] == [n % 256 for n in range(300)]
    uplinks = [port.index for port in fabric.fabric.uplinks("leaf0")]
    assert list(fabric.core.telemetry.ports["tx_frames"][uplinks]) == [75] * 4


def test_live_flows_never_share_a_slot_and_the_idlest_one_gives_way() -> None:
    fabric = VirtualFabric(SPEC)
    for n in range(256):
        fabric.send("h0", fabric.packet("h0", "h5", 64, sport=1000 + n), 5 * MS)
    fabric.run()
    slots = [slot for _, _, _, slot in leaf_metadata(fabric)]
    assert sorted(slots) == list(range(256))
    fabric.send("h0", fabric.packet("h0", "h5", 64, sport=1000), fabric.now_ns + MS)
    fabric.send("h0", fabric.packet("h0", "h5", 64, sport=9999), fabric.now_ns + 2 * MS)
    fabric.run()
    newcomer = leaf_metadata(fabric)[-1][3]
    assert newcomer == slots[1]  # of the flow that was idle longest: the second, since the first spoke again
    row = fabric.core.telemetry.slots[fabric.fabric.switch("leaf0").index, newcomer]
    assert row["frames"] == 1
    assert row["out_port"] in [port.index for port in fabric.fabric.uplinks("leaf0")]


def test_a_flow_that_moves_is_recorded_with_both_ports() -> None:
    uplink = [0]
    fabric = VirtualFabric(SPEC, uplink_of=lambda leaf, metadata: uplink[0])
    fabric.send("h0", fabric.packet("h0", "h5", 64), 5 * MS)
    fabric.run()
    uplink[0] = 3
    fabric.send("h0", fabric.packet("h0", "h5", 64), fabric.now_ns + MS)
    fabric.run()
    trace = fabric.core.telemetry.drain_trace()
    [moved] = trace[trace["kind"] == TraceKind.PATH]
    ports = fabric.fabric.uplinks("leaf0")
    assert (moved["arg"], moved["port"]) == (ports[0].index, ports[3].index)
    assert fabric.core.telemetry.flows[moved["flow"]]["path_changes"] == 1
