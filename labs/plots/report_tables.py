"""Tables of the report that are computed for it: what sets the runs apart, the headroom of PFC, the first events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labs.measure.stored import StoredRun
from labs.plots.panels import by_label, first_of_label
from topologies import headroom
from topologies.fabric import Fabric
from topologies.units import BYTES_PER_KB, mtu_frame_bytes

MAX_EVENTS = 50
_DCQCN = "dcqcn."
_PRESET = ""  # of a parameter that a run without DCQCN does not have


def differences(stored: StoredRun) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """(names of the keys of fabric and workload that are not the same in all runs, (label, their values) each)."""
    settings = {}
    for label, index in first_of_label(stored).items():
        run = stored.runs[index]
        faults = [event["text"] for event in run.get("faults", ()) if event.get("state") == "begin"]
        settings[label] = {**stored.fabric_of(index).spec.to_dict(), **_stated(run["workload"]),
                           "planted": "; ".join(faults) or "nothing"}
    keys = list(dict.fromkeys(key for values in settings.values() for key in values))
    keys = [key for key in keys if len({str(values.get(key, _PRESET)) for values in settings.values()}
                                       - ({_PRESET} if key.startswith(_DCQCN) else set())) > 1]
    return keys, [(label, [_short(values.get(key)) for key in keys]) for label, values in settings.items()]


def _stated(workload: Mapping[str, Any]) -> dict[str, Any]:
    """What a lab says of a workload, without what follows from it; DCQCN's parameters each by itself."""
    stated = {key: value for key, value in workload.items() if key not in ("ideal_us", "ranks", "groups", "rings")}
    parameters = stated.pop("dcqcn_params", {})
    return {**stated, **{f"{_DCQCN}{key}": value for key, value in parameters.items()}}


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
        return f"{len(value)} of its own"
    return "-" if value is None else str(value)


@dataclass(frozen=True)
class LinkHeadroom:
    """The computation for one kind of link."""

    title: str
    items: list[tuple[str, int]]  # SONiC's, down to the total
    physical_bytes: int  # the least that loses nothing here


@dataclass(frozen=True)
class LabelHeadroom:
    """What the runs of a label had and used."""

    label: str
    configured: str  # KB of a port and class
    used: str  # KB of the fullest switch
    drops: int


def headroom_links(stored: StoredRun) -> list[LinkHeadroom]:
    """Every kind of link into a switch of a fabric with PFC; empty without PFC."""
    found: dict[tuple[float, float, int], LinkHeadroom] = {}
    for fabric in stored.fabrics.values():
        if fabric.spec.flow_control != "pfc":
            continue
        for port in fabric.ports:
            if port.kind != "switch":
                continue
            far = fabric.peer(port)  # the link that brings what headroom is for
            rate_gbps, delay_us = fabric.clock.hardware_gbps(far.rate_bps), fabric.clock.hardware_us(far.delay_ns)
            key = (round(rate_gbps, 6), round(delay_us, 6), fabric.spec.mtu_bytes)
            if key not in found:
                frame_bytes = mtu_frame_bytes(fabric.spec.mtu_bytes)
                found[key] = LinkHeadroom(
                    f"{key[0]:g} Gb/s, {key[1]:g} us of cable, MTU {key[2]}",
                    headroom.of_link(key[0], key[1], key[2]).items(),
                    headroom.physical_bytes(key[0], key[1], frame_bytes))
    return list(found.values())


def headroom_labels(stored: StoredRun) -> list[LabelHeadroom]:
    """Configured and used headroom of the labels that were played with PFC."""
    found = []
    for label, runs in by_label(stored).items():
        fabric = stored.fabric_of(runs[0])
        if fabric.spec.flow_control != "pfc":
            continue
        peaks = {name: size for run in runs for name, size in run["headroom_peak_bytes"].items()}
        fullest = max(peaks, key=lambda name: peaks[name], default=None)
        used = f"{peaks[fullest] / BYTES_PER_KB:,.1f} ({fullest})" if fullest else "0"
        found.append(LabelHeadroom(label, _configured(fabric), used,
                                   sum(run["drops_by_reason"].get("headroom", 0) for run in runs)))
    return found


def _configured(fabric: Fabric) -> str:
    sizes = sorted({port.headroom_bytes for port in fabric.ports if port.kind == "switch"})
    return ", ".join(f"{size / BYTES_PER_KB:,.1f}" for size in sizes)


@dataclass(frozen=True)
class LabelEvents:
    """The first events of a label's first run."""

    label: str
    total: int
    rows: list[dict[str, Any]]


def first_events(stored: StoredRun) -> list[LabelEvents]:
    """Of each label that had any."""
    found = []
    for label, index in first_of_label(stored).items():
        table = stored.table("events", index)
        if len(table):
            found.append(LabelEvents(label, len(table), table.slice(0, MAX_EVENTS).to_pylist()))
    return found
