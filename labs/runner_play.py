"""Plays one run: one variant, policy and seed of a lab on a fabric that is up, from queue pairs to the full record."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from labs import variants
from labs.fault_player import FaultPlayer
from labs.faults import Scene
from labs.lab import Lab
from labs.measure import theory
from labs.measure.raw import FlowRole, RawIteration, RawRank, RawRun
from labs.measure.verdict import frames_in_flight
from labs.runner_outcome import CONTROLLER_DIED
from labs.runner_ranks import Gathered, Watch
from labs.runner_record import CpuMeter
from labs.runner_session import Session
from labs.seeds import jitters, source_ports
from labs.workload import Job, Rank
from topologies.fabric import Fabric
from topologies.fabricd.binding import flow_hash
from topologies.fabricd.telemetry import TraceKind
from topologies.units import WIRE_OVERHEAD_BYTES

ROCE_PORT, UDP = 4791, 17
_SETUP_TIMEOUT_S = 20.0
_LEAD_S, _LEAD_RANK_S = 0.1, 0.004  # from the command to the common instant: every rank must have posted by then
_QUIET_TIMEOUT_S = 10.0
_QUIET_POLL_S = 0.02
_FROZEN_S = 2.0  # what is in flight and has not become less for so long will not: a deadlock, a port that is paused
_ITERATION_TIMEOUT_S = 3600.0
_STALL_TIMEOUTS, _STALL_S = 3, 10.0  # no data for so many retransmission timeouts and so long: nothing moves any more
_LEAST_PATIENCE_S = 1.0  # whatever a lab says: the ranks' processes need their time


class Observer(Protocol):
    """Is told how a run gets on."""

    def iteration_begins(self, n: int, warmup: bool) -> None:
        """The ranks prepare iteration `n` (from 0, warm-up included)."""

    def iteration_ended(self, n: int, warmup: bool, time_us: float) -> None:
        """The last rank was done after `time_us` of hardware time."""


class Silent:
    """An Observer that tells nobody."""

    def iteration_begins(self, n: int, warmup: bool) -> None: ...

    def iteration_ended(self, n: int, warmup: bool, time_us: float) -> None: ...


@dataclasses.dataclass(frozen=True)
class Played:
    """A finished record; `reason` says why the run broke off, None if it did not.

    fatal: a process died that no other run can do without.
    """

    raw: RawRun
    reason: str | None
    fatal: bool

    @property
    def spoilt(self) -> bool:
        """Whether the fabric is not fit for another run: who knows what stands in its queues."""
        return self.reason is not None or frames_in_flight(self.raw.after) > 0


class Run:
    """One policy (None: the one in use stays) and one seed of a lab without variants.  `play` may be called once."""

    def __init__(self, session: Session, lab: Lab, policy: str | None, seed: int, observer: Observer) -> None:
        self.session, self.lab, self.seed, self.observer = session, lab, seed, observer
        self.policy = policy or ""
        self.fabric: Fabric = session.fabric
        self.params: Mapping[str, Any] = lab.policy_params.get(self.policy, {})
        self.job: Job = lab.workload.plan(lab.fabric)
        self.ports = source_ports(self.job, lab.workload.qps_per_connection, seed)
        self.iterations: list[RawIteration] = []
        self.faults = FaultPlayer(lab.faults, Scene(self.fabric, lab.workload, self.job), session.fabricd)
        self._qps: dict[tuple[int, int], int] = {}  # channel and lane -> number of the queue pair that sends
        self._issued_ns: list[int] = []

    def play(self) -> Played:
        """Raises LabError when the policy or the queue pairs cannot even be set up."""
        session, ranks = self.session, self.session.ranks
        if self.policy:
            session.controller.call("policy", name=self.policy, params=dict(self.params), seed=self.seed)
        else:
            status = session.controller.call("status")
            self.policy, self.params = status["policy"], status["parameters"]
        try:
            reason = self._connect().reason
            self._wait_quiet()
            session.fabricd("clear_watermarks")
            session.recorder.begin()
            before = session.telemetry.snapshot()
            tables_before = session.tables()
            self.fabric = _with_hash_seeds(self.fabric, tables_before)
            cpu = CpuMeter()
            start_ns = time.monotonic_ns()
            for n in range(self.lab.warmup + self.lab.iterations if reason is None else 0):
                reason = self._iterate(n)
                if reason is not None:
                    break
        finally:
            # Also after Ctrl-C: the ranks' queue pairs must not go on sending into the next run.
            self.faults.stop()
            ranks.call(self._everybody({"op": "teardown"}), _SETUP_TIMEOUT_S)
        self._wait_quiet()
        shares = cpu.shares()
        end_ns = time.monotonic_ns()
        after = session.telemetry.snapshot()
        trace, series_t_ns, series_depth, lost = session.recorder.take()
        alive = session.controller_alive()
        roles = self._roles()
        predicted = theory.predicted_factor(roles, self.fabric, tables_before, flow_hash) if tables_before else None
        reason = reason or self.faults.error or (None if alive else CONTROLLER_DIED)
        fatal = reason is not None and (session.trouble() is not None or ranks.died or not alive)
        raw = RawRun(
            policy=self.policy, seed=self.seed, params=self.params, fabric=self.fabric, start_ns=start_ns,
            end_ns=end_ns, iterations=tuple(self._with_first_bits(trace, after.flows, roles)), trace=trace,
            series_t_ns=series_t_ns, series_depth=series_depth, flows=after.flows, flow_ranks=tuple(roles),
            before=before, after=after, path_tables_before=tables_before,
            path_tables_after=session.tables() if alive else {},
            controller_events=session.events(since_ns=start_ns) if alive else (),
            controller_alive=alive, switches_missing=session.switches_missing() if alive else (),
            trace_lost=lost, cpu=shares, rank_jitter_us=self.lab.workload.jitter_us,
            workload=self.lab.workload.describe(self.lab.fabric),
            predicted={} if predicted is None else {"factor": predicted}, variant=self.lab.variant_name,
            label=variants.label(self.lab.variant_name, self.policy, self.lab.policies),
            fault_events=tuple(self.faults.events), may_fail=not fatal and self.lab.run_may_fail(self.policy))
        return Played(raw, reason, fatal)

    def _everybody(self, command: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        return {rank.host: command for rank in self.job.ranks}

    def _connect(self) -> Gathered:
        """Creates all queue pairs and introduces them to each other."""
        workload, job, clock = self.lab.workload, self.job, self.fabric.clock
        lanes = range(workload.qps_per_connection)
        outgoing = {rank.index: job.outgoing(rank.index) for rank in job.ranks}
        incoming = {rank.index: job.incoming(rank.index) for rank in job.ranks}
        control = workload.congestion_control(self.lab.fabric)

        def described(c: int, at_target: int) -> dict[str, Any]:
            """One end of a channel, as its rank must know it."""
            return {"ports": [self.ports[c, lane, at_target] for lane in lanes], "dscp": job.channels[c].dscp,
                    "delay_ns": 0 if at_target else clock.lab_ns(job.channels[c].start_us)}

        gathered = self.session.ranks.call({rank.host: {
            "op": "setup", "rank": rank.index, "agent": workload.agent, "arguments": workload.arguments(job, rank),
            "incoming": [described(c, 1) for c in incoming[rank.index]],
            "outgoing": [described(c, 0) for c in outgoing[rank.index]],
            "window_bytes": workload.window_bytes, "timeout_ns": clock.lab_ns(workload.timeout_us),
            "retry_count": workload.retry_count, "dcqcn": None if control is None else control.to_lab(clock),
        } for rank in job.ranks}, _SETUP_TIMEOUT_S, self.session.trouble)
        if gathered.reason is not None:
            return gathered
        known = {rank.index: gathered.replies[rank.host] for rank in job.ranks}
        for rank in job.ranks:
            for position, c in enumerate(outgoing[rank.index]):
                self._qps |= {(c, lane): known[rank.index]["outgoing"][position][lane]["qp_num"] for lane in lanes}

        def end(c: int, at_target: bool) -> list[dict[str, Any]]:
            """The queue pairs of one end of a channel, as the other end must know them."""
            rank = job.channels[c].target if at_target else job.channels[c].source
            side, mine = ("incoming", incoming) if at_target else ("outgoing", outgoing)
            return [{**qp, "ip": known[rank]["ip"]} for qp in known[rank][side][mine[rank].index(c)]]

        return self.session.ranks.call({rank.host: {
            "op": "connect",
            "incoming": [end(c, at_target=False) for c in incoming[rank.index]],
            "outgoing": [end(c, at_target=True) for c in outgoing[rank.index]],
            "sources": [{key: known[job.channels[c].source][key] for key in ("addr", "rkey")}
                        for c in incoming[rank.index]],
            "targets": [{key: known[job.channels[c].target][key] for key in ("addr", "rkey")}
                        for c in outgoing[rank.index]],
        } for rank in job.ranks}, _SETUP_TIMEOUT_S, self.session.trouble)

    def _iterate(self, n: int) -> str | None:
        """One iteration, recorded; why the run must end, if it must."""
        session, workload, clock = self.session, self.lab.workload, self.fabric.clock
        warmup = n < self.lab.warmup
        self.observer.iteration_begins(n, warmup)
        prepared = session.ranks.call(self._everybody({"op": "prepare", "iteration": n}), _SETUP_TIMEOUT_S,
                                      session.trouble)
        if n == self.lab.warmup and prepared.reason is None:
            self.faults.prepare()
        self._issued_ns.append(time.monotonic_ns())
        lead_ns = int((_LEAD_S + _LEAD_RANK_S * len(self.job.ranks)) * 1e9)
        start_ns = self._issued_ns[-1] + lead_ns + clock.lab_ns(workload.compute_us)
        if prepared.reason is not None:
            self._record(n, warmup, start_ns, prepared)
            return prepared.reason
        delays = jitters(self.job, self.seed, n, workload.jitter_us)
        if n == self.lab.warmup:
            self.faults.begin(start_ns)
        latest_us = workload.jitter_us + max(channel.start_us for channel in self.job.channels)
        watch = self._stall_watch(start_ns + clock.lab_ns(latest_us))
        gathered = session.ranks.call(
            {rank.host: {"op": "run", "earliest_ns": start_ns + clock.lab_ns(delays[rank.index])}
             for rank in self.job.ranks},
            _ITERATION_TIMEOUT_S, watch)
        iteration = self._record(n, warmup, start_ns, gathered)
        ends = [rank.end_ns for rank in iteration.ranks if rank.end_ns is not None]
        if gathered.reason is None:
            self.observer.iteration_ended(n, warmup, clock.hardware_us(max(ends) - start_ns))
        return gathered.reason

    def _stall_watch(self, start_ns: int) -> Watch:
        """Finds trouble also when no NIC has accepted any data for too long; nothing needs to move before start_ns."""
        workload, clock = self.lab.workload, self.fabric.clock
        patience_s = _STALL_TIMEOUTS * clock.lab_ns(workload.timeout_us) / 1e9 + _STALL_S
        if workload.patience_us is not None:
            patience_s = max(_LEAST_PATIENCE_S, clock.lab_ns(workload.patience_us) / 1e9)
        accepted, since_s = -1, 0.0

        def watch() -> str | None:
            nonlocal accepted, since_s
            now_s = time.monotonic()
            total = int(self.session.telemetry.nics["rx_payload_bytes"].sum())
            if total != accepted:
                accepted, since_s = total, max(now_s, start_ns / 1e9)
            if now_s - since_s > patience_s:
                return f"no NIC has received any data for {patience_s:.0f} s"
            return self.session.trouble()

        return watch

    def _record(self, n: int, warmup: bool, start_ns: int, gathered: Gathered) -> RawIteration:
        def outcome(rank: Rank) -> RawRank:
            reply = gathered.replies.get(rank.host, {})
            error = gathered.failures.get(rank.host)
            if error is None and "end_ns" not in reply:
                error = gathered.reason
            return RawRank(rank.index, rank.host, rank.ring, None, reply.get("end_ns"), reply.get("wrong", 0), error)

        self.iterations.append(RawIteration(n, warmup, start_ns, tuple(outcome(rank) for rank in self.job.ranks)))
        return self.iterations[-1]

    def _wait_quiet(self) -> None:
        """Until nothing is queued, on a link or in a switch; what is still there later, the verdict will show."""
        deadline = time.monotonic() + _QUIET_TIMEOUT_S
        before, changed_s = -1, 0.0
        while (frames := frames_in_flight(self.session.telemetry.snapshot())) and time.monotonic() < deadline:
            if frames != before:
                before, changed_s = frames, time.monotonic()
            if self.session.trouble() is not None or time.monotonic() - changed_s > _FROZEN_S:
                return
            time.sleep(_QUIET_POLL_S)

    def _roles(self) -> list[FlowRole]:
        """Who sends data on which flow."""
        def ip(rank: int) -> int:
            return int.from_bytes(socket.inet_aton(self.fabric.host(self.job.ranks[rank].host).ip), "big")

        return [FlowRole(ip(channel.source), ip(channel.target), self.ports[c, lane, 0], ROCE_PORT, UDP,
                         channel.source, channel.target, channel.ring, channel.start_us, self._qps.get((c, lane), 0))
                for c, channel in enumerate(self.job.channels) for lane in range(self.lab.workload.qps_per_connection)]

    def _with_first_bits(self, trace: npt.NDArray[Any], flows: npt.NDArray[Any],
                         roles: list[FlowRole]) -> list[RawIteration]:
        """The iterations, with the moment at which each rank's first data bit went on the wire, from the trace."""
        begin_ns, sender = _first_hops(trace, flows, roles, self.fabric)
        bounds = [*self._issued_ns, np.iinfo(np.int64).max]
        completed = []
        for position, iteration in enumerate(self.iterations):
            within = (begin_ns >= bounds[position]) & (begin_ns < bounds[position + 1])
            first = {rank: int(begin_ns[within & (sender == rank)].min())
                     for rank in np.unique(sender[within]).tolist()}
            completed.append(dataclasses.replace(iteration, ranks=tuple(
                dataclasses.replace(rank, first_tx_ns=first.get(rank.rank)) for rank in iteration.ranks)))
        return completed


