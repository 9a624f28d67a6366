"""Other groups for a model that exists, such as another context-parallel size to evaluate.

Modules hold the groups that they were built with, so a new layout must reach each of them:
Megatron-Bridge's `install_pg_collection` and `eval_cp_context`, which change all or nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import extend
from kernbench.errors import OperandError, OptionError, call_site, site_fact
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.parallel.held import find_worker
from kernbench.parallel.layout import whole_number
from kernbench.parallel.members import Group, refuse_option

__all__ = ["context_parallel_stream", "eval_cp_context", "install_pg_collection"]

Model: TypeAlias = torch.nn.Module | Sequence[torch.nn.Module]
"""A module, or the pieces of a pipeline that a rank holds."""

_GROUPS: Final = {
    "cp_group": "cp",
    "tp_cp_group": "tp_cp",
    "tp_dp_cp_group": "tp_dp_cp",
    "dp_cp_group": "dp_cp",
}
"""Attributes of modules that hold a group, and which of the collection's it is."""

_STAY: Final = ("tp", "pp", "ep")
"""Groups among which parameters are dealt out, so that they cannot change."""

_TABLES: Final = {"cos_cached": None, "sin_cached": None, "max_seq_len_cached": 0}
"""Attributes in which rotary modules of Megatron-Core keep tables, and what they are without."""

_HEADS: Final = ("num_attention_heads", "num_gqa_groups")
"""Attributes of attention that say how many heads there are, on all ranks of tensor parallelism."""

_BUSY: Final[dict[int, tuple[Any, int]]] = {}
"""By `id`, configurations that `eval_cp_context` has changed, and the rank that is inside."""

_STREAM: Final = extend.RankLocal[list[torch.cuda.Stream]]("context parallel stream", list)


def context_parallel_stream() -> torch.cuda.Stream:
    """Returns the stream on which all attention of a rank exchanges keys and values.

    It is made at the first call, on the current device.

    Raises:
        NoContextError: Outside of any context.
    """
    made = _STREAM.get()
    if not made:
        made.append(torch.cuda.Stream())
    return made[0]


class _Plan(NamedTuple):
    """What changes in a model, all of it checked.

    Attributes:
        attributes: Object, name and new value.
        attention: Modules, and the arguments of `set_context_parallel_group`.
        hooks: Hooks to call with the new size, and the size that each knows.
        rotary: What forgets the tables of a rotary module.
        size: The new size.
    """

    attributes: list[tuple[Any, str, Any]]
    attention: list[tuple[Any, tuple[Any, ...]]]
    hooks: list[tuple[Callable[[int], object], int]]
    rotary: list[Callable[[], None]]
    size: int

    def apply(self, undo: ExitStack) -> None:
        """Makes the changes; what was changed is changed back by `undo`, in the other order."""
        told: set[int] = set()
        # Tables are dropped last, and modules told once their groups are there: both ways.
        for forget in self.rotary:
            undo.callback(forget)
        for place, (hook, known) in reversed([*enumerate(self.hooks)]):
            undo.callback(_tell, told, place, hook, known)
        for owner, name, value in self.attributes:
            _put(owner, name, value, undo)
        for module, arguments in self.attention:
            _attend(module, arguments, undo)
        for place, (hook, _) in enumerate(self.hooks):
            told.add(place)
            hook(self.size)
        for forget in self.rotary:
            forget()


def _tell(told: set[int], place: int, hook: Callable[[int], object], known: int) -> None:
    """Restores the size that a module knew, if it was given another."""
    if place in told:
        hook(known)


def _put(owner: Any, name: str, value: Any, undo: ExitStack) -> None:
    before, inherited = getattr(owner, name), name not in vars(owner)

    def back() -> None:
        if inherited and name in vars(owner):
            delattr(owner, name)  # it was the class's
        else:
            setattr(owner, name, before)

    undo.callback(back)
    setattr(owner, name, value)


