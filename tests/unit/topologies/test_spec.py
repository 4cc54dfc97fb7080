"""A spec is right or says what is wrong with it."""

import dataclasses
import json

import pytest

from topologies.errors import LabError
from topologies.spec import KEYS, LIMITS, FabricSpec


def complaint(**values: object) -> LabError:
    with pytest.raises(LabError) as caught:
        FabricSpec.from_dict(values)
    return caught.value


def test_defaults_are_valid_and_frozen() -> None:
    spec = FabricSpec()
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.leaves = 3  # type: ignore[misc]


def test_every_number_has_limits() -> None:
    not_numbers = {"shape", "flow_control", "dscp_classes", "lossless_classes", "strict_classes", "ets_shares",
                   "watchdog", "switch_profiles"}
    assert set(LIMITS) == set(KEYS) - not_numbers


def test_through_json() -> None:
    spec = FabricSpec(leaves=4, spines=4, hosts_per_leaf=4, uplink_gbps=25, slowdown=10_000)
    assert FabricSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize("key", sorted(LIMITS))
def test_limits_are_named(key: str) -> None:
    for value in (LIMITS[key][0] - 1, LIMITS[key][1] + 1):
        integer = isinstance(getattr(FabricSpec(), key), int)
        error = complaint(**{key: int(value) if integer else value})
        assert key in error.message
        assert error.remedy is not None
        assert error.remedy.startswith(f"{key} takes ")


@pytest.mark.parametrize(("key", "meant"), [
    ("bufer_kb", "buffer_kb"), ("leafs", "leaves"), ("link_gps", "link_gbps"), ("buffer_mb", "buffer_kb"),
    ("mtu", "mtu_bytes"), ("bandwidth", "link_gbps"), ("seed", "hash_seed"), ("hosts", "hosts_per_leaf"),
    ("Slowdown", "slowdown"),
])
def test_nearest_key(key: str, meant: str) -> None:
    error = complaint(**{key: 1})
    assert repr(key) in error.message
    assert error.remedy == f"did you mean {meant}?"


def test_unlike_any_key() -> None:
    remedy = str(complaint(zzz=1).remedy)
    assert remedy.startswith("one of: ")
    assert "shape, leaves" in remedy


@pytest.mark.parametrize("value", [True, "4", None, float("nan"), [4]])
def test_not_a_number(value: object) -> None:
    assert complaint(leaves=value).message == f"leaves={value!r} is not a number"


def test_not_a_whole_number() -> None:
    assert complaint(leaves=2.5).message == "leaves=2.5 is not a whole number"


def test_unknown_shape_and_mtu_and_too_many_hosts() -> None:
    assert complaint(shape="leafspine").remedy == "did you mean leaf_spine?"
    assert complaint(mtu_bytes=1500).remedy == "one of 256, 512, 1024, 2048, 4096"
    assert "4096 hosts" in complaint(leaves=64, hosts_per_leaf=64).message


def test_overrides() -> None:
    spec = FabricSpec().with_overrides(
        ["buffer_kb=64", "leaves = 4", "slowdown=auto", "uplink_gbps=none", "link_gbps=2.5e1"])
    assert spec == FabricSpec(buffer_kb=64, leaves=4, slowdown="auto", uplink_gbps=None, link_gbps=25)


@pytest.mark.parametrize(("setting", "message", "remedy"), [
    ("buffer_kb=64kb", "buffer_kb=64kb: '64kb' is not a number",
     "the unit is in the name of the key (KB of 1,024 bytes): write only the number, for example buffer_kb=64"),
    ("link_gbps=100G", "link_gbps=100G: '100G' is not a number",
     "the unit is in the name of the key (Gb/s): write only the number, for example link_gbps=100"),
    ("slowdown=10,000", "slowdown=10,000: '10,000' is not a number", "write slowdown=10000"),
    ("leaves=4.0", "leaves=4.0: '4.0' is not a whole number", "write leaves=4"),
    ("leaves=two", "leaves=two: 'two' is not a whole number", "leaves takes 1 to 64"),
    ("slowdown=fast", "slowdown=fast: 'fast' is not a number", "slowdown takes 1 to 10,000,000, or auto"),
    ("buffer_kb", "'buffer_kb' is not a setting", "write key=value, for example buffer_kb=64"),
    ("buffer_kb=", "'buffer_kb=' is not a setting", "write key=value, for example buffer_kb=64"),
    ("link_gbps=nan", "link_gbps=nan is not a number", "link_gbps takes 0.001 to 10,000 Gb/s"),
    ("leaves=0", "leaves=0 is out of range", "leaves takes 1 to 64"),
])
def test_bad_overrides(setting: str, message: str, remedy: str) -> None:
    with pytest.raises(LabError) as caught:
        FabricSpec().with_overrides([setting])
    assert (caught.value.message, caught.value.remedy) == (message, remedy)


def test_auto_has_no_clock_yet() -> None:
    with pytest.raises(LabError, match="auto"):
        _ = FabricSpec(slowdown="auto").clock


def test_a_shape_has_the_counts_that_it_is_built_from() -> None:
    ring = FabricSpec(shape="switch_ring", leaves=4, hosts_per_leaf=1)
    assert (ring.spines, ring.uplinks_per_leaf, ring.hosts) == (None, 1, 4)
    assert "spines" not in ring.to_dict()
    assert FabricSpec.from_dict(json.loads(json.dumps(ring.to_dict()))) == ring
    assert (FabricSpec().spines, FabricSpec(spines=5).uplinks_per_leaf) == (2, 5)
    assert FabricSpec().to_dict()["spines"] == 2


def test_a_ring_has_no_spines_and_three_switches_or_more() -> None:
    error = complaint(shape="switch_ring", leaves=4, spines=2)
    assert error.message == "spines=2: a switch_ring has no spines"
    assert error.remedy == "leave it out, or say spines=none"
    error = complaint(shape="switch_ring")
    assert (error.message, error.remedy) == ("leaves=2 is out of range", "a switch_ring takes at least 3")
    spec = FabricSpec(leaves=4).with_overrides(["shape=switch_ring", "spines=none"])
    assert (spec.shape, spec.spines) == ("switch_ring", None)
