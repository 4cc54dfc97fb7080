"""`straggler check LAB`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
from rich.console import Console

from labs.cli.arguments import configured, fabric_options, lab_argument
from labs.lab import Lab
from labs.runner_ui import bounds, parameter_lines
from labs.variants import means
from labs.workload import Incast
from topologies.headroom import physical_bytes
from topologies.qos import headroom_bytes
from topologies.units import BYTES_PER_KB, mtu_frame_bytes


@click.command(epilog="""\b
Examples:
  straggler check m5_ecmp_collisions
  straggler check ./my_lab/lab.py --set leaves=8""")
@lab_argument
@fabric_options
@click.option("--json", "as_json", is_flag=True, help="Print the effective parameters and notes as JSON.")
def command(lab_name: str, settings: tuple[str, ...], slowdown: str | None, as_json: bool) -> None:
    """Check LAB offline: every key, the shape, the ranks, the policies, the faults; and what theory expects.

    Needs no root and builds nothing.
    """
    lab = configured(lab_name, settings, slowdown)
    notes = lab.check()
    if as_json:
        click.echo(json.dumps({"ok": True, "parameters": lab.parameters(), "notes": notes}, indent=1))
        return
    console = Console()
    for line in parameter_lines(lab):
        console.print(line, highlight=False, soft_wrap=True)
    for one in lab.concrete():
        if one.variant_name:
            console.print(f"[bold]{one.variant_name}[/bold]", highlight=False)
        for line in _theory(one):
            console.print(("  " if one.variant_name else "") + line, highlight=False, soft_wrap=True, markup=False)
    if not isinstance(lab.fabric.slowdown, str):
        console.print(f"all runs together take about {lab.estimated_lab_s():.0f} s", highlight=False)
    for note in notes:
        console.print(f"[yellow]note:[/yellow] {note}", highlight=False, soft_wrap=True)
    console.print(f"[green]{lab.name} is fine[/green]", highlight=False)


def _theory(lab: Lab) -> Iterator[str]:
    """What is known before a variant is played: ideal time, faults, and what the lab expects of its runs."""
    lasts = "" if isinstance(lab.fabric.slowdown, str) else (
        f", {lab.fabric.clock.lab_ns(lab.ideal_us) / 1e9:.2f} s of lab time")
    yield f"an ideal iteration takes {lab.ideal_us:.1f} us{lasts}"
    if isinstance(lab.workload, Incast):
        yield _pile(lab)
    if lab.fabric.flow_control == "pfc":
        size = headroom_bytes(lab.fabric, lab.fabric.link_gbps, lab.fabric.link_delay_us, lab.fabric.mtu_bytes)
        least = physical_bytes(lab.fabric.link_gbps, lab.fabric.link_delay_us, mtu_frame_bytes(lab.fabric.mtu_bytes))
        yield (f"headroom of a host's port {size / BYTES_PER_KB:.1f} KB; the least that loses nothing is "
               f"{least / BYTES_PER_KB:.1f} KB (2 * delay * rate + 2 frames + PFC)")
    for fault in lab.faults:
        yield f"fault: {fault.planned}"
    for policy in lab.policies:  # who is one of several says so
        who = f"{policy}: " if len(lab.policies) > 1 or not lab.variant_name else ""
        if lab.run_may_fail(policy):
            yield f"{who}ranks need not finish"
        for expected in lab.expectations:
            if means(expected.run, lab.variant_name, policy):
                yield f"{who}{expected.key} {bounds(expected)} expected; {expected.why}"


def _pile(lab: Lab) -> str:
    """How much an incast can have waiting at the receiver's port: it drains one burst while the senders send theirs."""
    load = lab.workload
    assert isinstance(load, Incast)
    senders = len(load.plan(lab.fabric).channels)
    limits = [(senders - 1) * load.size_bytes / BYTES_PER_KB,
              senders * load.qps_per_connection * load.window_bytes / BYTES_PER_KB]
    if load.admission_kb is not None:
        limits.append(load.admission_kb)
    return (f"at most {min(limits):,.0f} KB of {senders} bursts wait at the receiver's port, whose buffer holds "
            f"{lab.fabric.buffer_kb:,.0f} KB")
