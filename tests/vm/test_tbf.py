"""The traffic manager against Linux' token bucket filter on the kernel datapath, ten times slower than tests/live."""

from __future__ import annotations

import pytest

from tests.live.tbf import Offered
from tests.live.test_tbf import LOAD, SPEC, compare
from topologies import ovs

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(ovs.datapath() != "kernel", reason="needs the kernel's module openvswitch"),
]


def test_tbf_in_our_place_loses_as_much_and_ends_as_late() -> None:
    compare(SPEC.replace(slowdown=100_000), Offered(LOAD.flows, packets=300, load=LOAD.load))
