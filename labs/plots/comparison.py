"""One figure for labs about congestion: what each kind of run cost, measure by measure, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labs.measure.stored import StoredRun
from labs.plots.panels import NoDataError, by_label
from labs.plots.style import INK, WARN, WIDTH_IN, colours, new_figure, top

Run = Mapping[str, Any]
ROW_IN = 0.33


@dataclass(frozen=True)
class Measure:
    """One column: a number of each run (None: there is none), and how it is written beside its bar."""

    title: str
    value: Callable[[Run], float | None]
    text: Callable[[float], str]
    reference: float | None = None  # where a dashed line stands
    always: bool = False  # also when it is 0 in all runs


def worst_share(run: Run) -> float | None:
    """The smallest goodput of a flow over its fair share; None for what is no burst."""
    fair = run.get("fair_gbps", {})
    shares = [run["flow_gbps"][flow] / fair[flow] for flow in run["flow_gbps"] if fair.get(flow)]
    steps = run["workload"].get("collective") not in ("incast", "permutation", "transfers")
    return None if steps or not shares else min(shares)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


MEASURES = (
    Measure("completion\n/ ideal", lambda run: run["jct_ratio"], lambda value: f"{value:.2f}x", reference=1.0,
            always=True),
    Measure("slowest flow\n/ fair share", worst_share, lambda value: f"{value:.0%}", reference=1.0),
    Measure("packets\ndropped", lambda run: run["drops"], _count),
    Measure("packets\nsent again", lambda run: run["retransmitted_packets"], _count),
    Measure("ports paused\n(us)", lambda run: run["pause_us"], _us),
    Measure("no credits\n(us)", lambda run: run["credit_stall_us"], _us),
    Measure("ECN\nmarks", lambda run: run["marks"], _count),
    Measure("watchdog\nacted", lambda run: run["watchdogs"], _count),
    Measure("deepest\nqueue (KB)", lambda run: max(run["peak_queue_bytes"].values(), default=0) / 1024, _count),
)


def comparison(stored: StoredRun) -> Figure:
    """A row a label, a column a measure; means over the seeds, a dot a seed."""
    runs = by_label(stored)
    if len(runs) < 2:
        raise NoDataError("All runs are of one kind: there is nothing to compare.")
    shown = [measure for measure in MEASURES if measure.always
             or any(measure.value(run) for of_label in runs.values() for run in of_label)]
    height = 1.35 + ROW_IN * len(runs)
    but = ", but for the slowest flow's share" if any(measure.value is worst_share for measure in shown) else ""
    red = "" if all(run["valid"] for run in stored.runs) else ". Red: INVALID, proves nothing"
    figure = new_figure(height, "What each run cost", f"Mean over the seeds. Shorter is better{but}{red}")
    name_in = min(2.2, 0.25 + 0.082 * max(len(label) for label in runs))
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False, gridspec_kw={
        "left": name_in / WIDTH_IN, "right": 0.99, "top": top(height) - 0.12 / height, "bottom": 0.14 / height,
        "wspace": 0.14})[0]
    palette = colours(stored.labels)
    for axes, measure in zip(panels, shown, strict=True):
        _column(axes, measure, runs, palette)
    panels[0].set_yticks(range(len(runs)), list(runs), fontsize=9.5)
    for tick, label in zip(panels[0].get_yticklabels(), runs, strict=True):
        tick.set_color(palette[label] if all(run["valid"] for run in runs[label]) else WARN)
        tick.set_fontweight("bold")
    panels[0].set_ylim(len(runs) - 0.45, -0.55)
    return figure


def _column(axes: Axes, measure: Measure, runs: Mapping[str, Sequence[Run]], palette: Mapping[str, str]) -> None:
    means: list[float] = []
    for row, (label, of_label) in enumerate(runs.items()):
        values = [value for run in of_label if (value := measure.value(run)) is not None]
        mean = float(np.mean(values)) if values else 0.0
        means.append(mean)
        axes.barh([row], [mean], color=palette[label], height=0.66, alpha=0.85)
        if len(values) > 1:
            axes.plot(values, [row] * len(values), "o", markersize=2.6, color=INK, zorder=3, alpha=0.7)
        text, colour = (measure.text(mean), INK) if values else ("-", INK)
        if not values and measure.always:
            frozen = any(run["frozen"] for run in of_label)
            text, colour = "frozen" if frozen else "not finished", WARN
        if measure.always and not all(run["valid"] for run in of_label):
            colour = WARN
        axes.annotate(text, (max([mean, *values]), row), xytext=(4, 0), textcoords="offset points", va="center",
                      fontsize=8.5, color=colour, fontweight="bold" if measure.always else "normal",
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85})
    limit = max([*means, *(value for of_label in runs.values() for run in of_label
                           if (value := measure.value(run)) is not None)], default=0.0) or 1.0
    axes.set_xlim(0, limit * 1.7)
    if measure.reference is not None:
        axes.axvline(measure.reference, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1.5)
    axes.set_title(measure.title, fontsize=8.8, pad=4)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
