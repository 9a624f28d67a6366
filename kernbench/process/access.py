"""Who may touch memory now: only its rank, and nobody while another stream touches it."""

from typing import Final, Literal

from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.memory import HOST_SIP, Buffer, Space, View, dtypes
from kernbench.memory.windows import is_contiguous
from kernbench.process.called import called, issued
from kernbench.process.process import MAIN, Process
from kernbench.sim_engine.command import Command, Stream

Verb = Literal["read", "wrote"]
"""What somebody does with memory, as reports put it."""


class OwnershipError(KernbenchError):
    """A rank used a tensor of another rank (M14)."""


class AccessError(KernbenchError):
    """Memory was touched while an asynchronous operation on it was under way (C14, C15, M10)."""


_Pending = tuple[Command, View]

_MOST_PENDING: Final = 64
"""Accesses of one memory that are kept apart; beyond it they are merged stream by stream."""

_NO_STREAM: Final = Stream("host", HOST_SIP)


class Guard:
    """Says who may touch a block of memory now, and is told who does.

    Args:
        buffer: The bytes.
        owner: The process that made the block.

    Attributes:
        buffer: The bytes.
        owner: The process that made the block.
        version: Counts writes.
        writes: Commands that wrote it, each with what it wrote; those that later ones cover and
            those that the host has waited for are dropped at times.
        reads: Commands of other streams that read it, with what they read, dropped likewise.
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
        """The device that the bytes are on; `HOST_SIP` for the host."""
        where = self.buffer.allocation.memory
        return HOST_SIP if where.space is Space.HOST else where.sip

    def check(self, process: Process, stream: Stream | None, window: View, verb: Verb) -> None:
        """Checks that a process may touch a part of the memory now.

        Args:
            process: Who touches it.
            stream: The stream that the touching command goes to; None: the host touches it itself.
            window: What is touched; other parts of the same memory do not matter.
            verb: Whether it is read or written.

        Raises:
            OwnershipError: If the memory belongs to another rank (M14).
            AccessError: If a command that touches it is under way that nobody has waited for.
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
            OwnershipError: If it is on a device and belongs to another rank (M14).
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
        raise AccessError(
            f"{process.name} {verb} a tensor before {command.name} on it was waited for",
            [
                called(process, verb),
                issued(command),
                f"it runs on {_in_words(command.stream)}",
                f"{block.label}, bytes {max(low, mine_low)}..{min(high, mine_high)}: "
                f"{'read' if verb == 'read' else 'write'} after {earlier}",
            ],
            hint="call work.wait() first"
            if collective
            else "order the streams with wait_stream(), an event, or synchronize()",
            code=("C14" if verb == "wrote" else "C15") if collective or stream is None else "M10",
        )

    def wrote(self, command: Command, view: View, counts: bool = True) -> None:
        """Notes that a command writes a view.

        Args:
            command: The command.
            view: What it writes.
            counts: Whether that is a new version. Kernels in `tl` may write what they are given,
                and as with Triton's, autograd does not know about it.
        """
        self.version += counts
        writes = self.writes
        if not writes or (len(writes) == 1 and writes[0][1] is view):
            self.writes = [(command, view)]
        else:
            self.writes = self._with(writes, command, view)

    def read(self, command: Command, view: View) -> None:
        """Notes that a command reads a view, at a time when somebody may write it."""
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
            # Whoever waits for the later one has then waited for the earlier one, too.
            if not (low <= begin and end <= high and command.follows(earlier)):
                kept.append(entry)
        kept.append((command, view))
        if len(kept) > _MOST_PENDING:
            latest = {entry[0].stream: entry[0] for entry in kept}
            kept = [(last, self._whole()) for last in latest.values()]
        return kept

    def _whole(self) -> View:
        return View(self.buffer, dtypes.uint8, (self.buffer.allocation.nbytes,), (1,), 0)


def _in_words(stream: Stream) -> str:
    """Returns what a user calls a stream; the same on all ranks for what they have alike."""
    kind, _, rest = stream.name.partition(f" {stream.sip}")
    if kind == "communication":
        return "the communication stream" + (f" of{rest}" if rest else "")
    if kind == "stream":
        return stream.name if rest else "the default stream"
    return f"the stream of {stream.name}"
