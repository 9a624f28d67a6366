"""`torch.cuda`: devices are SIPs; streams and events order their commands in simulated time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from kernbench.errors import KernbenchError, UnsupportedError, call_site, site_fact
from kernbench.memory import OutOfMemoryError
from kernbench.operations import typed
from kernbench.process.access import other_device
from kernbench.process.act import act
from kernbench.process.process import MAIN, Process, RankLocal, current_process
from kernbench.process.types import Device, DeviceLike
from kernbench.sim_engine import command
from kernbench.sim_engine.engine import Hold
from kernbench.tensors.errors import refuse
from kernbench.tensors.generators import device_generator
from kernbench.tensors.operands import not_a_tensor
from kernbench.tensors.tensor import Tensor
from kernbench.units import PS_PER_US

__all__ = [
    "Event",
    "OutOfMemoryError",
    "Stream",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_device_properties",
    "is_available",
    "is_initialized",
    "manual_seed_all",
    "max_memory_allocated",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "reset_peak_memory_stats",
    "set_device",
    "set_stream",
    "stream",
    "synchronize",
]

globals().update(typed.of_types("torch.cuda", "cuda"))
__all__ += typed.__all__


def _sip(process: Process, where: DeviceLike | None) -> int:
    if where is None:
        return process.device_index
    wanted = Device(where)
    if wanted.type != "cuda":
        raise KernbenchError(f"expected a cuda device, got {where!r}", [site_fact(call_site())])
    return process.sip_of(wanted)


_ENTERED: Final[RankLocal[list[tuple[int, command.Stream]]]] = RankLocal(
    "streams entered", lambda _: []
)
"""Device and stream that were current before each `with stream:` block that a rank is in."""


class Stream:
    """`torch.cuda.Stream`: runs the commands of one device in order.

    Args:
        device: Device of the stream; None for the current one.
        priority: Must be 0: priorities are not simulated.
    """

    def __init__(self, device: DeviceLike | None = None, priority: int = 0) -> None:
        if priority:
            raise UnsupportedError("stream priorities are not simulated", [site_fact(call_site())])
        process = current_process()
        self._line = process.new_stream(_sip(process, device))

    @classmethod
    def _of(cls, line: command.Stream) -> "Stream":
        stream = cls.__new__(cls)
        stream._line = line
        return stream

    @property
    def device(self) -> Device:
        """Device of the stream."""
        return Device("cuda", self._line.sip)

    def synchronize(self) -> None:
        """Waits, on the host, until all commands issued to the stream so far are done."""
        current_process().wait_stream(self._line)

    def query(self) -> bool:
        """Returns whether all commands issued so far are done at the host's time.

        The call may wait, until the simulation has reached the host's time.
        """
        return self.record_event().query()

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Records an event, a new one by default, and returns it; does not wait."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        """Makes later commands of the stream wait for an event; the host does not wait."""
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        """Makes later commands wait for all commands issued to `stream`; the host does not wait."""
        self.wait_event(stream.record_event())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self._line is other._line

    def __hash__(self) -> int:
        return hash(id(self._line))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} {self._line.name}>"

    def __enter__(self) -> "Stream":
        process = current_process()
        sip = self._line.sip
        _ENTERED.of(process).append((process.device_index, process.current_stream(sip)))
        process.set_stream(self._line)
        process.device_index = sip
        return self

    def __exit__(self, *_: object) -> None:
        process = current_process()
        process.device_index, stream = _ENTERED.of(process).pop()
        process.set_stream(stream)


class Event:
    """`torch.cuda.Event`: a moment in a stream.

    Args:
        enable_timing: Whether `elapsed_time` may be called.
        blocking: Has no effect on simulated time: a host that waits has nothing else to do.
        interprocess: Must be False.
        external: Must be False.
    """

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        del blocking
        refuse("Event", external=external or None)
        if interprocess:
            raise UnsupportedError(
                "events between processes are not simulated", [site_fact(call_site())]
            )
        self._timing = enable_timing
        self._command: command.Command | None = None
        self._seen: dict[command.Stream, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        """Records when all commands issued to a stream so far are done; the host does not wait."""
        process = current_process()
        line = process.current_stream(process.device_index) if stream is None else stream._line
        takes = process.engine.devices[line.sip].sip.event if self._timing else 0
        work = Hold(process.engine, None, takes, None)
        self._command = act(process, "event", "event", line, work)
        self._seen = {**line.seen, line: self._command.number}

    def wait(self, stream: Stream | None = None) -> None:
        """Makes later commands of a stream wait for the event; the host does not wait."""
        process = current_process()
        line = process.current_stream(process.device_index) if stream is None else stream._line
        if self._command is not None:
            line.waits.append(self._command.done)
            line.learn(self._seen)

    def synchronize(self) -> None:
        """Waits, on the host, until the event has happened."""
        if self._command is not None:
            process = current_process()
            process.wait(self._command.done, "event")
            process.learn(self._seen)

    def query(self) -> bool:
        """Returns whether the event has happened at the host's time.

        The call may wait, until the simulation has reached the host's time.
        """
        if self._command is None:
            return True
        process = current_process()
        host = process.host
        host.poll(process.engine.dispatch_ps, self._command.done)
        if self._command.done.error is not None:
            raise self._command.done.error
        time = self._command.done.time
        if time is None or time > host.clock:
            return False
        process.learn(self._seen)
        return True

    def elapsed_time(self, end_event: "Event") -> float:
        """Returns the simulated milliseconds between two events that have happened.

        Raises:
            KernbenchError: If one of them was not recorded, was made without timing, or has not
                happened.
        """
        times = []
        clock = current_process().host.clock
        for event in (self, end_event):
            if not event._timing:
                raise KernbenchError(
                    "both events must be made with enable_timing=True", [site_fact(call_site())]
                )
            command = event._command
            if command is not None and command.done.error is not None:
                raise command.done.error
            time = None if command is None else command.done.time
            if time is None or time > clock:
                raise KernbenchError(
                    "both events must have been recorded and have happened",
                    [site_fact(call_site())],
                    hint="call end.synchronize() first",
                )
            times.append(time)
        return (times[1] - times[0]) / (1000 * PS_PER_US)


def current_device() -> int:
    """Returns the index of the current device."""
    return current_process().device_index


def set_device(device: DeviceLike) -> None:
    """Makes a device the current one.

    Raises:
        KernbenchError: If the device does not exist.
        OwnershipError: If it belongs to another rank (M14).
    """
    process = current_process()
    sip = _sip(process, device)
    owner = process.ctx.rank_of_device(sip)
    if process.rank != MAIN and owner not in {None, process.rank}:
        raise other_device(process.name, sip, process.device_index, owner)
    process.device_index = sip


def device_count() -> int:
    """Returns the number of devices in the context."""
    return len(current_process().ctx.devices)


def is_available() -> bool:
    """Returns True: a simulated machine has devices."""
    return True


def is_initialized() -> bool:
    """Returns True: no set-up is needed."""
    return True


def synchronize(device: DeviceLike | None = None) -> None:
    """Waits, on the host, until all commands issued to a device so far are done."""
    process = current_process()
    process.synchronize(_sip(process, device))


def current_stream(device: DeviceLike | None = None) -> Stream:
    """Returns the stream to which commands of a device go now."""
    process = current_process()
    return Stream._of(process.current_stream(_sip(process, device)))


def default_stream(device: DeviceLike | None = None) -> Stream:
    """Returns the stream to which commands of a device go if no other stream was chosen."""
    process = current_process()
    return Stream._of(process.default_stream(_sip(process, device)))


def set_stream(stream: Stream) -> None:
    """Makes a stream the current one of its device."""
    current_process().set_stream(stream._line)


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Makes a stream the current one inside a `with` block."""
    if stream is None:
        yield
    else:
        with stream:
            yield


