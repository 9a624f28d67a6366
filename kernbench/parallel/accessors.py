"""What a rank asks of its groups, under Megatron-Core's names; public through `parallel_state`."""

import warnings
from typing import Final, Literal, NoReturn, overload

import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError, UnsupportedError, call_site, site_fact
from kernbench.parallel.held import (
    GlobalMemoryBuffer,
    find_worker,
    group_for,
    group_getter,
    held_of,
    no_group,
    plain,
    settable,
    setter,
)
from kernbench.parallel.layout import HIERARCHY, ParallelStateError
from kernbench.torch.distributed import ProcessGroup


def model_parallel_is_initialized() -> bool:
    """Returns whether the calling rank has groups; never raises."""
    try:
        _, held = held_of("model_parallel_is_initialized")
    except KernbenchError:
        return False
    return bool(held.groups)


is_initialized = model_parallel_is_initialized


def is_unitialized() -> bool:
    """Returns `not is_initialized()`, with a warning: the name is an old one."""
    warnings.warn(
        "is_unitialized is deprecated, use is_initialized instead",
        DeprecationWarning,
        stacklevel=2,
    )
    return not is_initialized()


# Groups

get_tensor_model_parallel_group = group_getter("tp")
get_pipeline_model_parallel_group = group_getter("pp")
get_context_parallel_group = group_getter("cp")
get_model_parallel_group = group_getter("mp")
get_tensor_and_context_parallel_group = group_getter("tp_cp")
get_embedding_group = group_getter("embd")
get_position_embedding_group = group_getter("pos_embd")
get_expert_model_parallel_group = group_getter("ep")
get_expert_tensor_parallel_group = group_getter("expt_tp")
get_expert_tensor_and_model_parallel_group = group_getter("tp_ep")
get_expert_tensor_model_pipeline_parallel_group = group_getter("tp_ep_pp")
get_intra_distributed_optimizer_instance_group = group_getter("intra_dist_opt")


def get_hierarchical_context_parallel_groups(
    check_initialized: bool = True,
) -> list[ProcessGroup] | None:
    """Returns the calling rank's group at each level of context parallelism, the nearest first.

    Args:
        check_initialized: Whether to refuse, rather than to return None, if there are none.

    Raises:
        ParallelStateError: If there are none.
    """
    rank, held = held_of("get_hierarchical_context_parallel_groups")
    if check_initialized and not held.hierarchy:
        raise no_group(rank, held, HIERARCHY.words)
    return list(held.hierarchy) or None


def get_data_parallel_group(
    with_context_parallel: bool = False,
    partial_data_parallel: bool = False,
    independent_all_gather: bool = False,
) -> ProcessGroup:
    """Returns the ranks that hold the same parameters and see other data.

    Args:
        with_context_parallel: Whether other parts of the same sequences count as other data.
        partial_data_parallel: Whether only those of the calling rank's instance of a distributed
            optimiser are asked for: as there is one instance, all; needs the first.
        independent_all_gather: Whether the group of its own for all-gathers is asked for, see
            `create_all_gather_group` of `initialize_model_parallel`; needs the first, and the
            second wins.

    Raises:
        ParallelStateError: If there is none, or the first argument is missing.
    """
    name = "get_data_parallel_group"
    _check_partial(name, with_context_parallel, partial_data_parallel)
    if with_context_parallel and independent_all_gather and not partial_data_parallel:
        return group_for(name, "dp_cp_ag")
    return group_for(name, _data(with_context_parallel))


def get_data_parallel_group_gloo(
    with_context_parallel: bool = False, partial_data_parallel: bool = False
) -> ProcessGroup:
    """Returns the group of `get_data_parallel_group` for tensors on the host, of backend gloo.

    Args:
        with_context_parallel: See there.
        partial_data_parallel: See there.

    Raises:
        ParallelStateError: If `initialize_model_parallel` did not make it.
    """
    name = "get_data_parallel_group_gloo"
    _check_partial(name, with_context_parallel, partial_data_parallel)
    return group_for(name, f"{_data(with_context_parallel)}_gloo")


def has_separate_all_gather_group() -> bool:
    """Returns whether `initialize_model_parallel` got `create_all_gather_group`."""
    return "dp_cp_ag" in (held_of("has_separate_all_gather_group")[1].groups or {})


