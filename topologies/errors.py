"""The one exception that a user may see."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class LabError(Exception):
    """Something that the user can put right: one sentence, and the remedy if there is one.

    The command line prints `message` and `remedy`, never a traceback.
    """

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `name` was probably meant to be, or None."""
    close = get_close_matches(name.lower(), list(names), n=1, cutoff=0.5)
    return close[0] if close else None


def unknown_name(what: str, name: str, names: Iterable[str]) -> LabError:
    """The error for a `name` that is none of `names`; `what` says what it should have named, e.g. "policy"."""
    known = sorted(names)
    guess = nearest(name, known)
    remedy = f"did you mean {guess}?" if guess else f"one of: {', '.join(known)}"
    return LabError(f"unknown {what} {name!r}", remedy)
