"""Workloads: what the ranks of a job send each other, in hardware units.

A workload is a frozen dataclass that a lab.py fills in; `plan(spec)` turns it into a `Job`: who the ranks are and
which of them sends to which.  The agents of labs/agents play the job, labs/runner.py conducts it.
"""

from labs.workload.base import Channel, Job, Rank, Workload, host_names
from labs.workload.bursts import Burst, Flow, Incast, Permutation, Transfers
from labs.workload.keys import check_key
from labs.workload.ring import RingAllReduce

__all__ = ["Burst", "Channel", "Flow", "Incast", "Job", "Permutation", "Rank", "RingAllReduce", "Transfers", "Workload",
           "check_key", "host_names"]
