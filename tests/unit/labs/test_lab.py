"""What a lab is: loading, checking, overrides, and the sentence for everything that can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from labs.cli import sentence
from labs.lab import EXERCISES, Expectation, Lab, exercises, find, load
from labs.workload import Incast, RingAllReduce
from topologies.errors import LabError
from topologies.spec import FabricSpec

BAD_LABS = Path(__file__).parent / "bad_labs"


def lab() -> Lab:
    return Lab(name="test", module=1, title="A test", question="?", fabric=FabricSpec(slowdown=10_000),
               workload=RingAllReduce(65536), policies=("ecmp", "dlb"), seeds=2, iterations=5)


@pytest.mark.parametrize("path", sorted(BAD_LABS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_bad_lab_is_explained_in_one_sentence(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    (tmp_path / "lab.py").write_text(text)
    with pytest.raises(LabError) as caught:
        load(str(tmp_path))
    assert sentence(caught.value) == f"{tmp_path}/" + text.splitlines()[0].removeprefix("# expect: ")


@pytest.mark.parametrize("name", exercises())
def test_every_exercise_loads_and_passes_its_check(name: str) -> None:
    exercise = load(name)
    assert exercise.name == name
    assert exercise.path == EXERCISES / name / "lab.py"
    exercise.check()
    assert (EXERCISES / name / "README.md").is_file()


def test_an_exercise_is_found_by_name_beginning_and_path(tmp_path: Path) -> None:
    path = EXERCISES / "m5_ecmp_collisions" / "lab.py"
    assert find("m5_ecmp_collisions") == find("m5") == path
    assert find(str(path)) == find(str(path.parent)) == path
    with pytest.raises(LabError, match="no such file"):
        find(str(tmp_path / "lab.py"))
    with pytest.raises(LabError) as caught:
        find("ecmp_colisions")
    assert caught.value.remedy == "did you mean m5_ecmp_collisions?"


def test_m5_lasts_about_a_lab_second_and_is_sized_for_slices() -> None:
    exercise = load("m5_ecmp_collisions")
    assert 0.7 <= exercise.fabric.clock.lab_ns(exercise.ideal_us) / 1e9 <= 1.5
    workload = exercise.workload
    assert isinstance(workload, RingAllReduce)
    assert workload.size_bytes // exercise.fabric.leaves % workload.slice_bytes == 0
    assert exercise.fabric.hosts_per_leaf * workload.window_bytes <= exercise.fabric.buffer_kb * 1024


def test_overrides_reach_fabric_workload_and_policy() -> None:
    changed = lab().with_overrides(["buffer_kb=64", " size_bytes = 4096", "dlb.period_us=100", "compute_us=2.5"])
    assert changed.fabric.buffer_kb == 64
    assert changed.workload.size_bytes == 4096
    assert changed.workload.compute_us == 2.5
    assert changed.policy_params == {"dlb": {"period_us": "100"}}
    assert changed.check() is not None
    assert lab().policy_params == {}


@pytest.mark.parametrize(("setting", "expected"), [
    ("bufer_kb=64", "unknown key 'bufer_kb' of a fabric (did you mean buffer_kb?)"),
    ("window_byte=1", "unknown key 'window_byte' of the fabric and of RingAllReduce (did you mean window_bytes?)"),
    ("buffer_kb", "--set 'buffer_kb' is not a setting (write key=value, for example buffer_kb=64)"),
    ("size_bytes=64kb", "size_bytes=64kb: '64kb' is not a whole number (the unit is in the name of the key (bytes): "
                        "write only the number; size_bytes takes 256 to 268,435,456 bytes)"),
    ("rings=across_spines", "unknown way to lay rings 'across_spines' (did you mean across_leaves?)"),
    ("dbl.period_us=1", "unknown policy 'dbl' (did you mean dlb?)"),
    ("leaves=1", "ring 0 has 1 ranks (a ring takes 2 to 256; see rings, leaves)"),
    ("retry_count=8", "retry_count=8 is out of range (retry_count takes 0 to 7)"),
])
def test_an_override_that_makes_no_sense(setting: str, expected: str) -> None:
    with pytest.raises(LabError) as caught:
        lab().with_overrides([setting])
    assert sentence(caught.value) == expected


@pytest.mark.parametrize(("change", "expected"), [
    ({"policies": ("ecmp", "dlbb")}, "unknown policy 'dlbb'"),
    ({"policy_params": {"dlb": {"perod_us": 1}}}, "unknown parameter of policy dlb 'perod_us'"),
    ({"expectations": (Expectation("spary", "jct_ratio"),)}, "unknown policy 'spary'"),
    ({"iterations": 0}, "iterations=0 is not possible"),
    ({"policies": ()}, "policies is empty"),
    ({"name": "a b"}, "name='a b' is not a name"),
])
def test_what_a_check_finds(change: dict[str, object], expected: str) -> None:
    with pytest.raises(LabError) as caught:
        lab().replace(**change).check()
    assert caught.value.message == expected


def test_notes_about_what_is_odd() -> None:
    notes = lab().with_overrides(["buffer_kb=64", "size_bytes=4096", "timeout_us=10"]).check()
    assert [note.split()[0] for note in notes] == ["the", "an", "timeout_us=10"]
    assert lab().with_overrides(["size_bytes=1048576"]).check() == []


def test_quick_is_smaller() -> None:
    quick = lab().quick()
    assert (quick.workload.size_bytes, quick.iterations, quick.warmup, quick.seeds) == (32768, 2, 1, 1)


def test_every_parameter_is_shown() -> None:
    shown = lab().with_overrides(["dlb.period_us=100"]).parameters()
    assert set(FabricSpec().to_dict()) <= set(shown["fabric"])
    assert set(RingAllReduce.keys()) <= set(shown["workload"])
    assert shown["policy dlb"] == {"period_us": "100"}
    assert shown["workload"]["ideal_us"] == pytest.approx(65536 * 8 / 100e3)  # two ranks: S / R


def test_an_expectation_holds_within_its_bounds() -> None:
    expected = Expectation("dlb", "jct_ratio", at_least=1.0, at_most=1.15)
    assert [expected.holds(value) for value in (0.99, 1.0, 1.15, 1.16)] == [False, True, True, False]


@pytest.mark.parametrize(("settings", "expected"), [
    (["size_bytes=67108864"], "h0 needs 100,663,296 bytes of registered memory, a NIC has 33,554,432"),
    (["qps_per_connection=16", "leaves=5", "rings=h0,h4"], None),
])
def test_what_a_nic_cannot_hold(settings: list[str], expected: str | None) -> None:
    changed = lab().with_overrides(settings)
    if expected is None:
        changed.check()
        return
    with pytest.raises(LabError) as caught:
        changed.check()
    assert caught.value.message == expected


def test_a_nic_has_so_many_queue_pairs() -> None:
    incast = lab().replace(fabric=FabricSpec(leaves=5, hosts_per_leaf=2), workload=Incast(4096, senders=9,
                                                                                        qps_per_connection=8))
    with pytest.raises(LabError, match="h0 needs 72 queue pairs, a NIC has 64"):
        incast.check()
    with pytest.raises(LabError, match="flows in all"):
        lab().replace(seeds=1000, workload=RingAllReduce(65536, qps_per_connection=4)).check()
