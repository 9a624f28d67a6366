"""Which operations of several streams touch a storage, for the storage's guard.

Nearly all programs have one stream, and pay nothing but the number of the last write. From the
first further stream on, each operation is told to the guards of its storages. What the default
stream only read before that is not known.
"""

from typing import Final

import torch

from kernbench.bridge.base.here import Rank
from kernbench.bridge.tensors.storages import Held
from kernbench.process.access import Access, Asked, Left, Verb

_EARLIER: Final = Asked("an earlier operation", 0, None)
"""What a rank did while it had one stream, of which only the number is kept."""


class Races:
    """Tells guards what the streams of a rank do with its storages."""

    def __init__(self, rank: Rank) -> None:
        self._rank: Final = rank
        self._process: Final = rank.process
        self._default: Final = rank.process.default_stream(rank.sip)
        self._stream = self._default
        self._asked = _EARLIER

    def begin(self, name: str) -> None:
        """Notes which operation is about to be issued, for `touch` and `made`."""
        process = self._process
        self._stream = process.current_stream(self._rank.sip)
        self._asked = Asked(name, process.host.clock, process.call_site())

    def told(self, held: Held) -> None:
        """Tells a guard of what the default stream did while it was the only one.

        Args:
            held: The storage.
        """
        if held.wrote_at:
            held.writes.append((self._default, held.wrote_at, held.whole(), _EARLIER))
            held.wrote_at = 0

    def touch(self, held: Held, tensor: torch.Tensor, verb: Verb) -> None:
        """Checks an access of the operation that is about to be issued, and notes it.

        Args:
            held: The storage.
            verb: What it does with the operand.

        Raises:
            AccessError: If something of another stream may still be at it (C14, C15, M10).
        """
        stream, window = self._stream, held.window_of(tensor)
        if held.wrote_at:
            self.told(held)
        writes, reads = held.writes, verb == "read"
        # Nearly always it was last written in this very stream, as in `process.act`.
        if not (len(writes) == 1 and writes[0][0] is stream and (reads or not held.reads)):
            held.check(self._process, stream, window, verb)
        note = held.read if reads else held.wrote
        note(stream, stream.count + 1, window, self._asked)

    def made(self, held: Held, tensor: torch.Tensor) -> None:
        """Does what `touch` does for the result of the operation.

        Args:
            held: The storage.

        Raises:
            AccessError: If the memory was a tensor's at which another stream may still be (M10).
        """
        if held.writes:
            self.touch(held, tensor, "wrote")
        else:
            stream, window = self._stream, held.windows.get(None)
            if window is None:
                held.windows = {None: (window := held.whole())}
            held.writes = [(stream, stream.count + 1, window, self._asked)]

    def reused(self, held: Held) -> None:
        """Notes that a storage takes the memory of one that is gone, as an allocator does.

        CUDA's keeps memory for the stream that was current when it was made.

        Args:
            held: The memory.
        """
        stream = self._process.current_stream(held.sip)
        left: list[Access] = []
        if (held.home or self._default) is stream:
            for line, number, window, what in (*held.writes, *held.reads):
                if line is not stream:
                    gone = Left(what.name, what.issued, what.site)
                    left.append((line, number, window, gone))
        held.writes, held.reads, held.home = left, [], stream
