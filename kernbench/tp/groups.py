"""Groups along the dimensions of a grid: names of `parallel.groups`."""

from kernbench.parallel.groups import (
    FIELDS,
    Dims,
    GridKeyError,
    GroupGrid,
    ProcessGroupCollection,
)

__all__ = [
    "FIELDS",
    "Dims",
    "GridKeyError",
    "GroupGrid",
    "ProcessGroupCollection",
]
