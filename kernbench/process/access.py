"""Checks of memory accesses: only the owner's commands, in an order that no stream violates."""

import sys
from types import FrameType
from typing import Final, Literal

from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.memory import HOST_SIP, Buffer, View, dtypes
from kernbench.memory.windows import is_contiguous
from kernbench.process.called import called, issued
from kernbench.process.disorder import ORDER_STREAMS, hint, refuse
from kernbench.process.process import MAIN, Process
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.op_log import stream_in_words

Verb = Literal["read", "wrote"]
"""Kind of an access to memory, in the words of reports."""


class OwnershipError(KernbenchError):
    """A rank used a tensor or the device of another rank (M14)."""


_LOADERS: Final = {"torch.serialization"}
"""Modules that put tensors on the device that a file names."""


def loads(module: str) -> None:
    """Notes a module that puts tensors on the device that a file names.

    Args:
        module: Its `__name__`.
    """
    _LOADERS.add(module)


def other_device(name: str, index: int, own: int, owner: int | None) -> OwnershipError:
    """Returns the error of a process that uses another device than its own (M14).

    Args:
        name: Name of the process.
        index: Index of the device, as the program counts.
        own: Index of the process's own device.
        owner: The rank that has the device; None if no rank has it.
    """
    whose = f", the device of rank {owner}" if owner is not None else ""
    hint = (
        f"use cuda:{own}: torch.cuda.set_device(LOCAL_RANK), then device='cuda'; ranks exchange "
        "data through torch.distributed, and a model over several devices needs a rank for each"
    )
    if _is_loading():
        hint = (
            f"torch.load(..., map_location='cuda:{own}'): a file names the device of who saved it"
        )
    return OwnershipError(
        f"{name} used cuda:{index}{whose}",
        [site_fact(call_site()), f"{name} has cuda:{own}"],
        hint=hint,
        code="M14",
    )


def _is_loading() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") not in _LOADERS:
        frame = frame.f_back
    return frame is not None


class AccessError(KernbenchError):
    """Memory was touched while an asynchronous operation on it was under way (C14, C15, M10)."""


_Pending = tuple[Command, View]

_MOST_PENDING: Final = 64
"""Accesses of one memory that are kept apart; if there are more, they are merged by stream."""

_NO_STREAM: Final = Stream("host", HOST_SIP)


