"""ECN marking in virtual time: which frames, with what probability, and what it leaves untouched."""

from __future__ import annotations

import numpy as np
import pytest
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from tests.unit.topologies.qos_fabric import CNP, DATA, KB, LOSSLESS, MS, access, burst, quiet
from tests.unit.topologies.virtual_fabric import VirtualFabric
from topologies.errors import LabError
from topologies.fabricd._core import lib
from topologies.fabricd.telemetry import TraceKind
from topologies.spec import FabricSpec

SPEC = FabricSpec(leaves=1, spines=1, hosts_per_leaf=4, slowdown=10_000, buffer_kb=4096, host_buffer_kb=65_536,
                  ecn_kmin_kb=20, ecn_kmax_kb=120, ecn_pmax=0.4)  # fmt: skip
ECT = 2


def depths_and_marks(fabric: VirtualFabric, port: int) -> tuple[np.ndarray, np.ndarray]:
    """Of every frame that left `port`, in order: the queue before it when it came, and whether it was marked."""
    trace = fabric.core.telemetry.drain_trace()
    hops = trace[(trace["kind"] == TraceKind.HOP) & (trace["port"] == port)]
    marks = trace[(trace["kind"] == TraceKind.MARK) & (trace["port"] == port)]
    arrived = {(int(r["t_ns"]), int(r["arg"])) for r in marks}
    assert len(arrived) == len(marks)
    begin = hops["t_ns"] - hops["wait_ns"] - np.round((hops["bytes"] + 24.0) * 8e9 / 1e7).astype(np.int64)
    marked = np.array([any((int(b) + slip, int(d)) in arrived for slip in (-1, 0, 1))
                       for b, d in zip(begin, hops["arg"], strict=True)])  # fmt: skip
    assert marked.sum() == len(marks)
    return hops["arg"].astype(float), marked


def overload(spec: FabricSpec, frames: int, ecn: int = ECT) -> tuple[VirtualFabric, int]:
    """Two hosts send to a third, so that its queue grows through all depths."""
    fabric = VirtualFabric(spec)
    for sender in range(2):
        burst(fabric, f"h{sender}", "h2", frames, payload=458, ecn=ecn, at_ns=5 * MS + sender * 1000)
    fabric.run()
    return fabric, access(fabric, "h2").index


def test_the_probability_is_the_formulas() -> None:
    kmin, kmax, pmax = 20 * KB, 120 * KB, 0.4
    depth, marked = [], []
    for seed in range(1, 13):
        fabric, port = overload(SPEC.replace(hash_seed=seed), 600)
        d, m = depths_and_marks(fabric, port)
        depth.append(d)
        marked.append(m)
        quiet(fabric)
    q, hit = np.concatenate(depth), np.concatenate(marked)
    assert not hit[q <= kmin].any()
    assert hit[q > kmax].all()
    assert (q > kmax).sum() > 500
    between = (q > kmin) & (q <= kmax)
    for low, high in ((0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1)):
        here = between & (q > kmin + low * (kmax - kmin)) & (q <= kmin + high * (kmax - kmin))
        p = pmax * (q[here] - kmin) / (kmax - kmin)
        assert abs(hit[here].sum() - p.sum()) < 4 * np.sqrt((p * (1 - p)).sum())
    p = pmax * (q[between] - kmin) / (kmax - kmin)
    assert hit[between].sum() == pytest.approx(p.sum(), rel=0.1)


def test_marks_repeat_with_the_seed_and_differ_without() -> None:
    runs = [depths_and_marks(*overload(SPEC.replace(hash_seed=seed), 200))[1] for seed in (1, 1, 2)]
    assert (runs[0] == runs[1]).all()
    assert (runs[0] != runs[2]).any()


@pytest.mark.parametrize(("ecn", "becomes"), [(0, {0}), (1, {1, 3}), (2, {2, 3}), (3, {3})])
def test_only_ecn_capable_frames_are_marked(ecn: int, becomes: set[int]) -> None:
    fabric, port = overload(SPEC, 300, ecn)
    assert {frame[15] & 3 for _, _, frame in fabric.delivered} == becomes
    marked = fabric.core.telemetry.ports["queue"]["wred_ecn_marked_packets"]
    assert (marked[port, LOSSLESS] > 0) == (ecn in (1, 2))
    assert marked.sum() == marked[port, LOSSLESS]  # the NICs' own queues never mark, however long
    assert marked[port, LOSSLESS] == sum(frame[15] & 3 == 3 for _, _, frame in fabric.delivered if ecn != 3)


def test_a_mark_leaves_checksum_and_icrc_right() -> None:
    fabric = VirtualFabric(SPEC.replace(ecn_kmin_kb=0, ecn_kmax_kb=0))
    for number in range(40):
        frame = bytes(
            Ether(src=fabric.fabric.host("h0").mac, dst=fabric.fabric.gateway_mac)
            / IP(src="10.0.0.1", dst=fabric.fabric.host("h2").ip, tos=DATA << 2 | ECT, id=number * 1637)
            / UDP(sport=50_000 + number, dport=4791, chksum=0)
            / BTH(opcode=0x0A, psn=number, dqpn=17)
            / bytes(500)
        )
        fabric.send("h0", frame, 5 * MS)
        fabric.send("h1", frame, 5 * MS)
    fabric.run()
    marked = [frame for _, _, frame in fabric.delivered if frame[15] & 3 == 3]
    assert len(marked) >= 38
    for frame in marked:
        judged = Ether(frame)
        del judged[IP].chksum
        judged[BTH].icrc = None
        assert bytes(judged) == frame


def test_strict_classes_and_switches_without_a_profile_do_not_mark() -> None:
    fabric = VirtualFabric(SPEC)
    for sender in range(2):
        burst(fabric, f"h{sender}", "h2", 300, payload=458, ecn=ECT, dscp=CNP)
    fabric.run()
    assert fabric.core.telemetry.ports["queue"]["wred_ecn_marked_packets"].sum() == 0
    fabric, _ = overload(SPEC.replace(ecn_kmin_kb=None, ecn_kmax_kb=None), 300)
    assert fabric.core.telemetry.ports["queue"]["wred_ecn_marked_packets"].sum() == 0


def test_one_switch_can_have_another_profile_and_it_can_change_live() -> None:
    fabric = VirtualFabric(SPEC.replace(leaves=2, switch_profiles={"leaf1": {"ecn_kmin_kb": 0, "ecn_kmax_kb": 1}}))
    marked = fabric.core.telemetry.ports["queue"]["wred_ecn_marked_packets"]

    def play(first: int) -> int:
        before = int(marked.sum())
        for sender in range(2):
            burst(fabric, f"h{first + sender}", f"h{first + 2}", 40, payload=458, ecn=ECT, at_ns=fabric.now_ns + MS)
        fabric.run()
        return int(marked.sum()) - before

    assert play(0) == 0
    assert play(4) > 30
    leaf0 = fabric.fabric.switch("leaf0").index
    fabric.core.control(lib.FABRIC_SET_ECN, leaf0, 0, 1000, -1, -1)
    assert play(0) > 30
    fabric.core.control(lib.FABRIC_SET_ECN, leaf0, -1, -1, -1, 0)
    assert play(0) == 0
    with pytest.raises(LabError):
        fabric.core.control(lib.FABRIC_SET_ECN, leaf0, 2000, 1000, -1, -1)
