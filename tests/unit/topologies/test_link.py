"""What a link asks of the kernel."""

from typing import Any

from topologies.link import FabricLink


class FakeNode:
    """As much of a Mininet node as a link needs."""

    def __init__(self, name: str, pid: int | None) -> None:
        self.name, self.pid, self.inNamespace = name, pid, pid is not None
        self.ports: dict[Any, int] = {}

    def addIntf(self, intf: Any, port: int, moveIntfFn: Any) -> None:
        self.ports[intf] = port


def test_two_pairs_each_end_where_it_belongs() -> None:
    link = FabricLink(FakeNode("h0", 42), FakeNode("leaf0", None), port1=0, port2=1,
                      addr1="02:53:00:00:00:01", addr2="02:53:01:00:00:01")
    assert link.commands(4200) == [
        "link add name sg-h0-tap0 mtu 4200 group 21319 type veth "
        "peer name h0-eth0 address 02:53:00:00:00:01 mtu 4200 group 21319 netns 42",
        "link add name sg-leaf0-tap1 mtu 4200 group 21319 type veth "
        "peer name sg-leaf0-eth1 address 02:53:01:00:00:01 mtu 4200 group 21319",
    ]
    assert str(link) == "h0-eth0<->sg-leaf0-eth1"
