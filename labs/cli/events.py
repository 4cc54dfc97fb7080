"""`straggler events RUN`."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from labs.cli import wrong_use
from labs.measure.stored import load_run
from topologies.errors import LabError, nearest


@click.command(epilog="""\b
Examples:
  straggler events latest
  straggler events m2_storm --run "no watchdog" --kind pause --kind watchdog
  straggler events latest --all --json""")
@click.argument("run")
@click.option("--run", "label", metavar="LABEL",
              help="The run with this label, variant or policy; otherwise the first.")
@click.option("--seed", metavar="N", type=int, help="The run with this seed; otherwise the first.")
@click.option("--kind", "kinds", metavar="KIND", multiple=True,
              help="Only this kind: pause, credit_stall, watchdog, fault, drops, qp_error, move, ...; repeat at will.")
@click.option("--all", "everything", is_flag=True, help="All of them, not the first 50.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON, one object a line.")
def command(run: str, label: str | None, seed: int | None, kinds: tuple[str, ...], everything: bool,
            as_json: bool) -> None:
    """List what happened in a run: pauses with their reason, watchdogs, planted faults, drops, errors, moves.

    RUN is a folder of results, its run.json, the name of a lab (its newest results), or "latest".  Times are those of
    the hardware, in us after the run's beginning.
    """
    with wrong_use():
        stored = load_run(run)
        index = stored.select(label, seed)
        rows = stored.table("events", index).to_pylist()
        there = sorted({row["kind"] for row in rows})
        for kind in kinds:
            if kind not in there:
                guess = nearest(kind, there)
                raise LabError(f"the run has no event of kind {kind!r}",
                               f"did you mean {guess}?" if guess else f"it has {', '.join(there) or 'no events'}")
    rows = [row for row in rows if not kinds or row["kind"] in kinds]
    shown = rows if everything else rows[:50]
    if as_json:
        for row in shown:
            click.echo(json.dumps(row))
        return
    summary = stored.runs[index]
    console = Console()
    console.print(f"[bold]{summary['label']}[/], seed {summary['seed']}: {len(rows):,} events"
                  f"{'' if len(shown) == len(rows) else f', the first {len(shown)} (--all shows the rest)'}",
                  highlight=False)
    if shown:
        table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("us", justify="right", no_wrap=True)
        table.add_column("event", no_wrap=True)
        table.add_column("what")
        for row in shown:
            table.add_row(f"{row['t_us']:,.1f}", row["kind"].replace("_", " "), row["text"])
        console.print(table)
