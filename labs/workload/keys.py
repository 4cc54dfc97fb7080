"""The keys of workloads: what each may be, and how `--set key=value` is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from topologies.errors import LabError, nearest

# key: (smallest, largest, unit, whole number)
LIMITS: Mapping[str, tuple[float, float, str, bool]] = {
    "size_bytes": (256, 1 << 28, "bytes", True),
    "slice_bytes": (256, 1 << 24, "bytes", True),
    "window_bytes": (1024, 1 << 28, "bytes", True),
    "qps_per_connection": (1, 16, "", True),
    "timeout_us": (1, 1e7, "us", False),
    "retry_count": (0, 7, "", True),
    "patience_us": (1, 1e9, "us", False),
    "admission_kb": (1, 1 << 20, "KB of 1,024 bytes", False),
    "compute_us": (0, 1e6, "us", False),
    "jitter_us": (0, 1e6, "us", False),
    "start_us": (0, 1e6, "us", False),
    "dscp": (1, 63, "", True),
    "seed": (0, 1 << 31, "", True),
}
OPTIONAL = ("patience_us", "admission_kb")  # None where nothing is said
FLOAT_BYTES = 4


def check_key(key: str, known: Iterable[str], what: str) -> None:
    """Raises LabError, with the nearest valid name, unless `key` is one of `known`."""
    names = list(known)
    if key not in names:
        guess = nearest(key, names)
        raise LabError(f"unknown key {key!r} of {what}",
                       f"did you mean {guess}?" if guess else f"one of: {', '.join(names)}")


def check_number(key: str, value: object) -> None:
    """Raises LabError unless `value` is within the limits of `key`."""
    if value is None and key in OPTIONAL:
        return
    low, high, _unit, whole = LIMITS[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise LabError(f"{key}={value!r} is not a number", _permitted(key))
    if whole and not isinstance(value, int):
        raise LabError(f"{key}={value!r} is not a whole number", _permitted(key))
    if not low <= value <= high:
        raise LabError(f"{key}={value:g} is out of range", _permitted(key))


def check_size(key: str, value: int) -> None:
    """Raises LabError unless `value` is a possible size of a message of float32."""
    check_number("size_bytes", value)
    if value % FLOAT_BYTES:
        raise LabError(f"{key}={value} is not a whole number of float32", "a multiple of 4")


def parse(key: str, text: str) -> Any:
    """The value of `--set key=text`, of a key that is in LIMITS; others stay text."""
    if key not in LIMITS:
        return text
    if key in OPTIONAL and text.lower() == "none":
        return None
    try:
        return int(text) if LIMITS[key][3] else float(text)
    except ValueError:
        unit = LIMITS[key][2]
        remedy = f"the unit is in the name of the key ({unit}): write only the number; " if unit else ""
        raise LabError(f"{key}={text}: {text!r} is not a {'whole ' if LIMITS[key][3] else ''}number",
                       remedy + _permitted(key)) from None


def _permitted(key: str) -> str:
    low, high, unit, _whole = LIMITS[key]
    return f"{key} takes {low:,g} to {high:,.0f}" + (f" {unit}" if unit else "")
