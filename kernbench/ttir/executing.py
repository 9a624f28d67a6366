"""Runs a kernel for all programs of a grid."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from kernbench.ttir import accesses, combining, flow, saying, tiles
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.flow import run_blocks
from kernbench.ttir.frames import Frame, Held, Launch
from kernbench.ttir.memory import Memory
from kernbench.ttir.module import Module

HANDLERS: Final[Mapping[str, Handler]] = {
    **tiles.HANDLERS,
    **accesses.HANDLERS,
    **combining.HANDLERS,
    **flow.HANDLERS,
    **saying.HANDLERS,
}
"""What makes a step of an operation, for those that are not elementwise."""

_ELEMENTS: Final = 1 << 19
"""Elements of the largest tile of the programs that run together: bounds the memory of a launch."""


class Executable:
    """A kernel, ready to run.

    Args:
        module: The module that the kernel's text describes.

    Attributes:
        module: See above.

    Raises:
        UnsupportedError: If it has an operation that is not simulated.
    """

    def __init__(self, module: Module) -> None:
        self.module: Final = module
        self._compiled: Final = Compiler(module, module.kernel, HANDLERS)

    def run(
        self,
        grid: tuple[int, int, int],
        arguments: Sequence[Held],
        memory: Memory,
        say: Callable[[str], None],
    ) -> None:
        """Runs all programs, in the order of the grid, so many at a time as memory allows.

        Args:
            arguments: What the kernel is given: arrays of one element, or descriptors.
            memory: What the programs may touch.
            say: Takes what they print.

        Raises:
            ProgramError: If a program does what it must not.
            WaitsForOthersError: If a program waits for what another one writes.
        """
        total = grid[0] * grid[1] * grid[2]
        together = max(1, _ELEMENTS // self._compiled.largest)
        launch = Launch(grid, memory, say)
        with np.errstate(all="ignore"):
            for first in range(0, total, together):
                self._run(np.arange(first, min(total, first + together)), arguments, launch)

    def _run(self, programs: Any, arguments: Sequence[Held], launch: Launch) -> None:
        compiled = self._compiled
        values: list[Any] = [None] * compiled.function.values
        for value, held in zip(compiled.function.arguments, arguments, strict=True):
            values[value.number] = held
        run_blocks(compiled.blocks, Frame(values, programs, launch))
