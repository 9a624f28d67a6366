"""The handle of symmetric memory, under the names of PyTorch's `_SymmetricMemory`."""

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Final

from kernbench.errors import call_site, not_simulated, site_fact
from kernbench.process.process import Process
from kernbench.symmetric.regions import Region, SymmetricMemoryError

_MOST: Final = (1 << 32) - 1
"""The largest word."""


def check_words(words: Any, offset: int, value: int, count: int) -> None:
    """Checks what a write of words to a tensor is given.

    Args:
        words: The tensor.
        offset: The first word.
        value: What is written.
        count: How many words.

    Raises:
        SymmetricMemoryError: If they are not inside of it (M1), or are no words.
    """
    here = [site_fact(call_site()), f"the tensor is {list(words.shape)} {words.dtype}"]
    if str(words.dtype) != "torch.uint32" or words.dim() != 1 or not words.is_contiguous():
        raise SymmetricMemoryError("words are written to a flat tensor of torch.uint32", here)
    if offset < 0 or count < 1 or offset + count > words.numel():
        told = f"{count} words from word {offset} on are not inside of a tensor"
        raise SymmetricMemoryError(told, here, code="M1")
    if not 0 <= value <= _MOST:
        raise SymmetricMemoryError(f"{value} is no word: those are 0 to {_MOST}", here)


class Handle:
    """The blocks and signal pads of a group, as one rank reaches them.

    Times-out are ignored by design: a hang is found when it happens, not after a time.

    Args:
        process: The rank.
        region: The blocks of all ranks.
        nbytes: Size of a block.
        pad_nbytes: Size of a signal pad.

    Attributes:
        signal_pad_size: Size of the signal pads of memory to come, in bytes.
        word: Type of their words.
        region: The blocks of all ranks.
        rank: Rank in the group.
        world_size: Number of ranks.
        buffer_size: Size of a block, in bytes.
        offset: Where in its block the memory begins.
        multicast_ptr: 0, as on devices whose switch does not add up or copy.
    """

    signal_pad_size: ClassVar[int] = 0
    word: ClassVar[Any] = None

    def __init__(self, process: Process, region: Region, nbytes: int, pad_nbytes: int) -> None:
        self.region: Final = region
        self._sizes: Final = {"block": nbytes, "signal pad": pad_nbytes}
        self.rank: Final = region.group.place(process.rank)
        self.world_size: Final = len(region.sips)
        self.buffer_size: Final = nbytes
        self.offset: Final = 0
        self.multicast_ptr: Final = 0

    def _ready(self, call: str) -> Process:
        """Returns the calling rank; refuses calls that a CUDA graph would hold."""
        raise NotImplementedError

    def _part(self, rank: int, of: str, begin: int, sizes: Sequence[int], dtype: Any) -> Any:
        """Returns a part of a rank's block or signal pad, from a byte on, as a tensor."""
        raise NotImplementedError

    @staticmethod
    def set_group_info(group_name: str, rank: int, world_size: int, store: Any) -> None:
        """Does nothing: ranks know their groups."""

    @staticmethod
    def set_backend(name: str) -> None:
        """Chooses what makes the memory: `CUDA`.

        Raises:
            UnsupportedError: If it is another backend.
        """
        if name != "CUDA":
            raise not_simulated(f"symmetric memory of {name}", 'call set_backend("CUDA")')

    @staticmethod
    def get_backend(device: Any) -> str | None:
        """Returns what makes the memory of a device."""
        return "CUDA" if device.type == "cuda" else None

    @staticmethod
    def has_multicast_support(device_type: Any, device_idx: int) -> bool:
        """Returns False: switches that add up or copy are not simulated."""
        del device_type, device_idx
        return False

    @staticmethod
    def get_mempool_allocator(device: Any) -> Any:
        """Refuses: memory comes from `empty` alone.

        Raises:
            UnsupportedError: Always.
        """
        del device
        raise not_simulated("get_mempool_allocator", "use symm_mem.empty()")

    def get_buffer(
        self, rank: int, sizes: Sequence[int], dtype: Any, storage_offset: int | None = 0
    ) -> Any:
        """Returns a part of a rank's block as a tensor.

        Args:
            rank: Rank in the group.
            storage_offset: In elements.
        """
        return self._checked(rank, "block", sizes, dtype, storage_offset or 0)

    def get_remote_tensor(self, peer: int, sizes: Sequence[int], dtype: Any) -> Any:
        """Returns the tensor of a rank, from the beginning of its block on."""
        return self.get_buffer(peer, sizes, dtype)

    def get_signal_pad(
        self,
        rank: int,
        sizes: Sequence[int] = (),
        dtype: Any = None,
        storage_offset: int | None = 0,
    ) -> Any:
        """Returns a part of a rank's signal pad, or all of it, as a tensor; by default of words.

        Args:
            rank: Rank in the group.
            storage_offset: In elements.
        """
        dtype, offset = dtype or self.word, storage_offset or 0
        sizes = sizes or (self._sizes["signal pad"] // dtype.itemsize - offset,)
        return self._checked(rank, "signal pad", sizes, dtype, offset)

    def _checked(self, rank: int, of: str, sizes: Sequence[int], dtype: Any, offset: int) -> Any:
        if not 0 <= rank < self.world_size:
            raise SymmetricMemoryError(
                f"{self.region.name} has no rank {rank}",
                [site_fact(call_site()), f"it has {self.world_size} ranks, from 0 on"],
            )
        begin, whole = offset * dtype.itemsize, self._sizes[of]
        if begin + prod(sizes) * dtype.itemsize > whole:
            raise SymmetricMemoryError(
                f"{list(sizes)} {dtype} from element {offset} on is not inside of a {of} of "
                f"{self.region.name}",
                [site_fact(call_site()), f"each rank's has {whole} bytes"],
                hint="ask for less, or make it larger",
                code="M1",
            )
        return self._part(rank, of, begin, sizes, dtype)

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Lets the current stream wait for those of all ranks."""
        del timeout_ms
        process = self._ready("barrier")
        self.region.barriers(process, channel).enter_device(process)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Gives a rank a signal, on the current stream."""
        del timeout_ms
        process = self._ready("put_signal")
        self.region.signals(process, self.rank, dst_rank, channel).put(process)

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Lets the current stream wait for a signal of a rank."""
        del timeout_ms
        process = self._ready("wait_signal")
        self.region.signals(process, src_rank, self.rank, channel).wait(process)
