"""The machine on paper: YAML to a checked, frozen spec, to a graph of cubes and links."""

from kernbench.topology.links import Link
from kernbench.topology.load import (
    TopologyHandle,
    find_topology,
    load_topology,
    shipped_machines,
)
from kernbench.topology.topology import Topology

__all__ = [
    "Link",
    "Topology",
    "TopologyHandle",
    "find_topology",
    "load_topology",
    "shipped_machines",
]
