"""tcpdump on a host's interface, and tshark on what it has written."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topologies.network import FabricNet

DEADLINE_S = 10.0


@contextmanager
def captured(net: FabricNet, host: str, path: Path, *expression: str) -> Iterator[None]:
    """Captures on the host's NIC what `expression` lets through, headers only, until the end of the block."""
    command = [shutil.which("tcpdump"), "-i", net[host].defaultIntf().name, "--immediate-mode", "-U", "-s", "128",
               "-w", str(path), *expression]
    dump = net[host].popen(command, stderr=subprocess.PIPE, text=True)
    assert "listening on" in dump.stderr.readline()
    try:
        yield
    finally:
        dump.terminate()
        dump.wait(DEADLINE_S)


def dissected(path: Path, fields: tuple[str, ...], display_filter: str = "") -> list[dict[str, str]]:
    """The fields of every packet that the filter lets through, as tshark reads them; "" where there is none."""
    command = ["tshark", "-r", str(path), "-Y", display_filter, "-T", "fields"]
    command += [word for field in fields for word in ("-e", field)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [dict(zip(fields, line.split("\t"), strict=True)) for line in lines]
