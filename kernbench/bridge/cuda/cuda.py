"""`torch.cuda` over simulated devices: streams, events in simulated time, memory of the HBM."""

from collections.abc import Iterator
from typing import Any, Final

import torch

from kernbench.bridge.base.here import HERE, this_rank
from kernbench.bridge.cuda import cuda_devices, cuda_memory, randomness
from kernbench.bridge.cuda.cuda_devices import check
from kernbench.graphs.capture import capturing
from kernbench.isolation.replaced import Patch
from kernbench.operations import cuda as simulated
from kernbench.process.sleeps import sleep
from kernbench.runtime_api import refused_functions as refused
from kernbench.runtime_api.cuda_runtime import Runtime, set_sync_debug_mode
from kernbench.runtime_api.nvtx_ranges import NVTX

_HIGHEST: Final = -5
"""The greatest priority that CUDA has (cudaDeviceGetStreamPriorityRange of an H200)."""

_CUDA: Final = 1
"""`c10::DeviceType::CUDA`."""

_NO_IPC: Final = "let ranks meet in a collective or a message, which orders their streams"


class Stream(simulated.Stream):
    """`torch.cuda.Stream`. A priority changes nothing: engines are shared in the order of calls."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        check(device)
        super().__init__()
        this_rank().hazards.watch_streams()
        self.priority = max(min(priority, 0), _HIGHEST)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Returns the least and the greatest priority of an H200: 0 and -5."""
        return 0, _HIGHEST

    def record_event(self, event: Any = None) -> Any:
        """Records an event, a new one by default, and returns it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    @property
    def device(self) -> Any:
        """Device of the stream."""
        return this_rank().device

    def is_capturing(self) -> bool:
        """Returns whether commands of the stream are captured into a CUDA graph."""
        capture = capturing(this_rank().process)
        return capture is not None and capture.holds(self._line)

    @property
    def device_index(self) -> int:
        """Index of the device among those of its node."""
        return this_rank().local

    @property
    def device_type(self) -> int:
        """The number of CUDA among PyTorch's kinds of devices."""
        return _CUDA

    @property
    def stream_id(self) -> int:
        """A number of the stream."""
        return id(self._line)

    cuda_stream = native_handle = stream_id


class Event(simulated.Event):
    """`torch.cuda.Event`: a moment in simulated time."""

    def __init__(self, enable_timing: bool = False, external: bool = False, **_: Any) -> None:
        super().__init__(enable_timing=enable_timing, external=external)

    def record(self, stream: Any = None) -> None:
        """Records the moment when a stream is done with what it has now."""
        super().record(stream)

    @property
    def event_id(self) -> int:
        """A number of the event."""
        return id(self)

    cuda_event = event_id

    @property
    def device(self) -> Any:
        """Device of the event."""
        return this_rank().device

    ipc_handle = refused.refused("Event.ipc_handle", _NO_IPC)
    from_ipc_handle = refused.refused("Event.from_ipc_handle", _NO_IPC)


def _of(stream: simulated.Stream) -> Stream:
    found = Stream.__new__(Stream)
    found._line = stream._line
    found.priority = 0
    return found


def current_stream(device: Any = None) -> Stream:
    """Returns the current stream of the rank's device."""
    check(device)
    return _of(simulated.current_stream())


def default_stream(device: Any = None) -> Stream:
    """Returns the default stream of the rank's device."""
    check(device)
    return _of(simulated.default_stream())


def set_stream(stream: Any) -> None:
    """Makes a stream the current one; None changes nothing."""
    if stream is not None:
        simulated.set_stream(stream)


def synchronize(device: Any = None) -> None:
    """Waits, on the host, for all commands of the rank's device."""
    check(device)
    simulated.synchronize()


class StreamContext:
    """`torch.cuda.stream`: a block whose commands go to a stream; None changes nothing."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> Any:
        if self.stream is not None:
            simulated.Stream.__enter__(self.stream)
        return self.stream

    def __exit__(self, *error: Any) -> None:
        if self.stream is not None:
            simulated.Stream.__exit__(self.stream, *error)


FUNCTIONS: Final[dict[str, Any]] = {
    **cuda_devices.FUNCTIONS,
    **cuda_memory.FUNCTIONS,
    **randomness.FUNCTIONS,
    **refused.CUDA,
    "Stream": Stream,
    "Event": Event,
    "StreamContext": StreamContext,
    "stream": StreamContext,
    "current_stream": current_stream,
    "default_stream": default_stream,
    "set_stream": set_stream,
    "synchronize": synchronize,
    "init": cuda_memory.nothing,
    "_lazy_init": cuda_memory.nothing,
    "_is_in_bad_fork": lambda: False,
    "is_bf16_supported": lambda including_emulation=True: True,
    "is_tf32_supported": lambda: True,
    "_sleep": lambda cycles: sleep(this_rank().process, this_rank().sip, cycles),
    "cudart": Runtime,
    "check_error": cuda_memory.nothing,
    "set_sync_debug_mode": set_sync_debug_mode,
    "get_sync_debug_mode": lambda: 0,
    "get_gencode_flags": lambda: "",
}
"""What `torch.cuda` has while ranks run, by name."""


def any_kind(real: type, ours: type) -> type:
    """Returns `torch.Stream` or `torch.Event` while ranks run: those of CUDA are such, too.

    Args:
        real: PyTorch's class.
        ours: The class of streams, or of events, of a simulated device.
    """

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real | ours)

        def __call__(cls, device: Any = None, **options: Any) -> Any:
            if HERE.rank is None or (device is not None and torch.device(device).type != "cuda"):
                return real(device, **options)
            return ours(device, **options) if ours is Stream else ours(**options)

    return Kind(real.__name__, (), {"__module__": "torch", "__doc__": real.__doc__})


def facade(name: str, ours: Any, real: Any) -> Any:
    """Returns what stands for a name of `torch.cuda`: ours in a rank, the real one elsewhere.

    Args:
        ours: What a rank gets.
        real: What PyTorch has.
    """
    if isinstance(ours, type) or name in cuda_devices.EVERYWHERE:
        return ours

    def either(*args: Any, **options: Any) -> Any:
        return (real if HERE.rank is None else ours)(*args, **options)

    either.__name__ = name
    either.__doc__ = ours.__doc__
    return either


def _empty_strided(size: Any, stride: Any, dtype: Any) -> Any:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def patches() -> Iterator[Patch]:
    """Yields what is replaced of `torch.cuda`."""
    for name, ours in FUNCTIONS.items():
        if not hasattr(torch.cuda, name):
            continue  # of another version of PyTorch
        real = getattr(torch.cuda, name)
        stands = facade(name, ours, real)
        yield Patch(torch.cuda, name, stands)
        for part in refused.CUDA_PARTS:
            module = getattr(torch.cuda, part)
            if vars(module).get(name) is real:
                yield Patch(module, name, stands)
    yield Patch(torch._C, "_cuda_getCurrentRawStream", lambda n: current_stream(n).cuda_stream)
    yield Patch(torch._C._dynamo.guards, "_empty_strided_cuda", _empty_strided)
    yield Patch(torch, "Stream", any_kind(torch.Stream, Stream))
    yield Patch(torch, "Event", any_kind(torch.Event, Event))
    for name, ours in NVTX.items():
        yield Patch(torch.cuda.nvtx, name, facade(name, ours, getattr(torch.cuda.nvtx, name)))
    for name, ours in refused.MEMORY.items():
        yield Patch(torch.cuda.memory, name, ours)
