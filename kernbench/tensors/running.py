"""Runs operations on the host or on a device, and reads their values back to the host."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np

from kernbench.caches import cached
from kernbench.errors import (
    CallSite,
    KernbenchError,
    NoDataError,
    OperandError,
    call_site,
    site_fact,
)
from kernbench.kernels.host_calls import Issue
from kernbench.kernels.lists import duration_ps as duration_of_lists
from kernbench.kernels.names import OPERATORS, kernel_name
from kernbench.kernels.prices import Price, priced
from kernbench.kernels.several import FURTHER
from kernbench.memory import Array, UninitialisedReadError
from kernbench.process.access import other_device
from kernbench.process.act import act, act_at_once
from kernbench.process.process import MAIN, Process, current_process
from kernbench.process.types import CPU, Device, DeviceLike
from kernbench.ranks.spawn_state import spawn_state_of
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.data_executor import in_effect
from kernbench.sim_engine.engine import Hold, tell_writer
from kernbench.sim_engine.host import Read
from kernbench.tensors.errors import TensorError
from kernbench.tensors.host_time import is_recorded
from kernbench.tensors.nodes import GRAD_STATE
from kernbench.tensors.tensor import Tensor


def run(
    process: Process,
    name: str,
    inputs: Sequence[Tensor],
    output: Tensor,
    effect: Callable[[], None] | None,
    *,
    also: Sequence[Tensor] = (),
    price: Price | None = None,
    duration_ps: int | None = None,
    site: CallSite | None = None,
) -> None:
    """Runs an operation where its output lives: at once on the host, as a kernel on a device.

    Args:
        process: The rank, or main, that runs the operation.
        name: Name of the operation in errors; traces show that of its kernel, see `kernels.names`.
        inputs: Tensors that the operation reads, on the device of the output.
        output: Tensor that the operation writes.
        effect: Function that computes the output's bytes; None if there are no bytes to compute.
        also: Further tensors that the operation writes, on the same device.
        price: What the kernel costs; None: what its name does, see `kernels.prices`.
        duration_ps: Duration of the kernel in picoseconds; None: by its price. An operation on the
            host takes no simulated time.
        site: Where the user called the operation; None: to be found.

    Raises:
        TensorError: If an input is on another device than the output.
        OwnershipError: If a tensor belongs to another rank.
        AccessError: If a command on a tensor is under way that nobody has waited for.
    """
    where = output.device
    for tensor in inputs:
        if tensor.device is not where and tensor.device != where:
            raise mixed_devices(name, (*inputs, output))
    sip, writes = where.index, (output, *also)
    if sip is None:
        act_at_once(process, name, effect, reads=inputs, writes=writes, site=site)
        return
    further = FURTHER.get(name)
    name = OPERATORS.get(name, name)
    device = process.engine.devices[sip]
    if duration_ps is None:
        reads = [tensor.window for tensor in inputs]
        windows = [tensor.window for tensor in writes]
        duration_ps = priced(device.library, name, price, reads, windows)
    work = Hold(process.engine, device.compute, duration_ps, effect)
    stream = process.current_stream(sip)
    state = process.locals.get(GRAD_STATE)  # as `is_recorded`, without a call
    issue: Issue = "recorded" if state is None or state.enabled or state.running > 0 else "compute"
    if further is not None:
        process.host.clock += further * (process.dispatches[issue] + process.calls.among)
    act(
        process,
        name,
        "compute",
        stream,
        work,
        reads=inputs,
        writes=writes,
        site=site,
        issue=issue,
    )


class ListKernel(NamedTuple):
    """A kernel that works on lists of tensors, which stand under names.

    Attributes:
        name: PyTorch's operator.
        reads: Lists that it reads; a name that stands for no list means one that a kernel has made,
            like the first of the lists.
        writes: Lists of these that it writes; empty: it makes a new one.
        elements: Elements of each tensor that a kernel has made; None: those of the first list's.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    elements: int | None = None


