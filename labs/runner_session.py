"""Session: a lab's fabric, controller and ranks, up and watched; whoever leaves it leaves nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from controllers import process as controller_process
from controllers.client import ControllerClient
from labs.lab import Lab
from labs.runner_outcome import CONTROLLER_DIED
from labs.runner_ranks import Ranks
from labs.runner_record import Recorder
from topologies.errors import LabError
from topologies.fabric import FABRICD_SOCKET, TELEMETRY_PATH, Fabric
from topologies.fabricd import process as fabricd_process
from topologies.fabricd.client import ControlClient, FabricdClient
from topologies.fabricd.process import FabricdProcess
from topologies.fabricd.telemetry import Telemetry
from topologies.network import FabricNet

SERIES_INTERVAL_US = 2.0  # of the queue series: about half a round trip of the default fabric
_READY_TIMEOUT_S = 30.0
_ALIVE_CHECK_S = 0.2


class Session:
    """A context manager.  The lab's slowdown must be a number by now (topologies.calibrate).

    all_hosts: ranks on every host, not only on those of the lab's workload; hosts: on these.
    """

    def __init__(self, lab: Lab, *, all_hosts: bool = False, hosts: Collection[str] = ()) -> None:
        self.lab, self._all_hosts, self._hosts = lab, all_hosts, hosts
        self._stack = ExitStack()
        self.net: FabricNet
        self.fabric: Fabric
        self.ranks: Ranks
        self.recorder: Recorder
        self.telemetry: Telemetry
        self.controller: ControlClient
        self._checked_at = 0.0
        self._trouble: str | None = None
        self._events_seen = 0
        self._control_lock = threading.Lock()  # faults are played by a thread of their own

    def __enter__(self) -> Session:
        """Builds everything, in about ten seconds.  Raises LabError, with nothing left behind."""
        lab = self.lab
        policy = lab.policies[0]
        try:
            self.net = FabricNet(lab.fabric, lab=lab.name, start_fabricd=self._start_fabricd)
            self._stack.callback(self.net.stop)
            self.net.build()  # takes the machine's lock: from here on this is the only lab
            self.fabric = self.net.fabric
            # Ryu takes seconds to start; what follows does not wait for it, and switches may connect meanwhile.
            self._controller = self._stack.enter_context(controller_process.start(
                policy=policy, params=lab.policy_params.get(policy, {}), wait=False))
            self.net.controller_port = self._controller.port
            self.net.start()
            self._control = self._stack.enter_context(FabricdClient(FABRICD_SOCKET))
            self.fabricd("series_interval", interval_ns=self.fabric.clock.lab_ns(SERIES_INTERVAL_US))
            self.telemetry = Telemetry.open(TELEMETRY_PATH)
            self.recorder = Recorder(self.telemetry)
            self._stack.callback(self.recorder.stop)
            wanted = self._hosts or {rank.host for rank in lab.workload.plan(lab.fabric).ranks}
            hosts = [host.name for host in self.fabric.hosts if self._all_hosts or host.name in wanted]
            self.ranks = self._stack.enter_context(Ranks(self.fabric, hosts))
            self._controller.wait_ready(_READY_TIMEOUT_S)
            self.controller = self._stack.enter_context(ControllerClient())
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_fabricd(self, fabric: Fabric) -> FabricdProcess:
        self._fabricd = fabricd_process.start(fabric)
        return self._fabricd

    def fabricd(self, op: str, **arguments: Any) -> dict[str, Any]:
        """A control operation of fabricd (topologies/fabricd/fabric_service.py).  Raises LabError if it is refused."""
        with self._control_lock:
            return self._control.call(op, **arguments)

    def trouble(self) -> str | None:
        """Why it makes no sense to go on: a process that the lab cannot do without is gone.  None: all is well."""
        now = time.monotonic()
        if self._trouble is None and now - self._checked_at > _ALIVE_CHECK_S:
            self._checked_at = now
            if not self._controller.alive():
                self._trouble = CONTROLLER_DIED
            elif not self._fabricd.alive():
                self._trouble = "fabricd died"
        return self._trouble

    def controller_alive(self) -> bool:
        """Whether the controller's process still runs."""
        return self._controller.alive()

    def tables(self) -> Mapping[str, Any]:
        """The leaves' path tables, {leaf: {"index", "entries", "seed"}}; empty when the controller is gone."""
        try:
            leaves: Mapping[str, Any] = self.controller.call("tables")["leaves"]
            return leaves
        except LabError:
            return {}

    def events(self, since_ns: int) -> Sequence[Mapping[str, Any]]:
        """The controller's moves and reconnections since a lab time; empty when it is gone."""
        try:
            events = self.controller.call("events", since=self._events_seen)
        except LabError:
            return ()
        self._events_seen = events["next"]
        return [event for event in events["events"] if event["t_ns"] >= since_ns]

    def switches_missing(self) -> tuple[str, ...]:
        """Switches without a connection to the controller."""
        try:
            return tuple(self.controller.call("status")["missing"])
        except LabError:
            return ()
