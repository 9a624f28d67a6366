"""How long this computer computes the numbers of a program, and when to say that it is too long.

A model for GPUs takes a computer without one minutes a step. A user who is warned at the first
products does not take the wait for a hang. Only large products are looked at: they take nearly all
the time.
"""

import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np

T = TypeVar("T")

LARGE: Final = 1 << 32
"""Operations of a product from which on it is looked at; a computer takes a tenth of a second."""

_LONG_S: Final = 120.0
"""Seconds of a step, or of a product, from which on it is reported to the user."""

_PROBE: Final = 512
"""Extent of the product that is measured where nothing else was."""


class Effort:
    """Wall time that computing values has taken so far; reports it to the user, once.

    Args:
        clock: Returns seconds.
        say: Tells the user.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        self.told = False
        self._clock: Final = clock
        self._say: Final = say
        self._flops = 0
        self._seconds = 0.0
        self._steps: dict[int, int] = {}

    def product(self, rank: int, name: str, flops: int, compute: Callable[[], T]) -> T:
        """Computes a large product, and tells the user first if that takes minutes.

        Args:
            rank: The rank whose product it is.
            name: Name of the operation.
            flops: Its operations.
        """
        if not self.told and flops > self._rate() * _LONG_S:
            self._tell(f"{name} would take about", flops, "one product")
        begin = self._clock()
        result = compute()
        self.computed(rank, flops, self._clock() - begin)
        return result

    def computed(self, rank: int, flops: int, seconds: float) -> None:
        """Notes a large product that was computed.

        Args:
            rank: The rank whose product it is.
            flops: Its operations.
            seconds: How long it took.
        """
        self._seconds += seconds
        self._flops += flops
        self._steps[rank] = self._steps.get(rank, 0) + flops
        if not self.told and self._seconds > _LONG_S:
            text = f"numbers have taken {_span(self._seconds)} of this computer so far"
            self._tell(text, self._flops, "products")

    def backward(self, rank: int, ranks: int) -> None:
        """Tells the user if a step takes minutes; a rank has computed its pass forward.

        A backward pass has twice the products of the forward pass.

        Args:
            ranks: Number of ranks that do the same, one after the other.
        """
        flops = 3 * ranks * self._steps.get(rank, 0)
        if not self.told and flops and flops > self._rate() * _LONG_S:
            whose = "forward and back" + (f" of {ranks} ranks" if ranks > 1 else "")
            self._tell("this step would take about", flops, whose)

    def stepped(self, rank: int) -> None:
        """Notes that a rank has ended a backward pass."""
        self._steps[rank] = 0

    def _rate(self) -> float:
        """Returns the operations that this computer does in a second."""
        if not self._flops:
            square = np.ones((_PROBE, _PROBE), np.float32)
            begin = self._clock()
            np.matmul(square, square)
            self._flops, self._seconds = 2 * _PROBE**3, self._clock() - begin
        return self._flops / max(self._seconds, 1e-9)

    def _tell(self, text: str, flops: int, whose: str) -> None:
        self.told = True
        rate = self._rate()
        if text.endswith("about"):
            text += f" {_span(flops / rate)} of this computer"
        self._say(
            f"kernbench: {text} ({whose}: {flops / 1e12:.4g} TFLOP at {rate / 1e9:.3g} GFLOP/s); "
            "--data off (data=False) predicts time and memory without numbers"
        )


def _span(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours >= 2 else f"{seconds / 60:.0f} minutes"


EFFORT: Final = Effort()
"""That of this process."""
