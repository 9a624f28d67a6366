"""Who computes what: the process groups of tensor, context, expert, data and pipeline parallelism.

The names are Megatron-Core's. There one process is one rank and the groups are globals of a module;
here all ranks share the interpreter, so what a rank is told lives with its process and dies with
the spawn.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeVar, cast, overload

import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.extend import RankLocal, agree, current_rank
from kernbench.parallel.layout import (
    HIERARCHY,
    WORDS,
    ChooseRanks,
    LayoutError,
    ParallelStateError,
    Plan,
    lay_out,
    plan_groups,
    plan_levels,
    whole_number,
)
from kernbench.torch.distributed import ProcessGroup

__all__ = [
    "LayoutError",
    "OutsideWorkerError",
    "ParallelStateError",
    "destroy_model_parallel",
    "get_context_parallel_global_ranks",
    "get_context_parallel_group",
    "get_context_parallel_rank",
    "get_context_parallel_world_size",
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_src_rank",
    "get_data_parallel_world_size",
    "get_embedding_group",
    "get_expert_data_parallel_group",
    "get_expert_model_parallel_group",
    "get_expert_model_parallel_rank",
    "get_expert_model_parallel_world_size",
    "get_expert_tensor_and_model_parallel_group",
    "get_expert_tensor_model_pipeline_parallel_group",
    "get_expert_tensor_parallel_group",
    "get_expert_tensor_parallel_rank",
    "get_expert_tensor_parallel_world_size",
    "get_hierarchical_context_parallel_groups",
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
    "get_tensor_and_data_parallel_group",
    "get_tensor_model_parallel_group",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_src_rank",
    "get_tensor_model_parallel_world_size",
    "get_virtual_pipeline_model_parallel_rank",
    "get_virtual_pipeline_model_parallel_world_size",
    "initialize_model_parallel",
    "is_initialized",
    "is_pipeline_first_stage",
    "is_pipeline_last_stage",
    "is_rank_in_embedding_group",
    "is_rank_in_position_embedding_group",
    "model_parallel_is_initialized",
    "set_pipeline_model_parallel_rank",
    "set_pipeline_model_parallel_world_size",
    "set_tensor_model_parallel_rank",
    "set_tensor_model_parallel_world_size",
    "set_virtual_pipeline_model_parallel_rank",
    "set_virtual_pipeline_model_parallel_world_size",
]


class OutsideWorkerError(KernbenchError, RuntimeError):
    """Parallel state was asked for where no rank is running."""


# What a rank is told


@dataclass(slots=True)
class _Held:
    """Parallel state of one rank.

    Attributes:
        groups: By the name of a kind; None before `initialize_model_parallel`. Empty for a rank
            outside of the layout.
        hierarchy: A group for each level of context parallelism, if levels were asked for.
        numbers: By accessor, what takes the place of its own answer.
    """

    groups: dict[str, ProcessGroup] | None = None
    hierarchy: list[ProcessGroup] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)


def find_worker(name: str) -> int:
    """Returns the calling rank.

    Args:
        name: Of the function that needs one, for the report.

    Raises:
        OutsideWorkerError: If no rank is running here.
    """
    rank = current_rank()
    if rank is None:
        raise OutsideWorkerError(
            f"{name}() was called outside of a worker, where there is no rank",
            [site_fact(call_site())],
            hint="it must run inside a worker that torch.multiprocessing.spawn has started",
        )
    return rank


_HELD: Final = RankLocal("parallel state", _Held)


def _held(name: str) -> tuple[int, _Held]:
    return find_worker(name), _HELD.get()


def _missing(rank: int, held: _Held, words: str) -> ParallelStateError:
    called = held.groups is not None
    return ParallelStateError(
        f"{words} group is not initialized",
        [
            site_fact(call_site()),
            *([f"rank {rank} is in no {words} group of this layout"] if called else []),
        ],
        hint="" if called else "call initialize_model_parallel() in every worker first",
    )


def _group(name: str, kind: str) -> ProcessGroup:
    """Returns a group of the calling rank, for the accessor of a name."""
    rank, held = _held(name)
    group = (held.groups or {}).get(kind)
    if group is None:
        raise _missing(rank, held, WORDS[kind])
    return group


def initialize_model_parallel(
    tensor_model_parallel_size: int = 1,
    pipeline_model_parallel_size: int = 1,
    virtual_pipeline_model_parallel_size: int | None = None,
    *,
    context_parallel_size: int = 1,
    hierarchical_context_parallel_sizes: Sequence[int] | None = None,
    expert_model_parallel_size: int = 1,
    expert_tensor_parallel_size: int | None = None,
    order: str = "tp-cp-ep-dp-pp",
    distributed_timeout_minutes: int = 30,
    get_embedding_ranks: ChooseRanks | None = None,
    get_position_embedding_ranks: ChooseRanks | None = None,
    rank_offset: int = 0,
    local_world_size: int | None = None,
) -> None:
    """Makes the groups of a layout; every rank of the world calls it alike. Does not wait.

    Args:
        tensor_model_parallel_size: Ranks that share each layer.
        pipeline_model_parallel_size: Stages that the layers are dealt out to.
        virtual_pipeline_model_parallel_size: Pieces of the model that a stage holds, if several.
        context_parallel_size: Ranks that share each sequence.
        hierarchical_context_parallel_sizes: Their number as a product, nearest neighbours first.
        expert_model_parallel_size: Ranks that the experts are dealt out to.
        expert_tensor_parallel_size: Ranks that share each expert; None: as for other layers.
        order: Of the axes, the one in which neighbouring ranks differ first.
        distributed_timeout_minutes: Ignored by design: a hang is found when it happens.
        get_embedding_ranks: Chooses, from the ranks of a pipeline, those that hold the word
            embedding; None: the first and the last.
        get_position_embedding_ranks: Likewise for the position embedding; None: the first.
        rank_offset: The first rank of the layout.
        local_world_size: Ranks in the layout; None: all from `rank_offset` on. Others are in none
            of its groups.

    Raises:
        ParallelStateError: If `torch.distributed` is not initialised or this already is; if the
            hierarchical sizes do not give `context_parallel_size`; if pipelines differ between
            dense and expert layers.
        LayoutError: If the ranks cannot be laid out like this.
        GroupMismatchError: If ranks call it differently (C9). Functions that choose ranks are
            compared by what they choose.
    """
    del distributed_timeout_minutes
    rank, held = _held("initialize_model_parallel")
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
    agree(
        "initialize_model_parallel",
        {
            **shape,
            "hierarchical_context_parallel_sizes": None if sizes is None else [*sizes],
            "order": order.lower(),
            "rank_offset": rank_offset,
            "local_world_size": world,
        },
    )

    # Nothing has been made so far; what fails from here on takes the groups along.
    with ExitStack() as undo:
        undo.enter_context(dist.group_scope())
        made = {plan.name: _split(plan) for plan in plans}
        hierarchy = [_split(plan) for plan in levels]
        undo.pop_all()
    held.groups = {name: group for name, group in made.items() if group is not None}
    held.hierarchy = [group for group in hierarchy if group is not None]
    if virtual is not None:
        held.numbers |= {_VIRTUAL_RANK: 0, _VIRTUAL_SIZE: virtual}


def _split(plan: Plan) -> ProcessGroup | None:
    # One call for all groups of a kind: `new_group` would need one each, on every rank.
    return dist.split_group(None, plan.parts, group_desc=plan.description)


def destroy_model_parallel() -> None:
    """Destroys the groups that `initialize_model_parallel` made, and forgets what was set.

    Does nothing if there are none. Waits, on the host, for collectives on them.

    Raises:
        KernbenchError: If asynchronous operations have not been waited for (C13); it may be called
            again after that.
    """
    _, held = _held("destroy_model_parallel")
    live = {group.name for group in dist.live_groups()}
    for group in [*(held.groups or {}).values(), *held.hierarchy]:
        # The user may have destroyed it, perhaps together with all others.
        if group.name in live:
            dist.destroy_process_group(group)
    _HELD.forget()


def model_parallel_is_initialized() -> bool:
    """Returns whether the calling rank has groups; never raises."""
    try:
        _, held = _held("model_parallel_is_initialized")
    except KernbenchError:
        return False
    return bool(held.groups)


is_initialized = model_parallel_is_initialized


# Accessors that differ only in what they look at are made from their names.

_F = TypeVar("_F", bound=Callable[..., Any])


def _named(name: str, doc: str, function: _F) -> _F:
    """Gives a function that was made here the name under which the module has it."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


