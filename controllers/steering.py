"""A policy as it is applied to a fabric: seeds, what each leaf is to the policy, and the tables as they are now."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np

from controllers.path_table import Move, difference
from controllers.pipeline import PathTable
from controllers.policy import LeafLoad, LeafView, Policy, check_entries, check_table_size
from topologies.errors import LabError
from topologies.fabric import Fabric, Switch, switch_hash_seed

SEED_LIMIT = 1 << 31

log = logging.getLogger(__name__)


@contextlib.contextmanager
def naming(policy: Policy[Any]) -> Iterator[None]:
    """Turn whatever goes wrong in a policy, which may be the user's own, into a LabError that names it."""
    try:
        yield
    except LabError:
        raise
    except Exception as error:
        log.exception("policy %s", policy.name)
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise LabError(f"policy {policy.name} failed: {type(error).__name__}: {error}",
                       f"{where.filename}, line {where.lineno}") from error


class Steering:
    """One policy, on all leaves, with one seed.

    seed: every switch gets a hash seed of its own derived from it (`topologies.fabric.switch_hash_seed`); with
    `same_seed` all switches get the very same one, which polarises: what collides at one stage collides at the next.
    Raises LabError if the policy does not fit the fabric.
    """

    def __init__(self, fabric: Fabric, policy: Policy[Any], parameters: dict[str, object], seed: int | None,
                 same_seed: bool) -> None:
        self.fabric = fabric
        self.policy = policy
        self.parameters = parameters
        self.seed = fabric.spec.hash_seed if seed is None else seed
        self.same_seed = same_seed
        if type(self.seed) is not int or not 0 <= self.seed < SEED_LIMIT:  # it may come from a socket
            raise LabError(f"seed {self.seed!r} is not a whole number from 0 to {SEED_LIMIT - 1}")
        self.since_ns: int | None = None  # lab time at which the last leaf used it
        self.views: dict[str, LeafView] = {}
        self.tables: dict[str, PathTable] = {}
        for leaf in fabric.leaves():
            uplinks = fabric.uplinks(leaf)
            if not uplinks:
                continue  # a fabric of one leaf has nothing to choose from
            rates_gbps = np.array([fabric.clock.hardware_gbps(port.rate_bps) for port in uplinks])
            with naming(policy):
                view = LeafView(leaf.name, leaf.index, rates_gbps, check_table_size(policy, len(uplinks)),
                                self.hash_seed(leaf))
                entries = check_entries(policy, view, policy.initial(view))
            self.views[leaf.name] = view
            self.tables[leaf.name] = PathTable(policy.index, entries)

    def hash_seed(self, switch: Switch) -> int:
        """What fabricd hashes with at this switch."""
        return self.seed if self.same_seed else switch_hash_seed(self.seed, switch.index)

    def flowlet_gap_ns(self, switch: Switch) -> int:
        """The pause that begins a new flowlet at this switch, in lab time."""
        gap_us = self.policy.flowlet_gap_us
        return switch.flowlet_gap_ns if gap_us is None else self.fabric.clock.lab_ns(gap_us)

    def update(self, leaf: str, load: LeafLoad, now_ns: int) -> list[Move]:
        """Let the policy look at a leaf's load and take over its new table; what it changed.

        Raises LabError if that is no table, or if the policy itself fails.
        """
        view, table = self.views[leaf], self.tables[leaf]
        current = table.entries.copy()
        with naming(self.policy):
            wanted = self.policy.update(view, load, current, self.fabric.clock.hardware_us(now_ns))
            entries = check_entries(self.policy, view, wanted)
        self.tables[leaf] = PathTable(table.index, entries)
        return difference(table.entries, entries)
