"""`torch.profiler`: names for parts of a program, which traces and breakdowns show."""

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar, cast

from kernbench.process.process import current_process
from kernbench.runtime_api import ranges

__all__ = ["record_function"]

F = TypeVar("F", bound=Callable[..., Any])


class record_function:  # noqa: N801 - PyTorch's name
    """`torch.profiler.record_function`: names a `with` block, or the function it decorates.

    What is issued in it belongs to it, and so does what the backward pass issues for that. Takes no
    simulated time and waits for nothing.

    Args:
        name: What traces and breakdowns call it; ranges of one name are added up.
        args: More for traces.
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self._name = name
        self._args = args

    def __enter__(self) -> "record_function":
        ranges.enter(current_process(), self._name, self, self._args)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ranges.leave(current_process(), self)

    def __call__(self, function: F) -> F:
        """Returns the function, each call of which is in a range of this name."""

        @wraps(function)
        def named(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            with self:
                return function(*args, **kwargs)

        return cast(F, named)
