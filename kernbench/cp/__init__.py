"""Context parallelism: attention over sequences that are cut among ranks."""

from kernbench.cp.attention import cp_attention
from kernbench.cp.plan import Plan

__all__ = ["Plan", "cp_attention"]
