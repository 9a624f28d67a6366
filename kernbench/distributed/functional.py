"""`torch.distributed._functional_collectives`: collectives that return their result.

Inputs stay as they are. The collectives run in the current stream, so callers need not wait for
them.
"""

from collections.abc import Sequence
from typing import Any

from kernbench.ccl.operations import Reduction
from kernbench.distributed import collectives, exchanges
from kernbench.distributed.device_mesh import DeviceMesh
from kernbench.distributed.groups import find_group
from kernbench.distributed.reduce_ops import ReduceOp
from kernbench.errors import OptionError, UnsupportedError, call_site, site_fact
from kernbench.operations.copies import clone
from kernbench.operations.shaping import cat
from kernbench.operations.views import chunk
from kernbench.process.process import current_process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.world import world_of
from kernbench.tensors.new import new_tensor
from kernbench.tensors.tensor import Tensor

__all__ = [
    "all_gather_single",
    "all_gather_tensor",
    "all_reduce",
    "all_to_all_single",
    "broadcast",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "wait_tensor",
]


def functional_all_reduce(
    tensor: Tensor, op: Reduction = ReduceOp.SUM, group: ProcessGroup | None = None
) -> Tensor:
    """Does what `torch.distributed.all_reduce` does, out of place, and returns the result.

    Args:
        tensor: Tensor of the same shape and dtype on all ranks.
        group: Process group; None for all ranks.
    """
    out = _new(tensor, tensor.window.shape)
    collectives.all_reduce_into(out, tensor, op, group, async_op=False)
    return out


def wait_tensor(tensor: Tensor) -> Tensor:
    """Returns the tensor: the command that makes it is in the current stream already."""
    return tensor


def all_reduce(self: Tensor, reduceOp: Any, group: Any, tag: str = "") -> Tensor:  # noqa: N803
    """Combines the tensors of all ranks and returns the result.

    Args:
        self: Tensor of the same shape and dtype on all ranks.
        reduceOp: A `ReduceOp`, or its name, such as `sum`.
        group: A process group or its name, a mesh of one dimension, a tuple of a mesh and a
            dimension, or None for all ranks.
        tag: Must be empty.
    """
    return functional_all_reduce(self, reduceOp, _group(group, tag))


def broadcast(self: Tensor, src: int, group: Any, tag: str = "") -> Tensor:
    """Returns the tensor of one rank.

    Args:
        self: Tensor of the same shape and dtype on all ranks.
        src: Rank of the source in the group.
        group: See `all_reduce`.
        tag: Must be empty.
    """
    out = clone(self)
    collectives.broadcast(out, group=_group(group, tag), group_src=src)
    return out


def all_gather_tensor(self: Tensor, gather_dim: int, group: Any, tag: str = "") -> Tensor:
    """Returns the tensors of all ranks, concatenated.

    Args:
        self: Tensor of the same shape and dtype on all ranks.
        gather_dim: Dimension along which to concatenate.
        group: See `all_reduce`.
        tag: Must be empty.
    """
    chosen = _group(group, tag)
    shape = self.window.shape or (1,)
    ranks = chosen.size()
    out = _new(self, (ranks * shape[0], *shape[1:]))
    collectives.all_gather_into_tensor(out, self, chosen)
    return out if gather_dim == 0 else cat(chunk(out, ranks, 0), gather_dim)


def reduce_scatter_tensor(
    self: Tensor,
    reduceOp: Any,  # noqa: N803
    scatter_dim: int,
    group: Any,
    tag: str = "",
) -> Tensor:
    """Combines the tensors of all ranks and returns the calling rank's part.

    Args:
        self: Tensor of the same shape and dtype on all ranks.
        reduceOp: A `ReduceOp`, or its name, such as `sum`.
        scatter_dim: Dimension along which the parts lie; its extent is a multiple of the number of
            ranks.
        group: See `all_reduce`.
        tag: Must be empty.

    Raises:
        OptionError: If the dimension cannot be parted evenly.
    """
    chosen = _group(group, tag)
    ranks, extent = chosen.size(), self.window.shape[scatter_dim]
    if extent % ranks:
        raise OptionError(
            f"reduce_scatter_tensor: dimension {scatter_dim} of {list(self.window.shape)} must be "
            f"a multiple of {ranks}",
            [site_fact(call_site())],
        )
    source = self if scatter_dim == 0 else cat(chunk(self, ranks, scatter_dim), 0)
    shape = source.window.shape
    out = _new(self, (shape[0] // ranks, *shape[1:]))
    collectives.reduce_scatter_tensor(out, source, reduceOp, chosen)
    return out


all_gather_single = all_gather_tensor
reduce_scatter_single = reduce_scatter_tensor


def all_to_all_single(
    self: Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
    group: Any,
    tag: str = "",
) -> Tensor:
    """Gives the i-th part of each rank's tensor to rank i, and returns the received parts.

    Args:
        self: Tensor to send; its rows are parted along dimension 0.
        output_split_sizes: Rows that come from each rank; None for equal parts.
        input_split_sizes: Rows that go to each rank; None for equal parts.
        group: See `all_reduce`.
        tag: Must be empty.

    Raises:
        OptionError: If only one of the lists of sizes is None.
    """
    if (output_split_sizes is None) != (input_split_sizes is None):
        raise OptionError(
            "all_to_all_single: give both of output_split_sizes and input_split_sizes, or neither",
            [site_fact(call_site())],
        )
    shape = self.window.shape
    rows = shape[0] if output_split_sizes is None else sum(output_split_sizes)
    out = _new(self, (rows, *shape[1:]))
    exchanges.all_to_all_single(
        out, self, output_split_sizes, input_split_sizes, _group(group, tag)
    )
    return out


def _new(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return new_tensor(current_process(), shape, like.dtype, like.device)


def _group(group: Any, tag: str) -> ProcessGroup:
    """Returns the process group that a `group` argument means.

    Raises:
        UnsupportedError: For a list of ranks, which PyTorch no longer recommends, and for tags.
    """
    process = current_process()
    if isinstance(group, tuple) and len(group) == 2 and isinstance(group[0], DeviceMesh):
        group = group[0].get_group(group[1])
    elif isinstance(group, DeviceMesh):
        group = group.get_group()
    elif isinstance(group, str):
        group = world_of(process).held.get(process.rank, {}).get(group, group)
    if tag or isinstance(group, (list, tuple)):
        raise UnsupportedError(
            "a list of ranks, or a tag, in place of a process group is not simulated",
            [site_fact(call_site())],
            hint="pass a ProcessGroup or a DeviceMesh",
        )
    return find_group(process, group, "a functional collective")
