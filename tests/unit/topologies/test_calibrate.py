"""The model behind `slowdown auto`."""

import dataclasses
import json
from pathlib import Path

import pytest

from topologies import calibrate
from topologies.calibrate import Calibration, predict, smallest_slowdown
from topologies.errors import LabError
from topologies.spec import FabricSpec

# Two cores with OVS's userspace datapath.
MACHINE = Calibration(cpus=2, tick_us=18, crossing_us=6, hop_us=40, in_switch_p99_us=230, switch_ports=24, wakeup_us=4)
SPEC = FabricSpec(leaves=4, spines=4, hosts_per_leaf=4)


def test_load_of_the_standard_fabric() -> None:
    load = predict(SPEC, 10_000, MACHINE)
    # 16 hosts, one 4,198-byte packet in 3.36 ms each, one ACK in 16: 5,062 packets/s, 3 switches, 4 links.
    assert load.ovs == pytest.approx(5062 * 3 * 40e-6, rel=0.001)
    assert load.fabricd == pytest.approx(5062 * 4 * 6e-6 + 18 / 223.89, rel=0.001)
    assert load.machine == pytest.approx((load.ovs + load.fabricd) / 2)
    assert load.lateness == pytest.approx((223.89 + 4) / 3358.4, rel=0.001)


def test_first_of_1_2_5_that_is_sustainable() -> None:
    slowdown = smallest_slowdown(SPEC, MACHINE)
    assert slowdown == 10_000
    assert predict(SPEC, slowdown, MACHINE).sustainable
    assert not predict(SPEC, slowdown / 2, MACHINE).sustainable


@pytest.mark.parametrize("change", [
    {"hosts_per_leaf": 8}, {"leaves": 8}, {"link_gbps": 400.0}, {"mtu_bytes": 1024},
])
def test_more_packets_need_more_time(change: dict[str, float]) -> None:
    assert smallest_slowdown(SPEC.replace(**change), MACHINE) > smallest_slowdown(SPEC, MACHINE)


def test_scale_free() -> None:
    """What counts is the rate in lab time: ten times the rate, ten times slower."""
    assert predict(SPEC.replace(link_gbps=10), 1_000, MACHINE) == predict(SPEC, 10_000, MACHINE)


def test_thin_uplinks_carry_less() -> None:
    full, thin = predict(SPEC, 10_000, MACHINE), predict(SPEC.replace(spines=1), 10_000, MACHINE)
    assert thin.ovs == pytest.approx(full.ovs * (1 + 2 / 4) / 3)


def test_one_leaf_has_one_hop() -> None:
    pair = FabricSpec(leaves=1, spines=1, hosts_per_leaf=4)
    assert predict(pair, 10_000, MACHINE).ovs == pytest.approx(predict(SPEC, 10_000, MACHINE).ovs / 4 / 3)


def test_each_bound_counts() -> None:
    good = predict(SPEC, 100_000, MACHINE)
    assert good.sustainable
    for name in ("fabricd", "ovs", "machine", "in_switch", "lateness"):
        assert not dataclasses.replace(good, **{name: 1.0}).sustainable


def test_a_slow_wakeup_alone_can_decide() -> None:
    """The tick has a shortest length, so that a fast lab is late by definition."""
    quick = dataclasses.replace(MACHINE, crossing_us=0, hop_us=0, in_switch_p99_us=0)
    slowdown = smallest_slowdown(FabricSpec(leaves=1, spines=1, hosts_per_leaf=2), quick)
    assert slowdown == 5_000
    assert smallest_slowdown(FabricSpec(), dataclasses.replace(quick, wakeup_us=1_000)) > slowdown


def test_hopeless() -> None:
    with pytest.raises(LabError, match="does not sustain"):
        smallest_slowdown(SPEC, dataclasses.replace(MACHINE, tick_us=1_000))


def test_a_number_needs_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "calibration", lambda: pytest.fail("measured"))
    spec = SPEC.replace(slowdown=7)
    assert calibrate.resolve(spec) is spec


def test_auto_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "calibration", lambda: MACHINE)
    assert calibrate.resolve(SPEC).slowdown == smallest_slowdown(SPEC, MACHINE)


def test_cache_is_for_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "calibration.json"
    monkeypatch.setattr(calibrate, "_machine", lambda: {"kernel": "1"})
    assert calibrate.cached(path) is None
    path.write_text(json.dumps({"machine": {"kernel": "1"}, "calibration": dataclasses.asdict(MACHINE)}))
    assert calibrate.cached(path) == MACHINE
    monkeypatch.setattr(calibrate, "_machine", lambda: {"kernel": "2"})
    assert calibrate.cached(path) is None
    path.write_text("{}")
    assert calibrate.cached(path) is None


def test_a_ring_is_taken_for_its_two_hop_paths() -> None:
    """One uplink a switch, as many hops as by way of a spine: like a leaf-spine with one spine, but for the ports."""
    ring = FabricSpec(shape="switch_ring", leaves=4, hosts_per_leaf=4)
    assert predict(ring, 10_000, MACHINE) == predict(SPEC.replace(spines=1), 10_000, MACHINE)
