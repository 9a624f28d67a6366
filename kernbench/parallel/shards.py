"""What the layers are made of: a rank's part of a dense weight, and what the groups say of it."""

import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import OperandError, call_site, site_fact
from kernbench.parallel import parallel_state
from kernbench.parallel.config import ModelParallelConfig
from kernbench.parallel.layout import whole_number
from kernbench.parallel.members import Group, divide, refuse, refuse_assertion, size_of

InitMethod = Callable[[torch.Tensor], object]
"""Fills a tensor in place, such as `torch.nn.init.normal_`."""

PARTS: Final = "parts_group"
"""Attribute of a parameter: the group whose ranks hold different parts of it on purpose."""


def is_expert(parameter: torch.Tensor) -> bool:
    """Returns whether a parameter has Megatron-Core's mark of an expert's, `allreduce = False`."""
    return getattr(parameter, "allreduce", True) is False


def marked(parameter: torch.nn.Parameter, **marks: Any) -> torch.nn.Parameter:
    """Returns a parameter with the attributes by which Megatron-Core knows it."""
    for name, value in marks.items():
        setattr(parameter, name, value)
    return parameter


def checked_config(config: object) -> ModelParallelConfig:
    """Returns the configuration that a layer was given.

    Raises:
        OperandError: If it is another thing.
    """
    if isinstance(config, ModelParallelConfig):
        return config
    raise OperandError(
        f"argument 'config' must be a ModelParallelConfig; got {type(config).__name__}",
        [site_fact(call_site())],
        hint="ModelParallelConfig() has what is usual; layers of a model share one",
    )


