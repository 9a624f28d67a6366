"""Python objects between ranks: the functions of this package, which need no numbers."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from kernbench.bridge.base.here import HERE
from kernbench.bridge.distributed.works import unseen
from kernbench.distributed import objects

NAMES: Final = (
    *("all_gather_object", "broadcast_object_list", "gather_object", "recv_object_list"),
    *("scatter_object_list", "send_object_list"),
)
"""Functions of `torch.distributed` that move objects; this package has them all."""


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields the functions that stand for those of `torch.distributed`, by name."""
    for name in NAMES:
        yield name, _mapped(getattr(c10d, name), getattr(objects, name))


def _mapped(real: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    def move(*args: Any, **options: Any) -> Any:
        if HERE.rank is None:
            return real(*args, **options)
        options.pop("use_batch", None)  # one message alone is the same in a batch
        if any(one is c10d.GroupMember.NON_GROUP_MEMBER for one in (*args, *options.values())):
            return real(*args, **options)  # says that the rank is no member
        with unseen():
            return ours(*map(_simulated, args), **{k: _simulated(v) for k, v in options.items()})

    move.__name__, move.__doc__ = real.__name__, f"`torch.distributed.{real.__name__}`."
    return move


def _simulated(value: Any) -> Any:
    """Returns what this package calls an argument: a group, or a device."""
    if isinstance(value, dist.ProcessGroup):
        return getattr(value, "simulated", value)
    if isinstance(value, torch.device):
        return str(value)
    return value
