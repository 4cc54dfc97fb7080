"""A switch that speaks OpenFlow 1.3 in memory: it parses what a session sends, keeps tables, and forwards frames.

Stands in for Ryu's datapath.  Flow and group messages take effect one by one, in order; `after_message` is called
after each, so that a test can look at every state that a real switch could be caught in.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from controllers.openflow import ADD_OR_MODIFY_GROUP, Session

# isort: split
from ryu.ofproto import ofproto_parser, ofproto_protocol
from ryu.ofproto import ofproto_v1_3 as ofp
from ryu.ofproto import ofproto_v1_3_parser as parser

ANY_TABLE = ofp.OFPTT_ALL


@dataclass(frozen=True)
class Frame:
    """What the rules look at; flow_hash stands for Open vSwitch's own hash in a select group."""

    destination: str
    source_mac: int
    flow_hash: int = 0
    source: str = "0.0.0.0"
    in_port: int = 0


@dataclass(frozen=True)
class _Entry:
    priority: int
    in_port: int | None
    source: tuple[int, int]  # value, mask
    destination: tuple[int, int]
    source_mac: tuple[int, int]
    output: int | None = None
    group: int | None = None
    goto: int | None = None

    @property
    def match(self) -> tuple[object, ...]:
        return self.priority, self.in_port, self.source, self.destination, self.source_mac

    def matches(self, frame: Frame) -> bool:
        return self.in_port in (None, frame.in_port) and not (
            (_ip(frame.source) ^ self.source[0]) & self.source[1]
            or (_ip(frame.destination) ^ self.destination[0]) & self.destination[1]
            or (frame.source_mac ^ self.source_mac[0]) & self.source_mac[1])


def _ip(address: str) -> int:
    return int(ipaddress.IPv4Address(address))


def _mac(address: str) -> int:
    return int(address.replace(":", ""), 16)


def _masked(value: Any, number: Callable[[str], int]) -> tuple[int, int]:
    if value is None:
        return 0, 0
    return (number(value[0]), number(value[1])) if isinstance(value, tuple) else (number(value), -1)


@dataclass
class FakeSwitch:
    """One switch.  refuse: the type of messages (OFPT_...) that it answers with an error; deaf: answers nothing."""

    name: str
    dpid: int
    after_message: Callable[[], None] = lambda: None
    refuse: int | None = None
    deaf: bool = False
    xid: int = 0
    tables: dict[int, list[_Entry]] = field(default_factory=dict)
    groups: dict[int, list[int]] = field(default_factory=dict)
    received: list[int] = field(default_factory=list)  # types of messages
    ports: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.session = Session(self, self.name)
        self._protocol = ofproto_protocol.ProtocolDesc(version=ofp.OFP_VERSION)

    @property
    def id(self) -> int:
        """The DPID, where Ryu has it."""
        return self.dpid

    def send(self, buffer: bytes) -> None:
        """What Ryu's datapath does with bytes."""
        while buffer:
            version, kind, length, xid = struct.unpack_from("!BBHI", buffer)
            assert version == ofp.OFP_VERSION
            self._receive(kind, length, xid, buffer[:length])
            buffer = buffer[length:]

    def forward(self, frame: Frame) -> int | None:
        """The port that a frame leaves by, or None."""
        table: int | None = 0
        while table is not None:
            entry = max((entry for entry in self.tables.get(table, []) if entry.matches(frame)),
                        key=lambda entry: entry.priority, default=None)
            if entry is None:
                return None
            if entry.group is not None:
                buckets = self.groups.get(entry.group)
                return buckets[frame.flow_hash % len(buckets)] if buckets else None
            if entry.output is not None:
                return entry.output
            assert entry.goto is None or entry.goto > table, "OpenFlow only goes to later tables"
            table = entry.goto
        return None

    def _receive(self, kind: int, length: int, xid: int, message: bytes) -> None:
        self.received.append(kind)
        if self.deaf:
            return
        if kind == self.refuse:
            self.session.on_error(SimpleNamespace(xid=xid, type=ofp.OFPET_FLOW_MOD_FAILED, code=ofp.OFPFMFC_TABLE_FULL))
        elif kind == ofp.OFPT_FLOW_MOD:
            self._flow_mod(ofproto_parser.msg(self._protocol, ofp.OFP_VERSION, kind, length, xid, message))
        elif kind == ofp.OFPT_GROUP_MOD:
            self._group_mod(message)
        elif kind == ofp.OFPT_BARRIER_REQUEST:
            self.session.on_reply(SimpleNamespace(xid=xid, msg_type=ofp.OFPT_BARRIER_REPLY))
        elif kind == ofp.OFPT_MULTIPART_REQUEST:
            table = message[16 + 0]
            body = SimpleNamespace(flow_count=len(self.tables.get(table, [])), packet_count=0, byte_count=0)
            self.session.on_reply(SimpleNamespace(xid=xid, body=body, flags=0, msg_type=ofp.OFPT_MULTIPART_REPLY))
        else:
            raise AssertionError(f"unexpected message type {kind}")
        self.after_message()

    def _flow_mod(self, mod: Any) -> None:
        match = dict(mod.match.items())
        if mod.command == ofp.OFPFC_DELETE:
            assert not match
            for table in list(self.tables) if mod.table_id == ANY_TABLE else [mod.table_id]:
                self.tables[table] = []
            return
        assert mod.command == ofp.OFPFC_ADD
        assert match.pop("eth_type") == 0x0800
        assert match.keys() <= {"in_port", "ipv4_src", "ipv4_dst", "eth_src"}
        instruction = mod.instructions[0] if mod.instructions else None
        action: dict[str, int] = {}
        if instruction is None:
            pass  # dropped
        elif isinstance(instruction, parser.OFPInstructionGotoTable):
            action["goto"] = instruction.table_id
        elif isinstance(instruction.actions[0], parser.OFPActionGroup):
            action["group"] = instruction.actions[0].group_id
            assert action["group"] in self.groups, "a rule to a group that does not exist is refused"
        else:
            action["output"] = instruction.actions[0].port
        new = _Entry(mod.priority, match.get("in_port"), _masked(match.get("ipv4_src"), _ip),
                     _masked(match.get("ipv4_dst"), _ip), _masked(match.get("eth_src"), _mac), **action)
        table = self.tables.setdefault(mod.table_id, [])
        table[:] = [entry for entry in table if entry.match != new.match]
        table.append(new)

    def _group_mod(self, message: bytes) -> None:
        command, kind, group = struct.unpack_from("!HBxI", message, 8)
        if command == ofp.OFPGC_DELETE:
            gone = set(self.groups) if group == ofp.OFPG_ALL else {group}
            self.groups = {number: buckets for number, buckets in self.groups.items() if number not in gone}
            for table in self.tables.values():
                table[:] = [entry for entry in table if entry.group not in gone]
            return
        assert command == ADD_OR_MODIFY_GROUP
        assert kind == ofp.OFPGT_SELECT
        buckets, offset = [], 16
        while offset < len(message):
            bucket = parser.OFPBucket.parser(message, offset)
            buckets.append(bucket.actions[0].port)
            offset += bucket.len
        self.groups[group] = buckets