@contextmanager
def device(device: DeviceLike) -> Iterator[None]:
    """Makes a device the current one inside a `with` block."""
    process = current_process()
    before = process.device_index
    set_device(device)
    try:
        yield
    finally:
        process.device_index = before


def memory_allocated(device: DeviceLike | None = None) -> int:
    """Returns the bytes of HBM in use, rounded as the allocator does."""
    process = current_process()
    return process.engine.devices[_sip(process, device)].hbm.allocated


def memory_reserved(device: DeviceLike | None = None) -> int:
    """Returns the bytes of HBM that are in use, or kept by memory pools of CUDA graphs."""
    process = current_process()
    hbm = process.engine.devices[_sip(process, device)].hbm
    return hbm.allocated + hbm.withheld


def max_memory_allocated(device: DeviceLike | None = None) -> int:
    """Returns the largest number of bytes of HBM that were in use at one time."""
    process = current_process()
    return process.engine.devices[_sip(process, device)].hbm.peak


def reset_peak_memory_stats(device: DeviceLike | None = None) -> None:
    """Resets the peak of `max_memory_allocated` to the bytes in use now."""
    process = current_process()
    hbm = process.engine.devices[_sip(process, device)].hbm
    hbm.peak = hbm.allocated


def empty_cache() -> None:
    """Does nothing: freed memory is free at once."""


