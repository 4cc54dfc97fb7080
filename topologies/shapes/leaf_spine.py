r"""Two-tier Clos: every leaf has one link to every spine.

    spine0      spine1     dpid 0x2000 + j    port 1 + i: leaf i
     |    \    /    |
     |     \  /     |
     |      \/      |
     |      /\      |
     |     /  \     |
     |    /    \    |
    leaf0       leaf1      dpid 0x1000 + i    port 1 + n: its n-th host; port 1 + hosts_per_leaf + j: spine j
    /   \       /   \
   h0    h1    h2    h3    10.0.<leaf>.<1 + n>

h<k> is host k mod hosts_per_leaf of leaf k div hosts_per_leaf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mininet.topo import Topo

LEAF_DPID = 0x1000
SPINE_DPID = 0x2000


class LeafSpine(Topo):  # type: ignore[misc]  # Mininet has no types
    """`LeafSpine(leaves, spines, hosts_per_leaf)`; works in FabricNet, in stock Mininet and under `mn --custom`."""

    SIZES: ClassVar[Mapping[str, int]] = {"leaves": 1, "spines": 1, "hosts_per_leaf": 1}

    def build(self, leaves: int = 2, spines: int = 2, hosts_per_leaf: int = 2) -> None:
        """Wire it up."""
        for j in range(spines):
            self.addSwitch(f"spine{j}", dpid=f"{SPINE_DPID + j:016x}", tier="spine")
        for i in range(leaves):
            leaf = self.addSwitch(f"leaf{i}", dpid=f"{LEAF_DPID + i:016x}", tier="leaf")
            for n in range(hosts_per_leaf):
                # The /8 is for stock Mininet, where all hosts share one segment; FabricNet's hosts are routed.
                host = self.addHost(f"h{i * hosts_per_leaf + n}", ip=f"10.0.{i}.{1 + n}/8",
                                    mac=f"02:53:00:00:{i:02x}:{1 + n:02x}")
                self.addLink(host, leaf, port1=0, port2=1 + n)
            for j in range(spines):
                self.addLink(leaf, f"spine{j}", port1=1 + hosts_per_leaf + j, port2=1 + i)
