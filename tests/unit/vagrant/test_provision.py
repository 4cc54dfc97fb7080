"""The installer on machines that are played: a directory for the file system, scripts of a few lines for the tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DEBIAN_12 = 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'
SOCKET_BUFFER_BYTES = 8 * 1024 * 1024

# Each tool writes its name and arguments into $MACHINE/calls. `packages` holds the names of what is installed.
TOOLS = {
    "uname": "echo Linux",
    "id": '[ "$1" = -u ] && echo 0 || grep -qx "$1" "$MACHINE/users"',
    "dpkg-query": 'shift 3; for p; do grep -qx "$p" "$MACHINE/packages" && echo "$p installed"; done; true',
    "dpkg": "true",
    "apt-cache": 'grep -qx "$2" "$MACHINE/optional" && echo "Package: $2"; true',
    "apt-get": """
        case "$*" in *\\ install\\ *) ;; *) exit 0 ;; esac
        for p; do case "$p" in -*|*:*|*=*|install) ;; *) echo "$p" >>"$MACHINE/packages" ;; esac; done
        [ -e "$MACHINE/run/systemd/system" ] && start_switch; true""",
    "ovs-vsctl": 'case "$*" in *list-br) cat "$MACHINE/bridges" ;; esac; true',
    "ovs-ctl": "start_switch",
    "systemctl": 'case "$*" in *start*openvswitch-switch) start_switch ;; esac',
    "useradd": 'for name; do :; done; echo "$name" >>"$MACHINE/users"',
    "visudo": "true",
    "start_switch": """
        mkdir -p "$MACHINE/run/openvswitch" "$MACHINE/proc/7" "$MACHINE/proc/8"
        echo 7 >"$MACHINE/run/openvswitch/ovsdb-server.pid"; echo ovsdb-server >"$MACHINE/proc/7/comm"
        echo 8 >"$MACHINE/run/openvswitch/ovs-vswitchd.pid"; echo ovs-vswitchd >"$MACHINE/proc/8/comm\"""",
    "python3": """
        case "$*" in
            -VV) echo Python 3.11.2 ;;
            *venv*) mkdir -p "$4/bin"; echo "VIRTUAL_ENV=$4" >"$4/bin/activate"; cp "$0" "$4/bin/python"
                    echo 'include-system-site-packages = true' >"$4/pyvenv.cfg" ;;
            *pip*install*) echo "constraints $PIP_CONSTRAINT $PIP_BUILD_CONSTRAINT" >>"$MACHINE/calls"
                    touch "$CHECKOUT/topologies/fabricd/_core.abi3.so" ;;
            *build_ext*) touch "$CHECKOUT/topologies/fabricd/_core.abi3.so" ;;
        esac""",
}


