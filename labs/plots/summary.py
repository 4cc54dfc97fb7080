"""Two figures that sum a lab up: load and completion by label side by side, and measurement against theory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from labs.measure.stored import StoredRun
from labs.plots.panels import NoDataError, by_label, one_wiring, spaced, uplink_bars, uplink_labels
from labs.plots.style import INK, WARN, colours, new_figure, reference_line, top

AGREEMENT = 0.10  # a prediction within this share of the measurement agrees with it


def overview(stored: StoredRun) -> Figure:
    """A row a label: left how evenly its uplinks were loaded, right how long the job took, both over the ideal."""
    one_wiring(stored)
    runs = {label: runs for label, runs in by_label(stored).items()
            if any(run["jct_ratio"] is not None for run in runs)}
    if not runs:
        raise NoDataError("No run was finished.")
    runs = {label: runs[label] for label in spaced(list(runs))}
    if not any(sum(of_label[0]["uplink_bytes"].values()) for of_label in runs.values()):
        raise NoDataError("No byte crossed an uplink.")
    height = 1.75 + 0.86 * len(runs)
    seeds = {of_label[0]["seed"] for of_label in runs.values()}
    of_seed = f" (seed {seeds.pop()})" if len(seeds) == 1 else ""
    figure = new_figure(height, "How evenly links are loaded, and how long the job takes",
                        f"Left: load of each uplink over its leaf's fair share{of_seed}. Right: time over the ideal")
    grid = {"top": top(height) - 0.18 / height, "bottom": 0.62 / height, "hspace": 0.28}
    left = figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False,
                           gridspec_kw={**grid, "left": 0.125, "right": 0.55})[:, 0]
    right = figure.subplots(len(runs), 1, sharex=True, squeeze=False,
                            gridspec_kw={**grid, "left": 0.60, "right": 0.975})[:, 0]
    palette = colours(stored.labels)
    predicted = False
    for load, jct, (label, of_label) in zip(left, right, runs.items(), strict=True):
        first = of_label[0]["uplink_bytes"]
        relative: dict[str, float] = {}
        for leaf in stored.fabric.leaves():
            names = [stored.fabric.port_name(port.index) for port in stored.fabric.uplinks(leaf)]
            fair = max(1.0, sum(first[name] for name in names) / max(1, len(names)))
            relative |= {name: first[name] / fair for name in names}
        uplink_bars(load, stored, relative, palette[label])
        load.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=11, fontweight="bold",
                        color=palette[label], labelpad=8)
        load.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
        ratios = [run["jct_ratio"] for run in of_label if run["jct_ratio"] is not None]
        mean = float(np.mean(ratios))
        jct.barh([0], [mean], color=palette[label], height=0.62, alpha=0.85)
        points = [i["time_us"] / run["ideal_us"] for run in of_label for i in run["iterations"]
                  if i["time_us"] is not None and run["ideal_us"]]
        jct.plot(points, np.linspace(-0.16, 0.16, len(points)) if len(points) > 1 else [0.0], "o", markersize=4,
                 color="white", markeredgecolor=INK, markeredgewidth=0.8, zorder=3)
        factors = [run["predicted_factor"] for run in of_label if run.get("predicted_factor") is not None]
        if factors:
            predicted = True
            jct.plot([float(np.mean(factors))], [0.0], marker="D", markersize=8, color=WARN, markeredgecolor="white",
                     zorder=4, linestyle="none")
        invalid = not all(run["valid"] for run in of_label)
        cause = "INVALID" if invalid else dominant_cause(of_label)
        end = (max([mean, *points, *factors]), 0)
        jct.annotate(f"{mean:.2f}x", end, xytext=(9, 6 if cause else 0), textcoords="offset points", va="center",
                     fontsize=11, fontweight="bold", color=INK)
        if cause:
            jct.annotate(cause, end, xytext=(9, -8), textcoords="offset points", va="center", fontsize=8.5,
                         color=WARN if invalid else INK)
        jct.set_ylim(-0.55, 0.55)
        jct.set_yticks([])
        jct.tick_params(axis="x", length=0)
        jct.grid(visible=False, axis="y")
        jct.axvline(1.0, color=INK, linewidth=1.1, linestyle=(0, (4, 3)), zorder=1.5)
        jct.spines["left"].set_visible(False)
    right[0].set_xlim(0, 1.32 * max(axes.dataLim.x1 for axes in right))
    reference_line(right[0], 1.0, "ideal", vertical=True)
    right[-1].set_xlabel("completion time / ideal")
    uplink_labels(left[-1], stored)
    handles = [Line2D([], [], marker="o", linestyle="none", markerfacecolor="white", markeredgecolor=INK, markersize=5,
                      label="an iteration"),
               Line2D([], [], color=INK, linestyle=(0, (4, 3)), label="fair share, ideal")]
    if predicted:
        handles.append(Line2D([], [], marker="D", linestyle="none", color=WARN, markeredgecolor="white", markersize=8,
                              label="predicted from hash and table"))
    figure.legend(handles=handles, loc="upper right", ncols=1, bbox_to_anchor=(0.985, 1 - 0.02 / height), fontsize=8.5,
                  handlelength=1.6, labelspacing=0.3)
    return figure


def _averages(stored: StoredRun, label: str) -> str:
    """Mean over the seeds, beside the mean over all hashes that there are."""
    runs = [run for run in by_label(stored)[label] if run["jct_ratio"] is not None]
    measured, predicted = (float(np.mean([run[key] for run in runs])) for key in ("jct_ratio", "predicted_factor"))
    seeds = f"{label}, mean of {len(runs)} seeds" if len(runs) > 1 else label
    text = f"{seeds}: predicted {predicted:.2f}, measured {measured:.2f}"
    expected = runs[0].get("expected_factor")
    return text + (f". Mean over all possible hashes: {expected:.2f}" if expected is not None else "")


def dominant_cause(runs: Sequence[Mapping[str, Any]]) -> str:
    """The most frequent cause of lateness in the iterations of these runs, in a word; "" when nothing was wrong."""
    causes = Counter(i["straggler"]["cause"] for run in runs for i in run["iterations"])
    cause = causes.most_common(1)[0][0] if causes else "none"
    return "" if cause == "none" else str(cause).replace("_", " ")


def prediction(stored: StoredRun) -> Figure:
    """Each run's measured ratio over the one predicted from flow hash and path tables, with a band of 10 %."""
    points = {label: [(run["predicted_factor"], run["jct_ratio"], run["seed"]) for run in runs
                       if run.get("predicted_factor") is not None and run["jct_ratio"] is not None]
              for label, runs in by_label(stored).items()}
    points = {label: found for label, found in points.items() if found}
    if not points:
        raise NoDataError("No run's paths follow from a flow hash, so there is nothing to predict.")
    if sum(len(found) for found in points.values()) < 2:
        raise NoDataError("There is one prediction only: the table above shows it; play more seeds (--seeds 10).")
    figure = new_figure(4.2, "Predicted and measured", _averages(stored, next(iter(points))))
    axes = figure.add_axes((0.075, 0.13, 0.90, top(4.2) - 0.13))
    palette = colours(stored.labels)
    limit = 1.15 * max(max(x, y) for found in points.values() for x, y, _ in found)
    diagonal = np.array([0.0, limit])
    axes.fill_between(diagonal, diagonal * (1 - AGREEMENT), diagonal * (1 + AGREEMENT), color="#eef0f4", zorder=1)
    axes.plot(diagonal, diagonal, color=INK, linewidth=1.1, linestyle=(0, (4, 3)), zorder=1.5)
    for label, found in points.items():
        x, y, _ = zip(*found, strict=True)
        axes.plot(x, y, "o", color=palette[label], markeredgecolor="white", markersize=9, label=label, zorder=3)
        near: dict[tuple[float, float], list[str]] = {}  # seeds whose points would lie on each other
        for x_value, y_value, seed in found:
            near.setdefault((round(x_value, 2), round(y_value, 1)), []).append(str(seed))
        for (x_value, y_value), seeds in near.items():
            axes.annotate(", ".join(seeds), (x_value, y_value), xytext=(8, -3), textcoords="offset points", fontsize=8,
                          color=palette[label])
    axes.set_xlim(0.8, limit)
    axes.set_ylim(0.8, limit)
    axes.set_xlabel("predicted factor")
    axes.set_ylabel("measured time / ideal")
    axes.legend(loc="upper left", title="numbers: seeds; band: 10 %", title_fontsize=8.5, alignment="left")
    return figure
