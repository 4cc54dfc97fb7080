"""Variants and faults against a real fabric, played as `straggler run` plays them: each does what it says."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
from rich.console import Console

from labs.faults import LostPacket, PauseStorm, SlowReceiver
from labs.lab import Lab
from labs.runner import run_lab
from labs.runner_outcome import DONE, INVALID, Outcome
from labs.runner_ui import ConsoleReporter
from labs.workload import Flow, Transfers
from topologies.spec import FabricSpec

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vsctl") is None, reason="needs root and Open vSwitch"),
]

KB = 1024
VARIANTS = Lab(
    name="live_variants", module=0, title="Two into one", question="?", iterations=1, warmup=0,
    fabric=FabricSpec(leaves=1, spines=1, hosts_per_leaf=4, buffer_kb=64, shared_buffer_kb=1024, slowdown=2000),
    workload=Transfers(192 * KB, timeout_us=200, patience_us=600, flows=[
        Flow("h1", "h0"), Flow("h2", "h0"), Flow("h3", "h0", size_bytes=16 * KB, dscp=10)]),
    variants={
        "drop tail": {},
        "admission": {"admission_kb": 32},
        "pfc": {"flow_control": "pfc"},
        "slow": {"flow_control": "pfc", "faults": (SlowReceiver("h0", drain_gbps=25),)},
        "storm": {"flow_control": "pfc", "faults": (PauseStorm("h0", at_us=5),)},
        "dcqcn": {"flow_control": "pfc", "dcqcn": "paper", "dcqcn.time_reset_us": 10, "ecn_kmin_kb": 8,
                  "ecn_kmax_kb": 24, "ecn_pmax": 1, "faults": (LostPacket("h1", "h0", "middle"),)},
    },
    may_fail=("storm",))


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, dict[str, dict[str, Any]]]:
    """All of them, played as `straggler run` does."""
    outcome = run_lab(VARIANTS, [1], tmp_path_factory.mktemp("variants"), ConsoleReporter(Console(quiet=True)))
    return outcome, {run["label"]: run for run in outcome.runs}


def test_every_variant_is_played_and_what_may_fail_is_no_failure(
    variants: tuple[Outcome, dict[str, dict[str, Any]]],
) -> None:
    outcome, runs = variants
    assert list(runs) == list(VARIANTS.variants)
    assert [(run.label, run.expected) for run in outcome.unfinished] == [("storm", True)]
    assert outcome.unfinished[0].reason == "no NIC has received any data for 1 s"
    assert outcome.exit_status in (DONE, INVALID)  # how busy the machine is, the verdict says
    assert {label for label, run in runs.items() if run["errors"]} == {"storm"}
    assert {run["wrong"] for run in runs.values()} == {0}
    assert {run["workload"]["dcqcn"] for label, run in runs.items() if label != "dcqcn"} == {"none"}


def test_variants_do_what_they_say(variants: tuple[Outcome, dict[str, dict[str, Any]]]) -> None:
    _, runs = variants
    assert runs["drop tail"]["drops_by_port"]["leaf0->h0"]["tail"] > 0
    assert runs["drop tail"]["retransmitted_packets"] > 0
    for label in ("admission", "pfc", "slow"):
        assert runs[label]["drops"] == 0
        assert runs[label]["retransmitted_packets"] == 0
    assert runs["admission"]["peak_queue_bytes"]["leaf0->h0"] <= 64 * KB
    assert runs["admission"]["pauses"] == 0
    assert runs["pfc"]["pauses"] > 0
    assert runs["dcqcn"]["marks"] > 0
    assert runs["dcqcn"]["cnps"] > 0
    assert runs["dcqcn"]["drops"] == 1  # the one that was planted
    assert runs["dcqcn"]["naks"] == 1
    assert 400 * KB * 8 / 25e3 < runs["slow"]["time_us"]["mean"] < 1.3 * 400 * KB * 8 / 25e3
