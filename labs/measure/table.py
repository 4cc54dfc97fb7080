"""The table at the end of a run, in the manner of nccl-tests, with what theory says beside what was measured."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

COLUMNS: Sequence[tuple[str, str, Literal["left", "right"]]] = (  # header, unit below it, justification
    ("run", "", "left"), ("seed", "", "right"), ("size", "(B)", "right"), ("count", "(elements)", "right"),
    ("type", "", "left"), ("redop", "", "left"), ("time", "(us)", "right"),
    ("p99", "(us)", "right"), ("ideal", "(us)", "right"), ("ratio", "", "right"), ("theory", "", "right"),
    ("algbw", "(Gb/s)", "right"), ("busbw", "(Gb/s)", "right"), ("#wrong", "", "right"), ("drops", "", "right"),
    ("resent", "", "right"), ("pauses", "", "right"), ("stalls", "", "right"), ("marks", "", "right"),
    ("reordered", "", "right"), ("moves", "", "right"), ("verdict", "", "left"),
)
ELEMENT_BYTES = 4  # of float32, the only type yet
# Shown only where a run has other than none of them.
OPTIONAL = ("count", "type", "redop", "theory", "resent", "pauses", "stalls", "marks", "reordered", "moves")
# The first go first in a narrow terminal.
DISPENSABLE = ("p99", "type", "redop", "count", "size", "algbw", "moves", "ideal", "reordered", "seed",
               "theory", "busbw", "resent", "stalls")
_GAP = 2


def cells(run: Mapping[str, Any]) -> list[str]:
    """One line of the table as text, in the order of COLUMNS; "-" for what was not measured."""
    size = run.get("workload", {}).get("size_bytes")
    reduces = run.get("workload", {}).get("collective") == "all_reduce"
    broken = [check["check"] for check in run["verdict"] if not check["ok"]]
    return [
        run["label"], str(run["seed"]), f"{size:,}" if size else "-",
        f"{size // ELEMENT_BYTES:,}" if size and reduces else "-", "float" if reduces else "-",
        "sum" if reduces else "-", _number(run["time_us"]["mean"], 1),
        _number(run["time_us"]["p99"], 1), _number(run["ideal_us"], 1), _number(run["jct_ratio"], 2),
        _number(run.get("predicted_factor"), 2), _number(run["algbw_gbps"], 2), _number(run["busbw_gbps"], 2),
        str(run["wrong"]), f"{run['drops']:,}", f"{run['retransmitted_packets']:,}", f"{run['pauses']:,}",
        f"{run['credit_stalls']:,}", f"{run['marks']:,}", f"{run['reordered_packets']:,}", f"{run['path_changes']:,}",
        "valid" if run["valid"] else f"INVALID ({', '.join(broken)})",
    ]


def results_table(runs: Iterable[Mapping[str, Any]], title: str | None = None, width: int | None = None) -> Table:
    """A rich table; a line a run.  In less than `width` columns (None: of the terminal) it leaves out what it can."""
    listed = list(runs)
    lines = [cells(run) for run in listed]
    shown = _fitting(lines, width or shutil.get_terminal_size().columns)
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False,
                  padding=(0, _GAP, 0, 0))
    for column in shown:
        name, unit, justify = COLUMNS[column]
        table.add_column(f"{name}\n{unit}" if unit else name, justify=justify, no_wrap=name != "verdict")
    for run, line in zip(listed, lines, strict=True):
        table.add_row(*(_styled(COLUMNS[column][0], line[column], run) for column in shown))
    return table


def worth_showing(lines: Sequence[Sequence[str]]) -> list[int]:
    """Indices of the columns that are not optional, or hold something."""
    return [index for index, (name, _, _) in enumerate(COLUMNS)
            if name not in OPTIONAL or any(line[index] not in ("0", "-") for line in lines)]


def _fitting(lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """Indices of the columns to show."""
    shown = worth_showing(lines)
    widths = [max(len(text) for text in (*COLUMNS[column][:2], *(line[column] for line in lines)))
              for column in range(len(COLUMNS))]
    widths[-1] = min(widths[-1], 16)  # the verdict may wrap
    for name in DISPENSABLE:
        if sum(widths[column] + _GAP for column in shown) - _GAP <= width:
            break
        shown = [column for column in shown if COLUMNS[column][0] != name]
    return shown


def _styled(name: str, text: str, run: Mapping[str, Any]) -> Text:
    if name == "verdict":
        return Text(text, style="green" if run["valid"] else "bold red")
    return Text(text, style="bold red" if name == "#wrong" and run["wrong"] else "")


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
