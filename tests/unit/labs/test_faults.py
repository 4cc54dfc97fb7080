"""What faults ask of fabricd, when they are played, and what is wrong with one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from labs.cli import sentence
from labs.fault_player import FaultPlayer
from labs.faults import (
    BitErrors,
    BufferProfile,
    EcnProfile,
    Fault,
    LinkDown,
    LostPacket,
    PauseStorm,
    Scene,
    SlowReceiver,
    check_all,
)
from labs.workload import Flow, RingAllReduce, Transfers, Workload
from topologies.errors import LabError
from topologies.fabric import describe
from topologies.fabricd.fabric_service import FabricService
from topologies.spec import FabricSpec

SPEC = FabricSpec(leaves=2, spines=2, hosts_per_leaf=2, slowdown=1000, flow_control="pfc", ecn_kmin_kb=10,
                  ecn_kmax_kb=20)
ALL = (
    SlowReceiver("h2", drain_gbps=25), PauseStorm("h1", classes=[3, 4]), BitErrors("leaf0->spine1", 0.001),
    LinkDown("spine0->leaf1"), EcnProfile("leaf1", kmin_kb=3, kmax_kb=5, pmax=0.5),
    BufferProfile("spine0", headroom_kb=0, xoff_alpha=1), LostPacket("h0", "h2"),
)


def scene(workload: Workload | None = None, spec: FabricSpec = SPEC) -> Scene:
    workload = workload or Transfers(65536, flows=[Flow("h0", "h2"), Flow("h1", "h2")])
    return Scene(describe(spec), workload, workload.plan(spec))


class Fabricd:
    """Takes what fabricd takes, and refuses what it refuses."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.refuse: str | None = None
        self._service = FabricService(scene().fabric, lambda target, index, op, args: ())

    def __call__(self, op: str, **arguments: Any) -> None:
        if op == self.refuse:
            raise LabError(f"fabricd refused '{op}'")
        self._service.handle(op, arguments)  # raises for what it does not know
        self.calls.append((op, arguments))


def test_requests_are_in_lab_units_and_by_index() -> None:
    at = scene()
    fabric = at.fabric
    assert SlowReceiver("h2", drain_gbps=25).begin(at) == [
        ("set_drain", {"port": fabric.nic("h2").index, "drain_bps": 25e6})]
    assert SlowReceiver("h2", drain_gbps=25).end(at) == [("set_drain", {"port": 2, "drain_bps": 0})]
    (down, back) = LinkDown("leaf0->spine1").begin(at)
    assert [fabric.port_name(request[1]["port"]) for request in (down, back)] == ["leaf0->spine1", "spine1->leaf0"]
    assert not down[1]["up"]
    assert EcnProfile("leaf1", kmin_kb=3, kmax_kb=5, pmax=0.5).begin(at) == [("set_ecn", {
        "switch": fabric.switch("leaf1").index, "kmin_bytes": 3072, "kmax_bytes": 5120, "pmax": 0.5,
        "classes": [0, 1, 2, 3, 4, 5]})]
    assert BufferProfile("spine0", headroom_kb=0, xoff_alpha=1).begin(at) == [
        ("set_buffer", {"switch": fabric.switch("spine0").index, "headroom_bytes": 0, "xoff_alpha": 1})]


@pytest.mark.parametrize(("packet", "number"), [(0, 0), (5, 5), ("middle", 8), ("last", 15)])
def test_a_lost_packet_is_counted_behind_the_headers(packet: Any, number: int) -> None:
    at = scene()
    ((op, plan),) = LostPacket("h0", "h2", packet).begin(at)
    assert op == "plant_drop"
    assert plan == {"port": 0, "src_ip": "10.0.0.1", "dst_ip": "10.0.1.1", "least_bytes": 63, "let_through": number,
                    "lose": 1}  # 16 packets of 4,096 bytes
    assert LostPacket("h0", "h2", packet).end(at)[0][1]["lose"] == 0


