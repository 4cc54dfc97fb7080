"""Figures over time: how fast each flow was and what the queue did meanwhile, and which port was stopped when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from labs.measure import rates
from labs.measure.evidence import Evidence
from labs.measure.raw import RawIteration
from labs.measure.spans import spans
from labs.measure.stored import StoredRun
from labs.plots.panels import NoDataError, first_of_label, spaced, with_scale
from labs.plots.style import (
    FAINT,
    FLOW_COLOURS,
    INK,
    PAUSE_COLOUR,
    STALL_COLOUR,
    WARN,
    WATCHDOG_COLOUR,
    colours,
    new_figure,
    top,
)
from topologies.fabric import Fabric
from topologies.fabricd.telemetry import TraceKind
from topologies.units import BYTES_PER_KB

MAX_PANELS = 6
MAX_NAMED = 8  # flows with a colour and a name of their own
MAX_PORTS = 16
FAULT_ALPHA = 0.35
POINTS = 150  # of a line
LEAST_PACKETS = 5  # of a flow at its fair share in one bin


@dataclass(frozen=True)
class Window:
    """The first measured iteration of a run: what the figures over time show."""

    label: str
    index: int
    evidence: Evidence
    iteration: RawIteration
    end_ns: int

    @property
    def length_us(self) -> float:
        return float(self.us(self.end_ns))

    def us(self, t_ns: Any) -> Any:
        """Hardware us after the common instant."""
        return (t_ns - self.iteration.start_ns) / 1e3 / self.evidence.fabric.slowdown


def windows(stored: StoredRun, labels: Iterable[str]) -> list[Window]:
    """Of the first run of each of these labels that measured anything."""
    found = []
    for label, index in first_of_label(stored).items():
        if label not in labels:
            continue
        evidence = stored.evidence(index)
        measured = [iteration for iteration in evidence.iterations if not iteration.warmup]
        if measured:
            end_ns = rates.iteration_end_ns(evidence, measured[0])
            found.append(Window(label, index, evidence, measured[0], end_ns))
    return found


def shared_us(row: Window, rows: Sequence[Window]) -> float:
    """Where the time axis of a row ends: where that of the longest does, unless nothing of the row were left to see."""
    longest_us = max(other.length_us for other in rows)
    return longest_us if longest_us <= 3 * row.length_us else row.length_us




def flow_rates(stored: StoredRun) -> Figure:
    """A row a label: left the throughput of every flow and what DCQCN allows it, right the deepest queue meanwhile."""
    measured = [label for label, index in first_of_label(stored).items() if stored.runs[index]["flow_gbps"]]
    rows = windows(stored, spaced(measured, MAX_PANELS))
    rows = [row for row in rows if len(rates.arrivals(row.evidence, row.iteration, sorted(row.evidence.roles)))]
    if not rows:
        raise NoDataError("No data packet arrived in a measured iteration.")
    height = 1.4 + 1.55 * len(rows)
    some = "" if len(rows) == len(stored.labels) else f" ({len(rows)} of {len(stored.labels)} kinds of run)"
    figure = new_figure(height, "Throughput of each flow, and the deepest queue",
                        with_scale(stored, f"First measured iteration, first seed{some}"))
    grid = {"top": top(height) - 0.12 / height, "bottom": 0.52 / height, "hspace": 0.42}
    left = figure.subplots(len(rows), 1, squeeze=False, gridspec_kw={**grid, "left": 0.075, "right": 0.60})[:, 0]
    right = figure.subplots(len(rows), 1, squeeze=False, gridspec_kw={**grid, "left": 0.725, "right": 0.985})[:, 0]
    palette = colours(stored.labels)
    limited = False
    for throughput, queue, row in zip(left, right, rows, strict=True):
        limited |= _throughput(throughput, row)
        _deepest_queue(queue, stored, row)
        throughput.set_title(row.label, fontsize=10, pad=4, color=palette[row.label])
        throughput.set_ylabel("Gb/s")
        for axes in (throughput, queue):
            axes.set_xlim(0, shared_us(row, rows))
    for axes in (left[-1], right[-1]):
        axes.set_xlabel("time since the common start (us)")
    handles = [Line2D([], [], color=INK, linewidth=1.1, linestyle=(0, (4, 3)), label="fair share")]
    if limited:
        handles.append(Line2D([], [], color=FAINT, linewidth=1.0, linestyle=":", label="DCQCN's rate"))
    figure.legend(handles=handles, loc="upper right", ncols=2, bbox_to_anchor=(0.985, 1 - 0.02 / height), fontsize=8.5)
    return figure


def _throughput(axes: Axes, row: Window) -> bool:
    """Draws a panel; whether a rate limit is among the lines."""
    evidence, flows = row.evidence, sorted(row.evidence.roles)
    fair = rates.fair_gbps(evidence, flows)
    least_us = rates.bin_us_for(fair, evidence.fabric.spec.mtu_bytes) * LEAST_PACKETS / rates.PACKETS_A_BIN
    series = rates.throughput(evidence, row.iteration, flows, max(least_us, row.length_us / POINTS))
    limits = rates.rate_limits(evidence, row.iteration, flows)
    few = len(flows) <= MAX_NAMED
    for at, flow in enumerate(flows if few else ()):
        colour = FLOW_COLOURS[at % len(FLOW_COLOURS)]
        last = int(np.flatnonzero(series.gbps[at])[-1]) + 1 if series.gbps[at].any() else 0
        axes.step(series.edges_us[: last + 1], np.append(series.gbps[at][:last], 0.0), where="post", color=colour,
                  linewidth=1.5, alpha=0.95, label=evidence.flow_name(flow).split(" (")[0])
        if flow in limits:
            at_us, gbps = limits[flow]
            axes.step(at_us, gbps, where="post", color=colour, linewidth=1.0, linestyle=":", alpha=0.9)
    if not few:  # more lines than an eye can follow
        for low, high, alpha in ((0, 100, 0.22), (25, 75, 0.4)):
            least, most = np.percentile(series.gbps, (low, high), axis=0)
            axes.fill_between(series.edges_us, np.append(least, least[-1]), np.append(most, most[-1]), step="post",
                              color=FLOW_COLOURS[0], alpha=alpha, linewidth=0)
        mean = series.gbps.mean(axis=0)
        axes.step(series.edges_us, np.append(mean, mean[-1]), where="post", color=FLOW_COLOURS[0], linewidth=1.5)
    for value in np.unique(np.round(fair[fair > 0], 1)):
        axes.axhline(value, color=INK, linewidth=1.1, linestyle=(0, (4, 3)), zorder=1.5)
    axes.set_ylim(0, 1.12 * max(float(series.gbps.max()), float(fair.max())))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    if few:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7.5, handlelength=1.0, labelspacing=0.15,
                    borderaxespad=0.2)
    else:
        axes.annotate(f"{len(flows)} flows:\nmean, half\nof them, all", (1.01, 0.5), xycoords="axes fraction",
                      fontsize=7.5, va="center")
    return few and bool(limits)


def _deepest_queue(axes: Axes, stored: StoredRun, row: Window) -> None:
    """The switch port with the deepest queue in this iteration, with the thresholds that act on it."""
    fabric = row.evidence.fabric
    times_us, depths = stored.series(row.index)
    if len(times_us):
        times_us = times_us - (row.iteration.start_ns - _run_start_ns(stored, row)) / 1e3 / fabric.slowdown
    at_us = times_us
    inside = (at_us >= 0) & (at_us <= row.length_us)
    peaks = {name: int(depth[inside].max()) for name, depth in depths.items() if inside.any()}
    switch_ports = {fabric.port_name(port.index): port for port in fabric.ports if port.kind == "switch"}
    name = max((name for name in peaks if name in switch_ports), key=lambda name: peaks[name], default=None)
    if name is None:
        axes.set_title("no queue was seen", fontsize=8.5, pad=4, fontweight="normal")
        axes.set_ylim(0, 1)
        return
    depth_kb = depths[name][inside] / BYTES_PER_KB
    axes.fill_between(at_us[inside], depth_kb, color=FAINT, alpha=0.35, linewidth=0, step="post")
    axes.step(at_us[inside], depth_kb, color=INK, linewidth=0.9, where="post")
    peak_kb = peaks[name] / BYTES_PER_KB
    qos = fabric.switches[switch_ports[name].node].qos
    if qos.ecn_classes:
        low, high = qos.ecn_kmin_bytes / BYTES_PER_KB, qos.ecn_kmax_bytes / BYTES_PER_KB
        axes.axhspan(low, max(high, low * 1.01), color="#009E73", alpha=0.16, linewidth=0)
        for value, text in ((low, "Kmin"), (high, "Kmax")):
            if value <= 1.2 * peak_kb:
                axes.annotate(text, (1.0, value), xycoords=("axes fraction", "data"), xytext=(-2, 1), fontsize=7,
                              textcoords="offset points", ha="right", va="bottom", color="#0b6b50")
    limit_kb = switch_ports[name].buffer_bytes / BYTES_PER_KB
    if not qos.lossless_classes and limit_kb <= 1.2 * peak_kb:
        axes.axhline(limit_kb, color=WARN, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.annotate("full", (1.0, limit_kb), xycoords=("axes fraction", "data"), xytext=(-2, 1), fontsize=7,
                      textcoords="offset points", ha="right", va="bottom", color=WARN)
    axes.set_ylim(0, 1.25 * max(1.0, peak_kb))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.set_title(f"queue {name} (KB)", fontsize=8.5, pad=4, fontweight="normal")


def _run_start_ns(stored: StoredRun, row: Window) -> int:
    """Lab time at which the clock of a run's series stands at 0."""
    table = stored.table("series", row.index)
    t_ns, t_us = int(table["t_ns"][0].as_py()), float(table["t_us"][0].as_py())
    return round(t_ns - t_us * 1e3 * row.evidence.fabric.slowdown)


