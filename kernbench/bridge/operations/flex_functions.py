"""What `score_mod` and `mask_mod` of `flex_attention` refer to besides their arguments.

The tensors are found by a call of the function, as Dynamo finds them, and are then given to it.
"""

import contextlib
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from kernbench.bridge.base.here import HERE, Rank
from kernbench.bridge.distributed.works import unseen
from kernbench.bridge.tensors.no_numbers import shaped
from kernbench.bridge.tensors.operands import tensors_in
from kernbench.errors import not_simulated


class _Finding(TorchFunctionMode):
    """Finds the tensors that a function uses, and has not made.

    Args:
        given: Tensors that it is given.
    """

    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()
        self.found: dict[int, torch.Tensor] = {}
        self._made = {id(each): each for each in given}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls a function of PyTorch, and notes its operands."""
        for each in tensors_in((*args, kwargs)):
            if id(each) not in self._made:
                self.found[id(each)] = each
        out = func(*args, **(kwargs or {}))
        self._made.update((id(each), each) for each in tensors_in(out))
        return out


class _Putting(TorchFunctionMode):
    """Puts other tensors in the place of those to which a function refers.

    Args:
        instead: What to put, by the `id` of what it stands for.
    """

    def __init__(self, instead: dict[int, Any]) -> None:
        super().__init__()
        self._instead = instead

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls a function of PyTorch with the other tensors."""
        args, kwargs = tree_map_only(
            torch.Tensor, lambda one: self._instead.get(id(one), one), (args, kwargs or {})
        )
        return func(*args, **kwargs)


class _ForShapes(TorchDispatchMode):
    """Runs operations where PyTorch sees on which device of this computer tensors are.

    The function that calls them may name the simulated device, as it is called in a rank.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self._rank = rank

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation."""
        del types
        return shaped(self._rank, func, args, kwargs)


def captured(
    rank: Rank, function: Callable[..., Any], given: list[torch.Tensor], buffers: Any
) -> list[torch.Tensor]:
    """Returns the tensors to which a function of single values refers.

    Args:
        rank: The rank whose function it is.
        function: `score_mod` or `mask_mod`.
        given: Values like those that it will be given.
        buffers: What it is given besides.

    Raises:
        UnsupportedError: If it refers to a DTensor.
    """
    finding = _Finding([*given, *tensors_in(buffers)])
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    with unseen(), _ForShapes(rank), torch.no_grad(), TransformGetItemToIndex(), finding:
        function(*given, *buffers)
    found = list(finding.found.values())
    if any(hasattr(one, "to_local") for one in found):
        raise not_simulated(
            "flex_attention whose function refers to a DTensor",
            "call its to_local() before, outside of the function",
        )
    return found


class Lifted:
    """A function that is given, as its last arguments, what another one refers to.

    Args:
        rank: The rank whose function the other one is.
        function: The other one.
        count: How many arguments it takes.
        refers_to: To what the other one refers.

    Attributes:
        function: The other one.
    """

    def __init__(
        self, rank: Rank, function: Callable[..., Any], count: int, refers_to: list[torch.Tensor]
    ) -> None:
        self.function: Final = function
        self._rank = rank
        self._count = count
        self._refers_to = refers_to

    def __call__(self, *given: Any) -> Any:
        """Calls the wrapped function."""
        count, refers_to = self._count, self._refers_to
        instead = dict(zip(map(id, refers_to), given[count:], strict=True))
        before, HERE.rank = HERE.rank, self._rank  # it may name the device
        try:
            with _Putting(instead) if refers_to else contextlib.nullcontext():
                return self.function(*given[:count])
        finally:
            HERE.rank = before
