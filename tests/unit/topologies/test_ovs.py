"""What is said when Open vSwitch is not as it should be; and how a FabricNet refuses, without root."""

import os
import subprocess
from pathlib import Path

import pytest

from topologies import ovs
from topologies.errors import LabError
from topologies.network import FabricNet
from topologies.spec import FabricSpec

NO_SERVER = """\
2024-01-01T00:00:00Z|00001|stream_unix|ERR|/var/run/openvswitch/db.sock: connection attempt failed
ovs-vsctl: unix:/var/run/openvswitch/db.sock: database connection failed (No such file or directory)
"""


def answer(monkeypatch: pytest.MonkeyPatch, status: int, stderr: str) -> None:
    done: subprocess.CompletedProcess[str] = subprocess.CompletedProcess([], status, "", stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_options: done)


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LabError, match="not installed") as caught:
        ovs.vsctl("show")
    assert caught.value.remedy == "apt install openvswitch-switch"
    assert ovs.datapath() in ("userspace", "kernel")  # no modprobe either


def test_not_running(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 1, NO_SERVER)
    with pytest.raises(LabError, match="Open vSwitch is not running") as caught:
        ovs.vsctl("show")
    assert "systemctl start openvswitch-switch" in str(caught.value.remedy)


def test_no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ovs, "_PIDFILES", (tmp_path / "none",))
    with pytest.raises(LabError, match="ovs-vswitchd is not running"):
        ovs.version()
    assert ovs.remove_bridges() == []


def test_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 1, "ovs-vsctl: cannot create a bridge named sg-leaf0\n")
    with pytest.raises(LabError, match="Open vSwitch refuses: ovs-vsctl: cannot create a bridge named sg-leaf0"):
        ovs.vsctl("add-br", "sg-leaf0")


def test_scheduler_of_a_daemon_that_is_gone() -> None:
    me = os.getpid()
    assert not ovs.restore_scheduler(ovs.SchedulingPolicy(me, start_ticks=1, policy=0, priority=0, nice=0))
    assert not ovs.restore_scheduler(ovs.SchedulingPolicy(2**22 + 1, start_ticks=1, policy=0, priority=0, nice=0))


def test_network_refuses_before_it_touches_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabError, match="auto"):
        FabricNet(FabricSpec())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root"):
        FabricNet(FabricSpec(slowdown=1000))
