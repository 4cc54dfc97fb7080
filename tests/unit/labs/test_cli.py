"""The command line without root: help, errors, exit statuses."""

from __future__ import annotations

import json
import subprocess
import sys
import time

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
    (lab,) = json.loads(invoke("labs", "--json").output)
    assert lab["name"] == "m5_ecmp_collisions"
    checked = json.loads(invoke("check", "m5", "--set", "buffer_kb=64", "--json").output)
    assert checked["ok"]
    assert checked["parameters"]["fabric"]["buffer_kb"] == 64
    assert len(checked["notes"]) == 1


def test_check_shows_every_parameter_and_how_long_it_takes() -> None:
    result = invoke("check", "m5")
    assert result.exit_code == 0
    for text in ("slowdown=10000", "window_bytes=983040", "94.4 us", "0.94 s of lab time", "collisions is fine"):
        assert text in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = invoke("completion", shell)
    assert result.exit_code == 0
    assert "_STRAGGLER_COMPLETE" in result.output


@pytest.mark.parametrize(("line", "expected"), [
    ("straggler ru", {"run"}), ("straggler check m", {"m5_ecmp_collisions"}),
    ("straggler run m5 --policies ecmp,d", {"ecmp,dlb"}), ("straggler policy f", {"flowlet"})])
def test_completion_of_verbs_labs_and_policies(line: str, expected: set[str]) -> None:
    words = line.split()
    result = CliRunner(env={"_STRAGGLER_COMPLETE": "bash_complete", "COMP_WORDS": line,
                            "COMP_CWORD": str(len(words) - 1)}).invoke(main, [], prog_name="straggler")
    found = {row.partition(",")[2] for row in result.output.splitlines() if row}
    assert expected <= found
