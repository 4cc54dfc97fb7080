"""A link: two veth pairs, `A <-> tapA` and `B <-> tapB`, with fabricd between the taps.

The kernel does not connect the taps.  fabricd reads A's frames from tapA, queues, serialises and delays them, and
writes them to tapB; and the other way round.
"""

from __future__ import annotations

from typing import Any

from mininet.link import Intf, Link
from mininet.node import Node

from topologies.fabric import LINK_GROUP, interface_name, tap_name


class FabricIntf(Intf):  # type: ignore[misc]  # Mininet has no types
    """An interface that FabricNet creates and configures, together with all others."""

    def config(self, **_params: Any) -> dict[str, Any]:
        """Nothing yet: a shell round trip for each of a thousand interfaces is what takes stock Mininet so long."""
        return {}

    @property
    def tap(self) -> str:
        """The other end of the veth pair, in the root namespace."""
        return tap_name(self.node.name, self.node.ports[self])


class FabricLink(Link):  # type: ignore[misc]
    """Made by `FabricNet.addLink`; comes into being with FabricNet's batch."""

    def __init__(self, node1: Node, node2: Node, **params: Any) -> None:
        super().__init__(node1, node2, **{**params, "intf": FabricIntf})

    def makeIntfPair(self, *_args: Any, **_params: Any) -> None:  # noqa: N802  (Mininet's name)
        """Nothing yet; see `commands`."""

    def intfName(self, node: Node, n: int) -> str:  # noqa: N802
        """As in Mininet in a host's namespace; with our prefix in the root namespace."""
        return f"{node.name}-eth{n}" if node.inNamespace else interface_name(node.name, n)

    def commands(self, mtu_bytes: int) -> list[str]:
        """Lines for `ip -batch` that create both pairs, down, each end where it belongs."""
        return [_pair_command(intf, mtu_bytes) for intf in (self.intf1, self.intf2)]

    def stop(self) -> None:
        """Nothing: FabricNet removes the interfaces of all links at once."""


def _pair_command(intf: FabricIntf, mtu_bytes: int) -> str:
    common = f"mtu {mtu_bytes} group {LINK_GROUP}"
    # The far end is created in its namespace: moving it there afterwards takes 30 times longer.
    namespace = f" netns {intf.node.pid}" if intf.node.inNamespace else ""
    return (f"link add name {intf.tap} {common} type veth "
            f"peer name {intf.name} address {intf.mac} {common}{namespace}")