def run_on_lists(
    process: Process,
    kernels: Sequence[ListKernel],
    lists: Mapping[str, Sequence[Tensor]],
    effect: Callable[[], None],
    inputs: Sequence[Tensor] = (),
) -> None:
    """Runs kernels on lists of tensors of one device; the last one computes what all do.

    Args:
        process: The rank, or main, that runs them.
        kernels: The kernels, in order; at least one.
        lists: Lists of as many tensors each, by name.
        effect: Function that computes the bytes of all that is written.
        inputs: Further tensors that the last kernel reads.

    Raises:
        TensorError: If the tensors are not all on one device.
        OwnershipError: If a tensor belongs to another rank.
        AccessError: If a command on a tensor is under way that nobody has waited for.
    """
    own = next(iter(lists.values()))
    where, every = own[0].device, [*inputs, *chain.from_iterable(lists.values())]
    for tensor in every:
        if tensor.device is not where and tensor.device != where:
            raise mixed_devices(kernels[-1].name, every)

    def of(names: tuple[str, ...]) -> list[Tensor]:
        return [tensor for name in names for tensor in lists.get(name, ())]

    written = tuple(dict.fromkeys(name for each in kernels for name in each.writes))
    sip = where.index
    if sip is None:
        name = kernel_name(kernels[-1].name)
        act_at_once(process, name, effect, reads=every, writes=of(written))
        return
    device, stream, site = process.engine.devices[sip], process.current_stream(sip), call_site()
    sizes = {name: sum([one.window.nbytes for one in each]) for name, each in lists.items()}
    whole = [tensor.window.numel for tensor in own]
    itemsize = own[0].window.dtype.itemsize
    for kernel in kernels:
        made = kernel.writes or kernel.reads[:1]
        names = (*kernel.reads, *made)
        elements = whole if kernel.elements is None else [kernel.elements] * len(own)
        usual = sum(elements) * itemsize
        duration_ps = duration_of_lists(
            device.library,
            "foreach",
            elements,
            sum([sizes.get(name, usual) for name in names]),
            lists=len(kernel.reads) + (not kernel.writes),
            passes=len(names),
        )
        last = kernel is kernels[-1]
        work = Hold(process.engine, device.compute, duration_ps, effect if last else None)
        name, reads = kernel_name(kernel.name), of(kernel.reads)
        reads = [*inputs, *every] if last else reads
        writes = of(written if last else kernel.writes)
        process.host.clock += process.calls.tensor * len(own)
        act(
            process,
            name,
            "compute",
            stream,
            work,
            reads=reads,
            writes=writes,
            site=site,
            issue="recorded" if is_recorded(process) else "compute",
        )


def wait_for(process: Process, command: Command) -> None:
    """Lets the host wait for a command, and so for all earlier commands of its stream."""
    seen = {**command.stream.seen, command.stream: command.number}
    process.wait(command.done, "host" if command.stream.sip < 0 else "stream")
    process.learn(seen)


def host_array(tensor: Tensor, what: str) -> Array:
    """Returns a tensor's values: the host waits for the current stream, then copies from a device.

    The values of a host tensor are returned in place, without a wait.

    Args:
        tensor: A tensor on the host or on a device.
        what: Name of the method that reads, for errors.

    Raises:
        NoDataError: While data is off.
        OperandError: If a kernel reads it, which was given a tensor instead of a number.
        UninitialisedReadError: If some elements were never written.
        AccessError: If a command on the tensor is under way that nobody has waited for.
        LivelockError: If the rank reads the same values for ever, and nothing else is left to
            happen (K6).
    """
    process = current_process()
    if in_effect():
        raise OperandError(
            f"a tensor of shape {list(tensor.window.shape)} was given where the operation takes a "
            "number",
            hint="tensor.item() waits for its value; pass that",
        )
    if not process.engine.enable_data:
        raise NoDataError(
            f"{what}() needs values, and data is off",
            [site_fact(call_site())],
            hint="run with --data on, or data=True",
        )
    host = process.host
    copied: list[Array] = []
    if tensor.is_cpu:
        act_at_once(process, what, lambda: copied.append(tensor.window.read()), reads=(tensor,))
    else:
        host.copies_read += 1
        read_back(process, tensor, lambda values: copied.append(np.array(values)))
    schedule = spawn_state_of(process).schedule
    if schedule is not None:
        schedule.read(process.rank, copied[0])
    process.have_read(lambda: _read_of(tensor))
    return copied[0]


def _read_of(tensor: Tensor) -> Read:
    window = tensor.window
    return Read(window.buffer.allocation, tensor.memory.version, window.offset, window.shape)


def plain(value: Any) -> Any:
    """Returns a value that should be a number; the host waits for that of a tensor, as in PyTorch.

    Args:
        value: A tensor with one element, or anything else, which is returned as it is.

    Raises:
        TensorError: If it is a tensor with another number of elements.
    """
    if not isinstance(value, Tensor):
        return value
    if value.window.numel != 1:
        raise TensorError(
            f"a Tensor with {value.window.numel} elements cannot be converted to Scalar",
            [site_fact(call_site())],
        )
    return host_array(value, "item").item()


