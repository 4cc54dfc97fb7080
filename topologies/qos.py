"""Classes, buffers, flow control and marking: the keys of a fabric for them, and what they mean for a switch.

`QosKeys` are the keys as a lab writes them, in hardware units; `SwitchQos` is what fabricd gets, in bytes and lab time.
Every key can be given for the whole fabric, and those of `PROFILE_KEYS` for single switches in `switch_profiles`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from topologies import headroom
from topologies.errors import LabError, nearest, unknown_name
from topologies.units import BYTES_PER_KB, LabClock, mtu_frame_bytes

AUTO: Literal["auto"] = "auto"
CLASSES = 8
DSCPS = 64
FLOW_CONTROLS = ("none", "pfc", "credits")
WATCHDOGS = ("off", "drop", "forward")
KB = "KB of 1,024 bytes"
CREDIT_UNIT_BYTES = 64
CREDIT_UNITS_MAX = 2048  # InfiniBand's 12-bit limit leaves a lane no more outstanding

# key: (smallest, largest, unit)
LIMITS: Mapping[str, tuple[float, float, str]] = {
    "xoff_kb": (1, 1_048_576, KB),
    "xoff_alpha": (0.001, 1024, ""),
    "xon_offset_kb": (0, 1_048_576, KB),
    "headroom_kb": (0, 1_048_576, KB),
    "lossless_share": (0.01, 0.99, ""),
    "credit_kb": (1, CREDIT_UNITS_MAX * CREDIT_UNIT_BYTES / BYTES_PER_KB, KB),
    "pause_quanta": (2, 65_535, "quanta of 512 bit times"),
    "ack_dscp": (1, DSCPS - 1, ""),
    "ecn_kmin_kb": (0, 1_048_576, KB),
    "ecn_kmax_kb": (0, 1_048_576, KB),
    "ecn_pmax": (0, 1, ""),
    "watchdog_poll_us": (1, 100_000_000, "us"),
    "watchdog_detect_us": (1, 100_000_000, "us"),
    "watchdog_restore_us": (1, 100_000_000, "us"),
}
# What a key takes beside numbers.
WORDS: Mapping[str, str | None] = {
    "xoff_kb": AUTO, "xon_offset_kb": AUTO, "headroom_kb": AUTO, "credit_kb": AUTO,
    "ecn_kmin_kb": None, "ecn_kmax_kb": None, "ack_dscp": None,
}  # fmt: skip
INTEGERS = ("pause_quanta", "ack_dscp")
PROFILE_KEYS = (
    "shared_buffer_kb", "alpha", "lossless_classes", "strict_classes", "ets_shares", "xoff_kb", "xoff_alpha",
    "xon_offset_kb", "headroom_kb", "lossless_share", "ecn_kmin_kb", "ecn_kmax_kb", "ecn_pmax", "watchdog",
    "watchdog_detect_us", "watchdog_restore_us",
)  # fmt: skip

# Frames: the static XOFF where there is no shared buffer, and how far below XOFF the peer may go on.
XOFF_AUTO_FRAMES = 8
XON_OFFSET_AUTO_FRAMES = 2


@dataclass(frozen=True, kw_only=True)
class QosKeys:
    """The keys of a fabric for classes, buffers and congestion.

    flow_control: on every link, for the lossless classes: none, pfc (802.1Qbb) or credits (as InfiniBand's).
    dscp_classes: DSCP -> traffic class 0..7; all others are in class 0.  RoCE is DSCP 26, its CNPs 48.
    ack_dscp: of the ACKs and NAKs that NICs send, so that they can be in a class of their own; None: that of the data.
    lossless_classes: those that flow control is for.  strict_classes: served before all others, the highest first.
    ets_shares: class -> weight 1..100 among the others (deficit round robin); 1 where nothing is said.
    xoff_kb: bytes charged to an ingress port and class at which its peer is told to stop; auto: dynamic,
        xoff_alpha times what is free of the lossless pool, or 8 full frames without a shared buffer.
    xon_offset_kb: so much below XOFF it may go on; auto: 2 full frames.
    headroom_kb: of each ingress port and lossless class, above XOFF; auto: `headroom.of_link`.
    lossless_share: of the shared buffer that headroom leaves, the rest is for lossy classes.
    credit_kb: buffer that a port advertises for each lane; auto: enough for line rate.
    pause_quanta: how long one PFC frame stops the peer, in 512 bit times; refreshed at half.
    ecn_kmin_kb, ecn_kmax_kb, ecn_pmax: marking at every egress queue of a switch but the strict ones; None: none.
    watchdog: what a switch does with a queue that PFC has stopped for watchdog_detect_us: off, drop or forward.
    switch_profiles: {"leaf2": {"ecn_kmin_kb": 3}}: keys of `PROFILE_KEYS` that are different at single switches.
    """

    flow_control: str = "none"
    dscp_classes: Mapping[int, int] = field(default_factory=lambda: {26: 3, 48: 6})
    ack_dscp: int | None = None
    lossless_classes: tuple[int, ...] = (3,)
    strict_classes: tuple[int, ...] = (6, 7)
    ets_shares: Mapping[int, int] = field(default_factory=dict)
    xoff_kb: float | Literal["auto"] = AUTO
    xoff_alpha: float = 0.125  # HPCC's shift of 3
    xon_offset_kb: float | Literal["auto"] = AUTO
    headroom_kb: float | Literal["auto"] = AUTO
    lossless_share: float = 0.6
    credit_kb: float | Literal["auto"] = AUTO
    pause_quanta: int = 65_535
    ecn_kmin_kb: float | None = None
    ecn_kmax_kb: float | None = None
    ecn_pmax: float = 0.01
    watchdog: str = "off"
    watchdog_poll_us: float = 200_000.0
    watchdog_detect_us: float = 200_000.0
    watchdog_restore_us: float = 200_000.0
    switch_profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def check_qos(self) -> None:
        """Normalises what is not a plain number.  Raises LabError for what is not possible."""
        for key, names in (("flow_control", FLOW_CONTROLS), ("watchdog", WATCHDOGS)):
            if getattr(self, key) not in names:
                raise unknown_name(key, str(getattr(self, key)), names)
        for key in ("lossless_classes", "strict_classes"):
            object.__setattr__(self, key, _classes(key, getattr(self, key)))
        every_class = (0, CLASSES - 1)
        for key, keys, values in (("dscp_classes", (0, DSCPS - 1), every_class), ("ets_shares", every_class, (1, 100))):
            object.__setattr__(self, key, _mapping(key, getattr(self, key), keys, values))
        for c in self.ets_shares:
            if c in self.strict_classes:
                raise LabError(f"ets_shares names class {c}, which is strict", "take it out of one of the two")
        if (self.ecn_kmin_kb is None) != (self.ecn_kmax_kb is None):
            raise LabError("ecn_kmin_kb and ecn_kmax_kb go together", "give both, or neither for no marking")
        if self.ecn_kmin_kb is not None and self.ecn_kmax_kb is not None and self.ecn_kmin_kb > self.ecn_kmax_kb:
            raise LabError(f"ecn_kmin_kb={self.ecn_kmin_kb:g} is above ecn_kmax_kb={self.ecn_kmax_kb:g}",
                           "Kmin is where marking begins, Kmax where every frame is marked")
        object.__setattr__(self, "switch_profiles", _profiles(self.switch_profiles, self.flow_control))

    @property
    def classes_in_use(self) -> tuple[int, ...]:
        """The traffic classes that frames can be in."""
        return tuple(sorted({0, *self.dscp_classes.values()}))


@dataclass(frozen=True)
class SwitchQos:
    """One switch's profile as fabricd gets it: bytes, lab time, classes as bit masks."""

    lossless_classes: int = 0
    strict_classes: int = 0
    ets_shares: tuple[int, ...] = (1,) * CLASSES
    lossy_pool_bytes: int = 0  # 0: none
    lossless_pool_bytes: int = 0
    xoff_bytes: int = 0  # 0: dynamic
    xoff_alpha: float = 1.0
    xon_offset_bytes: int = 0
    ecn_classes: int = 0  # 0: no marking
    ecn_kmin_bytes: int = 0
    ecn_kmax_bytes: int = 0
    ecn_pmax: float = 0.0
    watchdog: str = "off"
    watchdog_detect_ns: int = 0
    watchdog_restore_ns: int = 0


def mask(classes: Iterable[int]) -> int:
    """Bit c for class c."""
    return sum(1 << c for c in set(classes))


def headroom_bytes(keys: QosKeys, rate_gbps: float, delay_us: float, mtu_bytes: int) -> int:
    """Headroom of one lossless class of a port whose link has this rate and delay."""
    if isinstance(keys.headroom_kb, str):
        return headroom.of_link(rate_gbps, delay_us, mtu_bytes).total_bytes
    return round(keys.headroom_kb * BYTES_PER_KB)


def credit_bytes(keys: QosKeys, rate_gbps: float, delay_us: float, mtu_bytes: int) -> int:
    """Buffer that a port advertises for each lane.

    Auto: what is on the way there and back, four frames being sent and received, and the quarter of the buffer of which
    the peer is not told yet.
    """
    if isinstance(keys.credit_kb, str):
        needed = math.ceil((2 * delay_us * rate_gbps * 1e3 / 8 + 4 * mtu_frame_bytes(mtu_bytes)) * 4 / 3)
        return min(-(-needed // CREDIT_UNIT_BYTES), CREDIT_UNITS_MAX) * CREDIT_UNIT_BYTES
    return round(keys.credit_kb * BYTES_PER_KB) // CREDIT_UNIT_BYTES * CREDIT_UNIT_BYTES


def switch_qos(keys: QosKeys, *, name: str, shared_bytes: int, reserved_bytes: int, mtu_bytes: int,
               clock: LabClock) -> SwitchQos:
    """The profile of a switch with `shared_bytes` of buffer (0: none), of which headroom takes `reserved_bytes`.

    Raises LabError if headroom takes all of it.
    """
    lossless = keys.flow_control != "none"
    lossy_pool, lossless_pool = shared_bytes, 0
    if keys.flow_control == "pfc" and shared_bytes:
        if reserved_bytes >= shared_bytes:
            kb = [f"{size / BYTES_PER_KB:,.0f} KB" for size in (reserved_bytes, shared_bytes)]
            raise LabError(f"{name}: the headroom of its ports takes {kb[0]} of a shared buffer of {kb[1]}",
                           "a larger shared_buffer_kb, or a smaller headroom_kb")
        lossless_pool = round((shared_bytes - reserved_bytes) * keys.lossless_share)
        lossy_pool = shared_bytes - reserved_bytes - lossless_pool
    frame = mtu_frame_bytes(mtu_bytes)
    marks = keys.ecn_kmin_kb is not None and keys.ecn_kmax_kb is not None
    return SwitchQos(
        lossless_classes=mask(keys.lossless_classes) if lossless else 0, strict_classes=mask(keys.strict_classes),
        ets_shares=tuple(keys.ets_shares.get(c, 1) for c in range(CLASSES)),
        lossy_pool_bytes=lossy_pool, lossless_pool_bytes=lossless_pool,
        xoff_bytes=round(keys.xoff_kb * BYTES_PER_KB) if not isinstance(keys.xoff_kb, str)
        else 0 if lossless_pool else XOFF_AUTO_FRAMES * frame,
        xoff_alpha=keys.xoff_alpha,
        xon_offset_bytes=XON_OFFSET_AUTO_FRAMES * frame if isinstance(keys.xon_offset_kb, str)
        else round(keys.xon_offset_kb * BYTES_PER_KB),
        ecn_classes=mask(set(range(CLASSES)) - set(keys.strict_classes)) if marks else 0,
        ecn_kmin_bytes=round((keys.ecn_kmin_kb or 0) * BYTES_PER_KB),
        ecn_kmax_bytes=round((keys.ecn_kmax_kb or 0) * BYTES_PER_KB), ecn_pmax=keys.ecn_pmax,
        watchdog=keys.watchdog, watchdog_detect_ns=clock.lab_ns(keys.watchdog_detect_us),
        watchdog_restore_ns=clock.lab_ns(keys.watchdog_restore_us))


def parse(key: str, text: str) -> Any:
    """The value of a key that is not a number, from `--set key=text`: words, classes "3,4", mappings "26:3,48:6"."""
    if key in ("flow_control", "watchdog"):
        return text
    if key == "switch_profiles":
        raise LabError("switch_profiles cannot be set on the command line", "write it in lab.py")
    parts = [part for part in text.split(",") if part and text != "none"]
    try:
        if key in ("lossless_classes", "strict_classes"):
            return tuple(int(part) for part in parts)
        return {int(k): int(v) for k, v in (part.split(":") for part in parts)}
    except ValueError:
        example = "3,4" if key.endswith("_classes") and key != "dscp_classes" else "26:3,48:6"
        raise LabError(f"{key}={text}: not understood", f"write for example {key}={example}") from None


NOT_NUMBERS = (
    "flow_control", "watchdog", "lossless_classes", "strict_classes", "dscp_classes", "ets_shares", "switch_profiles",
)  # fmt: skip


def _classes(key: str, value: object) -> tuple[int, ...]:
    classes = (value,) if isinstance(value, int) else value
    if not isinstance(classes, (list, tuple, set, frozenset)):
        raise LabError(f"{key}={value!r} is not a list of classes", f"for example {key}=(3, 4)")
    for c in classes:
        if isinstance(c, bool) or not isinstance(c, int) or not 0 <= c < CLASSES:
            raise LabError(f"{key}={value!r}: {c!r} is not a class", f"0 to {CLASSES - 1}")
    return tuple(sorted(set(classes)))


def _mapping(key: str, value: object, keys: tuple[int, int], values: tuple[int, int]) -> dict[int, int]:
    if not isinstance(value, Mapping):
        raise LabError(f"{key}={value!r} is not a mapping", f"for example {key}={{26: 3}}")
    result = {}
    for k, v in value.items():
        # JSON has only strings for keys.
        number = int(k) if isinstance(k, str) and k.isdecimal() else k
        for what, (low, high) in ((number, keys), (v, values)):
            if isinstance(what, bool) or not isinstance(what, int) or not low <= what <= high:
                raise LabError(f"{key}: {k!r}: {v!r} is out of range",
                               f"{keys[0]} to {keys[1]}: {values[0]} to {values[1]}")
        result[number] = v
    return dict(sorted(result.items()))


def _profiles(value: object, flow_control: str) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping) or not all(isinstance(profile, Mapping) for profile in value.values()):
        raise LabError(f"switch_profiles={value!r} is not a mapping of switches",
                       'for example {"leaf2": {"ecn_kmin_kb": 3}}')
    for name, profile in value.items():
        for key in profile:
            if key not in PROFILE_KEYS:
                guess = nearest(str(key), PROFILE_KEYS)
                raise LabError(f"switch_profiles: {name}: {key!r} is not a key of a single switch",
                               f"did you mean {guess}?" if guess else f"one of: {', '.join(PROFILE_KEYS)}")
        if flow_control == "credits" and "lossless_classes" in profile:
            raise LabError(f"switch_profiles: {name}: lossless_classes cannot differ with credits",
                           "both ends of a link have to count the same lanes")
    return {str(name): dict(profile) for name, profile in value.items()}
