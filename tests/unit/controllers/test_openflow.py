"""Messages as bytes, with Ryu's own parser as the judge, and what a session makes of the answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from controllers import openflow
from controllers.path_table import entry_match
from controllers.pipeline import Rule
from topologies.errors import LabError

# isort: split
from ryu.ofproto import ofproto_parser, ofproto_protocol
from ryu.ofproto import ofproto_v1_3 as ofp
from ryu.ofproto import ofproto_v1_3_parser as parser


class Datapath(ofproto_protocol.ProtocolDesc):  # type: ignore[misc]
    """What a session needs of Ryu's; keeps what is sent."""

    def __init__(self) -> None:
        super().__init__(version=ofp.OFP_VERSION)
        self.xid = ofp.MAX_XID  # the next one begins again at 0
        self.sent: list[bytes] = []

    def send(self, buffer: bytes) -> None:
        self.sent.append(buffer)


def parsed(message: bytes) -> Any:
    version, kind, length, xid = ofproto_parser.header(message)
    assert length == len(message)
    return ofproto_parser.msg(Datapath(), version, kind, length, xid, message)


def test_a_rule_of_the_path_table_as_a_message() -> None:
    mod = parsed(openflow.flow_add(Rule(2, 100, source_mac=entry_match("slot", 256, 7), output=5)))
    assert (mod.command, mod.table_id, mod.priority) == (ofp.OFPFC_ADD, 2, 100)
    assert dict(mod.match.items()) == {"eth_type": 0x0800, "eth_src": ("00:00:00:00:00:07", "00:00:00:00:00:ff")}
    assert mod.instructions[0].actions[0].port == 5
    assert (mod.idle_timeout, mod.hard_timeout) == (0, 0)


@pytest.mark.parametrize(("destination", "match"), [
    ("10.0.0.1/32", "10.0.0.1"), ("10.0.0.0/22", ("10.0.0.0", "255.255.252.0"))])
def test_destinations(destination: str, match: Any) -> None:
    mod = parsed(openflow.flow_add(Rule(0, 100, destination=destination, goto=1)))
    assert mod.match["ipv4_dst"] == match
    assert isinstance(mod.instructions[0], parser.OFPInstructionGotoTable)
    assert mod.instructions[0].table_id == 1


def test_a_rule_without_anything_to_do_drops() -> None:
    mod = parsed(openflow.flow_add(Rule(0, 300, in_port=3, source="10.0.1.1/32")))
    assert dict(mod.match.items()) == {"eth_type": 0x0800, "in_port": 3, "ipv4_src": "10.0.1.1"}
    assert mod.instructions == []


def test_a_batch_is_one_buffer_with_numbers_of_its_own() -> None:
    datapath = Datapath()
    session = openflow.Session(datapath, "leaf0")
    answer = session.ask([openflow.barrier(), openflow.table_clear(1), openflow.barrier()])
    (buffer,) = datapath.sent
    assert [buffer[4:8], buffer[12:16], buffer[-4:]] == [b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\2"]
    session.on_reply(SimpleNamespace(xid=0, msg_type=ofp.OFPT_BARRIER_REPLY))
    session.on_reply(SimpleNamespace(xid=77, msg_type=ofp.OFPT_BARRIER_REPLY))  # nobody asked
    with pytest.raises(LabError, match="did not answer"):
        answer.wait(0.01)
    session.on_reply(SimpleNamespace(xid=2, msg_type=ofp.OFPT_BARRIER_REPLY))
    assert answer.wait(0.01) == []


def test_statistics_come_in_parts() -> None:
    session = openflow.Session(Datapath(), "leaf0")
    answer = session.ask([openflow.port_stats_request()])
    session.on_reply(SimpleNamespace(xid=0, body=["a", "b"], flags=ofp.OFPMPF_REPLY_MORE))
    session.on_reply(SimpleNamespace(xid=0, body=["c"], flags=0))
    assert answer.wait(0.01) == ["a", "b", "c"]


def test_a_refusal_is_an_error_only_for_who_waits() -> None:
    session = openflow.Session(Datapath(), "leaf0")
    refusal = SimpleNamespace(xid=0, type=ofp.OFPET_BAD_REQUEST, code=ofp.OFPBRC_BAD_TYPE)
    session.send([openflow.table_clear()])
    assert not session.on_error(refusal)
    answer = session.ask([openflow.port_stats_request()])
    assert session.on_error(SimpleNamespace(**{**vars(refusal), "xid": 1}))
    with pytest.raises(LabError, match="leaf0: the switch refused a message: OFPET_BAD_REQUEST"):
        answer.wait(10)


def test_counters_by_entry_and_by_port() -> None:
    def rule(entry: int, packets: int) -> Any:
        value, mask = entry_match("flow", 64, entry)
        return SimpleNamespace(match={"eth_src": (value, mask)}, packet_count=packets, byte_count=10 * packets)

    assert openflow.entry_counters([rule(0, 1), rule(63, 2)], "flow") == {
        0: {"packets": 1, "bytes": 10}, 63: {"packets": 2, "bytes": 20}}
    whole_table = SimpleNamespace(match={"eth_type": 0x0800}, packet_count=4, byte_count=5)
    assert openflow.entry_counters([whole_table], "group") == {0: {"packets": 4, "bytes": 5}}
    assert openflow.entry_counters([whole_table], "spray") == {0: {"packets": 4, "bytes": 5}}  # a table of one entry

    def port(number: int, dropped: int) -> Any:
        values = dict.fromkeys(openflow.PORT_COUNTERS, 1) | dict.fromkeys(openflow.DISCARD_COUNTERS, 0)
        return SimpleNamespace(port_no=number, **(values | {"tx_dropped": dropped}))

    counters = openflow.port_counters([port(1, 0), port(2, 3), port(ofp.OFPP_LOCAL, 9)])
    assert set(counters) == {1, 2}
    assert openflow.discards({"leaf0": counters, "leaf1": {1: counters[1]}}) == {"leaf0": {2: 3}}
