"""run.json's schema: its number, and the check that every document passes before it is written and after it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from topologies.errors import LabError

SCHEMA = 2


def check(document: Mapping[str, Any]) -> None:
    """Raises LabError, naming the place, if `document` is not what schema.json promises."""
    error = jsonschema.exceptions.best_match(_validator().iter_errors(document))
    if error is not None:
        raise LabError(f"run.json: {error.json_path[2:] or 'document'}: {error.message}")


@cache
def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((Path(__file__).parent / "schema.json").read_text()))
