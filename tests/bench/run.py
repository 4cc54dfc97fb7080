"""``make bench``: every figure as a ratio to a peer that is measured in the same run; also results/bench.json."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.build import build_64_hosts
from tests.bench.datapaths import datapaths
from tests.bench.mechanisms import mechanisms
from tests.bench.policy import policy_switch
from tests.bench.rnic import rnic_packets
from tests.bench.row import Row
from tests.bench.traffic import cpu_same_traffic, link_crossing
from topologies.errors import LabError

ROOT = Path(__file__).resolve().parents[2]
BENCHES: list[Callable[[], Row | list[Row]]] = [
    rnic_packets, build_64_hosts, policy_switch, cpu_same_traffic, link_crossing, mechanisms, datapaths]
RESULT = ROOT / "results/bench.json"


def main(names: list[str]) -> int:
    """Runs the named benchmarks, or all. Returns the exit status."""
    console = Console()
    benches = [bench for bench in BENCHES if not names or bench.__name__ in names]
    rows: list[Row] = []
    for bench in benches:
        begin = time.monotonic()
        console.print(f"{bench.__name__} ...", end=" ")
        try:
            result = bench()
        except LabError as error:
            console.print(f"failed: {error}" + (f" ({error.remedy})" if error.remedy else ""))
            return 1
        rows += result if isinstance(result, list) else [result]
        console.print(f"{time.monotonic() - begin:.0f} s")
    table = Table()
    for heading in ("name", "ours", "peer", "ratio", "unit"):
        table.add_column(heading, justify="left" if heading in ("name", "unit") else "right")
    for row in rows:
        peer = "-" if row.peer is None else f"{row.peer:,.4g}"
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.name, f"{row.ours:,.4g}", peer, ratio, row.unit)
    console.print(table)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    console.print(f"written to {RESULT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
