"""The pause tree: what was stopped because of what, from each root to the last port that stood still."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labs.measure.evidence import Evidence
from labs.measure.pauses import Branch, Tree
from labs.measure.pauses import pause_tree as trees_of
from labs.measure.stored import StoredRun
from labs.plots.panels import NoDataError, first_of_label, with_scale
from labs.plots.style import FAINT, GRID, INK, WARN, new_figure, top

ROW_IN = 0.24
MOST_ROWS = 18  # of one panel
SMALL = 0.01  # a port held for less than this share of the longest is left out

_KINDS = {
    "slow_receiver": ("{0} does not take in what comes", WARN),
    "pause_storm": ("{0} says pause though nothing has filled up", WARN),
    "deadlock": ("deadlock: {0}", WARN),
    "cycle": ("circle that came free: {0}", "#D55E00"),
    "incast": ("incast at {0}", "#0072B2"),
    "collision": ("too much for {0}", "#0072B2"),
    "link_down": ("too much for {0}, another link being down", "#0072B2"),
    "slow_link": ("{0} is slower than the link before it", "#009E73"),
    "round_trip": ("buffer smaller than the round trip of credits: {0}", "#009E73"),
    "burst": ("a burst at {0}", "#56B4E9"),
}


@dataclass(frozen=True)
class _Row:
    """A line of a panel: a root, or a port at its depth below it."""

    depth: int
    parent: int | None  # row
    text: str
    held_us: float
    holds: int
    colour: str


def pause_tree(stored: StoredRun) -> Figure:
    """A panel a label (its first seed): roots at the left, right of each the ports that stood because of it."""
    panels = {}
    for label, run in first_of_label(stored).items():
        if any(stored.runs[run].get(count) for count in ("pauses", "credit_stalls")):
            evidence = stored.evidence(run)
            trees = trees_of(evidence.holds, *_measured(evidence))
            if trees:
                panels[label] = _rows(trees)
    if not panels:
        raise NoDataError("No port was ever stopped by a pause or for want of credits.")
    sizes = [len(rows) + 1.4 for rows in panels.values()]
    height = 1.15 + ROW_IN * sum(sizes)
    figure = new_figure(height, "Who stood still because of whom",
                        with_scale(stored, "Below each port those that it stopped. Bars: time, full for the longest"))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=sizes,
                           gridspec_kw={"left": 0.02, "right": 0.985, "top": top(height), "bottom": 0.12 / height,
                                        "hspace": 0.0})[:, 0]
    for panel, (label, rows) in zip(axes, panels.items(), strict=True):
        _draw(panel, label, rows)
    return figure


def _measured(evidence: Evidence) -> tuple[int, int]:
    """From the first measured iteration to the end of the run."""
    starts = [iteration.start_ns for iteration in evidence.iterations if not iteration.warmup]
    return min(starts, default=0), evidence.last_ns


def _rows(trees: Sequence[Tree]) -> list[_Row]:
    longest = max(branch.held_us for tree in trees for branch in _all(tree.branches))
    rows: list[_Row] = []

    def add(branches: Sequence[Branch], depth: int, parent: int, colour: str) -> None:
        for branch in branches:
            if max(below.held_us for below in _all((branch,))) < SMALL * longest:
                continue
            rows.append(_Row(depth, parent, branch.name, branch.held_us, branch.holds, colour))
            add(branch.branches, depth + 1, len(rows) - 1, colour)

    for tree in trees:
        text, colour = _KINDS[tree.root.kind]
        begin = len(rows)
        planted = f" (planted: {tree.root.fault})" if tree.root.fault else ""
        rows.append(_Row(0, None, text.format(tree.root.where) + planted, 0.0, 0, colour))
        add(tree.branches, 1, begin, colour)
        if len(rows) == begin + 1:  # nothing of it is long enough
            rows.pop()
    if len(rows) <= MOST_ROWS:
        return rows
    left_out = sum(row.depth > 0 for row in rows[MOST_ROWS:])
    return [*rows[:MOST_ROWS], _Row(0, None, f"... and {left_out} more ports", 0.0, 0, FAINT)]


def _all(branches: Sequence[Branch]) -> Iterator[Branch]:
    for branch in branches:
        yield branch
        yield from _all(branch.branches)


def _draw(axes: Axes, label: str, rows: Sequence[_Row]) -> None:
    """Text at the left with lines from each port to the one that stopped it, bars of time at the right."""
    bars, indent = 0.55, 0.03  # shares of the width
    longest = max((row.held_us for row in rows), default=1.0) or 1.0
    axes.set_xlim(0, 1)
    axes.set_ylim(len(rows) + 0.2, -1.2)
    axes.axis("off")
    axes.text(0, -0.75, label or "run", fontsize=9.5, fontweight="bold", va="center")
    for number, row in enumerate(rows):
        x = indent * row.depth
        if row.parent is not None:
            knee = x - 0.6 * indent
            axes.plot([knee, knee, x - 0.004], [row.parent + 0.4, number, number], color=FAINT, linewidth=1.0)
            width = (1 - bars - 0.13) * row.held_us / longest
            axes.barh(number, 1 - bars - 0.13, left=bars, height=0.62, color=GRID)
            axes.barh(number, width, left=bars, height=0.62, color=row.colour)
            axes.text(0.995, number, f"{row.held_us:,.1f} us, {row.holds:,}x", ha="right", va="center", fontsize=8.5)
        axes.text(x, number, row.text, va="center", fontsize=9.0, color=INK if row.depth else row.colour,
                  fontweight="normal" if row.depth else "bold")