def shard_of(
    size: tuple[int, int],
    dim: int,
    group: Group,
    config: ModelParallelConfig,
    init_method: InitMethod,
    *,
    stride: int = 1,
    marks: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[torch.nn.Parameter, torch.Tensor | None]:
    """Returns this rank's part of a dense weight, and that weight.

    The dense weight is cut into `tp * stride` pieces, of which rank r has r, r + tp, r + 2 tp, ...:
    with a stride of 2, half a gate and half of what it is for. It is drawn in full, from the rank's
    generator: ranks with one seed (`torch.manual_seed`) draw the same, and their generators stay in
    step; ranks that nobody seeded get parts of different weights, as on hardware.

    Args:
        size: Of the dense weight.
        dim: Which dimension is cut.
        group: Which ranks share it.
        config: Says the type, and whether first values are drawn.
        init_method: Draws them, in place.
        stride: How many weights lie in one, along `dim`.
        marks: Further attributes of the part, see `marks_of`.

    Returns:
        The part; and the dense weight on the host, None if no first values are drawn.

    Raises:
        ParallelAssertionError: If the pieces cannot be equal.
        OperandError: If first values are to be drawn, and nothing draws them.
    """
    ranks = size_of(group)
    piece = divide(divide(size[dim], ranks), stride)
    master = None
    if config.perform_initialization:
        if not callable(init_method):
            raise OperandError(
                "argument 'init_method' must be a function that fills a weight in place; got "
                f"{type(init_method).__name__}",
                [site_fact(call_site())],
                hint="init_method=torch.nn.init.normal_",
            )
        # On the host: a weight that only fits a device in parts must fit here.
        master = torch.empty(size, dtype=config.params_dtype, device="cpu")
        with torch.no_grad():
            init_method(master)
            mine = master.split(piece, dim)[dist.get_rank(group) :: ranks]
            weight = torch.cat(mine, dim).cuda()
    else:
        shape = [*size]
        shape[dim] = piece * stride
        weight = torch.empty(shape, dtype=config.params_dtype, device="cuda")
    parameter = marked(
        torch.nn.Parameter(weight),
        tensor_model_parallel=True,
        partition_dim=dim,
        partition_stride=stride,
        **{"allreduce": True, PARTS: group, **marks},
    )
    return parameter, master


def marks_of(group: Group, given: Group | None, *, allreduce: bool) -> dict[str, Any]:
    """Returns what a parameter says of the ranks that must not average it with their own.

    Args:
        group: Who shares the layer.
        given: The group that the user gave the layer; then nothing else is known of the groups.
        allreduce: What `parameter.allreduce` says: whether data parallelism sums its gradient with
            those of dense layers, rather than over the ranks that hold the same expert.
    """
    if not allreduce and given is None:
        group = parallel_state.get_expert_tensor_and_model_parallel_group()
    return {"allreduce": allreduce, PARTS: group}


def checked_stride(stride: int) -> int:
    """Returns how many weights lie in one.

    Raises:
        ParallelAssertionError: If that is no whole number, or less than 1.
    """
    if not whole_number(stride, at_least=1):
        raise refuse_assertion(f"stride={stride!r}: expected a whole number of at least 1")
    return stride


def transposed_pieces(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Returns the last dimension's `rows * columns` pieces, column by column.

    With a stride of k a rank has pieces r, r + tp, ... of a weight: what ranks have, side by side,
    is by rank what the dense layer has by turn.

    Args:
        x: `[..., n]`.
        rows: Of pieces; those of a row lie side by side.
        columns: Of pieces.
    """
    if rows == 1 or columns == 1:
        return x
    width = x.shape[-1]
    pieces = x.reshape(*x.shape[:-1], rows, columns, width // (rows * columns))
    return pieces.transpose(-3, -2).reshape(x.shape)


def bias_of(size: int, config: ModelParallelConfig) -> torch.nn.Parameter:
    """Returns a bias of zeros; of nothing if parameters are not initialised."""
    make = torch.zeros if config.perform_initialization else torch.empty
    return torch.nn.Parameter(make(size, dtype=config.params_dtype, device="cuda"))


def layer_group(tp_group: Group | None, is_expert: bool) -> Group:
    """Returns who shares a layer: the group that it is given, else that of its kind.

    Raises:
        ParallelStateError: If none is given and model parallelism is not initialised.
    """
    if tp_group is not None:
        return tp_group
    if is_expert:
        return parallel_state.get_expert_tensor_parallel_group()
    return parallel_state.get_tensor_model_parallel_group()


def _check_size(config: ModelParallelConfig, name: str, words: str, group: Group) -> None:
    said, ranks = getattr(config, name), size_of(group)
    if said not in {None, ranks}:
        raise refuse(
            f"ModelParallelConfig({name}={said!r}), but the {words} group of the layer has {ranks} "
            f"rank{'' if ranks == 1 else 's'}",
            f"it is {group!r}",
            hint=f"leave {name} out: a layer takes it from its group",
        )


def expert_ranks_of(
    config: ModelParallelConfig, group: Group, tp_group: Group | None, is_expert: bool
) -> int:
    """Returns how many ranks share the experts, after a look at what the configuration says.

    Args:
        config: May name sizes.
        group: Of the layer.
        tp_group: What it was given; then nothing else is known of the groups.
        is_expert: Whether the group is that of experts, whose size the configuration has not.

    Raises:
        ParallelError: If a size contradicts its group.
    """
    if not is_expert:
        _check_size(config, "tensor_model_parallel_size", "tensor model parallel", group)
    if tp_group is not None:
        return config.expert_model_parallel_size or 1
    context = parallel_state.get_context_parallel_group()
    _check_size(config, "context_parallel_size", "context parallel", context)
    experts = parallel_state.get_expert_model_parallel_group()
    _check_size(config, "expert_model_parallel_size", "expert model parallel", experts)
    return size_of(experts)


def sequence_parallel_of(config: ModelParallelConfig, ranks: int) -> bool:
    """Returns whether a layer is sequence parallel; one of a single rank is not, with a warning."""
    if config.sequence_parallel and ranks == 1:
        warnings.warn(
            "`sequence_parallel` is set to `True`, but tensor model parallel size is 1. Disabling "
            "sequence parallel.",
            stacklevel=3,
        )
        return False
    return config.sequence_parallel
