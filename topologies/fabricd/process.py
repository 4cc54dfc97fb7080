"""fabricd as a process: one real-time thread in the native core, one thread that serves the control socket.

Control operations (JSON lines over ``/run/straggler/fabricd.sock``, for root only):

=============  =====================================
``ping``       -> ``pid``, ``scheduler``, ``tick_ns``
``shutdown``
=============  =====================================

and those of ``fabric_service.py`` and ``verbs_service.py``.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from topologies import fabric as places
from topologies.errors import LabError
from topologies.fabric import Fabric, Port
from topologies.fabricd import binding
from topologies.fabricd._core import ffi, lib
from topologies.fabricd.client import FabricdClient
from topologies.fabricd.fabric_service import FabricService
from topologies.fabricd.verbs_service import VerbsService

SCHEDULERS = {0: "starting", lib.SCHEDULER_RR: "SCHED_RR", lib.SCHEDULER_NICE: "nice", lib.SCHEDULER_OTHER: "other"}
ROCE_DSCP = 26
WAITERS = 64  # threads that attach to and detach from interfaces
START_TIMEOUT_S = 60.0  # an emulated processor needs 20
STOP_TIMEOUT_S = 5.0


class Fabricd:
    """The data path of one fabric, attached to its interfaces, and the handlers of its control operations."""

    def __init__(self, fabric: Fabric) -> None:
        """Attaches to every tap and NIC of ``fabric``. Raises LabError naming the interface that failed."""
        self.fabric = fabric
        places.SHM_DIR.mkdir(mode=0o700, exist_ok=True)
        telemetry = binding.shared_memory(str(places.TELEMETRY_PATH), binding.telemetry_bytes(fabric))
        self.core = binding.FabricCore(fabric, telemetry)
        self.tick_ns = binding.tick_ns(fabric)
        config = {
            "ports": len(fabric.ports), "nics": len(fabric.hosts), "frame_bytes": binding.frame_bytes(fabric),
            "ring_frames": binding.RING_FRAMES, "tick_ns": self.tick_ns, "priority": binding.FABRICD_PRIORITY,
        }  # fmt: skip
        self._loop = lib.fabricd_new(self.core.pointer, ffi.new("struct fabricd_config *", config))
        if self._loop == ffi.NULL:
            raise LabError(f"fabricd cannot open packet sockets: {os.strerror(ffi.errno)}", remedy="run it as root")
        self._nics = [Nic(fabric, host.index, self.core) for host in fabric.hosts]
        # Each waits for an RCU grace period of the kernel: one after another that is seconds, together a moment.
        with ThreadPoolExecutor(WAITERS) as pool:
            attached = [pool.submit(self._attach_port, port) for port in fabric.ports]
            attached += [pool.submit(self._attach_nic, nic) for nic in self._nics]
        for one in attached:
            one.result()
        self.switching = FabricService(fabric, self.call)
        self.verbs = VerbsService(self.call, self._nics, self._set_eventfd)

    def run(self) -> None:
        """The data path; returns after ``stop``."""
        lib.fabricd_run(self._loop)

    def stop(self) -> None:
        """Ends ``run``."""
        lib.fabricd_stop(self._loop)

    def call(self, target: int, index: int, op: int, args: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Has the data path execute a request between two ticks. Raises OSError with its errno if it is refused."""
        request = binding.control_request(target, index, op, args)
        status = lib.fabricd_call(self._loop, request)
        if status < 0:
            raise OSError(-status, os.strerror(-status))
        return tuple(request.result)

    def handle(self, connection: Any, op: str, arguments: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Executes one control operation. Raises LabError, OSError, KeyError or TypeError for what makes no sense."""
        if op == "ping":
            scheduler = SCHEDULERS[lib.fabricd_scheduler(self._loop)]
            return {"pid": os.getpid(), "scheduler": scheduler, "tick_ns": self.tick_ns}
        if self.switching.handles(op):
            return self.switching.handle(op, arguments)
        return self.verbs.handle(connection, op, arguments, fds)

    def close(self) -> None:
        """Detaches from all interfaces; only after ``run`` has returned."""
        with ThreadPoolExecutor(WAITERS) as pool:
            for ring in range(len(self.fabric.ports) + len(self._nics)):
                pool.submit(lib.fabricd_detach, self._loop, ring)

    def _attach_port(self, port: Port) -> None:
        self._attached(lib.fabricd_attach_port(self._loop, port.index, port.tap.encode()), port.tap)

    def _attach_nic(self, nic: Nic) -> None:
        namespace, interface = f"/proc/{nic.host.pid}/ns/net", nic.port.interface
        status = lib.fabricd_attach_nic(
            self._loop, nic.host.index, nic.port.index, nic.pointer, namespace.encode(), interface.encode()
        )
        self._attached(status, interface)

    def _set_eventfd(self, nic: int, fd: int) -> None:
        lib.fabricd_set_eventfd(self._loop, nic, fd)

    @staticmethod
    def _attached(status: int, interface: str) -> None:
        if status < 0:
            raise LabError(f"fabricd cannot attach to {interface}: {os.strerror(-status)}")


class Nic:
    """One RDMA NIC: its state, and the memory that it shares with the agents on its host."""

    def __init__(self, fabric: Fabric, index: int, core: binding.FabricCore) -> None:
        self.host = fabric.hosts[index]
        self.port = next(port for port in fabric.ports if port.kind == "host" and port.node == index)
        self.path = places.SHM_DIR / f"nic-{self.host.name}"
        self.shared_bytes = int(lib.rnic_shared_bytes(lib.RNIC_ARENA_BYTES))
        self.memory = binding.shared_memory(str(self.path), self.shared_bytes)
        self._state = binding.sparse_memory(lib.rnic_bytes())
        self.pointer = ffi.cast("struct rnic *", ffi.from_buffer(self._state))
        dscp_class = ffi.new("uint8_t[]", binding.dscp_classes(fabric))
        config = {
            "index": index, "port": self.port.index, "ip": int.from_bytes(socket.inet_aton(self.host.ip), "big"),
            "mac": binding.mac_bytes(self.host.mac), "gateway_mac": binding.mac_bytes(fabric.gateway_mac),
            "rate_bps": self.port.rate_bps, "slowdown": fabric.slowdown, "mtu_bytes": fabric.spec.mtu_bytes,
            "dscp": ROCE_DSCP, "ack_dscp": fabric.spec.ack_dscp or 0, "dscp_class": dscp_class,
            "arena_bytes": lib.RNIC_ARENA_BYTES,
        }  # fmt: skip
        status = lib.rnic_init(
            self.pointer, ffi.new("struct rnic_config *", config), ffi.from_buffer(self.memory),
            lib.fabric_telemetry(core.pointer),
        )  # fmt: skip
        if status < 0:
            raise LabError(f"the native core refuses the NIC of {self.host.name}: {os.strerror(-status)}")


class ControlServer:
    """Serves a unix socket: one JSON line is one operation. Every connection has a state of its own (for verbs)."""

    def __init__(self, path: Path, fabricd: Fabricd) -> None:
        self._fabricd = fabricd
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        old_umask = os.umask(0o177)
        try:
            self._listener.bind(str(path))
        finally:
            os.umask(old_umask)
        self._listener.listen(1024)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_reader, self._wake_writer = os.pipe()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._running = True

    def serve(self) -> None:
        """Returns after ``shutdown`` or ``stop``."""
        while self._running:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    connection = Connection(self._listener.accept()[0])
                    self._selector.register(connection.socket, selectors.EVENT_READ, connection)
                elif key.data is not None:
                    self._read(key.data)

    def stop(self) -> None:
        """Ends ``serve``; safe in a signal handler."""
        self._running = False
        os.write(self._wake_writer, b"!")

    def _read(self, connection: Connection) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(connection.socket, 65536, 8)
        except OSError:
            data, fds = b"", []
        connection.fds += fds
        connection.pending += data
        while b"\n" in connection.pending:
            line, _, connection.pending = connection.pending.partition(b"\n")
            reply = json.dumps(self._answer(connection, line)).encode() + b"\n"
            try:
                connection.socket.sendall(reply)
            except OSError:
                data = b""
        if not data:
            self._selector.unregister(connection.socket)
            self._fabricd.verbs.closed(connection)
            connection.socket.close()

    def _answer(self, connection: Connection, line: bytes) -> dict[str, Any]:
        fds, connection.fds = connection.fds, []
        try:
            arguments = json.loads(line)
            op = arguments.pop("op")
            if op == "shutdown":
                self.stop()
                return {"ok": True}
            return {"ok": True, **self._fabricd.handle(connection, op, arguments, fds)}
        except (LabError, OSError) as error:
            return {"ok": False, "error": str(error)}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return {"ok": False, "error": f"malformed request: {error!r}"}


class Connection:
    """A client of the control socket. What it created over verbs is destroyed when it goes."""

    def __init__(self, peer: socket.socket) -> None:
        self.socket = peer
        self.pending = b""
        self.fds: list[int] = []


class FabricdProcess:
    """A running fabricd, from the outside."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def alive(self) -> bool:
        """False once it has ended for whatever reason."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Ends it, by force if it does not answer."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start(fabric: Fabric) -> FabricdProcess:
    """Starts fabricd for the fabric saved at FABRIC_PATH and waits until it carries frames. Raises LabError."""
    with places.FABRICD_LOG.open("wb") as log:
        command = [sys.executable, "-m", "topologies.fabricd.process", str(places.FABRIC_PATH)]
        # A session of its own: Ctrl-C must reach the runner first, which then takes the lab down in order.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            cwd=Path(__file__).resolve().parents[2],
        )  # fmt: skip
    handle = FabricdProcess(process)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and handle.alive():
        try:
            with FabricdClient(places.FABRICD_SOCKET) as client:
                if client.call("ping")["scheduler"] != "starting":
                    return handle
        except LabError:
            pass
        time.sleep(0.01)
    silent = f"no answer within {START_TIMEOUT_S:.0f} s" if handle.alive() else "it ended and printed nothing"
    handle.stop()
    tail = places.FABRICD_LOG.read_text(errors="replace").strip().splitlines()[-1:] or [silent]
    raise LabError(f"fabricd did not start: {tail[0]}", remedy=f"see {places.FABRICD_LOG}")


def main(fabric_path: str) -> None:
    """Runs fabricd until SIGTERM or ``shutdown``."""
    places.FABRICD_SOCKET.unlink(missing_ok=True)
    fabricd = Fabricd(Fabric.load(fabric_path))
    server = ControlServer(places.FABRICD_SOCKET, fabricd)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    data_path = threading.Thread(target=fabricd.run, name="data path")
    data_path.start()
    try:
        server.serve()
    finally:
        fabricd.stop()
        data_path.join()
        fabricd.close()
        places.FABRICD_SOCKET.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except LabError as error:
        sys.exit(f"fabricd: {error.message}")
