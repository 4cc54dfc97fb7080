"""OpenFlow 1.3: turns the plain rules of `pipeline` into messages, and keeps track of one switch's answers.

Messages are bytes without a transaction number; the session that sends one puts it in.  So a rule is encoded once
however many leaves get it and however often: encoding costs Ryu 0.1 ms, which is most of a switch-over.

Together with app.py this is all that knows of Ryu and eventlet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from controllers import ryu_shim  # noqa: F401

# isort: split
from ryu.lib import hub
from ryu.ofproto import ofproto_protocol
from ryu.ofproto import ofproto_v1_3 as ofp
from ryu.ofproto import ofproto_v1_3_parser as parser

from controllers.path_table import INDEX_BYTE
from controllers.pipeline import Rule, SelectGroup
from controllers.policy import Index
from topologies.errors import LabError

ETHERTYPE_IPV4 = 0x0800
ADD_OR_MODIFY_GROUP = 0x8000  # Open vSwitch's extension of the group commands
PORT_COUNTERS = ("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_dropped", "tx_dropped", "rx_errors",
                 "tx_errors")
DISCARD_COUNTERS = ("rx_dropped", "tx_dropped", "rx_errors", "tx_errors")


_PROTOCOL = ofproto_protocol.ProtocolDesc(version=ofp.OFP_VERSION)


def _encode(message: Any) -> bytes:
    message.set_xid(0)
    message.serialize()
    return bytes(message.buf)


@lru_cache(maxsize=1 << 14)
def flow_add(rule: Rule) -> bytes:
    """The message that installs `rule`, or replaces the one with the same match."""
    fields: dict[str, Any] = {"eth_type": ETHERTYPE_IPV4}
    if rule.in_port is not None:
        fields["in_port"] = rule.in_port
    for field, prefix in (("ipv4_src", rule.source), ("ipv4_dst", rule.destination)):
        if prefix is not None:
            address, _, length = prefix.partition("/")
            bits = 0xFFFFFFFF << (32 - int(length)) & 0xFFFFFFFF
            mask = ".".join(str(byte) for byte in bits.to_bytes(4, "big"))
            fields[field] = address if length == "32" else (address, mask)
    if rule.source_mac is not None:
        fields["eth_src"] = tuple(rule.source_mac)
    if rule.goto is not None:
        instructions = [parser.OFPInstructionGotoTable(rule.goto)]
    else:
        actions = [parser.OFPActionGroup(rule.group)] if rule.group is not None else []
        actions += [parser.OFPActionOutput(rule.output)] if rule.output is not None else []
        instructions = [parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, actions)] if actions else []
    return _encode(parser.OFPFlowMod(_PROTOCOL, table_id=rule.table, priority=rule.priority,
                                     match=parser.OFPMatch(**fields), instructions=instructions))


def table_clear(table: int = ofp.OFPTT_ALL) -> bytes:
    """The message that deletes all rules of a table, or of all tables."""
    return _encode(parser.OFPFlowMod(_PROTOCOL, table_id=table, command=ofp.OFPFC_DELETE, out_port=ofp.OFPP_ANY,
                                     out_group=ofp.OFPG_ANY, match=parser.OFPMatch(), instructions=[]))


def group_set(group: SelectGroup) -> bytes:
    """The message that creates a select group, or changes it in place."""
    buckets = [parser.OFPBucket(weight=1, watch_port=ofp.OFPP_ANY, watch_group=ofp.OFPG_ANY,
                                actions=[parser.OFPActionOutput(output)]) for output in group.outputs]
    return _encode(parser.OFPGroupMod(_PROTOCOL, ADD_OR_MODIFY_GROUP, ofp.OFPGT_SELECT, group.number, buckets))


def group_delete(number: int = ofp.OFPG_ALL) -> bytes:
    """The message that deletes a group, or all of them; also the rules that lead to it."""
    return _encode(parser.OFPGroupMod(_PROTOCOL, ofp.OFPGC_DELETE, ofp.OFPGT_SELECT, number, []))


def barrier() -> bytes:
    """The message that separates what comes before from what comes after."""
    return _encode(parser.OFPBarrierRequest(_PROTOCOL))


def port_stats_request() -> bytes:
    """The question for all ports' counters."""
    return _encode(parser.OFPPortStatsRequest(_PROTOCOL, 0, ofp.OFPP_ANY))


def flow_stats_request(table: int) -> bytes:
    """The question for the counters of every rule of a table."""
    return _encode(parser.OFPFlowStatsRequest(_PROTOCOL, 0, table, ofp.OFPP_ANY, ofp.OFPG_ANY, 0, 0,
                                              parser.OFPMatch()))


def table_stats_request(table: int) -> bytes:
    """The question for the number of rules of a table and for the sum of their counters."""
    return _encode(parser.OFPAggregateStatsRequest(_PROTOCOL, 0, table, ofp.OFPP_ANY, ofp.OFPG_ANY, 0, 0,
                                                   parser.OFPMatch()))


