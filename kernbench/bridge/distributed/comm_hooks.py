"""Communication hooks of DDP: Python that a backward pass calls for each bucket of gradients.

The reducer, in C++, waits for the future that a hook returns, where nobody sees it. So what a hook
has issued counts as waited for when the hook returns, and not before.
"""

import functools
from collections.abc import Callable
from typing import Any

from kernbench.bridge.base.here import HERE


def registering(real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what stands for `torch.distributed._register_comm_hook`."""

    def register(reducer: Any, state: Any, hook: Callable[..., Any]) -> Any:
        return real(reducer, state, hook if HERE.rank is None else _watched(hook))

    return register


def _watched(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def run(state: Any, bucket: Any) -> Any:
        rank = HERE.rank
        if rank is None:
            return hook(state, bucket)
        before, rank.hooked = rank.hooked, []
        try:
            return hook(state, bucket)
        finally:
            works, rank.hooked = rank.hooked, before
            for work in works:
                work.trust()

    return run
