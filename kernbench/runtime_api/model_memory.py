"""What a model needs of its devices' HBM, found before it is there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Final

from kernbench.errors import CallSite, call_site, site_fact
from kernbench.memory import dtypes
from kernbench.memory.allocator import OutOfMemoryError
from kernbench.runtime_api import process as processes
from kernbench.runtime_api.comm.rendezvous import folded
from kernbench.runtime_api.nn.module import Module
from kernbench.runtime_api.optimizer import Optimizer
from kernbench.runtime_api.tensor_base import OperandError
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import Topology
from kernbench.topology.spec import HBM_CAPACITY, SystemSpec
from kernbench.units import Bytes, format_bytes

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

Build = Callable[[int], tuple[Module, Optimizer | None]]
"""Builds the model of a rank, and what will change its parameters."""

_NO_LIMIT: Final = Bytes(1 << 62)
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class TensorSize:
    """A tensor on paper.

    Attributes:
        name: Of the parameter, with dots.
        shape: Extents.
        dtype: PyTorch's name of the type, such as `torch.bfloat16`.
        nbytes: Size in bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int

    def __str__(self) -> str:
        shown = format_bytes(self.nbytes)
        return f"{shown} ({self.nbytes} B) {self.name} {self.dtype}{[*self.shape]}"


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What the model of one rank keeps in HBM between steps; activations are not counted.

    Attributes:
        rank: Global rank.
        sip: Its device.
        capacity: Bytes of HBM.
        parameters: Every parameter once.
        gradients_bytes: One gradient per parameter that needs one, of its type; if they accumulate,
            with the float32 sum that the second backward pass makes of each narrower one.
        optimizer_bytes: What the optimiser keeps per parameter, two tensors with AdamW.
    """

    rank: int
    sip: int
    capacity: int
    parameters: tuple[TensorSize, ...]
    gradients_bytes: int
    optimizer_bytes: int

    @property
    def parameters_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(each.nbytes for each in self.parameters)

    @property
    def total_bytes(self) -> int:
        """Bytes of parameters, gradients and the optimiser's state."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes


def model_memory(
    ctx: "RuntimeContext", build: Build, nprocs: int, *, accumulates: bool = False
) -> list[ModelMemory]:
    """Returns what the model of each rank needs, by rank, without any of it.

    `build` runs once a rank on a copy of the machine that is never short of HBM, holds no values
    and takes no time; what it returns is dropped. Neither the clock nor the memory of `ctx` change.

    Args:
        ctx: The machine.
        build: Called with the rank; returns its module, and its optimiser or None.
        nprocs: Number of ranks.
        accumulates: Whether several backward passes add up before gradients are set to None; also
            if they are set to 0 instead. Parameters narrower than 32 bits then have a sum in
            float32 besides. One that a single pass uses several times has it in any case, which is
            counted with `accumulates` only.

    Raises:
        SpawnException: If `build` fails.
    """
    machine = ctx.engine.topology
    engine = GraphEngine(_roomy(machine), enable_data=False, fidelity="functional", record="none")
    found: dict[int, ModelMemory] = {}
    site = call_site()

    def count(rank: int) -> None:
        model, optimizer = _pair(build(rank), site)
        device = ctx.engine.device(ctx.devices[rank])
        assert device.hbm.capacity is not None
        found[rank] = _counted(
            rank, device.index, device.hbm.capacity, model, optimizer, accumulates
        )

    try:
        with type(ctx)(
            engine=engine,
            target_device=ctx.target_device,
            seed=ctx.seed,
            argv=ctx.argv,
            quiet=True,
            watchdog_s=ctx.watchdog_s,
        ) as paper:
            paper.multiprocessing.spawn(count, nprocs=nprocs)
    finally:
        processes.made(ctx.main)
    return [found[rank] for rank in range(nprocs)]


