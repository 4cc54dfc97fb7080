"""Planted faults in virtual time: broken frames, links that go down, slow receivers; and what they must not break."""

from __future__ import annotations

import pytest

from tests.unit.topologies.qos_fabric import (
    DATA,
    FRAME,
    KB,
    LOSSLESS,
    MS,
    access,
    burst,
    drops,
    events,
    quiet,
)
from tests.unit.topologies.virtual_fabric import VirtualFabric
from topologies.errors import LabError
from topologies.fabricd._core import lib
from topologies.fabricd.fabric_service import FabricService
from topologies.fabricd.telemetry import TraceKind
from topologies.spec import FabricSpec

SPEC = FabricSpec(leaves=1, spines=1, hosts_per_leaf=6, slowdown=10_000, buffer_kb=2048, host_buffer_kb=65_536,
                  flow_control="pfc", xoff_kb=20, xon_offset_kb=8)  # fmt: skip


def service(fabric: VirtualFabric) -> FabricService:
    """The control operations as fabricd serves them, on a fabric in virtual time."""

    def call(target: int, index: int, op: int, args: tuple[int, ...]) -> tuple[int, ...]:
        assert target == lib.CONTROL_FABRIC
        fabric.core.control(op, index, *args)
        return ()

    return FabricService(fabric.fabric, call)


def test_bit_errors_lose_the_share_that_was_asked_for_and_repeat_with_the_seed() -> None:
    def lost(seed: int) -> list[int]:
        fabric = VirtualFabric(SPEC)
        port = fabric.fabric.nic("h0").index
        service(fabric).handle("set_bit_errors", {"port": port, "probability": 0.1, "seed": seed})
        burst(fabric, "h0", "h1", 2000, payload=50)
        fabric.run()
        quiet(fabric)
        records = events(fabric, TraceKind.DROP)
        assert set(records["port"]) == {port}
        assert set(drops(fabric)) == {"BIT_ERROR"}
        return [int(t) for t in records["t_ns"]]

    first = lost(1)
    assert abs(len(first) - 200) < 4 * (2000 * 0.1 * 0.9) ** 0.5
    assert lost(1) == first != lost(2)


def test_a_planted_drop_loses_exactly_the_named_frame() -> None:
    fabric = VirtualFabric(SPEC)
    service(fabric).handle(
        "plant_drop",
        {"port": access(fabric, "h2").index, "src_ip": "10.0.0.1", "let_through": 6, "least_bytes": 1000},
    )
    for number in range(10):
        for sender in ("h0", "h1"):
            burst(fabric, sender, "h2", 1, payload=2000 + number, at_ns=(5 + 10 * number) * MS)
            burst(fabric, sender, "h2", 1, payload=100, at_ns=(7 + 10 * number) * MS)
    fabric.run()
    assert drops(fabric) == {"BIT_ERROR": 1}
    [drop] = events(fabric, TraceKind.DROP)
    assert drop["bytes"] == 2006 + 42
    flow = fabric.core.telemetry.flows[drop["flow"]]
    assert int(flow["src_ip"]).to_bytes(4, "big") == bytes((10, 0, 0, 1))
    quiet(fabric)


@pytest.mark.parametrize("flow_control", ["pfc", "none"])
def test_a_slow_receiver_pauses_its_leaf_or_drops(flow_control: str) -> None:
    fabric = VirtualFabric(SPEC.replace(flow_control=flow_control))
    nic = fabric.fabric.nic("h1")
    service(fabric).handle("set_drain", {"port": nic.index, "drain_bps": 2.5e6})
    burst(fabric, "h0", "h1", 120)
    fabric.run()
    arrived = [at for at, _, _ in fabric.delivered]
    assert arrived[-1] - arrived[0] == pytest.approx((len(arrived) - 1) * FRAME * 8e9 / 2.5e6, rel=0.001)
    quiet(fabric)
    group = fabric.core.telemetry.ports["priority_group"][:, LOSSLESS]
    if flow_control == "none":
        assert set(drops(fabric)) == {"TAIL"}
        assert fabric.core.telemetry.ports["dropped"][nic.index].sum() == 120 - len(arrived)
        return
    assert drops(fabric) == {}
    assert group["pfc_tx_pkts"][nic.index] > 0
    # A quarter of the rate: the link to it is held three quarters of the time, and so is the sender's.
    assert group["rx_pause_ns"][nic.peer] / (arrived[-1] - arrived[0]) == pytest.approx(0.75, abs=0.08)
    first = events(fabric, TraceKind.PAUSE)[0]
    assert first["port"] == nic.index  # the root of all pauses
    assert any(port == nic.peer for _, port, _ in fabric.control)


