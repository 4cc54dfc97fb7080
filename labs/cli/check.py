"""`straggler check LAB`."""

from __future__ import annotations

import json

import click
from rich.console import Console

from labs.cli.arguments import configured, fabric_options, lab_argument
from labs.runner_ui import parameter_lines


@click.command(epilog="""\b
Examples:
  straggler check m5_ecmp_collisions
  straggler check ./my_lab/lab.py --set leaves=8""")
@lab_argument
@fabric_options
@click.option("--json", "as_json", is_flag=True, help="Print the effective parameters and notes as JSON.")
def command(lab_name: str, settings: tuple[str, ...], slowdown: str | None, as_json: bool) -> None:
    """Check LAB offline: every key, the shape, the ranks, the policies.  Needs no root and builds nothing."""
    lab = configured(lab_name, settings, slowdown)
    notes = lab.check()
    if as_json:
        click.echo(json.dumps({"ok": True, "parameters": lab.parameters(), "notes": notes}, indent=1))
        return
    console = Console()
    for line in parameter_lines(lab):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"an ideal iteration takes {lab.ideal_us:.1f} us", highlight=False)
    if not isinstance(lab.fabric.slowdown, str):
        clock = lab.fabric.clock
        console.print(f"that is {clock.lab_ns(lab.ideal_us) / 1e9:.2f} s of lab time; all runs together take about "
                      f"{lab.estimated_lab_s(clock):.0f} s", highlight=False)
    for note in notes:
        console.print(f"[yellow]note:[/yellow] {note}", highlight=False, soft_wrap=True)
    console.print(f"[green]{lab.name} is fine[/green]", highlight=False)
