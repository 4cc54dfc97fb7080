"""An Explanation in words: one or two sentences with the numbers, the same in `why`, in the report and in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labs.measure.why import Connection, Explanation, Sharer


def in_words(answer: Explanation) -> str:
    """The late rank, its time against the ideal, and the cause with its numbers."""
    return f"{_opening(answer)} {_CAUSES[answer.cause](answer)}"


def us(value: float) -> str:
    """A time in hardware us with three significant digits."""
    return f"{value:,.0f} us" if value >= 100 else f"{value:.3g} us"


def _opening(answer: Explanation) -> str:
    who = f"Rank {answer.rank} ({answer.host})"
    if answer.time_us is None:
        return f"{who} never finished iteration {answer.iteration}{': ' + answer.error if answer.error else ''}."
    ratio = f", {answer.time_us / answer.ideal_us:.2f} times the ideal {us(answer.ideal_us)}" if answer.ideal_us else ""
    return f"{who} was last in iteration {answer.iteration}: {us(answer.time_us)}{ratio}."


def _waiting_for(answer: Explanation) -> str:
    connection = answer.critical
    if connection is None:
        return "No packet of its ring was recorded"
    if connection.peer == answer.rank:
        return f"It waited for its own data from rank {connection.rank}, flow {connection.flow}"
    if connection.rank == answer.rank and answer.collective in ("incast", "permutation", "all_to_all"):
        return f"Its data to rank {connection.peer} was under way for so long, flow {connection.flow}"
    return f"Its ring waited for rank {connection.rank} -> rank {connection.peer}, flow {connection.flow}"


def _collision(answer: Explanation) -> str:
    link = answer.links[0]
    return (f"{_waiting_for(answer)}, which shared {link.link} with {_sharers(answer.shared_with)}: its packets "
            f"stood there {us(link.wait_mean_us)} on average ({us(link.wait_max_us)} at most), and the link served the "
            f"others for {us(link.lost_us)} of that time.{_aside(answer)}")


def _drop(answer: Explanation) -> str:
    connection = answer.critical
    places = ", ".join(f"{count} at {place}" for place, count in list(answer.drops.items())[:3])
    shared = f" It shared {answer.links[0].link} with {_sharers(answer.shared_with)}." if answer.shared_with else ""
    return (f"{_waiting_for(answer)}, which lost {_count(sum(answer.drops.values()), 'packet')} ({places}), sent "
            f"{_count(connection.sent_again, 'packet')} again{_timeouts(connection)} and spent "
            f"{us(answer.lost_us['drop'])} on repairs.{shared}" if connection else _waiting_for(answer) + ".")


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
           "none": _none}
