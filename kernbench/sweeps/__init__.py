"""The same program over a grid of machines, algorithms and sizes; see the README."""

from kernbench.sweeps.records import Record, Run
from kernbench.sweeps.sweeping import sweep

__all__ = ["Record", "Run", "sweep"]
