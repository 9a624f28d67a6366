"""Operations without numbers in a run whose reads are made up (`--data fake`)."""

from typing import Any, Final

from torch._C import _len_torch_dispatch_stack

from kernbench.bridge.base.here import Rank
from kernbench.bridge.operations.shape_mode import ShapeMode, Shapes
from kernbench.bridge.tensors.known_numbers import KnownNumbers


class FakeMode(ShapeMode):
    """The mode of a rank whose reads give 0, but for what follows from values of the host."""

    def __init__(self, rank: Rank, shapes: Shapes) -> None:
        super().__init__(rank, shapes)
        self._numbers: Final = KnownNumbers()
        rank.numbers = self._numbers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation; see `TimeMode`."""
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if out is not NotImplemented and not _len_torch_dispatch_stack():
            self._numbers.follow(func, args, kwargs, out)
        return out
