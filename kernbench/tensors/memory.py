"""The storage that a tensor shares with its views, and which commands may still touch it."""

from typing import Final, NamedTuple

from kernbench.memory import Buffer, DType, Storage, View, dtypes
from kernbench.process.process import Process
from kernbench.sim_engine.command import Command
from kernbench.tensors.windows import is_contiguous


class Label(NamedTuple):
    """Names a tensor in reports; made into text only there."""

    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"tensor {list(self.shape)} {self.dtype}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


_Pending = tuple[Command, View]

_MOST_PENDING: Final = 64
"""Accesses of one memory that are kept apart; beyond it they are merged stream by stream."""


class Memory:
    """The storage that a tensor and its views share, with who may still be touching it.

    Attributes:
        storage: Its block.
        owner: The process that made it.
        pinned: Whether it is host memory that devices access by themselves.
        version: Counts writes.
        writes: Commands that wrote it, each with what it wrote; those that later ones cover and
            those that the host has waited for are dropped at times.
        reads: Commands of other streams that read it, likewise.
        tracked: Whether a tensor on it has, or had, a part in autograd; while it is False, no
            further question need be asked.
    """

    __slots__ = ("owner", "pinned", "reads", "storage", "tracked", "version", "writes")

    def __init__(self, storage: Storage, owner: Process, *, pinned: bool = False) -> None:
        self.storage = storage
        self.owner = owner
        self.pinned = pinned
        self.version = 0
        self.tracked = False
        self.writes: list[_Pending] = []
        self.reads: list[_Pending] = []

    @property
    def buffer(self) -> Buffer:
        """The bytes."""
        return self.storage.buffer

    def _whole(self) -> View:
        return View(self.buffer, dtypes.uint8, (self.storage.nbytes,), (1,), 0)

    def wrote(self, command: Command, view: View, *, counts: bool = True) -> None:
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