class _GetGroup(Protocol):
    """The type of `get_..._group`; the group is there unless it is asked for without a check."""

    @overload
    def __call__(self, check_initialized: Literal[True] = True) -> ProcessGroup: ...
    @overload
    def __call__(self, check_initialized: bool) -> ProcessGroup | None: ...


def _group_getter(kind: str) -> _GetGroup:
    words = WORDS[kind]
    name = f"get_{words.replace(' ', '_')}_group"

    def get(check_initialized: bool = True) -> ProcessGroup | None:
        if check_initialized:
            return _group(name, kind)
        return (_held(name)[1].groups or {}).get(kind)

    doc = f"""Returns the {words} group of the calling rank.

    Args:
        check_initialized: Whether to refuse, rather than to return None, if there is none.

    Raises:
        ParallelStateError: If there is none.
    """
    return cast(_GetGroup, _named(name, doc, get))


get_tensor_model_parallel_group = _group_getter("tp")
get_pipeline_model_parallel_group = _group_getter("pp")
get_context_parallel_group = _group_getter("cp")
get_model_parallel_group = _group_getter("mp")
get_tensor_and_context_parallel_group = _group_getter("tp_cp")
get_embedding_group = _group_getter("embd")
get_position_embedding_group = _group_getter("pos_embd")
get_expert_model_parallel_group = _group_getter("ep")
get_expert_tensor_parallel_group = _group_getter("expt_tp")
get_expert_data_parallel_group = _group_getter("expt_dp")
get_expert_tensor_and_model_parallel_group = _group_getter("tp_ep")
get_expert_tensor_model_pipeline_parallel_group = _group_getter("tp_ep_pp")
get_intra_distributed_optimizer_instance_group = _group_getter("intra_dist_opt")


