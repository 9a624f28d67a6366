"""An algorithm run live: a tile program per rank, over queues with slots and credits."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

from kernbench.ccl.layout import Cuts, Layout, turns
from kernbench.ccl.plan import NOTHING, Combine, CommBase, Cutting, Setting
from kernbench.hw.queue import QueueSpec
from kernbench.tl.program import Program
from kernbench.tl.tile import Pointer, Tile


class LiveComm(CommBase):
    """The `Comm` of one rank whose exchanges are tile commands.

    Args:
        program: Tile program of the rank.
        rank: Rank inside the group.
        setting: Everything else that the algorithm can see.
        buffer: Makes the rank's buffer for a layout.
        layout: Returns the layout for a cutting.
        combine: Name of the ufunc that adds arriving values to present ones.
        queue: How queues between ranks are built.
        itemsize: Bytes of an element.
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        setting: Setting,
        buffer: Callable[[Layout], Pointer],
        layout: Callable[[Cutting], Layout],
        combine: str,
        queue: QueueSpec,
        itemsize: int,
    ) -> None:
        self.rank = rank
        self.world_size = setting.world_size
        self.root = setting.root
        self.grid = setting.grid
        self.channel = setting.channel
        self.messages = setting.messages
        self._program = program
        self._make_buffer = buffer
        self._make_layout = layout
        self._cutting = Cutting(setting)
        self._combine = combine
        self._piece = queue.slot_size // itemsize
        self._n_slots = queue.n_slots

    @property
    def tl(self) -> Program:
        """See `Comm`."""
        return self._program

    @cached_property
    def layout(self) -> Layout:
        """Cuts of the buffer."""
        return self._make_layout(self._cutting)

    @cached_property
    def buffer(self) -> Pointer:
        """See `Comm`."""
        return self._make_buffer(self.layout)

    def cut(self, parts: int, scratch: int = 0, *, turns: int = 1, together: int = 1) -> None:
        """See `Comm`."""
        self._cutting.cut(Cuts(parts, scratch, turns, together))

    def exchange(
        self,
        *,
        send: Any,
        to: Any,
        receive: Any,
        source: Any,
        combine: Combine = "copy",
        span: Any = 1,
    ) -> None:
        """See `Comm`: messages leave and arrive in the order of `turns`. May wait.

        Args:
            send: First chunk that leaves; `NOTHING` to only receive.
            to: Rank that gets the chunks that leave.
            receive: First chunk that arrives; `NOTHING` to only send.
            source: Rank that sends the chunks that arrive.
            combine: `reduce` adds arriving values to present ones, `copy` replaces them.
            span: Number of chunks in a row that leave, and that arrive.
        """
        self._cutting.check(self.rank, send, to, receive, source, combine, span)
        tl, out, into = self._program, self._pieces(send, span), self._pieces(receive, span)
        if send != NOTHING and to == self.rank:
            for leaving, there in zip(out, into, strict=True):
                self._put(there, tl.load(self.buffer.run(*leaving)), combine)
            tl.fence()
            return
        for left, arriving in turns(len(out), len(into), self._n_slots):
            if left is not None:
                tl.send(tl.load(self.buffer.run(*out[left])), to)
            if arriving is not None:
                self._receive(into[arriving], source, combine)
        tl.fence()

    def _pieces(self, chunk: int, span: int) -> list[tuple[int, int]]:
        if chunk == NOTHING:
            return []
        return self.layout.pieces(self.rank, chunk, span, self._piece)

    def _receive(self, piece: tuple[int, int], source: int, combine: Combine) -> None:
        tl, here = self._program, self.buffer.run(*piece)
        if combine == "reduce":
            local = tl.load(here)
            tl.store(here, tl.combine(self._combine, local, tl.receive(source)))
        else:
            tl.store(here, tl.receive(source))

    def _put(self, piece: tuple[int, int], value: Tile, combine: Combine) -> None:
        tl, here = self._program, self.buffer.run(*piece)
        if combine == "reduce":
            value = tl.combine(self._combine, tl.load(here), value)
        tl.store(here, value)
