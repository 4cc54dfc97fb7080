"""The report: one HTML file that needs nothing else, to be read by a person from top to bottom.

Verdict first, then the table, who was late and why, the figures, and every parameter.
"""

from __future__ import annotations

import base64
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from labs.measure import table
from labs.measure.stored import StoredRun
from labs.plots import report_tables
from labs.plots.gallery import Drawn, draw_all
from labs.plots.panels import by_label
from labs.plots.style import colours
from topologies.units import mtu_frame_bytes, serialisation_ns

TEMPLATE = "report.html.j2"

DIFFERENCES = (
    ("Time", "Everything runs in slow motion. Rates, delays and timers are scaled together, so ratios and shares hold; "
     "what hosts do at their own pace (a reduction, a wake-up) looks much faster here than on hardware."),
    ("Switches", "Forwarding is Open vSwitch, queues and buffers are the emulator's: output-queued, without the cells, "
     "arbitration and internal speed-up of an ASIC. Time inside the switch is measured for every frame and judged "
     "above."),
    ("Path tables", "A controller in software moves entries every update period. An ASIC decides by itself, within "
     "microseconds of hardware time."),
    ("NICs", "Reliable connections with go-back-N, as RoCEv2 has them. Many NICs of today retransmit selectively and "
     "would suffer less from reordering and drops."),
    ("PFC and credits", "A port obeys a pause at the next frame boundary; hardware takes the peer response time of the "
     "table above longer, which is what its headroom is for. Bytes are counted as such, not in cells. Credits are "
     "InfiniBand's, on Ethernet links."),
    ("ECN and DCQCN", "Marking looks at the queue at the moment in which a frame joins it. DCQCN follows the paper, "
     "with the parameters that vendors publish; what their firmware does beyond that is not known. Both act only where "
     "the lab asks for them (ecn_kmax_kb, dcqcn); otherwise queues build up to the windows of the flows."),
)


def write_report(stored: StoredRun) -> Path:
    """Draws every figure and writes report.html into the results; returns its path."""
    path = stored.directory / "report.html"
    draft = path.with_name(".report.html.new")
    draft.write_text(render(stored, draw_all(stored)), encoding="utf-8")
    os.replace(draft, path)
    return path


def render(stored: StoredRun, figures: Sequence[Drawn]) -> str:
    """The report as HTML."""
    lead = "comparison" if any(run["variant"] for run in stored.runs) else "overview"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined)
    environment.filters["number"] = number
    environment.filters["arrows"] = lambda text: text.replace("->", "\N{RIGHTWARDS ARROW}")  # which no line breaks
    return environment.get_template(TEMPLATE).render(
        document=stored.document, directory=stored.directory, runs=stored.runs, colours=colours(stored.labels),
        valid=all(run["valid"] for run in stored.runs), headline=headline(stored.runs),
        next_slowdown=max((run.get("next_slowdown") or 0 for run in stored.runs), default=0),
        checks=worst_checks(stored.runs), scale=scale(stored), columns=table.COLUMNS,
        lines=[table.cells(run) for run in stored.runs], stories=stories(stored), differences=DIFFERENCES,
        shown=table.worth_showing([table.cells(run) for run in stored.runs]), lead=lead,
        settings=report_tables.differences(stored), headroom_links=report_tables.headroom_links(stored),
        headroom_labels=report_tables.headroom_labels(stored), events=report_tables.first_events(stored),
        figures=[(drawn, embedded(drawn.path) if drawn.path else None) for drawn in figures])


def number(value: float | None) -> str:
    """Three significant digits and thousands separators; a dash for nothing."""
    if value is None:
        return "-"
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.0005 else "0.000"


def embedded(path: Path) -> str:
    """A picture as a data URL."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def headline(runs: Sequence[Mapping[str, Any]]) -> str:
    """The result in one sentence or two: best and worst label by their mean completion ratio, of valid runs."""
    ratios: dict[str, list[float]] = {}
    undone = list(dict.fromkeys(run["label"] for run in runs if run["valid"] and run["jct_ratio"] is None))
    never = f" {', '.join(undone)} did not finish." if undone else ""
    for run in runs:
        if run["valid"] and run["jct_ratio"] is not None:
            ratios.setdefault(run["label"], []).append(run["jct_ratio"])
    means = {label: sum(values) / len(values) for label, values in ratios.items()}
    if not means:
        return never.strip() or "No run is valid: the times below prove nothing."
    best, worst = min(means, key=lambda p: means[p]), max(means, key=lambda p: means[p])
    if best == worst:
        return f"{best} took {means[best]:.2f} times the ideal.{never}"
    same = len({run["ideal_us"] for run in runs if run["valid"]}) == 1
    longer = f": {means[worst] / means[best]:.1f} times as long for the same bytes" if same else ""
    return f"{best} took {means[best]:.2f} times the ideal, {worst} {means[worst]:.2f} times{longer}.{never}"


def worst_checks(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every invariant once, with the value of the run in which it came closest to its limit, and who broke it."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        for check in run["verdict"]:
            name = f"{run['label']}/{run['seed']}"
            entry = found.setdefault(check["check"], {**check, "run": name, "broken": []})
            if not check["ok"]:
                entry["broken"].append(name)
            if _closeness(check) > _closeness(entry):
                entry |= {**check, "run": name}
    return list(found.values())


def _closeness(check: Mapping[str, Any]) -> tuple[bool, float]:
    margin = check["margin"]
    return not check["ok"], -margin if margin is not None else float(check["value"] or 0)


def scale(stored: StoredRun) -> dict[str, float]:
    """What slow motion means here."""
    fabric = stored.fabric
    rate_bps = max(port.rate_bps for port in fabric.ports)
    mtu_ns = serialisation_ns(mtu_frame_bytes(fabric.spec.mtu_bytes), rate_bps)
    return {"slowdown": fabric.slowdown, "link_gbps": fabric.spec.link_gbps, "lab_mbps": rate_bps / 1e6,
            "mtu_us": fabric.clock.hardware_us(mtu_ns), "mtu_lab_ms": mtu_ns / 1e6}


def stories(stored: StoredRun) -> list[dict[str, Any]]:
    """Per label its slowest iteration in words, and how often each cause was found."""
    told = []
    for label, runs in by_label(stored).items():
        iterations = [(run, iteration) for run in runs for iteration in run["iterations"]]
        if not iterations:
            told.append({"label": label, "sentence": "No iteration was measured.", "causes": "", "command": ""})
            continue
        run, slowest = max(iterations, key=lambda pair: (pair[1]["time_us"] is None, pair[1]["time_us"] or 0.0))
        causes = Counter(iteration["straggler"]["cause"] for _, iteration in iterations)
        told.append({
            "label": label, "sentence": slowest["straggler"].get("why", ""),
            "causes": ", ".join(f"{cause.replace('_', ' ')} {count}" for cause, count in causes.most_common()),
            "command": f"straggler why {stored.directory} --run {shlex.quote(label)} --seed {run['seed']} "
                       f"--iteration {slowest['n']}"})
    return told
