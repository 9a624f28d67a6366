"""Collectives from files: `load` one, `prove` it right for every schedule."""

from kernbench.ccl.files.blocks import Block, Blocks, Step
from kernbench.ccl.files.load import load
from kernbench.ccl.files.prove import prove
from kernbench.ccl.files.verdict import Finding, Verdict

__all__ = ["Block", "Blocks", "Finding", "Step", "Verdict", "load", "prove"]