@pytest.mark.parametrize(("workload", "packets"), [
    (RingAllReduce(65536, slice_bytes=8192, rings=[["h0", "h1", "h2", "h3"]]), 2 * 3 * 4),  # 16 KB a chunk
    (RingAllReduce(65536, slice_bytes=6000, rings=[["h0", "h1", "h2", "h3"]]), 2 * 3 * 3 * 2),  # three of 5,461 bytes
    (Transfers(65536, flows=[Flow("h0", "h1"), Flow("h0", "h1", size_bytes=4100)]), 16 + 2),
    (Transfers(65536, flows=[Flow("h0", "h1")], admission_kb=64), 1 + 16),  # asks first
    (Transfers(65536, flows=[Flow("h0", "h1")], qps_per_connection=3), 18)])
def test_how_many_packets_a_rank_sends(workload: Workload, packets: int) -> None:
    assert LostPacket("h0", "h1").packets(scene(workload)) == packets


def test_faults_are_played_in_time_and_undone() -> None:
    fabricd = Fabricd()
    faults = (SlowReceiver("h2", drain_gbps=25, for_us=20), PauseStorm("h1", at_us=10),
              LinkDown("h3->leaf1", at_us=1e6), LostPacket("h0", "h2"))
    player = FaultPlayer(faults, scene(), fabricd)
    player.prepare()
    assert [op for op, _ in fabricd.calls] == ["set_drain", "plant_drop"]
    start_ns = time.monotonic_ns() + 20_000_000
    player.begin(start_ns)
    time.sleep(0.1)
    player.stop()
    assert [(event["fault"], event["state"]) for event in player.events] == [
        ("slow_receiver", "begin"), ("lost_packet", "begin"), ("pause_storm", "begin"), ("slow_receiver", "end"),
        ("pause_storm", "end")]
    storm, drain_end = player.events[2], player.events[3]
    assert start_ns + 10_000_000 <= storm["t_ns"] < start_ns + 50_000_000
    assert drain_end["t_ns"] >= start_ns + 20_000_000
    assert storm["device"] == "h1"
    assert storm["text"] == "h1 sends PAUSE for class 3 without end"
    assert fabricd.calls[-2:] == [("plant_drop", LostPacket("h0", "h2").end(scene())[0][1]),
                                  ("pause_storm", {"port": 1, "classes": []})]
    assert player.error is None


def test_one_that_follows_another_is_not_undone_by_its_end() -> None:
    fabricd = Fabricd()
    player = FaultPlayer((SlowReceiver("h2", drain_gbps=25, for_us=5), SlowReceiver("h2", drain_gbps=50, at_us=5)),
                         scene(), fabricd)
    player.prepare()
    player.begin(time.monotonic_ns())
    time.sleep(0.05)
    assert [call[1]["drain_bps"] for call in fabricd.calls] == [25e6, 0, 50e6]
    player.stop()
    assert fabricd.calls[-1][1]["drain_bps"] == 0


def test_a_fault_that_is_refused_is_said() -> None:
    fabricd = Fabricd()
    fabricd.refuse = "pause_storm"
    player = FaultPlayer((PauseStorm("h1"), SlowReceiver("h2", drain_gbps=1)), scene(), fabricd)
    player.prepare()
    player.stop()
    assert player.error == "h1 sends PAUSE for class 3 without end: fabricd refused 'pause_storm'"
    assert [event["fault"] for event in player.events] == ["slow_receiver"] * 2


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_every_fault_can_begin_and_end(fault: Fault) -> None:
    fabricd = Fabricd()
    check_all([fault], scene())
    player = FaultPlayer([fault], scene(), fabricd)
    player.prepare()
    player.begin(time.monotonic_ns())
    player.stop()
    assert len(fabricd.calls) >= 2
    assert player.error is None
    assert fault.text in fault.planned
    (begin, *_) = player.events
    assert begin.keys() >= {"t_ns", "kind", "fault", "state", "text"}
    assert ("device" in begin) != ("port" in begin)


