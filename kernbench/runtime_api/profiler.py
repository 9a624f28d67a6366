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

    Commands issued in the block belong to the range, and so do the commands that the backward pass
    issues for its operations. A range takes no simulated time and waits for nothing.

    Args:
        name: Name of the range in traces and breakdowns; ranges of one name are added up.
        args: Further text for traces.
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
        """Returns the function so that each of its calls is in a range of this name."""

        @wraps(function)
        def named(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            with self:
                return function(*args, **kwargs)

        return cast(F, named)
