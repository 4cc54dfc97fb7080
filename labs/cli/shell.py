"""`straggler shell LAB`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from mininet.cli import CLI
from rich.console import Console
from rich.table import Table

from controllers.registry import create_policy
from labs.cli import sentence
from labs.cli.arguments import configured, fabric_options, lab_argument
from labs.lab import Lab, parse_parameters
from labs.measure.results import summarise
from labs.measure.table import results_table
from labs.runner_outcome import require_root
from labs.runner_play import Run, Silent
from labs.runner_session import Session
from labs.runner_ui import parameter_lines
from labs.workload import Incast, Permutation, RingAllReduce, Workload
from topologies.errors import LabError, unknown_name

BURSTS: dict[str, type[Workload]] = {"ring": RingAllReduce, "incast": Incast, "permutation": Permutation}


@click.command(epilog="""\b
Examples:
  sudo straggler shell m5_ecmp_collisions
  mininet> h0 ping -c 3 h5
  mininet> policy dlb
  mininet> burst incast senders=8 receiver=h3 size_bytes=262144
  mininet> queues""")
@lab_argument
@fabric_options
@click.option("--variant", metavar="NAME", help="The lab as it is in one of its variants.")
def command(lab_name: str, settings: tuple[str, ...], slowdown: str | None, variant: str | None) -> None:
    """Build the fabric of LAB, start the controller, and hand over Mininet's command line.

    It has three more commands: `policy NAME [parameter=value]`, `burst [ring|incast|permutation] [key=value]` and
    `queues`.  Everything is removed when you leave it.
    """
    lab = configured(lab_name, settings, slowdown, None if variant is None else (variant,))
    lab = lab.replace(variants={}) if variant is None else lab.variant(variant)
    require_root()
    if isinstance(lab.fabric.slowdown, str):
        from topologies import calibrate

        lab = lab.replace(fabric=calibrate.resolve(lab.fabric))
    console = Console()
    for line in parameter_lines(lab):
        console.print(line, highlight=False, soft_wrap=True)
    with Session(lab, all_hosts=True) as session:
        Shell.session, Shell.lab, Shell.console = session, lab, console
        Shell(session.net)


def _safe(method: Callable[[Shell, str], None]) -> Callable[[Shell, str], None]:
    """What goes wrong is a sentence; the shell goes on."""
    @wraps(method)
    def guarded(self: Shell, line: str) -> None:
        try:
            method(self, line)
        except LabError as error:
            self.console.print(sentence(error), style="red", highlight=False, markup=False)
        except KeyboardInterrupt:
            self.console.print("interrupted")

    return guarded


class Shell(CLI):  # type: ignore[misc]
    """Mininet's command line, and three commands more.  Its constructor is its main loop (Mininet's way)."""

    session: Session
    lab: Lab
    console: Console

    @_safe
    def do_policy(self, line: str) -> None:
        """policy NAME [parameter=value ...]: change the load-balancing policy of all leaves; alone: show it."""
        name, *settings = shlex.split(line) or [""]
        if name:
            parameters = parse_parameters(settings)
            create_policy(name, parameters)
            self.session.controller.call("policy", name=name, params=parameters)
        status = self.session.controller.call("status")
        shown = ", ".join(f"{key}={value}" for key, value in status["parameters"].items())
        self.console.print(f"{status['policy']}  {shown}", highlight=False)

    @_safe
    def do_burst(self, line: str) -> None:
        """burst [ring|incast|permutation] [key=value ...]: play it once; without a name: the lab's own, with faults."""
        words = shlex.split(line)
        workload, faults = self.lab.workload, self.lab.faults
        if words and "=" not in words[0]:
            name, faults = words.pop(0), ()
            if name not in BURSTS:
                raise unknown_name("burst", name, BURSTS)
            if not isinstance(workload, BURSTS[name]):
                common = {field.name: getattr(workload, field.name) for field in dataclasses.fields(Workload)}
                workload = BURSTS[name](**common)
        lab = self.lab.replace(workload=workload.with_overrides(words), iterations=1, warmup=0, faults=faults)
        seed = int(self.session.controller.call("status")["seed"])
        played = Run(self.session, lab, None, seed, Silent()).play()
        if played.reason is not None:
            raise LabError(played.reason)
        self.console.print(results_table([summarise(played.raw)]))

    @_safe
    def do_queues(self, line: str) -> None:
        """queues: depth, peak, frames sent and dropped of every port between switches and towards hosts."""
        snapshot = self.session.telemetry.snapshot()
        fabric = self.session.fabric
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("port", "KB now", "KB peak", "frames", "drops"):
            table.add_column(name, justify="left" if name == "port" else "right")
        for port in fabric.ports:
            queues: Any = snapshot.ports[port.index]["queue"]
            if port.role != "nic" and queues["sent_frames"].sum() + queues["dropped_frames"].sum():
                table.add_row(fabric.port_name(port.index), f"{queues['depth_bytes'].sum() / 1024:.0f}",
                              f"{queues['peak_bytes'].max() / 1024:.0f}", str(queues["sent_frames"].sum()),
                              str(queues["dropped_frames"].sum()))
        self.console.print(table)
