"""What is known of an operation, whatever its operands."""

from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch._C import DispatchKey, DispatchKeySet

from kernbench.bridge.distributed.functional import collective
from kernbench.bridge.operations.costs import FREE, cost_of
from kernbench.bridge.operations.costs_gemm import OF_VALUES
from kernbench.bridge.operations.half import widened
from kernbench.bridge.operations.overrides import Kept, defined
from kernbench.bridge.operations.watched import watched
from kernbench.bridge.tensors.hazards import Operands
from kernbench.bridge.tensors.known_numbers import BLANK
from kernbench.bridge.tensors.resizing import Resizes
from kernbench.bridge.tensors.room import place_of_size
from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.sim_engine.engine import GraphEngine

_BACKENDS: Final = tuple(map(DispatchKeySet, (DispatchKey.CPU, DispatchKey.CUDA)))

_READS: Final = frozenset(
    (
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.equal.default,
        torch.ops.aten.is_nonzero.default,
    )
)
"""Operations that give the host a value."""

_BLANK: Final = frozenset(getattr(torch.ops.aten, name) for name in BLANK)

ONTO: Final = frozenset((torch.ops.aten.copy_.default, torch.ops.aten._foreach_copy_.default))
"""Copies into tensors that are there, also ones on the other side of the bus."""

_SIZES_LAST: Final = torch.ops.aten._pack_padded_sequence
"""Gives sizes of batches, too, which the host keeps."""

OF_FLOATS: Final = frozenset((torch.ops.aten.histc.default,))
"""Operations that CUDA has for integers, and a CPU has not."""

HOST_ONLY: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts"),
        *("_histogramdd_from_bin_tensors", "_spdiags", "_upsample_lanczos2d_aa"),
        "_upsample_lanczos2d_aa_backward",
    )
)
"""Operations that a CPU has, and CUDA has not (PyTorch 2.13, `native_functions.yaml`)."""


def refuse_on_device(func: Any) -> None:
    """Refuses an operation of `HOST_ONLY`, as PyTorch does on a GPU.

    Raises:
        UnsupportedError: Always; a `NotImplementedError`, as in PyTorch.
    """
    raise UnsupportedError(
        f"Could not run '{func.name()}' with arguments from the 'CUDA' backend: PyTorch has no "
        "kernel of it for GPUs",
        [site_fact(call_site())],
        hint="move its operands with .cpu()",
    )


class Known:
    """What is known of an operation.

    Args:
        data: Whether tensors have numbers.

    Attributes:
        blank: Whether it makes a tensor without values.
        collective: What does it on a device if it is a functional collective.
        cost: What it is on a device.
        defined: Whether a library defines it in Python, as by `torch.library.custom_op`.
        draws: Whether it draws random numbers.
        func: The operation.
        host_only: Whether PyTorch has no kernel of it for devices.
        on_device: Which of several results are on the device.
        onto: Whether it copies into tensors that are there.
        plain: Whether it runs as it is, with numbers.
        reads: Whether it gives the host a value.
        run: Does it on this computer, with numbers.
        sizes: Whether the shape of what it makes may depend on values, which the host reads then.
        sparse: Whether it makes or takes apart a sparse tensor.
        shards: Whether it is one of FSDP2 for which Python runs once for each parameter.
        repeats: Whether equal operands take equal times.
        resizes: What it does with the sizes of storages.
        size: Which argument is the size of what it makes; -1 if none is.
        operands: What it does with its operands.
        durations: Times in picoseconds, by the shapes and types of the operands.
    """

    __slots__ = (
        *("blank", "collective", "cost", "defined", "draws", "durations", "func", "host_only"),
        *("on_device", "onto", "operands", "plain", "reads", "repeats", "resizes", "run"),
        *("shards", "size", "sizes", "sparse"),
    )

    def __init__(self, func: Any, data: bool) -> None:
        self.func: Final = func
        self.blank: Final = func._overloadpacket in _BLANK
        self.collective: Final = collective(func)
        self.cost: Final = cost_of(func)
        self.defined: Final = defined(func, self.cost)
        self.draws: Final = torch.Tag.nondeterministic_seeded in func.tags
        self.host_only: Final = func._schema.name in HOST_ONLY
        self.on_device: Final = slice(-1 if func._overloadpacket is _SIZES_LAST else None)
        self.onto: Final = func in ONTO
        self.resizes: Final = Resizes(func)
        special = self.draws or self.host_only or func in OF_FLOATS or self.resizes.some
        self.plain: Final = data and not special
        self.reads: Final = func in _READS
        self.size: Final = place_of_size(func)
        self.sizes: Final = torch.Tag.dynamic_output_shape in func.tags
        self.repeats: Final = not self.sizes and func._overloadpacket not in OF_VALUES
        self.shards: Final = func.namespace == "fsdp" and "copy_in" not in str(func)
        self.sparse: Final = "sparse" in func.name()
        self.run: Final = watched(func, widened(func)) if data else widened(func)
        self.operands: Final = Operands(func, self.cost is FREE)
        self.durations: Final[dict[Any, int]] = {}

    def inside(self, touched: bool, args: Any, kwargs: dict[str, Any]) -> Any:
        """Calls the function of the library that defines it: what that calls are its kernels.

        Args:
            touched: Whether an operand is on a device.
        """
        if self.cost.known:  # numbers may stand for tensors
            return self.func._op_dk(DispatchKey.CUDA, *args, **kwargs)
        return self.func.redispatch(_BACKENDS[touched], *args, **kwargs)


_KNOWN: Final[WeakKeyDictionary[GraphEngine, dict[Any, dict[int, Known]]]] = WeakKeyDictionary()


def known_of(engine: GraphEngine, library: Any, data: bool) -> dict[int, Known]:
    """Returns what ranks with one library know of operations, by `id`: their hash is slow.

    Args:
        engine: The machine of the ranks.
        library: What says how long operations take.
        data: Whether tensors have numbers.
    """
    return _KNOWN.setdefault(engine, {}).setdefault((id(library), data), Kept())