def get_hierarchical_context_parallel_groups(
    check_initialized: bool = True,
) -> list[ProcessGroup] | None:
    """Returns the calling rank's group at each level of context parallelism, the nearest first.

    Args:
        check_initialized: Whether to refuse, rather than to return None, if there are none.

    Raises:
        ParallelStateError: If there are none.
    """
    rank, held = _held("get_hierarchical_context_parallel_groups")
    if check_initialized and not held.hierarchy:
        raise _missing(rank, held, HIERARCHY.words)
    return list(held.hierarchy) or None


def get_data_parallel_group(with_context_parallel: bool = False) -> ProcessGroup:
    """Returns the ranks that hold the same parameters and see other data.

    Args:
        with_context_parallel: Whether other parts of the same sequences count as other data.

    Raises:
        ParallelStateError: If there is none.
    """
    return _group("get_data_parallel_group", _data(with_context_parallel))


def get_tensor_and_data_parallel_group(with_context_parallel: bool = False) -> ProcessGroup:
    """Returns the ranks that differ in their shard of layers and in their data.

    Args:
        with_context_parallel: Whether other parts of the same sequences count as other data.

    Raises:
        ParallelStateError: If there is none.
    """
    return _group("get_tensor_and_data_parallel_group", f"tp_{_data(with_context_parallel)}")


def _data(with_context_parallel: bool) -> str:
    return "dp_cp" if with_context_parallel else "dp"


def _place(group: ProcessGroup) -> int:
    return group.rank()


def _size(group: ProcessGroup) -> int:
    return group.size()


_MEASURES: Final[dict[str, tuple[str, Callable[[ProcessGroup], int]]]] = {
    "rank": ("place of the calling rank in", _place),
    "world_size": ("number of ranks in", _size),
}
"""What is asked of a group, in the names of functions."""


def _settable(kind: str, measure: str) -> Callable[[], int]:
    """Returns an accessor whose answer `set_...` may replace."""
    words, measured = _MEASURES[measure]
    name = f"get_{WORDS[kind].replace(' ', '_')}_{measure}"

    def get() -> int:
        found = _held(name)[1].numbers.get(name)
        return measured(_group(name, kind)) if found is None else found

    doc = f"""Returns the {words} its {WORDS[kind]} group, or what `s{name[1:]}` has set.

    Raises:
        ParallelStateError: If there is neither.
    """
    return _named(name, doc, get)


