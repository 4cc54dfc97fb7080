"""`straggler labs`."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from labs.lab import exercises, load


@click.command(epilog="""\b
Examples:
  straggler labs
  straggler labs --json""")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(as_json: bool) -> None:
    """List the labs that come with the project."""
    found = [load(name) for name in exercises()]
    if as_json:
        click.echo(json.dumps([{"name": lab.name, "module": lab.module, "title": lab.title, "question": lab.question,
                                "policies": list(lab.policies), "variants": list(lab.variants),
                                "file": str(lab.path)} for lab in found], indent=1))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("lab", "title", "question", "variants", "policies"):
        table.add_column(name, overflow="fold")
    for lab in found:
        table.add_row(lab.name, lab.title, lab.question, ", ".join(lab.variants), ", ".join(lab.policies))
    Console().print(table)
