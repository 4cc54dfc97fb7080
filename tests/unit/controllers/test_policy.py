"""Policies as plug-ins: parameters, tables, where they are found, and what is said when something is wrong."""

from __future__ import annotations

import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import controllers.policies
from controllers import registry
from controllers.policy import LeafLoad, LeafView, Policy, check_entries, check_table_size
from controllers.registry import BUILT_IN, create_policy, find_policy, policy_names
from topologies.errors import LabError


def leaf(policy: Policy[Any], uplinks: int = 4) -> LeafView:
    return LeafView("leaf0", 0, np.full(uplinks, 100.0), check_table_size(policy, uplinks), seed=1)


@pytest.mark.parametrize("uplinks", [1, 2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("name", BUILT_IN)
def test_tables_are_valid_and_as_even_as_they_can_be(name: str, uplinks: int) -> None:
    policy = create_policy(name)
    view = leaf(policy, uplinks)
    entries = check_entries(policy, view, policy.initial(view))
    counts = np.bincount(entries, minlength=uplinks)
    assert counts.max() - counts.min() <= (1 if len(entries) % uplinks else 0)


def test_what_each_policy_chooses() -> None:
    policies = {name: create_policy(name) for name in BUILT_IN}
    assert {name: policy.index for name, policy in policies.items()} == {
        "ecmp": "flow", "group": "group", "flowlet": "flowlet", "dlb": "slot", "spray": "spray"}
    assert {name for name, policy in policies.items() if policy.period_us is not None} == {"dlb"}
    assert create_policy("flowlet").flowlet_gap_us is None
    assert create_policy("flowlet", {"gap_us": 30}).flowlet_gap_us == 30
    assert [create_policy("spray").table_size(uplinks) for uplinks in (1, 2, 3, 4)] == [1, 2, 64, 4]


@pytest.mark.parametrize("name", BUILT_IN)
def test_static_policies_leave_the_table_alone(name: str) -> None:
    policy = create_policy(name)
    view = leaf(policy)
    entries, size = policy.initial(view), view.table_size
    load = LeafLoad(16.0, np.zeros(4), np.zeros(4), np.ones(4, dtype=bool), np.zeros(size), np.full(size, np.inf))
    assert np.array_equal(policy.update(view, load, entries, 16.0), entries)


@pytest.mark.parametrize(("value", "result"), [(32, 32), ("32", 32), (32.0, 32), ("32.0", 32)])
def test_numbers_may_come_as_text(value: object, result: int) -> None:
    assert create_policy("ecmp", {"entries": value}).table_size(4) == result


@pytest.mark.parametrize(("policy", "values", "message", "remedy"), [
    ("ecpm", {}, "unknown policy 'ecpm'", "did you mean ecmp?"),
    ("dlb", {"idel_us": 3}, "unknown parameter of policy dlb 'idel_us'", "did you mean idle_us?"),
    ("spray", {"gap_us": 3}, "policy spray has no parameter 'gap_us'", "it has none at all"),
    ("ecmp", {"entries": "many"}, "ecmp.entries = 'many' is not a whole number", None),
    ("ecmp", {"entries": 2.5}, "ecmp.entries = 2.5 is not a whole number", None),
    ("ecmp", {"entries": True}, "ecmp.entries = True is not of type int", None),
    ("dlb", {"margin": "nan"}, "dlb.margin = 'nan' is not a number", None),
    ("dlb", {"margin": 7}, "dlb.margin = 7 is out of range", "from 0.01 to 1"),
    ("ecmp", {"entries": 512}, "ecmp.entries = 512 is out of range", "from 1 to 256"),
])
def test_errors_name_what_is_wrong(policy: str, values: dict[str, object], message: str, remedy: str | None) -> None:
    with pytest.raises(LabError) as caught:
        create_policy(policy, values)
    assert caught.value.message == message
    assert caught.value.remedy == remedy


def test_a_table_size_that_bits_cannot_index_is_refused() -> None:
    with pytest.raises(LabError, match="policy ecmp: a path table cannot have 48 entries"):
        check_table_size(create_policy("ecmp", {"entries": 48}), 4)


@pytest.mark.parametrize(("entries", "message"), [
    (np.zeros(63, dtype=int), r"has the shape \(63,\), not \(64,\)"),
    (np.zeros(64), "holds float64, not whole numbers"),
    (np.full(64, 4), "names uplink 4"),
    (np.full(64, -1), "names uplink -1"),
])
def test_a_table_that_is_none_is_refused(entries: Any, message: str) -> None:
    policy = create_policy("ecmp")
    with pytest.raises(LabError, match=message):
        check_entries(policy, leaf(policy), entries)


def example(tmp_path: Path) -> Path:
    """The policy that the documentation shows, as a file."""
    text = controllers.policies.__doc__ or ""
    block = text[text.index('    """coolest'):text.index("What `update` gets")]
    path = tmp_path / "coolest.py"
    path.write_text(textwrap.dedent(block))
    return path


def test_the_documented_example_is_a_policy_of_about_30_lines_and_does_what_it_says(tmp_path: Path) -> None:
    path = example(tmp_path)
    assert len(path.read_text().splitlines()) <= 36
    policy = create_policy(str(path), {"gap_us": 10})
    view = leaf(policy)
    assert (policy.name, policy.index, policy.period_us) == ("coolest", "slot", 16.0)
    entries = check_entries(policy, view, policy.initial(view))
    idle_us = np.full(256, 100.0)
    idle_us[2] = 1.0
    tx_gbps = np.array([50.0, 10.0, 90.0, 60.0])
    load = LeafLoad(16.0, np.zeros(4), tx_gbps, np.ones(4, dtype=bool), np.zeros(256), idle_us)
    after = check_entries(policy, view, policy.update(view, load, entries, 16.0))
    assert after[2] == 2  # busy: stays
    assert np.count_nonzero(after == 2) == 1
    assert np.count_nonzero(after == 1) == 64 + 63


@pytest.mark.parametrize(("text", "message"), [
    ("x = (", "cannot load policy file .*SyntaxError"),
    ("import nonsense_module", "ModuleNotFoundError"),
    ("x = 1", "defines 0 policies, not one"),
    ("POLICY = 3", "is not a policy"),
    ("from controllers.policy import Policy\nclass A(Policy):\n  name = 'a'\n", "lacks initial"),
    ("from controllers.policy import Policy\nclass A(Policy):\n  def initial(self, leaf): ...\n", "has no name"),
    ("from controllers.policy import Policy\nclass A(Policy):\n  name = 'a'\n  index = 'slots'\n"
     "  def initial(self, leaf): ...\n", "unknown index of policy a 'slots'"),
    ("from controllers.policy import *\nfrom controllers.policies.ecmp import Ecmp\nclass A(Ecmp): pass\n"
     "class B(Ecmp): pass\n", "defines 2 policies, not one"),
])
def test_a_policy_file_that_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(LabError, match=message):
        find_policy(str(path))


def test_a_policy_file_that_is_missing() -> None:
    with pytest.raises(LabError, match=r"no policy file nowhere/mine\.py"):
        find_policy("nowhere/mine.py")


def test_policies_of_other_packages_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("theirs", "controllers.policies.spray:POLICY", registry.ENTRY_POINT_GROUP),
              EntryPoint("broken", "no_such_package:POLICY", registry.ENTRY_POINT_GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert policy_names() == [*BUILT_IN, "theirs", "broken"]
    assert find_policy("theirs").name == "spray"
    with pytest.raises(LabError, match="cannot load policy broken from no_such_package:POLICY: ModuleNotFoundError"):
        find_policy("broken")
