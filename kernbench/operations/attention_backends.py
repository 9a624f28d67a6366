"""`torch.nn.attention`: which kernels `scaled_dot_product_attention` may use, for each rank."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kernbench.errors import OperandError, call_site, site_fact, warn_at_call
from kernbench.process.process import RankLocal, current_process
from kernbench.tensors.operands import type_name

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(Enum):
    """`torch.nn.attention.SDPBackend`: a kind of kernel for attention; `int` gives its number."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4

    def __int__(self) -> int:
        number: int = self.value
        return number


_FIRST_ORDER: Final = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
    SDPBackend.OVERRIDEABLE,
)
"""PyTorch's order of priority on an H200, with cuDNN since 9.15.1; all are enabled at first."""


@dataclass(frozen=True)
class _Choice:
    """What a rank has chosen.

    Attributes:
        enabled: Backends that may be used.
        order: All backends but `ERROR`, the one to be used first in front.
    """

    enabled: frozenset[SDPBackend] = frozenset(_FIRST_ORDER)
    order: tuple[SDPBackend, ...] = _FIRST_ORDER


_FIRST: Final = _Choice()
_CHOICE: Final = RankLocal("backends of attention", lambda _: _FIRST)


def allowed() -> tuple[SDPBackend, ...]:
    """Returns the backends that the calling rank's attention may use, the first choice in front.

    The tuple is empty if the rank has disabled all of them.
    """
    choice = _CHOICE.of(current_process())
    return tuple([each for each in choice.order if each in choice.enabled])


@contextmanager
def sdpa_kernel(
    backends: list[SDPBackend] | SDPBackend, set_priority: bool = False
) -> Iterator[dict[str, Any]]:
    """Lets the attention of a `with` block, or of a decorated function, use some backends only.

    The end of the block restores what was enabled, and the order, for the rank that entered it.

    Args:
        set_priority: Whether their order says which one is used first; else PyTorch's order does.

    Raises:
        OperandError: If `backends` is neither a backend nor a list of backends.
    """
    chosen = [backends] if isinstance(backends, SDPBackend) else backends
    if not isinstance(chosen, list):
        raise OperandError(
            "Backend must be an instance of SDPBackend or a list of SDPBackend instances, got "
            f"{type_name(backends)}",
            [site_fact(call_site())],
        )
    for each in chosen:
        if not isinstance(each, SDPBackend):
            raise OperandError(
                f"Backend must be an instance of SDPBackend, got {each!r} in the list",
                [site_fact(call_site())],
                hint="such as torch.nn.attention.SDPBackend.FLASH_ATTENTION",
            )
    process = current_process()
    before = _CHOICE.of(process)
    order = before.order
    if set_priority:
        order = tuple(dict.fromkeys([each for each in (*chosen, *order) if each in order]))
    _CHOICE.set(process, _Choice(frozenset(chosen), order))
    try:
        yield {}
    finally:
        _CHOICE.set(process, before)


def _switch(name: str, backend: SDPBackend) -> tuple[Callable[[], bool], Callable[[bool], None]]:
    """Returns the two functions of `torch.backends.cuda` for a backend: asks, and sets."""

    def is_enabled() -> bool:
        return backend in _CHOICE.of(current_process()).enabled

    def enable(enabled: bool) -> None:
        if not isinstance(enabled, bool):
            raise OperandError(
                f"enable_{name}_sdp expects a bool, but got {type_name(enabled)}",
                [site_fact(call_site())],
            )
        process = current_process()
        choice = _CHOICE.of(process)
        others = choice.enabled - {backend}
        _CHOICE.set(process, _Choice(others | {backend} if enabled else others, choice.order))

    is_enabled.__name__ = is_enabled.__qualname__ = f"{name}_sdp_enabled"
    is_enabled.__doc__ = f"Returns whether the calling rank's attention may use {backend.name}."
    enable.__name__ = enable.__qualname__ = f"enable_{name}_sdp"
    enable.__doc__ = f"Sets whether the calling rank's attention may use {backend.name}."
    return is_enabled, enable


flash_sdp_enabled, enable_flash_sdp = _switch("flash", SDPBackend.FLASH_ATTENTION)
mem_efficient_sdp_enabled, enable_mem_efficient_sdp = _switch(
    "mem_efficient", SDPBackend.EFFICIENT_ATTENTION
)
math_sdp_enabled, enable_math_sdp = _switch("math", SDPBackend.MATH)
cudnn_sdp_enabled, enable_cudnn_sdp = _switch("cudnn", SDPBackend.CUDNN_ATTENTION)


def sdp_kernel(
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> Any:
    """`torch.backends.cuda.sdp_kernel`: PyTorch's earlier form of `sdpa_kernel`, with its warning.

    Args:
        enable_flash: Whether the block may use `FLASH_ATTENTION`.
        enable_math: Whether it may use `MATH`.
        enable_mem_efficient: Whether it may use `EFFICIENT_ATTENTION`.
        enable_cudnn: Whether it may use `CUDNN_ATTENTION`.
    """
    warn_at_call(
        "`torch.backends.cuda.sdp_kernel()` is deprecated. In the future, this context manager "
        "will be removed. Please see `torch.nn.attention.sdpa_kernel()` for the new context "
        "manager, with updated signature.",
        FutureWarning,
    )
    given = {
        SDPBackend.FLASH_ATTENTION: enable_flash,
        SDPBackend.MATH: enable_math,
        SDPBackend.EFFICIENT_ATTENTION: enable_mem_efficient,
        SDPBackend.CUDNN_ATTENTION: enable_cudnn,
    }
    return sdpa_kernel([backend for backend, enabled in given.items() if enabled])
