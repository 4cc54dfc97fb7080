"""The figure of the pause tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from labs.measure.store import RunWriter
from labs.measure.stored import load_run
from labs.plots.panels import NoDataError
from labs.plots.pause_tree import pause_tree
from tests.unit.labs.measure.synthetic import changed, planted
from tests.unit.labs.measure.test_pauses import deadlock, slow_receiver


def test_it_names_root_and_ports_of_every_run_that_stood_still(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "results")
    for label, raw in (("slow", slow_receiver().raw()), ("ring", deadlock().raw()), ("calm", planted("none"))):
        writer.add(changed(raw, label=label))
    figure = pause_tree(load_run(tmp_path / "results"))
    texts = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert [panel[0] for panel in texts] == ["slow", "ring"]
    assert "h4 does not take in what comes (planted: h4 takes in 10 Gb/s)" in texts[0]
    assert {"leaf1->h4", "spine0->leaf1", "leaf0->spine0", "h0->leaf0", "h1->leaf0"} <= set(texts[0])
    assert any(text.startswith("deadlock: leaf0 -> ") for text in texts[1])
    widths = [patch.get_width() for patch in figure.axes[0].patches]
    assert max(widths) > 0


def test_without_pauses_there_is_nothing_to_draw(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "results")
    writer.add(planted("none"))
    with pytest.raises(NoDataError):
        pause_tree(load_run(tmp_path / "results"))
