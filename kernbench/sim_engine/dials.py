"""What an engine can be told; imports nothing, so that a command line may name it."""

from typing import Literal

Fidelity = Literal["tile", "kernel", "functional"]
"""How closely time is simulated, see `GraphEngine`."""

Detail = Literal["full", "summary", "none"]
"""How much the log keeps, see `OpLog`."""
