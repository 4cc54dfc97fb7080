"""What a load-balancing policy is.

A leaf holds a *path table*: N entries, each naming one of the leaf's uplinks.  A policy is two choices: which bits of
a frame pick the entry (`index`), and who fills the table: once (`initial`), or again at every period from what the
leaf measured (`update`).  Policies are pure: time and loads are handed in, in hardware units (us, Gb/s, bytes), and a
new table is handed back.  They know nothing of OpenFlow.

index       the entry is picked by                                                       a flow keeps its path
"flow"      hash of the five-tuple (ECMP)                                                always
"flowlet"   hash of the five-tuple and of the number of its flowlet                      for one flowlet
"spray"     counter of the leaf's frames                                                 for one frame
"slot"      the flow's slot in the leaf's flow table; no two live flows share one        until the policy moves it
"group"     Open vSwitch itself: a select group with a bucket an entry (for comparison)  always

How to add a policy: `controllers/policies/__init__.py` has one of 30 lines.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from topologies.errors import LabError, unknown_name

Index = Literal["flow", "flowlet", "spray", "slot", "group"]
INDEXES: tuple[Index, ...] = ("flow", "flowlet", "spray", "slot", "group")
MAX_ENTRIES = 256  # every index is one byte of the metadata that fabricd writes into the source MAC

Entries = NDArray[np.int64]  # [entries] -> number of the uplink, 0 for the leaf's first one
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class LeafView:
    """What does not change about a leaf.

    name, index: e.g. "leaf0" and its number among all switches.  uplink_gbps: [uplinks], by OpenFlow port number.
    table_size: entries that the policy asked for.  seed: of this leaf; different for every leaf and run.
    """

    name: str
    index: int
    uplink_gbps: FloatArray
    table_size: int
    seed: int

    @property
    def uplinks(self) -> int:
        """Number of uplinks."""
        return len(self.uplink_gbps)


@dataclass(frozen=True)
class LeafLoad:
    """What a leaf measured over the last period.

    period_us: its true length.  Per uplink: queue_bytes now in the egress queue, tx_gbps sent on average, up.
    Per entry: entry_bytes sent through it during the period, idle_us since its last frame (inf: never one).
    Index "slot" and "flow" know their entries' bytes; with the others no flow is bound to an entry, and entry_bytes
    are 0 and idle_us is inf.
    """

    period_us: float
    queue_bytes: FloatArray
    tx_gbps: FloatArray
    up: BoolArray
    entry_bytes: FloatArray
    idle_us: FloatArray


@dataclass(frozen=True)
class NoParameters:
    """For a policy that has nothing to set."""


ParametersT = TypeVar("ParametersT")


class Policy(ABC, Generic[ParametersT]):
    """Base class of all policies; an instance serves all leaves of one run and may remember things by leaf name."""

    name: ClassVar[str]
    index: ClassVar[Index] = "flow"
    # A frozen dataclass whose fields all have defaults; what `--set` can change.
    Parameters: ClassVar[type[Any]] = NoParameters

    def __init__(self, parameters: ParametersT) -> None:
        self.parameters = parameters

    @classmethod
    def create(cls, values: Mapping[str, object] | None = None) -> Policy[ParametersT]:
        """An instance with `values` for some of its parameters.  Raises LabError for unknown or unfit ones."""
        return cls(parse_parameters(cls.name, cls.Parameters, values or {}))

    @property
    def period_us(self) -> float | None:
        """Time between two calls of `update`; None: the table stays as it is."""
        return None

    @property
    def flowlet_gap_us(self) -> float | None:
        """The pause that begins a new flowlet in the leaves' flow tables; None: the fabric's own setting."""
        return None

    def table_size(self, uplinks: int) -> int:
        """Entries of a leaf's table: a power of two up to 256 (any number of buckets for index "group")."""
        return 64

    @abstractmethod
    def initial(self, leaf: LeafView) -> Entries:
        """The table to begin with: [leaf.table_size] numbers of uplinks."""

    def update(self, leaf: LeafView, load: LeafLoad, entries: Entries, now_us: float) -> Entries:
        """The table for the next period.  `entries` is the current one and must not be written to."""
        return entries


def round_robin(leaf: LeafView) -> Entries:
    """Entry i leads to uplink i mod uplinks: as even as it gets."""
    return np.arange(leaf.table_size, dtype=np.int64) % leaf.uplinks


def check_entries(policy: Policy[Any], leaf: LeafView, entries: Entries) -> Entries:
    """What a policy handed back, as int64.  Raises LabError unless it is a table for this leaf."""
    table = np.asarray(entries)
    what = f"policy {policy.name}: the table of {leaf.name}"
    if table.shape != (leaf.table_size,):
        raise LabError(f"{what} has the shape {table.shape}, not ({leaf.table_size},)", "one uplink number an entry")
    if table.dtype.kind not in "iu":
        raise LabError(f"{what} holds {table.dtype}, not whole numbers", "numbers of uplinks, from 0")
    if table.min() < 0 or table.max() >= leaf.uplinks:
        bad = int(table.min() if table.min() < 0 else table.max())
        raise LabError(f"{what} names uplink {bad}", f"{leaf.name} has uplinks 0 to {leaf.uplinks - 1}")
    return table.astype(np.int64)


def check_table_size(policy: Policy[Any], uplinks: int) -> int:
    """Entries that the policy wants.  Raises LabError if the path bits cannot index so many."""
    size = policy.table_size(uplinks)
    power_of_two = size > 0 and size & (size - 1) == 0
    if not 1 <= size <= MAX_ENTRIES or not (power_of_two or policy.index == "group"):
        raise LabError(f"policy {policy.name}: a path table cannot have {size} entries",
                       f"a power of two up to {MAX_ENTRIES}")
    return size


def check_range(what: str, value: float, low: float, high: float) -> None:
    """Raise LabError unless low <= value <= high; for `__post_init__` of parameters."""
    if not low <= value <= high:
        raise LabError(f"{what} = {value:g} is out of range", f"from {low:g} to {high:g}")


def parse_parameters(policy: str, parameters: type[Any], values: Mapping[str, object]) -> Any:
    """`parameters(**values)`, with numbers taken from text where need be.  Raises LabError."""
    fields = {field.name: field for field in dataclasses.fields(parameters)}
    parsed = {}
    for name, value in values.items():
        if name not in fields:
            if not fields:
                raise LabError(f"policy {policy} has no parameter {name!r}", "it has none at all")
            raise unknown_name(f"parameter of policy {policy}", name, fields)
        parsed[name] = _convert(f"{policy}.{name}", value, type(fields[name].default))
    return parameters(**parsed)


def _convert(what: str, value: object, wanted: type) -> object:
    """`value` as a `wanted` (bool, int, float or str: the type of the default)."""
    if wanted is bool:
        words: dict[object, bool] = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if isinstance(value, bool):
            return value
        if str(value).lower() in words:
            return words[str(value).lower()]
        raise LabError(f"{what} = {value!r} is neither true nor false")
    if wanted in (int, float) and not isinstance(value, bool):
        try:
            number = float(str(value))
        except ValueError:
            number = math.nan
        if math.isfinite(number) and (wanted is float or number == int(number)):
            return wanted(number)
        raise LabError(f"{what} = {value!r} is not a {'whole ' if wanted is int else ''}number")
    if wanted is str and isinstance(value, str):
        return value
    raise LabError(f"{what} = {value!r} is not of type {wanted.__name__}")
