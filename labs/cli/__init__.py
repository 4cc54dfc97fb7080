"""The command line: one file a verb, imported only when it is used, so that `straggler --help` is quick.

Exit status: 0 done, 1 failed, 2 wrong use, 3 INVALID (the emulator did not keep up; the results prove nothing).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from topologies.errors import LabError, nearest

# verb -> what it does; each is `command` in the module of that name.  In the order of a first visit.
VERBS = {
    "doctor": "Check this machine, and say what is wrong and how to put it right.",
    "labs": "List the labs.",
    "check": "Check a lab offline: no root, nothing is built.",
    "demo": "The first lab, short: what ECMP does to an all-reduce, and what dynamic load balancing gives back.",
    "run": "Build a lab's fabric, play every policy, write results.",
    "plot": "Draw the plots of a run again.",
    "report": "Write the report of a run again.",
    "why": "Name the late rank, its flow, and where it lost its time.",
    "events": "List what happened in a run: pauses and their reasons, faults, drops, moves.",
    "shell": "Build a lab's fabric and hand over Mininet's command line.",
    "policy": "Change the load-balancing policy of the running lab.",
    "clean": "Remove what a lab that was killed has left behind.",
    "completion": "Print the completion script for a shell.",
}


class WrongUseError(LabError):
    """A LabError about what was typed or written, not about the machine: exit status 2."""


@contextmanager
def wrong_use() -> Iterator[None]:
    """LabErrors inside are about the input."""
    try:
        yield
    except LabError as error:
        raise WrongUseError(error.message, error.remedy) from None


class Verbs(click.Group):
    """Loads a verb when it is needed, and turns a LabError into a sentence and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"labs.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            guess = nearest(args[0], VERBS)
            ctx.fail(f"no verb {args[0]!r}" + (f"; did you mean {guess}?" if guess else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LabError as error:
            click.echo(f"straggler: {sentence(error)}", err=True)
            ctx.exit(2 if isinstance(error, WrongUseError) else 1)
        except ModuleNotFoundError as error:
            click.echo(f"straggler: {error.name} is not installed (sudo make install; straggler doctor)", err=True)
            ctx.exit(1)


def sentence(error: LabError) -> str:
    """The error and its remedy, as one line for a person."""
    return error.message if error.remedy is None else f"{error.message} ({error.remedy})"


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]}, epilog="""\b
Examples:
  straggler doctor
  sudo straggler demo
  sudo straggler run m5_ecmp_collisions --policies ecmp,dlb --seeds 10
  straggler why results/m5_ecmp_collisions/2025-01-31T12-00-00 --iteration 3

Exit status: 0 done, 1 failed, 2 wrong use, 3 INVALID.""")
@click.version_option(package_name="straggler")
def main() -> None:
    """An AI back-end fabric in slow motion: who is late, and why."""
