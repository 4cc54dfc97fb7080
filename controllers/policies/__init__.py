'''The policies that come with the project, a file each, and how to write one.

Below is a complete policy: the fraction of an uplink's rate that it sent decides, and the entries of the busiest uplink
that carried nothing of late go to the least busy one.  Put it into a file of your own and name the file wherever a
policy is named: `straggler run LAB --policies ecmp,./coolest.py`.  To offer it by name, make it an entry point of the
group `straggler.policies` in a package.

    """coolest: idle entries of the hottest uplink go to the coolest one."""
    from dataclasses import dataclass

    import numpy as np

    from controllers.policy import Policy, round_robin


    @dataclass(frozen=True)
    class CoolestParameters:
        period_us: float = 16.0
        gap_us: float = 64.0


    class Coolest(Policy[CoolestParameters]):
        name = "coolest"
        index = "slot"  # every flow has an entry of its own
        Parameters = CoolestParameters

        @property
        def period_us(self):
            return self.parameters.period_us

        def table_size(self, uplinks):
            return 256

        def initial(self, leaf):
            return round_robin(leaf)

        def update(self, leaf, load, entries, now_us):
            use = load.tx_gbps / leaf.uplink_gbps
            idle = load.idle_us > self.parameters.gap_us
            return np.where(idle & (entries == use.argmax()), use.argmin(), entries)

What `update` gets, with units, is in `controllers.policy.LeafLoad`.  A policy needs no root, no switch and no
controller to be tested: call it.
'''
