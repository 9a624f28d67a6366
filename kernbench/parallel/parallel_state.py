"""Who computes what: the process groups of tensor, context, expert, data and pipeline parallelism.

The names are Megatron-Core's. There one process is one rank and the groups are globals of a module;
here all ranks share the interpreter, so what a rank knows of its groups lives with its process and
dies with the spawn.
"""

from collections.abc import Sequence
from contextlib import ExitStack

import kernbench.torch.distributed as dist
from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.extend import agree
from kernbench.parallel.accessors import (
    destroy_global_memory_buffer,
    get_all_ranks,
    get_amax_reduction_group,
    get_context_parallel_global_ranks,
    get_context_parallel_group,
    get_context_parallel_rank,
    get_context_parallel_world_size,
    get_data_modulo_expert_parallel_group,
    get_data_parallel_group,
    get_data_parallel_group_gloo,
    get_data_parallel_rank,
    get_data_parallel_src_rank,
    get_data_parallel_world_size,
    get_embedding_group,
    get_expert_data_parallel_group,
    get_expert_data_parallel_group_gloo,
    get_expert_data_parallel_rank,
    get_expert_data_parallel_world_size,
    get_expert_model_parallel_group,
    get_expert_model_parallel_rank,
    get_expert_model_parallel_src_rank,
    get_expert_model_parallel_world_size,
    get_expert_tensor_and_model_parallel_group,
    get_expert_tensor_and_model_parallel_rank,
    get_expert_tensor_and_model_parallel_world_size,
    get_expert_tensor_model_pipeline_parallel_group,
    get_expert_tensor_parallel_group,
    get_expert_tensor_parallel_rank,
    get_expert_tensor_parallel_world_size,
    get_global_memory_buffer,
    get_global_symmetric_memory_buffer,
    get_hierarchical_context_parallel_groups,
    get_hybrid_data_context_parallel_groups,
    get_inter_distributed_optimizer_instance_group,
    get_intra_distributed_optimizer_instance_group,
    get_model_parallel_group,
    get_model_parallel_src_rank,
    get_pipeline_model_parallel_group,
    get_pipeline_model_parallel_rank,
    get_pipeline_model_parallel_world_size,
    get_position_embedding_group,
    get_tensor_and_context_parallel_group,
    get_tensor_and_context_parallel_rank,
    get_tensor_and_context_parallel_world_size,
    get_tensor_and_data_parallel_group,
    get_tensor_model_parallel_group,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_src_rank,
    get_tensor_model_parallel_world_size,
    get_virtual_pipeline_model_parallel_rank,
    get_virtual_pipeline_model_parallel_world_size,
    has_separate_all_gather_group,
    is_initialized,
    is_unitialized,
    model_parallel_is_initialized,
    set_data_parallel_rank,
    set_expert_model_parallel_rank,
    set_expert_model_parallel_world_size,
    set_expert_tensor_parallel_rank,
    set_expert_tensor_parallel_world_size,
    set_pipeline_model_parallel_rank,
    set_pipeline_model_parallel_world_size,
    set_tensor_model_parallel_rank,
    set_tensor_model_parallel_world_size,
    set_virtual_pipeline_model_parallel_rank,
    set_virtual_pipeline_model_parallel_world_size,
)
from kernbench.parallel.held import (
    HELD,
    GlobalMemoryBuffer,
    OutsideWorkerError,
    held_of,
)
from kernbench.parallel.layout import (
    ChooseRanks,
    LayoutError,
    ParallelStateError,
    Plan,
    RankGenerator,
    default_embedding_ranks,
    default_position_embedding_ranks,
    lay_out,
    plan_groups,
    plan_hybrid,
    plan_levels,
    whole_number,
)
from kernbench.parallel.stages import (
    get_pipeline_model_parallel_first_rank,
    get_pipeline_model_parallel_last_rank,
    get_pipeline_model_parallel_next_rank,
    get_pipeline_model_parallel_prev_rank,
    is_pipeline_first_stage,
    is_pipeline_last_stage,
    is_rank_in_embedding_group,
    is_rank_in_position_embedding_group,
)
from kernbench.torch.distributed import ProcessGroup

