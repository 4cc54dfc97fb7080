"""`straggler policy NAME`."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from controllers.client import ControllerClient
from controllers.registry import create_policy, policy_names
from labs.cli import wrong_use
from labs.lab import parse_parameters


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in policy_names() if name.startswith(incomplete)]


@click.command(epilog="""\b
Examples:
  sudo straggler policy dlb
  sudo straggler policy dlb --set period_us=100
  sudo straggler policy ./my_policy.py""")
@click.argument("name", metavar="NAME", shell_complete=_complete)
@click.option("--set", "settings", multiple=True, metavar="PARAMETER=VALUE", help="A parameter of the policy.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Of the switches' hash functions (the fabric's).")
def command(name: str, settings: tuple[str, ...], seed: int | None) -> None:
    """Change the load-balancing policy of the running lab to NAME; no packet is lost."""
    with wrong_use():
        parameters = parse_parameters(settings)
        create_policy(name, parameters)
    with ControllerClient() as controller:
        controller.call("policy", name=name, params=parameters, seed=seed)
    click.echo(f"all leaves now use {name}")