class Machine:
    """A fresh Debian 12 without systemd, and a checkout of the project on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkout = path / "checkout"
        self.tools = path / "tools"
        for name in ("etc", "usr/bin", "usr/local/bin", "var/log", "run", "proc/sys/net/core", "etc/sudoers.d",
                     "usr/share/openvswitch/scripts", "tools", "checkout/vagrant", "checkout/topologies/fabricd"):
            (path / name).mkdir(parents=True)
        for name in ("calls", "packages", "optional", "bridges", "users"):
            (path / name).touch()
        self.file("etc/os-release").write_text(DEBIAN_12)
        for buffer in self.socket_buffers:
            buffer.write_text("212992\n")
        for name, script in TOOLS.items():
            self.tool(name, script)
        self.file("usr/bin/python3").symlink_to(self.tools / "python3")
        self.file("usr/share/openvswitch/scripts/ovs-ctl").symlink_to(self.tools / "ovs-ctl")
        for name in ("setup.py", "pyproject.toml", "vagrant/provision.sh", "vagrant/constraints.txt"):
            shutil.copy(ROOT / name, self.checkout / name)
        self.header = self.checkout / "topologies/fabricd/core.h"
        self.header.touch()

    def file(self, name: str) -> Path:
        return self.path / name

    @property
    def socket_buffers(self) -> list[Path]:
        return [self.file(f"proc/sys/net/core/{name}_default") for name in ("wmem", "rmem")]

    def tool(self, name: str, script: str) -> None:
        tool = self.tools / name
        tool.write_text(f'#!/bin/sh\necho "{name} $*" >>"$MACHINE/calls"\n{textwrap.dedent(script)}\n')
        tool.chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            "STRAGGLER_MACHINE": str(self.path), "MACHINE": str(self.path), "CHECKOUT": str(self.checkout),
            "PATH": f"{self.tools}:{os.environ['PATH']}",
        }
        script = self.checkout / "vagrant/provision.sh"
        return subprocess.run([script, *arguments], env=environment, capture_output=True, text=True, timeout=60)

    def calls(self, name: str) -> list[str]:
        """The calls of a tool, oldest first, since the last forget()."""
        return [line for line in self.file("calls").read_text().splitlines() if line.startswith(name + " ")]

    def forget(self) -> None:
        self.file("calls").write_text("")

    def says_and_stops(self, sentence: str, remedy: str, *arguments: str) -> None:
        """The run ends with status 1, one sentence and one remedy on standard error, and nothing else there."""
        result = self.run(*arguments)
        assert result.returncode == 1, result.stdout
        first, second = result.stderr.splitlines()
        assert first.startswith("error: ")
        assert sentence in first
        assert second.startswith("  do: ")
        assert remedy in second


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def installed(machine: Machine) -> Machine:
    """The same after a successful run."""
    result = machine.run()
    assert result.returncode == 0, result.stderr
    machine.forget()
    return machine


def not_root(machine: Machine) -> None:
    machine.tool("id", "echo 1000")


def test_a_fresh_machine_gets_everything(machine: Machine) -> None:
    result = machine.run()
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert {"mininet", "openvswitch-switch", "gcc"} <= set(machine.file("packages").read_text().split())
    assert machine.calls("ovs-ctl") == ["ovs-ctl --system-id=random start"]
    assert machine.file("usr/local/bin/straggler").readlink() == machine.checkout / ".venv/bin/straggler"
    assert "sudo straggler demo" in result.stdout


def test_a_second_run_changes_nothing_and_asks_no_network(installed: Machine) -> None:
    result = installed.run()
    assert result.stdout == "==> All is installed.\n"
    assert result.stderr == ""
    for tool in ("apt-get", "ovs-ctl", "systemctl"):
        assert installed.calls(tool) == []
    assert not any("pip" in call for call in installed.calls("python3"))


def test_a_second_run_needs_no_root(installed: Machine) -> None:
    not_root(installed)
    assert installed.run().stdout == "==> All is installed.\n"


def test_the_constraints_reach_pip_by_absolute_path_and_under_both_names(machine: Machine) -> None:
    machine.run()
    path = machine.checkout / "vagrant/constraints.txt"
    assert machine.calls("constraints") == [f"constraints {path} {path}"]


def test_the_socket_buffers_are_set_before_open_vswitch_is_installed(machine: Machine) -> None:
    machine.tool("apt-get", 'cat "$MACHINE"/proc/sys/net/core/[wr]mem_default >>"$MACHINE/seen"')
    machine.run()
    assert set(machine.file("seen").read_text().split()) == {str(SOCKET_BUFFER_BYTES)}
    setting = machine.file("etc/sysctl.d/60-straggler.conf").read_text()
    assert setting == "".join(f"net.core.{name}_default = {SOCKET_BUFFER_BYTES}\n" for name in ("wmem", "rmem"))


def test_a_running_switch_without_bridges_is_restarted_for_its_socket_buffers(installed: Machine) -> None:
    installed.socket_buffers[1].write_text("212992\n")
    assert "Restarting Open vSwitch" in installed.run().stdout
    assert installed.calls("ovs-ctl") == ["ovs-ctl --system-id=random restart"]


def test_a_running_switch_with_bridges_is_left_alone(installed: Machine) -> None:
    installed.socket_buffers[1].write_text("212992\n")
    installed.file("bridges").write_text("br0\n")
    result = installed.run()
    assert "bridges that must not be disturbed" in result.stderr
    assert installed.calls("ovs-ctl") == []


def test_systemd_starts_the_switch_where_it_is_in_charge(installed: Machine) -> None:
    installed.file("run/systemd/system").mkdir(parents=True)
    shutil.rmtree(installed.file("run/openvswitch"))
    assert installed.run().returncode == 0
    assert installed.calls("systemctl") == ["systemctl start openvswitch-switch"]
    assert installed.calls("ovs-ctl") == []


def test_dev_adds_what_tests_need_and_what_the_release_has(machine: Machine) -> None:
    machine.file("optional").write_text("vagrant\n")
    assert machine.run("--dev").returncode == 0
    packages = machine.file("packages").read_text().split()
    assert {"clang", "shellcheck", "vagrant"} <= set(packages)
    assert "libclang-rt-dev" not in packages
    assert any(f"--editable {machine.checkout}[dev]" in call for call in machine.calls("python3"))
    assert machine.run().stdout == machine.run("--dev").stdout == "==> All is installed.\n"


def test_vm_adds_what_the_virtual_machines_tests_need_and_what_the_release_has(machine: Machine) -> None:
    machine.file("optional").write_text("vagrant-libvirt\n")
    assert machine.run("--vm").returncode == 0
    packages = machine.file("packages").read_text().split()
    assert {"debootstrap", "qemu-system-x86", "vagrant-libvirt"} <= set(packages)
    assert not {"vagrant", "clang"} & set(packages)
    assert machine.run("--vm").stdout == "==> All is installed.\n"


def test_a_changed_source_rebuilds_the_core_only(installed: Machine) -> None:
    future = installed.header.stat().st_mtime + 10
    os.utime(installed.header, (future, future))
    assert "Building the native core" in installed.run().stdout
    assert [call for call in installed.calls("python3") if "build_ext" in call]
    assert not [call for call in installed.calls("python3") if "pip" in call]


@pytest.mark.parametrize("name", ["setup.py", "vagrant/constraints.txt", "pyproject.toml"])
def test_a_changed_recipe_installs_again_into_the_same_environment(installed: Machine, name: str) -> None:
    with (installed.checkout / name).open("a") as file:
        file.write("# changed\n")
    result = installed.run()
    assert "Installing the Python packages" in result.stdout
    assert "Removing" not in result.stdout


def test_an_interrupted_installation_is_redone(installed: Machine) -> None:
    (installed.checkout / ".venv/.incomplete").touch()
    leftover = installed.checkout / ".venv/leftover"
    leftover.touch()
    assert "which is incomplete" in installed.run().stdout
    assert not leftover.exists()
    assert not (installed.checkout / ".venv/.incomplete").exists()


def test_an_environment_of_another_place_is_redone(installed: Machine) -> None:
    (installed.checkout / ".venv/bin/activate").write_text("VIRTUAL_ENV=/somewhere/else/.venv\n")
    assert "Creating" in installed.run().stdout


def test_the_lab_user_may_run_straggler_as_root_and_nothing_else(machine: Machine) -> None:
    assert machine.run("--lab-user", "lab").returncode == 0
    rule = machine.file("etc/sudoers.d/straggler")
    assert rule.read_text() == f"lab ALL=(root) NOPASSWD: {machine.file('usr/local/bin/straggler')}\n"
    assert rule.stat().st_mode & 0o777 == 0o440
    assert machine.calls("useradd") == ["useradd --create-home --shell /bin/bash lab"]
    assert machine.run("--lab-user", "lab").stdout == "==> All is installed.\n"


def test_a_command_of_somebody_else_stays(machine: Machine) -> None:
    command = machine.file("usr/local/bin/straggler")
    command.write_text("not ours")
    assert "it stays" in machine.run().stderr
    assert command.read_text() == "not ours"


def test_not_linux(machine: Machine) -> None:
    machine.tool("uname", "echo Darwin")
    machine.says_and_stops("runs on Linux only, and this is Darwin", "vagrant up")


@pytest.mark.parametrize("release", ["ID=fedora\nVERSION_ID=40\n", "ID=debian\nVERSION_ID=11\n", ""])
def test_an_unsupported_distribution(machine: Machine, release: str) -> None:
    machine.file("etc/os-release").write_text(release)
    machine.says_and_stops("Debian 12 and 13, Ubuntu 22.04 and 24.04", "vagrant up")


def test_an_unsupported_distribution_can_be_tried(machine: Machine) -> None:
    machine.file("etc/os-release").write_text("ID=debian\nPRETTY_NAME='Debian GNU/Linux forky/sid'\n")
    result = machine.run("--any-distribution")
    assert result.returncode == 0
    assert result.stderr == "warning: Debian GNU/Linux forky/sid has not been tested.\n"


@pytest.mark.parametrize("release", ["debian 12", "debian 13", "ubuntu 22.04", "ubuntu 24.04"])
def test_supported_distributions(machine: Machine, release: str) -> None:
    name, version = release.split()
    machine.file("etc/os-release").write_text(f'ID={name}\nVERSION_ID="{version}"\n')
    assert machine.run().returncode == 0


def test_not_root(machine: Machine) -> None:
    not_root(machine)
    machine.says_and_stops("the next step needs root: Setting the socket buffers", "sudo make install")
    assert machine.calls("apt-get") == []


APT_OFFLINE = """\
Err:1 http://deb.debian.org/debian bookworm InRelease
  Temporary failure resolving 'deb.debian.org'