def test_a_receiver_that_recovers_is_at_line_rate_again() -> None:
    fabric = VirtualFabric(SPEC)
    nic = fabric.fabric.nic("h1").index
    fabric.core.control(lib.FABRIC_SET_DRAIN, nic, 500_000)
    burst(fabric, "h0", "h1", 200)
    fabric.run(500 * MS)
    fabric.core.control(lib.FABRIC_SET_DRAIN, nic, 0)
    fabric.run()
    arrived = [at for at, _, _ in fabric.delivered]
    assert arrived[-1] - arrived[-101] == pytest.approx(100 * (FRAME + 24) * 8e9 / 1e7, rel=0.001)
    quiet(fabric)


@pytest.mark.parametrize("drain_bps", [2_000_000, 0])
def test_another_drain_rate_holds_for_what_the_receiver_has_already(drain_bps: int) -> None:
    fabric = VirtualFabric(SPEC)
    nic = fabric.fabric.nic("h1")
    slow_ns = FRAME * 8e9 / 50_000
    frame_ns = FRAME * 8e9 / drain_bps if drain_bps else 0.0
    fabric.core.control(lib.FABRIC_SET_DRAIN, nic.index, 50_000)
    burst(fabric, "h0", "h1", 4)
    fabric.run(400 * MS)
    assert fabric.core.advance(400 * MS) == []
    fabric.core.control(lib.FABRIC_SET_DRAIN, nic.index, drain_bps)
    fabric.now_ns = 400 * MS
    fabric.run()
    hops = events(fabric, TraceKind.HOP)
    came_ns = int(hops["t_ns"][hops["port"] == nic.peer][0]) + nic.delay_ns
    left = 1 - (400 * MS - came_ns) / slow_ns  # of the first frame, which has begun to go at the slow rate
    assert 0.3 < left < 0.7
    expected = [400 * MS + (left + n) * frame_ns for n in range(4)]
    assert [at for at, _, _ in fabric.delivered] == pytest.approx(expected, abs=10_000)
    quiet(fabric)


@pytest.mark.parametrize("flow_control", ["none", "pfc", "credits"])
def test_a_link_that_goes_down_and_up_leaves_nothing_behind(flow_control: str) -> None:
    fabric = VirtualFabric(SPEC.replace(flow_control=flow_control, pause_quanta=2000))
    port = access(fabric, "h3")
    for sender in range(3):
        burst(fabric, f"h{sender}", "h3", 60)
    for up, at_ms in ((False, 100), (True, 160), (False, 230), (True, 300)):
        fabric.run(at_ms * MS)
        for index in (port.index, port.peer):
            service(fabric).handle("set_port", {"port": index, "up": up})
    fabric.run()
    assert set(drops(fabric)) <= ({"LINK_DOWN", "TAIL"} if flow_control == "none" else {"LINK_DOWN"})
    assert drops(fabric)["LINK_DOWN"] > 0
    quiet(fabric)
    burst(fabric, "h4", "h3", 50, at_ns=fabric.now_ns + MS)
    before = len(fabric.delivered)
    fabric.run()
    assert len(fabric.delivered) - before == 50


def test_a_profile_changes_live() -> None:
    fabric = VirtualFabric(SPEC)
    group = fabric.core.telemetry.ports["priority_group"][:, LOSSLESS]

    def play(host: str) -> int:
        burst(fabric, host, "h5", 60, at_ns=fabric.now_ns + MS)
        burst(fabric, "h4", "h5", 60, at_ns=fabric.now_ns + MS)
        fabric.run()
        quiet(fabric)
        return int(group["watermark_bytes"][access(fabric, host).index])

    assert play("h0") < 50 * KB
    service(fabric).handle("set_buffer", {"switch": "*", "xoff_bytes": 100 * KB})
    assert play("h1") > 100 * KB
    service(fabric).handle("set_buffer", {"switch": 0, "xoff_bytes": 10 * KB, "headroom_bytes": 0})
    play("h2")
    assert drops(fabric)["HEADROOM"] > 0


