"""An algorithm run live: a tile program per rank, over queues with slots and credits."""

from typing import Any

from kernbench.ccl.plan import NOTHING, Chunks, Combine, check_exchange
from kernbench.hw.queue import QueueSpec
from kernbench.tl.program import Program
from kernbench.tl.tile import Pointer


class LiveComm:
    """The `Comm` of one rank whose exchanges are tile commands.

    Args:
        program: The rank's tile program.
        rank: Inside the group.
        buffer: The rank's buffer.
        chunks: How it is cut; as many chunks as ranks.
        combine: Ufunc that adds what arrives to what is there.
        queue: How the queues between ranks are built.
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        buffer: Pointer,
        chunks: Chunks,
        combine: str,
        queue: QueueSpec,
    ) -> None:
        self.rank = rank
        self.world_size = chunks.parts
        self._program = program
        self._buffer = buffer
        self._chunks = chunks
        self._combine = combine
        self._piece = queue.slot_size // buffer.dtype.itemsize
        self._n_slots = queue.n_slots

    @property
    def tl(self) -> Program:
        """See `Comm`."""
        return self._program

    @property
    def buffer(self) -> Pointer:
        """See `Comm`."""
        return self._buffer

    def exchange(
        self, *, send: Any, to: Any, receive: Any, source: Any, combine: Combine = "copy"
    ) -> None:
        """See `Comm`: in the turns that `Chunks.turns` gives."""
        check_exchange(self.world_size, send, to, receive, source, combine)
        tl, chunks, size = self._program, self._chunks, self._piece
        for leaving, arriving in chunks.turns(size, self._n_slots):
            if send != NOTHING and leaving is not None:
                tl.send(tl.load(self._buffer.run(*chunks.piece(send, leaving, size))), to)
            if receive != NOTHING and arriving is not None:
                here = self._buffer.run(*chunks.piece(receive, arriving, size))
                if combine == "reduce":
                    local = tl.load(here)
                    tl.store(here, tl.elementwise(self._combine, local, tl.receive(source)))
                else:
                    tl.store(here, tl.receive(source))
        tl.fence()