def get_hybrid_data_context_parallel_groups(
    check_initialized: bool = True, group_size: int | None = None
) -> ProcessGroup | None:
    """Returns the calling rank's group of a size, of neighbours among data and context ranks.

    Args:
        check_initialized: Whether to refuse, rather than to return None, if there is none.
        group_size: A power of 2, or the number of all data and context ranks.

    Raises:
        ParallelStateError: If there is none, see `hybrid_context_parallel` of
            `initialize_model_parallel`.
    """
    name = "get_hybrid_data_context_parallel_groups"
    rank, held = held_of(name)
    groups = held.groups or {}
    whole = groups.get("dp_cp")
    if whole is not None and group_size == whole.size():
        return whole
    found = groups.get(f"hybrid{group_size}")
    if found is None and check_initialized:
        raise no_group(rank, held, f"hybrid data and context parallel (of {group_size} ranks)")
    return found


@overload
def get_tensor_and_data_parallel_group(
    check_initialized: Literal[True] = True, with_context_parallel: bool = False
) -> ProcessGroup: ...
@overload
def get_tensor_and_data_parallel_group(
    check_initialized: bool, with_context_parallel: bool = False
) -> ProcessGroup | None: ...
def get_tensor_and_data_parallel_group(
    check_initialized: bool = True, with_context_parallel: bool = False
) -> ProcessGroup | None:
    """Returns the ranks that differ in their shard of layers and in their data.

    Args:
        check_initialized: Whether to refuse, rather than to return None, if there is none.
        with_context_parallel: Whether other parts of the same sequences count as other data.

    Raises:
        ParallelStateError: If there is none.
    """
    name, kind = "get_tensor_and_data_parallel_group", f"tp_{_data(with_context_parallel)}"
    if check_initialized:
        return group_for(name, kind)
    return (held_of(name)[1].groups or {}).get(kind)


def get_amax_reduction_group(
    with_context_parallel: bool = False, tp_only_amax_red: bool = False
) -> ProcessGroup:
    """Returns the ranks that agree on the scales of 8-bit floats.

    Args:
        with_context_parallel: Whether ranks with other parts of the same sequences are among them.
        tp_only_amax_red: Whether ranks with other data are not.

    Raises:
        ParallelStateError: If there is none.
    """
    data = "" if tp_only_amax_red else "_dp"
    context = "_cp" if with_context_parallel else ""
    return group_for("get_amax_reduction_group", f"tp{data}{context}")


@overload
def get_expert_data_parallel_group(
    check_initialized: Literal[True] = True, partial_expert_data_parallel: bool = False
) -> ProcessGroup: ...
@overload
def get_expert_data_parallel_group(
    check_initialized: bool, partial_expert_data_parallel: bool = False
) -> ProcessGroup | None: ...
def get_expert_data_parallel_group(
    check_initialized: bool = True, partial_expert_data_parallel: bool = False
) -> ProcessGroup | None:
    """Returns the ranks that hold the same experts and see other tokens.

    Args:
        check_initialized: Whether to refuse, rather than to return None, if there is none.
        partial_expert_data_parallel: Whether only those of the calling rank's instance of a
            distributed optimiser are asked for: as there is one instance, all.

    Raises:
        ParallelStateError: If there is none.
    """
    del partial_expert_data_parallel
    name = "get_expert_data_parallel_group"
    if check_initialized:
        return group_for(name, "expt_dp")
    return (held_of(name)[1].groups or {}).get("expt_dp")


def get_data_modulo_expert_parallel_group(
    partial_expert_data_parallel: bool = False,
) -> ProcessGroup:
    """Returns `get_expert_data_parallel_group()`, with a warning: the name is an old one.

    Args:
        partial_expert_data_parallel: See there.

    Raises:
        ParallelStateError: If there is none.
    """
    find_worker("get_data_modulo_expert_parallel_group")
    warnings.warn(
        "get_data_modulo_expert_parallel_group is deprecated, please use "
        "get_expert_data_parallel_group instead.",
        DeprecationWarning,
        stacklevel=2,
    )
    return get_expert_data_parallel_group(True, partial_expert_data_parallel)


def get_expert_data_parallel_group_gloo(partial_expert_data_parallel: bool = False) -> ProcessGroup:
    """Returns the group of `get_expert_data_parallel_group` for tensors on the host.

    Args:
        partial_expert_data_parallel: See there.

    Raises:
        ParallelStateError: If `initialize_model_parallel` did not make it.
    """
    del partial_expert_data_parallel
    return group_for("get_expert_data_parallel_group_gloo", "expt_dp_gloo")


def get_inter_distributed_optimizer_instance_group(
    check_initialized: bool = True,
) -> ProcessGroup | None:
    """Returns None, or refuses: there is one instance of a distributed optimiser, as by default.

    Args:
        check_initialized: Whether to refuse.

    Raises:
        ParallelStateError: If it is to be checked.
    """
    rank, held = held_of("get_inter_distributed_optimizer_instance_group")
    if check_initialized:
        raise no_group(rank, held, "inter distributed optimizer instance")
    return None


