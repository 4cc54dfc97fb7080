"""Shapes of fabrics: name -> Mininet topology.

A shape's `SIZES` are the keys of a FabricSpec that it is built from, with the least value of each.  Its hosts are added
switch by switch; the nodes of its switches say their `tier` ("leaf": with hosts) and their `dpid`.  Of a link between
two switches, the first end is the uplink: where traffic for hosts elsewhere leaves by.
"""

from __future__ import annotations

from collections.abc import Mapping

from topologies.shapes.leaf_spine import LeafSpine
from topologies.shapes.switch_ring import SwitchRing

SHAPES: Mapping[str, type[LeafSpine | SwitchRing]] = {"leaf_spine": LeafSpine, "switch_ring": SwitchRing}
