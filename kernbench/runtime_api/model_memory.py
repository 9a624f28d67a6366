"""Memory that a model needs in its devices' HBM, computed before the model runs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import prod
from typing import Final, Protocol

from kernbench.errors import CallSite, OperandError, call_site, site_fact
from kernbench.memory import dtypes
from kernbench.memory.allocator import OutOfMemoryError
from kernbench.nn.module import Module
from kernbench.optim.optimizer import Optimizer
from kernbench.process import process as processes
from kernbench.process.process import Session
from kernbench.ranks.ranges import folded
from kernbench.runtime_api.multiprocessing import spawn
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import Topology
from kernbench.topology.spec import HBM_CAPACITY, SystemSpec
from kernbench.units import Bytes, format_bytes


class Machine(Session, Protocol):
    """A context of which a copy on another engine can be made."""

    def twin(self, engine: GraphEngine) -> AbstractContextManager[Session]:
        """Returns a context with the same devices, seed and arguments that prints nothing."""
        ...


Build = Callable[[int], tuple[Module, Optimizer | None]]
"""Called with a rank; returns the rank's model, and the optimiser of its parameters or None."""

_NO_LIMIT: Final = Bytes(1 << 62)
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class TensorSize:
    """The size of a tensor that need not exist.

    Attributes:
        name: Name of the parameter, with dots.
        shape: Extent of each dimension.
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
        sip: Index of the rank's SIP.
        capacity: Bytes of HBM.
        parameters: Every parameter once.
        gradients_bytes: Bytes of one gradient, of the parameter's type, for each parameter that
            needs one. If gradients accumulate, the float32 sum that the second backward pass makes
            of each narrower gradient counts too.
        optimizer_bytes: Bytes that the optimiser keeps; with AdamW two tensors per parameter.
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
    ctx: Machine, build: Build, nprocs: int, *, accumulates: bool = False
) -> list[ModelMemory]:
    """Returns what the model of each rank needs, by rank, without running the model.

    `build` runs once a rank on a copy of the machine that never runs out of HBM, holds no values
    and takes no time; its results are dropped. Neither the clock nor the memory of `ctx` change.

    Args:
        build: Called with the rank; returns its module, and its optimiser or None.
        accumulates: Whether several backward passes add up before gradients are set to None, also
            if they are set to 0 instead. Each gradient narrower than 32 bits then has a sum in
            float32 besides. A parameter that one backward pass uses several times has such a sum in
            any case, but it is counted with `accumulates` only.

    Raises:
        SpawnException: If `build` fails.
    """
    machine = ctx.engine.topology
    engine = GraphEngine(_roomy(machine), enable_data=False, fidelity="functional", record="none")
    found: dict[int, ModelMemory] = {}
    site = call_site()

    def count(rank: int) -> None:
        model, optimizer = _pair(build(rank), site)
        device = ctx.engine.devices[ctx.devices[rank]]
        assert device.hbm.capacity is not None
        found[rank] = _counted(
            rank, device.index, device.hbm.capacity, model, optimizer, accumulates
        )

    try:
        with ctx.twin(engine):
            spawn(count, nprocs=nprocs)
    finally:
        processes.made(ctx.main)
    return [found[rank] for rank in range(nprocs)]


def check_model_fits(
    ctx: Machine, build: Build, nprocs: int, *, accumulates: bool = False
) -> list[ModelMemory]:
    """Returns what the model of each rank needs, as `model_memory`; refuses one that does not fit.

    Parameters, one gradient for each, and the optimiser's state are counted. Activations are not,
    since they depend on the arguments of the model's calls.

    Args:
        build: Called with the rank; returns its module, and its optimiser or None.
        accumulates: Whether gradients of several backward passes add up, see `model_memory`.

    Raises:
        OutOfMemoryError: If the model does not fit (M7); the error names ranks, tensors and bytes.
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
