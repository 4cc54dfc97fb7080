"""The figures of a run.  Each function draws what was measured, or raises NoDataError with what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from labs.measure.stored import StoredRun
from labs.plots.panels import (
    NoDataError,
    by_label,
    first_of_label,
    ideal_us,
    one_wiring,
    port_ticks,
    spaced,
    times_us,
    uplink_bars,
    uplink_labels,
    with_scale,
)
from labs.plots.style import DROP_COLOURS, FAINT, colours, new_figure, reference_line, top
from topologies.fabricd.telemetry import TraceKind

MAX_BARS = 12
FEW = 4  # labels of a legend that has room for three lines each
MAX_ROWS = 12  # of a heat map that still has room for the names of all ports


def iteration_cdf(stored: StoredRun) -> Figure:
    """Share of iterations that took at most so long, by label; all seeds together."""
    times = {label: np.sort(times_us(runs)) for label, runs in by_label(stored).items()}
    times = {label: times[label] for label in spaced([label for label, values in times.items() if len(values)])}
    if not times:
        raise NoDataError("No iteration was finished.")
    if all(len(values) == 1 for values in times.values()):
        raise NoDataError("There is one iteration of each kind of run only; the table shows its time.")
    def legend(label: str, values: npt.NDArray[np.float64]) -> str:
        between = "\n" if len(times) <= FEW else ", "
        return f"{label}\nmedian {np.median(values):,.0f} us{between}max {values[-1]:,.0f} us"

    figure = new_figure(3.9, "Iteration time",
                        with_scale(stored, "Share of iterations finished within a time"))
    axes = figure.add_axes((0.075, 0.14, 0.66, top(3.9) - 0.14))
    palette = colours(stored.labels)
    for label, values in times.items():
        if len(values):
            share = np.arange(1, len(values) + 1) / len(values)
            axes.step([values[0], *values], [0, *share], where="post", color=palette[label], linewidth=2.2,
                      label=legend(label, values), alpha=0.95)
            axes.plot(values, share, "o", color=palette[label], markersize=3.5)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("iteration time (us)")
    axes.set_ylabel("share of iterations")
    ideal = ideal_us(stored)
    if ideal:
        reference_line(axes, ideal, f"ideal {ideal:,.0f} us", vertical=True)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), labelspacing=0.9 if len(times) <= FEW else 0.5,
                fontsize=9 if len(times) <= FEW else 8)
    return figure


def iteration_times(stored: StoredRun) -> Figure:
    """Time of each iteration, one line a run; the warm-up hollow."""
    if all(len(run["iterations"]) + len(run.get("warmup_iterations", [])) < 2 for run in stored.runs):
        raise NoDataError("There is one iteration of each kind of run only; the table shows its time.")
    figure = new_figure(3.9, "Time of each iteration", with_scale(stored, "Hollow: warm-up, not counted"))
    axes = figure.add_axes((0.075, 0.14, 0.73, top(3.9) - 0.14))
    palette, drawn, shown = colours(stored.labels), set(), spaced(stored.labels)
    for run in stored.runs:
        if run["label"] not in shown:
            continue
        warmup, measured = run.get("warmup_iterations", []), run["iterations"]
        points = [(i["n"], i["time_us"]) for i in [*warmup, *measured] if i["time_us"] is not None]
        if not points:
            continue
        n, time_us = zip(*points, strict=True)
        label = run["label"]
        axes.plot(n, time_us, color=palette[label], linewidth=1.8, alpha=0.9 if label not in drawn else 0.35,
                  label=None if label in drawn else label, zorder=2)
        filled = np.array(n) >= len(warmup)
        axes.scatter(n, time_us, s=26, zorder=3, edgecolors=palette[label], linewidths=1.4,
                     facecolors=[palette[label] if full else "white" for full in filled])
        drawn.add(label)
    if not drawn:
        raise NoDataError("No iteration was finished.")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("iteration")
    axes.set_ylabel("time (us)")
    ideal = ideal_us(stored)
    if ideal:
        reference_line(axes, ideal, f"ideal {ideal:,.0f} us", vertical=False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02))
    return figure


def uplink_bytes(stored: StoredRun) -> Figure:
    """Bytes that each uplink carried, a panel a label, with the fair share of each leaf."""
    one_wiring(stored)
    runs = {label: runs[0] for label, runs in by_label(stored).items() if sum(runs[0]["uplink_bytes"].values())}
    runs = {label: runs[label] for label in spaced(list(runs))}
    if not runs:
        raise NoDataError("No byte crossed an uplink.")
    height = 1.15 + 1.25 * len(runs)
    figure = new_figure(height, "Bytes per uplink",
                        "The first seed. Dashed: a leaf's fair share, the same for all its uplinks")
    panels = figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False,
                             gridspec_kw={"left": 0.1, "right": 0.985, "top": top(height), "bottom": 0.55 / height,
                                          "hspace": 0.32})[:, 0]
    palette = colours(stored.labels)
    for axes, (label, run) in zip(panels, runs.items(), strict=True):
        uplink_bars(axes, stored, {name: count / 1e6 for name, count in run["uplink_bytes"].items()}, palette[label])
        axes.set_title(f"{label}   max/mean {run['mmr']:.2f}, Jain {run['jain']:.2f}", fontsize=9.5, pad=3)
        axes.set_ylabel("MB")
        axes.yaxis.set_major_locator(MaxNLocator(nbins=3))
    uplink_labels(panels[-1], stored)
    return figure


def queue_depth(stored: StoredRun) -> Figure:
    """Depth of the queues over time, a heat map a label, one colour scale for all.

    Rows are all uplinks, and what other switch ports ever held a tenth of the deepest queue of all.
    """
    one_wiring(stored)
    series = {}
    for label, index in first_of_label(stored).items():
        times, depths = stored.series(index)
        if len(times):
            series[label] = (times, depths)
    series = {label: series[label] for label in spaced(list(series))}
    peaks: dict[str, int] = {}
    for _, depths in series.values():
        for name, depth in depths.items():
            peaks[name] = max(peaks.get(name, 0), int(depth.max()))
    ports = [port for port in stored.fabric.ports if port.kind == "switch"]
    deepest = max((peaks.get(stored.fabric.port_name(port.index), 0) for port in ports), default=0)
    if not deepest:
        raise NoDataError("No switch's queue held a byte when it was sampled, or the series was not recorded.")
    ports = [port for port in ports
             if port.role == "uplink" or peaks.get(stored.fabric.port_name(port.index), 0) >= deepest / 10]
    names = [stored.fabric.port_name(port.index) for port in ports]
    peak_kb = deepest / 1024
    panel_in = max(0.9, (0.085 if len(names) > MAX_ROWS else 0.16) * len(names))
    height = 1.35 + (panel_in + 0.3) * len(series)
    figure = new_figure(height, "Queue depth of switch ports over time",
                        with_scale(stored, f"The first seed; darker is deeper, up to {peak_kb:,.0f} KB"))
    left = 0.14 if len(names) <= MAX_ROWS else 0.1
    panels = figure.subplots(len(series), 1, sharex=True, squeeze=False,
                             gridspec_kw={"left": left, "right": 0.9, "top": top(height), "bottom": 0.5 / height,
                                          "hspace": 0.3 / panel_in})[:, 0]
    longest = max(times[-1] for times, _ in series.values())
    image = None
    for axes, (label, (times, depths)) in zip(panels, series.items(), strict=True):
        grid = np.array([depths.get(name, np.zeros(len(times), np.int64)) for name in names]) / 1024
        edges = np.append(times, 2 * times[-1] - times[-2] if len(times) > 1 else times[-1] + 1)
        image = axes.pcolormesh(edges, np.arange(len(names) + 1), grid, cmap="Blues",
                                norm=PowerNorm(0.5, vmin=0, vmax=peak_kb), rasterized=True)
        axes.set_title(label, fontsize=9.5, pad=3)
        axes.invert_yaxis()
        axes.grid(visible=False)
        port_ticks(axes, [port.device for port in ports], names if len(names) <= MAX_ROWS else None)
        axes.set_xlim(0, longest)
    panels[-1].set_xlabel("time since the run's beginning (us)")
    if image is not None:
        bar = figure.colorbar(image, cax=figure.add_axes((0.92, 0.5 / height, 0.016, top(height) - 0.5 / height)))
        bar.set_label("queue (KB)")
    return figure


def drops(stored: StoredRun) -> Figure:
    """Packets dropped, by port and reason, a panel a label that dropped any."""
    found = {label: totals for label, runs in by_label(stored).items() if (totals := _drop_totals(runs))}
    if not found:
        raise NoDataError("Nothing was dropped, in any run.")
    found = {label: found[label] for label in spaced(list(found))}
    bars = [min(MAX_BARS, len(ports)) for ports in found.values()]
    height = 1.4 + sum(0.24 * count + 0.35 for count in bars)
    figure = new_figure(height, "Drops by port", "Packets dropped by the fabric, all seeds and iterations")
    panels = figure.subplots(len(found), 1, sharex=True, squeeze=False, height_ratios=[count + 1 for count in bars],
                             gridspec_kw={"left": 0.17, "right": 0.975, "top": top(height), "bottom": 0.5 / height,
                                          "hspace": 0.5})[:, 0]
    reasons = sorted({reason for ports in found.values() for totals in ports.values() for reason in totals})
    for axes, (label, ports) in zip(panels, found.items(), strict=True):
        worst = sorted(ports.items(), key=lambda item: -sum(item[1].values()))
        shown = worst[:MAX_BARS]
        left = np.zeros(len(shown))
        for reason in reasons:
            counts = np.array([totals.get(reason, 0) for _, totals in shown])
            axes.barh(range(len(shown)), counts, left=left, color=DROP_COLOURS.get(reason, FAINT), height=0.72)
            left += counts
        for row, total in enumerate(left):
            axes.annotate(f"{total:,.0f}", (total, row), xytext=(3, 0), textcoords="offset points", va="center",
                          fontsize=8)
        axes.set_yticks(range(len(shown)), [name for name, _ in shown])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        rest = f" (the worst {MAX_BARS} of {len(worst)} ports)" if len(worst) > len(shown) else ""
        axes.set_title(f"{label}: {sum(sum(t.values()) for _, t in worst):,} packets{rest}", fontsize=9.5, pad=3)
    panels[-1].set_xlabel("packets")
    figure.legend(handles=[Patch(color=DROP_COLOURS.get(reason, FAINT), label=reason.replace("_", " "))
                           for reason in reasons], loc="upper right", ncols=len(reasons))
    return figure


def path_changes(stored: StoredRun) -> Figure:
    """How often flows moved to another port, over time (first seed) and in all (mean over the seeds)."""
    runs_of = by_label(stored)
    totals = {label: [run["path_changes"] for run in runs] for label, runs in runs_of.items()}
    if not any(any(counts) for counts in totals.values()):
        raise NoDataError("No flow ever changed its path, in any run.")
    figure = new_figure(3.6, "Path changes",
                        with_scale(stored, "A flow left a switch by another port than the time before"))
    over_time = figure.add_axes((0.085, 0.155, 0.53, top(3.6) - 0.155))
    by_bar = figure.add_axes((0.75, 0.155, 0.225, top(3.6) - 0.155))
    palette = colours(stored.labels)
    for index, run in enumerate(stored.runs):
        if run is not runs_of[run["label"]][0]:
            continue
        trace = stored.trace(index)
        if len(trace):
            moved = trace["t_ns"][trace["kind"] == TraceKind.PATH]
            since_us = (np.append(moved, trace["t_ns"][-1]) - trace["t_ns"][0]) / 1e3 / stored.fabric_of(index).slowdown
            count = np.append(np.arange(1, len(moved) + 1), len(moved))
            over_time.step([0, *since_us], [0, *count], where="post", color=palette[run["label"]], linewidth=2)
    over_time.set_yscale("symlog", linthresh=10)
    over_time.set_ylim(bottom=0)
    over_time.set_xlim(left=0)
    over_time.set_xlabel("time since the first packet (us)")
    over_time.set_ylabel("changes so far")
    means = [float(np.mean(counts)) for counts in totals.values()]
    by_bar.barh(range(len(totals)), means, color=[palette[label] for label in totals], height=0.65)
    for row, mean in enumerate(means):
        by_bar.annotate(f"{mean:,.0f}", (mean, row), xytext=(3, 0), textcoords="offset points", va="center",
                        fontsize=8.5)
    by_bar.set_yticks(range(len(totals)), list(totals))
    by_bar.invert_yaxis()
    by_bar.set_xscale("symlog", linthresh=10)
    by_bar.set_xlim(0, max(means) * 100)
    by_bar.set_xticks([0, *(10**power for power in (2, 4, 6, 8) if 10**power <= max(means) * 10)])
    by_bar.grid(visible=False, axis="y")
    by_bar.set_xlabel("changes a run")
    return figure


def _drop_totals(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for run in runs:
        for port, reasons in run["drops_by_port"].items():
            for reason, count in reasons.items():
                of_port = totals.setdefault(port, {})
                of_port[reason] = of_port.get(reason, 0) + count
    return totals
