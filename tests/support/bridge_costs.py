"""Costs of operations of PyTorch, asked of a library that keeps what it is asked for."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from kernbench.hw.library import Library
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

torch = pytest.importorskip("torch")


class Asked:
    """Stands for the library of a device: keeps what it was asked for; every launch takes 1 ps.

    Attributes:
        kernels: Bytes (at the whole bandwidth) and operations of each kernel with traffic.
        launches: How many launches there were.
        products: Arguments of each product of matrices.
        attentions: Arguments of each attention.
        tiles: Types that have tiles.
        kernel: What the machine's file says of a kernel.
        has: Whether it says something of a kernel.
        num_pes: PEs of the device.
        sram_bytes: Capacity of its L2.
    """

    def __init__(self) -> None:
        self.kernels: list[tuple[int, int]] = []
        self.launches = 0
        self.products: list[tuple[Any, ...]] = []
        self.attentions: list[tuple[Any, ...]] = []
        self.tiles = dict.fromkeys(("bf16", "fp32", "fp8", "tf32"))
        machine = load_topology("h200x8").topology_obj.machine
        library = Library(machine.system.sip)
        self.kernel, self.has, self.num_pes = library.kernel, library.has, library.num_pes
        self.sram_bytes = library.sram_bytes

    def multiplies(self, name: str) -> bool:
        """Returns whether there is a rate for a type."""
        return name in self.tiles

    def elementwise(self, nbytes: int, operations: int) -> int:
        """Keeps a kernel; one without traffic is a launch, of which a caller adds many."""
        if nbytes or operations:
            self.kernels.append((nbytes, operations))
        return 1

    def matmul(self, *given: Any) -> int:
        """Keeps a product."""
        self.products.append(given)
        return 1

    def tiled(self, *given: Any) -> int:
        """Keeps a product of a convolution."""
        self.products.append(given)
        return 1

    def attention(self, *given: Any) -> int:
        """Keeps attention."""
        self.attentions.append(given)
        return 1


def asked(call: Callable[[], object]) -> Asked:
    """Returns what the costs of the operations of a call ask of a library.

    Args:
        call: Calls operations of PyTorch, on tensors without numbers.
    """
    from kernbench.bridge.operations.costs import cost_of

    library = Asked()

    class Costs(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            cost: Any = cost_of(func)
            library.launches += cost.duration(library, args, kwargs, out)
            return out

    with Costs():
        call()
    return library


def new(*shape: int, dtype: Any = torch.float32) -> Any:
    """Returns a tensor without numbers."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def on_one_rank(worker: Callable[[], object], *, data: bool = True) -> list[str]:
    """Runs a function on one rank of real PyTorch, and returns the names of its commands.

    Args:
        worker: The function.
        data: Whether tensors have numbers.
    """
    from kernbench.bridge import bridged

    names: list[str] = []
    timing: Any = importlib.import_module("kernbench.bridge.operations.timing")
    transfers: Any = importlib.import_module("kernbench.bridge.operations.transfers")
    issuing = ((transfers, "act"), (timing.Alone, "issue"))
    were = [getattr(owner, name) for owner, name in issuing]

    def noting(real: Callable[..., Any]) -> Callable[..., Any]:
        def issue(issuer: Any, name: str, *rest: Any, **named: Any) -> Any:
            names.append(name)
            return real(issuer, name, *rest, **named)

        return issue

    def main(rank: int) -> None:
        del rank
        worker()

    topology = load_topology("h200x8").topology_obj
    engine = GraphEngine(topology, enable_data=False, moves_at_call=data)
    for (owner, name), real in zip(issuing, were, strict=True):
        setattr(owner, name, noting(real))
    try:
        with RuntimeContext(engine=engine, quiet=True), bridged(data=data):
            torch.multiprocessing.spawn(main, nprocs=1)
    finally:
        for (owner, name), real in zip(issuing, were, strict=True):
            setattr(owner, name, real)
    return names