class Guard:
    """Checks whether a process may touch a block of memory, and records the accesses.

    Args:
        buffer: The bytes.
        owner: The process that made the block.

    Attributes:
        buffer: The bytes.
        owner: The process that made the block.
        version: Number of writes so far.
        writes: Commands that write the block, each with the view that it writes. From time to time
            entries are dropped that a later entry covers or that the host has waited for.
        reads: Commands of other streams that read the block, each with the view that it reads;
            entries are dropped as in `writes`.
    """

    __slots__ = ("buffer", "owner", "reads", "version", "writes")

    def __init__(self, buffer: Buffer, owner: Process) -> None:
        self.buffer = buffer
        self.owner = owner
        self.version = 0
        self.writes: list[_Pending] = []
        self.reads: list[_Pending] = []

    @property
    def sip(self) -> int:
        """SIP that holds the bytes; `HOST_SIP` for the host."""
        return self.buffer.allocation.memory.home

    def check(self, process: Process, stream: Stream | None, window: View, verb: Verb) -> None:
        """Checks that a process may touch a part of the memory now.

        Args:
            process: The process that touches the memory.
            stream: Stream of the command that touches the memory; None if the host does.
            window: The part that is touched.
            verb: Whether the part is read or written.

        Raises:
            OwnershipError: If the memory belongs to another rank (M14).
            AccessError: If a command that touches the part is under way that nobody has waited for
                (C14, C15, M10).
        """
        if self.owner is not process:
            self.check_owner(process)
        for pending in self.writes:
            if pending[0].stream is not stream:
                self._check_order(process, stream, window, verb, pending, "write")
        if self.reads and verb == "wrote":
            for pending in self.reads:
                if pending[0].stream is not stream:
                    self._check_order(process, stream, window, verb, pending, "read")

    def check_owner(self, process: Process) -> None:
        """Checks that a process may touch the memory at all.

        Raises:
            OwnershipError: If the memory is on a device and belongs to another rank (M14).
        """
        if self.owner is process or process.rank == MAIN or self.sip < 0:
            return
        block = self.buffer.allocation
        raise OwnershipError(
            f"{process.name} used a tensor of {self.owner.name}",
            [
                site_fact(call_site()),
                f"{block.label} on cuda:{self.sip}",
                site_fact(block.site, "allocated at"),
            ],
            hint="ranks exchange data through torch.distributed",
            code="M14",
        )

    def _check_order(
        self,
        process: Process,
        stream: Stream | None,
        window: View,
        verb: Verb,
        pending: _Pending,
        earlier: str,
    ) -> None:
        command, part = pending
        if process.ordered(stream or _NO_STREAM, command) or not part.overlaps(window):
            return
        collective = command.category == "collective"
        low, high = part.extent()
        mine_low, mine_high = window.extent()
        block = part.buffer.allocation
        what = f"{verb} a tensor before {command.name} on it was waited for"
        error = AccessError(
            f"{process.name} {what}",
            [
                called(process, verb),
                issued(command),
                f"it runs on {stream_in_report(command.stream)}",
                f"{block.label}, bytes {max(low, mine_low)}..{min(high, mine_high)}: "
                f"{'read' if verb == 'read' else 'write'} after {earlier}",
            ],
            hint=hint(process, _hint(process, command, stream)),
            code=("C14" if verb == "wrote" else "C15") if collective or stream is None else "M10",
        )
        refuse(process, error, what, command.site)

    def wrote(self, command: Command, view: View, counts: bool = True) -> None:
        """Notes that a command writes a view.

        Args:
            command: The command.
            view: The part that the command writes.
            counts: Whether the write makes a new version. Writes of `tl` kernels make none: as with
                Triton's kernels, autograd does not know about them.
        """
        self.version += counts
        self.buffer.writer = command
        writes = self.writes
        if not writes or (len(writes) == 1 and writes[0][1] is view):
            self.writes = [(command, view)]
        else:
            self.writes = self._with(writes, command, view)

    def read(self, command: Command, view: View) -> None:
        """Notes that a command reads a view while a command of another stream may write it."""
        self.reads = self._with(self.reads, command, view)

    def _with(self, pending: list[_Pending], command: Command, view: View) -> list[_Pending]:
        low, high = view.extent() if is_contiguous(view) else (0, 0)
        seen = self.owner.seen
        kept = []
        for entry in pending:
            earlier, part = entry
            if seen.get(earlier.stream, 0) >= earlier.number:
                continue
            begin, end = part.extent()
            # A wait for the later command then includes the earlier one.
            if not (low <= begin and end <= high and command.follows(earlier)):
                kept.append(entry)
        kept.append((command, view))
        if len(kept) > _MOST_PENDING:
            latest = {entry[0].stream: entry[0] for entry in kept}
            kept = [(last, self._whole()) for last in latest.values()]
        return kept

    def _whole(self) -> View:
        return View(self.buffer, dtypes.uint8, (self.buffer.allocation.nbytes,), (1,), 0)


def _hint(process: Process, command: Command, stream: Stream | None) -> str:
    # A collective that the program waits for by its call runs on a stream of the program.
    apart = command.category == "collective" and not command.stream.name.startswith("stream ")
    others = process.computing_streams(command.stream.sip)
    waited = any(one.seen.get(command.stream, 0) >= command.number for one in others)
    if apart and not waited:  # otherwise another stream of the program has waited for it
        return "call work.wait() first"
    if stream is None:
        return "let the host wait first: synchronize() of the device, the stream, or an event"
    return ORDER_STREAMS


def stream_in_report(stream: Stream) -> str:
    """Returns a user's words for a stream; equal on all ranks for the streams that all have."""
    words = stream_in_words(stream.name)
    if words != stream.name:
        return f"the {words}"
    return words if words.startswith("stream ") else f"the stream of {words}"
