"""`straggler why RUN`."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from labs.cli import wrong_use
from labs.measure.stored import load_run
from labs.measure.why import Explanation, explain, worst_iteration


@click.command(epilog="""\b
Examples:
  straggler why latest
  straggler why m5_ecmp_collisions --run ecmp --seed 3
  straggler why results/m5_ecmp_collisions/2025-01-31T12-00-00 --run spray --iteration 4 --json""")
@click.argument("run")
@click.option("--run", "--policy", "label", metavar="LABEL",
              help="The run with this label, variant or policy; otherwise the first.")
@click.option("--seed", metavar="N", type=int, help="The run with this seed; otherwise the first.")
@click.option("--iteration", metavar="N", type=int, help="This iteration; otherwise the slowest.")
@click.option("--rank", metavar="N", type=int, help="Ask for this rank, not for the last one.")
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
def command(run: str, label: str | None, seed: int | None, iteration: int | None, rank: int | None,
            as_json: bool) -> None:
    """Name the late rank of an iteration, its flow, and where it lost its time.

    RUN is a folder of results, its run.json, the name of a lab (its newest results), or "latest".  Everything is found
    in the recorded packets.  Times are those of the hardware.
    """
    with wrong_use():
        stored = load_run(run)
        index = stored.select(label, seed)
        evidence = stored.evidence(index)
        answer = explain(evidence, worst_iteration(evidence) if iteration is None else iteration, rank)
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=1))
        return
    console = Console()
    console.print(f"[bold]{answer.label}[/], seed {answer.seed}, iteration {answer.iteration}: "
                  f"[bold]{answer.cause.replace('_', ' ')}[/]", highlight=False)
    console.print(answer.sentence, highlight=False, markup=False)
    for table in _tables(answer):
        console.print()
        console.print(table)
    if not stored.runs[index]["valid"]:
        console.print("\nThis run is INVALID: the emulator did not keep up, so look for the reason there first.",
                      style="bold red")


def _tables(answer: Explanation) -> list[Table]:
    tables = []
    lost = _table("Time lost, by cause", ("cause", "us", "of the ideal"))
    for cause, value_us in sorted(answer.lost_us.items(), key=lambda item: -item[1]):
        share = f"{value_us / answer.ideal_us:.0%}" if answer.ideal_us else "-"
        lost.add_row(cause.replace("_", " "), f"{value_us:,.1f}", share)
    tables.append(lost)
    if answer.connections:
        ring = _table("Connections that could hold it up: KB sent, us under way, packets dropped, resent, reordered",
                      ("rank", "to", "flow", "KB", "us", "drops", "resent", "reord", "timeouts"))
        for c in answer.connections:
            ring.add_row(str(c.rank), str(c.peer), c.flow, f"{c.bytes / 1024:,.0f}", f"{c.active_us:,.1f}",
                         str(c.drops), str(c.sent_again), str(c.reordered), str(c.timeouts),
                         style="bold" if c == answer.critical else None)
        tables.append(ring)
    if answer.links:
        links = _table("Where the slowest one waited", ("link", "packets", "mean wait (us)", "max wait (us)",
                                                        "served others (us)", "drops"))
        for link in answer.links[:8]:
            links.add_row(link.link, f"{link.packets:,}", f"{link.wait_mean_us:,.2f}", f"{link.wait_max_us:,.2f}",
                          f"{link.lost_us:,.1f}", str(link.drops))
        tables.append(links)
    if answer.held:
        stopped = _table("Where it was stopped (*: by its own bottleneck)",
                         ("link", "by", "times", "us", "longest (us)", "root"))
        for wait in answer.held[:8]:
            stopped.add_row(wait.link + ("" if wait.lost else " *"), "credits" if wait.credits else "pause",
                            f"{wait.holds:,}", f"{wait.held_us:,.1f}", f"{wait.longest_us:,.2f}",
                            f"{wait.kind.replace('_', ' ')}: {wait.root}")
        tables.append(stopped)
    if answer.shared_with:
        sharers = _table(f"Who shared {answer.links[0].link}", ("flow", "rank", "to", "ring", "bytes", "share"))
        for s in answer.shared_with[:12]:
            sharers.add_row(s.flow, *("-" if value is None else str(value) for value in (s.rank, s.peer, s.ring)),
                            f"{s.bytes:,}", f"{s.share:.0%}")
        tables.append(sharers)
    return tables


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="italic", header_style="bold", box=None,
                  pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name in ("cause", "flow", "link", "by", "root") else "right",
                         no_wrap=True)
    return table
