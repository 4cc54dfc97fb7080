"""DCQCN's reaction point against a reference written from the paper, and the published sets of its parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.topologies.dcqcn_reference import FRACTION_UNITS, RATE_UNITS, Change, Reference
from topologies.dcqcn import PRESETS, Dcqcn, preset
from topologies.errors import LabError
from topologies.fabricd._core import ffi, lib
from topologies.units import LabClock

CLOCK = LabClock(10_000.0)
LINE = CLOCK.lab_bps(100)
EXACT = 1e-9
NAMES = {1: "cut", 2: "fast recovery", 3: "additive", 4: "hyper"}
US = CLOCK.lab_ns(1)


class Core:
    """The C state machine, with the calls of the reference."""

    def __init__(self, lab: dict[str, int], line_rate: float = LINE, credit_bits: float = 0.0) -> None:
        values = {
            "max_rate": line_rate, "credit_bits": credit_bits, "byte_reset": lab["byte_reset"],
            "threshold": lab["threshold"], "flags": lab["flags"],
            **{name: lab[name] / RATE_UNITS for name in ("min_rate", "ai_rate", "hai_rate", "first_rate")},
            **{name: lab[name] / FRACTION_UNITS for name in ("g", "initial_alpha", "gd", "min_dec_fac")},
            **{name: lab[name] for name in ("alpha_period_ns", "reduce_period_ns", "time_reset_ns")},
        }  # fmt: skip
        params = ffi.new("struct dcqcn_params *", values)
        assert lib.dcqcn_valid(params)
        self.state = ffi.new("struct dcqcn *")
        lib.dcqcn_init(self.state, params, 0)
        self.changes: list[Change] = []

    def run(self, to: int) -> None:
        while change := lib.dcqcn_step(self.state, to):
            self._note(change)
        assert self.state.at_ns == to

    def cnp(self) -> None:
        self._note(lib.dcqcn_cnp(self.state))

    def sent(self, wire_bytes: int) -> None:
        self._note(lib.dcqcn_sent(self.state, wire_bytes))

    @property
    def rate(self) -> float:
        return float(self.state.rate)

    def _note(self, change: int) -> None:
        if change:
            self.changes.append(Change(self.state.at_ns, NAMES[change], self.rate))


def assert_equal(core: Core, reference: Reference) -> None:
    assert core.rate == pytest.approx(reference.rc, rel=EXACT)
    assert core.state.target == pytest.approx(reference.rt, rel=EXACT)
    assert core.state.alpha == pytest.approx(reference.alpha, rel=EXACT)


STEPS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 8 * US), st.integers(0, 700 * US), st.sampled_from([4 * US, 55 * US, 300 * US])),
        st.sampled_from(["cnp", "cnp", "send", "send", "look"]),
        st.one_of(st.integers(70, 4_200), st.integers(1, 12_000_000)),
    ),
    min_size=1,
    max_size=120,
)


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_any_pattern_of_cnps_gives_the_papers_trajectory(name: str, steps: list[tuple[int, str, int]]) -> None:
    lab = preset(name).to_lab(CLOCK)
    core, reference = Core(lab), Reference(lab, LINE)
    now = 0
    for wait, what, size in steps:
        now += wait
        for machine in (core, reference):
            machine.run(now)
            if what == "cnp":
                machine.cnp()
            elif what == "send":
                machine.sent(min(size, 50 * lab["byte_reset"] + 1) if lab["byte_reset"] else size)
        assert_equal(core, reference)
    # Every change at its own time. Of several at one time (a packet may end many periods) the last one counts.
    ours, theirs = ({change.at_ns: change for change in machine.changes} for machine in (core, reference))
    assert {at: change.what for at, change in ours.items()} == {at: change.what for at, change in theirs.items()}
    for at, change in ours.items():
        assert change.rate == pytest.approx(theirs[at].rate, rel=EXACT)


@pytest.mark.parametrize("name", PRESETS)
def test_it_does_not_matter_when_one_looks(name: str) -> None:
    """Events happen at their own time: one look after three hours of the lab's time sees what 10,000 looks see."""
    lab = preset(name).to_lab(CLOCK)
    late, often = Core(lab), Core(lab)
    for core in (late, often):
        core.cnp()
    for tick in range(10_000):
        often.run(tick * 9_973 * US // 100)
    late.run(9_999 * 9_973 * US // 100)
    assert [change[:2] for change in late.changes] == [change[:2] for change in often.changes]
    assert late.rate == pytest.approx(often.rate, rel=EXACT)
    assert late.state.alpha == pytest.approx(often.state.alpha, rel=EXACT, abs=1e-300)


@pytest.mark.parametrize(("name", "share"), [("paper", 0.5), ("nvidia", 1 - 1023 / 2048), ("hpcc", 0.5)])
def test_the_first_cnp_halves_the_rate(name: str, share: float) -> None:
    core = Core(preset(name).to_lab(CLOCK))
    core.run(123 * US)
    core.cnp()
    assert core.rate == LINE * share
    assert core.state.target == LINE


def test_five_recovery_periods_bring_back_98_4_percent() -> None:
    core = Core(preset("paper").to_lab(CLOCK))
    core.cnp()
    core.run(5 * 55 * US - 1)
    assert core.rate == pytest.approx(LINE * (1 - 1 / 32), rel=EXACT)
    core.run(5 * 55 * US)
    assert core.rate / core.state.target == pytest.approx(63 / 64, rel=EXACT)  # 98.4 %
    assert [change.what for change in core.changes] == ["cut"] + 5 * ["fast recovery"]


def test_all_phases_after_two_cnps_in_closed_form() -> None:
    """Timer and byte counter in step: fast recovery by both, additive, then hyper increase once both are through."""
    parameters = preset("paper", byte_reset_bytes=1_000_000)
    lab, ai, hai = parameters.to_lab(CLOCK), CLOCK.lab_bps(0.04), CLOCK.lab_bps(0.4)
    core = Core(lab)
    core.cnp()
    core.cnp()  # alpha was 1 and stayed 1
    rc, rt = LINE / 4, LINE / 2
    for period in range(1, 10):
        for by in ("timer", "bytes"):
            if by == "timer":
                core.run(period * 55 * US)
            else:
                core.sent(1_000_000)
            done = period - 1, period - 1 + (by == "bytes")  # completed before: least, most
            if done[1] >= 5:
                rt += hai if done[0] > 5 else ai
            rc = (rc + rt) / 2
            assert core.rate == pytest.approx(rc, rel=EXACT)
    kinds = [change.what for change in core.changes]
    assert kinds == 2 * ["cut"] + 9 * ["fast recovery"] + 3 * ["additive"] + 6 * ["hyper"]
    assert core.state.alpha == pytest.approx((255 / 256) ** 9, rel=EXACT)


def test_rates_stay_between_the_smallest_and_line_rate() -> None:
    core = Core(preset("hpcc").to_lab(CLOCK))
    for cnp in range(100):
        core.run(cnp * 4 * US)
        core.cnp()
    assert core.rate == CLOCK.lab_bps(1)
    core.run(10**9 * 10_000)
    assert core.rate == pytest.approx(LINE)
    assert core.rate <= core.state.target == LINE


def test_cnps_within_a_reduce_period_cut_once_at_its_end() -> None:
    core = Core(preset("nvidia").to_lab(CLOCK))
    core.cnp()
    for early in (1, 2, 3):
        core.run(early * US)
        core.cnp()
    core.run(20 * US)
    assert [(change.at_ns, change.what) for change in core.changes] == [(0, "cut"), (4 * US, "cut")]


def test_the_target_is_clamped_as_the_flags_say() -> None:
    for always, after_timer, clamped in ((True, False, True), (False, True, True), (False, False, False)):
        parameters = preset("nvidia", clamp_target_rate=always, clamp_target_rate_after_timer=after_timer)
        core = Core(parameters.to_lab(CLOCK))
        core.cnp()
        core.run(301 * US)  # one increase, by the timer
        before = core.rate
        core.cnp()
        assert core.state.target == (before if clamped else LINE)
    core.sent(40_000)  # one, by the byte counter
    before = core.rate
    core.cnp()
    core.run(310 * US)
    assert core.state.target == before


def test_the_first_cnp_may_set_the_rate() -> None:
    core = Core(preset("nvidia", first_rate_mbps=30_000).to_lab(CLOCK))
    core.cnp()
    assert core.rate == core.state.target == CLOCK.lab_bps(30)


def test_a_change_of_rate_moves_the_packet_that_waits() -> None:
    core = Core(preset("paper").to_lab(CLOCK))
    core.sent(1250)  # 10,000 bits at 10 Mb/s: 1 ms
    assert lib.dcqcn_ready_ns(core.state) == 1_000_000
    core.run(400_000)
    core.cnp()  # 6,000 bits at 5 Mb/s
    assert lib.dcqcn_ready_ns(core.state) == 1_600_000
    core.run(1_700_000)
    assert lib.dcqcn_ready_ns(core.state) == 1_700_000
    assert core.state.debt_bits == 0  # no credit was allowed


def settings_of(**changes: Any) -> Dcqcn:
    return replace(preset("paper"), **changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"g": 1.5}, "g must be 0..1"),
        ({"initial_alpha": -0.1}, "initial_alpha"),
        ({"ai_rate_mbps": float("nan")}, "ai_rate_mbps"),
        ({"alpha_period_us": 0}, "alpha_period_us"),
        ({"min_rate_mbps": 0}, "min_rate_mbps"),
        ({"time_reset_us": 0, "byte_reset_bytes": 0}, "never rise"),
        ({"gd": 0.5}, "gd must be 1"),
    ],
)
def test_values_out_of_range_are_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(LabError, match=says):
        settings_of(**changes)


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(LabError, match="unknown DCQCN preset 'mellanox'"):
        preset("mellanox")
    with pytest.raises(LabError, match="unknown DCQCN parameter") as error:
        preset("paper", ai_rate=5)
    assert error.value.remedy == "did you mean ai_rate_mbps?"


def test_hpccs_increases_grow_with_the_link() -> None:
    assert (preset("hpcc", 50).ai_rate_mbps, preset("hpcc", 400).hai_rate_mbps) == (10, 800)
    assert preset("nvidia", 400).ai_rate_mbps == 5