@dataclass(frozen=True)
class Held:
    """Spans in which ports were stopped, of one kind, cut to a window; hardware us."""

    colour: str
    text: str
    ports: npt.NDArray[np.int64]
    begin_us: npt.NDArray[np.float64]
    end_us: npt.NDArray[np.float64]


KINDS = (
    (TraceKind.PAUSED, PAUSE_COLOUR, "stopped by PFC"),
    (TraceKind.CREDIT_STALL, STALL_COLOUR, "without credits"),
    (TraceKind.WATCHDOG, WATCHDOG_COLOUR, "watchdog acts"),
)


def held_in(row: Window) -> list[Held]:
    """What held ports in the window of a run, kind by kind; kinds that did not occur left out."""
    found: list[Held] = []
    for kind, colour, text in KINDS:
        rows = spans(row.evidence.trace, kind, row.end_ns)
        begin_us = np.maximum(0.0, row.us(rows["begin_ns"]))
        end_us = np.minimum(row.length_us, row.us(rows["end_ns"]))
        inside = end_us > begin_us
        if inside.any():
            found.append(Held(colour, text, rows["port"][inside].astype(np.int64), begin_us[inside], end_us[inside]))
    return found


def pauses(stored: StoredRun) -> Figure:
    """A panel a label with pauses or credit stalls: which port was stopped when, the longest first; faults as marks."""
    concerned = [label for label, index in first_of_label(stored).items()
                 if stored.runs[index]["pauses"] or stored.runs[index]["credit_stalls"]]
    rows = [(row, held) for row in windows(stored, spaced(concerned, MAX_PANELS)) if (held := held_in(row))]
    if not rows:
        raise NoDataError("No port was ever paused or without credits in the first measured iteration of a run.")
    order = {row.label: _longest_first(row.evidence.fabric, held) for row, held in rows}
    counts = [min(MAX_PORTS, len(order[row.label])) + len(_faults(row)) for row, _ in rows]
    height = 1.45 + sum(0.19 * count + 0.5 for count in counts)
    some = "" if len(rows) == len(concerned) else f" ({len(rows)} of {len(concerned)} kinds of run)"
    figure = new_figure(height, "Which port was stopped, and when",
                        with_scale(stored, f"First measured iteration, first seed{some}"))
    mean_in = sum(0.19 * count for count in counts) / len(counts)
    panels = figure.subplots(len(rows), 1, squeeze=False, height_ratios=counts,
                             gridspec_kw={"left": 0.15, "right": 0.935, "top": top(height) - 0.12 / height,
                                          "bottom": 0.52 / height, "hspace": 0.5 / mean_in})[:, 0]
    palette = colours(stored.labels)
    for axes, (row, held) in zip(panels, rows, strict=True):
        _timeline(axes, row, held, order[row.label])
        axes.set_title(f"{row.label}: {_in_words(row, held, order[row.label])}", fontsize=9.5, pad=4,
                       color=palette[row.label])
        axes.set_xlim(0, shared_us(row, [other for other, _ in rows]))
    panels[-1].set_xlabel("time since the common start (us)")
    kinds = {one.text: one.colour for _, held in rows for one in held}
    handles: list[Any] = [Patch(color=colour, label=text) for text, colour in kinds.items()]
    if any(_faults(row) for row, _ in rows):
        handles.append(Patch(color=WARN, alpha=FAULT_ALPHA, label="planted"))
    figure.legend(handles=handles, loc="upper right", ncols=len(handles), bbox_to_anchor=(0.985, 1 - 0.02 / height),
                  fontsize=8.5)
    return figure


