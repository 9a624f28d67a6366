"""The machine on paper: YAML to a checked, frozen spec, to a graph of cubes and links."""

from typing import TYPE_CHECKING, Any

from kernbench.topology.links import Link
from kernbench.topology.topology import Topology

if TYPE_CHECKING:
    from kernbench.topology.load import (
        TopologyHandle,
        find_topology,
        load_topology,
        shipped_machines,
    )

__all__ = [
    "Link",
    "Topology",
    "TopologyHandle",
    "find_topology",
    "load_topology",
    "shipped_machines",
]


def __getattr__(name: str) -> Any:
    # What reads files is imported when it is first asked for, with YAML.
    if name in __all__:
        from kernbench.topology import load

        return getattr(load, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
