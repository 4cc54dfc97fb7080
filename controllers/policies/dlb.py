"""Dynamic load balancing, as in a switch ASIC (Broadcom DLB, SAI ARS), with reactive rebalancing.

The table is indexed by a flow's slot, so every flow has an entry of its own.  Each period (SAI's sampling interval,
16 us) a leaf looks at what each entry carried and at its uplinks, and
- gives a flow that has just become an elephant the least loaded uplink,
- moves one elephant away from each overloaded uplink if that makes the hotter of the two uplinks cooler,
- re-places idle entries, which cannot be reordered: those that carried something lately only where that improves the
  balance to be expected when they go on; the others are spread over the least loaded uplinks.

**Demand.** Elephants fill whatever they get: one alone on an uplink at 100 % and two on another at 50 % each look the
same by bytes.  So an entry's *demand*, not its rate, is what counts.  Where a queue stands, the flows that get the
most (at least half of the largest rate) are held back by this uplink and would take a whole one; the others, and
everybody on an uplink without a queue, get what they ask for.  (The same reasoning as max-min fair demand estimation in
Hedera, NSDI 2010.)  Demand rises at once and falls slowly (SAI's past load weight, 16), and it survives a pause: all
flows of a job stop together and go on together, and must find their uplinks as they left them.

**Stability.** A move must lower the larger demand of the two uplinks by `margin` of an uplink, so it never merely
swaps the hot spot, and what it gained is never worth moving back.  Of the entries that would do, the smallest goes.  An
entry that has moved stays for `hold_us`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from controllers.policy import (
    MAX_ENTRIES,
    BoolArray,
    Entries,
    FloatArray,
    LeafLoad,
    LeafView,
    Policy,
    check_range,
    round_robin,
)

FULL_SHARE = 0.9  # of an uplink's rate over a period: it could hardly have sent more
EQUAL_SHARE = 0.5  # of the largest rate on a full uplink: what still counts as held back by it
HALF = 0.5  # of an uplink's rate: with less on it nothing is overloaded
FALL_WEIGHT = 1 / 16  # SAI's default past load weight
MOUSE_SHARE = 0.02  # of an uplink: less is not worth a rule (a TCP elephant's ACKs need 3 % at 1,500 bytes)
IDLE_MOVES_PER_PERIOD = 16  # a leaf's rules change bit by bit, so that no switch is busy with them for long


@dataclass(frozen=True)
class DlbParameters:
    """Times in us of hardware.

    period_us: between two looks (SAI: sampling interval).  idle_us: an entry that saw nothing for so long can be
    re-placed without reordering (two periods; SAI's default for the idle time is 256 us, the advice half an RTT).
    margin: what a move must gain, as a share of an uplink.  hold_us: an entry that moved stays for so long.
    memory_us: an idle entry's demand is remembered for so long.  full_queue_kb: a queue of this length holds flows
    back; a quarter of it does if the uplink was busy all period.
    """

    entries: int = MAX_ENTRIES
    period_us: float = 16.0
    idle_us: float = 32.0
    margin: float = 0.2
    hold_us: float = 64.0
    memory_us: float = 4096.0
    full_queue_kb: float = 32.0

    def __post_init__(self) -> None:
        check_range("dlb.entries", self.entries, 1, MAX_ENTRIES)
        check_range("dlb.period_us", self.period_us, 0.1, 1e6)
        check_range("dlb.idle_us", self.idle_us, 0, 1e9)
        check_range("dlb.margin", self.margin, 0.01, 1)
        check_range("dlb.hold_us", self.hold_us, 0, 1e9)
        check_range("dlb.memory_us", self.memory_us, 0, 1e9)
        check_range("dlb.full_queue_kb", self.full_queue_kb, 0, 1e6)


@dataclass
class _Leaf:
    """What is remembered of one leaf.  demand: [entries] Gb/s.  held_until_us: [entries]."""

    demand: FloatArray
    held_until_us: FloatArray


@dataclass
class _Plan:
    """A table in the making, and the demand in uplinks that it puts on each uplink."""

    entries: Entries
    demand: FloatArray  # [entries] Gb/s
    rate: FloatArray  # [uplinks] Gb/s
    up: BoolArray
    load: FloatArray = field(init=False)  # [uplinks], 1.0: as much as it can carry

    def __post_init__(self) -> None:
        self.load = np.bincount(self.entries, self.demand, minlength=len(self.rate)) / self.rate

    def best(self, entry: int) -> tuple[int, float]:
        """The uplink that would be least loaded with `entry` on it, and how much cooler the hotter one would be."""
        source, demand = int(self.entries[entry]), self.demand[entry]
        after = np.where(self.up, self.load + demand / self.rate, np.inf)
        after[source] = np.inf
        target = int(after.argmin())
        hotter = max(self.load[source] - demand / self.rate[source], after[target])
        return target, float(max(self.load[source], self.load[target]) - hotter)

    def move(self, entry: int, target: int) -> None:
        source, demand = int(self.entries[entry]), self.demand[entry]
        self.load[source] -= demand / self.rate[source]
        self.load[target] += demand / self.rate[target]
        self.entries[entry] = target


class Dlb(Policy[DlbParameters]):
    """Load-aware table, one entry a flow."""

    name = "dlb"
    index = "slot"
    Parameters = DlbParameters

    def __init__(self, parameters: DlbParameters) -> None:
        super().__init__(parameters)
        self._leaves: dict[str, _Leaf] = {}

    @property
    def period_us(self) -> float | None:
        return self.parameters.period_us

    def table_size(self, uplinks: int) -> int:
        return self.parameters.entries

    def initial(self, leaf: LeafView) -> Entries:
        return round_robin(leaf)

    def update(self, leaf: LeafView, load: LeafLoad, entries: Entries, now_us: float) -> Entries:
        size = len(entries)
        known = self._leaves.setdefault(leaf.name, _Leaf(np.zeros(size), np.full(size, -np.inf)))
        before = known.demand.copy()
        rate = load.entry_bytes * 8e-3 / load.period_us
        overloaded = self._learn(known, leaf, load, entries, rate)
        plan = _Plan(entries.copy(), known.demand, leaf.uplink_gbps, load.up)

        mouse_gbps = MOUSE_SHARE * leaf.uplink_gbps[entries]
        elephant = known.demand >= mouse_gbps
        free = now_us >= known.held_until_us
        idle = load.idle_us > self.parameters.idle_us

        self._leave_dead_uplinks(plan)
        self._place(plan, elephant & (before < known.demand / 2) & ~idle & free)
        self._relieve(plan, overloaded, elephant & ~idle & free & (plan.entries == entries))
        self._place(plan, elephant & idle & free)
        self._spread(plan, ~elephant & idle)
        known.held_until_us[(plan.entries != entries) & elephant & ~idle] = now_us + self.parameters.hold_us
        return plan.entries

    def _learn(self, known: _Leaf, leaf: LeafView, load: LeafLoad, entries: Entries, rate: FloatArray) -> BoolArray:
        """Update the demands; which uplinks carry so much that relief is worth reordering a flow."""
        largest, carried = np.zeros(leaf.uplinks), np.bincount(entries, rate, minlength=leaf.uplinks)
        np.maximum.at(largest, entries, rate)
        queue_kb = load.queue_bytes / 1024
        busy = load.tx_gbps >= FULL_SHARE * leaf.uplink_gbps
        full = (queue_kb >= self.parameters.full_queue_kb) | (busy & (queue_kb >= self.parameters.full_queue_kb / 4))
        # What stands in the queue may be of flows that have left: only who carries the load can be held back.
        full &= carried >= HALF * leaf.uplink_gbps
        held_back = full[entries] & (rate >= EQUAL_SHARE * largest[entries])
        wanted = np.where(held_back, np.maximum(leaf.uplink_gbps[entries], rate), rate)
        falling = known.demand + (wanted - known.demand) * FALL_WEIGHT
        known.demand = np.where(wanted >= known.demand, wanted, np.where(rate > 0, falling, known.demand))
        known.demand[load.idle_us > self.parameters.memory_us] = 0.0
        return np.asarray(carried >= HALF * leaf.uplink_gbps)

    def _leave_dead_uplinks(self, plan: _Plan) -> None:
        if not plan.up.any():
            return
        for entry in np.flatnonzero(~plan.up[plan.entries]):
            # Entries without demand go round robin, so that a dead uplink's share does not end up on one other.
            alive = np.flatnonzero(plan.up)
            target = plan.best(int(entry))[0] if plan.demand[entry] > 0 else int(alive[entry % len(alive)])
            plan.move(int(entry), target)

    def _place(self, plan: _Plan, candidates: BoolArray) -> None:
        """Move each candidate, the smallest first, to where it does best, if that gains the margin."""
        for entry in sorted(np.flatnonzero(candidates), key=lambda e: plan.demand[e]):
            target, gain = plan.best(int(entry))
            if gain >= self.parameters.margin:
                plan.move(int(entry), target)

    def _relieve(self, plan: _Plan, overloaded: BoolArray, candidates: BoolArray) -> None:
        """Move one candidate, the smallest that gains the margin, away from each overloaded uplink."""
        for source in sorted(np.flatnonzero(overloaded), key=lambda u: -plan.load[u]):
            here = np.flatnonzero(candidates & (plan.entries == source))
            for entry in sorted(here, key=lambda e: plan.demand[e]):
                target, gain = plan.best(int(entry))
                if gain >= self.parameters.margin:
                    plan.move(int(entry), target)
                    break

    def _spread(self, plan: _Plan, candidates: BoolArray) -> None:
        """Spread entries nobody uses evenly over the uplinks that are, within the margin, the least loaded."""
        where = plan.entries[candidates]
        if not len(where) or not plan.up.any():
            return
        usable = plan.up & (plan.load <= plan.load[plan.up].min() + self.parameters.margin)
        count = np.bincount(where, minlength=len(plan.up)).astype(float)
        slack = max(1.0, 0.25 * len(where) / usable.sum())
        for _ in range(IDLE_MOVES_PER_PERIOD):
            source = int(np.where(usable, count, np.where(count > 0, count + MAX_ENTRIES, 0)).argmax())
            target = int(np.where(usable, count, np.inf).argmin())
            if usable[source] and count[source] - count[target] <= slack:
                return
            entry = int(np.flatnonzero(candidates & (plan.entries == source))[-1])
            plan.move(entry, target)
            count[source] -= 1
            count[target] += 1


POLICY = Dlb
