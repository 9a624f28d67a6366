"""The storage that a tensor shares with its views."""

from typing import NamedTuple

from kernbench.memory import DType, Storage
from kernbench.process.access import Guard
from kernbench.process.process import Process


class Label(NamedTuple):
    """Names a tensor in reports; made into text only there."""

    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"tensor {list(self.shape)} {self.dtype}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class Memory(Guard):
    """The storage that a tensor and its views share.

    Args:
        storage: Its block.
        owner: The process that made it.
        pinned: Whether it is host memory that devices access by themselves.

    Attributes:
        storage: Its block.
        pinned: Whether it is host memory that devices access by themselves.
        tracked: Whether a tensor on it has, or had, a part in autograd; while it is False, no
            further question need be asked.
    """

    __slots__ = ("pinned", "storage", "tracked")

    def __init__(self, storage: Storage, owner: Process, *, pinned: bool = False) -> None:
        # What `Guard` does, without a call: every operation makes a memory.
        self.buffer = storage.buffer
        self.owner = owner
        self.version = 0
        self.writes = []
        self.reads = []
        self.storage = storage
        self.pinned = pinned
        self.tracked = False
