"""The Ryu application: connections and time, around the pure parts.

Operations of the control socket (`{"op": ..., ...}`, a line each way; times are lab ns of CLOCK_MONOTONIC):
status      -> ready, connected, missing, problems, policy, parameters, seed, same_seed, since (None: not in use yet)
policy      name, params={}, seed=None, same_seed=False -> what status says, once every leaf uses it
tables      -> leaves: {leaf: {"index", "entries", "seed"}}
port_stats  -> switches: {switch: {OpenFlow port: counters}}, as OpenFlow reports them
flow_stats  -> leaves: {leaf: {entry: {"packets", "bytes"}}} of the bank in use
events      since=0 -> events, next: the events from number `since` on, and the number to go on with
            {"kind": "connect" | "disconnect", "t_ns", "switch"}    {"kind": "policy", "t_ns", "name", "seed"}
            {"kind": "move", "t_ns", "leaf", "entry", "from", "to", "bytes": of the entry in the period before}
            {"kind": "discards", "t_ns", "frames": {switch: {OpenFlow port: count}}}: frames lost inside Open vSwitch
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ryu.base import app_manager
from ryu.controller import ofp_event
from ryu.controller.handler import CONFIG_DISPATCHER, DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3

from controllers import openflow
from controllers.control import serve
from controllers.fleet import ANSWER_TIMEOUT_S, Fleet
from controllers.options import OPTIONS_VARIABLE, Options
from controllers.path_table import Move
from controllers.pipeline import check_switch
from controllers.registry import create_policy
from controllers.sampling import LeafSampler
from controllers.steering import Steering
from topologies.errors import LabError
from topologies.fabric import Fabric, Switch

OLD_BANK_GRACE_S = 0.5  # for frames that are on their way through cached flows of the old bank
STATISTICS_PERIOD_S = 1.0
SHORTEST_PERIOD_NS = 20_000_000  # more often costs more CPU than a fabric in slow motion can spare
WATCH_PERIOD_S = 0.1
EVENTS_KEPT = 100_000

Handler = TypeVar("Handler", bound=Callable[..., None])
on_event: Callable[..., Callable[[Handler], Handler]] = set_ev_cls  # Ryu has no types

log = logging.getLogger("straggler.controller")


class FabricController(app_manager.RyuApp):  # type: ignore[misc]
    """Holds the fabric's rules in its switches and applies one policy at a time."""

    OFP_VERSIONS = (ofproto_v1_3.OFP_VERSION,)

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._options = Options.from_json(os.environ[OPTIONS_VARIABLE])
        self._fleet: Fleet | None = None
        self._steering: Steering | None = None
        self._connections: dict[int, openflow.Session] = {}  # by DPID, of the fabric or not
        self._told: dict[str, tuple[int, int]] = {}  # hash seed and flowlet gap that fabricd has, by switch
        self._trouble: dict[str, str] = {}  # problems, by what they are about
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self._event_count = 0
        self._discards: dict[str, dict[int, int]] = {}  # frames that Open vSwitch says it has discarded
        self._configuring = hub.Semaphore(1)  # one change of rules at a time

    def start(self) -> Any:
        """Called by Ryu."""
        for handler in logging.getLogger().handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        main = super().start()
        for loop in (self._serve, self._watch, self._poll_statistics):
            hub.spawn(loop)
        return main

    # What switches say

    @on_event(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def _on_state(self, event: Any) -> None:
        datapath = event.datapath
        session = self._connections.get(datapath.id)
        if event.state == MAIN_DISPATCHER:
            if session is not None:
                self._lose(session)
            self._connections[datapath.id] = openflow.Session(datapath, f"dpid {datapath.id:#x}")
            hub.spawn(self._welcome, self._connections[datapath.id])
        elif session is not None and session.datapath is datapath:
            del self._connections[datapath.id]
            self._lose(session)

    @on_event([ofp_event.EventOFPBarrierReply, ofp_event.EventOFPPortStatsReply, ofp_event.EventOFPFlowStatsReply,
               ofp_event.EventOFPAggregateStatsReply], MAIN_DISPATCHER)
    def _on_reply(self, event: Any) -> None:
        session = self._connections.get(event.msg.datapath.id)
        if session is not None:
            session.on_reply(event.msg)

    @on_event(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def _on_error(self, event: Any) -> None:
        session = self._connections.get(event.msg.datapath.id)
        if session is not None and not session.on_error(event.msg):
            log.error("%s: %s", session.name, openflow.error_text(event.msg))

    def _lose(self, session: openflow.Session) -> None:
        if self._fleet is not None and self._fleet.disconnected(session):
            self._record("disconnect", switch=session.name)
            log.warning("%s disconnected", session.name)
        session.close()

    def _welcome(self, session: openflow.Session) -> None:
        """Give a switch that has just connected its rules."""
        with self._configuring:
            if self._fleet is None or self._steering is None or session.closed:
                return  # when the fabric is known, everybody is welcomed again
            dpid = session.datapath.id
            switch = next((switch for switch in self._fleet.fabric.switches if switch.dpid == dpid), None)
            if switch is None:
                log.warning("ignoring a switch that is not of this fabric: dpid %#x", dpid)
                return
            if self._fleet.sessions.get(switch.name) is session:
                return
            session.name = switch.name
            self._record("connect", switch=switch.name)
            try:
                self._fleet.install(switch, session, self._steering)
            except LabError as error:
                self._trouble[switch.name] = error.message
                log.error("%s", error.message)
                return
            self._trouble.pop(switch.name, None)
            log.info("%s has its rules", switch.name)
            if not self._fleet.missing() and self._steering.since_ns is None:
                self._begin(self._steering)

    # Policies

    def _adopt(self, fabric: Fabric) -> None:
        """Take over a fabric that has just been built."""
        options = self._options
        policy = create_policy(options.policy, options.parameters)
        steering = Steering(fabric, policy, dict(options.parameters), options.seed, options.same_seed)
        with self._configuring:
            self._fleet, self._steering = Fleet(fabric), steering
            self._trouble.clear()
            self._told = {switch.name: (switch.hash_seed, switch.flowlet_gap_ns) for switch in fabric.switches}
        log.info("fabric of %d switches and %d hosts", len(fabric.switches), len(fabric.hosts))
        for session in list(self._connections.values()):
            self._welcome(session)

    def _begin(self, steering: Steering) -> None:
        """All leaves use it now."""
        if self._told_otherwise(steering):
            try:
                self._tell_fabricd(steering)
            except LabError as error:
                self._trouble["fabricd"] = error.message
                log.error("%s", error.message)
        steering.since_ns = time.monotonic_ns()
        self._record("policy", t_ns=steering.since_ns, name=steering.policy.name, seed=steering.seed)
        log.info("policy %s, seed %d", steering.policy.name, steering.seed)
        if steering.policy.period_us is not None:
            hub.spawn(self._update_loop, steering, steering.policy.period_us)

    def _told_otherwise(self, steering: Steering) -> list[Switch]:
        return [switch for switch in steering.fabric.switches if self._told.get(switch.name)
                != (steering.hash_seed(switch), steering.flowlet_gap_ns(switch))]

    def _tell_fabricd(self, steering: Steering) -> None:
        """Seeds and gaps that differ from what fabricd has."""
        changed = self._told_otherwise(steering)
        if not changed or not self._options.fabricd_socket:
            return
        from topologies.fabricd.client import FabricdClient

        with FabricdClient(Path(self._options.fabricd_socket)) as fabricd:
            for switch in changed:
                seed, gap_ns = steering.hash_seed(switch), steering.flowlet_gap_ns(switch)
                fabricd.call("set_switch", switch=switch.index, hash_seed=seed, flowlet_gap_ns=gap_ns)
                self._told[switch.name] = (seed, gap_ns)

    def _update_loop(self, steering: Steering, period_us: float) -> None:
        """Let the policy look at every leaf once a period, until another one is in use."""
        fabric, fleet = steering.fabric, self._fleet
        period_ns = max(fabric.clock.lab_ns(period_us), SHORTEST_PERIOD_NS)
        samplers, telemetry = self._samplers(steering), None
        due_ns = time.monotonic_ns()
        while fleet is not None:
            due_ns = max(due_ns + period_ns, time.monotonic_ns())  # late: no catching up
            hub.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
            if self._steering is not steering:
                return
            try:
                if telemetry is None:
                    telemetry = self._open_telemetry()
                for leaf, sampler in samplers.items():
                    if leaf not in fleet.installed:
                        continue  # its rules are being brought, from the table as it is
                    now_ns = time.monotonic_ns()
                    load = sampler.sample(telemetry, now_ns)
                    if load is None or self._steering is not steering:
                        continue
                    moves = steering.update(leaf, load, now_ns)
                    if moves:
                        fleet.move(leaf, steering, moves)
                        self._record_moves(now_ns, leaf, moves, load.entry_bytes)
                self._trouble.pop("telemetry", None)
            except LabError as error:
                self._trouble["telemetry" if telemetry is None else "policy"] = error.message
                if telemetry is not None:
                    return
            except Exception as error:  # nobody may have to guess why the tables no longer change
                log.exception("the update loop")
                self._trouble["policy"] = f"the update loop ended: {type(error).__name__}: {error}"
                return

    def _samplers(self, steering: Steering) -> dict[str, LeafSampler]:
        from topologies.fabricd.binding import flow_hash  # needs the native core, and only a live policy does

        fabric = steering.fabric
        return {leaf: LeafSampler(fabric, fabric.switch(leaf), table.index, len(table.entries),
                                  steering.views[leaf].seed, flow_hash) for leaf, table in steering.tables.items()}

    def _open_telemetry(self) -> Any:
        from topologies.fabricd.telemetry import Telemetry

        return Telemetry.open(Path(self._options.telemetry_path))

    # Loops

    def _watch(self) -> None:
        """Take over the fabric's description when it appears or is replaced; end with the parent."""
        path, seen = Path(self._options.fabric_path), None
        while True:
            if self._options.parent_pid and os.getppid() != self._options.parent_pid:
                log.error("the parent is gone")
                os._exit(0)  # sys.exit would only end this green thread
            try:
                stamp = path.stat()
            except OSError:
                stamp = None
            if stamp is not None and seen != (stamp.st_ino, stamp.st_mtime_ns):
                seen = (stamp.st_ino, stamp.st_mtime_ns)
                try:
                    self._adopt(Fabric.load(path))
                except LabError as error:
                    self._trouble["fabric"] = error.message
                    log.error("%s", error.message)
                except Exception as error:  # of a file that is not what it should be
                    self._trouble["fabric"] = f"cannot use {path}: {type(error).__name__}: {error}"
                    log.exception("%s", path)
            hub.sleep(WATCH_PERIOD_S)

    def _poll_statistics(self) -> None:
        """Every second, hold what the switches count against what we expect."""
        while True:
            hub.sleep(STATISTICS_PERIOD_S)
            with self._configuring:
                fleet, steering = self._fleet, self._steering
                if fleet is None or steering is None or fleet.missing():
                    continue
                try:
                    rules = fleet.rules_in_use()
                    discarded = openflow.discards(self._ask_ports())
                except LabError as error:
                    log.warning("%s", error.message)
                    continue
            wrong = [f"{leaf} holds {count} rules of its path table's {expected}"
                     for leaf, (count, expected) in rules.items() if count != expected]
            self._trouble.pop("rules", None)
            if wrong:
                self._trouble["rules"] = "; ".join(wrong)
            if discarded != self._discards:
                self._discards = discarded
                self._record("discards", frames=discarded)
                log.warning("Open vSwitch has discarded frames: %s", discarded)

    def _serve(self) -> None:
        path = self._options.control_socket
        listener = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(16)
        operations = {"status": self._op_status, "policy": self._op_policy, "tables": self._op_tables,
                      "port_stats": self._op_port_stats, "flow_stats": self._op_flow_stats, "events": self._op_events}
        while True:
            connection, _ = listener.accept()
            hub.spawn(serve, connection, operations)

    # Operations

    def _op_status(self) -> dict[str, Any]:
        fleet, steering = self._fleet, self._steering
        problems = list(self._trouble.values())
        if fleet is None or steering is None:
            return {"ready": False, "connected": [], "missing": [], "problems": problems, "policy": None,
                    "parameters": {}, "seed": None, "same_seed": False, "since": None}
        for name, session in fleet.sessions.items():
            problems += check_switch(fleet.fabric, fleet.fabric.switch(name), openflow.port_names(session.datapath))
        missing = fleet.missing()
        return {"ready": not missing and not problems and steering.since_ns is not None,
                "connected": sorted(fleet.sessions), "missing": missing, "problems": problems,
                "policy": steering.policy.name, "parameters": steering.parameters, "seed": steering.seed,
                "same_seed": steering.same_seed, "since": steering.since_ns}

    def _op_policy(self, name: str, params: dict[str, Any] | None = None, seed: int | None = None,
                   same_seed: bool = False) -> dict[str, Any]:
        fleet = self._known_fleet()
        steering = Steering(fleet.fabric, create_policy(name, params), dict(params or {}), seed, same_seed)
        with self._configuring:
            def prepare() -> None:
                self._tell_fabricd(steering)
                self._steering = steering
                for about in ("policy", "telemetry", "rules"):
                    self._trouble.pop(about, None)

            fleet.switch_over(steering, prepare)
            self._begin(steering)
        hub.spawn_after(OLD_BANK_GRACE_S, self._tidy, steering)
        return self._op_status()

    def _tidy(self, steering: Steering) -> None:
        with self._configuring:
            if self._steering is steering and self._fleet is not None:
                self._fleet.empty_idle_banks()

    def _op_tables(self) -> dict[str, Any]:
        self._known_fleet()
        assert self._steering is not None
        return {"leaves": {leaf: {"index": table.index, "entries": table.entries.tolist(),
                                  "seed": self._steering.views[leaf].seed}
                           for leaf, table in self._steering.tables.items()}}

    def _op_port_stats(self) -> dict[str, Any]:
        return {"switches": self._ask_ports()}

    def _op_flow_stats(self) -> dict[str, Any]:
        fleet = self._known_fleet()
        assert self._steering is not None
        index = self._steering.policy.index
        answers = {leaf: session.ask([openflow.flow_stats_request(fleet.bank[leaf])])
                   for leaf, session in fleet.sessions.items() if leaf in fleet.bank}
        return {"leaves": {leaf: openflow.entry_counters(answer.wait(ANSWER_TIMEOUT_S), index)
                           for leaf, answer in answers.items()}}

    def _op_events(self, since: int = 0) -> dict[str, Any]:
        wanted = max(0, self._event_count - since)
        return {"events": list(self._events)[-wanted:] if wanted else [], "next": self._event_count}

    def _ask_ports(self) -> dict[str, dict[int, dict[str, int]]]:
        answers = {name: session.ask([openflow.port_stats_request()])
                   for name, session in self._known_fleet().sessions.items()}
        return {name: openflow.port_counters(answer.wait(ANSWER_TIMEOUT_S)) for name, answer in answers.items()}

    def _known_fleet(self) -> Fleet:
        if self._fleet is None:
            raise LabError("the controller knows no fabric yet", f"it waits for {self._options.fabric_path}")
        return self._fleet

    def _record(self, kind: str, t_ns: int | None = None, **details: Any) -> None:
        self._events.append({"kind": kind, "t_ns": time.monotonic_ns() if t_ns is None else t_ns, **details})
        self._event_count += 1

    def _record_moves(self, now_ns: int, leaf: str, moves: list[Move], entry_bytes: Any) -> None:
        for move in moves:
            self._record("move", t_ns=now_ns, leaf=leaf, entry=move.entry, bytes=int(entry_bytes[move.entry]),
                         **{"from": move.source, "to": move.target})
