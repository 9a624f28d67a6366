"""Context parallelism: attention over sequences that are cut among ranks."""

from kernbench.cp.attention import cp_attention
from kernbench.cp.batches import (
    get_batch_on_this_cp_rank,
    pad_thd_sequences_for_cp,
    positional_ids_for_cp,
    seqlens_on_cp_rank,
    thd_partition_indices,
    zigzag_split,
    zigzag_unsplit,
)
from kernbench.cp.module import DotProductAttention
from kernbench.cp.plan import Plan

__all__ = [
    "DotProductAttention",
    "Plan",
    "cp_attention",
    "get_batch_on_this_cp_rank",
    "pad_thd_sequences_for_cp",
    "positional_ids_for_cp",
    "seqlens_on_cp_rank",
    "thd_partition_indices",
    "zigzag_split",
    "zigzag_unsplit",
]
