"""Brings rules into switches: whole pipelines, switch-overs from one policy to another, single moves.

Talks to switches through `openflow.Session` only; what to install comes from `pipeline`.  A switch is *installed* while
its present connection has confirmed all rules, and *known* if its rules are ours, of this connection or an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controllers import openflow
from controllers.path_table import Move
from controllers.pipeline import BANKS, bank_content, bank_rule, base_rules, entry_rule
from controllers.steering import Steering
from topologies.errors import LabError
from topologies.fabric import Fabric, Switch

ANSWER_TIMEOUT_S = 10.0


class Fleet:
    """The switches of one fabric and what they hold.  Not reentrant: one change of rules at a time."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.sessions: dict[str, openflow.Session] = {}  # connected switches of the fabric
        self.installed: set[str] = set()
        self._known: set[str] = set()
        self.bank: dict[str, int] = {}  # in use, by leaf
        self._rules: dict[str, int] = {}  # how many the bank in use has, by leaf
        self._base_rules = {switch.name: base_rules(fabric, switch) for switch in fabric.switches}

    def missing(self) -> list[str]:
        """Switches that are not installed."""
        return [switch.name for switch in self.fabric.switches if switch.name not in self.installed]

    def disconnected(self, session: openflow.Session) -> bool:
        """Forget a lost connection; whether it was one of ours and the present one."""
        session.close()
        if self.sessions.get(session.name) is not session:
            return False
        del self.sessions[session.name]
        self.installed.discard(session.name)
        return True

    def install(self, switch: Switch, session: openflow.Session, steering: Steering) -> None:
        """All rules of a switch that has just connected.

        A known one may be forwarding still, so nothing that it may use is deleted: a leaf gets its path table into the
        idle bank, as at a switch-over.  Raises LabError.
        """
        self.sessions[switch.name] = session
        messages: list[bytes] = []
        if switch.name not in self._known:
            messages += [openflow.table_clear(), openflow.group_delete(), openflow.barrier()]
        rules = list(self._base_rules[switch.name])
        bank = _other(self.bank.get(switch.name, BANKS[1]))
        if switch.name in steering.tables:
            messages += [*_empty(bank), *self._fill(switch.name, bank, steering)]
            rules.append(bank_rule(self.fabric, bank))
        messages += [*(openflow.flow_add(rule) for rule in rules), openflow.barrier()]
        if switch.name in steering.tables:
            messages += _empty(_other(bank))
        session.ask(messages).wait(ANSWER_TIMEOUT_S)
        if switch.name in steering.tables:
            self.bank[switch.name] = bank
        self._known.add(switch.name)
        self.installed.add(switch.name)

    def switch_over(self, steering: Steering, prepare: Callable[[], None]) -> None:
        """Every leaf goes over to `steering` without losing a frame.

        The idle bank is filled and confirmed everywhere, then `prepare` is called (fabricd's side of the policy), then
        one rule a leaf is replaced.  Raises LabError: of `prepare` or before it, nothing has changed; later, some
        leaves may use the old policy still, and get the new one when they connect again.
        """
        leaves = list(steering.tables)
        absent = [leaf for leaf in leaves if leaf not in self.installed]
        if absent:
            raise LabError(f"{', '.join(absent)} not connected to the controller", "see the status of the controller")
        target = {leaf: _other(self.bank[leaf]) for leaf in leaves}
        self._ask_all({leaf: [*_empty(target[leaf]), *self._fill(leaf, target[leaf], steering)]
                       for leaf in leaves})
        prepare()
        self.bank.update(target)
        self._ask_all({leaf: [openflow.flow_add(bank_rule(self.fabric, target[leaf])), openflow.barrier()]
                       for leaf in leaves})

    def empty_idle_banks(self) -> None:
        """Delete what no leaf uses any more."""
        for leaf in self.bank.keys() & self.sessions.keys():
            self.sessions[leaf].send(_empty(_other(self.bank[leaf])))

    def move(self, leaf: str, steering: Steering, moves: Iterable[Move]) -> None:
        """Change single entries of a leaf's bank in use.  Without a connection: it gets them when it has one again."""
        session = self.sessions.get(leaf)
        if session is None:
            return
        table, bank, uplinks = steering.tables[leaf], self.bank[leaf], self.fabric.uplinks(leaf)
        if table.index == "group":
            _, groups = bank_content(bank, table, uplinks)
            session.send(openflow.group_set(group) for group in groups)
            return
        session.send(openflow.flow_add(entry_rule(
            bank, table.index, len(table.entries), move.entry, uplinks[move.target].number)) for move in moves)

    def rules_in_use(self) -> dict[str, tuple[int, int]]:
        """Rules that each leaf's bank in use holds, by its own count, and how many it should.  Raises LabError."""
        answers = {leaf: self.sessions[leaf].ask([openflow.table_stats_request(bank)])
                   for leaf, bank in self.bank.items() if leaf in self.sessions}
        return {leaf: (int(answer.wait(ANSWER_TIMEOUT_S)[0].flow_count), self._rules[leaf])
                for leaf, answer in answers.items()}

    def _fill(self, leaf: str, bank: int, steering: Steering) -> list[bytes]:
        rules, groups = bank_content(bank, steering.tables[leaf], self.fabric.uplinks(leaf))
        self._rules[leaf] = len(rules)
        return [*(openflow.group_set(group) for group in groups), openflow.barrier(),
                *(openflow.flow_add(rule) for rule in rules), openflow.barrier()]

    def _ask_all(self, messages: dict[str, list[bytes]]) -> None:
        answers = [self.sessions[leaf].ask(of_leaf) for leaf, of_leaf in messages.items() if leaf in self.sessions]
        for answer in answers:
            answer.wait(ANSWER_TIMEOUT_S)


def _other(bank: int) -> int:
    return BANKS[0] + BANKS[1] - bank


def _empty(bank: int) -> list[bytes]:
    return [openflow.table_clear(bank), openflow.group_delete(bank), openflow.barrier()]
