"""Every packet's journey ends where it ended: also when it was lost on a link, or for want of room behind it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labs.measure.evidence import Evidence
from labs.measure.standing import NEVER_NS, NOWHERE
from labs.measure.why import explain
from tests.unit.labs.measure.lossless import LosslessRun, spec
from tests.unit.labs.measure.test_pauses import CIRCLE, deadlock, drain, slow_receiver
from tests.unit.topologies.test_faults import service
from topologies.fabric import Port
from topologies.fabricd.telemetry import DropReason, TraceKind


def agrees(evidence: Evidence, run: LosslessRun, packets: int) -> None:
    """A journey for each packet that was handed to a NIC, with the end that the core has counted."""
    journeys = evidence.journeys
    assert len(journeys) == packets
    assert (journeys["copy"] == 0).all()
    dropped = journeys[journeys["dropped"] > 0]
    assert len(dropped) == run.fabric.core.telemetry.ports["dropped"][:, 1:8].sum() > 0
    assert (journeys["dropped"] == 0).sum() == len(run.fabric.delivered)


@pytest.mark.parametrize("place", ["nic", "access", "uplink"])
def test_bit_errors(place: str) -> None:
    run = LosslessRun(spec())
    fabric = run.fabric.fabric
    ports: dict[str, Port] = {"nic": fabric.nic("h0"), "access": fabric.peer(fabric.nic("h4")),
                              "uplink": fabric.uplinks("leaf0")[0]}
    port = ports[place]
    service(run.fabric).handle("set_bit_errors", {"port": port.index, "probability": 0.1, "seed": 1})
    run.message("h0", "h4", 100)
    run.play()
    evidence = run.evidence()
    agrees(evidence, run, 100)
    lost = evidence.journeys[evidence.journeys["dropped"] == DropReason.BIT_ERROR]
    assert set(lost["port"]) == {port.index}
    answer = explain(evidence, 0)
    assert (answer.cause, set(answer.drops)) == ("drop", {f"{fabric.port_name(port.index)} (bit_error)"})


def test_a_receiver_without_room_drops_what_has_come_to_it() -> None:
    run = LosslessRun(spec(flow_control="none", buffer_kb=4096))
    drain(run, "h4", 10)
    run.message("h0", "h4", 100)
    run.play()
    evidence = run.evidence()
    agrees(evidence, run, 100)
    assert set(explain(evidence, 0).drops) == {"leaf1->h4 (tail)"}


def test_a_headroom_that_is_too_small_is_named_by_the_link_that_brought_the_packet() -> None:
    run = LosslessRun(spec(headroom_kb=0, link_delay_us=2.0))
    for host in ("h0", "h1"):
        run.message(host, "h2", 60)
    run.play()
    evidence = run.evidence()
    agrees(evidence, run, 120)
    places = {place for rank in (0, 1) for place in explain(evidence, 0, rank=rank).drops}
    assert places
    assert places <= {"h0->leaf0 (headroom)", "h1->leaf0 (headroom)"}


def test_acknowledgements_that_were_lost_are_why_packets_went_out_again() -> None:
    run = LosslessRun(spec())
    fabric = run.fabric.fabric
    service(run.fabric).handle("set_bit_errors", {"port": fabric.nic("h4").index, "probability": 1.0, "seed": 1})
    data = run.message("h0", "h4", 10)
    back = replace(data, src_ip=data.dst_ip, dst_ip=data.src_ip, src_port=60_000)
    run.send(back, 10, at_us=6, payload=4)
    run.send(data, 10, at_us=200)
    run.play()
    answer = explain(run.evidence(), 0)
    assert answer.cause == "drop"
    assert (answer.drops, answer.lost_acks) == ({}, {"h4->leaf1 (bit_error)": 10})
    assert answer.lost_us["drop"] == pytest.approx(200, abs=5)
    assert "which lost 10 acknowledgements (10 at h4->leaf1 (bit_error)), sent 10 packets again" in answer.sentence


def test_stands_are_where_the_packets_stood() -> None:
    evidence = slow_receiver().evidence()
    rows = evidence.stands
    fabric = evidence.fabric
    hops = (evidence.trace["kind"] == TraceKind.HOP).sum()
    assert len(rows) == hops == 160 * 4
    assert (rows["came_ns"] <= rows["begin_ns"]).all()
    assert (np.diff(rows["came_ns"]) >= 0).all()
    assert set(rows["traffic_class"]) == {3}
    inside = rows[rows["ingress"] != NOWHERE]
    assert len(inside) == 160 * 3
    for row in inside[:: 40]:
        assert fabric.port(int(row["ingress"])).device == fabric.port(int(row["port"])).device


def test_packets_that_never_left_stand_at_the_ports_of_the_circle() -> None:
    run = deadlock()
    evidence = run.evidence()
    frozen = evidence.stands[evidence.stands["left_ns"] == NEVER_NS]
    held = run.fabric.core.telemetry.ports["priority_group"]["curr_occupancy_bytes"].sum()
    assert frozen["bytes"].sum() == held > 0
    known = frozen[frozen["port"] != NOWHERE]
    assert len(known) > len(frozen) / 2
    assert {evidence.fabric.port_name(int(port)) for port in known["port"]} == CIRCLE