def read_back(
    process: Process,
    tensor: Tensor,
    take: Callable[[Array], None],
    *,
    into: Tensor | None = None,
    wait: bool = True,
) -> Command:
    """Copies the values of a tensor on a device to the host, and returns the command.

    Args:
        process: The rank, or main, that reads.
        tensor: Tensor on a device.
        take: Function that gets the values, in place, when the copy is done.
        into: Host tensor to which `take` writes the values; None if it writes to no tensor.
        wait: Whether the host waits. If so, a fault of the copy is raised here, and the stream goes
            on, since no later command depends on the copy.

    Raises:
        UninitialisedReadError: If some elements were never written, and the host waits.
        KernbenchError: If a command of the stream failed earlier, and the host waits.
        AccessError: If a command on the tensor is under way that nobody has waited for.
    """
    sip = cast(int, tensor.device.index)
    stream = process.current_stream(sip)
    device, view, site = process.engine.devices[sip], tensor.window, call_site()
    nbytes = view.nbytes
    failed: list[KernbenchError] = []

    def effect() -> None:
        try:
            take(view.read())
        except KernbenchError as error:
            if not wait:
                raise
            failed.append(error)

    latency = device.spec.host.pcie.latency
    work = Hold(process.engine, device.to_host, device.pcie_ps(nbytes), effect, latency)
    command = act(
        process,
        "Memcpy DtoH",
        "copy",
        stream,
        work,
        reads=(tensor,),
        writes=() if into is None else (into,),
        site=site,
        args={"bytes": nbytes},
    )
    if wait:
        wait_for(process, command)
    if wait and stream.faulted:
        raise KernbenchError(
            f"{process.name} reads from a device on which a command failed earlier",
            [site_fact(site)],
            hint="look at the first error; nothing of that stream was run after it",
        )
    if failed:
        if isinstance(failed[0], UninitialisedReadError):
            tell_writer(failed[0], command)
        failed[0].add_fact(site_fact(site, "read by the host at"))
        raise failed[0]
    return command


@cached("tensors.devices")
def cuda_device(sip: int) -> Device:
    """Returns the device of a SIP; the same object each time, so that comparisons are cheap."""
    return Device("cuda", sip)


def find_device(process: Process, device: DeviceLike | None) -> Device:
    """Returns the device that a `device=` argument means.

    Without an argument it is the process's default device: at first the host on main, and in a rank
    its current device, or the host if the run's default device is `cpu`.

    Raises:
        KernbenchError: If the device does not exist.
        OwnershipError: If the device belongs to another rank (M14).
    """
    if device is None:
        device = process.default_device or process.usual_device
        if device is None:
            return cuda_device(process.device_index)
    wanted = device if isinstance(device, Device) else Device(device)
    if wanted.type == "cpu":
        return CPU
    sip = process.sip_of(wanted)
    if process.rank != MAIN:
        owner = process.ctx.rank_of_device(sip)
        if owner not in {None, process.rank}:
            raise other_device(process.name, sip, process.device_index, owner)
    return cuda_device(sip)


def same_device(name: str, tensors: Sequence[Tensor]) -> Device:
    """Returns the device of an operation on tensors; single values on the host fit every device.

    Raises:
        TensorError: If the tensors are on several devices, as in PyTorch.
    """
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device is not device:
            break
    else:
        return device
    found = {tensor.device for tensor in tensors if tensor.is_cuda or tensor.window.shape}
    if len(found) > 1:
        raise mixed_devices(name, tensors)
    return found.pop() if found else CPU


def check_one_device(name: str, operands: Iterable[object]) -> None:
    """Checks that tensors are on one device, for operations that take no single value of the host.

    Raises:
        TensorError: If they are not.
    """
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    if len({tensor.device for tensor in tensors}) > 1:
        raise mixed_devices(name, tensors)


def mixed_devices(name: str, tensors: Iterable[Tensor]) -> TensorError:
    """Returns the error of an operation that was given tensors on several devices.

    Args:
        name: Name of the operation.
    """
    found: dict[Device, Tensor] = {}
    for tensor in tensors:
        seen = found.get(tensor.device)
        # A single value is rarely the one that was forgotten.
        if seen is None or (tensor.window.shape and not seen.window.shape):
            found[tensor.device] = tensor
    places = sorted(found, key=lambda device: device.index is None)
    told = [(str(place), _told(found[place])) for place in places]
    return on_several_devices(name.removeprefix("aten::"), told)


def on_several_devices(name: str, found: Sequence[tuple[str, str]]) -> TensorError:
    """Returns the error of an operation that was given tensors on several devices.

    Args:
        name: Name of the operation.
        found: A device and the tensor there, for each; where all should be comes first.
    """
    (first, _), (other, moved) = found[:2]
    return TensorError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{first} and {other}!",
        [
            site_fact(call_site()),
            f"{name} got " + " and ".join([f"{told} on {place}" for place, told in found]),
        ],
        hint=f"move the {moved} with .to('{first}'); a module's parameters and buffers move "
        f"with module.to('{first}')",
    )


def _told(tensor: Tensor) -> str:
    return f"tensor {list(tensor.window.shape)} {tensor.window.dtype}"
