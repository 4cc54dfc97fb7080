"""A deadlock by cyclic buffer dependency, and the watchdog that ends it, in virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.topologies.qos_fabric import FRAME, KB, LOSSLESS, MS, WIRE, access, burst, drops, events, quiet
from tests.unit.topologies.virtual_fabric import Metadata, VirtualFabric
from topologies.fabric import Port
from topologies.fabricd._core import lib
from topologies.fabricd.telemetry import TraceKind
from topologies.spec import FabricSpec

RING = ["leaf0", "spine0", "leaf1", "spine1"]
SPEC = FabricSpec(leaves=2, spines=2, hosts_per_leaf=4, slowdown=10_000, host_buffer_kb=8192, flow_control="pfc",
                  xoff_kb=20, xon_offset_kb=8, watchdog_poll_us=20, watchdog_detect_us=200,
                  watchdog_restore_us=200)  # fmt: skip


class Ring(VirtualFabric):
    """Every frame goes round the ring of switches, almost once, before it reaches its host: a cycle of buffers."""

    def __init__(self, spec: FabricSpec) -> None:
        super().__init__(spec, route=self._around)

    def _around(self, switch: str, metadata: Metadata, target: str) -> Port:
        came_from = self.fabric.peer(self.fabric.switch_port(switch, metadata.ingress_port)).device
        if switch == self.fabric.leaf_of(target).name and came_from in RING:
            return access(self, target)
        following = RING[(RING.index(switch) + 1) % len(RING)]
        return next(p for p in self.fabric.ports_of(switch) if self.fabric.peer(p).device == following)


def deadlock(spec: FabricSpec) -> Ring:
    """Each link of the ring is asked for four times what it carries by frames that want to go on along it."""
    fabric = Ring(spec)
    for host in range(4):
        burst(fabric, f"h{host}", f"h{(host + 1) % 4}", 100)
        burst(fabric, f"h{4 + host}", f"h{4 + (host + 1) % 4}", 100)
    return fabric


def ring_ports(fabric: Ring) -> list[int]:
    return [next(p.index for p in fabric.fabric.ports_of(a) if fabric.fabric.peer(p).device == b)
            for a, b in zip(RING, RING[1:] + RING[:1], strict=True)]  # fmt: skip


def test_a_cycle_of_buffers_freezes_for_good() -> None:
    fabric = deadlock(SPEC)
    fabric.run(20_000 * MS)
    delivered, sent = len(fabric.delivered), fabric.core.telemetry.ports["tx_frames"].sum()
    assert delivered < 800
    fabric.run(200_000 * MS)
    assert len(fabric.delivered) == delivered
    assert fabric.core.telemetry.ports["tx_frames"].sum() == sent
    assert drops(fabric) == {}
    held = fabric.core.telemetry.ports["queue"]["depth_bytes"][ring_ports(fabric), LOSSLESS]
    assert (held > 0).all()


@pytest.mark.parametrize("action", ["drop", "forward"])
def test_the_watchdog_ends_the_deadlock(action: str) -> None:
    fabric = deadlock(SPEC.replace(watchdog=action))
    fabric.run()
    t = fabric.core.telemetry.ports
    assert t["priority_group"]["wd_deadlock_detected"][ring_ports(fabric), LOSSLESS].sum() > 0
    # Dropping frees the cycle; forwarding into a full buffer does too, at the expense of its headroom.
    assert set(drops(fabric)) <= ({"WATCHDOG"} if action == "drop" else {"HEADROOM"})
    assert sum(drops(fabric).values()) + len(fabric.delivered) == 800
    assert (action == "forward") or drops(fabric)["WATCHDOG"] > 0
    quiet(fabric)


def test_a_storm_is_detected_after_its_time_and_restored_when_the_pauses_end() -> None:
    fabric = VirtualFabric(SPEC.replace(watchdog="drop"))
    port = access(fabric, "h1")
    nic = fabric.fabric.nic("h1").index
    poll_ns, detect_ns = (fabric.fabric.clock.lab_ns(us) for us in (20, 200))
    fabric.core.control(lib.FABRIC_PAUSE_STORM, nic, 1 << LOSSLESS)
    burst(fabric, "h0", "h1", 30)
    fabric.run(10_000 * MS)
    [begin] = events(fabric, TraceKind.WATCHDOG)
    assert begin["psn"] == 1
    assert begin["port"] == port.index
    assert begin["arg"] == lib.WATCHDOG_DROP
    assert detect_ns <= begin["t_ns"] - 5 * MS <= detect_ns + 5 * poll_ns
    # The storm goes on: what comes is dropped, nobody upstream is paused any more.
    assert drops(fabric) == {"WATCHDOG": 30}
    burst(fabric, "h2", "h1", 5, at_ns=fabric.now_ns + MS)
    fabric.run(20_000 * MS)
    assert drops(fabric) == {"WATCHDOG": 35}
    fabric.core.control(lib.FABRIC_PAUSE_STORM, nic, 0)
    fabric.run()
    [end] = events(fabric, TraceKind.WATCHDOG)
    assert end["psn"] == 0
    burst(fabric, "h2", "h1", 5, at_ns=fabric.now_ns + MS)
    fabric.run()
    assert len(fabric.delivered) == 5
    quiet(fabric)


def test_restoring_takes_its_time_from_the_detection_on() -> None:
    """Also when the pause was told long before, and ends right after."""
    fabric = VirtualFabric(SPEC.replace(watchdog="drop"))
    nic = fabric.fabric.nic("h1").index
    restore_ns, poll_ns = (fabric.fabric.clock.lab_ns(us) for us in (200, 20))
    fabric.core.control(lib.FABRIC_PAUSE_STORM, nic, 1 << LOSSLESS)
    burst(fabric, "h0", "h1", 5)
    storms: list[np.void] = []
    at_ms = 5
    while not storms:
        at_ms += 10
        fabric.run(at_ms * MS)
        storms = list(events(fabric, TraceKind.WATCHDOG))
    fabric.core.control(lib.FABRIC_PAUSE_STORM, nic, 0)
    fabric.run()
    [end] = events(fabric, TraceKind.WATCHDOG)
    assert restore_ns <= end["t_ns"] - storms[0]["t_ns"] <= restore_ns + 5 * poll_ns


def test_what_is_sent_in_spite_of_a_pause_leaves_at_line_rate_from_then_on() -> None:
    fabric = VirtualFabric(SPEC.replace(watchdog="forward", xoff_kb=200))
    nic = fabric.fabric.nic("h1")
    fabric.core.control(lib.FABRIC_PAUSE_STORM, nic.index, 1 << LOSSLESS)
    burst(fabric, "h0", "h1", 30)
    fabric.run(10_000 * MS)
    trace = fabric.core.telemetry.drain_trace()
    [storm] = trace[trace["kind"] == TraceKind.WATCHDOG]
    left = trace[(trace["kind"] == TraceKind.HOP) & (trace["port"] == nic.peer)]["t_ns"]
    frame_ns = WIRE * 8e9 / nic.rate_bps
    assert list(left - storm["t_ns"]) == pytest.approx([frame_ns * n for n in range(1, 31)], abs=30)


def test_congestion_that_moves_is_no_storm() -> None:
    fabric = VirtualFabric(SPEC.replace(watchdog="drop"))
    for sender in (0, 1, 2):
        burst(fabric, f"h{sender}", "h3", 300)
    fabric.run()
    assert fabric.now_ns > 200 * SPEC.slowdown * 1000  # longer than the watchdog's time
    assert drops(fabric) == {}
    assert fabric.core.telemetry.ports["priority_group"]["pfc_tx_pkts"].sum() > 0
    quiet(fabric)


def test_a_storm_spreads_hop_by_hop_and_the_events_lead_back_to_it() -> None:
    """One receiver that pauses for ever fills its leaf, then the spine, then the sender's leaf, then the sender."""
    fabric = VirtualFabric(SPEC.replace(spines=1))
    fabric.core.control(lib.FABRIC_PAUSE_STORM, fabric.fabric.nic("h4").index, 1 << LOSSLESS)
    burst(fabric, "h0", "h4", 60)
    burst(fabric, "h1", "h5", 60)
    fabric.run(2_000 * MS)
    pauses = events(fabric, TraceKind.PAUSE)
    pauses = pauses[pauses["psn"] == 1]
    tree = [(fabric.fabric.port_name(int(p["port"])), fabric.fabric.port_name(int(p["arg"]))) for p in pauses]
    for link in (("leaf1->spine0", "leaf1->h4"), ("spine0->leaf0", "spine0->leaf1"), ("leaf0->h0", "leaf0->spine0")):
        assert link in tree
    assert tree.index(("leaf1->spine0", "leaf1->h4")) < tree.index(("spine0->leaf0", "spine0->leaf1"))
    # The innocent flow shares nothing with the slow receiver but an ingress port, and stands still as well.
    assert sum(host == "h5" for _, host, _ in fabric.delivered) < 60
    held = fabric.core.telemetry.ports["priority_group"]["curr_occupancy_bytes"].sum()
    assert held > 3 * 20 * KB - 3 * FRAME
