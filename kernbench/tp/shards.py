"""A rank's part of a dense weight: names of `parallel.shards`."""

from kernbench.parallel.shards import (
    InitMethod,
    bias_of,
    checked_stride,
    expert_ranks_of,
    layer_group,
    marked,
    marks_of,
    sequence_parallel_of,
    shard_of,
    transposed_pieces,
)

__all__ = [
    "InitMethod",
    "bias_of",
    "checked_stride",
    "expert_ranks_of",
    "layer_group",
    "marked",
    "marks_of",
    "sequence_parallel_of",
    "shard_of",
    "transposed_pieces",
]
