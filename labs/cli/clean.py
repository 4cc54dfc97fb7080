"""`straggler clean`."""

from __future__ import annotations

import click

from labs.runner_outcome import require_root
from topologies import cleanup
from topologies.errors import LabError


@click.command(epilog="""\b
Examples:
  sudo straggler clean""")
def command() -> None:
    """Remove what a lab that was killed has left behind: its processes, bridges, interfaces and files, nothing else."""
    require_root()
    pid = cleanup.running()
    if pid is not None:
        raise LabError(f"a lab is running (pid {pid})", f"end it first: sudo kill {pid}")
    removed = cleanup.clean()
    for what in removed:
        click.echo(f"removed {what}")
    if not removed:
        click.echo("nothing to remove")
