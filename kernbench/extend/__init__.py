"""What code on top of `kernbench.torch` needs and PyTorch has no name for.

Ranks share one interpreter, and a device runs commands; so a library that is written in PyTorch's
names alone cannot keep a value for each rank, cannot compare what ranks are given, and cannot make
a command of its own. `from kernbench import extend` has these, and the errors that users catch.
"""

from kernbench.attention.bands import CAUSAL, EVERYTHING, Band, Bands, Mask, bands
from kernbench.attention.rows import Rows, Segment, in_order, share
from kernbench.autograd.calls import CallCounter, CallNumbers
from kernbench.autograd.checkpoint import first_run, second_run
from kernbench.errors import (
    KernbenchError,
    NoDataError,
    OperandError,
    OptionError,
    UnsupportedError,
)
from kernbench.extend.agreement import agree
from kernbench.extend.experts import grouped_mm, note_load, routing
from kernbench.extend.operands import check_gemm, check_index, checked_indices, guard
from kernbench.extend.operations import fused, kernel_output
from kernbench.extend.random import draw_from
from kernbench.extend.ranks import RankLocal, current_rank
from kernbench.operations.attention import (
    Attended,
    Attention,
    Slopes,
    attend,
    attend_backward,
)
from kernbench.operations.shaping import IndexOutOfBoundsError
from kernbench.process.process import NoContextError
from kernbench.ranks.group_creation import GroupMismatchError
from kernbench.ranks.groups import GroupError
from kernbench.ranks.meeting import CollectiveMismatchError
from kernbench.routing import Asked, Choices, Routing, RoutingError, counts_of, routing_of
from kernbench.tensors.errors import DimensionError, TensorError

__all__ = [
    "CAUSAL",
    "EVERYTHING",
    "Asked",
    "Attended",
    "Attention",
    "Band",
    "Bands",
    "CallCounter",
    "CallNumbers",
    "Choices",
    "CollectiveMismatchError",
    "DimensionError",
    "GroupError",
    "GroupMismatchError",
    "IndexOutOfBoundsError",
    "KernbenchError",
    "Mask",
    "NoContextError",
    "NoDataError",
    "OperandError",
    "OptionError",
    "RankLocal",
    "Routing",
    "RoutingError",
    "Rows",
    "Segment",
    "Slopes",
    "TensorError",
    "UnsupportedError",
    "agree",
    "attend",
    "attend_backward",
    "bands",
    "check_gemm",
    "check_index",
    "checked_indices",
    "counts_of",
    "current_rank",
    "draw_from",
    "first_run",
    "fused",
    "grouped_mm",
    "guard",
    "in_order",
    "kernel_output",
    "note_load",
    "routing",
    "routing_of",
    "second_run",
    "share",
]
