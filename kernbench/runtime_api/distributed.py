"""`torch.distributed`: process groups and collectives between ranks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from kernbench.ccl.collective import Collective, Reduction
from kernbench.des import Event
from kernbench.errors import KernbenchError, UnsupportedError, call_site, site_fact
from kernbench.memory import DType, dtypes
from kernbench.runtime_api.process import MAIN, Process, current_process
from kernbench.runtime_api.rendezvous import Call, CollectiveMismatchError, ProcessGroup
from kernbench.runtime_api.tensor_base import (
    TensorBase,
    check_access,
    is_contiguous,
    new_tensor,
    numel,
)
from kernbench.runtime_api.types import Device
from kernbench.sim_engine.command import Command, Stream

__all__ = [
    "ReduceOp",
    "Work",
    "all_reduce",
    "barrier",
    "destroy_process_group",
    "get_backend",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_available",
    "is_initialized",
]

BACKENDS: Final = ("nccl", "gloo", "ccl")


class ReduceOp:
    """`torch.distributed.ReduceOp`: how values of ranks are combined.

    `AVG` divides the sum by the number of ranks at the end, and takes floats only.
    """

    SUM: Final = Reduction("sum", "add")
    AVG: Final = Reduction("avg", "add", average=True)
    PRODUCT: Final = Reduction("product", "multiply")
    MIN: Final = Reduction("min", "minimum")
    MAX: Final = Reduction("max", "maximum")
    BAND: Final = Reduction("band", "bitwise_and")
    BOR: Final = Reduction("bor", "bitwise_or")
    BXOR: Final = Reduction("bxor", "bitwise_xor")


def _nothing() -> None:
    pass


def _nobody(ranks: Iterable[int], error: BaseException) -> None:
    del ranks, error


@dataclass(slots=True, eq=False)
class World:
    """The ranks of a context while a spawn runs.

    Attributes:
        size: How many; 0 while nothing is spawned.
        group: All of them.
        exited: Ranks whose function has ended.
        backend: By rank, what `init_process_group` was given.
        works: By rank, the asynchronous operations that it has issued.
        rank_by_greenlet: Which rank a running stack belongs to.
        review: Looks, at the end of the instant, for collectives that cannot complete.
        blame: Says that ranks have failed with an error.
    """

    size: int = 0
    group: ProcessGroup | None = None
    exited: dict[int, Process] = field(default_factory=dict)
    backend: dict[int, str] = field(default_factory=dict)
    works: dict[int, list["Work"]] = field(default_factory=dict)
    rank_by_greenlet: dict[object, int] = field(default_factory=dict)
    review: Callable[[], None] = _nothing
    blame: Callable[[Iterable[int], BaseException], None] = _nobody


class Work:
    """`torch.distributed.Work`: an asynchronous collective."""

    def __init__(self, process: Process, command: Command) -> None:
        self._process = process
        self._command = command

    @property
    def done(self) -> Event:
        """Its completion."""
        return self._command.done

    @property
    def command(self) -> Command:
        """What runs on the communication stream."""
        return self._command

    def wait(self) -> bool:
        """Makes the current stream wait for the operation; the host goes on. Returns True."""
        process = current_process()
        command = self._command
        stream = process.current_stream(command.stream.sip)
        if stream is not command.stream:
            stream.waits.append(command.done)
            stream.learn({**command.stream.seen, command.stream: command.number})
        return True

    def is_completed(self) -> bool:
        """Returns whether the operation is over at the host's time. May wait."""
        process = current_process()
        host = process.host
        host.poll(process.engine.dispatch_ps)
        time = self._command.done.time
        return time is not None and time <= host.clock


def is_available() -> bool:
    """Returns True: it is what this package is for."""
    return True


