"""`straggler completion SHELL`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(epilog="""\b
Examples:
  straggler completion bash | sudo tee /etc/bash_completion.d/straggler
  source <(straggler completion zsh)
  straggler completion fish > ~/.config/fish/completions/straggler.fish""")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that completes verbs, labs, policies and options in SHELL."""
    from labs.cli import main

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(main, {}, "straggler", "_STRAGGLER_COMPLETE").source())
