"""What a lab needs from the machine: one function a requirement, each with its remedy.

Nothing here changes anything, and nothing is imported at the top that might be missing on a machine that is ill.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

from topologies.errors import LabError

State = Literal["ok", "warning", "bad"]

SUPPORTED = {"debian": ("12", "13"), "ubuntu": ("22.04", "24.04")}
SOCKET_BUFFER_BYTES = 8 << 20
SHM_BYTES = 256 << 20
_CLONE_NEWNET = 0x40000000
_SHM = Path("/dev/shm")
_INSTALL = "sudo make install"
_VM = "the virtual machine: cd vagrant && vagrant up"


@dataclass(frozen=True)
class Finding:
    """One line of `straggler doctor`.  "bad": no lab will run; "warning": labs run, but perhaps not well."""

    name: str
    state: State
    text: str
    remedy: str | None = None


def examine() -> Iterator[Finding]:
    """All findings, one by one; an error in a check is a finding, too."""
    for check in (_system, _python, _native_core, _mininet, _ryu, _tools, _root, _namespaces, _realtime, _processors,
                  _shared_memory, _open_vswitch, _datapath, _socket_buffers, _other_lab):
        try:
            yield check()
        except LabError as error:
            yield Finding(check.__name__[1:].replace("_", " "), "bad", error.message, error.remedy)
        except (OSError, ImportError) as error:
            yield Finding(check.__name__[1:].replace("_", " "), "bad", f"cannot be examined: {error}", _INSTALL)


def _system() -> Finding:
    if platform.system() != "Linux":
        return Finding("system", "bad", f"{platform.system()} is not Linux", _VM)
    release = platform.freedesktop_os_release()
    name = release.get("PRETTY_NAME", "unknown")
    text = f"{name}, kernel {platform.release()}"
    if release.get("VERSION_ID") not in SUPPORTED.get(release.get("ID", ""), ()):
        return Finding("system", "warning", f"{text}: not tried with this distribution",
                       f"Debian 12 or 13, Ubuntu 22.04 or 24.04, or {_VM}")
    return Finding("system", "ok", text)


def _python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")


def _native_core() -> Finding:
    return _importable("native core", "topologies.fabricd._core", "built")


def _mininet() -> Finding:
    return _importable("Mininet", "mininet.net", "installed")


def _ryu() -> Finding:
    return _importable("Ryu", "ryu", "installed")


def _importable(name: str, module: str, text: str) -> Finding:
    try:
        import_module(module)
    except ImportError as error:
        return Finding(name, "bad", f"cannot be imported: {error}", _INSTALL)
    return Finding(name, "ok", text)


def _tools() -> Finding:
    missing = [tool for tool in ("ip", "ethtool", "mnexec", "ovs-vsctl") if shutil.which(tool) is None]
    if missing:
        return Finding("tools", "bad", f"missing: {', '.join(missing)}", _INSTALL)
    return Finding("tools", "ok", "ip, ethtool, mnexec, ovs-vsctl")


def _root() -> Finding:
    if os.geteuid() != 0:
        return Finding("root", "bad", "not root: labs create namespaces and packet sockets", "run it with sudo")
    return Finding("root", "ok", "yes")


def _namespaces() -> Finding:
    if _in_child(lambda: ctypes.CDLL(None).unshare(_CLONE_NEWNET) == 0):
        return Finding("namespaces", "ok", "network namespaces can be created")
    return Finding("namespaces", "bad", "network namespaces cannot be created",
                   "run it as root; a container needs --privileged")


def _realtime() -> Finding:
    def become_realtime() -> bool:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return True

    if _in_child(become_realtime):
        return Finding("real time", "ok", "SCHED_RR is allowed")
    return Finding("real time", "warning", "SCHED_RR is refused: nice -20 has to do, and the verdict will judge",
                   "root; in a container --cap-add=SYS_NICE; sysctl kernel.sched_rt_runtime_us=950000")


def _in_child(attempt: Callable[[], bool]) -> bool:
    """Whether `attempt` succeeds in a process of its own, which it may change as it likes."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if attempt() else 1
        except OSError:
            pass
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _processors() -> Finding:
    usable = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    text = f"{usable} usable, load {load:.1f}"
    if usable < 2:
        return Finding("processors", "warning", f"{text}: labs want two", "one more, or --slowdown auto")
    if load > usable / 2:
        return Finding("processors", "warning", f"{text}: busy with something else", "wait until it is idle")
    return Finding("processors", "ok", text)


def _shared_memory() -> Finding:
    status = os.statvfs(_SHM)
    free = status.f_bavail * status.f_frsize
    if free < SHM_BYTES:
        return Finding("shared memory", "bad", f"{free >> 20} MB free in {_SHM}",
                       f"mount -o remount,size=1g {_SHM}")
    return Finding("shared memory", "ok", f"{free >> 20} MB free in {_SHM}")


def _open_vswitch() -> Finding:
    from topologies import ovs

    return Finding("Open vSwitch", "ok", f"{ovs.version()} runs")


def _datapath() -> Finding:
    from topologies import ovs

    datapath = ovs.datapath()
    return Finding("datapath", "ok", datapath if datapath == "kernel" else "userspace: no module openvswitch here")


def _socket_buffers() -> Finding:
    """OVS's packet sockets take the defaults when the daemon starts; with the usual 208 KB a burst overruns them."""
    from topologies import ovs

    keys = [f"net.core.{name}_default" for name in ("wmem", "rmem")]
    have = {key: int(Path("/proc/sys", *key.split(".")).read_text()) for key in keys}
    small = [key for key in keys if have[key] < SOCKET_BUFFER_BYTES]
    if ovs.datapath() == "userspace" and small:
        wanted = " ".join(f"{key}={SOCKET_BUFFER_BYTES}" for key in small)
        return Finding("socket buffers", "bad", f"{small[0]} is {have[small[0]]}: frames would vanish inside OVS",
                       f"sysctl -w {wanted}, then restart Open vSwitch")
    return Finding("socket buffers", "ok", ", ".join(f"{key} is {have[key]}" for key in keys))


def _other_lab() -> Finding:
    from topologies import cleanup

    pid = cleanup.running()
    if pid is not None:
        return Finding("other labs", "warning", f"a lab is running (pid {pid})", "one at a time: wait, or end it")
    return Finding("other labs", "ok", "none")
