"""A switch's memory in virtual time: pools, thresholds, what is charged to whom, and that it is given back."""

from __future__ import annotations

import pytest

from tests.unit.topologies.qos_fabric import (
    FRAME,
    KB,
    LOSSLESS,
    MS,
    access,
    burst,
    drops,
    events,
    incast,
    quiet,
)
from tests.unit.topologies.virtual_fabric import VirtualFabric
from topologies.errors import LabError
from topologies.fabricd._core import lib
from topologies.fabricd.telemetry import TraceKind
from topologies.spec import FabricSpec

STAR = FabricSpec(leaves=1, spines=1, hosts_per_leaf=13, slowdown=10_000, buffer_kb=400, host_buffer_kb=65_536,
                  flow_control="pfc", xoff_kb=20, xon_offset_kb=8)  # fmt: skip


def test_lossless_frames_are_dropped_only_when_headroom_is_full_and_at_the_port_where_they_come_in() -> None:
    fabric, port = incast(STAR.replace(headroom_kb=2), 4, 60)
    fabric.run()
    assert set(drops(fabric)) == {"HEADROOM"}
    where = set(events(fabric, TraceKind.DROP)["port"])
    assert where == {access(fabric, f"h{n}").index for n in range(4)}
    assert port.index not in where
    quiet(fabric)


def test_headroom_is_used_up_to_its_size_and_first_given_back() -> None:
    fabric, _ = incast(STAR.replace(headroom_kb=16), 12, 60)
    fabric.run()
    group = fabric.core.telemetry.ports["priority_group"][:, LOSSLESS]
    ports = [access(fabric, f"h{n}").index for n in range(12)]
    # XOFF is crossed by one frame, headroom begins with the next.
    assert (group["xoff_room_watermark_bytes"][ports] <= 16 * KB).all()
    assert (group["xoff_room_watermark_bytes"][ports] > 0).all()
    assert (group["watermark_bytes"][ports] <= 20 * KB + FRAME + 16 * KB).all()
    quiet(fabric)


def test_the_dynamic_threshold_is_alpha_times_what_is_free_of_the_lossless_pool() -> None:
    """n ports fill alike: each settles at alpha / (1 + n alpha) of the pool."""
    spec = STAR.replace(xoff_kb="auto", xoff_alpha=0.5, shared_buffer_kb=2048, lossless_share=0.5, headroom_kb=24)
    fabric, _ = incast(spec, 4, 120)
    fabric.core.control(lib.FABRIC_PAUSE_STORM, fabric.fabric.nic("h4").index, 1 << LOSSLESS)
    fabric.run(900 * MS)
    pool = fabric.fabric.switch("leaf0").qos.lossless_pool_bytes
    assert pool == round((2048 - 14 * 24) * KB * 0.5)
    used = int(fabric.core.telemetry.switches["lossless_used_bytes"][fabric.fabric.switch("leaf0").index])
    assert used == pytest.approx(pool * 4 * 0.5 / (1 + 4 * 0.5), abs=4 * FRAME)
    fabric.core.control(lib.FABRIC_PAUSE_STORM, fabric.fabric.nic("h4").index, 0)
    fabric.run()
    assert drops(fabric) == {}
    quiet(fabric)


def test_lossy_traffic_cannot_take_the_room_of_lossless_traffic() -> None:
    spec = STAR.replace(shared_buffer_kb=1024, headroom_kb=24, alpha=8, buffer_kb=4096)
    fabric = VirtualFabric(spec)
    for sender in range(4):
        burst(fabric, f"h{sender}", "h5", 200, dscp=0)
        burst(fabric, f"h{sender}", "h6", 60)
    fabric.run()
    t = fabric.core.telemetry.ports
    assert set(drops(fabric)) == {"SHARED"}
    assert t["queue"]["dropped_frames"][:, LOSSLESS].sum() == 0
    qos = fabric.fabric.switch("leaf0").qos
    assert qos.lossy_pool_bytes + qos.lossless_pool_bytes + 14 * 24 * KB == 1024 * KB
    assert t["queue"]["peak_bytes"][access(fabric, "h5").index, 0] <= qos.lossy_pool_bytes
    quiet(fabric)


def test_headroom_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(LabError, match="leaf0: the headroom of its ports takes"):
        VirtualFabric(STAR.replace(shared_buffer_kb=512))


def test_frames_inside_the_switch_are_charged_too() -> None:
    fabric = VirtualFabric(STAR.replace(headroom_kb=64))
    fabric.lost_in_switch.add("leaf0")  # nothing comes out: all stay inside
    burst(fabric, "h0", "h1", 40)
    fabric.run(400 * MS)
    port = access(fabric, "h0").index
    group = fabric.core.telemetry.ports["priority_group"][port, LOSSLESS]
    inside = len(fabric.inside) * FRAME
    assert group["curr_occupancy_bytes"] == inside > 20 * KB
    assert fabric.core.paused_classes(fabric.fabric.nic("h0").index) == (LOSSLESS,)
    begin = events(fabric, TraceKind.PAUSE)[0]
    assert begin["arg"] == 2**32 - 1  # in no queue


@pytest.mark.parametrize("flow_control", ["pfc", "credits"])
def test_what_never_comes_out_is_written_off_visibly_and_frees_its_room(flow_control: str) -> None:
    spec = STAR.replace(flow_control=flow_control, leaves=2, hosts_per_leaf=2)
    fabric = VirtualFabric(spec)
    fabric.lost_in_switch.add("spine0")
    burst(fabric, "h0", "h2", 60)
    fabric.run(20_000 * MS)
    for at_s in range(1, 200):  # the clock goes on although nothing happens
        fabric.core.advance(fabric.now_ns + at_s * 1000 * MS)
        fabric.now_ns += at_s * 1000 * MS
        fabric.run(fabric.now_ns)
    fabric.run()
    assert len(fabric.inside) == 120  # all of them got through the leaf in the end
    group = fabric.core.telemetry.ports["priority_group"]
    assert group["written_off_bytes"].sum() == 60 * FRAME
    quiet(fabric, lost=["spine0"])


def test_a_frame_that_comes_out_after_it_was_written_off_is_charged_to_nobody() -> None:
    fabric = VirtualFabric(STAR)
    fabric.lost_in_switch.add("leaf0")
    burst(fabric, "h0", "h1", 2)
    deliveries = []
    fabric.core.rx(fabric.fabric.nic("h0").index, fabric.packet("h0", "h1", 1000, dscp=26), MS)
    for at_ms in range(1, 60):
        deliveries += fabric.core.advance(at_ms * MS)
    [frame] = [d.frame for d in deliveries]
    fabric.core.advance(5_000 * MS)
    assert fabric.core.telemetry.ports["priority_group"]["written_off_bytes"].sum() == len(frame)
    fabric.core.rx(access(fabric, "h1").index, frame, 5_001 * MS)
    for at_ms in range(5_001, 5_060):
        fabric.core.advance(at_ms * MS)
    assert fabric.core.telemetry.ports["delivered_frames"][access(fabric, "h1").index] == 1
    assert fabric.core.telemetry.ports["priority_group"]["curr_occupancy_bytes"].sum() == 0
