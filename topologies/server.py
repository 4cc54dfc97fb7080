"""A host of the fabric: one NIC, routed, with one neighbour."""

from __future__ import annotations

import os
from subprocess import Popen
from typing import Any

from mininet.node import Host, Node

from topologies.errors import LabError
from topologies.fabric import GATEWAY_IP, GATEWAY_MAC


class Insulated(Node):  # type: ignore[misc]  # Mininet has no types
    """A node whose shell is out of reach of the terminal's Ctrl-C from its first instant.

    Stock Mininet leaves that to `mnexec -d`, a moment after the fork.  A Ctrl-C within that moment kills the shell, and
    Mininet waits for its prompt for ever.
    """

    def _popen(self, cmd: list[str], **params: Any) -> Popen[bytes]:
        if self.shell is None:  # `cmd` is the node's shell: mnexec -cdn env PS1=... bash ...
            # Python does the same without three processes' time: -c alone closes 16,384 descriptors one by one.
            cmd = cmd[cmd.index("bash"):]
            if self.inNamespace:
                cmd = ["mnexec", "-n", *cmd]
            params |= {"start_new_session": True, "close_fds": True, "env": {**os.environ, "PS1": chr(127)}}
        process: Popen[bytes] = super()._popen(cmd, **params)
        return process


class FabricHost(Insulated, Host):  # type: ignore[misc]
    """A host with a /32 address whose only route and only neighbour is its leaf.

    Nothing is ever resolved by ARP, whatever the number of hosts.  Checksums are computed by the host: neither OVS's
    userspace datapath nor fabricd fills in what a NIC would have been expected to.
    """

    def begin_config(self) -> None:
        """Have the host's shell configure it, without waiting; `end_config` does that."""
        intf = self.defaultIntf()
        intf.ip, intf.prefixLen = self.params["ip"].partition("/")[0], "32"
        self.sendCmd(_script(intf.name, intf.ip))

    def end_config(self) -> None:
        """Wait for the shell.  Raises LabError with what it complained about."""
        complaint = self.waitOutput().strip()
        if complaint:
            raise LabError(f"cannot configure {self.name}: {complaint.splitlines()[0]}")

    def config(self, **_params: Any) -> dict[str, Any]:
        """Configure this host alone."""
        self.begin_config()
        self.end_config()
        return {}


def _script(interface: str, ip: str) -> str:
    """One line of shell with no more processes than it needs: `ip` once and `ethtool` once."""
    batch = "\\n".join((
        "link set lo up",
        f"link set {interface} up",
        f"address add {ip}/32 dev {interface}",
        f"neighbour add {GATEWAY_IP} lladdr {GATEWAY_MAC} dev {interface} nud permanent",
        f"route add {GATEWAY_IP} dev {interface} scope link",
        f"route add default via {GATEWAY_IP} dev {interface} src {ip}",
    ))
    ipv6 = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
    # The offloads first: once the interface is up, each change of them waits for an RCU grace period.
    # A here-string, not a pipe, which would cost two more processes.
    return (f"ethtool -K {interface} tx off tso off gso off > /dev/null; [ ! -e {ipv6} ] || echo 1 > {ipv6}; "
            f"ip -batch - <<< $'{batch}'")
