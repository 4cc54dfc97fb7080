"""`python -m controllers`: the process of the controller; `controllers.process` starts it.

Ryu would open a port of its own; here it gets the listening socket that the parent has opened, so that nobody can take
the port in between and switches can connect while it starts.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
from typing import Any

# Before Ryu's patches: Mininet, behind it, wants the true select module.
from controllers.options import OPTIONS_VARIABLE

# isort: split
from controllers import ryu_shim  # noqa: F401

# isort: split
from ryu.cmd import manager
from ryu.controller import controller
from ryu.lib import hub


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m controllers", description="The controller's process.")
    parser.add_argument("--listen-fd", type=int, required=True, help="listening TCP socket for the switches")
    parser.add_argument("--options", required=True, help="controllers.options.Options as JSON")
    arguments = parser.parse_args()
    os.environ[OPTIONS_VARIABLE] = arguments.options
    logging.lastResort = logging.NullHandler()  # eventlet's word on locks that are older than its patches

    class InheritedServer(hub.StreamServer):  # type: ignore[misc]
        """Accepts on the parent's socket instead of opening one."""

        def __init__(self, _listen_info: Any, handle: Any, **_ssl: Any) -> None:
            self.server = socket.socket(fileno=arguments.listen_fd)
            self.handle = handle

    controller.StreamServer = InheritedServer
    # No ryu.conf of the machine's: it could load other applications into this process.
    manager.main(args=["--config-file", os.devnull, "--default-log-level", "20", "--ofp-tcp-listen-port", "1",
                       "controllers.app"], prog="straggler-controller")


if __name__ == "__main__":
    main()