def _plain(kind: str, measure: str) -> Callable[[], int]:
    """Returns an accessor that may be asked before `torch.distributed` is initialised."""
    words, measured = _MEASURES[measure]
    name = f"get_{WORDS[kind].replace(' ', '_')}_{measure}"

    def get() -> int:
        find_worker(name)
        return measured(_group(name, kind)) if dist.is_initialized() else 0

    doc = f"""Returns the {words} its {WORDS[kind]} group; 0 without `torch.distributed`.

    Raises:
        ParallelStateError: If there is no such group.
    """
    return _named(name, doc, get)


def _setter(of: str) -> Callable[[int | None], None]:
    """Returns the function that replaces the answer of an accessor."""
    name = f"s{of[1:]}"

    def set_(value: int | None) -> None:
        numbers = _held(name)[1].numbers
        if value is None:
            numbers.pop(of, None)
        else:
            numbers[of] = value

    return _named(name, f"Sets what `{of}` returns on the calling rank; None undoes it.", set_)


get_tensor_model_parallel_rank = _settable("tp", "rank")
get_tensor_model_parallel_world_size = _settable("tp", "world_size")
get_pipeline_model_parallel_rank = _settable("pp", "rank")
get_pipeline_model_parallel_world_size = _settable("pp", "world_size")
get_context_parallel_rank = _plain("cp", "rank")
get_context_parallel_world_size = _plain("cp", "world_size")
get_expert_model_parallel_rank = _plain("ep", "rank")
get_expert_model_parallel_world_size = _plain("ep", "world_size")
get_expert_tensor_parallel_rank = _plain("expt_tp", "rank")
get_expert_tensor_parallel_world_size = _plain("expt_tp", "world_size")

_VIRTUAL_RANK: Final = "get_virtual_pipeline_model_parallel_rank"
_VIRTUAL_SIZE: Final = "get_virtual_pipeline_model_parallel_world_size"

set_tensor_model_parallel_rank = _setter("get_tensor_model_parallel_rank")
set_tensor_model_parallel_world_size = _setter("get_tensor_model_parallel_world_size")
set_pipeline_model_parallel_rank = _setter("get_pipeline_model_parallel_rank")
set_pipeline_model_parallel_world_size = _setter("get_pipeline_model_parallel_world_size")
set_virtual_pipeline_model_parallel_rank = _setter(_VIRTUAL_RANK)
set_virtual_pipeline_model_parallel_world_size = _setter(_VIRTUAL_SIZE)


def get_virtual_pipeline_model_parallel_rank() -> int | None:
    """Returns which piece of its stage the calling rank is at; None without virtual stages."""
    return _held(_VIRTUAL_RANK)[1].numbers.get(_VIRTUAL_RANK)


def get_virtual_pipeline_model_parallel_world_size() -> int | None:
    """Returns how many pieces of the model a stage holds; None without virtual stages."""
    return _held(_VIRTUAL_SIZE)[1].numbers.get(_VIRTUAL_SIZE)


def get_data_parallel_rank(with_context_parallel: bool = False) -> int:
    """Returns the place of the calling rank in `get_data_parallel_group`.

    Args:
        with_context_parallel: See there.

    Returns:
        The place; 0 without `torch.distributed`.

    Raises:
        ParallelStateError: If there is no such group.
    """
    find_worker("get_data_parallel_rank")
    return get_data_parallel_group(with_context_parallel).rank() if dist.is_initialized() else 0


def get_data_parallel_world_size(with_context_parallel: bool = False) -> int:
    """Returns the number of ranks in `get_data_parallel_group`.

    Args:
        with_context_parallel: See there.

    Returns:
        The number; 0 without `torch.distributed`.

    Raises:
        ParallelStateError: If there is no such group.
    """
    find_worker("get_data_parallel_world_size")
    return get_data_parallel_group(with_context_parallel).size() if dist.is_initialized() else 0


def get_context_parallel_global_ranks() -> list[int]:
    """Returns the global ranks of the calling rank's context parallel group.

    Raises:
        ParallelStateError: If there is none.
    """
    return list(_group("get_context_parallel_global_ranks", "cp").ranks)


