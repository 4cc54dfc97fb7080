"""An Explanation in words: one or two sentences with the numbers, the same in `why`, in the report and in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labs.measure.explanation import Connection, Explanation, HeldWait, Sharer


def in_words(answer: Explanation) -> str:
    """The late rank, its time against the ideal, and the cause with its numbers."""
    return f"{_opening(answer)} {_CAUSES[answer.cause](answer)}{_planted(answer)}"


def us(value: float) -> str:
    """A time in hardware us with three significant digits."""
    return f"{value:,.0f} us" if value >= 100 else f"{value:.3g} us"


def _opening(answer: Explanation) -> str:
    who = f"Rank {answer.rank} ({answer.host})"
    if answer.time_us is None:
        return f"{who} never finished iteration {answer.iteration}{': ' + answer.error if answer.error else ''}."
    ideal = "the ideal" if answer.last else "what its bytes take on an idle fabric,"
    ratio = f", {answer.time_us / answer.ideal_us:.2f} times {ideal} {us(answer.ideal_us)}" if answer.ideal_us else ""
    if not answer.last:
        return f"{who} was done with iteration {answer.iteration} after {us(answer.time_us)}{ratio}."
    return f"{who} was last in iteration {answer.iteration}: {us(answer.time_us)}{ratio}."


def _waiting_for(answer: Explanation) -> str:
    connection = answer.critical
    if connection is None:
        return "No packet of its ring was recorded"
    if connection.peer == answer.rank:
        return f"It waited for its own data from rank {connection.rank}, flow {connection.flow}"
    if connection.rank == answer.rank and answer.collective in ("incast", "permutation", "all_to_all", "transfers"):
        return f"Its data to rank {connection.peer} was under way for so long, flow {connection.flow}"
    return f"Its ring waited for rank {connection.rank} -> rank {connection.peer}, flow {connection.flow}"


def _collision(answer: Explanation) -> str:
    link = answer.links[0]
    return (f"{_waiting_for(answer)}, which shared {link.link} with {_sharers(answer.shared_with)}: its packets "
            f"stood there {us(link.wait_mean_us)} on average ({us(link.wait_max_us)} at most), and the link served the "
            f"others for {us(link.lost_us)} of that time.{_aside(answer)}")


def _drop(answer: Explanation) -> str:
    connection = answer.critical
    shared = f" It shared {answer.links[0].link} with {_sharers(answer.shared_with)}." if answer.shared_with else ""
    lost = [f"{_count(sum(drops.values()), what)} ({_places(drops)})"
            for what, drops in (("packet", answer.drops), ("acknowledgement", answer.lost_acks)) if drops]
    return (f"{_waiting_for(answer)}, which lost {' and '.join(lost)}, sent "
            f"{_count(connection.sent_again, 'packet')} again{_timeouts(connection)} and spent "
            f"{us(answer.lost_us['drop'])} on repairs.{shared}{_why_stopped(answer)}"
            if connection else _waiting_for(answer) + ".")


def _places(drops: Mapping[str, int]) -> str:
    return ", ".join(f"{count} at {place}" for place, count in list(drops.items())[:3])


def _why_stopped(answer: Explanation) -> str:
    """A watchdog drops what PFC has stopped: why had it?"""
    wait = next((wait for wait in answer.held if wait.lost), None)
    if wait is None or not any("(watchdog)" in place for place in answer.drops):
        return ""
    return f" What the watchdog dropped had been stopped: {chain_in_words(wait)}."


def _reordering(answer: Explanation) -> str:
    connection = answer.critical
    if connection is None:
        return _waiting_for(answer) + "."
    nothing = "Nothing was dropped: " if not answer.drops else ""
    return (f"{_waiting_for(answer)}. {nothing}{_count(connection.reordered, 'packet')} came out of order over "
            f"different paths, the receiver took that for a loss, and {_count(connection.sent_again, 'packet')} went "
            f"out again{_timeouts(connection)}: {us(answer.lost_us['reordering'])} of repairs that only go-back-N "
            "made necessary.")


def _late_start(answer: Explanation) -> str:
    return (f"Its ring began late: the first bit of one of its ranks left {us(answer.lost_us['late_start'])} after the "
            "common instant. The fabric is not to blame.")


def _host(answer: Explanation) -> str:
    if answer.time_us is None and not answer.lost_us["host"]:
        return "Nothing in the fabric explains it: no drop, no collision and no reordering of its ring was recorded."
    return (f"A host kept the ring waiting for {us(answer.lost_us['host'])}: the data was there and the next step was "
            "not sent (reduction, scheduling). The fabric is not to blame.")


def _none(answer: Explanation) -> str:
    if answer.time_us is None or not answer.ideal_us:
        return "Nothing in the recorded data explains it."
    excess = answer.time_us / answer.ideal_us - 1
    worst = max(answer.lost_us, key=lambda cause: answer.lost_us[cause])
    largest = f"; the largest single loss was {us(answer.lost_us[worst])} ({worst.replace('_', ' ')})"
    return (f"Nothing was wrong: {excess:+.1%} of the ideal is headers, link delays and the steps' own latency"
            f"{largest if answer.lost_us[worst] > 0 else ''}.")


def _pause(answer: Explanation) -> str:
    """From the port where its packets stood, port by port, to what is at the root."""
    return _held(answer, "paused ports", "pause")


def _credit(answer: Explanation) -> str:
    return _held(answer, "ports without credits", "credit")


def _held(answer: Explanation, places: str, cause: str) -> str:
    waits = [wait for wait in answer.held if wait.credits == (cause == "credit")]
    if not waits:
        return _waiting_for(answer) + "."
    wait = max(waits, key=lambda wait: wait.held_us if wait.lost else wait.starved_us)
    if not wait.lost:
        return (f"{_waiting_for(answer)}; its packets stood at {wait.link} while {wait.root}, to which they were on "
                f"their way, had nothing to send ({us(wait.starved_us)}): {chain_in_words(wait)}; whoever was stopped "
                f"went on too late.{_aside(answer)}")
    return (f"{_waiting_for(answer)}; its packets stood {us(answer.lost_us[cause])} at {places}, most of it at "
            f"{wait.link} ({_count(wait.holds, 'time')}, {us(wait.longest_us)} at most): {chain_in_words(wait)}."
            f"{_aside(answer)}")


def chain_in_words(wait: HeldWait) -> str:
    """ "sw0->sw1 was paused by sw1, because sw1->h1 was paused by h1, which does not take in what comes"."""
    verb = "got no credits from" if wait.credits else "was paused by"
    steps = [f"{link} {verb} {link.partition('->')[2]}" for link in wait.chain]
    told = ", because ".join(steps)
    if wait.cycle:
        again = next(link for link in wait.chain if link in wait.cycle)
        freed = "which cannot end by itself: a deadlock" if wait.kind == "deadlock" else "which came free by itself"
        return f"{told}, and so back to {again}: {len(wait.cycle)} ports wait for each other in a circle, {freed}"
    return f"{told}, {_root(wait)}"


def _root(wait: HeldWait) -> str:
    more = f" and {len(wait.root_flows) - 3} more" if len(wait.root_flows) > 3 else ""
    meet = f"where {_count(len(wait.root_flows), 'flow')} met ({', '.join(wait.root_flows[:3])}{more})"
    return {
        "slow_receiver": "which does not take in what comes",
        "pause_storm": "though nothing had filled up there: a pause storm",
        "incast": f"because more came for one host than {wait.root} carries, {meet}: an incast",
        "collision": f"because more came for {wait.root} than it carries, {meet}",
        "link_down": f"because more came for {wait.root} than it carries while another link was down, {meet}",
        "slow_link": f"because {wait.root} is slower than the link before it, {meet}",
        "round_trip": "whose buffer is smaller than the link's rate times the round trip of a credit",
    }.get(wait.kind, f"because of what stood at {wait.root}, {meet}")


def _rate(answer: Explanation) -> str:
    rate = "" if answer.rate_gbps is None else f", {answer.rate_gbps:.3g} Gb/s on average"
    marked = list(answer.marks.items())[:2]
    named = " and ".join(f"{port} ({count:,})" for port, count in marked)
    places = f" In this run so far its packets were marked at {named}" if marked else " None of its packets was marked."
    shared = f", which it shared with {_sharers(answer.shared_with)}" if marked and answer.shared_with else ""
    return (f"{_waiting_for(answer)}. Its NIC had data and was held by congestion control{rate}: "
            f"{us(answer.lost_us['rate'])} less of the line than an ideal fabric has for it."
            f"{places}{shared}{'.' if marked else ''}{_aside(answer)}")


def _planted(answer: Explanation) -> str:
    return f" Planted: {'; '.join(answer.faults)}." if answer.faults else ""


def _sharers(sharers: tuple[Sharer, ...]) -> str:
    if not sharers:
        return "flows too small to name"
    names = [f"{s.flow}{'' if s.rank is None else f' of rank {s.rank}'} ({s.share:.0%})" for s in sharers[:3]]
    if len(sharers) > 3:
        names.append(f"{len(sharers) - 3} more")
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _aside(answer: Explanation) -> str:
    """The second largest loss, when it is worth a word."""
    others = {name: lost for name, lost in answer.lost_us.items() if name != answer.cause}
    name = max(others, key=lambda key: others[key])
    if others[name] < 0.25 * answer.lost_us[answer.cause]:
        return ""
    return f" Another {us(others[name])} went to {name.replace('_', ' ')}."


def _timeouts(connection: Connection) -> str:
    return f" ({_count(connection.timeouts, 'timeout')})" if connection.timeouts else ""


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_CAUSES = {"collision": _collision, "drop": _drop, "reordering": _reordering, "late_start": _late_start, "host": _host,
           "pause": _pause, "credit": _credit, "rate": _rate, "none": _none}
