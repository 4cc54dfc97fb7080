"""How a lab's runs follow each other: which share a fabric, and which still take place after one has failed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labs import runner
from labs.lab import Lab
from labs.runner import run_lab
from labs.runner_outcome import DONE, FAILED, INVALID, Outcome
from labs.runner_play import Played
from labs.variants import PlannedRun
from labs.workload import Incast
from topologies.errors import LabError
from topologies.spec import FabricSpec

LAB = Lab(
    name="test", module=0, title="", question="", fabric=FabricSpec(leaves=2, hosts_per_leaf=3, slowdown=1000),
    workload=Incast(4096, senders=1), policies=("ecmp", "dlb"), may_fail=("credits, dlb",),
    variants={"none": {}, "more": {"senders": 4}, "pfc": {"flow_control": "pfc"},
              "credits": {"flow_control": "credits"}})


class World:
    """Sessions, runs and results that are made up; `ends`: label -> (reason, fatal, frames left) of a run."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.ends: dict[str, Any] = {}
        self.fail_building: str | None = None

    def session(self, lab: Lab, hosts: set[str]) -> Any:
        world = self

        class Session:
            def __enter__(self) -> Any:
                if lab.variant_name == world.fail_building:
                    raise LabError("no interfaces")
                world.log.append(f"build {lab.fabric.flow_control} with {len(hosts)} hosts")
                return SimpleNamespace(lab=lab, trouble=lambda: None)

            def __exit__(self, *_: object) -> None:
                world.log.append("remove")

        return Session()

    def run(self, session: Any, lab: Lab, policy: str, seed: int, report: Any) -> Any:
        label = PlannedRun(lab, policy, seed).label

        def play() -> Played:
            self.log.append(f"{label} {seed}")
            end = self.ends.get(label, (None, False, 0))
            if isinstance(end, BaseException):
                raise end
            reason, fatal, frames = end
            raw: Any = SimpleNamespace(label=label, after=frames)
            return Played(raw, reason, fatal)

        return SimpleNamespace(play=play, session=session)


class Writer:
    """Keeps labels."""

    def __init__(self, directory: Path, parameters: object) -> None:
        self.runs: list[dict[str, Any]] = []
        self.finished = False

    def add(self, raw: Any) -> None:
        self.runs.append({"label": raw.label, "valid": True})

    def finish(self) -> None:
        self.finished = True


class Report:
    """Says nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(runner, "Session", world.session)
    monkeypatch.setattr(runner, "Run", world.run)
    monkeypatch.setattr(runner, "RunWriter", Writer)
    monkeypatch.setattr(runner, "require_root", lambda: None)
    monkeypatch.setattr("labs.runner_play.frames_in_flight", lambda frames: frames)
    return world


def play(lab: Lab = LAB, seeds: list[int] | None = None) -> Outcome:
    return run_lab(lab, seeds or [1], Path("out"), Report())  # type: ignore[arg-type]


def test_a_fabric_is_built_for_every_other_spec_only(world: World) -> None:
    outcome = play()
    assert world.log == [
        "build none with 5 hosts", "none, ecmp 1", "none, dlb 1", "more, ecmp 1", "more, dlb 1", "remove",
        "build pfc with 2 hosts", "pfc, ecmp 1", "pfc, dlb 1", "remove",
        "build credits with 2 hosts", "credits, ecmp 1", "credits, dlb 1", "remove"]
    assert len(outcome.runs) == 8
    assert outcome.exit_status == DONE


def test_variants_are_the_outermost_loop_and_policies_the_innermost(world: World) -> None:
    play(LAB.only(["more"]), seeds=[3, 4])
    assert world.log[1:-1] == ["more, ecmp 3", "more, dlb 3", "more, ecmp 4", "more, dlb 4"]


@pytest.mark.parametrize(("label", "status"), [("more, ecmp", FAILED), ("credits, dlb", DONE)])
def test_after_a_run_that_was_given_up_the_others_follow_on_a_new_fabric(world: World, label: str, status: int) -> None:
    world.ends[label] = ("no NIC has received any data for 1 s", False, 12)
    outcome = play(seeds=[1, 2])
    assert len(outcome.runs) == 16
    assert [(run.label, run.seed, run.expected) for run in outcome.unfinished] == [
        (label, seed, status == DONE) for seed in (1, 2)]
    assert outcome.exit_status == status
    assert outcome.reason is None
    after = [world.log[i + 1] for i, line in enumerate(world.log) if line.startswith(label)]
    assert after == ["remove"] * 2


def test_what_still_stands_in_the_queues_spoils_the_fabric_too(world: World) -> None:
    world.ends["none, ecmp"] = (None, False, 3)
    outcome = play()
    assert world.log[:4] == ["build none with 5 hosts", "none, ecmp 1", "remove", "build none with 5 hosts"]
    assert outcome.exit_status == DONE


@pytest.mark.parametrize(("reason", "status"), [("fabricd died", FAILED), ("the controller died", INVALID)])
def test_a_process_that_died_ends_it_all(world: World, reason: str, status: int) -> None:
    world.ends["more, ecmp"] = (reason, True, 0)
    outcome = play()
    assert world.log[-2:] == ["more, ecmp 1", "remove"]
    assert (outcome.reason, outcome.exit_status) == (reason, status)
    assert len(outcome.runs) == 3


def test_ctrl_c_keeps_what_was_finished(world: World) -> None:
    world.ends["more, dlb"] = KeyboardInterrupt()
    outcome = play()
    assert (outcome.reason, outcome.exit_status, len(outcome.runs)) == ("interrupted", FAILED, 3)


def test_a_second_fabric_that_cannot_be_built(world: World) -> None:
    world.fail_building = "pfc"
    outcome = play()
    assert (outcome.reason, outcome.exit_status, len(outcome.runs)) == ("no interfaces", FAILED, 4)
    world.fail_building = "none"
    with pytest.raises(LabError, match="no interfaces"):
        play()
