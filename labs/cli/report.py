"""`straggler report RUN`."""

from __future__ import annotations

import click

from labs.cli import wrong_use
from labs.measure.stored import load_run


@click.command(epilog="""\b
Examples:
  straggler report latest
  straggler report results/m5_ecmp_collisions/2025-01-31T12-00-00""")
@click.argument("run")
def command(run: str) -> None:
    """Write the report of RUN again: report.html, one file that needs nothing else.

    RUN is a folder of results, its run.json, the name of a lab (its newest results), or "latest".
    """
    with wrong_use():
        stored = load_run(run)
    from labs.plots.report import write_report  # matplotlib is slow to import

    click.echo(str(write_report(stored)))
