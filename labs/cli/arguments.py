"""Arguments that several verbs take, with their shell completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from labs.cli import wrong_use
from labs.lab import Lab, exercises, load
from topologies.errors import LabError

F = TypeVar("F", bound=Callable[..., Any])


class LabName(click.ParamType[str]):
    """The name of an exercise, the beginning of one, or the path of a lab.py."""

    name = "lab"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name) for name in exercises() if name.startswith(incomplete)]
        return names or [CompletionItem(incomplete, type="file")]


class PolicyNames(click.ParamType[str]):
    """Names of policies with commas between them; a path of a file with one is a name, too."""

    name = "policies"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from controllers.registry import policy_names

        done, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{done}{comma}{name}") for name in policy_names() if name.startswith(last)]


class VariantNames(click.ParamType[str]):
    """Names of a lab's variants with commas between them."""

    name = "variants"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        done, comma, last = incomplete.rpartition(",")
        try:
            lab_name = ctx.params.get("lab_name") or next(iter(ctx.args), "")  # as far as click has got
            names = list(load(lab_name).variants)
        except LabError:
            names = []
        return [CompletionItem(f"{done}{comma}{name}") for name in names if name.startswith(last)]


def lab_argument(function: F) -> F:
    """LAB."""
    return click.argument("lab_name", metavar="LAB", type=LabName())(function)


def fabric_options(function: F) -> F:
    """--set and --slowdown."""
    slowdown = click.option("--slowdown", metavar="N|auto",
                            help="Lab time over hardware time; auto: the smallest that this machine sustains.")
    settings = click.option("--set", "settings", multiple=True, metavar="KEY=VALUE",
                            help="Change a key of the fabric or the workload, dcqcn.FIELD or POLICY.PARAMETER; repeat "
                                 "at will.  It holds for all variants.")
    return settings(slowdown(function))


def configured(lab_name: str, settings: Iterable[str], slowdown: str | None = None,
               variants: tuple[str, ...] | None = None, **fields: Any) -> Lab:
    """The lab with everything that was said on the command line.  Raises WrongUseError."""
    with wrong_use():
        lab = load(lab_name)
        if variants is not None:
            lab = lab.only(variants)
        lab = lab.with_overrides(settings)
        if slowdown is not None:
            lab = lab.with_overrides([f"slowdown={slowdown}"])
        lab = lab.replace(**{name: value for name, value in fields.items() if value is not None})
        lab.check()
        return lab


def split_names(text: str | None, option: str, example: str) -> tuple[str, ...] | None:
    """ "ecmp,dlb" as names; None stays None."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        with wrong_use():
            raise LabError(f"{option} names none", f"for example {option} {example}")
    return names
