"""`straggler doctor`."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.console import Console
from rich.markup import escape

from labs.machine import Finding, examine
from topologies.errors import LabError

_COLOURS = {"ok": "green", "warning": "yellow", "bad": "red"}
_DEMO = "m5_ecmp_collisions"


@click.command(epilog="""\b
Examples:
  straggler doctor
  sudo straggler doctor --json""")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--calibrate/--no-calibrate", default=True, show_default=True,
              help="Measure (once, some seconds) how slow the demo's fabric must be on this machine.")
@click.pass_context
def command(ctx: click.Context, as_json: bool, calibrate: bool) -> None:
    """Check this machine, and say what is wrong and how to put it right.

    Exit status 0: labs will run; 1: something is missing.
    """
    console = Console(stderr=as_json)
    findings = []

    def add(finding: Finding) -> None:
        findings.append(finding)
        console.print(f"[{_COLOURS[finding.state]}]{finding.state:8}[/] {finding.name}: {escape(finding.text)}",
                      highlight=False, soft_wrap=True)
        if finding.state != "ok" and finding.remedy:
            console.print(f"{'':9}{escape(finding.remedy)}", style="dim", highlight=False, soft_wrap=True)

    for finding in examine():
        add(finding)
    healthy = all(finding.state != "bad" for finding in findings)
    if healthy and calibrate:
        add(_calibration())
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
    ctx.exit(0 if healthy else 1)


def _calibration() -> Finding:
    """Whether the demo's slowdown is enough here."""
    from labs.lab import load
    from topologies import calibrate

    fabric = load(_DEMO).fabric
    try:
        needed = calibrate.resolve(fabric.replace(slowdown="auto")).clock.slowdown
    except LabError as error:
        return Finding("calibration", "warning", error.message, error.remedy)
    text = f"{_DEMO} needs a slowdown of {needed:,.0f} on this machine and has {fabric.clock.slowdown:,.0f}"
    if needed > fabric.clock.slowdown:
        return Finding("calibration", "warning", text, f"straggler run {_DEMO} --slowdown {needed:.0f}")
    return Finding("calibration", "ok", text)