def _attend(module: Any, arguments: tuple[Any, ...], undo: ExitStack) -> None:
    """Gives attention another group; its attributes change back to the same objects."""
    before = dict(vars(module))
    changed: set[str] = set()

    def back() -> None:
        for name in changed:
            if name in before:
                setattr(module, name, before[name])
            elif name in vars(module):
                delattr(module, name)

    undo.callback(back)
    names = ("cp_group", "cp_global_ranks", "cp_stream", "cp_comm_type")
    old = [getattr(module, name, None) for name in names]
    if old[0] is not None:
        # So that what it has derived from its group follows, wherever that is.
        undo.callback(module.set_context_parallel_group, *old)
    try:
        module.set_context_parallel_group(*arguments)
        if hasattr(module, "cp_group") and module.cp_group is old[0] is not arguments[0]:
            module.cp_group = arguments[0]
    finally:
        after = vars(module)
        missing = object()
        changed |= {
            name
            for name in {*before, *after}
            if before.get(name, missing) is not after.get(name, missing)
        }


def install_pg_collection(model: Model, target: ProcessGroupCollection) -> None:
    """Gives a model the groups of another layout; every rank of the world calls it. Does not wait.

    What changes, where a module has it: `pg_collection`; `cp_group`, `tp_cp_group`,
    `tp_dp_cp_group` and `dp_cp_group`; the group of attention, which has `cp_comm_type` and
    `set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)`; and each
    `config.context_parallel_size`. Rotary modules forget all their tables. Last, modules that have
    `on_context_parallel_change(cp_size)` are told. Parameters, and the groups among which they are
    dealt out, stay.

    All is checked before anything is changed, and if a change fails those before it are undone.

    Args:
        model: A module, or the pieces of a pipeline that the rank holds.
        target: The groups. Attention of type `a2a+p2p` takes `hcp`, two levels.

    Raises:
        OptionError: If a group that a module needs is None, or does not fit the others; if the
            parameters would have to move; if heads or the sequence cannot be cut like this.
        OperandError: If an argument is of another kind.
        GroupError: If the calling rank may not use one of the groups (C8, C18).
        GroupMismatchError: If the sizes differ from another rank's (C9).
    """
    plan = _plan("install_pg_collection", model, target)
    _agree("install_pg_collection", target)
    with ExitStack() as undo:
        plan.apply(undo)
        undo.pop_all()


@contextmanager
def eval_cp_context(
    model: Model, eval_pgs: ProcessGroupCollection, train_pgs: ProcessGroupCollection
) -> Iterator[None]:
    """Gives a model the groups of another layout inside of a `with` block; every rank enters it.

    However the block ends, all that `install_pg_collection` changed is what it was before, so one
    block may be inside of another. What the block raises leaves it unchanged.

    ```python
    with eval_cp_context(model, eval_pgs, train_pgs):
        evaluate(model, eval_pgs)
    ```

    Args:
        model: A module, or the pieces of a pipeline that the rank holds.
        eval_pgs: The groups inside.
        train_pgs: The groups outside, which must share parameters and cut sequences like those
            inside.

    Raises:
        OptionError: As `install_pg_collection` does, also if the two layouts do not fit each other,
            or if another rank is inside with the same configuration object.
        OperandError: If an argument is of another kind.
        GroupError: If the calling rank may not use one of the groups (C8, C18).
        GroupMismatchError: If the sizes differ from another rank's (C9).
    """
    name = "eval_cp_context"
    _check_kind(name, "train_pgs", train_pgs)
    plan = _plan(name, model, eval_pgs)
    outside = _live(name, train_pgs, "cp", "the model").size()
    _check_same(name, "train_pgs", train_pgs, eval_pgs)
    for config in _configs(_chunks(name, model)):
        _check_length(name, config, max(plan.size, outside))
    rank = find_worker(name)
    configs = [owner for owner, attribute, _ in plan.attributes if attribute == _CONFIG]
    for config in configs:
        inside = _BUSY.get(id(config))
        if inside is not None and inside[1] != rank:
            raise OptionError(
                f"rank {rank} enters {name} with the configuration of rank {inside[1]}, which is "
                "inside",
                [site_fact(call_site()), f"both would change {_CONFIG} of one object"],
                hint="make the configuration inside of the worker: ranks share one interpreter",
            )
    _agree(name, eval_pgs, train_cp=outside)
    with ExitStack() as undo:
        for config in configs:
            if id(config) not in _BUSY:
                _BUSY[id(config)] = config, rank
                undo.callback(_BUSY.pop, id(config))
        plan.apply(undo)
        yield