def _longest_first(fabric: Fabric, held: list[Held]) -> list[tuple[int, float]]:
    """Ports with the time that they were stopped (us; overlapping classes count once each), the longest first."""
    totals = np.zeros(len(fabric.ports))
    for one in held:
        if one.colour != WATCHDOG_COLOUR:
            np.add.at(totals, one.ports, one.end_us - one.begin_us)
        else:
            np.maximum.at(totals, one.ports, 1e-9)
    first = np.full(len(totals), np.inf)
    for one in held:
        np.minimum.at(first, one.ports, one.begin_us)
    ports = np.flatnonzero(totals > 0)
    # Times that are all but equal are those of one pause that spread: then in the order in which it came.
    coarse = np.round(totals[ports] / max(1e-9, float(totals.max())) * 10)
    return [(int(port), float(totals[port])) for port in ports[np.lexsort((first[ports], -coarse))]]


def _in_words(row: Window, held: list[Held], order: list[tuple[int, float]]) -> str:
    """The message of a panel."""
    number = sum(len(one.ports) for one in held if one.colour != WATCHDOG_COLOUR)
    port, longest_us = max(order, key=lambda entry: entry[1])
    name, share = row.evidence.fabric.port_name(port), longest_us / row.length_us
    return (f"{number:,} times, {len(order)} port{'s' if len(order) > 1 else ''}; "
            f"{name} stood {min(share, 1.0):.0%} of the time")


