"""Open vSwitch on this machine: is it there, which datapath, whose bridges, which scheduling policy."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from topologies.errors import LabError
from topologies.fabric import PREFIX

# In a bridge's external_ids: ours, whatever it is called.
MARK = ("owner", "straggler")
REALTIME_PRIORITY = 19  # SCHED_RR, one below fabricd's
_NICE = -20
_PIDFILES = (Path("/run/openvswitch/ovs-vswitchd.pid"), Path("/var/run/openvswitch/ovs-vswitchd.pid"))
_TIMEOUT_S = 20


@dataclass(frozen=True)
class SchedulingPolicy:
    """How the threads of one ovs-vswitchd process were scheduled."""

    pid: int
    start_ticks: int  # field 22 of /proc/<pid>/stat: with the pid, names a process beyond doubt
    policy: int
    priority: int
    nice: int


def vsctl(*arguments: str) -> str:
    """Run one ovs-vsctl command; returns what it prints.  Raises LabError if OVS does not answer or refuses."""
    try:
        done = subprocess.run(["ovs-vsctl", f"--timeout={_TIMEOUT_S}", *arguments],
                              capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LabError("Open vSwitch is not installed", "apt install openvswitch-switch") from None
    if done.returncode:
        # Its log lines begin with a date and bars; the last field of the last line says what is wrong.
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1].rpartition("|")[2]
        if "database connection failed" in done.stderr:
            raise LabError("Open vSwitch is not running: its database does not answer",
                           "systemctl start openvswitch-switch, or without systemd: "
                           "/usr/share/openvswitch/scripts/ovs-ctl start --system-id=random")
        raise LabError(f"Open vSwitch refuses: {reason}")
    return done.stdout


def version() -> str:
    """The version of the running ovs-vswitchd.  Raises LabError if it does not run."""
    if vswitchd_pid() is None:
        raise LabError("ovs-vswitchd is not running",
                       "systemctl restart openvswitch-switch, or without systemd: "
                       "/usr/share/openvswitch/scripts/ovs-ctl restart --system-id=random")
    return vsctl("get", "Open_vSwitch", ".", "ovs_version").strip().strip('"')


def datapath() -> str:
    """The best datapath here: "kernel" where there is the module openvswitch, otherwise "userspace"."""
    if Path("/sys/module/openvswitch").is_dir():
        return "kernel"
    try:
        loadable = subprocess.run(["modprobe", "--quiet", "--dry-run", "openvswitch"], capture_output=True, check=False)
    except FileNotFoundError:
        return "userspace"
    return "userspace" if loadable.returncode else "kernel"


def our_bridges() -> list[str]:
    """Names of the bridges that carry our mark and prefix."""
    marked = vsctl("--bare", "--columns=name", "find", "Bridge", f"external_ids:{MARK[0]}={MARK[1]}").split()
    return [name for name in marked if name.startswith(PREFIX)]


def remove_bridges() -> list[str]:
    """Delete our bridges, all in one transaction; returns their names.  Nothing to do where OVS does not run."""
    if vswitchd_pid() is None:
        return []
    names = our_bridges()
    if names:
        vsctl(*(word for name in names for word in ("--", "--if-exists", "del-br", name)))
    return names


def vswitchd_pid() -> int | None:
    """The pid of the machine's ovs-vswitchd, or None."""
    for path in _PIDFILES:
        try:
            pid = int(path.read_text())
            os.kill(pid, 0)
        except (OSError, ValueError):
            continue
        return pid
    return None


def current_scheduler() -> SchedulingPolicy | None:
    """The policy of ovs-vswitchd as it is now."""
    pid = vswitchd_pid()
    if pid is None:
        return None
    return SchedulingPolicy(pid, _start_ticks(pid), os.sched_getscheduler(pid), os.sched_getparam(pid).sched_priority,
                            os.getpriority(os.PRIO_PROCESS, pid))


def raise_scheduler(before: SchedulingPolicy) -> str:
    """Give all threads of ovs-vswitchd real-time priority, or what the machine allows; returns what that was."""
    threads = _threads(before.pid)
    try:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(REALTIME_PRIORITY))
        return f"SCHED_RR {REALTIME_PRIORITY}"
    except PermissionError:  # a container, or RT_GROUP_SCHED without a budget
        pass
    try:
        for thread in threads:
            os.setpriority(os.PRIO_PROCESS, thread, _NICE)
        return f"nice {_NICE}"
    except PermissionError:
        return "unchanged"


def restore_scheduler(before: SchedulingPolicy) -> bool:
    """Put the policy back, if that ovs-vswitchd still runs; returns whether it had to."""
    try:
        if _start_ticks(before.pid) != before.start_ticks or current_scheduler() == before:
            return False
        for thread in _threads(before.pid):
            os.sched_setscheduler(thread, before.policy, os.sched_param(before.priority))
            os.setpriority(os.PRIO_PROCESS, thread, before.nice)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return True


def _threads(pid: int) -> Iterable[int]:
    return [int(entry) for entry in os.listdir(f"/proc/{pid}/task")]


def _start_ticks(pid: int) -> int:
    # The command's name, in parentheses, may hold anything: count from the last one.  It is field 2; this is field 22.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