def is_initialized() -> bool:
    """Returns whether the calling rank has called `init_process_group`."""
    process = current_process()
    return process.rank in process.ctx.world.backend


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: object = None,
    world_size: int = -1,
    rank: int = -1,
    store: object = None,
    group_name: str = "",
    pg_options: object = None,
    device_id: object = None,
) -> None:
    """Makes the group of all ranks usable by the calling rank; takes no simulated time.

    Args:
        backend: `nccl`, `gloo` or `ccl`; they name the same simulated library.
        init_method: None or `env://`; ranks find each other by themselves.
        timeout: Ignored by design: a hang is found when it happens, not after a time.
        world_size: If given, must be that of the spawn.
        rank: If given, must be the calling rank's.
        store: Must be None.
        group_name: Must be empty.
        pg_options: Must be None.
        device_id: If given, must be the calling rank's device.

    Raises:
        KernbenchError: If called twice (C18), on main, or with values that do not fit.
    """
    del timeout
    process = current_process()
    world = process.ctx.world
    if process.rank == MAIN:
        raise KernbenchError(
            "init_process_group was called on main, which is no rank",
            [site_fact(call_site())],
            hint="call it in the worker that multiprocessing.spawn runs",
        )
    if process.rank in world.backend:
        raise KernbenchError(
            f"rank {process.rank} called init_process_group twice",
            [site_fact(call_site())],
            hint="call destroy_process_group in between",
            code="C18",
        )
    for name, value, neutral in (
        ("store", store, None),
        ("pg_options", pg_options, None),
        ("group_name", group_name, ""),
    ):
        if value != neutral:
            raise UnsupportedError(
                f"init_process_group({name}=) is not simulated", [site_fact(call_site())]
            )
    chosen = "ccl" if backend is None else backend.lower().removeprefix("cuda:")
    for name, value, expected in (
        ("backend", chosen, BACKENDS),
        ("init_method", init_method, (None, "env://")),
        ("world_size", world_size, (-1, world.size)),
        ("rank", rank, (-1, process.rank)),
    ):
        if value not in expected:
            raise KernbenchError(
                f"init_process_group({name}={value!r}) on rank {process.rank}",
                [site_fact(call_site()), f"expected one of {', '.join(map(repr, expected))}"],
            )
    if device_id is not None:
        _check_device(process, device_id)
    world.backend[process.rank] = chosen


def _check_device(process: Process, device_id: Any) -> None:
    if process.sip_of(Device(device_id)) != process.device_index:
        raise KernbenchError(
            f"init_process_group(device_id={device_id!r}) on rank {process.rank}",
            [site_fact(call_site()), f"its device is cuda:{process.device_index}"],
        )


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Ends the use of the group by the calling rank; takes no simulated time.

    Raises:
        KernbenchError: If it was not initialised (C18), or operations on it are pending.
    """
    process = current_process()
    world = process.ctx.world
    _group(process, group, "destroy_process_group")
    pending = [
        work for work in world.works.get(process.rank, []) if not process.knows(work.command)
    ]
    if pending:
        raise KernbenchError(
            f"rank {process.rank} destroys the group while {len(pending)} operations are pending",
            [site_fact(call_site()), site_fact(pending[0].command.site, "issued at")],
            hint="call work.wait() first",
            code="C13",
        )
    del world.backend[process.rank]


def get_backend(group: ProcessGroup | None = None) -> str:
    """Returns the name given to `init_process_group`."""
    process = current_process()
    _group(process, group, "get_backend")
    return process.ctx.world.backend[process.rank]


def get_rank(group: ProcessGroup | None = None) -> int:
    """Returns the calling rank; in a worker also before `init_process_group`.

    Raises:
        KernbenchError: On main, which is no rank.
    """
    process = current_process()
    if process.rank == MAIN:
        raise KernbenchError("main is no rank", [site_fact(call_site())])
    if group is not None:
        return group.ranks.index(process.rank)
    return process.rank


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Returns the number of ranks; on main, of those that the machine can hold."""
    process = current_process()
    if group is not None:
        return group.size()
    return process.ctx.world.size or len(process.ctx.devices)


def _group(process: Process, group: ProcessGroup | None, name: str) -> ProcessGroup:
    world = process.ctx.world
    if process.rank not in world.backend or world.group is None:
        raise KernbenchError(
            f"{process.name} called {name} without an initialised process group",
            [site_fact(call_site())],
            hint="call torch.distributed.init_process_group() in every worker first",
            code="C18",
        )
    return world.group if group is None else group


