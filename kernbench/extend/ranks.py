"""Which rank is running, and variables of which every rank has a value of its own."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from kernbench.process import process
from kernbench.process.process import MAIN, NoContextError, current_process

T = TypeVar("T")


def current_rank() -> int | None:
    """Returns the global rank of the worker that is running; None outside of workers.

    Unlike `torch.distributed.get_rank` it may be asked before `init_process_group`, on main and
    where there is no machine.

    Raises:
        KernbenchError: From inside a kernel of `kernbench.tl`, which has no rank (C20).
    """
    try:
        rank = current_process().rank
    except NoContextError:
        return None
    return None if rank == MAIN else rank


class RankLocal(Generic[T]):
    """A variable of which each rank, and main, has a value of its own.

    Ranks share one interpreter, so a global variable is one for all of them. The value of a rank
    ends with its spawn; another spawn begins with first values again.

    ```python
    STEPS = extend.RankLocal("steps", int)


    def worker(rank):
        STEPS.set(STEPS.get() + rank)
        assert STEPS.get() == rank
    ```

    Args:
        name: What `repr` calls it.
        make: Makes the first value of a rank, such as `dict`.
    """

    __slots__ = ("_local",)

    def __init__(self, name: str, make: Callable[[], T]) -> None:
        self._local: Final = process.RankLocal(name, lambda _: make())

    def __repr__(self) -> str:
        return repr(self._local)

    def get(self) -> T:
        """Returns the calling rank's value, which is made if it has none.

        Raises:
            NoContextError: Outside of any context.
        """
        return self._local.of(current_process())

    def set(self, value: T) -> None:
        """Changes the calling rank's value.

        Raises:
            NoContextError: Outside of any context.
        """
        self._local.set(current_process(), value)

    def forget(self) -> None:
        """Drops the calling rank's value; `get` then makes a first one again.

        Raises:
            NoContextError: Outside of any context.
        """
        self._local.forget(current_process())
