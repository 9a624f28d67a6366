"""Races between the streams of a rank (M10): which commands have last touched a storage.

Nearly all programs have one stream, and pay nothing but the number of the last write. From the
first further stream on, each operation notes which streams read and wrote its storages, and is
refused if one of those has not been waited for. What the default stream only read before that is
not known.
"""

from typing import Any, Final

import torch

from kernbench.bridge.base.here import Rank
from kernbench.bridge.tensors.storages import DTYPES, Held
from kernbench.errors import CallSite, site_fact
from kernbench.memory import View
from kernbench.process.access import AccessError, stream_in_report
from kernbench.process.called import called
from kernbench.process.disorder import ORDER_STREAMS, hint, refuse
from kernbench.sim_engine.command import Stream

_MOST: Final = 64
"""Touches of one storage that are kept apart; if there are more, they are merged by stream."""

_TYPES: Final = {ours: theirs for theirs, ours in DTYPES.items()}


class Touch:
    """The last commands of one stream that read and wrote one part of a storage.

    Args:
        stream: The stream.
        part: Offset, shape, strides and type of the part; None for the whole storage.

    Attributes:
        stream: The stream.
        part: The part.
        wrote: Number of the last command that wrote it; 0 for none.
        read: Number of the last command that read it; 0 for none.
        name: Name of the last command; empty if it is not known.
        site: Where the user asked for it.
    """

    __slots__ = ("name", "part", "read", "site", "stream", "wrote")

    def __init__(self, stream: Stream, part: Any = None, wrote: int = 0) -> None:
        self.stream = stream
        self.part = part
        self.wrote = wrote
        self.read = 0
        self.name = ""
        self.site: CallSite | None = None