def all_reduce(
    tensor: TensorBase,
    op: Reduction = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combines the tensors of all ranks, in place; every rank ends with the same bits.

    The host goes on at once; the collective has its place in the current stream, or, with
    `async_op`, in the communication stream behind what the current stream holds now.

    Args:
        tensor: On the calling rank's device, contiguous, of one shape and dtype on all ranks.
        op: How to combine; partial results are rounded to the tensor's dtype.
        group: None for all ranks.
        async_op: Whether to return a `Work` to wait for.

    Raises:
        CollectiveMismatchError: If the ranks do not call the same thing (C1-C5).
        KernbenchError: If the tensor cannot take part.
    """
    return _reduce("all_reduce", tensor, tensor, op, group, async_op)


def functional_all_reduce(
    tensor: TensorBase, op: Reduction = ReduceOp.SUM, group: ProcessGroup | None = None
) -> TensorBase:
    """Does what `all_reduce` does, out of place, and returns the result."""
    process = current_process()
    out = new_tensor(process, tensor.window.shape, tensor.dtype, tensor.device)
    _reduce("all_reduce", tensor, out, op, group, False)
    return out


def barrier(group: ProcessGroup | None = None) -> None:
    """Waits, on the host, until every rank has come: an all-reduce of one element, as in NCCL."""
    process = current_process()
    _group(process, group, "barrier")
    token = new_tensor(process, (1,), dtypes.int32, Device("cuda", process.device_index))
    if process.engine.enable_data:
        token.window.buffer.poison(dtypes.int32)
        token.window.write()[...] = 0
    _reduce("barrier", token, token, ReduceOp.SUM, group, False)
    process.wait_stream(process.current_stream(process.device_index))


def _reduce(
    operation: str,
    source: TensorBase,
    target: TensorBase,
    op: Reduction,
    group: ProcessGroup | None,
    async_op: bool,
) -> Work | None:
    process = current_process()
    members = _group(process, group, operation)
    _check_tensor(process, operation, source)
    _check_op(operation, op, source.dtype)
    sip = source.device.index
    assert sip is not None
    current = process.current_stream(sip)
    stream = process.communication_stream(sip) if async_op else current
    check_access(process, source, current, "wrote" if source is target else "read")
    world = process.ctx.world
    call = Call(
        process.rank,
        operation,
        source.window.shape,
        source.dtype,
        op.name,
        call_site(),
        process.host.clock,
    )

    def make() -> Collective:
        return Collective(
            process.ctx.collectives,
            process.ctx.algorithm,
            "all_reduce",
            [process.ctx.devices[rank] for rank in members.ranks],
            numel(source.window.shape),
            source.dtype,
            op,
        )

    try:
        meeting = members.enter(call, make)
    except CollectiveMismatchError as error:
        world.blame(members.open[members.number(process.rank)].calls, error)
        raise
    if world.exited and any(rank in world.exited for rank in members.absent(meeting)):
        world.review()
    _order(members, process.rank, current, stream)
    work = meeting.shared.join(members.ranks.index(process.rank), source.window, target.window)
    nbytes = numel(source.window.shape) * source.dtype.itemsize
    args = {
        "group": members.name,
        "sequence": meeting.number,
        "bytes": nbytes,
        "dtype": source.dtype.name,
        "algorithm": process.ctx.algorithm.name,
    }
    command = process.issue(operation, "collective", stream, work, site=call.site, args=args)
    call.command = command
    members.last[process.rank] = command
    if source is not target:
        source.memory.read(command, source.window)
    target.memory.wrote(command, target.window)
    if not async_op:
        return None
    handle = Work(process, command)
    world.works.setdefault(process.rank, []).append(handle)
    return handle


def _order(group: ProcessGroup, rank: int, current: Stream, stream: Stream) -> None:
    """Puts a collective behind what its stream, the current one and the group hold."""
    if stream is not current and current.tail is not None:
        stream.waits.append(current.tail)
        stream.learn({**current.seen, current: current.count})
    last = group.last.get(rank)
    if last is not None and last.stream is not stream:
        # A communicator runs one operation at a time, whatever the streams.
        stream.waits.append(last.done)


def _check_tensor(process: Process, operation: str, tensor: TensorBase) -> None:
    if not tensor.is_cuda or tensor.device.index != process.device_index:
        raise KernbenchError(
            f"rank {process.rank} called {operation} on a tensor on {tensor.device}",
            [site_fact(call_site()), f"expected one on cuda:{process.device_index}"],
            hint="move it with .to('cuda') first",
        )
    if not is_contiguous(tensor.window):
        raise KernbenchError(
            f"rank {process.rank} called {operation} on a tensor that is not contiguous",
            [
                site_fact(call_site()),
                f"shape {list(tensor.window.shape)}, strides {list(tensor.window.strides)}",
            ],
            hint="call .contiguous() first, and use its result",
        )


def _check_op(operation: str, op: Reduction, dtype: DType) -> None:
    if not isinstance(op, Reduction):
        raise KernbenchError(
            f"{operation}: {op!r} is no reduce operation",
            [site_fact(call_site()), "expected one of torch.distributed.ReduceOp"],
            code="C6",
        )
    bits = op.combine.startswith("bitwise")
    fp8 = dtype in {dtypes.float8_e4m3fn, dtypes.float8_e5m2}
    if (bits and dtype.is_floating_point) or (op.average and not dtype.is_floating_point) or fp8:
        raise KernbenchError(
            f"{operation}: {op.name} is not defined for {dtype}",
            [site_fact(call_site())],
            hint="sum, product, min and max take every type but 8-bit floats; avg takes floats, "
            "band, bor and bxor integers",
            code="C6",
        )