def test_a_switch_gets_its_own_profile_back() -> None:
    """Also the headroom of its ports, which differs from link to link."""
    spec = SPEC.replace(leaves=2, uplink_gbps=400.0, ecn_kmin_kb=20, ecn_kmax_kb=200, shared_buffer_kb=8192)
    fabric = VirtualFabric(spec)

    def play() -> tuple[list[int], int, int]:
        t = fabric.core.telemetry
        service(fabric).handle("clear_watermarks", {})
        before = int(t.ports["queue"]["wred_ecn_marked_packets"].sum()), sum(drops(fabric).values())
        for sender in range(3):
            burst(fabric, f"h{sender}", "h6", 80, at_ns=fabric.now_ns + MS, ecn=2)
        fabric.run()
        quiet(fabric)
        room = t.ports["priority_group"]["xoff_room_watermark_bytes"][:, LOSSLESS]
        marked = int(t.ports["queue"]["wred_ecn_marked_packets"].sum()) - before[0]
        return [int(room[p.index]) for p in fabric.fabric.ports], marked, sum(drops(fabric).values()) - before[1]

    first = play()
    service(fabric).handle("set_ecn", {"switch": "*", "kmin_bytes": 0, "kmax_bytes": 0, "pmax": 1.0})
    service(fabric).handle("set_buffer", {"switch": "*", "xoff_bytes": 10 * KB, "headroom_bytes": 6 * KB,
                                          "xoff_alpha": 0.01, "lossless_pool_bytes": 50 * KB})  # fmt: skip
    broken = play()
    assert broken[1] > first[1]
    assert broken[2] > 0 == first[2]
    service(fabric).handle("restore_switch", {"switch": "*"})
    again = play()
    # Chance decides on marks between Kmin and Kmax; everything else repeats.
    assert (again[0], again[2]) == (first[0], first[2])
    assert again[1] == pytest.approx(first[1], abs=4 * first[1] ** 0.5 + 1)


def test_the_buffer_of_a_port_changes_live() -> None:
    fabric = VirtualFabric(SPEC.replace(flow_control="none"))
    service(fabric).handle("set_buffer", {"switch": 0, "buffer_bytes": 100 * KB})
    for sender in range(2):
        burst(fabric, f"h{sender}", "h5", 60)
    fabric.run()
    peak = int(fabric.core.telemetry.ports["queue"]["peak_bytes"][access(fabric, "h5").index, LOSSLESS])
    assert 100 * KB - FRAME < peak <= 100 * KB
    assert set(drops(fabric)) == {"TAIL"}


def test_watermarks_are_those_since_they_were_cleared() -> None:
    fabric = VirtualFabric(SPEC)
    t = fabric.core.telemetry
    for sender in range(3):
        burst(fabric, f"h{sender}", "h5", 60)
    fabric.run()
    assert t.switches["headroom_peak_bytes"].max() > 0
    service(fabric).handle("clear_watermarks", {})
    for name in ("headroom_peak_bytes", "lossless_peak_bytes", "buffer_peak_bytes"):
        assert not t.switches[name].any()
    for name in ("watermark_bytes", "xoff_room_watermark_bytes"):
        assert not t.ports["priority_group"][name].any()
    assert not t.ports["queue"]["peak_bytes"].any()
    burst(fabric, "h0", "h5", 1, at_ns=fabric.now_ns + MS)
    fabric.run()
    assert t.ports["queue"]["peak_bytes"].max() == FRAME


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("set_drain", {"port": 6, "drain_bps": 1}),  # not a host's
        ("set_drain", {"port": 0, "drain_bps": -1}),
        ("set_bit_errors", {"port": 0, "probability": 1.5}),
        ("set_bit_errors", {"port": 999, "probability": 0.5}),
        ("pause_storm", {"port": 0, "classes": [8]}),
        ("set_buffer", {"switch": 0, "alpha": 0}),
        ("set_buffer", {"switch": 0, "buffer_bytes": 1000}),  # no full frame
        ("set_ecn", {"switch": 7, "kmin_bytes": 1}),
        ("plant_drop", {"port": 0, "lose": -1}),
    ],
)
def test_operations_that_make_no_sense_are_refused(op: str, arguments: dict[str, object]) -> None:
    with pytest.raises(LabError):
        service(VirtualFabric(SPEC)).handle(op, arguments)


def test_a_storm_without_pfc_is_refused() -> None:
    with pytest.raises(LabError):
        service(VirtualFabric(SPEC.replace(flow_control="none"))).handle("pause_storm", {"port": 0, "classes": [3]})


def test_pause_frames_mean_nothing_where_there_is_no_pfc() -> None:
    fabric = VirtualFabric(SPEC.replace(flow_control="none"))
    pause = bytes.fromhex("0180c2000001 020000000001 8808 0101 00ff") + b"\xff" * 16 + bytes(26)
    fabric.core.rx(access(fabric, "h0").index, pause, MS)
    burst(fabric, "h0", "h1", 3)
    fabric.run()
    assert [frame[15] >> 2 for _, _, frame in fabric.delivered] == [DATA] * 3
    assert drops(fabric) == {"NOT_IPV4": 1}
