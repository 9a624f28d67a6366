"""What the operations of a rank do with memory that ranks share."""

from typing import Final

from kernbench.memory import View
from kernbench.process.process import Process
from kernbench.sim_engine.command import Stream
from kernbench.symmetric.links import Move
from kernbench.symmetric.orders import watch
from kernbench.symmetric.regions import Block


class Uses:
    """What the next operation of a rank does.

    Args:
        process: The rank.
        numbers: Whether tensors have numbers. Without them, ranks do not wait for each other at
            their calls, and accesses in no order are not looked for.

    Attributes:
        some: Whether there is such memory.
        moves: What goes over links.
        written: What is written: the first byte, and the one after the last.
    """

    def __init__(self, process: Process, *, numbers: bool) -> None:
        self.some = False
        self.moves: list[Move] = []
        self.written: list[tuple[Block, int, int]] = []
        self._process: Final = process
        self._numbers: Final = numbers

    def begin(self) -> None:
        """Notes that there is such memory."""
        self.some = True
        watch(self._process)

    def take(self) -> tuple[list[Move], list[tuple[Block, int, int]]]:
        """Returns, and forgets, what goes over links, and what is written."""
        found = self.moves, self.written
        self.moves, self.written = [], []
        return found

    def use(self, block: Block, view: View, nbytes: int, name: str, *, writes: bool) -> None:
        """Notes that the operation touches a block.

        Args:
            view: The elements.
            nbytes: How many bytes they are.
            name: Name of the operation.

        Raises:
            AccessError: If nothing puts it after an access of another rank (M10).
        """
        process = self._process
        sip = process.ctx.devices[process.rank]
        self.moves += block.moves(sip, nbytes, writes=writes)
        if self._numbers:
            block.order.touch(process, process.current_stream(sip), view, name, writes=writes)
        if writes:
            self.written.append((block, *view.extent()))

    def give(
        self, block: Block | None, stream: Stream, view: View, call: str, writes: bool
    ) -> None:
        """Notes that a collective reads or writes a tensor, in a block or elsewhere.

        Args:
            stream: Stream of its command.
            view: The elements.
            call: Name of the collective.

        Raises:
            AccessError: If nothing puts it after an access of another rank (M10).
        """
        if self._numbers and block is not None:
            order = block.order
            order.touch(self._process, stream, view, call, writes=writes, meets=True)