def _data(with_context_parallel: bool) -> str:
    return "dp_cp" if with_context_parallel else "dp"


def _check_partial(name: str, with_context_parallel: bool, partial_data_parallel: bool) -> None:
    find_worker(name)
    if partial_data_parallel and not with_context_parallel:
        raise ParallelStateError(
            "Partial DP for Optimizer needs to include CP",
            [site_fact(call_site())],
            hint="pass with_context_parallel=True",
        )


# Ranks and sizes

get_tensor_model_parallel_rank = settable("tp", "rank")
get_tensor_model_parallel_world_size = settable("tp", "world_size")
get_pipeline_model_parallel_rank = settable("pp", "rank")
get_pipeline_model_parallel_world_size = settable("pp", "world_size")
get_context_parallel_rank = plain("cp", "rank")
get_context_parallel_world_size = plain("cp", "world_size")
get_expert_model_parallel_rank = plain("ep", "rank")
get_expert_model_parallel_world_size = plain("ep", "world_size")
get_expert_tensor_parallel_rank = plain("expt_tp", "rank")
get_expert_tensor_parallel_world_size = plain("expt_tp", "world_size")
get_tensor_and_context_parallel_rank = plain("tp_cp", "rank")
get_tensor_and_context_parallel_world_size = plain("tp_cp", "world_size")
get_expert_tensor_and_model_parallel_rank = plain("tp_ep", "rank")
get_expert_tensor_and_model_parallel_world_size = plain("tp_ep", "world_size")

_VIRTUAL_RANK: Final = "get_virtual_pipeline_model_parallel_rank"
_VIRTUAL_SIZE: Final = "get_virtual_pipeline_model_parallel_world_size"

set_tensor_model_parallel_rank = setter("get_tensor_model_parallel_rank")
set_tensor_model_parallel_world_size = setter("get_tensor_model_parallel_world_size")
set_pipeline_model_parallel_rank = setter("get_pipeline_model_parallel_rank")
set_pipeline_model_parallel_world_size = setter("get_pipeline_model_parallel_world_size")
set_data_parallel_rank = setter("get_data_parallel_rank")
set_expert_model_parallel_rank = setter("get_expert_model_parallel_rank")
set_expert_model_parallel_world_size = setter("get_expert_model_parallel_world_size")
set_expert_tensor_parallel_rank = setter("get_expert_tensor_parallel_rank")
set_expert_tensor_parallel_world_size = setter("get_expert_tensor_parallel_world_size")
set_virtual_pipeline_model_parallel_rank = setter(_VIRTUAL_RANK)
set_virtual_pipeline_model_parallel_world_size = setter(_VIRTUAL_SIZE)


def get_virtual_pipeline_model_parallel_rank() -> int | None:
    """Returns which piece of its stage the calling rank is at; None without virtual stages."""
    return held_of(_VIRTUAL_RANK)[1].numbers.get(_VIRTUAL_RANK)


def get_virtual_pipeline_model_parallel_world_size() -> int | None:
    """Returns how many pieces of the model a stage holds; None without virtual stages."""
    return held_of(_VIRTUAL_SIZE)[1].numbers.get(_VIRTUAL_SIZE)


def get_data_parallel_rank(
    with_context_parallel: bool = False, partial_data_parallel: bool = False
) -> int:
    """Returns the place of the calling rank in `get_data_parallel_group`, or what was set.

    Args:
        with_context_parallel: See there.
        partial_data_parallel: See there.

    Returns:
        The place; 0 without `torch.distributed`.

    Raises:
        ParallelStateError: If there is no such group.
    """
    found = held_of("get_data_parallel_rank")[1].numbers.get("get_data_parallel_rank")
    if found is not None or not dist.is_initialized():
        return found or 0
    return get_data_parallel_group(with_context_parallel, partial_data_parallel).rank()


def get_data_parallel_world_size(
    with_context_parallel: bool = False, partial_data_parallel: bool = False
) -> int:
    """Returns the number of ranks in `get_data_parallel_group`.

    Args:
        with_context_parallel: See there.
        partial_data_parallel: See there.

    Returns:
        The number; 0 without `torch.distributed`.

    Raises:
        ParallelStateError: If there is no such group.
    """
    find_worker("get_data_parallel_world_size")
    if not dist.is_initialized():
        return 0
    return get_data_parallel_group(with_context_parallel, partial_data_parallel).size()


