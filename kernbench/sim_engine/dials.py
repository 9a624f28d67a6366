"""Dials of the engine; this module imports nothing, so that a command line may name them."""

from typing import Literal

Fidelity = Literal["tile", "kernel", "functional"]
"""How closely time is simulated, see `GraphEngine`."""

Detail = Literal["full", "summary", "none"]
"""How much the log keeps, see `OpLog`."""
