"""Strict priority and deficit round robin in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.topologies.qos_fabric import CNP, DATA, FRAME, MS, burst, drops, quiet
from tests.unit.topologies.virtual_fabric import VirtualFabric
from topologies.errors import LabError
from topologies.spec import FabricSpec
from topologies.units import serialisation_ns

DSCPS = {8: 1, 16: 2, DATA: 3, CNP: 6, 56: 7}
SPEC = FabricSpec(leaves=1, spines=1, hosts_per_leaf=4, slowdown=10_000, host_buffer_kb=65_536, buffer_kb=65_536,
                  dscp_classes=DSCPS)  # fmt: skip
SMALL = SPEC.replace(mtu_bytes=256)
QUANTUM = 256 + 104 + 14 + 24  # wire bytes of SMALL's largest frame: the least that a class gets a round


def wire_bytes(fabric: VirtualFabric, host: str) -> list[int]:
    """What each class of a host's NIC has sent, on the wire."""
    queue = fabric.core.telemetry.ports["queue"][fabric.fabric.nic(host).index]
    return [int(q["sent_bytes"]) + 24 * int(q["sent_frames"]) for q in queue]


@pytest.mark.parametrize("shares", [(1, 1, 1), (10, 30, 60), (4, 6, 90), (50, 33, 17)])
@pytest.mark.parametrize("payloads", [(300, 300, 300), (30, 100, 300), (300, 100, 30)])
def test_classes_share_the_link_by_weight_within_one_percent(
    shares: tuple[int, int, int], payloads: tuple[int, int, int]
) -> None:
    fabric = VirtualFabric(SMALL.replace(ets_shares={**dict(zip((0, 1, 2), shares, strict=True)), 3: 100}))
    round_bytes = QUANTUM * sum(shares) / min(shares)
    total_bytes = 240 * round_bytes
    for (dscp, payload), share in zip(zip((0, 8, 16), payloads, strict=True), shares, strict=True):
        frames = 1 + round(1.3 * total_bytes * share / sum(shares) / (payload + 66))
        burst(fabric, "h0", "h1", frames, payload=payload, dscp=dscp)
    fabric.run(5 * MS + round(total_bytes * 8e9 / fabric.fabric.nic("h0").rate_bps))
    sent = wire_bytes(fabric, "h0")
    assert sum(sent) == pytest.approx(total_bytes, rel=0.01)
    for c, share in enumerate(shares):
        # Never more than a round off, and so within a percent after two hundred.
        assert abs(sent[c] - total_bytes * share / sum(shares)) <= round_bytes * share / sum(shares) + 2 * QUANTUM
        assert sent[c] / sum(sent) == pytest.approx(share / sum(shares), rel=0.01)


def test_a_strict_class_waits_for_one_frame_at_most() -> None:
    fabric = VirtualFabric(SPEC)
    burst(fabric, "h0", "h1", 100)
    burst(fabric, "h0", "h1", 5, at_ns=20 * MS, payload=64, dscp=CNP)
    fabric.run()
    frame_ns = serialisation_ns(FRAME, fabric.fabric.nic("h0").rate_bps)
    cnps = [at for at, _, frame in fabric.delivered if frame[15] >> 2 == CNP]
    way_ns = 2 * fabric.fabric.nic("h0").delay_ns + 7 * serialisation_ns(106, fabric.fabric.nic("h0").rate_bps)
    assert max(cnps) <= 20 * MS + 2 * frame_ns + way_ns  # one at the NIC, one at the switch
    quiet(fabric)


def test_the_higher_of_two_strict_classes_goes_first() -> None:
    fabric = VirtualFabric(SPEC)
    for dscp in (0, CNP, 56):
        burst(fabric, "h0", "h1", 3, dscp=dscp)
    fabric.run()
    order = [frame[15] >> 2 for _, _, frame in fabric.delivered]
    assert order == [0, 56, 56, 56, CNP, CNP, CNP, 0, 0]  # the first was on the wire before the others came


def test_classes_come_from_the_dscp_and_can_be_set() -> None:
    fabric = VirtualFabric(SPEC.replace(dscp_classes={DATA: 5}))
    burst(fabric, "h0", "h1", 3)
    burst(fabric, "h0", "h1", 2, dscp=CNP)
    fabric.run()
    queue = fabric.core.telemetry.ports["queue"]["sent_frames"][fabric.fabric.nic("h0").index]
    assert list(queue) == [2, 0, 0, 0, 0, 3, 0, 0]


@settings(max_examples=30, deadline=None)
@given(
    shares=st.dictionaries(st.sampled_from([0, 1, 2, 3]), st.integers(1, 100), min_size=2),
    payloads=st.lists(st.integers(1, 330), min_size=4, max_size=4),
)
def test_no_class_with_a_share_starves(shares: dict[int, int], payloads: list[int]) -> None:
    fabric = VirtualFabric(SMALL.replace(ets_shares=shares))
    for dscp, payload in zip((0, 8, 16, DATA), payloads, strict=True):
        burst(fabric, "h0", "h1", 150, payload=payload, dscp=dscp)
    # One round serves every class once; it is no longer than the sum of the quanta and a frame of each.
    weights = [shares.get(c, 1) for c in range(4)]
    round_bytes = (sum(weights) / min(weights) + 4) * QUANTUM
    fabric.run(5 * MS + round(2 * round_bytes * 8e9 / fabric.fabric.nic("h0").rate_bps))
    assert all(sent > 0 for sent in wire_bytes(fabric, "h0")[:4])
    fabric.run()
    assert drops(fabric) == {}
    quiet(fabric)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"ets_shares": {6: 10}}, "strict"),
        ({"ets_shares": {0: 0}}, "1 to 100"),
        ({"dscp_classes": {64: 1}}, "0 to 63"),
        ({"strict_classes": (8,)}, "not a class"),
    ],
)
def test_impossible_classes_are_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(LabError) as error:
        SPEC.replace(**keys)
    assert message in f"{error.value.message} {error.value.remedy}"
