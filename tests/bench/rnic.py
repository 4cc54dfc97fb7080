"""The RNIC alone: packets a second of CPU, against the kernel's UDP sockets in the same process."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path

from tests.bench.row import Row

HERE = Path(__file__).resolve().parent
CORE = HERE.parents[1] / "topologies/fabricd/core"
RUNS = 3


def rnic_packets() -> Row:
    """Full data packets (4,096 bytes) a second and core: send, receive and acknowledgement."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "rnic_bench"
        sources = [HERE / "rnic_bench.c", *CORE.glob("*.c")]
        subprocess.run(["gcc", "-std=gnu11", "-O2", f"-I{CORE}", *sources, "-o", program, "-lm"], check=True)
        runs = [subprocess.check_output([program], text=True).split() for _ in range(RUNS)]
    ours = statistics.median(float(run[0]) for run in runs)
    peer = statistics.median(float(run[1]) for run in runs)
    return Row("rnic_packets", ours, peer, ours / peer, "packets/s a core; peer: UDP sockets; ours/peer")