class Answer:
    """What a switch answers to a batch of messages that ends in a barrier or in a request for statistics."""

    def __init__(self, switch: str) -> None:
        self._switch = switch
        self._done = hub.Event()
        self._errors: list[str] = []
        self.body: list[Any] = []
        self.last_xid: int | None = None  # the transaction that ends it

    def fail(self, error: str) -> None:
        """Note an error; whoever waits will get it."""
        self._errors.append(error)

    def finish(self) -> None:
        """The last message of the answer is here."""
        self._done.set()

    def wait(self, timeout_s: float) -> list[Any]:
        """The bodies of the answer.  Raises LabError for a refusal, a lost connection and no answer in time."""
        self._done.wait(timeout_s)
        if self._errors:
            raise LabError(f"{self._switch}: {self._errors[0]}")
        if not self._done.is_set():
            raise LabError(f"{self._switch} did not answer within {timeout_s:g} s", "is ovs-vswitchd overloaded?")
        return self.body


class Session:
    """One connection of one switch."""

    def __init__(self, datapath: Any, name: str) -> None:
        self.datapath = datapath
        self.name = name
        self.closed = False
        self._waiting: dict[int, Answer] = {}  # by transaction, of every message of a batch that is waited for

    def send(self, messages: Iterable[bytes]) -> None:
        """Send messages in one piece, without waiting; a refusal is only logged."""
        self._write(messages, None)

    def ask(self, messages: Iterable[bytes]) -> Answer:
        """Send messages, the last of which is a barrier or a request for statistics; the answer can be waited for."""
        answer = Answer(self.name)
        if self.closed:
            answer.fail("the connection is lost")
            answer.finish()
        else:
            self._write(messages, answer)
        return answer

    def _write(self, messages: Iterable[bytes], answer: Answer | None) -> None:
        # One buffer for all of them: Ryu's own send_msg costs a system call and a task switch a message.
        buffer = bytearray()
        for message in messages:
            self.datapath.xid = xid = self.datapath.xid + 1 & ofp.MAX_XID
            buffer += message[:4] + xid.to_bytes(4, "big") + message[8:]
            if answer is not None:
                self._waiting[xid] = answer
                answer.last_xid = xid
        self.datapath.send(bytes(buffer))

    def on_reply(self, message: Any) -> None:
        """A barrier reply or a part of some statistics has come."""
        answer = self._waiting.get(message.xid)
        if answer is None:
            return
        if hasattr(message, "body"):
            answer.body += message.body if isinstance(message.body, list) else [message.body]
            if message.flags & ofp.OFPMPF_REPLY_MORE:
                return
        if message.xid == answer.last_xid:
            self._forget(answer)

    def on_error(self, message: Any) -> bool:
        """The switch has refused a message; whether somebody waits for that."""
        answer = self._waiting.get(message.xid)
        if answer is None:
            return False
        answer.fail(f"the switch refused a message: {error_text(message)}")
        if message.xid == answer.last_xid:
            self._forget(answer)
        return True

    def close(self) -> None:
        """The connection is lost; whoever waits is told."""
        self.closed = True
        for answer in set(self._waiting.values()):
            answer.fail("the connection is lost")
            self._forget(answer)

    def _forget(self, answer: Answer) -> None:
        self._waiting = {xid: other for xid, other in self._waiting.items() if other is not answer}
        answer.finish()


def error_text(message: Any) -> str:
    """Type and code of an OpenFlow error, e.g. "OFPET_FLOW_MOD_FAILED(5) OFPFMFC_TABLE_FULL(1)"."""
    return f"{ofp.ofp_error_type_to_str(message.type)} {ofp.ofp_error_code_to_str(message.type, message.code)}"


def port_counters(stats: Iterable[Any]) -> dict[int, dict[str, int]]:
    """Port statistics by OpenFlow port number."""
    return {stat.port_no: {name: int(getattr(stat, name)) for name in PORT_COUNTERS} for stat in stats
            if stat.port_no < ofp.OFPP_MAX}


def discards(counters: Mapping[str, Mapping[int, Mapping[str, int]]]) -> dict[str, dict[int, int]]:
    """Frames that switches dropped at a port or found faulty: {switch: {port: count}}, only where there are any."""
    found = {switch: {port: sum(of_port[name] for name in DISCARD_COUNTERS) for port, of_port in ports.items()}
             for switch, ports in counters.items()}
    return {switch: {port: count for port, count in ports.items() if count} for switch, ports in found.items()
            if any(ports.values())}


def entry_counters(stats: Iterable[Any], index: Index) -> dict[int, dict[str, int]]:
    """Packets and bytes of each entry of a bank; a select group's one rule counts as entry 0."""
    counters = {}
    for stat in stats:
        value, _mask = stat.match.get("eth_src", ("0", "0"))  # a table of one entry matches no bits at all
        entry = int(value.replace(":", ""), 16) >> 8 * INDEX_BYTE.get(index, 0) & 0xFF
        counters[entry] = {"packets": int(stat.packet_count), "bytes": int(stat.byte_count)}
    return counters


def port_names(datapath: Any) -> dict[int, str]:
    """The ports that the switch reported, number -> name; without its local port."""
    return {number: port.name.decode() for number, port in datapath.ports.items() if number < ofp.OFPP_MAX}
