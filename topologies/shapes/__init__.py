"""Shapes of fabrics: name -> Mininet topology."""

from __future__ import annotations

from collections.abc import Mapping

from mininet.topo import Topo

from topologies.shapes.leaf_spine import LeafSpine

SHAPES: Mapping[str, type[Topo]] = {"leaf_spine": LeafSpine}