_CONFIG: Final = "context_parallel_size"


# The first phase: what changes, and whether it can


def _plan(name: str, model: Model, target: ProcessGroupCollection) -> _Plan:
    """Collects what changes, and refuses what cannot be.

    Args:
        name: Of the function that asks, for reports.
        model: A module, or several.
        target: The new groups.
    """
    chunks = _chunks(name, model)
    _check_kind(name, "target" if name == "install_pg_collection" else "eval_pgs", target)
    cp = _live(name, target, "cp", "the model")
    size = cp.size()
    plan = _Plan([], [], [], [], size)
    for config in _configs(chunks):
        _check_length(name, config, size)
        plan.attributes.append((config, _CONFIG, size))
    for module in _modules(chunks):
        kind = type(module).__name__
        held = getattr(module, "pg_collection", None)
        if hasattr(module, "pg_collection"):
            if isinstance(held, ProcessGroupCollection):
                _check_same(name, f"pg_collection of {kind}", held, target)
            plan.attributes.append((module, "pg_collection", target))
        attends = _attends(module)
        new: Any
        for attribute, of in _GROUPS.items():
            if not hasattr(module, attribute) or (attends and attribute == "cp_group"):
                continue
            if of != "cp" and getattr(target, of) is getattr(module, attribute) is None:
                continue
            new = _live(name, target, of, kind)
            if new.size() % size:
                raise refuse_option(
                    f"{name}: {of} has {new.size()} ranks and cp has {size}",
                    f"{new.size()} is not divisible by {size}",
                )
            plan.attributes.append((module, attribute, new))
        if attends:
            new = _levels(name, target, kind) if module.cp_comm_type == "a2a+p2p" else cp
            _check_heads(name, module, new)
            stream = getattr(module, "cp_stream", None) or context_parallel_stream()
            ranks = dist.get_process_group_ranks(cp)
            plan.attention.append((module, (new, ranks, stream, module.cp_comm_type)))
        hook = getattr(module, "on_context_parallel_change", None)
        if callable(hook):
            plan.hooks.append((hook, _known_size(module, chunks)))
        forget = _forgetting(module)
        if forget is not None:
            plan.rotary.append(forget)
    return plan


def _chunks(name: str, model: Model) -> list[torch.nn.Module]:
    chunks = [model] if isinstance(model, torch.nn.Module) else model
    if not isinstance(chunks, Sequence) or not all(
        isinstance(chunk, torch.nn.Module) for chunk in chunks
    ):
        raise OperandError(
            f"{name}(model=...): expected a module or a list of modules",
            [site_fact(call_site()), f"got {type(model).__name__}"],
        )
    return [*chunks]


def _modules(chunks: Sequence[torch.nn.Module]) -> list[Any]:
    """Returns all modules, each once."""
    return [*{id(module): module for chunk in chunks for module in chunk.modules()}.values()]


def _configs(chunks: Sequence[torch.nn.Module]) -> list[Any]:
    """Returns the configurations that say how many ranks share a sequence, each once."""
    found = [getattr(module, "config", None) for module in _modules(chunks)]
    return [*{id(config): config for config in found if hasattr(config, _CONFIG)}.values()]


def _attends(module: Any) -> bool:
    # Modules that only pass it on to their children have no type of communication.
    return hasattr(module, "cp_comm_type") and callable(
        getattr(module, "set_context_parallel_group", None)
    )


def _forgetting(module: Any) -> Callable[[], None] | None:
    """Returns what drops all that a rotary module keeps; None if it is none."""
    calls = [
        call
        for call in (
            getattr(module, "drop_caches", None),
            getattr(getattr(module, "forward", None), "cache_clear", None),
        )
        if callable(call)
    ]
    tables = [name for name in _TABLES if hasattr(module, name)]
    if not calls and not tables:
        return None

    def forget() -> None:
        for call in calls:
            call()
        for name in tables:
            setattr(module, name, _TABLES[name])

    return forget


def _check_kind(name: str, argument: str, value: object) -> None:
    if not isinstance(value, ProcessGroupCollection):
        raise OperandError(
            f"{name}({argument}=...): expected a ProcessGroupCollection",
            [site_fact(call_site()), f"got {type(value).__name__}"],
        )


