"""FabricSpec: what a fabric is, in hardware units; validated once, frozen from then on."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from topologies import qos
from topologies.errors import LabError, nearest, unknown_name
from topologies.qos import AUTO, QosKeys
from topologies.shapes import SHAPES
from topologies.units import LabClock

# key: (smallest, largest, unit).  The metadata in the MACs has eight bits for a switch's port, and the names of
# Linux interfaces have 15 characters: hence the limits of the counts.
LIMITS: Mapping[str, tuple[float, float, str]] = {
    "leaves": (1, 64, ""),
    "spines": (1, 64, ""),
    "hosts_per_leaf": (1, 64, ""),
    "link_gbps": (0.001, 10_000, "Gb/s"),
    "uplink_gbps": (0.001, 10_000, "Gb/s"),
    "link_delay_us": (0, 1_000_000, "us"),
    "mtu_bytes": (256, 4096, "bytes"),
    "buffer_kb": (1, 1_048_576, "KB of 1,024 bytes"),
    "shared_buffer_kb": (0, 1_048_576, "KB of 1,024 bytes"),
    "alpha": (0.001, 1024, ""),
    "host_buffer_kb": (1, 1_048_576, "KB of 1,024 bytes"),
    "flowlet_gap_us": (0.001, 1_000_000, "us"),
    "hash_seed": (0, 65_535, ""),
    "slowdown": (1, 10_000_000, ""),
    **qos.LIMITS,
}
# What a key takes beside numbers.
WORDS: Mapping[str, str | None] = {"spines": None, "uplink_gbps": None, "slowdown": AUTO, **qos.WORDS}
MTUS_BYTES = (256, 512, 1024, 2048, 4096)  # the path MTUs that RoCE knows
MAX_HOSTS = 1024
DEFAULT_SPINES = 2

# Where somebody coming from another tool looks first; difflib would not find these.
_ALIASES = {"mtu": "mtu_bytes", "buffer": "buffer_kb", "bw": "link_gbps", "bandwidth": "link_gbps", "rate": "link_gbps",
            "delay": "link_delay_us", "latency": "link_delay_us", "hosts": "hosts_per_leaf", "seed": "hash_seed",
            "pfc": "flow_control", "kmin": "ecn_kmin_kb", "kmax": "ecn_kmax_kb", "pmax": "ecn_pmax"}


@dataclass(frozen=True)
class FabricSpec(QosKeys):
    """A fabric of identical links.

    shape: a key of `topologies.shapes.SHAPES`; it says which of the counts it has.
    leaves: switches with hosts.  spines: None where the shape has none (where it has them, None stands for 2).
    link_gbps: rate of a host's link; uplink_gbps: of a link between switches (None: the same).
    link_delay_us: propagation, each direction of each link.
    mtu_bytes: RoCE path MTU (payload of a packet).
    buffer_kb: egress buffer of each switch port; host_buffer_kb: of each NIC.
    shared_buffer_kb: a pool for each switch, in which a queue may hold `alpha` times what is free; 0: none.
    flowlet_gap_us: a pause longer than this begins a new flowlet (SAI's ARS default is 256 us).
    hash_seed: every switch derives its own seed from it.
    slowdown: lab time over hardware time, or "auto": the smallest that the machine sustains (see `calibrate`).
    Classes, flow control, buffers of lossless classes and marking: see `qos.QosKeys`.

    Raises LabError for any value that is not possible, naming key, value and what is permitted.
    """

    shape: str = "leaf_spine"
    leaves: int = 2
    spines: int | None = None
    hosts_per_leaf: int = 2
    link_gbps: float = 100.0
    uplink_gbps: float | None = None
    link_delay_us: float = 0.5
    mtu_bytes: int = 4096
    buffer_kb: float = 2048.0
    shared_buffer_kb: float = 0.0
    alpha: float = 1.0
    host_buffer_kb: float = 1024.0
    flowlet_gap_us: float = 256.0
    hash_seed: int = 1
    slowdown: float | Literal["auto"] = AUTO

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise unknown_name("shape", str(self.shape), SHAPES)
        sizes = SHAPES[self.shape].SIZES
        if self.spines is None and "spines" in sizes:
            object.__setattr__(self, "spines", DEFAULT_SPINES)
        if self.spines is not None and "spines" not in sizes:
            raise LabError(f"spines={self.spines}: a {self.shape} has no spines", "leave it out, or say spines=none")
        for key in LIMITS:
            value = getattr(self, key)
            if key in WORDS and value == WORDS[key]:
                continue
            _check_number(key, value, integer=_is_integer(key))
            if not _is_integer(key):
                object.__setattr__(self, key, float(value))
        for key, least in sizes.items():
            if getattr(self, key) < least:
                raise LabError(f"{key}={getattr(self, key)} is out of range", f"a {self.shape} takes at least {least}")
        if self.mtu_bytes not in MTUS_BYTES:
            raise LabError(f"mtu_bytes={self.mtu_bytes}: RoCE has no such path MTU",
                           f"one of {', '.join(map(str, MTUS_BYTES))}")
        if self.hosts > MAX_HOSTS:
            raise LabError(f"leaves={self.leaves} with hosts_per_leaf={self.hosts_per_leaf} are {self.hosts} hosts",
                           f"at most {MAX_HOSTS}")
        self.check_qos()
        for name in self.switch_profiles:
            self.of_switch(name)

    def of_switch(self, name: str) -> FabricSpec:
        """The spec with one switch's own profile in place of the fabric's keys."""
        if name not in self.switch_profiles:
            return self
        return dataclasses.replace(self, **self.switch_profiles[name], switch_profiles={})

    @property
    def hosts(self) -> int:
        """Hosts of the whole fabric."""
        return self.leaves * self.hosts_per_leaf

    @property
    def uplinks_per_leaf(self) -> int:
        """By how many links a leaf sends to the others: one a spine; in a ring there is one, clockwise."""
        return 1 if self.spines is None else self.spines

    @property
    def uplink_rate_gbps(self) -> float:
        """Rate of a link between switches, in Gb/s of hardware."""
        return self.link_gbps if self.uplink_gbps is None else self.uplink_gbps

    @property
    def clock(self) -> LabClock:
        """The converter to lab time.  Raises LabError while `slowdown` is still "auto"."""
        if isinstance(self.slowdown, str):
            raise LabError("slowdown is still 'auto'", "replace it by a number first: calibrate.resolve(spec)")
        return LabClock(self.slowdown)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FabricSpec:
        """A spec from plain values, e.g. out of JSON.  Raises LabError for a key that it does not know."""
        for key in values:
            _check_key(key)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The plain values of the keys that the shape has, for JSON; `from_dict` turns them back."""
        unused = {"spines"} - SHAPES[self.shape].SIZES.keys()
        return {key: value for key, value in dataclasses.asdict(self).items() if key not in unused}

    def replace(self, **values: Any) -> FabricSpec:
        """A copy with some values changed, and everything checked again."""
        for key in values:
            _check_key(key)
        return dataclasses.replace(self, **values)

    def with_overrides(self, settings: Iterable[str]) -> FabricSpec:
        """A copy with "key=value" strings applied, as given to `--set`."""
        values = dict(_parse_setting(setting) for setting in settings)
        return dataclasses.replace(self, **values)


KEYS = tuple(field.name for field in dataclasses.fields(FabricSpec))


def _is_integer(key: str) -> bool:
    return key in ("leaves", "spines", "hosts_per_leaf", "mtu_bytes", "hash_seed", *qos.INTEGERS)


def _permitted(key: str) -> str:
    low, high, unit = LIMITS[key]
    text = f"{low:,g} to {high:,g}" if high < 1e6 else f"{low:,g} to {high:,.0f}"
    text += f" {unit}" if unit else ""
    return text + (f", or {WORDS[key] or 'none'}" if key in WORDS else "")


def _check_number(key: str, value: object, *, integer: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise LabError(f"{key}={value!r} is not a number", f"{key} takes {_permitted(key)}")
    if integer and not isinstance(value, int):
        raise LabError(f"{key}={value!r} is not a whole number", f"{key} takes {_permitted(key)}")
    low, high, _unit = LIMITS[key]
    if not low <= value <= high:
        raise LabError(f"{key}={value:g} is out of range", f"{key} takes {_permitted(key)}")


def _check_key(key: str) -> None:
    if key in KEYS:
        return
    guess = _ALIASES.get(key.lower()) or nearest(key, KEYS)
    raise LabError(f"unknown key {key!r} of a fabric",
                   f"did you mean {guess}?" if guess else f"one of: {', '.join(KEYS)}")


def _parse_setting(setting: str) -> tuple[str, Any]:
    key, equals, text = (part.strip() for part in setting.partition("="))
    if not equals or not key or not text:
        raise LabError(f"{setting!r} is not a setting", "write key=value, for example buffer_kb=64")
    _check_key(key)
    if key == "shape":
        return key, text
    if key in WORDS and text.lower() == str(WORDS[key]).lower():
        return key, WORDS[key]
    if key in qos.NOT_NUMBERS:
        return key, qos.parse(key, text)
    try:
        return key, int(text) if _is_integer(key) else float(text)
    except ValueError:
        raise LabError(f"{key}={text}: {text!r} is not a {'whole ' if _is_integer(key) else ''}number",
                       _number_remedy(key, text)) from None


def _number_remedy(key: str, text: str) -> str:
    """What to write instead of a number with a unit behind it ("64kb", "100G"), or with digits grouped ("1,000")."""
    grouped = text.replace(",", "").replace("_", "")
    if re.fullmatch(r"-?\d+(\.\d+)?", grouped) and not (_is_integer(key) and float(grouped) % 1):
        return f"write {key}={float(grouped):g}"
    number = re.match(r"-?\d+(\.\d+)?", text)
    unit = LIMITS[key][2]
    if number and unit:
        return f"the unit is in the name of the key ({unit}): write only the number, for example {key}={number[0]}"
    return f"{key} takes {_permitted(key)}"
