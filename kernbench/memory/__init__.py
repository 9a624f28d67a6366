"""Memory: addresses, blocks and their owners, their bytes, and which bytes were ever written."""

from kernbench.memory.address import HOST_SIP, Address, Space
from kernbench.memory.allocator import (
    Allocation,
    Allocator,
    FreeError,
    NotedAllocator,
    OutOfMemoryError,
)
from kernbench.memory.computer import available_bytes, keep_freed_pages
from kernbench.memory.dtypes import DType
from kernbench.memory.storage import (
    Array,
    Buffer,
    Storage,
    UninitialisedReadError,
    View,
    contiguous_strides,
    never_written,
    no_room,
)

__all__ = [
    "HOST_SIP",
    "Address",
    "Allocation",
    "Allocator",
    "Array",
    "Buffer",
    "DType",
    "FreeError",
    "NotedAllocator",
    "OutOfMemoryError",
    "Space",
    "Storage",
    "UninitialisedReadError",
    "View",
    "available_bytes",
    "contiguous_strides",
    "keep_freed_pages",
    "never_written",
    "no_room",
]