def get_expert_data_parallel_rank(partial_expert_data_parallel: bool = False) -> int:
    """Returns the place of the calling rank in `get_expert_data_parallel_group`.

    Args:
        partial_expert_data_parallel: See there.

    Returns:
        The place; 0 without `torch.distributed`.

    Raises:
        ParallelStateError: If there is no such group.
    """
    del partial_expert_data_parallel
    name = "get_expert_data_parallel_rank"
    find_worker(name)
    return group_for(name, "expt_dp").rank() if dist.is_initialized() else 0


def get_expert_data_parallel_world_size(partial_expert_data_parallel: bool = False) -> int:
    """Returns the number of ranks in `get_expert_data_parallel_group`.

    Args:
        partial_expert_data_parallel: See there.

    Returns:
        The number; 0 without `torch.distributed`.

    Raises:
        ParallelStateError: If there is no such group.
    """
    del partial_expert_data_parallel
    name = "get_expert_data_parallel_world_size"
    find_worker(name)
    return group_for(name, "expt_dp").size() if dist.is_initialized() else 0


@overload
def get_context_parallel_global_ranks(check_initialized: Literal[True] = True) -> list[int]: ...
@overload
def get_context_parallel_global_ranks(check_initialized: bool) -> list[int] | None: ...
def get_context_parallel_global_ranks(check_initialized: bool = True) -> list[int] | None:
    """Returns the global ranks of the calling rank's context parallel group.

    Args:
        check_initialized: Whether to refuse, rather than to return None, if there is none.

    Raises:
        ParallelStateError: If there is none.
    """
    name = "get_context_parallel_global_ranks"
    if check_initialized:
        return list(group_for(name, "cp").ranks)
    group = (held_of(name)[1].groups or {}).get("cp")
    return None if group is None else list(group.ranks)


def get_all_ranks() -> str:
    """Returns the calling rank's places: tensor, data, context, pipeline and expert model parallel.

    Returns:
        Five numbers with `_` between them.

    Raises:
        ParallelStateError: If there is no such group.
    """
    find_worker("get_all_ranks")
    places = (
        get_tensor_model_parallel_rank(),
        get_data_parallel_rank(),
        get_context_parallel_rank(),
        get_pipeline_model_parallel_rank(),
        get_expert_model_parallel_rank(),
    )
    return "_".join(map(str, places))


def get_tensor_model_parallel_src_rank() -> int:
    """Returns the first global rank of the calling rank's tensor model parallel group.

    Raises:
        ParallelStateError: If there is none.
    """
    return group_for("get_tensor_model_parallel_src_rank", "tp").ranks[0]


def get_expert_model_parallel_src_rank() -> int:
    """Returns the first global rank of the calling rank's expert model parallel group.

    Raises:
        ParallelStateError: If there is none.
    """
    return group_for("get_expert_model_parallel_src_rank", "ep").ranks[0]


def get_model_parallel_src_rank() -> int:
    """Returns the first global rank of the calling rank's model parallel group.

    Raises:
        ParallelStateError: If there is none.
    """
    return group_for("get_model_parallel_src_rank", "mp").ranks[0]


def get_data_parallel_src_rank(with_context_parallel: bool = False) -> int:
    """Returns the first global rank of `get_data_parallel_group`.

    Args:
        with_context_parallel: See there.

    Raises:
        ParallelStateError: If there is none.
    """
    return group_for("get_data_parallel_src_rank", _data(with_context_parallel)).ranks[0]


# Memory


def get_global_memory_buffer() -> GlobalMemoryBuffer:
    """Returns the calling rank's tensors that are used again and again.

    Raises:
        ParallelStateError: If `initialize_model_parallel` was not called.
    """
    rank, held = held_of("get_global_memory_buffer")
    if held.memory is None:
        raise ParallelStateError(
            "global memory buffer is not initialized",
            [site_fact(call_site())],
            hint=f"call initialize_model_parallel() on rank {rank} first",
        )
    return held.memory


def destroy_global_memory_buffer() -> None:
    """Forgets the calling rank's `get_global_memory_buffer`."""
    held_of("destroy_global_memory_buffer")[1].memory = None


def get_global_symmetric_memory_buffer() -> NoReturn:
    """Refuses: symmetric memory for inference is not simulated.

    Raises:
        UnsupportedError: Always.
    """
    find_worker("get_global_symmetric_memory_buffer")
    raise UnsupportedError(
        "get_global_symmetric_memory_buffer: symmetric memory is not simulated",
        [site_fact(call_site())],
        hint="get_global_memory_buffer() has memory that a rank uses again",
    )
