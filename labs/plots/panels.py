"""What several figures share: the runs by label, and panels with one bar or row for each uplink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from labs.measure.stored import StoredRun
from labs.plots.style import GRID, INK

MAX_PANELS = 8  # of a figure with a panel a label


class NoDataError(Exception):
    """A figure cannot be drawn; the message says what is missing, as a sentence for the reader."""


def by_label(stored: StoredRun) -> dict[str, list[dict[str, Any]]]:
    """The runs of each label, in order of playing; they differ by their seeds."""
    return {label: [run for run in stored.runs if run["label"] == label] for label in stored.labels}


def first_of_label(stored: StoredRun) -> dict[str, int]:
    """Index of the first run of each label."""
    return {label: next(index for index, run in enumerate(stored.runs) if run["label"] == label)
            for label in stored.labels}


def spaced(labels: Sequence[str], most: int = MAX_PANELS) -> list[str]:
    """At most so many of them, first and last among them, the others evenly between."""
    if len(labels) <= most:
        return list(labels)
    return [labels[round(at)] for at in np.linspace(0, len(labels) - 1, most)]


def one_wiring(stored: StoredRun) -> None:
    """Raises NoDataError unless the uplinks of all runs are the same, so that they fit on one axis."""
    names = [[fabric.port_name(port.index) for leaf in fabric.leaves() for port in fabric.uplinks(leaf)]
             for fabric in stored.fabrics.values()]
    if any(of_fabric != names[0] for of_fabric in names):
        raise NoDataError("The runs were played on fabrics of different shape, whose uplinks do not compare.")
    if not names[0]:
        raise NoDataError("The fabric has no uplinks.")


def times_us(runs: Sequence[Mapping[str, Any]]) -> npt.NDArray[np.float64]:
    return np.array([i["time_us"] for run in runs for i in run["iterations"] if i["time_us"] is not None], dtype=float)


def ideal_us(stored: StoredRun) -> float | None:
    return next((run["ideal_us"] for run in stored.runs if run["ideal_us"]), None)


def with_scale(stored: StoredRun, text: str) -> str:
    return f"{text}. Hardware time, played {stored.fabric.slowdown:,.0f} times slower"


def uplink_bars(axes: Axes, stored: StoredRun, loads: Mapping[str, float], colour: str) -> None:
    """A bar an uplink, leaf by leaf, and a dashed line at each leaf's mean."""
    position = 0.0
    for leaf in stored.fabric.leaves():
        values = [loads.get(stored.fabric.port_name(port.index), 0.0) for port in stored.fabric.uplinks(leaf)]
        at = position + np.arange(len(values))
        axes.bar(at, values, color=colour, width=0.82)
        mean = float(np.mean(values)) if values else 0.0
        axes.plot([at[0] - 0.5, at[-1] + 0.5], [mean, mean], color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        position += len(values) + 0.8
    axes.grid(visible=False, axis="x")
    axes.margins(x=0.01)
    axes.tick_params(axis="x", length=0)


def uplink_labels(axes: Axes, stored: StoredRun) -> None:
    """Leaf names below the groups of bars, spine numbers below the bars where there is room."""
    ticks, labels, position = [], [], 0.0
    few = sum(len(stored.fabric.uplinks(leaf)) for leaf in stored.fabric.leaves()) <= 40
    for leaf in stored.fabric.leaves():
        uplinks = stored.fabric.uplinks(leaf)
        for number, port in enumerate(uplinks):
            middle = number == (len(uplinks) - 1) // 2
            ticks.append(position + number)
            spine = stored.fabric.peer(port).device.removeprefix("spine") if few else ""
            labels.append(spine + (f"\n{leaf.name}" if middle else ""))
        position += len(uplinks) + 0.8
    axes.set_xticks(ticks, labels)
    axes.tick_params(axis="x", length=0)
    if few:
        axes.set_xlabel("spine, by leaf", fontsize=9)


def port_ticks(axes: Axes, devices: Sequence[str], names: Sequence[str] | None) -> None:
    """Rows of ports: the name of each, or, without names, of each device at the middle of its rows."""
    edges = [row for row in range(1, len(devices)) if devices[row] != devices[row - 1]]
    for row in edges:
        axes.axhline(row, color=GRID, linewidth=0.8)
    if names is not None:
        axes.set_yticks([row + 0.5 for row in range(len(names))], list(names), fontsize=8)
    else:
        bounds = [0, *edges, len(devices)]
        axes.set_yticks([(begin + end) / 2 for begin, end in pairwise(bounds)],
                        [devices[begin] for begin in bounds[:-1]])
    axes.tick_params(axis="y", length=0)
