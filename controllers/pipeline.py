"""The rules of a fabric as plain data: what every switch has to hold, table by table.

Table 0 of a leaf    ip to a host of its own         -> access port          priority 200
                     ip into the fabric's prefix     -> bank 1 or bank 2     priority 100, one rule: the switch-over
Table 1 and 2        the banks.  One is in use and holds the path table, a rule an entry (`ip, eth_src=<path bits>` ->
                     uplink) or one rule to a select group; the other is empty, or being filled for the next policy.
Table 0 of a spine   ip to a host                    -> downlink to its leaf  priority 200
What nothing matches is dropped, as a switch with fail_mode=secure does without a rule.

Frames to a spine come back only to the leaf of the destination, where they match a local host: no loops.  In a ring
of leaves a frame to an address that nobody has would go round for ever, so a leaf whose other links are not all uplinks
has one thing more:
Table 0 of a leaf    ip from a host of its own, by a downlink -> dropped     priority 300
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from controllers.path_table import MacMatch, entry_match
from controllers.policy import Entries, Index
from topologies.errors import LabError
from topologies.fabric import Fabric, Host, Port, Switch

BANKS = (1, 2)
LOOP_PRIORITY = 300
HOST_PRIORITY = 200
BANK_PRIORITY = 100
ENTRY_PRIORITY = 100


@dataclass(frozen=True)
class Rule:
    """One flow entry on IPv4 packets: a match (None: any) and one of the three things to do, or none: dropped."""

    table: int
    priority: int
    in_port: int | None = None
    source: str | None = None  # "10.0.0.1/32"
    destination: str | None = None
    source_mac: MacMatch | None = None
    output: int | None = None  # OpenFlow port
    goto: int | None = None  # table
    group: int | None = None


@dataclass(frozen=True)
class SelectGroup:
    """A select group with one bucket of equal weight an entry; `number` is that of its bank."""

    number: int
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class PathTable:
    """What a leaf's bank holds; entries are numbers of uplinks."""

    index: Index
    entries: Entries


def base_rules(fabric: Fabric, switch: Switch) -> list[Rule]:
    """Table 0 of a switch but for a leaf's rule to its bank.  Raises LabError if a host cannot be reached."""
    ports = {fabric.peer(port).device: port for port in fabric.ports_of(switch)}
    rules = []
    for host in fabric.hosts:
        if switch.tier == "leaf" and host.leaf != switch.name:
            continue
        towards = ports.get(host.name) or ports.get(host.leaf)
        if towards is None:
            raise LabError(f"{switch.name} has no link towards {host.name}")
        rules.append(Rule(0, HOST_PRIORITY, destination=f"{host.ip}/32", output=towards.number))
        if switch.tier == "leaf":
            rules += [Rule(0, LOOP_PRIORITY, in_port=port.number, source=f"{host.ip}/32")
                      for port in ports.values() if port.role == "downlink"]
    return rules


def bank_rule(fabric: Fabric, bank: int) -> Rule:
    """The one rule of a leaf that says which bank is in use."""
    return Rule(0, BANK_PRIORITY, destination=covering_prefix(fabric.hosts), goto=bank)


def bank_content(bank: int, path_table: PathTable, uplinks: Sequence[Port]) -> tuple[list[Rule], list[SelectGroup]]:
    """The rules of a bank, and the groups that must be there before them."""
    outputs = [uplinks[int(uplink)].number for uplink in path_table.entries]
    if path_table.index == "group":
        return [Rule(bank, ENTRY_PRIORITY, group=bank)], [SelectGroup(bank, tuple(outputs))]
    size = len(outputs)
    return [entry_rule(bank, path_table.index, size, entry, output) for entry, output in enumerate(outputs)], []


def entry_rule(bank: int, index: Index, size: int, entry: int, output: int) -> Rule:
    """The rule of one entry of a path table."""
    return Rule(bank, ENTRY_PRIORITY, source_mac=entry_match(index, size, entry), output=output)


def covering_prefix(hosts: Sequence[Host]) -> str:
    """The longest prefix that holds all hosts' addresses."""
    addresses = [int(ipaddress.IPv4Address(host.ip)) for host in hosts]
    length = 32 - (min(addresses) ^ max(addresses)).bit_length()
    return str(ipaddress.ip_network((min(addresses), length), strict=False))


def check_switch(fabric: Fabric, switch: Switch, reported: dict[int, str]) -> list[str]:
    """What a switch says about its ports (number -> name) against the fabric's description; sentences, empty if right.

    Ports that the description does not have are none of the fabric's business, unless they carry one of its names.
    """
    problems = []
    expected = {port.number: port.interface for port in fabric.ports_of(switch)}
    for number, interface in expected.items():
        if number not in reported:
            problems.append(f"{switch.name}: port {number} ({interface}) is missing")
        elif reported[number] != interface:
            problems.append(f"{switch.name}: port {number} is {reported[number]}, should be {interface}")
    return problems