def get_tensor_model_parallel_src_rank() -> int:
    """Returns the first global rank of the calling rank's tensor model parallel group.

    Raises:
        ParallelStateError: If there is none.
    """
    return _group("get_tensor_model_parallel_src_rank", "tp").ranks[0]


def get_model_parallel_src_rank() -> int:
    """Returns the first global rank of the calling rank's model parallel group.

    Raises:
        ParallelStateError: If there is none.
    """
    return _group("get_model_parallel_src_rank", "mp").ranks[0]


def get_data_parallel_src_rank(with_context_parallel: bool = False) -> int:
    """Returns the first global rank of `get_data_parallel_group`.

    Args:
        with_context_parallel: See there.

    Raises:
        ParallelStateError: If there is none.
    """
    return _group("get_data_parallel_src_rank", _data(with_context_parallel)).ranks[0]


# The pipeline


def get_pipeline_model_parallel_first_rank() -> int:
    """Returns the global rank of the first stage of the calling rank's pipeline.

    Raises:
        ParallelStateError: If there is none.
    """
    return _group("get_pipeline_model_parallel_first_rank", "pp").ranks[0]


def get_pipeline_model_parallel_last_rank() -> int:
    """Returns the global rank of the last stage of the calling rank's pipeline.

    Raises:
        ParallelStateError: If there is none.
    """
    return _group("get_pipeline_model_parallel_last_rank", "pp").ranks[-1]


def get_pipeline_model_parallel_next_rank() -> int:
    """Returns the global rank of the next stage; after the last comes the first.

    Raises:
        ParallelStateError: If there is no pipeline.
    """
    return _stage_beside("get_pipeline_model_parallel_next_rank", 1)


def get_pipeline_model_parallel_prev_rank() -> int:
    """Returns the global rank of the previous stage; before the first comes the last.

    Raises:
        ParallelStateError: If there is no pipeline.
    """
    return _stage_beside("get_pipeline_model_parallel_prev_rank", -1)


def _stage_beside(name: str, step: int) -> int:
    ranks = _group(name, "pp").ranks
    return ranks[(get_pipeline_model_parallel_rank() + step) % len(ranks)]


def is_pipeline_first_stage(ignore_virtual: bool = True, vp_stage: int | None = None) -> bool:
    """Returns whether the calling rank has the beginning of the model.

    Args:
        ignore_virtual: Whether to ask for the rank, whichever piece it is at.
        vp_stage: Which piece; needed with virtual stages unless they are ignored.

    Raises:
        ParallelStateError: If there is no pipeline, or `vp_stage` is left out.
    """
    find_worker("is_pipeline_first_stage")
    at_piece = ignore_virtual or _is_piece(vp_stage, last=False)
    return at_piece and get_pipeline_model_parallel_rank() == 0


def is_pipeline_last_stage(ignore_virtual: bool = True, vp_stage: int | None = None) -> bool:
    """Returns whether the calling rank has the end of the model.

    Args:
        ignore_virtual: Whether to ask for the rank, whichever piece it is at.
        vp_stage: Which piece; needed with virtual stages unless they are ignored.

    Raises:
        ParallelStateError: If there is no pipeline, or `vp_stage` is left out.
    """
    find_worker("is_pipeline_last_stage")
    at_piece = ignore_virtual or _is_piece(vp_stage, last=True)
    return at_piece and (
        get_pipeline_model_parallel_rank() == get_pipeline_model_parallel_world_size() - 1
    )


def _is_piece(vp_stage: int | None, last: bool) -> bool:
    pieces = get_virtual_pipeline_model_parallel_world_size()
    if pieces is None:
        return True
    if vp_stage is None:
        raise ParallelStateError(
            "vp_stage must be passed with virtual pipeline stages", [site_fact(call_site())]
        )
    return vp_stage == (pieces - 1 if last else 0)


def is_rank_in_embedding_group() -> bool:
    """Returns whether the calling rank holds the word embedding; False before it is known."""
    return "embd" in (_held("is_rank_in_embedding_group")[1].groups or {})


def is_rank_in_position_embedding_group() -> bool:
    """Returns whether the calling rank holds the position embedding; False before it is known."""
    return "pos_embd" in (_held("is_rank_in_position_embedding_group")[1].groups or {})
