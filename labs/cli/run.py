"""`straggler run LAB`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from labs.cli.arguments import PolicyNames, VariantNames, configured, fabric_options, lab_argument, split_names
from labs.lab import Lab
from labs.runner_outcome import require_root


@click.command(epilog="""\b
Examples:
  sudo straggler run m5_ecmp_collisions
  sudo straggler run m5 --policies ecmp --seeds 10
  sudo straggler run m2_lossy --variants "pfc 12,credits 12"
  sudo straggler run m5 --set buffer_kb=64 --set dlb.period_us=100 --quick
  sudo straggler run ./my_lab/lab.py --slowdown auto --json > run.json""")
@lab_argument
@click.option("--policies", metavar="A,B", type=PolicyNames(), help="Instead of the lab's own; a .py file is one, too.")
@click.option("--variants", metavar="A,B", type=VariantNames(), help="Only these of the lab's variants.")
@click.option("--seeds", metavar="N", type=click.IntRange(1, 1000), help="Play everything with the seeds 1 to N.")
@click.option("--seed", metavar="S", type=click.IntRange(0, 2**31 - 1), help="Play this one seed only.")
@click.option("--iterations", metavar="N", type=click.IntRange(1), help="Measured iterations of each run.")
@click.option("--warmup", metavar="N", type=click.IntRange(0), help="Iterations before those.")
@fabric_options
@click.option("--quick", is_flag=True, help="Half the bytes, two iterations, one seed: a first look.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
              help="Where results go (results/LAB/TIME).")
@click.option("--json", "as_json", is_flag=True, help="Print run.json; everything else goes to standard error.")
@click.pass_context
def command(ctx: click.Context, lab_name: str, policies: str | None, variants: str | None, seeds: int | None,
            seed: int | None, iterations: int | None, warmup: int | None, settings: tuple[str, ...],
            slowdown: str | None, quick: bool, out: Path | None, as_json: bool) -> None:
    """Build the fabric of LAB, play every variant with every seed and policy, and write results.

    LAB is the name of an exercise (see `straggler labs`), the beginning of one, or the path of a lab.py.  Times are
    those of the hardware; the lab plays them slowdown times slower.  A run whose verdict is INVALID proves nothing:
    the exit status is then 3, and the slowdown to try next is named.
    """
    lab = configured(lab_name, settings, slowdown, split_names(variants, "--variants", "pfc,credits"),
                     policies=split_names(policies, "--policies", "ecmp,dlb"))
    if quick:
        lab = lab.quick()
    lab = lab.replace(**{key: value for key, value in (("seeds", seeds), ("iterations", iterations),
                                                       ("warmup", warmup)) if value is not None})
    chosen = list(range(1, lab.seeds + 1)) if seed is None else [seed]
    ctx.exit(play(lab, chosen, out, as_json=as_json, expectations=not settings and not quick))


def play(lab: Lab, seeds: list[int], out: Path | None, *, as_json: bool, expectations: bool) -> int:
    """Runs a lab, shows its progress and its results; the exit status."""
    require_root()
    # Only now: these take half a second, which --help and a typing error need not wait for.
    from labs.measure.table import results_table
    from labs.runner import run_lab
    from labs.runner_ui import ConsoleReporter, closing_lines

    console = Console(stderr=as_json)
    outcome = run_lab(lab, seeds, out, ConsoleReporter(console))
    if outcome.runs:
        console.print()
        console.print(results_table(outcome.runs))
    for line in closing_lines(lab, outcome, expectations=expectations):
        console.print(line, soft_wrap=True, highlight=False)
    run_json = outcome.directory / "run.json"
    if as_json and run_json.is_file():
        click.echo(run_json.read_text())
    return outcome.exit_status