E: Failed to fetch http://deb.debian.org/debian/dists/bookworm/InRelease
"""
PIP_OFFLINE = """\
  WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(... Failed to establish a new
ERROR: No matching distribution found for setuptools
"""
PIP_UNTRUSTED = "  WARNING: Retrying after connection broken by 'SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]"


@pytest.mark.parametrize(("log", "sentence", "remedy"), [
    (APT_OFFLINE, "no answer from the network: Temporary failure resolving", "check the connection, DNS"),
    ("E: Unable to locate package mininet", "Unable to locate package mininet", "universe"),
    ("dpkg: error: No space left on device", "the disk is full", "free about 2 GB"),
    ("E: something new", "E: something new", "straggler-apt.log"),
])
def test_apt_fails(machine: Machine, log: str, sentence: str, remedy: str) -> None:
    machine.file("log").write_text(log)
    machine.tool("apt-get", 'cat "$MACHINE/log"; exit 100')
    machine.says_and_stops(sentence, remedy)


@pytest.mark.parametrize(("log", "sentence", "remedy"), [
    (PIP_OFFLINE, "no answer from the network", "check the connection"),
    (PIP_UNTRUSTED, "certificate is not trusted", "update-ca-certificates"),
    ("  error: subprocess-exited-with-error\n  gcc: internal", "subprocess-exited-with-error", "straggler-pip.log"),
])
def test_pip_fails(machine: Machine, log: str, sentence: str, remedy: str) -> None:
    machine.file("log").write_text(log)
    python = TOOLS["python3"].replace("*pip*install*)", '*pip*install*) cat "$MACHINE/log"; exit 1;;\n *never*)')
    machine.tool("python3", python)
    machine.says_and_stops(sentence, remedy)


def test_a_working_environment_survives_an_upgrade_that_fails(installed: Machine) -> None:
    installed.tool("python3", TOOLS["python3"].replace("*pip*install*)", "*pip*install*) exit 1;;\n *never*)"))
    shutil.copy(installed.tools / "python3", installed.checkout / ".venv/bin/python")
    with (installed.checkout / "setup.py").open("a") as file:
        file.write("# changed\n")
    assert installed.run().returncode == 1
    assert not (installed.checkout / ".venv/.incomplete").exists()


def test_open_vswitch_does_not_start(machine: Machine) -> None:
    machine.tool("ovs-ctl", "echo 'no kernel module'; exit 1")
    machine.says_and_stops("Open vSwitch does not start", "straggler-ovs.log")


def test_open_vswitch_does_not_start_under_systemd(machine: Machine) -> None:
    machine.file("run/systemd/system").mkdir(parents=True)
    machine.tool("start_switch", "exit 0")
    machine.tool("systemctl", "exit 1")
    machine.says_and_stops("Open vSwitch does not start", "journalctl")


def test_the_core_does_not_compile(machine: Machine) -> None:
    python = TOOLS["python3"].replace("*pip*install*)", "*pip*install*) exit 0;;\n *never*)")
    python = python.replace("*build_ext*)", "*build_ext*) echo 'rnic.c:1: error: no'; exit 1;;\n *never*)")
    machine.tool("python3", python)
    result = machine.run()
    assert result.returncode == 1
    assert "rnic.c:1: error: no" in result.stderr
    assert "The native core does not compile" in result.stderr


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--lab-user"], ["--lab-user", "bad name;"]])
def test_wrong_use(machine: Machine, arguments: list[str]) -> None:
    result = machine.run(*arguments)
    assert result.returncode == 2
    assert "--lab-user NAME" in result.stderr