class Races:
    """Watches what the streams of a rank do with its storages.

    Args:
        rank: The rank.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank: Final = rank
        self._process: Final = rank.process
        self._default: Final = rank.process.default_stream(rank.sip)
        self._stream = self._default
        self._name = ""
        self._site: CallSite | None = None

    def begin(self, name: str) -> None:
        """Notes which operation is about to be issued, for `touch` and `made`.

        Args:
            name: Its name.
        """
        self._stream = self._process.current_stream(self._rank.sip)
        self._name, self._site = name, self._process.call_site()

    def touch(self, held: Held, tensor: torch.Tensor, *, writes: bool) -> None:
        """Checks an access of the operation that is about to be issued, and notes it.

        Args:
            held: The storage.
            tensor: The operand.
            writes: Whether it writes the operand.

        Raises:
            AccessError: If a command of another stream may still be at it (M10).
        """
        stream, part = self._stream, _part(held, tensor)
        self.check(held, part, stream, writes=writes)
        touches = held.touched
        assert touches is not None
        mine = None
        for one in touches:
            if one.stream is stream and one.part == part:
                mine = one
        if mine is None:
            mine = Touch(stream, part)
            touches.append(mine)
        self._note(mine, writes=writes)
        if writes and part is None and len(touches) > 1:
            held.touched = [mine]  # who comes after this write comes after all others
        elif len(touches) > _MOST:
            held.touched = self._merged(touches)

    def made(self, held: Held) -> None:
        """Notes the result of the operation that is about to be issued.

        Args:
            held: Its storage.

        Raises:
            AccessError: If the memory was a tensor's at which another stream may still be (M10).
        """
        if held.before is not None:
            self._check_before(held, self._stream)
        mine = Touch(self._stream)
        self._note(mine, writes=True)
        held.touched = [mine]

    def _note(self, mine: Touch, *, writes: bool) -> None:
        number = mine.stream.count + 1
        if writes:
            mine.wrote = number
        else:
            mine.read = number
        mine.name, mine.site = self._name, self._site

    def check(self, held: Held, part: Any, stream: Stream, *, writes: bool) -> None:
        """Checks an access.

        Args:
            held: The storage.
            part: The part of it, as of `Touch`.
            stream: The stream of the access.
            writes: Whether it is a write.

        Raises:
            AccessError: If a command of another stream may still be at it (M10).
        """
        touches = held.touched
        if touches is None:
            touches = held.touched = []
            if held.wrote_at:
                touches.append(Touch(self._default, None, held.wrote_at))
        for one in touches:
            if one.stream is stream:
                continue
            last = max(one.wrote, one.read) if writes else one.wrote
            if self._is_before(stream, one.stream, last) or not _overlap(held, one.part, part):
                continue
            self._refuse(held, one, stream, writes=writes)
            break  # one is told of each access
        if writes and held.before is not None:
            self._check_before(held, stream)

    def check_block(self, held: Held, window: View, stream: Stream, *, writes: bool) -> None:
        """Checks an access of a collective or message.

        Args:
            held: The storage.
            window: The part of it.
            stream: The stream of the access.
            writes: Whether it is written.

        Raises:
            AccessError: If a command of another stream may still be at it (M10).
        """
        part = window.offset, window.shape, window.strides, _TYPES[window.dtype]
        self.check(held, part, stream, writes=writes)

    def reused(self, held: Held) -> None:
        """Notes that a storage takes the memory of one that is gone, as an allocator does.

        CUDA's keeps memory for the stream that was current when it was made.

        Args:
            held: The memory.
        """
        stream = self._process.current_stream(held.sip)
        of_stream = (held.home or self._default) is stream
        held.before = held.touched if of_stream else None
        held.touched, held.home = None, stream

    def _check_before(self, held: Held, stream: Stream) -> None:
        before, held.before = held.before, None
        for one in before or ():
            last = max(one.wrote, one.read)
            if one.stream is not stream and not self._is_before(stream, one.stream, last):
                self._refuse_memory(held, one, stream)
                break

    def _is_before(self, stream: Stream, line: Stream, number: int) -> bool:
        return stream.seen.get(line, 0) >= number or self._process.seen.get(line, 0) >= number

    def _merged(self, touches: list[Touch]) -> list[Touch]:
        found: dict[Stream, Touch] = {}
        for one in touches:
            whole = found.get(one.stream)
            if whole is None:
                whole = found[one.stream] = Touch(one.stream)
            whole.wrote, whole.read = max(whole.wrote, one.wrote), max(whole.read, one.read)
            whole.name, whole.site = one.name, one.site
        return list(found.values())

    def _refuse(self, held: Held, one: Touch, stream: Stream, *, writes: bool) -> None:
        verb, earlier = "wrote" if writes else "read", "write" if one.wrote else "read"
        name = one.name or "an earlier operation"
        what = f"{verb} a tensor before {name} on it was waited for"
        error = AccessError(
            f"{self._process.name} {what}",
            [
                called(self._process, verb),
                f"it runs on {stream_in_report(stream)}",
                *_issued(one),
                f"{held.buffer.allocation.label}: {'write' if writes else 'read'} after {earlier}",
            ],
            hint=hint(self._process, ORDER_STREAMS),
            code="M10",
        )
        refuse(self._process, error, what, one.site)

    def _refuse_memory(self, held: Held, one: Touch, stream: Stream) -> None:
        what = f"wrote memory of a tensor that is gone before {one.name} on it was waited for"
        error = AccessError(
            f"{self._process.name} {what}",
            [
                called(self._process, "wrote"),
                f"it runs on {stream_in_report(stream)}",
                *_issued(one),
                f"{held.buffer.allocation.label}: the allocator gives memory to the next tensor of "
                "its stream at once",
            ],
            hint=hint(
                self._process,
                "call tensor.record_stream(stream), or wait_stream(), before the tensor is gone",
            ),
            code="M10",
        )
        refuse(self._process, error, what, one.site)


def _issued(one: Touch) -> list[Any]:
    where = stream_in_report(one.stream)
    if not one.name:
        return [f"what it waits for runs on {where}"]
    return [site_fact(one.site, f"{one.name} was issued at"), f"{one.name} runs on {where}"]


def _part(held: Held, tensor: torch.Tensor) -> Any:
    """Returns which part of a storage a tensor is, as of `Touch`."""
    if tensor.numel() * tensor.itemsize == held.storage.nbytes or tensor.dtype not in DTYPES:
        return None
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _overlap(held: Held, one: Any, other: Any) -> bool:
    if one is None or other is None:
        return True
    mine, theirs = (
        View(held.buffer, DTYPES[dtype], shape, strides, offset)
        for offset, shape, strides, dtype in (one, other)
    )
    return mine.overlaps(theirs)
