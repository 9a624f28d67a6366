"""Data for all ranks: the name under which Megatron-Core has it."""

from kernbench.tp.utils import broadcast_data

__all__ = ["broadcast_data"]