def check_model_fits(
    ctx: "RuntimeContext", build: Build, nprocs: int, *, accumulates: bool = False
) -> list[ModelMemory]:
    """Does what `model_memory` does, and refuses a model that does not fit its devices.

    Parameters, one gradient for each, and the optimiser's state are counted; activations, which
    depend on what the model is called with, are not.

    Args:
        ctx: The machine.
        build: Called with the rank.
        nprocs: Number of ranks.
        accumulates: Whether gradients of several backward passes add up, see `model_memory`.

    Raises:
        OutOfMemoryError: If they do not fit (M7): names ranks, tensors and bytes.
        SpawnException: If `build` fails.
    """
    found = model_memory(ctx, build, nprocs, accumulates=accumulates)
    large = [each for each in found if each.total_bytes > each.capacity]
    if large:
        raise _too_large(large, accumulates, ctx.engine.topology.machine.system)
    return found


def _pair(built: object, site: CallSite | None) -> tuple[Module, Optimizer | None]:
    match built:
        case (Module() as model, Optimizer() | None as optimizer):
            return model, optimizer
    raise OperandError(
        "build(rank) returns a module, and its optimizer or None",
        [site_fact(site), f"got {type(built).__name__}"],
        hint="without an optimizer: return model, None",
    )


def _roomy(machine: Topology) -> Topology:
    """Returns the machine with more memory than any model needs in every SIP."""
    system = machine.machine.system.with_hbm(_NO_LIMIT)
    return Topology(replace(machine.machine, system=system), machine.spec)


def _counted(
    rank: int,
    sip: int,
    capacity: int,
    model: Module,
    optimizer: Optimizer | None,
    accumulates: bool,
) -> ModelMemory:
    parameters, gradients = [], 0
    for name, parameter in model.named_parameters():
        shape, dtype = tuple(parameter.shape), parameter.dtype
        size = TensorSize(name, shape, str(dtype), prod(shape) * dtype.itemsize)
        parameters.append(size)
        if parameter.requires_grad:
            gradients += size.nbytes
            if accumulates and dtype.itemsize < dtypes.float32.itemsize:
                gradients += prod(shape) * dtypes.float32.itemsize
    state = 0 if optimizer is None else optimizer.state_bytes()
    return ModelMemory(rank, sip, capacity, tuple(parameters), gradients, state)


def _too_large(large: list[ModelMemory], accumulates: bool, system: SystemSpec) -> OutOfMemoryError:
    worst = max(large, key=lambda each: (each.total_bytes, -each.rank))
    by_size = sorted(worst.parameters, key=lambda each: -each.nbytes)
    rest = by_size[_SHOWN:]
    facts = [
        f"{name} {format_bytes(nbytes)} ({nbytes} B)"
        for name, nbytes in (
            ("parameters", worst.parameters_bytes),
            ("gradients", worst.gradients_bytes),
            ("optimizer state", worst.optimizer_bytes),
        )
    ]
    facts += [
        "gradients add up over backward passes: with float32 sums of narrower ones"
        if accumulates
        else "gradients are of one backward pass a step; accumulates=True counts several",
        "activations are not counted",
        "largest parameters:",
    ]
    facts += [f"  {each}" for each in by_size[:_SHOWN]]
    if rest:
        facts.append(f"  and {len(rest)} more, {format_bytes(sum(each.nbytes for each in rest))}")
    others = [each for each in large if each is not worst]
    if others:
        most = format_bytes(max(each.total_bytes for each in others))
        facts.append(f"{folded([each.rank for each in others])} neither, with up to {most}")
    return OutOfMemoryError(
        f"the model of rank {worst.rank} does not fit its device cuda:{worst.sip}: it needs "
        f"{format_bytes(worst.total_bytes)}, and the device has {format_bytes(worst.capacity)} "
        "of HBM",
        facts,
        hint="shard the model over more ranks (tensor parallelism), take a smaller type, or raise "
        f"{system.field_of(worst.sip, *HBM_CAPACITY)} in the topology file",
        code="M7",
    )