def _live(name: str, groups: ProcessGroupCollection, field: str, whose: str) -> Group:
    """Returns a group of a collection that the calling rank can use."""
    group = getattr(groups, field)
    if group is None:
        raise refuse_option(
            f"{name}: {whose} needs the group {field!r}, which is None",
            f"the collection is {groups!r}",
            hint=f"make the group, and give it as ProcessGroupCollection({field}=...)",
        )
    dist.get_process_group_ranks(group)  # refuses groups that are destroyed, or of other ranks
    found: Group = group
    return found


def _levels(name: str, target: ProcessGroupCollection, kind: str) -> list[Group]:
    """Returns the two groups of `a2a+p2p`: who exchanges heads, and who is on a ring."""
    if target.hcp is None:
        raise refuse_option(
            f"{name}: {kind} communicates by 'a2a+p2p' and needs the groups 'hcp', which is None",
            f"the collection is {target!r}",
            hint="give two levels: ProcessGroupCollection(hcp=[a2a_group, p2p_group], ...)",
        )
    levels = [*target.hcp]
    for level in levels:
        dist.get_process_group_ranks(level)
    sizes = [level.size() for level in levels]
    if len(levels) != 2 or prod(sizes) != target.cp.size():
        raise refuse_option(
            f"{name}: hcp has groups of {sizes} ranks and cp has {target.cp.size()}",
            "'a2a+p2p' takes two groups, whose sizes give that of cp as their product",
        )
    return levels


def _check_heads(name: str, module: Any, group: Group | list[Group]) -> None:
    """Refuses heads that cannot be dealt out to the ranks that exchange them."""
    if "a2a" not in str(module.cp_comm_type):
        return
    ranks = (group[0] if isinstance(group, list) else group).size()
    tp = getattr(module, "tp_size", None) or 1
    for attribute in _HEADS:
        heads: Any = getattr(module, attribute, None)
        if whole_number(heads) and heads // tp % ranks:
            raise refuse_option(
                f"{name}: {type(module).__name__} has {attribute}={heads} and communicates by "
                f"{module.cp_comm_type!r} among {ranks} ranks",
                f"{heads // tp} heads on a rank are not divisible by {ranks}",
            )


def _check_length(name: str, config: Any, cp: int) -> None:
    """Refuses a sequence that cannot be cut into two chunks for each rank."""
    length: Any = getattr(config, "seq_length", None)
    if whole_number(length) and length % (2 * cp):
        raise refuse_option(
            f"{name}: seq_length={length} cannot be cut among {cp} ranks",
            f"{length} is not divisible by 2 * cp = {2 * cp}",
        )


def _check_same(
    name: str, whose: str, held: ProcessGroupCollection, target: ProcessGroupCollection
) -> None:
    """Refuses a layout that deals out parameters to other ranks."""
    for field in _STAY:
        before, after = getattr(held, field), getattr(target, field)
        if before is not None and after is not None and before.ranks != after.ranks:
            raise refuse_option(
                f"{name}: {field} would change from ranks {list(before.ranks)} to "
                f"{list(after.ranks)}",
                f"the former are those of {whose}; parameters stay where they are",
            )


def _known_size(module: Any, chunks: Sequence[torch.nn.Module]) -> int:
    """Returns how many ranks share a sequence now, as far as a module can know."""
    of_collection = getattr(getattr(module, "pg_collection", None), "cp", None)
    for held in (getattr(module, "cp_group", None), of_collection):
        groups: list[Any] = held if isinstance(held, list) else [held]
        if all(isinstance(group, dist.ProcessGroup) for group in groups):
            return prod(len(group.ranks) for group in groups)
    for config in _configs(chunks):
        if whole_number(getattr(config, _CONFIG)):
            return int(getattr(config, _CONFIG))
    return 1


def _agree(name: str, groups: ProcessGroupCollection, **more: int) -> None:
    """Compares the sizes of a layout with those of all ranks."""
    sizes: Mapping[str, object] = {
        field: None if getattr(groups, field) is None else getattr(groups, field).size()
        for field in _GROUPS.values()
    }
    hcp = None if groups.hcp is None else [level.size() for level in groups.hcp]
    extend.agree(name, {**sizes, "hcp": hcp, **more})