def mem_get_info(device: DeviceLike | None = None) -> tuple[int, int]:
    """Returns the free and the total bytes of HBM."""
    process = current_process()
    hbm = process.engine.devices[_sip(process, device)].hbm
    assert hbm.capacity is not None
    return hbm.capacity - hbm.allocated - hbm.withheld, hbm.capacity


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """The result of `get_device_properties`.

    Attributes:
        name: Name of the machine.
        total_memory: Bytes of HBM.
        multi_processor_count: Number of PEs.
        L2_cache_size: Bytes of SRAM.
        shared_memory_per_multiprocessor: Bytes of a PE's TCM.
    """

    name: str
    total_memory: int
    multi_processor_count: int
    L2_cache_size: int
    shared_memory_per_multiprocessor: int


def get_device_properties(device: DeviceLike | None = None) -> DeviceProperties:
    """Returns name, memory sizes and number of PEs of a device."""
    process = current_process()
    topology = process.engine.topology
    found = process.engine.devices[_sip(process, device)]
    assert found.hbm.capacity is not None
    return DeviceProperties(
        topology.name,
        found.hbm.capacity,
        topology.num_pes(found.index),
        topology.num_cubes * found.sip.cube.sram.capacity,
        found.sip.pe.tcm.capacity,
    )


def get_device_name(device: DeviceLike | None = None) -> str:
    """Returns the name of the machine."""
    return get_device_properties(device).name


def manual_seed_all(seed: int) -> None:
    """Seeds the generator that the calling rank draws from on its device."""
    device_generator(current_process()).manual_seed(seed)


def record_stream(self: Tensor, stream: object) -> None:
    """Tells that a stream uses the tensor's memory, as `torch.Tensor.record_stream`.

    PyTorch's allocator needs it, since it may hand out the memory of a dead tensor while another
    stream still works on it. Here a command keeps the bytes that it works on until it has
    completed, and a new tensor never shares them, so only the arguments are checked.

    Args:
        stream: The `torch.cuda.Stream`.

    Raises:
        OperandError: If `stream` is no stream.
        UnsupportedError: If the tensor lies on the host, which has no streams.
    """
    if not isinstance(stream, Stream):
        raise not_a_tensor("record_stream(): argument 'stream'", "torch.cuda.Stream", stream)
    if self.device.index is None:
        raise UnsupportedError(
            "record_stream() is for tensors of a device", [site_fact(call_site()), "got one on cpu"]
        )
