"""`straggler plot RUN`."""

from __future__ import annotations

import click

from labs.cli import wrong_use
from labs.measure.stored import load_run


@click.command(epilog="""\b
Examples:
  straggler plot latest
  straggler plot m5_ecmp_collisions
  straggler plot results/m5_ecmp_collisions/2025-01-31T12-00-00""")
@click.argument("run")
def command(run: str) -> None:
    """Draw the figures of RUN again, as PNG in its folder plots/.

    RUN is a folder of results, its run.json, the name of a lab (its newest results), or "latest".
    """
    with wrong_use():
        stored = load_run(run)
    from labs.plots.gallery import draw_all  # matplotlib is slow to import

    for drawn in draw_all(stored):
        click.echo(str(drawn.path) if drawn.path else f"{drawn.plot.name}: not drawn. {drawn.missing}")
