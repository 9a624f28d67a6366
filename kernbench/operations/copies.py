"""Copies: between types, between host and device, between devices."""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from kernbench.errors import OperandError, UnsupportedError, call_site, site_fact, warn_at_call
from kernbench.memory import Array, DType, Storage, View, contiguous_strides, dtypes
from kernbench.memory.windows import is_contiguous
from kernbench.operations.elementwise import check_distinct, layout
from kernbench.process.act import Entered, act, act_at_once
from kernbench.process.process import MAIN, Process, current_process
from kernbench.process.types import CPU, Device, DeviceLike
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.data_executor import Effect
from kernbench.sim_engine.engine import GraphEngine, Hold
from kernbench.symmetric.links import Move, send
from kernbench.tensors import tape
from kernbench.tensors.errors import TensorError, refuse
from kernbench.tensors.memory import Label, Memory
from kernbench.tensors.new import alias, new_tensor, wrap
from kernbench.tensors.promotion import FLOATS, category
from kernbench.tensors.running import find_device, read_back, run, wait_for
from kernbench.tensors.tensor import Tensor

__all__ = ["clone"]


def copy_(self: Tensor, other: Tensor, non_blocking: bool = False) -> Tensor:
    """Copies `other`, broadcast and converted, into this tensor, as `torch.Tensor.copy_`.

    Within a device the copy is a kernel. From host to device the call takes the bytes at once, and
    the host waits; from pinned memory with `non_blocking` the bytes are read when the copy
    executes, and must not be written before. From device to host the host waits, unless
    `non_blocking` is given and this tensor is pinned.

    Raises:
        OperandError: If `other` is no tensor.
        TensorError: If the shape of `other` does not broadcast to that of this tensor.
        AccessError: If an operation on one of the tensors is under way for which no stream or host
            has waited.
    """
    if not isinstance(other, Tensor):
        raise OperandError(
            f"copy_ takes a tensor; got {type(other).__name__}", [site_fact(call_site())]
        )
    check_distinct("copy_", self)
    target, source = self.window, other.window
    if source.shape != target.shape and not _spreads(source.shape, target.shape):
        raise TensorError(
            f"The shape {list(source.shape)} cannot be broadcast to {list(target.shape)}",
            [site_fact(call_site())],
        )
    process, node = current_process(), None
    if (self.memory.tracked or other.memory.tracked) and category(self.dtype) >= FLOATS:
        node = tape.begin(process, "aten::copy", (self, other), out=self)
    _transfer(process, other, self, non_blocking, fresh=False)
    if node is not None:
        tape.finish(node, self)
    return self