def _timeline(axes: Axes, row: Window, held: list[Held], order: list[tuple[int, float]]) -> None:
    """Faults first, a row each, then a row a port."""
    fabric, shown, faults = row.evidence.fabric, order[:MAX_PORTS], _faults(row)
    for at, fault in enumerate(faults):
        axes.broken_barh([(fault.begin_us, fault.end_us - fault.begin_us)], (at - 0.4, 0.8), color=WARN,
                         alpha=FAULT_ALPHA, linewidth=0)
        early = fault.begin_us < 0.6 * row.length_us
        axes.annotate(fault.text, (fault.begin_us, at), xytext=(4 if early else -4, 0), textcoords="offset points",
                      fontsize=8, color=WARN, va="center", ha="left" if early else "right")
    position = {port: at for at, (port, _) in enumerate(shown, len(faults))}
    for one in held:
        for port, at in position.items():
            mine = one.ports == port
            if mine.any():
                bars = list(zip(one.begin_us[mine], (one.end_us - one.begin_us)[mine], strict=True))
                thin = one.colour == WATCHDOG_COLOUR
                # An edge keeps a pause of one packet visible in a long iteration.
                axes.broken_barh(bars, (at - (0.14 if thin else 0.36), 0.28 if thin else 0.72), color=one.colour,
                                 edgecolor=one.colour, linewidth=0.5, zorder=3 if thin else 2)
    for port, stopped_us in shown:
        share = min(1.0, stopped_us / row.length_us)
        axes.annotate(f"{share:.0%}", (1.0, position[port]), xycoords=("axes fraction", "data"), xytext=(4, 0),
                      textcoords="offset points", va="center", fontsize=7.5, color=INK)
    names = ["planted"] * len(faults) + [fabric.port_name(port) for port, _ in shown]
    axes.set_yticks(range(len(names)), names, fontsize=8)
    for tick in axes.get_yticklabels()[: len(faults)]:
        tick.set_color(WARN)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(visible=False, axis="y")
    if len(order) > len(shown):
        axes.annotate(f"and {len(order) - len(shown)} more", (0, 0), xycoords="axes fraction", xytext=(-4, -8),
                      textcoords="offset points", ha="right", fontsize=7.5, color=FAINT)


@dataclass(frozen=True)
class Fault:
    """What was planted, cut to the window; hardware us."""

    text: str
    begin_us: float
    end_us: float


def _faults(row: Window) -> list[Fault]:
    """Faults that were in effect in the window; a planted drop has no end and is a moment."""
    found: list[Fault] = []
    events = list(row.evidence.fault_events)
    for at, event in enumerate(events):
        if event.get("state") != "begin":
            continue
        same = {key: event.get(key) for key in ("fault", "device", "port")}
        ends = [float(row.us(other["t_ns"])) for other in events[at + 1 :]
                if other.get("state") == "end" and {key: other.get(key) for key in same} == same]
        begin_us = float(row.us(event["t_ns"]))
        end_us = ends[0] if ends else begin_us
        if end_us >= 0 and begin_us <= row.length_us:
            begin_us = max(0.0, begin_us)
            end_us = min(row.length_us, max(end_us, begin_us + 0.004 * row.length_us))
            found.append(Fault(str(event.get("text", event.get("fault"))), begin_us, end_us))
    return found
