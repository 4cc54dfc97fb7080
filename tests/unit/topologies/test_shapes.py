"""The shapes are wired as their drawings say."""

from itertools import product

import pytest
from mininet.topo import Topo

from topologies.shapes import SHAPES
from topologies.shapes.leaf_spine import LeafSpine
from topologies.shapes.switch_ring import SwitchRing


def ends(topo: Topo) -> list[tuple[str, int]]:
    links = [link for _one, _other, link in topo.iterLinks(withInfo=True)]
    return [(link["node1"], link["port1"]) for link in links] + [(link["node2"], link["port2"]) for link in links]


@pytest.mark.parametrize(("leaves", "spines", "hosts_per_leaf"), [(1, 1, 1), (2, 2, 2), (8, 4, 8), (3, 1, 2)])
def test_leaf_spine(leaves: int, spines: int, hosts_per_leaf: int) -> None:
    topo = LeafSpine(leaves=leaves, spines=spines, hosts_per_leaf=hosts_per_leaf)
    assert len(topo.hosts()) == leaves * hosts_per_leaf
    assert len(topo.switches()) == leaves + spines
    assert len(topo.links()) == leaves * (hosts_per_leaf + spines)
    assert len(set(ends(topo))) == 2 * len(topo.links()), "two links in one port"
    for i, n in product(range(leaves), range(hosts_per_leaf)):
        host = f"h{i * hosts_per_leaf + n}"
        assert topo.port(host, f"leaf{i}") == (0, 1 + n)
        assert topo.nodeInfo(host)["ip"] == f"10.0.{i}.{1 + n}/8"
    for i, j in product(range(leaves), range(spines)):
        assert topo.port(f"leaf{i}", f"spine{j}") == (1 + hosts_per_leaf + j, 1 + i)


@pytest.mark.parametrize(("leaves", "hosts_per_leaf"), [(3, 1), (4, 2), (7, 3)])
def test_switch_ring(leaves: int, hosts_per_leaf: int) -> None:
    topo = SwitchRing(leaves=leaves, hosts_per_leaf=hosts_per_leaf)
    assert len(topo.hosts()) == leaves * hosts_per_leaf
    assert len(topo.switches()) == leaves
    assert len(topo.links()) == leaves * (hosts_per_leaf + 1)
    assert len(set(ends(topo))) == 2 * len(topo.links()), "two links in one port"
    for i, n in product(range(leaves), range(hosts_per_leaf)):
        assert topo.port(f"h{i * hosts_per_leaf + n}", f"sw{i}") == (0, 1 + n)
        assert topo.port(f"sw{i}", f"sw{(i + 1) % leaves}") == (1 + hosts_per_leaf, 2 + hosts_per_leaf)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_identities_are_distinct(shape: str) -> None:
    topo = SHAPES[shape](**dict.fromkeys(SHAPES[shape].SIZES, 3))
    dpids = [int(topo.nodeInfo(switch)["dpid"], 16) for switch in topo.switches()]
    assert len(set(dpids)) == len(dpids)
    assert 0 not in dpids
    for key in ("ip", "mac"):
        values = [topo.nodeInfo(host)[key] for host in topo.hosts()]
        assert len(set(values)) == len(values)


def test_dpids_tell_the_tier() -> None:
    topo = LeafSpine(leaves=2, spines=2, hosts_per_leaf=1)
    assert topo.nodeInfo("leaf1")["dpid"] == "0000000000001001"
    assert topo.nodeInfo("spine1")["dpid"] == "0000000000002001"
