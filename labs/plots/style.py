"""One look for all figures: a palette that colour-blind readers can tell apart, and sizes that survive a README."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DPI = 150
WIDTH_IN = 9.0

INK = "#1f2430"
FAINT = "#8a93a3"
GRID = "#e3e6eb"
WARN = "#b3261e"

# Okabe & Ito, "Color Universal Design" (2008).
_POLICY_COLOURS = {
    "ecmp": "#D55E00", "group": "#CC79A7", "flowlet": "#E69F00", "dlb": "#009E73", "spray": "#0072B2",
    "pinned": "#56B4E9",
}
_CYCLE = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#4d4d4d", "#999999", "#8c6d1f", "#6a51a3")
# For lines on white: flows, whose colour means nothing but "this one".
FLOW_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4d4d4d", "#8c6d1f")
DROP_COLOURS = {"tail": "#D55E00", "shared": "#E69F00", "link_down": "#0072B2", "pool": "#000000",
                "headroom": "#b3261e", "watchdog": "#CC79A7", "bit_error": "#009E73"}
PAUSE_COLOUR, STALL_COLOUR, WATCHDOG_COLOUR = "#E69F00", "#0072B2", "#b3261e"

_RC: Any = {
    "font.family": ["DejaVu Sans"], "font.size": 10.0, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": FAINT, "axes.titlesize": 10.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": GRID, "grid.linewidth": 0.8, "xtick.color": INK, "ytick.color": INK, "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0, "legend.frameon": False, "legend.fontsize": 9.0, "figure.facecolor": "white",
    "savefig.facecolor": "white", "figure.titlesize": 13.0, "figure.titleweight": "bold",
}


@contextmanager
def styled() -> Iterator[None]:
    """Figures made inside look like ours; matplotlib's own settings come back afterwards."""
    with mpl.rc_context(_RC):
        yield


def colours(labels: Iterable[str]) -> dict[str, str]:
    """A colour for each label: a policy's own, or one that is not taken, in order of appearance."""
    listed = list(labels)
    taken = {_POLICY_COLOURS[label] for label in listed if label in _POLICY_COLOURS}
    spare = cycle([colour for colour in _CYCLE if colour not in taken])
    return {label: _POLICY_COLOURS.get(label) or next(spare) for label in listed}


def new_figure(height_in: float, title: str, subtitle: str = "") -> Figure:
    """An empty figure with its title and one line below it; axes are added by the caller, below 1 - header()."""
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI)
    figure.text(0.012, 1 - 0.13 / height_in, title, ha="left", va="top", fontsize=12.5, fontweight="bold")
    if subtitle:
        figure.text(0.012, 1 - 0.42 / height_in, subtitle, ha="left", va="top", fontsize=9.5, color="#565f70")
    return figure


def top(height_in: float) -> float:
    """Where the axes may begin, as a share of the height."""
    return 1 - 0.85 / height_in


def reference_line(axes: Axes, value: float, text: str, *, vertical: bool) -> None:
    """A dashed line at `value` with its name at its end."""
    if vertical:
        axes.axvline(value, color=INK, linewidth=1.1, linestyle=(0, (4, 3)), zorder=1.5)
        axes.annotate(text, (value, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 2),
                      textcoords="offset points", ha="center", va="bottom", fontsize=8.5, color=INK)
    else:
        axes.axhline(value, color=INK, linewidth=1.1, linestyle=(0, (4, 3)), zorder=1.5)
        axes.annotate(text, (1.0, value), xycoords=("axes fraction", "data"), xytext=(-2, -3),
                      textcoords="offset points", ha="right", va="top", fontsize=8.5, color=INK)
