"""Runs a kernel for all programs of a grid."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from kernbench.ttir import (
    accesses,
    assembly,
    atomics,
    combining,
    descriptors,
    extended,
    externs,
    flow,
    saying,
    scaling,
    tiles,
)
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.flow import run_blocks
from kernbench.ttir.frames import Frame, Held, Launch, Patience, ProgramError
from kernbench.ttir.marks import marking, may_mark
from kernbench.ttir.memory import Memory
from kernbench.ttir.module import Module, Operation
from kernbench.ttir.races import RaceError, Races
from kernbench.ttir.reports import race, report, waiting, warning
from kernbench.ttir.roots import touched

HANDLERS: Final[Mapping[str, Handler]] = {
    **tiles.HANDLERS,
    **accesses.HANDLERS,
    **assembly.HANDLERS,
    **atomics.HANDLERS,
    **descriptors.HANDLERS,
    **extended.HANDLERS,
    **externs.HANDLERS,
    **scaling.HANDLERS,
    **combining.HANDLERS,
    **flow.HANDLERS,
    **saying.HANDLERS,
}
"""What makes a step of an operation, for those that are not elementwise."""

_ELEMENTS: Final = {False: 1 << 17, True: 1 << 19}
"""Elements of the largest tile of the programs that run together, by whether the kernel has a loop.

They bound the memory of a launch. Tiles of 256 KiB stay in a core's cache; where steps are taken
again in each turn, more programs at once cost fewer of them. Measured, CPU time: a softmax of
4096^2 takes 1.3 times as long with half as many and as long with four times as many, a product of
512^3 1.5 times as long with an eighth.
"""


class Executable:
    """A kernel, ready to run.

    Args:
        module: The module that the kernel's text describes.

    Attributes:
        module: See above.
        loads: Numbers of the arguments of whose memory programs may load; None: of all memory.
        stores: The same of what they may store.

    Raises:
        UnsupportedError: If it has an operation that is not simulated.
    """

    def __init__(self, module: Module) -> None:
        self.module: Final = module
        # What may mark elements, and memory that is not all written, need steps that look.
        self._compiled: Final = Compiler(
            module, module.kernel, HANDLERS, marking if may_mark(module) else None
        )
        self._watched = None if self._compiled.watch is None else self._compiled
        self._warned: Final[set[tuple[Operation, Operation]]] = set()
        self.loads, self.stores = touched(module.kernel, self._compiled.roots)

    def run(
        self,
        grid: tuple[int, int, int],
        arguments: Sequence[Held],
        memory: Memory,
        say: Callable[[str], None],
        *,
        races: bool = True,
        patience: Patience | None = None,
    ) -> None:
        """Runs all programs, in the order of the grid, so many at a time as memory allows.

        Args:
            arguments: What the kernel is given: arrays of one element, or descriptors.
            memory: What the programs may touch.
            say: Takes what they print.
            races: Whether to look for programs that touch the same elements in no order.
            patience: Returns what tells whether a loop that may never end has run too long.

        Raises:
            KernbenchError: If a program does what it must not: it touches other memory (M1, M2) or
                what another one touches (M12), it uses what nothing has written (M5) or a quotient
                by 0 (K13), makes a descriptor that GPUs refuse (K15), an assertion does not hold,
                it waits for what no program before it writes (K7), or never ends (K5).
        """
        total = grid[0] * grid[1] * grid[2]
        compiled = self._compiled
        # One that takes a lock is to end before the next one begins, which may want the lock.
        together = 1 if compiled.waits else max(1, _ELEMENTS[compiled.loops] // compiled.largest)
        if memory.incomplete:
            if self._watched is None:
                self._watched = Compiler(self.module, self.module.kernel, HANDLERS, marking)
            compiled = self._watched

        def warn(error: ProgramError, cause: Operation) -> None:
            if (error.operation, cause) not in self._warned:
                self._warned.add((error.operation, cause))
                warning(report(error, self.module, grid, memory), error.operation)

        beside, name = memory.beside, self.module.kernel.name

        def wait(loop: Operation, program: int) -> None:
            assert beside is not None
            beside.wait(lambda: waiting(loop, program, name, grid))

        launch = Launch(grid, memory, say, warn, None if beside is None else wait, patience)
        memory.races = Races(memory.ranges(self.stores), total) if races else None
        try:
            with np.errstate(all="ignore"):
                for first in range(0, total, together):
                    programs = np.arange(first, min(total, first + together))
                    if beside is not None:
                        beside.begin(first, memory.touched)
                    self._run(compiled, programs, arguments, launch)
                if beside is not None:
                    beside.begin(total, memory.touched)
                    beside.end()
        except ProgramError as error:
            raise report(error, self.module, grid, memory) from None
        except RaceError as error:
            raise race(error, self.module.kernel.name, grid, memory) from None

    @staticmethod
    def _run(compiled: Compiler, programs: Any, arguments: Sequence[Held], launch: Launch) -> None:
        values: list[Any] = [None] * compiled.function.values
        for value, held in zip(compiled.function.arguments, arguments, strict=True):
            values[value.number] = held
        run_blocks(compiled.blocks, Frame(values, programs, launch))
