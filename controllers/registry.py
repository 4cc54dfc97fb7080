"""Finds policies: those that come with the project, those of installed packages, and a file of the user's own.

An installed package offers one by an entry point of the group `straggler.policies`.  A file is named by its path
(`--policy ./my_policy.py`); the policy in it is `POLICY`, or the only subclass of Policy that the file defines.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from controllers.policy import INDEXES, Policy
from topologies.errors import LabError, unknown_name

ENTRY_POINT_GROUP = "straggler.policies"
BUILT_IN = ("ecmp", "group", "flowlet", "dlb", "spray")

PolicyClass = type[Policy[Any]]


def policy_names() -> list[str]:
    """All policies that can be had by name: the built-in ones in teaching order, then the others."""
    return list(_entry_points())


def find_policy(name: str) -> PolicyClass:
    """The policy called `name`, or the one in the file `name`.  Raises LabError if there is none."""
    if name.endswith(".py") or "/" in name:
        return _from_file(Path(name))
    known = _entry_points()
    if name not in known:
        raise unknown_name("policy", name, known)
    point = known[name]
    try:
        found = point.load()
    except Exception as error:  # of somebody else's package: anything can happen
        raise LabError(f"cannot load policy {name} from {point.value}: {_sentence(error)}") from error
    return _checked(found, point.value)


def create_policy(name: str, values: Mapping[str, object] | None = None) -> Policy[Any]:
    """`find_policy` and `Policy.create` in one.  Raises LabError."""
    return find_policy(name).create(values)


def _entry_points() -> dict[str, EntryPoint]:
    # A checkout that was never installed has no entry points, so the built-in policies do not depend on them.
    points = {name: EntryPoint(name, f"controllers.policies.{name}:POLICY", ENTRY_POINT_GROUP) for name in BUILT_IN}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        points.setdefault(point.name, point)
    return points


def _from_file(path: Path) -> PolicyClass:
    if not path.is_file():
        raise LabError(f"no policy file {path}", f"or one by name: {', '.join(policy_names())}")
    spec = importlib.util.spec_from_file_location(f"straggler_policy_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise LabError(f"{path} is not a Python file", "a policy file ends in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code: anything can happen
        raise LabError(f"cannot load policy file {path}: {_sentence(error)}") from error
    if hasattr(module, "POLICY"):
        return _checked(module.POLICY, str(path))
    own = [value for value in vars(module).values()
           if inspect.isclass(value) and issubclass(value, Policy) and value.__module__ == module.__name__]
    if len(own) != 1:
        raise LabError(f"{path} defines {len(own)} policies, not one", "name the one that is meant: POLICY = MyPolicy")
    return _checked(own[0], str(path))


def _checked(found: object, place: str) -> PolicyClass:
    if not (inspect.isclass(found) and issubclass(found, Policy)):
        raise LabError(f"{place} is not a policy", "a subclass of controllers.policy.Policy")
    missing = sorted(found.__abstractmethods__)
    if missing:
        raise LabError(f"the policy in {place} lacks {', '.join(missing)}", "see controllers/policies/__init__.py")
    if not isinstance(getattr(found, "name", None), str):
        raise LabError(f"the policy in {place} has no name", 'name = "my_policy"')
    if found.index not in INDEXES:
        raise unknown_name(f"index of policy {found.name}", str(found.index), INDEXES)
    return found


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