__all__ = [
    "GlobalMemoryBuffer",
    "LayoutError",
    "OutsideWorkerError",
    "ParallelStateError",
    "RankGenerator",
    "default_embedding_ranks",
    "default_position_embedding_ranks",
    "destroy_global_memory_buffer",
    "destroy_model_parallel",
    "get_all_ranks",
    "get_amax_reduction_group",
    "get_context_parallel_global_ranks",
    "get_context_parallel_group",
    "get_context_parallel_rank",
    "get_context_parallel_world_size",
    "get_data_modulo_expert_parallel_group",
    "get_data_parallel_group",
    "get_data_parallel_group_gloo",
    "get_data_parallel_rank",
    "get_data_parallel_src_rank",
    "get_data_parallel_world_size",
    "get_embedding_group",
    "get_expert_data_parallel_group",
    "get_expert_data_parallel_group_gloo",
    "get_expert_data_parallel_rank",
    "get_expert_data_parallel_world_size",
    "get_expert_model_parallel_group",
    "get_expert_model_parallel_rank",
    "get_expert_model_parallel_src_rank",
    "get_expert_model_parallel_world_size",
    "get_expert_tensor_and_model_parallel_group",
    "get_expert_tensor_and_model_parallel_rank",
    "get_expert_tensor_and_model_parallel_world_size",
    "get_expert_tensor_model_pipeline_parallel_group",
    "get_expert_tensor_parallel_group",
    "get_expert_tensor_parallel_rank",
    "get_expert_tensor_parallel_world_size",
    "get_global_memory_buffer",
    "get_global_symmetric_memory_buffer",
    "get_hierarchical_context_parallel_groups",
    "get_hybrid_data_context_parallel_groups",
    "get_inter_distributed_optimizer_instance_group",
    "get_intra_distributed_optimizer_instance_group",
    "get_model_parallel_group",
    "get_model_parallel_src_rank",
    "get_pipeline_model_parallel_first_rank",
    "get_pipeline_model_parallel_group",
    "get_pipeline_model_parallel_last_rank",
    "get_pipeline_model_parallel_next_rank",
    "get_pipeline_model_parallel_prev_rank",
    "get_pipeline_model_parallel_rank",
    "get_pipeline_model_parallel_world_size",
    "get_position_embedding_group",
    "get_tensor_and_context_parallel_group",
    "get_tensor_and_context_parallel_rank",
    "get_tensor_and_context_parallel_world_size",
    "get_tensor_and_data_parallel_group",
    "get_tensor_model_parallel_group",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_src_rank",
    "get_tensor_model_parallel_world_size",
    "get_virtual_pipeline_model_parallel_rank",
    "get_virtual_pipeline_model_parallel_world_size",
    "has_separate_all_gather_group",
    "initialize_model_parallel",
    "is_initialized",
    "is_pipeline_first_stage",
    "is_pipeline_last_stage",
    "is_rank_in_embedding_group",
    "is_rank_in_position_embedding_group",
    "is_unitialized",
    "model_parallel_is_initialized",
    "set_data_parallel_rank",
    "set_expert_model_parallel_rank",
    "set_expert_model_parallel_world_size",
    "set_expert_tensor_parallel_rank",
    "set_expert_tensor_parallel_world_size",
    "set_pipeline_model_parallel_rank",
    "set_pipeline_model_parallel_world_size",
    "set_tensor_model_parallel_rank",
    "set_tensor_model_parallel_world_size",
    "set_virtual_pipeline_model_parallel_rank",
    "set_virtual_pipeline_model_parallel_world_size",
]


