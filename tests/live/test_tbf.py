"""The traffic manager against Linux' token bucket filter in its place: the same loss, the same completion."""

from __future__ import annotations

import pytest

from tests.live.tbf import Carried, Offered, TbfNet, offer
from topologies.network import FabricNet
from topologies.spec import FabricSpec

pytestmark = pytest.mark.live

# A TBF link has no propagation delay, so ours has none either.
SPEC = FabricSpec(leaves=2, spines=2, hosts_per_leaf=4, link_delay_us=0, buffer_kb=64, slowdown=10_000)
# With two spines the flows of h0 and h2 share an uplink, and so do those of h1 and h3. No flow meets a second queue:
# whose packets a full queue drops depends on microseconds, and would decide what the second one sees.
LOAD = Offered(flows=(("h0", "h4"), ("h2", "h6"), ("h1", "h5"), ("h3", "h7")), packets=1200, load=0.8)


def carried_by(net: FabricNet, load: Offered) -> Carried:
    with net:
        net.route_statically()
        return offer(net, load)


def compare(spec: FabricSpec, load: Offered) -> None:
    """Both networks under the same load: the same loss, the same completion."""
    ours = carried_by(FabricNet(spec, lab="tbf"), load)
    peer = carried_by(TbfNet(spec), load)
    sent = len(load.flows) * load.packets
    loss, peer_loss = (1 - one.received / sent for one in (ours, peer))
    assert peer_loss > 0.05, f"the load is meant to overflow queues: {peer}"
    assert loss == pytest.approx(peer_loss, abs=0.02), f"ours {ours}, TBF {peer}"
    assert ours.completion_s == pytest.approx(peer.completion_s, rel=0.03), f"ours {ours}, TBF {peer}"


def test_tbf_in_our_place_loses_as_much_and_ends_as_late() -> None:
    compare(SPEC, LOAD)
