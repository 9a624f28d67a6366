"""What a rank knows of its groups, and functions that return it.

Accessors that differ only in what they look at are made from their names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, Literal, Protocol, TypeVar, cast, overload

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.extend import RankLocal, current_rank
from kernbench.parallel.layout import WORDS, ParallelStateError
from kernbench.torch.distributed import ProcessGroup


class OutsideWorkerError(KernbenchError, RuntimeError):
    """Parallel state was asked for where no rank is running."""


class GlobalMemoryBuffer:
    """Megatron-Core's cache of tensors: one for each name and type, as large as any that was asked.

    Who asks for a name sees that the one before is done with it.
    """

    def __init__(self) -> None:
        self.buffer: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def get_tensor(
        self, tensor_shape: Sequence[int], dtype: torch.dtype, name: str
    ) -> torch.Tensor:
        """Returns a tensor in the memory of a name, on the calling rank's device.

        Args:
            name: Of what uses the memory.
        """
        count = prod(tensor_shape)
        held = self.buffer.get((name, dtype))
        if held is None or held.numel() < count:
            held = self.buffer[name, dtype] = torch.empty(count, dtype=dtype, device="cuda")
        return held[:count].view(*tensor_shape)


@dataclass(slots=True)
class Held:
    """Parallel state of one rank.

    Attributes:
        groups: By the name of a kind; None before `initialize_model_parallel`. Empty for a rank
            outside of the layout.
        hierarchy: A group for each level of context parallelism, if levels were asked for.
        numbers: By accessor, what takes the place of its own answer.
        memory: Tensors that are used again and again; None before `initialize_model_parallel`.
    """

    groups: dict[str, ProcessGroup] | None = None
    hierarchy: list[ProcessGroup] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    memory: "GlobalMemoryBuffer | None" = None


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


HELD: Final = RankLocal("parallel state", Held)


def held_of(name: str) -> tuple[int, Held]:
    """Returns the calling rank and what it knows of its groups, for the named function."""
    return find_worker(name), HELD.get()


def no_group(rank: int, held: Held, words: str) -> ParallelStateError:
    """Returns the error of a group that is not there.

    Args:
        rank: The calling rank.
        held: What it knows.
        words: What the group is called.
    """
    called = held.groups is not None
    return ParallelStateError(
        f"{words} group is not initialized",
        [
            site_fact(call_site()),
            *([f"rank {rank} is in no {words} group of this layout"] if called else []),
        ],
        hint="" if called else "call initialize_model_parallel() in every worker first",
    )


def group_for(name: str, kind: str) -> ProcessGroup:
    """Returns a group of the calling rank.

    Args:
        name: Of the accessor that asks, for the report.
        kind: Which group.

    Raises:
        ParallelStateError: If there is none.
    """
    rank, held = held_of(name)
    group = (held.groups or {}).get(kind)
    if group is None:
        raise no_group(rank, held, WORDS[kind])
    return group


# Accessors by name

_F = TypeVar("_F", bound=Callable[..., Any])


def named(name: str, doc: str, function: _F) -> _F:
    """Gives a function that was made here the name under which a module has it, and returns it.

    Args:
        doc: Its docstring.
    """
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


class _GetGroup(Protocol):
    """The type of `get_..._group`; the group is there unless it is asked for without a check."""

    @overload
    def __call__(self, check_initialized: Literal[True] = True) -> ProcessGroup: ...
    @overload
    def __call__(self, check_initialized: bool) -> ProcessGroup | None: ...


def group_getter(kind: str) -> _GetGroup:
    """Returns the accessor of the group of a kind."""
    words = WORDS[kind]
    name = f"get_{words.replace(' ', '_')}_group"

    def get(check_initialized: bool = True) -> ProcessGroup | None:
        if check_initialized:
            return group_for(name, kind)
        return (held_of(name)[1].groups or {}).get(kind)

    doc = f"""Returns the {words} group of the calling rank.

    Args:
        check_initialized: Whether to refuse, rather than to return None, if there is none.

    Raises:
        ParallelStateError: If there is none.
    """
    return cast(_GetGroup, named(name, doc, get))


def _place(group: ProcessGroup) -> int:
    return group.rank()


def _size(group: ProcessGroup) -> int:
    return group.size()


_MEASURES: Final[dict[str, tuple[str, Callable[[ProcessGroup], int]]]] = {
    "rank": ("place of the calling rank in", _place),
    "world_size": ("number of ranks in", _size),
}
"""What is asked of a group, in the names of functions."""


def settable(kind: str, measure: str) -> Callable[[], int]:
    """Returns an accessor whose answer `set_...` may replace."""
    words, measured = _MEASURES[measure]
    name = f"get_{WORDS[kind].replace(' ', '_')}_{measure}"

    def get() -> int:
        found = held_of(name)[1].numbers.get(name)
        return measured(group_for(name, kind)) if found is None else found

    doc = f"""Returns the {words} its {WORDS[kind]} group, or what `s{name[1:]}` has set.

    Raises:
        ParallelStateError: If there is neither.
    """
    return named(name, doc, get)


def plain(kind: str, measure: str) -> Callable[[], int]:
    """Returns an accessor that may be asked before `torch.distributed` is initialised."""
    words, measured = _MEASURES[measure]
    name = f"get_{WORDS[kind].replace(' ', '_')}_{measure}"

    def get() -> int:
        found = held_of(name)[1].numbers.get(name)
        if found is not None:
            return found
        return measured(group_for(name, kind)) if dist.is_initialized() else 0

    doc = f"""Returns the {words} its {WORDS[kind]} group; 0 without `torch.distributed`.

    Raises:
        ParallelStateError: If there is no such group.
    """
    return named(name, doc, get)


def setter(of: str) -> Callable[[int | None], None]:
    """Returns the function that replaces the answer of an accessor."""
    name = f"s{of[1:]}"

    def put(value: int | None) -> None:
        numbers = held_of(name)[1].numbers
        if value is None:
            numbers.pop(of, None)
        else:
            numbers[of] = value

    # Megatron-Core's words, which users may pass by name.
    def set_rank(rank: int | None) -> None:
        put(rank)

    def set_size(world_size: int | None) -> None:
        put(world_size)

    doc = f"Sets what `{of}` returns on the calling rank; None undoes it."
    return named(name, doc, set_rank if of.endswith("_rank") else set_size)