def initialize_model_parallel(
    tensor_model_parallel_size: int = 1,
    pipeline_model_parallel_size: int = 1,
    virtual_pipeline_model_parallel_size: int | None = None,
    pipeline_model_parallel_comm_backend: str | None = None,
    use_sharp: bool = False,
    context_parallel_size: int = 1,
    hierarchical_context_parallel_sizes: Sequence[int] | None = None,
    hybrid_context_parallel: bool = False,
    expert_model_parallel_size: int = 1,
    num_distributed_optimizer_instances: int = 1,
    expert_tensor_parallel_size: int | None = None,
    nccl_communicator_config_path: str | None = None,
    distributed_timeout_minutes: int = 30,
    order: str = "tp-cp-ep-dp-pp",
    get_embedding_ranks: ChooseRanks | None = None,
    get_position_embedding_ranks: ChooseRanks | None = None,
    create_gloo_process_groups: bool = False,
    high_priority_stream_groups: Sequence[str] | None = None,
    sharp_enabled_group: str | None = None,
    create_all_gather_group: bool = False,
    *,
    rank_offset: int = 0,
    local_world_size: int | None = None,
) -> None:
    """Makes the groups of a layout; every rank of the world calls it alike. Does not wait.

    Args:
        tensor_model_parallel_size: Ranks that share each layer.
        pipeline_model_parallel_size: Stages that the layers are dealt out to.
        virtual_pipeline_model_parallel_size: Pieces of the model that a stage holds, if several.
        pipeline_model_parallel_comm_backend: None or "nccl"; others are not simulated.
        use_sharp: Must be False: sums in the network are not simulated.
        context_parallel_size: Ranks that share each sequence.
        hierarchical_context_parallel_sizes: Their number as a product, nearest neighbours first.
        hybrid_context_parallel: Whether groups of 2, 4, 8, ... neighbours among the ranks that
            differ in data and context are made, see `get_hybrid_data_context_parallel_groups`.
        expert_model_parallel_size: Ranks that the experts are dealt out to.
        num_distributed_optimizer_instances: Must be 1: distributed optimisers are not simulated.
        expert_tensor_parallel_size: Ranks that share each expert; None: as for other layers.
        nccl_communicator_config_path: Must be None: a machine file says how collectives run.
        distributed_timeout_minutes: Ignored by design: a hang is found when it happens.
        order: Of the axes, the one in which neighbouring ranks differ first.
        get_embedding_ranks: Chooses, from the ranks of a pipeline, those that hold the word
            embedding; None: the first and the last.
        get_position_embedding_ranks: Likewise for the position embedding; None: the first.
        create_gloo_process_groups: Whether the data-parallel groups are made for tensors on the
            host, too. Megatron-Core does unless told otherwise; here most programs do without.
        high_priority_stream_groups: Must be empty: priorities of streams are not simulated.
        sharp_enabled_group: Must be None, as `use_sharp` must be False.
        create_all_gather_group: Whether the data-parallel group with context parallelism is made
            once more, for all-gathers beside reduce-scatters.
        rank_offset: The first rank of the layout.
        local_world_size: Ranks in the layout; None: all from `rank_offset` on. Others are in none
            of its groups.

    Raises:
        ParallelStateError: If `torch.distributed` is not initialised or this already is; if the
            hierarchical sizes do not give `context_parallel_size`; if pipelines differ between
            dense and expert layers.
        LayoutError: If the ranks cannot be laid out like this.
        UnsupportedError: For what is not simulated.
        GroupMismatchError: If ranks call it differently (C9). Functions that choose ranks are
            compared by what they choose.
    """
    del distributed_timeout_minutes
    _refuse(
        pipeline_model_parallel_comm_backend=pipeline_model_parallel_comm_backend
        not in {None, "nccl"},
        use_sharp=use_sharp,
        num_distributed_optimizer_instances=num_distributed_optimizer_instances != 1,
        nccl_communicator_config_path=nccl_communicator_config_path is not None,
        high_priority_stream_groups=bool(high_priority_stream_groups),
        sharp_enabled_group=sharp_enabled_group is not None,
    )
    rank, held = held_of("initialize_model_parallel")
    here = site_fact(call_site())
    if not dist.is_initialized():
        raise ParallelStateError(
            "torch.distributed is not initialized",
            [here],
            hint="call torch.distributed.init_process_group() first",
        )
    if held.groups is not None:
        raise ParallelStateError(
            f"model parallel state of rank {rank} is already initialized",
            [here],
            hint="call destroy_model_parallel() in between",
        )
    tp, pp, cp = tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size
    ep, virtual = expert_model_parallel_size, virtual_pipeline_model_parallel_size
    etp = tp if expert_tensor_parallel_size is None else expert_tensor_parallel_size
    everybody = dist.get_world_size()
    for argument, number in (("rank_offset", rank_offset), ("local_world_size", local_world_size)):
        if number is not None and not whole_number(number):
            raise LayoutError(f"{argument}={number!r}: expected a whole number", [here])
    world = everybody - rank_offset if local_world_size is None else local_world_size
    shape = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": virtual,
        "context_parallel_size": cp,
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": etp,
    }
    for argument, size in shape.items():
        if size is not None and not whole_number(size, at_least=1):
            raise LayoutError(
                f"{argument}={size!r}: expected at least 1, as a whole number", [here]
            )
    if rank_offset < 0 or world < 1 or rank_offset + world > everybody:
        raise LayoutError(
            f"rank_offset={rank_offset}, local_world_size={local_world_size}: "
            f"expected some of ranks 0..{everybody - 1}",
            [here],
        )
    if virtual is not None and pp == 1:
        raise LayoutError(
            "pipeline_model_parallel_size should be greater than 1 with virtual stages", [here]
        )
    grids = lay_out(order, rank_offset, world, tp=tp, cp=cp, pp=pp, ep=ep, etp=etp)
    plans = plan_groups(grids, get_embedding_ranks, get_position_embedding_ranks)
    sizes = hierarchical_context_parallel_sizes
    levels = [] if sizes is None else plan_levels(grids["dense"], sizes)
    hybrid = plan_hybrid(grids["dense"]) if hybrid_context_parallel else []
    agree(
        "initialize_model_parallel",
        {
            **shape,
            "hierarchical_context_parallel_sizes": None if sizes is None else [*sizes],
            "hybrid_context_parallel": bool(hybrid_context_parallel),
            "create_gloo_process_groups": bool(create_gloo_process_groups),
            "create_all_gather_group": bool(create_all_gather_group),
            "order": order.lower(),
            "rank_offset": rank_offset,
            "local_world_size": world,
        },
    )

    # Nothing has been made so far; what fails from here on takes the groups along.
    with ExitStack() as undo:
        undo.enter_context(dist.group_scope())
        made = {plan.name: _split(plan) for plan in [*plans, *hybrid]}
        again = {plan.name: plan for plan in plans}
        if create_all_gather_group:
            made["dp_cp_ag"] = _split(_once_more(again["dp_cp"], "with_cp_ag"))
        for name in ("dp", "dp_cp", "expt_dp") if create_gloo_process_groups else ():
            made[f"{name}_gloo"] = _of_gloo(_once_more(again[name], "gloo"))
        hierarchy = [_split(plan) for plan in levels]
        undo.pop_all()
    held.groups = {name: group for name, group in made.items() if group is not None}
    held.hierarchy = [group for group in hierarchy if group is not None]
    held.memory = GlobalMemoryBuffer()
    if virtual is not None:
        held.numbers |= {
            "get_virtual_pipeline_model_parallel_rank": 0,
            "get_virtual_pipeline_model_parallel_world_size": virtual,
        }


