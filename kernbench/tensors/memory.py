"""The storage that a tensor shares with its views."""

from typing import NamedTuple

from kernbench.memory import DType, Storage
from kernbench.process.access import Guard
from kernbench.process.process import Process


class Label(NamedTuple):
    """Name of a tensor in reports; becomes text only there, since most tensors are never named."""

    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"tensor {list(self.shape)} {self.dtype}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class SizedBlock:
    """Name in reports of memory of which only the size is known."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __str__(self) -> str:
        return f"storage of {self.nbytes} bytes"


class Memory(Guard):
    """The storage that a tensor and its views share.

    Args:
        storage: The block of bytes.
        owner: The process that made the memory.
        pinned: Whether the memory is host memory that devices access directly.

    Attributes:
        storage: The block of bytes.
        pinned: Whether the memory is host memory that devices access directly.
        inference: Whether the memory was made in `inference_mode`.
        tracked: Whether a tensor on this memory has, or had, a part in autograd; while it is False,
            callers can skip all other questions about autograd.
    """

    __slots__ = ("inference", "pinned", "storage", "tracked")

    def __init__(self, storage: Storage, owner: Process, *, pinned: bool = False) -> None:
        # Repeats `Guard.__init__` to spare a call, since every operation makes a memory.
        self.buffer = storage.buffer
        self.owner = owner
        self.version = 0
        self.writes = []
        self.reads = []
        self.storage = storage
        self.pinned = pinned
        # So that every use of such a memory outside of the mode is looked at.
        self.tracked = self.inference = owner.inference
