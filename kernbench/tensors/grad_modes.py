"""Switches for the recording of a rank's operations: `torch.no_grad` and similar classes."""

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar, cast

from kernbench.process.process import current_process
from kernbench.tensors.nodes import GradState, grad_state_of

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
        self._before: list[tuple[GradState, bool, bool]] = []

    def _switch(self, tape: GradState) -> None:
        tape.enabled = self._enabled

    def __enter__(self) -> None:
        tape = grad_state_of(current_process())
        self._before.append((tape, tape.enabled, tape.inference))
        self._switch(tape)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        own = grad_state_of(current_process())
        place = max(at for at, entry in enumerate(self._before) if entry[0] is own)
        _, own.enabled, own.inference = self._before.pop(place)

    def __call__(self, function: F) -> F:
        @wraps(function)
        def switched(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            with self:
                return function(*args, **kwargs)

        return cast(F, switched)


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
        super().__init__(bool(mode))
        tape = grad_state_of(current_process())
        self._before.append((tape, tape.enabled, tape.inference))
        tape.enabled = self._enabled

    def __enter__(self) -> None:
        """Keeps the mode that the call has set."""

    def __call__(self, function: F) -> F:
        """Decorates a function; the call itself then has no effect."""
        self.__exit__(None, None, None)
        return _Mode(self._enabled)(function)


class inference_mode(_Mode):  # noqa: N801
    """`torch.inference_mode`: acts as `no_grad`; tensors made in it are ordinary ones."""

    _inference: bool

    def __new__(cls, mode: Any = True) -> Any:
        """Returns a switch, or a function given without parentheses, decorated."""
        made = super().__new__(cls)
        _Mode.__init__(made, False)
        made._inference = mode if isinstance(mode, bool) else True
        return made if isinstance(mode, bool) else made(mode)

    def __init__(self, mode: Any = True) -> None:
        del mode

    def _switch(self, tape: GradState) -> None:
        tape.inference = self._inference
        if self._inference:
            tape.enabled = False


def is_grad_enabled() -> bool:
    """Returns whether operations of the calling rank are recorded."""
    return grad_state_of(current_process()).enabled


def is_inference_mode_enabled() -> bool:
    """Returns whether the calling rank is in `inference_mode`."""
    return grad_state_of(current_process()).inference
