"""Why was that rank late?  The answer, from the recorded packets of one iteration.

The last rank to finish names its ring; of the ring's connections the one that was longest under way is the
critical one, for all others waited for it.  What that connection lost against an ideal fabric is then
booked to what it was lost to:

  late_start  its ring's first bit went out after the common instant
  host        data was there and nothing was sent (a rank computed, or was not scheduled)
  drop        from a packet's drop to the arrival of the same packet sent again (go-back-N, timeouts)
  reordering  the same without a drop: packets overtook each other and the receiver asked for them again
  collision   a link served other flows while packets of this connection stood in its queue
  pause       its packets stood at ports that PFC had stopped, for a reason that lies elsewhere (see pauses.py)
  credit      the same for want of credits
  rate        congestion control gave its NIC less than the share of the line that an ideal fabric has for it

The largest entry is the cause, unless all are small: then nothing was wrong.
"""

from __future__ import annotations

from labs.measure.evidence import Evidence
from labs.measure.explanation import Connection, Explanation, HeldWait, LinkWait, Sharer
from labs.measure.inquiry import Inquiry
from labs.measure.raw import RawIteration
from topologies.errors import LabError

__all__ = ["CAUSES", "Connection", "Explanation", "HeldWait", "LinkWait", "Sharer", "explain", "worst_iteration"]

CAUSES = ("collision", "drop", "reordering", "late_start", "host", "pause", "credit", "rate", "none")


def explain(evidence: Evidence, n: int, rank: int | None = None) -> Explanation:
    """Explains iteration `n`: why its last rank was late, or why `rank` took as long as it did.

    Without a ring a rank other than the last is measured against what its own bytes take on an idle fabric.  Raises
    LabError if the run has no such iteration, or the iteration no such rank.
    """
    iteration = next((i for i in evidence.iterations if i.n == n), None)
    if iteration is None or not iteration.ranks:
        known = ", ".join(str(i.n) for i in evidence.iterations) or "none"
        raise LabError(f"no iteration {n} in the run of {evidence.name}", f"one of: {known}")
    asked = next((r for r in iteration.ranks if r.rank == rank), None)
    if rank is not None and asked is None:
        known = ", ".join(str(r.rank) for r in iteration.ranks)
        raise LabError(f"no rank {rank} in iteration {n} of the run of {evidence.name}", f"one of: {known}")
    return Inquiry(evidence, iteration, asked).explanation()


def worst_iteration(evidence: Evidence) -> int:
    """The measured iteration that took longest, one that never finished before all others."""
    def took(iteration: RawIteration) -> float:
        ends = [rank.end_ns for rank in iteration.ranks]
        return float("inf") if None in ends else max((end or 0) - iteration.start_ns for end in ends)

    played = [i for i in evidence.iterations if i.ranks]
    measured = [i for i in played if not i.warmup] or played
    if not measured:
        raise LabError(f"the run of {evidence.name} has no iteration")
    return max(measured, key=took).n
