"""`straggler demo`."""

from __future__ import annotations

from pathlib import Path

import click

from labs.cli.arguments import configured
from labs.cli.run import play

LAB = "m5_ecmp_collisions"
POLICIES = ("ecmp", "flowlet", "dlb", "spray")
ITERATIONS = 3


@click.command(epilog="""\b
Examples:
  sudo straggler demo
  sudo straggler demo --seed 7""")
@click.option("--seed", metavar="S", default=1, show_default=True, type=click.IntRange(0, 2**31 - 1),
              help="Deals out the UDP source ports, and with them the collisions.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
              help="Where results go (results/LAB/TIME).")
@click.option("--json", "as_json", is_flag=True, help="Print run.json; everything else goes to standard error.")
@click.pass_context
def command(ctx: click.Context, seed: int, out: Path | None, as_json: bool) -> None:
    """Four rings across four leaves under four policies, in less than four minutes.

    The same as `straggler run m5_ecmp_collisions` with one seed and few iterations.
    """
    lab = configured(LAB, (), policies=POLICIES, iterations=ITERATIONS)
    ctx.exit(play(lab, [seed], out, as_json=as_json, expectations=True))
