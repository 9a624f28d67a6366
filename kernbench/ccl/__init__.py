"""Collective algorithms as programs, chosen by YAML, recorded into plans."""

from kernbench.ccl.plan import NOTHING, Comm

__all__ = ["NOTHING", "Comm"]
