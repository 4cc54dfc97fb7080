"""Figures draw what was measured or say what is missing; the report is whole, self-contained and honest."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from labs.measure.store import RunWriter
from labs.measure.stored import StoredRun, load_run
from labs.plots.gallery import PLOTS, Plot, draw, draw_all
from labs.plots.report import headline, number, render, worst_checks, write_report
from labs.plots.style import colours
from tests.unit.labs.measure.synthetic import changed, planted

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    directory = tmp_path_factory.mktemp("results")
    writer = RunWriter(directory, {"lab": {"name": "synthetic"}, "workload": {"size_bytes": 262_144}})
    writer.add(changed(planted("collision"), policy="ecmp", predicted={"factor": 3.0}))
    writer.add(changed(planted("none"), policy="dlb"))
    writer.add(changed(planted("drop"), policy="flowlet"))
    writer.add(changed(planted("reordering"), policy="spray"))
    writer.add(changed(planted("none"), policy="ecmp", seed=2, predicted={"factor": 1.0}))
    return load_run(directory)


ABOUT_PAUSES = {"pauses", "pause_tree"}  # see test_congestion_figures.py


@pytest.mark.parametrize("plot", [plot for plot in PLOTS if plot.name not in ABOUT_PAUSES], ids=lambda plot: plot.name)
def test_every_figure_is_drawn(plot: Plot, stored: StoredRun, tmp_path: Path) -> None:
    drawn = draw(plot, stored, tmp_path)
    assert drawn.path is not None, drawn.missing
    assert drawn.path.read_bytes().startswith(PNG)


@pytest.mark.parametrize("plot", [plot for plot in PLOTS if plot.name in ABOUT_PAUSES], ids=lambda plot: plot.name)
def test_without_pauses_there_is_nothing_to_draw(plot: Plot, stored: StoredRun, tmp_path: Path) -> None:
    drawn = draw(plot, stored, tmp_path)
    assert drawn.path is None
    assert drawn.missing.startswith("No port was ever")


def test_missing_data_is_said_and_old_pictures_go(tmp_path: Path) -> None:
    raw = planted("none")
    empty = changed(raw, iterations=(), trace=raw.trace[:0], series_t_ns=raw.series_t_ns[:0],
                    series_depth=raw.series_depth[:0], before=raw.after)
    RunWriter(tmp_path).add(empty)
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "drops.png").write_bytes(PNG)
    drawn = draw_all(load_run(tmp_path))
    assert all(item.path is None and item.missing.endswith(".") for item in drawn)
    assert list((tmp_path / "plots").iterdir()) == []
    html = write_report(load_run(tmp_path)).read_text()
    assert "INVALID" in html
    assert "Nothing was dropped" in html


class Tags(HTMLParser):
    """Collects tags, and the addresses that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "br", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_is_one_well_formed_file(stored: StoredRun) -> None:
    html = write_report(stored).read_text()
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert len(tags.sources) == len(PLOTS) - len(ABOUT_PAUSES)
    assert all(source.startswith("data:image/png;base64,") for source in tags.sources)
    assert not re.search(r"https?://|@import|url\(", html)


def test_the_report_tells_the_story(stored: StoredRun) -> None:
    html = render(stored, [])
    assert "VALID" in html
    for words in ("leaf1→spine2", "Nothing was dropped", "(tail)", "conservation end to end", "buffer_kb",
                  "What differs"):
        assert words in html
    assert "None" not in re.sub(r"<td[^>]*>None</td>", "", html)


def test_an_invalid_run_is_told_first(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.add(changed(planted("none"), cpu={"idle_share": 0.0, "steal_share": 0.0}))
    html = render(load_run(tmp_path), [])
    assert html.index("INVALID") < html.index("Results")
    assert "--slowdown 20000" in html
    assert "Broken in planted_none/1." in html


def test_the_check_nearest_to_its_limit_is_shown(stored: StoredRun) -> None:
    runs = stored.runs
    late = {"value": 9e9, "margin": -8.0, "ok": False}
    runs[1] = {**runs[1], "verdict": [{**check, **(late if check["check"] == "lateness" else {})}
                                      for check in runs[1]["verdict"]]}
    lateness = next(check for check in worst_checks(runs) if check["check"] == "lateness")
    assert (lateness["run"], lateness["broken"]) == ("dlb/1", ["dlb/1"])


def test_headline() -> None:
    dlb, ecmp = ({"label": name, "jct_ratio": ratio, "valid": True, "ideal_us": 100.0}
                 for name, ratio in (("dlb", 1.1), ("ecmp", 2.2)))
    assert headline([dlb, ecmp]).startswith("dlb took 1.10 times the ideal, ecmp 2.20 times: 2.0 times as long")
    assert headline([dlb, {**ecmp, "valid": False}]) == "dlb took 1.10 times the ideal."
    assert headline([{**dlb, "valid": False}]).startswith("No run is valid")
    frozen = {**dlb, "label": "pfc", "jct_ratio": None}
    assert headline([dlb, frozen]) == "dlb took 1.10 times the ideal. pfc did not finish."
    assert headline([frozen]) == "pfc did not finish."
    assert headline([dlb, {**ecmp, "ideal_us": 50.0}]) == "dlb took 1.10 times the ideal, ecmp 2.20 times."


def test_numbers_for_people() -> None:
    assert [number(x) for x in (None, 0.0, 2e-16, 0.01234, 336.24, 12345.6, 7)] == [
        "-", "0", "0.000", "0.0123", "336", "12,346", "7"]


def test_every_policy_has_a_colour_of_its_own() -> None:
    palette = colours(["ecmp", "flowlet", "dlb", "spray", "group", "mine", "yours"])
    assert len(set(palette.values())) == len(palette)