def _spreads(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    missing = len(wanted) - len(shape)
    return missing >= 0 and all(n in {1, m} for n, m in zip(shape, wanted[missing:], strict=True))


def _transfer(
    process: Process, src: Tensor, out: Tensor, non_blocking: bool, *, fresh: bool
) -> None:
    """Copies `src` to `out`; `fresh` says that nobody else has seen `out` yet."""
    if src.window.dtype.is_complex and not out.window.dtype.is_complex:
        _warn_of_parts(out.window.dtype)
    if src.device == out.device:
        put, elements = _putter(out.window, fresh), _taker(process, src.window, fresh)
        name = "aten::_to_copy" if fresh else "aten::copy_"
        run(process, name, (src,), out, lambda: put(*elements()))
    elif src.device.index is None:
        _upload(process, src, out, non_blocking, fresh)
    else:
        if src.dtype is not out.dtype:
            src = _converted(process, src, out.dtype)
        if out.device.index is None:
            _download(process, src, out, non_blocking, fresh)
        elif process.rank != MAIN:
            raise UnsupportedError(
                f"{process.name} copies from {src.device} to {out.device}: copies between devices "
                "are simulated on main only",
                [site_fact(call_site())],
                hint="ranks exchange data through torch.distributed",
            )
        else:
            _peer_copy(process, src, out, fresh)


def _warn_of_parts(dtype: DType) -> None:
    if dtype is not dtypes.bool_:
        warn_at_call("Casting complex values to real discards the imaginary part")


def _putter(target: View, fresh: bool) -> Callable[..., None]:
    def put(values: Array, gaps: Array | None = None) -> None:
        if fresh:
            target.adopt(np.array(values))
        else:
            target.store(values)
        if gaps is not None:
            target.leave(gaps)

    return put


def _taker(process: Process, source: View, fresh: bool) -> Callable[[], tuple[Array, Array | None]]:
    """Returns a function that reads a tensor, and tells which elements were never written.

    As in PyTorch, a model made on the host may go to its device before it has values.
    """
    allowed = fresh and process.strict

    def take() -> tuple[Array, Array | None]:
        gaps = source.gaps() if allowed else None
        return (source.read() if gaps is None else source.array()), gaps

    return take


def _converted(process: Process, src: Tensor, dtype: DType) -> Tensor:
    out = new_tensor(process, src.window.shape, dtype, src.device)
    _transfer(process, src, out, False, fresh=True)
    return out


def _upload(process: Process, src: Tensor, out: Tensor, non_blocking: bool, fresh: bool) -> None:
    put, elements = _putter(out.window, fresh), _taker(process, src.window, fresh)
    if src.memory.pinned or not process.engine.enable_data:
        command = _to_device(process, src, out, lambda: put(*elements()))
    else:
        taken: list[Array | None] = []

        def take() -> None:
            values, gaps = elements()
            taken[:] = np.array(values), gaps

        act_at_once(process, "copy to a device", take, reads=(src,))
        command = _to_device(process, None, out, lambda: put(*taken))
    if not (src.memory.pinned and non_blocking):
        wait_for(process, command)


def _to_device(process: Process, src: Tensor | None, out: Tensor, effect: Effect) -> Command:
    """Issues a copy from the host, from a tensor there or from what is none, to `out`."""
    sip = out.device.index
    assert sip is not None
    device = process.engine.devices[sip]
    nbytes = out.window.nbytes
    latency = device.spec.host.pcie.latency
    work = Hold(process.engine, device.to_device, device.pcie_ps(nbytes), effect, latency)
    return act(
        process,
        "Memcpy HtoD",
        "copy",
        process.current_stream(sip),
        work,
        reads=() if src is None else (src,),
        writes=(out,),
        args={"bytes": nbytes},
    )


def _download(process: Process, src: Tensor, out: Tensor, non_blocking: bool, fresh: bool) -> None:
    put = _putter(out.window, fresh)
    wait = not (out.memory.pinned and non_blocking)
    read_back(process, src, lambda values: put(np.array(values)), into=out, wait=wait)


class PeerCopy:
    """Action that moves bytes from one SIP to another over the machine's links.

    Args:
        engine: Engine of the machine.
        source: SIP that sends.
        destination: SIP that receives.
        nbytes: Number of bytes.
        effect: Called when the copy is done; moves the bytes.
    """

    def __init__(
        self, engine: GraphEngine, source: int, destination: int, nbytes: int, effect: Effect
    ) -> None:
        self._engine: Final = engine
        self._ends: Final = (source, destination)
        self._nbytes: Final = nbytes
        self._effect: Final = effect

    def begin(self, command: Command, start: int) -> None:
        """See `kernbench.sim_engine.command.Action`."""
        engine = self._engine
        if engine.timed:
            owner = engine.command_owner(command.host.rank)
            engine.loop.at(start, owner, self._send, command, start)
        else:
            engine.complete(command, start, start, self._effect)

    def _send(self, command: Command, start: int) -> None:
        engine, (source, destination) = self._engine, self._ends

        def arrived(end: int) -> None:
            engine.complete(command, start, end, self._effect)

        move = Move(source, destination, self._nbytes)
        send(engine, command.host.rank, [move], start, arrived)


def _peer_copy(process: Process, src: Tensor, out: Tensor, fresh: bool) -> None:
    """Copies between two devices: on the source's stream, between what either stream holds."""
    source_sip, sip = src.device.index, out.device.index
    assert source_sip is not None
    assert sip is not None
    stream, target_stream = process.current_stream(source_sip), process.current_stream(sip)
    source, put = src.window, _putter(out.window, fresh)

    def enter() -> Entered:
        if target_stream.tail is not None:
            stream.waits.append(target_stream.tail)
            stream.learn({**target_stream.seen, target_stream: target_stream.count})
        work = PeerCopy(
            process.engine, source_sip, sip, source.nbytes, lambda: put(np.array(source.read()))
        )
        return Entered(work, None, {"bytes": source.nbytes})

    command = act(process, "Memcpy PtoP", "copy", stream, enter, reads=(src,), writes=(out,))
    target_stream.waits.append(command.done)
    target_stream.learn({**stream.seen, stream: command.number})


# Conversions


def to(
    self: Tensor,
    *args: "DeviceLike | DType | Tensor | bool | None",
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    non_blocking: bool = False,
    copy: bool = False,
) -> Tensor:
    """Returns the tensor in another type, on another device, or both, as `torch.Tensor.to`.

    If nothing changes, the result is the tensor itself. `non_blocking` from a device to the host
    returns pinned memory, which must not be read before a wait for the stream.

    Args:
        *args: `dtype`, `device`, `device, dtype` or `tensor`; then `non_blocking` and `copy`.
        dtype: Element type of the result; the tensor's own by default.
        device: Device of the result; the tensor's own by default.
        non_blocking: Whether the host need not wait for copies from or to pinned memory.
        copy: Whether to copy even if nothing changes.

    Raises:
        OperandError: If a positional argument is no dtype, device or tensor.
        OwnershipError: If the device belongs to another rank (M14).
    """
    flags: list[bool] = []
    if len(args) > 4 or sum([isinstance(arg, bool) for arg in args]) > 2:
        raise OperandError(
            f"to() takes at most 4 positional arguments; got {len(args)}",
            [site_fact(call_site())],
            hint="write to(device, dtype, non_blocking, copy), to(dtype), to(device) or to(tensor)",
        )
    for arg in args:
        if isinstance(arg, Tensor):
            device, dtype = arg.device, arg.dtype
        elif isinstance(arg, DType):
            dtype = arg
        elif isinstance(arg, bool):
            flags.append(arg)
        elif isinstance(arg, str | int | Device):
            device = arg
        elif arg is not None:
            raise OperandError(
                f"to() takes a dtype, a device or a tensor; got {arg!r}", [site_fact(call_site())]
            )
    if flags:
        non_blocking, copy = (*flags, copy)[:2]
    process = current_process()
    where = self.device if device is None else find_device(process, device)
    dtype = dtype or self.dtype
    if where == self.device and dtype is self.dtype and not copy:
        return self
    return _moved(process, self, where, dtype, non_blocking)


def _moved(
    process: Process, src: Tensor, where: Device, dtype: DType, non_blocking: bool
) -> Tensor:
    pinned = non_blocking and where is CPU and src.is_cuda
    strides = layout(src.window.shape, (src,))
    out = new_tensor(process, src.window.shape, dtype, where, pinned=pinned, strides=strides)
    node = None
    if src.memory.tracked and category(src.dtype) >= FLOATS and category(dtype) >= FLOATS:
        node = tape.begin(process, "aten::to_copy", (src,))
    _transfer(process, src, out, non_blocking, fresh=True)
    if node is not None:
        tape.finish(node, out)
    return out


def cuda(self: Tensor, device: DeviceLike | None = None, non_blocking: bool = False) -> Tensor:
    """Returns the tensor on a device, by default the current one.

    Raises:
        OwnershipError: If the device belongs to another rank (M14).
    """
    return to(self, "cuda" if device is None else device, non_blocking=non_blocking)


def cpu(self: Tensor) -> Tensor:
    """Returns the tensor on the host, and waits for the copy."""
    return to(self, CPU)


def _converter(dtype: DType) -> "Callable[[Tensor], Tensor]":
    def convert(self: Tensor) -> Tensor:
        return to(self, dtype)

    convert.__doc__ = f"Returns the tensor as {dtype}; itself if it is that already."
    return convert


double = _converter(dtypes.float64)
float_ = _converter(dtypes.float32)
half = _converter(dtypes.float16)
bfloat16 = _converter(dtypes.bfloat16)
long = _converter(dtypes.int64)
int_ = _converter(dtypes.int32)
short = _converter(dtypes.int16)
char = _converter(dtypes.int8)
byte = _converter(dtypes.uint8)
bool_ = _converter(dtypes.bool_)
cfloat = _converter(dtypes.complex64)
cdouble = _converter(dtypes.complex128)


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """Returns the tensor in the type, and on the device, of another one."""
    return to(self, other.device, other.dtype)


def clone(input: Tensor) -> Tensor:
    """Returns a copy on the same device, with the same order of dimensions but without gaps."""
    return _copied(input, layout(input.window.shape, (input,)))


def _copied(src: Tensor, strides: tuple[int, ...]) -> Tensor:
    process = current_process()
    site = process.call_site()
    out = new_tensor(process, src.window.shape, src.dtype, src.device, site, strides=strides)
    source, target, node = src.window, out.window, None
    if src.memory.tracked and src.dtype.is_floating_point:
        node = tape.begin(process, "aten::clone", (src,))
    run(
        process,
        "aten::clone",
        (src,),
        out,
        lambda: target.adopt(np.array(source.read())),
        site=site,
    )
    if node is not None:
        tape.finish(node, out)
    return out


def contiguous(self: Tensor) -> Tensor:
    """Returns the tensor itself if its elements lie in order without gaps, else a copy."""
    if is_contiguous(self.window):
        return self
    return _copied(self, contiguous_strides(self.window.shape))


def detach(self: Tensor) -> Tensor:
    """Returns a view of all elements without a history in autograd."""
    view = self.window
    return alias(self, view.shape, view.strides, view.offset)


def pin_memory(self: Tensor, device: DeviceLike | None = None) -> Tensor:
    """Returns a copy in pinned host memory; the tensor itself if it is pinned already.

    Raises:
        TensorError: For a tensor on a device.
        UnsupportedError: For `device`.
    """
    refuse("pin_memory", device=device)
    if self.is_cuda:
        raise TensorError("only dense CPU tensors can be pinned", [site_fact(call_site())])
    if self.memory.pinned:
        return self
    process, node = current_process(), None
    out = new_tensor(process, self.window.shape, self.dtype, CPU, pinned=True)
    if self.memory.tracked and self.dtype.is_floating_point:
        node = tape.begin(process, "aten::to_copy", (self,))
    _transfer(process, self, out, False, fresh=True)
    if node is not None:
        tape.finish(node, out)
    return out


def is_pinned(self: Tensor, device: DeviceLike | None = None) -> bool:
    """Returns whether the tensor lies in pinned host memory.

    Raises:
        UnsupportedError: For `device`.
    """
    refuse("is_pinned", device=device)
    return self.memory.pinned


# Arrays


def array_to(process: Process, array: Array, device: Device, *, pinned: bool = False) -> Tensor:
    """Returns a tensor with the values of an array.

    Args:
        process: The calling rank, or main.
        array: A contiguous array that no other code uses.
        device: Device of the result.
        pinned: Whether the result lies in pinned host memory.
    """
    dtype = dtypes.from_numpy(array.dtype)
    assert dtype is not None, array.dtype
    out = new_tensor(process, array.shape, dtype, device, pinned=pinned)
    target = out.window
    if device.index is None:
        process.engine.executor.apply(lambda: target.adopt(array))
    else:
        wait_for(process, _to_device(process, None, out, lambda: target.adopt(array)))
    return out


def as_host_tensor(process: Process, array: Array, dtype: DType) -> Tensor:
    """Returns a host tensor that shares the memory of an array.

    Args:
        process: The calling rank, or main.
        array: An array without negative strides.
        dtype: Element type of the array.
    """
    strides = tuple(step // dtype.itemsize for step in array.strides)
    count = 1 + sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True))
    count = count if array.size else 0
    storage = Storage(
        process.memory, count * dtype.itemsize, Label(dtype, array.shape), call_site()
    )
    if process.engine.enable_data:
        storage.buffer.adopt(as_strided(array, (count,), (dtype.itemsize,)))
        # The array's owner is to see what is written.
        storage.buffer.fixed = array.flags.writeable
    return wrap(Memory(storage, process), View(storage.buffer, dtype, array.shape, strides, 0), CPU)