def _with_hash_seeds(fabric: Fabric, tables: Mapping[str, Any]) -> Fabric:
    """The fabric as it is for this run: the controller gives the switches other hash seeds with every seed."""
    return dataclasses.replace(fabric, switches=tuple(
        dataclasses.replace(switch, hash_seed=tables[switch.name]["seed"]) if switch.name in tables else switch
        for switch in fabric.switches))


def _first_hops(trace: npt.NDArray[Any], flows: npt.NDArray[Any], roles: list[FlowRole],
                fabric: Fabric) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Data frames as they left their NICs: when their first bit did, and which rank sent them."""
    rank_of = {role.key: role.rank for role in roles}
    names = ("src_ip", "dst_ip", "src_port", "dst_port", "protocol")
    keys = zip(*(flows[name].tolist() for name in names), strict=True)
    sender_of_flow = np.array([rank_of.get(key, -1) for key in keys] or [-1], dtype=np.int64)
    rates_bps = np.array([port.rate_bps for port in fabric.ports])
    hops = trace[(trace["kind"] == TraceKind.HOP) & (trace["port"] < len(fabric.hosts))]
    hops = hops[hops["flow"] < len(flows)]
    sender = sender_of_flow[hops["flow"]]
    hops, sender = hops[sender >= 0], sender[sender >= 0]
    bits = (hops["bytes"].astype(np.float64) + WIRE_OVERHEAD_BYTES) * 8
    return hops["t_ns"] - (bits * 1e9 / rates_bps[hops["port"]]).astype(np.int64), sender
