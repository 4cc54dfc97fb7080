"""All figures of a run, in the order of the report, and the one function that writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labs.measure.stored import StoredRun
from labs.plots import comparison, congestion, figures, pause_tree, summary
from labs.plots.panels import NoDataError
from labs.plots.style import DPI, styled


@dataclass(frozen=True)
class Plot:
    """One figure: its file is `name`.png, `caption` says what to look at."""

    name: str
    title: str
    caption: str
    make: Callable[[StoredRun], Figure]


@dataclass(frozen=True)
class Drawn:
    """What became of a plot: a file, or the reason why there is none."""

    plot: Plot
    path: Path | None
    missing: str = ""


PLOTS = (
    Plot("overview", "Load and completion", "One row a kind of run. Where flows share an uplink, their ranks are late "
         "and all others wait. Even load and a late finish: look for reordering or drops, the word beside the bar.",
         summary.overview),
    Plot("prediction", "Theory beside measurement", "The flow hash and the path table say how many flows share the "
         "fullest link, before a packet is sent. A point on the line: collisions alone explain the run.",
         summary.prediction),
    Plot("comparison", "Side by side", "What each kind of run cost: time, and what it paid for that in drops, in "
         "pauses or in marks.", comparison.comparison),
    Plot("flow_rates", "Flows and their queue", "Each line is a flow. Lines that meet at the dashed one share fairly; "
         "a queue that stays in the green band (Kmin to Kmax) is under control, one that is full drops or pauses.",
         congestion.flow_rates),
    Plot("pauses", "Pauses", "A bar is a port that had to stop. Bars that begin one after the other, hop by hop, are a "
         "pause that spreads; a bar that never ends is a storm or a deadlock. Percent: of the iteration.",
         congestion.pauses),
    Plot("pause_tree", "Pause tree", "Read from the left: the root, and to the right of each port those that stood "
         "because it did. The root is what has to be repaired.", pause_tree.pause_tree),
    Plot("iteration_cdf", "Iteration time", "A steep line near the ideal is what a job wants; the tail is what it "
         "pays for.", figures.iteration_cdf),
    Plot("iteration_times", "Iteration by iteration", "A policy that adapts gets better after its first updates; "
         "static hashing repeats its collisions for ever.", figures.iteration_times),
    Plot("queue_depth", "Queues", "Where packets stood. A dark row is a link that carries too many flows, and the pale "
         "rows beside it are links that could have carried them.", figures.queue_depth),
    Plot("uplink_bytes", "Bytes per uplink", "What each link really carried, in the whole run.", figures.uplink_bytes),
    Plot("drops", "Drops", "Where packets were lost. Each drop costs the flow all that was in flight behind it "
         "(go-back-N).", figures.drops),
    Plot("path_changes", "Path changes", "How restless a policy is: each move may let packets overtake each other.",
         figures.path_changes),
)


def draw(plot: Plot, stored: StoredRun, directory: Path) -> Drawn:
    """Writes one figure as PNG, or says what it lacks."""
    path = directory / f"{plot.name}.png"
    try:
        with styled():
            figure = plot.make(stored)
            FigureCanvasAgg(figure)
            figure.savefig(path, dpi=DPI, metadata={"Software": "straggler"})
    except NoDataError as missing:
        path.unlink(missing_ok=True)  # of an earlier drawing, which this run would contradict
        return Drawn(plot, None, str(missing))
    return Drawn(plot, path)


def draw_all(stored: StoredRun) -> list[Drawn]:
    """Writes every figure into `plots/` of the results."""
    directory = stored.directory / "plots"
    directory.mkdir(exist_ok=True)
    return [draw(plot, stored, directory) for plot in PLOTS]
