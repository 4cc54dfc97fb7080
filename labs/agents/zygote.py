"""Zygote: one process that has imported numpy and verbs, and forks the ranks.

Importing numpy costs 0.15 s of CPU and tens of megabytes; forked ranks pay for it once.  Commands come on stdin, one
JSON line each: {"host": "h0", "pid": 1234} forks the rank of that host (pid: of the host's shell, whose network
namespace it enters).  Its end is reported on stdout: {"host": "h0", "status": -9}.  When stdin ends, so do all ranks;
when the zygote dies, the kernel kills them.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path

from labs.agents import rank

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_GRACE_S = 1.0
_libc = ctypes.CDLL(None, use_errno=True)


def enter_network_namespace(pid: int) -> None:
    """Joins the network namespace of process `pid`.  Raises OSError.  (`os.setns` needs Python 3.12.)"""
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"setns: {os.strerror(code)}")
    finally:
        os.close(descriptor)


def _child(host: str, pid: int, socket_path: Path) -> int:
    """The forked rank, until it ends; the exit status."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _libc.prctl(_PR_SET_NAME, f"rank-{host}".encode())
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        enter_network_namespace(pid)
        rank.serve(host, socket_path)
    except Exception:
        traceback.print_exc()  # into the zygote's log
        return 1
    return 0


def main(socket_path: Path) -> None:
    """Serves commands until stdin ends."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's; it closes our stdin
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    gc.freeze()  # keep the collector from writing to pages that the ranks share
    hosts: dict[int, str] = {}
    pending = b""
    try:
        while True:
            ready, _, _ = select.select([0, wake_read], [], [])
            if wake_read in ready:
                os.read(wake_read, 4096)
                _report_ended(hosts)
            if 0 in ready:
                chunk = os.read(0, 65536)
                if not chunk:
                    return
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    command = json.loads(line)
                    child = os.fork()
                    if child == 0:
                        status = 1
                        try:
                            status = _child(command["host"], command["pid"], socket_path)
                        finally:
                            os._exit(status)
                    hosts[child] = command["host"]
    finally:
        _end_all(hosts)


def _report_ended(hosts: dict[int, str]) -> None:
    while hosts:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        report = {"host": hosts.pop(pid), "status": os.waitstatus_to_exitcode(status)}
        os.write(1, json.dumps(report).encode() + b"\n")


def _end_all(hosts: dict[int, str]) -> None:
    """Ranks end by themselves when the runner closes their sockets; the slow ones are helped."""
    deadline = time.monotonic() + _GRACE_S
    while hosts and time.monotonic() < deadline:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid:
            hosts.pop(pid, None)
        else:
            time.sleep(0.01)
    for pid in hosts:
        os.kill(pid, signal.SIGKILL)
    for pid in hosts:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
