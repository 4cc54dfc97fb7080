"""Variants of a lab: the same question asked several times, each time with a few keys changed.

A variant is a mapping of what differs: keys of the fabric, of the workload, "dcqcn.<field>", "<policy>.<parameter>", or
"faults".  A run's *label*, by which results are grouped, is its policy where a lab has no variants, its variant where
there is one policy, and "variant, policy" else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from controllers.registry import find_policy
from labs.workload import Workload
from topologies import spec as specs
from topologies.errors import LabError, nearest, unknown_name
from topologies.spec import FabricSpec

if TYPE_CHECKING:
    from labs.lab import Lab

SEPARATOR = ", "
FAULTS = "faults"
Variant = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """The keys of a variant, or of `--set`, by what they belong to."""

    fabric: Mapping[str, Any]
    workload: Mapping[str, Any]
    params: Mapping[str, Mapping[str, Any]]  # policy -> parameter -> value


def sort_keys(values: Mapping[str, Any], workload: Workload) -> Difference:
    """Raises LabError for a key that nobody knows, with the nearest that somebody does."""
    fabric, load = {}, {}
    params: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if workload.takes(key):
            load[key] = value
        elif key in specs.KEYS:
            fabric[key] = value
        elif "." in key:
            policy, _, parameter = key.rpartition(".")
            find_policy(policy)
            params.setdefault(policy, {})[parameter] = value
        else:
            own = workload.keys()
            close = nearest(key, (*specs.KEYS, *own))
            if close in own:
                raise LabError(f"unknown key {key!r} of the fabric and of {type(workload).__name__}",
                               f"did you mean {close}?")
            FabricSpec().replace(**{key: value})  # which knows what people call its keys elsewhere
    return Difference(fabric, load, params)


def concrete(lab: Lab, name: str) -> Lab:
    """The lab as variant `name` of it plays it.  Raises LabError for a variant that makes no sense."""
    if name not in lab.variants:
        raise unknown_name("variant", name, lab.variants)
    variant = dict(lab.variants[name])
    faults = variant.pop(FAULTS, lab.faults)
    try:
        difference = sort_keys(variant, lab.workload)
        return lab.replace(
            fabric=lab.fabric.replace(**difference.fabric), workload=lab.workload.with_values(difference.workload),
            policy_params=merged(lab.policy_params, difference.params), faults=faults, variants={}, variant_name=name)
    except LabError as error:
        raise LabError(f"variant {name!r}: {error.message}", error.remedy) from None


def merged(base: Mapping[str, Mapping[str, Any]], other: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Parameters of policies, one set on top of the other."""
    return {policy: {**base.get(policy, {}), **other.get(policy, {})} for policy in {**base, **other}}


def without(variants: Mapping[str, Variant], keys: Iterable[str]) -> dict[str, Variant]:
    """The variants without what they say about some keys, so that `--set` has the last word."""
    keys = set(keys)
    fields = {key.removeprefix("dcqcn.") for key in keys if key.startswith("dcqcn.")}

    def rest(variant: Variant) -> Variant:
        return {key: {field: v for field, v in value.items() if field not in fields} if key == "dcqcn_params" else value
                for key, value in variant.items() if key not in keys}

    return {name: rest(variant) for name, variant in variants.items()}


def check_names(variants: object) -> None:
    """Raises LabError unless it is a mapping of names to mappings."""
    if not isinstance(variants, Mapping) or not all(isinstance(variant, Mapping) for variant in variants.values()):
        raise LabError("variants is not a mapping of mappings", 'for example {"pfc": {"flow_control": "pfc"}}')
    for name in variants:
        if not isinstance(name, str) or not name.strip() or name != name.strip() or "," in name:
            raise LabError(f"variants: {name!r} is not a name", "text without commas, for example 'tail drop'")


def label(variant: str, policy: str, policies: Sequence[str]) -> str:
    """What a run is called in tables and plots."""
    if not variant:
        return policy
    return variant if len(policies) == 1 else f"{variant}{SEPARATOR}{policy}"


def means(name: str, variant: str, policy: str) -> bool:
    """Whether `name`, as an expectation gives it, is a run's label, variant or policy."""
    return name in ({policy, variant, f"{variant}{SEPARATOR}{policy}"} if variant else {policy})


def check_run_name(name: str, lab: Lab) -> None:
    """Raises LabError unless `name` can be that of a run of the lab."""
    variant, comma, policy = name.partition(SEPARATOR)
    if not lab.variants or (comma and variant in lab.variants):
        find_policy(policy if comma else name)
    elif name not in lab.variants:
        try:
            find_policy(name)
        except LabError:
            raise unknown_name("run", name, (*lab.variants, *lab.policies)) from None


@dataclass(frozen=True)
class PlannedRun:
    """One run of a lab that has no variants any more."""

    lab: Lab
    policy: str
    seed: int

    @property
    def label(self) -> str:
        """See above."""
        return label(self.lab.variant_name, self.policy, self.lab.policies)

    @property
    def hosts(self) -> set[str]:
        """Names of the hosts that take part."""
        return {rank.host for rank in self.lab.workload.plan(self.lab.fabric).ranks}


def plan(lab: Lab, seeds: Sequence[int]) -> list[PlannedRun]:
    """All runs, in their order: variant, seed, policy."""
    return [PlannedRun(one, policy, seed) for one in lab.concrete() for seed in seeds for policy in one.policies]
