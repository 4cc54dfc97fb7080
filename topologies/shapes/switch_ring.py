r"""Switches in a ring, all traffic clockwise: what a cyclic buffer dependency needs.

       h0          h1            dpid 0x3000 + i    port 1 + n: its n-th host
       |           |                                port 1 + hosts_per_leaf: clockwise, to switch i + 1
      sw0 ------> sw1                               port 2 + hosts_per_leaf: from switch i - 1
       ^           |
       |           v             10.0.<switch>.<1 + n>
      sw3 <------ sw2
       |           |
       h3          h2

h<k> is host k mod hosts_per_leaf of switch k div hosts_per_leaf.  A switch delivers to its own hosts and sends
everything else on clockwise; the other way links carry nothing but PFC frames and credits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mininet.topo import Topo

SWITCH_DPID = 0x3000


class SwitchRing(Topo):  # type: ignore[misc]  # Mininet has no types
    """`SwitchRing(leaves, hosts_per_leaf)`; works in FabricNet, in stock Mininet and under `mn --custom`."""

    SIZES: ClassVar[Mapping[str, int]] = {"leaves": 3, "hosts_per_leaf": 1}

    def build(self, leaves: int = 4, hosts_per_leaf: int = 1) -> None:
        """Wire it up."""
        for i in range(leaves):
            switch = self.addSwitch(f"sw{i}", dpid=f"{SWITCH_DPID + i:016x}", tier="leaf")
            for n in range(hosts_per_leaf):
                host = self.addHost(f"h{i * hosts_per_leaf + n}", ip=f"10.0.{i}.{1 + n}/8",
                                    mac=f"02:53:00:00:{i:02x}:{1 + n:02x}")
                self.addLink(host, switch, port1=0, port2=1 + n)
        for i in range(leaves):
            self.addLink(f"sw{i}", f"sw{(i + 1) % leaves}", port1=1 + hosts_per_leaf, port2=2 + hosts_per_leaf)