@pytest.mark.parametrize(("faults", "expected"), [
    ([SlowReceiver("h9", drain_gbps=1)], "unknown host 'h9' (did you mean h3?)"),
    ([LinkDown("leaf0->spine7")], "there is no link 'leaf0->spine7' (did you mean leaf0->spine1?)"),
    ([EcnProfile("leaf7", kmin_kb=1, kmax_kb=2, pmax=1)], "unknown switch 'leaf7' (did you mean leaf1?)"),
    ([LostPacket("h2", "h0")], "LostPacket: nothing is sent from h2 to h0 (name the two ends of a flow of the "
                               "workload)"),
    ([LostPacket("h0", "h2", 16)], "LostPacket: packet=16, but h0 sends only 16 to h2 (packets are counted from 0)"),
    ([LinkDown("h0->leaf0"), LinkDown("h0->leaf0", at_us=5)],
     "two faults at the same time: h0->leaf0 is down, in both directions from 0 us on; h0->leaf0 is down, in both "
     "directions from 5 us on (the end of one would end the other: let them follow each other)"),
    ([EcnProfile("leaf0", kmin_kb=1, kmax_kb=2, pmax=1), BufferProfile("leaf0", alpha=2)],
     "two faults at the same time: leaf0 marks from 1 KB, up to 1 at 2 KB from 0 us on; leaf0 has alpha=2 from 0 us on "
     "(the end of one would end the other: let them follow each other)"),
    (["storm"], "faults: 'storm' is not a fault (one of SlowReceiver, PauseStorm, BitErrors, LinkDown, EcnProfile, "
                "BufferProfile, LostPacket)"),
])
def test_what_a_fabric_cannot_have(faults: list[Any], expected: str) -> None:
    with pytest.raises(LabError) as caught:
        check_all(faults, scene())
    assert sentence(caught.value) == expected


def test_a_storm_needs_pfc() -> None:
    with pytest.raises(LabError, match="nobody obeys PAUSE with flow_control=credits"):
        check_all([PauseStorm("h0")], scene(spec=SPEC.replace(flow_control="credits")))


@pytest.mark.parametrize(("make", "expected"), [
    (lambda: SlowReceiver("h0", drain_gbps=0), "SlowReceiver: drain_gbps=0 is not possible"),
    (lambda: SlowReceiver("h0", drain_gbps=1, at_us=-1), "SlowReceiver: at_us=-1 is not possible"),
    (lambda: BitErrors("h0->leaf0", 1.5), "BitErrors: probability=1.5 is not possible"),
    (lambda: EcnProfile("leaf0", kmin_kb=9, kmax_kb=3, pmax=1), "EcnProfile: kmax_kb=3 is not possible"),
    (lambda: PauseStorm("h0", classes=(8,)), "PauseStorm: classes=(8,)"),
    (lambda: BufferProfile("leaf0"), "BufferProfile of leaf0 changes nothing"),
    (lambda: LostPacket("h0", "h1", "first"), "LostPacket: packet='first'"),  # type: ignore[arg-type]
    (lambda: LostPacket("h0", "h1", at_us=3), "LostPacket has no time of its own"),
])
def test_what_no_fault_can_be(make: Any, expected: str) -> None:
    with pytest.raises(LabError) as caught:
        make()
    assert caught.value.message == expected


def test_the_words_of_a_lab_file_are_explained(tmp_path: Path) -> None:
    from labs.lab import load

    (tmp_path / "lab.py").write_text('from labs.faults import SlowReceiver\nSlowReceiver("h0", drain=25)\n')
    with pytest.raises(LabError) as caught:
        load(str(tmp_path))
    assert caught.value.message.endswith("lab.py:2: unknown key 'drain' of SlowReceiver")
    assert caught.value.remedy == "did you mean drain_gbps?"
