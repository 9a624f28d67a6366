"""Switches for the recording of a rank's operations: `torch.no_grad` and similar classes."""

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar, cast

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.process.process import Process, current_process
from kernbench.tensors.nodes import grad_state_of

__all__ = [
    "enable_grad",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "set_grad_enabled",
]

F = TypeVar("F", bound=Callable[..., Any])


class _Mode:
    """A switch for a `with` block or a function; it acts on the rank that runs the code."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        # A decorated function may call itself, and all ranks share the decorator.
        self._before: list[tuple[Process, bool, bool]] = []

    def _switch(self, process: Process) -> None:
        grad_state_of(process).enabled = self._enabled

    def __enter__(self) -> None:
        process = current_process()
        self._before.append((process, grad_state_of(process).enabled, process.inference))
        self._switch(process)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        process = current_process()
        place = max(at for at, entry in enumerate(self._before) if entry[0] is process)
        _, grad_state_of(process).enabled, process.inference = self._before.pop(place)

    def __call__(self, function: F) -> F:
        if isinstance(function, type):
            warnings.warn(
                "Decorating classes is deprecated and will be disabled in future versions. You "
                "should only decorate functions or methods. To preserve the current behavior of "
                "class decoration, you can directly decorate the `__init__` method and nothing "
                "else.",
                FutureWarning,
                stacklevel=2,
            )
        if inspect.isgeneratorfunction(function):
            return cast(F, self._each_resume(function))

        @wraps(function)
        def switched(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            with self:
                return function(*args, **kwargs)

        return cast(F, switched)

    def _each_resume(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a generator function whose generators run in the mode whenever they are resumed.

        Between two values the caller's mode is in force.
        """

        @wraps(function)
        def switched(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            made = function(*args, **kwargs)
            resume, given = made.send, None
            while True:
                try:
                    with self:
                        value = resume(given)
                except StopIteration as stop:
                    return stop.value
                try:
                    given = yield value
                    resume = made.send
                except GeneratorExit:
                    with self:
                        made.close()
                    raise
                except BaseException as error:
                    resume, given = made.throw, error

        return switched


class no_grad(_Mode):  # noqa: N801 - PyTorch's name
    """`torch.no_grad`: records nothing in a `with` block, or in the function it decorates."""

    def __new__(cls, orig_func: Any = None) -> Any:
        """Returns a switch, or a function given without parentheses, decorated."""
        mode = super().__new__(cls)
        _Mode.__init__(mode, False)
        return mode if orig_func is None else mode(orig_func)

    def __init__(self, orig_func: Any = None) -> None:
        del orig_func


class enable_grad(_Mode):  # noqa: N801
    """`torch.enable_grad`: records inside of `no_grad`."""

    def __new__(cls, orig_func: Any = None) -> Any:
        """Returns a switch, or a function given without parentheses, decorated."""
        mode = super().__new__(cls)
        _Mode.__init__(mode, True)
        return mode if orig_func is None else mode(orig_func)

    def __init__(self, orig_func: Any = None) -> None:
        del orig_func


class set_grad_enabled(_Mode):  # noqa: N801
    """`torch.set_grad_enabled`: takes effect when called; as a `with` block, until its end."""

    def __init__(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise OperandError(
                f"set_grad_enabled(): argument 'mode' must be bool, not {type(mode).__name__}",
                [site_fact(call_site())],
            )
        super().__init__(mode)
        super().__enter__()

    def __enter__(self) -> None:
        """Keeps the mode that the call has set."""

    def __call__(self, function: F) -> F:
        """Decorates a function; the call itself then has no effect."""
        self.__exit__(None, None, None)
        return _Mode(self._enabled)(function)


class inference_mode(_Mode):  # noqa: N801
    """`torch.inference_mode`: records nothing, whatever other modes say.

    Outside of the mode, tensors made in it can be read but neither written nor kept for a gradient.
    """

    _inference: bool

    def __new__(cls, mode: Any = True) -> Any:
        """Returns a switch, or a function given without parentheses, decorated."""
        made = super().__new__(cls)
        _Mode.__init__(made, False)
        made._inference = mode if isinstance(mode, bool) else True
        return made if isinstance(mode, bool) else made(mode)

    def __init__(self, mode: Any = True) -> None:
        del mode

    def _switch(self, process: Process) -> None:
        process.inference = self._inference
        grad_state_of(process).enabled = not self._inference


def is_grad_enabled() -> bool:
    """Returns whether operations of the calling rank are recorded."""
    return grad_state_of(current_process()).enabled


def is_inference_mode_enabled() -> bool:
    """Returns whether the calling rank is in `inference_mode`."""
    return current_process().inference
