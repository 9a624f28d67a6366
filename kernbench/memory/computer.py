"""Memory of the computer that simulates: how much is left, and what it costs to get it anew."""

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kernbench.caches import cached

STEP: Final = 1 << 28
"""Bytes that tensors take between two looks at what is left."""

_FILES: Final = Path("/")


def physical_bytes() -> int | None:
    """Returns how much memory the computer has; None where the system does not tell (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def available_bytes(files: Path = _FILES) -> int | None:
    """Returns how much memory new tensors can take before the system ends the process.

    That is the least of what Linux calls available and of what the process's control groups leave
    (versions 1 and 2), as a container's limit is one. A system without `/proc` tells only how much
    there is in all.

    Args:
        files: Root of the file system.

    Returns:
        Bytes; None where the system tells nothing.
    """
    left = [*_system(files), *_control_groups(files)]
    return max(0, min(left)) if left else physical_bytes()


_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of glibc's `mallopt`, as its `malloc.h` numbers them."""

_KEPT: Final = 1 << 28
"""Bytes at the end of the heap that the process keeps for its next arrays."""

_ON_THE_HEAP: Final = 1 << 26
"""Bytes of an array from which it has pages of its own, which go back to the system with it."""

_ENVIRONMENT: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@cached("memory.freed_pages")
def keep_freed_pages() -> bool:
    """Lets the process keep the pages of arrays that it frees, for the arrays that it makes next.

    By itself glibc gives them back at once, and each operation that makes a result of 128 KiB or
    more pays for new pages, which the system fills with zeros: about as much as for what it
    computes (ADR 0079). It is asked once; a user who has set glibc's own variables is left alone.

    Returns:
        Whether it does; not with another C library.
    """
    if any(name in os.environ for name in _ENVIRONMENT):
        return False
    try:
        process = ctypes.CDLL(None)
        process.gnu_get_libc_version  # noqa: B018 - others take these numbers for something else
        options = ((_MMAP_THRESHOLD, _ON_THE_HEAP), (_TRIM_THRESHOLD, _KEPT))
        return all(process.mallopt(name, value) == 1 for name, value in options)
    except (AttributeError, OSError, TypeError):
        return False


def _system(files: Path) -> Iterator[int]:
    kilobytes = _number(files / "proc/meminfo", "MemAvailable:")
    if kilobytes is not None:
        yield kilobytes * 1024


def _control_groups(files: Path) -> Iterator[int]:
    """Yields what the memory limits of the process and of its container leave."""
    root = files / "sys/fs/cgroup"
    for line in _lines(files / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _left(root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            limit, use = "memory.limit_in_bytes", "memory.usage_in_bytes"
            yield from _left(root / "memory", path, limit, use, "total_inactive_file")


def _left(root: Path, path: str, limit_name: str, use_name: str, cached: str) -> Iterator[int]:
    """Yields what the limits of a group and of all groups around it leave.

    Args:
        root: Folder of the outermost group.
        path: The group. Inside a container the path may be one that only the host knows.
        limit_name: File with a group's limit.
        use_name: File with what a group uses, copies of files in memory included.
        cached: Line of `memory.stat` with the copies that the system drops when memory is short.
    """
    group = root / path.strip("/")
    for folder in (group, *group.parents):
        if folder.is_relative_to(root):
            limit, use = _number(folder / limit_name), _number(folder / use_name)
            if limit is not None and use is not None:
                yield limit - use + (_number(folder / "memory.stat", cached) or 0)


def _number(file: Path, name: str = "") -> int | None:
    """Returns the number in a file, after a name if there is one; None without such a number."""
    for line in _lines(file):
        if line.startswith(name):
            words = line.removeprefix(name).split()
            return int(words[0]) if words and words[0].isdecimal() else None
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


class Room:
    """Notices when the computer has no room for more tensors.

    Args:
        look: Returns how many bytes are left; None if nobody knows.

    Attributes:
        unlooked: Bytes that tensors have taken since the last look; who takes some adds them, and
            calls `lacks` when they make `STEP`.
    """

    def __init__(self, look: Callable[[], int | None] = available_bytes) -> None:
        self._look: Final = look
        self.unlooked = 0

    def lacks(self, nbytes: int) -> int | None:
        """Returns how many bytes are left if they are too few for a tensor; None if they suffice.

        Args:
            nbytes: Bytes that the tensor takes now.
        """
        self.unlooked = 0
        left = self._look()
        # The next operation may take as much once more before it is seen.
        return left if left is not None and left < nbytes + STEP else None
