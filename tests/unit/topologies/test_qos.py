"""Headroom's formula against published figures, and the keys of a fabric for classes, buffers and flow control."""

from __future__ import annotations

import json

import pytest

from topologies import headroom
from topologies.errors import LabError
from topologies.fabric import Fabric, describe
from topologies.qos import CREDIT_UNIT_BYTES, CREDIT_UNITS_MAX
from topologies.spec import FabricSpec

SPEC = FabricSpec(slowdown=10_000, flow_control="pfc")


@pytest.mark.parametrize(
    ("rate_gbps", "metres", "expected_kb"), [(100, 5, 44), (100, 300, 81), (400, 300, 226)]
)
def test_headroom_is_what_sonic_reserves(rate_gbps: float, metres: float, expected_kb: float) -> None:
    """With an MTU of 9,100 bytes and 5 ns a metre; KB of 1,000 bytes here."""
    computed = headroom.sonic(rate_gbps, metres * 0.005, 9100)
    assert computed.total_bytes / 1000 == pytest.approx(expected_kb, abs=0.5)


def test_headroom_is_itemised_and_the_items_add_up() -> None:
    computed = headroom.sonic(100, 0.5, 4174, gearbox_us=0.1, mac_phy_bytes=819, cell_occupancy=1.5)
    *items, (name, total) = computed.items()
    assert name == "headroom"
    assert total == computed.total_bytes == sum(size for _, size in items)
    assert dict(items)["on the cable, both ways"] == 12_500
    assert dict(items)["in gearboxes, both ways"] == 2_500
    assert dict(items)["until the peer responds"] == 394 * 64
    assert total == pytest.approx(4174 + 1.5 * (4174 + 12_500 + 2_500 + 819 + 394 * 64), abs=1)


def test_the_peers_response_is_that_of_the_next_faster_port() -> None:
    responses = [headroom.peer_response_bytes(rate) for rate in (1, 10, 11, 100, 101, 400, 800)]
    assert responses == [67 * 64, 67 * 64, 80 * 64, 394 * 64, 453 * 64, 905 * 64, 2 * 905 * 64]


def test_automatic_headroom_covers_what_the_links_need() -> None:
    for rate_gbps in (10, 100, 400):
        for delay_us in (0, 0.5, 10):
            auto = headroom.of_link(rate_gbps, delay_us, 4096).total_bytes
            assert auto > headroom.physical_bytes(rate_gbps, delay_us, 4174)


def test_a_fabric_with_every_key_survives_json() -> None:
    spec = SPEC.replace(
        dscp_classes={26: 3, 10: 4}, lossless_classes=[3, 4], ets_shares={0: 10, 3: 90}, xoff_kb=20, headroom_kb=40,
        ecn_kmin_kb=5, ecn_kmax_kb=200, watchdog="drop",
        switch_profiles={"leaf1": {"ecn_kmin_kb": 2, "xoff_kb": "auto"}},
    )  # fmt: skip
    again = FabricSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    fabric = describe(spec)
    assert Fabric.from_dict(json.loads(json.dumps(fabric.to_dict()))) == fabric


def test_one_switch_can_have_a_profile_of_its_own() -> None:
    spec = SPEC.replace(
        ecn_kmin_kb=100, ecn_kmax_kb=400, headroom_kb=50,
        switch_profiles={"leaf1": {"ecn_kmin_kb": 97, "headroom_kb": 10}},
    )  # fmt: skip
    fabric = describe(spec)
    assert [switch.qos.ecn_kmin_bytes for switch in fabric.leaves()] == [100 * 1024, 97 * 1024]
    assert {port.headroom_bytes for port in fabric.ports_of("leaf1")} == {10 * 1024}
    assert {port.headroom_bytes for port in fabric.ports_of("leaf0")} == {50 * 1024}
    assert fabric.switch("leaf1").qos.ecn_kmax_bytes == 400 * 1024


def test_automatic_values_follow_the_link() -> None:
    fabric = describe(SPEC.replace(uplink_gbps=400.0, link_delay_us=1.0))
    by_role = {port.role: port for port in fabric.ports}
    assert by_role["access"].headroom_bytes == headroom.of_link(100, 1.0, 4096).total_bytes
    assert by_role["uplink"].headroom_bytes == headroom.of_link(400, 1.0, 4096).total_bytes
    assert by_role["uplink"].credit_bytes > by_role["access"].credit_bytes
    long = describe(SPEC.replace(link_delay_us=1000.0))
    assert {port.credit_bytes for port in long.ports} == {CREDIT_UNITS_MAX * CREDIT_UNIT_BYTES}


def test_keys_on_the_command_line() -> None:
    spec = SPEC.with_overrides(
        ["flow_control=credits", "lossless_classes=3,4", "dscp_classes=26:3,10:4", "ets_shares=0:10", "xoff_kb=auto",
         "ack_dscp=10", "headroom_kb=12.5", "ecn_kmin_kb=5", "ecn_kmax_kb=50", "pause_quanta=100", "watchdog=forward"]
    )  # fmt: skip
    assert spec.flow_control == "credits"
    assert spec.lossless_classes == (3, 4)
    assert spec.dscp_classes == {26: 3, 10: 4}
    assert (spec.xoff_kb, spec.headroom_kb, spec.pause_quanta, spec.ack_dscp) == ("auto", 12.5, 100, 10)
    assert spec.with_overrides(["ack_dscp=none"]).ack_dscp is None
    assert spec.with_overrides(["ecn_kmin_kb=none", "ecn_kmax_kb=none"]).ecn_kmin_kb is None
    assert SPEC.with_overrides(["strict_classes=none"]).strict_classes == ()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"flow_control": "pfcc"}, "did you mean pfc?"),
        ({"watchdog": "on"}, "drop, forward, off"),
        ({"headroom_kb": "much"}, "or auto"),
        ({"ecn_kmin_kb": 10}, "go together"),
        ({"ecn_kmin_kb": 10, "ecn_kmax_kb": 5}, "Kmin is where marking begins"),
        ({"ecn_pmax": 1.5, "ecn_kmin_kb": 1, "ecn_kmax_kb": 5}, "0 to 1"),
        ({"credit_kb": 129}, "1 to 128"),
        ({"ack_dscp": 64}, "1 to 63"),
        ({"ack_dscp": 2.5}, "not a whole number"),
        ({"lossless_classes": "3"}, "list of classes"),
        ({"switch_profiles": {"leaf0": {"mtu_bytes": 256}}}, "not a key of a single switch"),
        ({"switch_profiles": {"leaf0": {"ecn_kmaxkb": 256}}}, "did you mean ecn_kmax_kb?"),
        ({"switch_profiles": {"leaf0": {"alpha": -1}}}, "alpha takes"),
        ({"flow_control": "credits", "switch_profiles": {"leaf0": {"lossless_classes": ()}}}, "both ends"),
        ({"switch_profiles": {"leaf7": {"xoff_kb": 5}}}, "unknown switch 'leaf7'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_remedy(keys: dict[str, object], words: str) -> None:
    with pytest.raises(LabError) as error:
        describe(SPEC.replace(**keys))
    assert words in f"{error.value.message}; {error.value.remedy}"
