"""Plays the faults of a run: begins and ends each at its time, says when, and undoes all of them at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from labs.faults import Fault, LostPacket, Request, Scene
from topologies.errors import LabError

Call = Callable[..., Any]
"""call(op, **arguments) of fabricd's control socket; raises LabError."""


class FaultPlayer:
    """For one run; `begin` and `stop` are called by the thread that conducts it.

    events: what happened, as RawRun.fault_events.  error: why a fault could not be made, None if all could.
    """

    def __init__(self, faults: Sequence[Fault], scene: Scene, call: Call) -> None:
        self._faults, self._scene, self._call = faults, scene, call
        self._active: list[Fault] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.events: list[dict[str, Any]] = []
        self.error: str | None = None

    def prepare(self) -> None:
        """Before the first measured iteration: what must be in force when it begins."""
        for fault in self._faults:
            if fault.at_us == 0:
                self._begin(fault)

    def begin(self, start_ns: int) -> None:
        """The common instant is known: the rest happens by itself."""
        clock = self._scene.fabric.clock
        # Ends first: sorting is stable, and where one fault follows another its end must not undo the other.
        moments = [(start_ns + clock.lab_ns(fault.at_us + fault.for_us), self._end, fault) for fault in self._faults
                   if fault.for_us is not None]
        moments += [(start_ns + clock.lab_ns(fault.at_us), self._begin, fault) for fault in self._faults if fault.at_us]
        if moments:
            self._thread = threading.Thread(target=self._play, args=(sorted(moments, key=lambda moment: moment[0]),),
                                            name="faults", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends what is still going on."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for fault in list(self._active):
            self._end(fault)

    def _play(self, moments: list[tuple[int, Callable[[Fault], None], Fault]]) -> None:
        for due_ns, act, fault in moments:
            if self._stop.wait(max(0.0, (due_ns - time.monotonic_ns()) / 1e9)):
                return
            act(fault)

    def _begin(self, fault: Fault) -> None:
        self._do(fault, "begin", fault.begin(self._scene))
        self._active.append(fault)

    def _end(self, fault: Fault) -> None:
        if fault in self._active:
            self._active.remove(fault)
            self._do(fault, "end", fault.end(self._scene))

    def _do(self, fault: Fault, state: str, requests: list[Request]) -> None:
        try:
            for op, arguments in requests:
                self._call(op, **arguments)
        except LabError as error:
            self.error = self.error or f"{fault.text}: {error.message}"
            return
        if state == "end" and isinstance(fault, LostPacket):
            return  # it was over when the packet was lost
        text = fault.text if state == "begin" else f"no longer: {fault.text}"
        self.events.append({"t_ns": time.monotonic_ns(), "kind": "fault", "fault": fault.name, "state": state,
                            **fault.where, "text": text})