def _split(plan: Plan) -> ProcessGroup | None:
    # One call for all groups of a kind: `new_group` would need one each, on every rank.
    return dist.split_group(None, plan.parts, group_desc=plan.description)


def _of_gloo(plan: Plan) -> ProcessGroup | None:
    group: ProcessGroup | None
    group, _ = dist.new_subgroups_by_enumeration(
        plan.parts, backend="gloo", group_desc=plan.description
    )
    return group


def _once_more(plan: Plan, words: str) -> Plan:
    return plan._replace(description=f"{plan.description}_{words.upper()}")


def _refuse(**given: bool) -> None:
    for name, wrong in given.items():
        if wrong:
            raise UnsupportedError(
                f"initialize_model_parallel({name}=...) is not simulated",
                [site_fact(call_site())],
                hint=f"leave {name} out",
            )


def destroy_model_parallel() -> None:
    """Destroys the groups that `initialize_model_parallel` made, and forgets what was set.

    Does nothing if there are none. Waits, on the host, for collectives on them.

    Raises:
        KernbenchError: If asynchronous operations have not been waited for (C13); it may be called
            again after that.
    """
    _, held = held_of("destroy_model_parallel")
    live = {group.name for group in dist.live_groups()}
    for group in [*(held.groups or {}).values(), *held.hierarchy]:
        # The user may have destroyed it, perhaps together with all others.
        if group.name in live:
            dist.destroy_process_group(group)
    HELD.forget()
