"""Figures and tables of labs about congestion, drawn from runs of the native core and looked at as data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from labs.measure.store import RunWriter
from labs.measure.stored import StoredRun, load_run
from labs.plots import comparison, congestion, figures, report_tables, summary
from labs.plots.gallery import PLOTS, draw_all
from labs.plots.panels import NoDataError, spaced
from labs.plots.report import render, write_report
from labs.plots.style import colours, styled
from tests.unit.labs.measure.lossless import LosslessRun, spec
from tests.unit.labs.measure.synthetic import changed, planted
from tests.unit.labs.measure.test_pauses import deadlock, drain, incast
from topologies import headroom

LABELS = ["drop-tail", "pfc", "credits", "slow"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """An incast without flow control, with PFC and with credits, and one slow receiver."""
    slow = LosslessRun(spec())
    drain(slow, "h4", 10)
    slow.message("h0", "h4", 60)
    slow.message("h1", "h5", 60)
    slow.play()
    raws = {"drop-tail": incast("none", buffer_kb=64).raw(), "pfc": incast("pfc").raw(),
            "credits": incast("credits").raw(), "slow": slow.raw()}
    directory = tmp_path_factory.mktemp("congestion")
    writer = RunWriter(directory, {"lab": {"name": "synthetic"}})
    for label, raw in raws.items():
        writer.add(changed(raw, label=label, variant=label))
    return load_run(directory)


@pytest.fixture(autouse=True)
def _our_style() -> Iterator[None]:
    with styled():
        yield


def texts(figure: Figure) -> str:
    """Everything that can be read in a figure."""
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)]
        found += [tick.get_text() for tick in (*axes.get_yticklabels(), *axes.get_xticklabels())]
    return "\n".join(found)


def bars(axes: Any) -> list[float]:
    return [patch.get_width() for patch in axes.patches]


def test_the_comparison_shows_what_was_measured_and_leaves_out_what_never_occurred(stored: StoredRun) -> None:
    figure = comparison.comparison(stored)
    by_title = {axes.get_title(loc="left").replace("\n", " "): axes for axes in figure.axes}
    assert set(by_title) == {"completion / ideal", "slowest flow / fair share", "packets dropped", "ports paused (us)",
                             "no credits (us)", "deepest queue (KB)"}
    assert bars(by_title["packets dropped"]) == [run["drops"] for run in stored.runs]
    assert bars(by_title["ports paused (us)"]) == [run["pause_us"] for run in stored.runs]
    assert bars(by_title["no credits (us)"]) == [run["credit_stall_us"] for run in stored.runs]
    assert stored.runs[0]["drops"] > 0 == stored.runs[1]["drops"]
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == LABELS


def test_one_kind_of_run_is_not_compared(tmp_path: Path) -> None:
    RunWriter(tmp_path).add(planted("none"))
    with pytest.raises(NoDataError, match="nothing to compare"):
        comparison.comparison(load_run(tmp_path))


def test_what_did_not_finish_is_said(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.add(changed(deadlock().raw(), label="pfc", variant="pfc", may_fail=True))
    writer.add(changed(deadlock("drop").raw(), label="watchdog", variant="watchdog", may_fail=True))
    frozen = load_run(tmp_path)
    shown = texts(comparison.comparison(frozen))
    assert "frozen" in shown
    assert "not finished" in shown
    assert "watchdog\nacted" in shown
    assert ": " in texts(congestion.pauses(frozen))
    html = write_report(frozen).read_text()
    assert "did not finish" in html


def test_the_pause_timeline_has_a_row_a_port_and_a_bar_a_pause(stored: StoredRun) -> None:
    [row] = congestion.windows(stored, ["pfc"])
    [held] = congestion.held_in(row)
    assert held.text == "stopped by PFC"
    assert len(held.ports) == stored.runs[1]["pauses"]
    total_us = float((held.end_us - held.begin_us).sum())
    assert total_us == pytest.approx(stored.runs[1]["pause_us"], rel=0.02)  # some went on after the last byte
    figure = congestion.pauses(stored)
    assert [axes.get_title(loc="left").split(":")[0] for axes in figure.axes] == ["pfc", "credits", "slow"]
    shown = texts(figure)
    assert "spine0->leaf2" in shown
    assert "h4 takes in 10 Gb/s" in shown
    assert shown.count("planted") == 1


def test_the_port_that_stood_longest_is_named(stored: StoredRun) -> None:
    [row] = congestion.windows(stored, ["slow"])
    held = congestion.held_in(row)
    shown = texts(congestion.pauses(stored))
    last = held[0].ports == row.evidence.fabric.nic("h4").peer
    share = float((held[0].end_us - held[0].begin_us)[last].sum()) / row.length_us
    assert share > 0.7
    assert f"leaf1->h4 stood {share:.0%} of the time" in shown


def test_throughput_is_drawn_for_each_flow_with_its_name(stored: StoredRun) -> None:
    figure = congestion.flow_rates(stored)
    left = [axes for axes in figure.axes if axes.get_ylabel() == "Gb/s"]
    assert [axes.get_title(loc="left") for axes in left] == LABELS
    names = [text.get_text() for text in left[1].get_legend().get_texts()]
    assert sorted(names) == ["h0->h8", "h1->h8", "h2->h9", "h4->h8", "h5->h8", "h6->h8"]
    times, gbps = left[1].lines[0].get_data()
    assert float(np.sum(np.diff(times) * gbps[:-1])) * 1e3 / 8 == pytest.approx(60 * 4096, rel=1e-6)


def test_many_flows_are_one_band(tmp_path: Path) -> None:
    RunWriter(tmp_path).add(planted("none"))
    [panel, _] = congestion.flow_rates(load_run(tmp_path)).axes
    assert len(panel.collections) == 2
    assert "16 flows" in "".join(text.get_text() for text in panel.texts)


def test_the_deepest_queue_stands_beside_with_its_limit(tmp_path: Path) -> None:
    RunWriter(tmp_path).add(planted("drop"))
    [_, queue] = congestion.flow_rates(load_run(tmp_path)).axes
    assert queue.get_title(loc="left") == "queue leaf1->spine2 (KB)"
    assert "full" in [text.get_text() for text in queue.texts]


def test_a_figure_has_panels_for_eight_kinds_of_run_at_most() -> None:
    labels = [f"{senders}:1" for senders in range(2, 22)]
    chosen = spaced(labels)
    assert len(chosen) == len(set(chosen)) == 8
    assert (chosen[0], chosen[-1]) == ("2:1", "21:1")
    assert spaced(labels[:3]) == labels[:3]


def test_uplinks_of_different_shapes_are_not_put_on_one_axis(stored: StoredRun) -> None:
    for plot in (figures.uplink_bytes, figures.queue_depth, summary.overview):
        with pytest.raises(NoDataError, match="different shape"):
            plot(stored)  # two leaves and three


def test_labels_have_colours_of_their_own_and_policies_keep_theirs() -> None:
    palette = colours(["pfc", "ecmp", "credits", "drop-tail"])
    assert palette["ecmp"] == colours(["ecmp"])["ecmp"]
    assert len(set(palette.values())) == 4


def test_what_sets_the_runs_apart(stored: StoredRun) -> None:
    keys, rows = report_tables.differences(stored)
    assert {"flow_control", "buffer_kb", "leaves", "planted"} <= set(keys)
    assert "mtu_bytes" not in keys
    values = {label: dict(zip(keys, row, strict=True)) for label, row in rows}
    assert values["slow"]["planted"] == "h4 takes in 10 Gb/s"
    assert [values[label]["flow_control"] for label in LABELS] == ["none", "pfc", "credits", "pfc"]


def test_parameters_of_dcqcn_differ_only_between_runs_that_have_it(tmp_path: Path) -> None:
    writer, raw = RunWriter(tmp_path), planted("none")
    for label, dcqcn, parameters in (("off", "none", {}), ("paper", "paper", {"g": 0.1, "timer": 55}),
                                     ("nvidia", "nvidia", {"g": 0.2, "timer": 55})):
        writer.add(changed(raw, label=label, variant=label,
                           workload={**raw.workload, "dcqcn": dcqcn, "dcqcn_params": parameters}))
    keys, rows = report_tables.differences(load_run(tmp_path))
    assert keys == ["dcqcn", "dcqcn.g"]
    assert rows == [("off", ["none", "-"]), ("paper", ["paper", "0.1"]), ("nvidia", ["nvidia", "0.2"])]


def test_the_headroom_computation_is_sonics_for_every_kind_of_link(stored: StoredRun) -> None:
    links = report_tables.headroom_links(stored)
    assert {link.title.split(",")[0] for link in links} == {"100 Gb/s", "400 Gb/s"}
    fast = next(link for link in links if link.title.startswith("400"))
    assert fast.items == headroom.of_link(400, 0.5, 4096).items()
    assert fast.physical_bytes == headroom.physical_bytes(400, 0.5, 4174)
    pfc, slow = report_tables.headroom_labels(stored)
    assert (pfc.label, slow.label, pfc.drops) == ("pfc", "slow", 0)
    configured = sorted({port.headroom_bytes for port in stored.fabric_of(1).ports if port.kind == "switch"})
    assert pfc.configured == ", ".join(f"{size / 1024:,.1f}" for size in configured)


def test_the_report_of_a_congested_lab(stored: StoredRun) -> None:
    drawn = draw_all(stored)
    html = render(stored, drawn)
    for words in ("PFC headroom", "until the peer responds", "What sets the runs apart", "<h2>Events</h2>",
                  "paused spine0→leaf2", "the first 50 of", "straggler events"):
        assert words in html, words
    missing = {item.plot.name for item in drawn if item.path is None}
    assert {plot.name for plot in PLOTS} - missing >= {"comparison", "flow_rates", "pauses", "pause_tree", "drops"}
    lead = html.index('<img src="data:image/png')
    assert html.index('alt="Side by side"') < html.index("<h2>Results</h2>")
    assert lead < html.index('alt="Side by side"')
    assert "None" not in html.partition("<h2>Every effective parameter")[0]


def test_a_lab_without_pfc_has_no_headroom_to_show(tmp_path: Path) -> None:
    RunWriter(tmp_path).add(planted("none"))
    html = render(load_run(tmp_path), [])
    assert "PFC headroom" not in html
    assert "What sets the runs apart" not in html
    assert "<h2>Events</h2>" not in html
