"""The command line without root: help, errors, exit statuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labs.cli import VERBS, main


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), prog_name="straggler")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_examples(verb: str) -> None:
    result = invoke(verb, "--help")
    assert result.exit_code == 0, result.output
    assert "Examples:" in result.output
    assert f"straggler {verb}" in result.output


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    begun = time.monotonic()
    code = ("import sys; from labs.cli import main; main(['--help'], standalone_mode=False); "
            "sys.exit(any(name in sys.modules for name in ('numpy', 'rich', 'mininet', 'pyarrow', 'matplotlib')))")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize(("words", "text"), [
    (["rnu"], "no verb 'rnu'; did you mean run?"),
    (["check", "m6"], "unknown lab 'm6'"),
    (["check", "m5", "--set", "bufer_kb=3"], "unknown key 'bufer_kb' of a fabric (did you mean buffer_kb?)"),
    (["check", "m5", "--set", "spines=0"], "spines=0 is out of range"),
    (["check", "m5", "--slowdown", "fast"], "slowdown=fast"),
    (["check", "/nowhere/lab.py"], "/nowhere/lab.py: no such file"),
    (["run", "m5", "--policies", "ecmp,dbl"], "unknown policy 'dbl' (did you mean dlb?)"),
    (["run", "m5", "--policies", ","], "--policies names none"),
    (["run", "m5", "--set", "dlb.perod_us=3"], "unknown parameter of policy dlb 'perod_us'"),
    (["run", "m5", "--variants", "pfc"], "unknown variant 'pfc'"),
    (["run", "m5", "--set", "dcqcn.a=3"], "unknown DCQCN parameter 'a'"),
    (["run", "m5", "--seeds", "0"], "0 is not in the range"),
    (["run"], "Missing argument 'LAB'"),
    (["policy", "dbl"], "unknown policy 'dbl'"),
    (["policy", "dlb", "--set", "period_us"], "'period_us' is not a setting"),
    (["why", "/nowhere"], "/nowhere"),
])
def test_wrong_use_is_status_2_and_one_sentence(words: list[str], text: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2, result.output
    assert text in result.output
    assert "Traceback" not in result.output


def test_without_root_a_run_fails_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for words in (["run", "m5"], ["demo"], ["shell", "m5"], ["clean"]):
        result = invoke(*words)
        assert result.exit_code == 1, result.output
        assert "(run it with sudo)" in result.output


def test_labs_and_check_speak_json() -> None:
    assert "m5_ecmp_collisions" in [lab["name"] for lab in json.loads(invoke("labs", "--json").output)]
    checked = json.loads(invoke("check", "m5", "--set", "buffer_kb=64", "--json").output)
    assert checked["ok"]
    assert checked["parameters"]["fabric"]["buffer_kb"] == 64
    assert len(checked["notes"]) == 1


def test_check_shows_every_parameter_and_how_long_it_takes() -> None:
    result = invoke("check", "m5")
    assert result.exit_code == 0
    for text in ("slowdown=10000", "window_bytes=983040", "94.4 us", "0.94 s of lab time", "collisions is fine",
                 "jct_ratio <= 1.15 expected"):
        assert text in result.output


VARIANTS_PY = """
from labs.faults import SlowReceiver
from labs.lab import Expectation, Lab
from labs.workload import Incast
from topologies.spec import FabricSpec
LAB = Lab(name="test", module=2, title="", question="", workload=Incast(1 << 20, senders=3), may_fail=("stuck",),
          fabric=FabricSpec(buffer_kb=1024, slowdown=1000), expectations=(Expectation("drop", "drops", at_least=1),),
          variants={"drop": {}, "lossless": {"flow_control": "pfc"},
                    "stuck": {"flow_control": "pfc", "faults": (SlowReceiver("h0", drain_gbps=1),)}})
"""


def test_check_shows_variants_faults_and_theory(tmp_path: Path) -> None:
    (tmp_path / "lab.py").write_text(VARIANTS_PY)
    output = invoke("check", str(tmp_path)).output
    before, drop, lossless, stuck = (part for part in re.split(r"^(?:drop|lossless|stuck)$", output, flags=re.M))
    assert "variant lossless: flow_control=pfc" in before
    assert "variant stuck: flow_control=pfc, faults=['h0 takes in 1 Gb/s from 0 us on']" in before
    assert "  at most 768 KB of 3 bursts wait at the receiver's port, whose buffer holds 1,024 KB" in drop
    assert "  drops >= 1 expected" in drop
    assert "headroom" not in drop
    assert "headroom of a host's port 45.0 KB; the least that loses nothing is" in lossless
    assert "expected" not in lossless
    assert "  fault: h0 takes in 1 Gb/s from 0 us on" in stuck
    assert "  ranks need not finish" in stuck
    checked = json.loads(invoke("check", str(tmp_path), "--set", "senders=2", "--json").output)
    assert checked["parameters"]["workload"]["senders"] == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = invoke("completion", shell)
    assert result.exit_code == 0
    assert "_STRAGGLER_COMPLETE" in result.output


def test_completion_of_variants(tmp_path: Path) -> None:
    (tmp_path / "lab.py").write_text(VARIANTS_PY)
    words = ["straggler", "run", str(tmp_path), "--variants", "drop,s"]
    result = CliRunner(env={"_STRAGGLER_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words),
                            "COMP_CWORD": "4"}).invoke(main, [], prog_name="straggler")
    assert "drop,stuck" in result.output


@pytest.mark.parametrize(("line", "expected"), [
    ("straggler ru", {"run"}), ("straggler check m5", {"m5_ecmp_collisions"}),
    ("straggler run m5 --policies ecmp,d", {"ecmp,dlb"}), ("straggler policy f", {"flowlet"})])
def test_completion_of_verbs_labs_and_policies(line: str, expected: set[str]) -> None:
    words = line.split()
    result = CliRunner(env={"_STRAGGLER_COMPLETE": "bash_complete", "COMP_WORDS": line,
                            "COMP_CWORD": str(len(words) - 1)}).invoke(main, [], prog_name="straggler")
    found = {row.partition(",")[2] for row in result.output.splitlines() if row}
    assert expected <= found
