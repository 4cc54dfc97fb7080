"""The description of a built network."""

import json
from pathlib import Path

import pytest

from topologies.errors import LabError
from topologies.fabric import Fabric, describe, interface_name, tap_name
from topologies.spec import FabricSpec
from topologies.switch import static_flows

SPEC = FabricSpec(leaves=4, spines=4, hosts_per_leaf=4, link_gbps=100, uplink_gbps=50, link_delay_us=0.5,
                  buffer_kb=64, host_buffer_kb=32, slowdown=10_000)


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return describe(SPEC, lab="test", datapath="userspace", host_pids={"h0": 42})


def test_through_a_file(fabric: Fabric, tmp_path: Path) -> None:
    path = tmp_path / "fabric.json"
    fabric.save(path)
    assert Fabric.load(path) == fabric
    assert [file.name for file in tmp_path.iterdir()] == ["fabric.json"]


def test_errors_of_load(fabric: Fabric, tmp_path: Path) -> None:
    path = tmp_path / "fabric.json"
    with pytest.raises(LabError, match="no fabric is up"):
        Fabric.load(path)
    path.write_text("{")
    with pytest.raises(LabError, match="cannot read"):
        Fabric.load(path)
    path.write_text(json.dumps({**fabric.to_dict(), "schema": 99}))
    with pytest.raises(LabError, match="schema 99"):
        Fabric.load(path)


def test_indices(fabric: Fabric) -> None:
    assert len(fabric.ports) == 2 * 4 * (4 + 4)
    for rows in (fabric.switches, fabric.hosts, fabric.ports):
        assert [row.index for row in rows] == list(range(len(rows)))
    for host in fabric.hosts:
        assert fabric.nic(host) is fabric.ports[host.index], "a NIC, its host and its port share one index"
        assert fabric.nic(host).device == host.name
    names = [switch.name for switch in fabric.switches]
    assert names == ["leaf0", "leaf1", "leaf2", "leaf3", "spine0", "spine1", "spine2", "spine3"]


def test_every_port_has_a_peer(fabric: Fabric) -> None:
    opposite = {"nic": "access", "access": "nic", "uplink": "downlink", "downlink": "uplink"}
    for port in fabric.ports:
        peer = fabric.peer(port)
        assert fabric.peer(peer) is port
        assert peer.role == opposite[port.role]
        assert peer.device != port.device


def test_names_are_unique_and_fit_the_kernel(fabric: Fabric) -> None:
    names = [name for port in fabric.ports for name in (port.interface, port.tap)]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 15
    assert len({port.mac for port in fabric.ports}) == len(fabric.ports)
    assert (interface_name("leaf0", 1), tap_name("leaf0", 1)) == ("sg-leaf0-eth1", "sg-leaf0-tap1")
    assert (interface_name("spine63", 64), tap_name("spine63", 64)) == ("sg-spine63e64", "sg-spine63t64")
    with pytest.raises(LabError, match="too long"):
        interface_name("a-very-long-name", 1)


def test_lab_units(fabric: Fabric) -> None:
    nic, access, uplink = fabric.nic("h0"), fabric.switch_port("leaf0", 1), fabric.uplinks("leaf0")[0]
    assert (nic.rate_bps, access.rate_bps, uplink.rate_bps) == (10e6, 10e6, 5e6)
    assert nic.delay_ns == 5_000_000
    assert (nic.buffer_bytes, access.buffer_bytes) == (32 * 1024, 64 * 1024)
    assert fabric.switches[0].flowlet_gap_ns == 2_560_000_000
    assert fabric.mtu_bytes == 4200


def test_helpers(fabric: Fabric) -> None:
    assert [port.number for port in fabric.uplinks("leaf2")] == [5, 6, 7, 8]
    assert fabric.port_name(fabric.uplinks("leaf2")[3].index) == "leaf2->spine3"
    assert fabric.leaf_of("h6").name == "leaf1"
    assert (fabric.host("h0").pid, fabric.host("h1").pid) == (42, 0)
    assert fabric.host("h5").ip == "10.0.1.2"
    assert [switch.name for switch in fabric.leaves()] == ["leaf0", "leaf1", "leaf2", "leaf3"]
    assert len({switch.hash_seed for switch in fabric.switches}) == 8


def test_unknown_names(fabric: Fabric) -> None:
    for ask, name in ((fabric.host, "h99"), (fabric.switch, "leaf9"), (fabric.ports_of, "leav0")):
        with pytest.raises(LabError) as caught:
            ask(name)
        assert name in caught.value.message
        assert caught.value.remedy
    with pytest.raises(LabError, match="port 64"):
        fabric.port(64)
    with pytest.raises(LabError, match="no port 9"):
        fabric.switch_port("leaf0", 9)


def test_one_leaf_has_uplinks_that_nobody_needs() -> None:
    fabric = describe(FabricSpec(leaves=1, spines=1, hosts_per_leaf=2, slowdown=1))
    assert len(fabric.uplinks("leaf0")) == 1
    assert static_flows(fabric, fabric.switch("leaf0")) == [
        "priority=1,ip,nw_dst=10.0.0.1,actions=output:1", "priority=1,ip,nw_dst=10.0.0.2,actions=output:2"]


def test_static_routes_of_a_permutation_do_not_collide(fabric: Fabric) -> None:
    def outputs(switch: str) -> list[str]:
        return [flow.rpartition(":")[2] for flow in static_flows(fabric, fabric.switch(switch))]

    assert outputs("leaf0") == ["1", "2", "3", "4"] + 3 * ["5", "6", "7", "8"]
    assert outputs("spine2")[::4] == ["1", "2", "3", "4"]


def test_auto_must_be_resolved_first() -> None:
    with pytest.raises(LabError, match="auto"):
        describe(SPEC.replace(slowdown="auto"))


RING = FabricSpec(shape="switch_ring", leaves=4, hosts_per_leaf=2, slowdown=1000)


def test_a_ring_goes_clockwise() -> None:
    ring = describe(RING)
    assert [switch.name for switch in ring.leaves()] == ["sw0", "sw1", "sw2", "sw3"]
    assert [[ring.port_name(port.index) for port in ring.uplinks(switch)] for switch in ring.switches] == [
        ["sw0->sw1"], ["sw1->sw2"], ["sw2->sw3"], ["sw3->sw0"]]
    test_every_port_has_a_peer(ring)
    for rows in (ring.switches, ring.hosts, ring.ports):
        assert [row.index for row in rows] == list(range(len(rows)))
    assert [ring.leaf_of(host).name for host in ring.hosts] == ["sw0", "sw0", "sw1", "sw1", "sw2", "sw2", "sw3", "sw3"]


@pytest.mark.parametrize("spec", [SPEC, RING])
def test_static_routes_lead_to_every_host(spec: FabricSpec) -> None:
    fabric = describe(spec)
    route = {}
    for switch in fabric.switches:
        for flow in static_flows(fabric, switch):
            ip, out = flow.removeprefix("priority=1,ip,nw_dst=").split(",actions=output:")
            route[switch.name, ip] = fabric.switch_port(switch, int(out))
    for source in fabric.hosts:
        for target in fabric.hosts:
            device, hops = source.leaf, 0
            while device != target.name:
                device, hops = fabric.peer(route[device, target.ip]).device, hops + 1
                assert hops <= max(3, spec.leaves), f"{source.name} to {target.name} goes in circles"
