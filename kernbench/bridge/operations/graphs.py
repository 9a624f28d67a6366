"""`torch.cuda.CUDAGraph` with the numbers of PyTorch: each replay computes them anew.

While a graph is captured, operations run as ever, to find out what they make; what they have
written is taken back at the end. A replay runs them again, below autograd and all modes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch._C import _get_dispatch_mode
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.bridge.base.here import Rank, this_rank
from kernbench.bridge.cuda.cuda import facade
from kernbench.bridge.cuda.randomness import DeviceGenerator, generator_of
from kernbench.bridge.distributed.works import moved_of, unseen
from kernbench.bridge.tensors.operands import tensors_in
from kernbench.bridge.tensors.storages import (
    STORAGES,
    Ref,
    is_on_device,
    is_plain,
    let_go,
    window_on,
)
from kernbench.des import Event
from kernbench.distributed.issuing import Posted
from kernbench.errors import CallSite, KernbenchError
from kernbench.graphs import cuda_graphs as simulated
from kernbench.graphs.capture import Capture, CaptureError, Recording
from kernbench.graphs.replay import gone, replay
from kernbench.graphs.values import SLOTS, Slot, Values
from kernbench.isolation.replaced import Patch
from kernbench.process.process import Process
from kernbench.sim_engine.command import Command
from kernbench.tensors.tensor import Tensor
from kernbench.units import format_bytes

_FAKE: Final = torch._C._TorchDispatchModeKey.FAKE
_EMPTY: Final = torch.empty


class AcceleratorCaptureError(torch.AcceleratorError, CaptureError):
    """What PyTorch raises if CUDA does not permit a call during a capture, with this report."""


class _Tensors:
    """Takes tensors of PyTorch apart; a `graphs.values.Tensors`."""

    def __init__(self, rank: Rank) -> None:
        self._rank: Final = rank

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def fixed(self, tensor: Any) -> Any:
        # A single value of the host is an argument of the kernel, and not memory.
        return tensor if tensor.dim() or is_on_device(tensor) else tensor.clone()

    def storage(self, tensor: Any) -> tuple[int, Any, Any]:
        storage = tensor.untyped_storage()
        held = STORAGES.get(storage._cdata)
        return storage._cdata, storage, Ref(storage) if held is None else held.ref

    def described(self, tensor: Any) -> Any:
        lies = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        return tensor.dtype, *lies, tensor.is_conj(), tensor.is_neg()

    def built(self, storage: Any, described: Any) -> Any:
        dtype, offset, shape, strides, conj, neg = described
        tensor = _EMPTY(0, dtype=dtype, device="cpu").set_(storage, offset, shape, strides)
        if conj:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if neg else tensor

    def room(self, nbytes: int) -> Any:
        return _EMPTY(nbytes, dtype=torch.uint8, device="cpu").untyped_storage()

    def put(self, result: Any, storage: Any, described: Any, *, shown: bool) -> Any:
        if storage is None:
            if self.described(result) == described:
                return result.untyped_storage()
            dtype, offset, shape, strides, *_ = described
            last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True) if n)
            storage = self.room((offset + last + 1) * dtype.itemsize)
        target = self.built(storage, described)
        if shown:
            self._note_written(storage, target)
        target.copy_(result)
        return storage

    def _note_written(self, storage: Any, target: Any) -> None:
        rank, held = self._rank, STORAGES.get(storage._cdata)
        if held is not None and held.on_device:
            rank.hazards.unwritten.forget(held)
            if rank.races is not None:
                rank.races.touch(held, target, "wrote")


class CaptureMode(TorchDispatchMode):
    """Sees each operation of a capture, above the rank's own mode; does it again at each replay.

    Args:
        capture: Notes the commands.

    Attributes:
        trusted: Numbers of collectives for which library code waits in its own way.
    """

    supports_higher_order_operators = True

    def __init__(self, rank: Rank, capture: Capture) -> None:
        super().__init__()
        self._rank: Final = rank
        self._capture: Final = capture
        self._values: Final = Values(_Tensors(rank), SLOTS.of(rank.process), self._gone)
        self._before: Final[dict[Slot, Any]] = {}
        self.trusted: Final[set[int]] = set()
        self._kept: Final[list[Any]] = []
        self._unknown: Final[list[Slot]] = []
        self._moved: Final[dict[int, tuple[Any, Command]]] = {}
        named = [one for one in capture.generators if isinstance(one, DeviceGenerator)]
        self._states: Final = [(one, one.get_state()) for one in (generator_of(rank), *named)]
        rank.capture = self
        rank.hazards.watch_streams()
        self.__enter__()

    def _gone(self, nbytes: int, name: str, site: CallSite | None) -> KernbenchError:
        return gone(self._rank.process, f"a tensor of {format_bytes(nbytes)}", None, name, site)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and notes it if it is a command of the device."""
        named = kwargs or {}
        if _get_dispatch_mode(_FAKE) is not None:  # PyTorch finds out a shape
            return func(*args, **named)
        for kind in types:
            if not is_plain(kind):
                return func(*args, **named) if issubclass(kind, FakeTensor) else NotImplemented
        rank, nodes = self._rank, self._capture.nodes
        first, written = len(nodes), _written(func, args, named)
        if any(map(is_on_device, tensors_in((args, kwargs)))):
            known = rank.mode.known(func) if isinstance(func, OpOverload) else None
            if known is not None and known.collective is not None:
                with self:
                    return known.collective(rank, *args, **named)
            if known is not None and known.defined:
                with self:
                    return known.inside(True, args, named)
            if rank.data:
                self._save(written)
        out = func(*args, **named)
        if len(nodes) == first:
            self._values.made(args, named, out)
        elif rank.data:
            node, run = nodes[first], partial(self._again, func, torch.is_grad_enabled())
            self._values.note(first, node.name, node.site, run, args, named, out)
        else:
            self._unknown.extend(one.slot for one in self._values.made(written, {}, out))
            self._forget()
        library, pieces = self._capture.warmth.library, self._values.pieces
        if len(nodes) == first + 1 and library is not None and isinstance(func, OpOverload):
            price = rank.mode.known(func).cost.duration(library, args, named, out)
            given = [one for one in tensors_in((args, named)) if all(one is not w for w in written)]
            made = pieces([*written, *tensors_in(out)])
            self._capture.warmth.touched(first, price, pieces(given), made)
        return out

    def launched(
        self,
        issue: Callable[[], None],
        again: Callable[..., None],
        tensors: list[torch.Tensor],
        written: list[torch.Tensor],
    ) -> None:
        """Issues a kernel of the program's own, and notes it.

        Args:
            issue: Issues it as one command.
            again: Does at a replay what it does, on the tensors that are there then.
            tensors: What it is given.
            written: Those of them that it may write.
        """
        first = len(self._capture.nodes)
        self._save(written)
        issue()
        node = self._capture.nodes[first]
        self._values.note(first, node.name, node.site, again, tensors, {}, None)

    def _save(self, tensors: list[torch.Tensor]) -> None:
        """Keeps what storages hold that the capture is about to write."""
        for tensor in tensors:
            slot = self._values.place(tensor).slot
            if slot not in self._before:
                with unseen():
                    self._before[slot] = tensor.untyped_storage().clone()

    def _forget(self) -> None:
        """Forgets numbers that are known without any, of what the graph writes."""
        if self._rank.numbers is not None:
            for slot in self._unknown:
                self._rank.numbers.forget_storage(slot.ref())

    def _again(self, func: Any, grad: bool, /, *args: Any, **named: Any) -> Any:
        with torch.set_grad_enabled(grad):  # on which some results depend
            return self._rank.mode.compute(func, args, named)

    def check_generator(self, generator: DeviceGenerator) -> None:
        """Refuses a generator that the graph does not know; see `Capture.draws`."""
        self._capture.check_generator(generator)

    def check_seed(self, same: bool) -> None:
        """Refuses another seed, which a replay would not set.

        Raises:
            CaptureError: If it is another one.
        """
        if not same:
            raise self._capture.not_permitted("seeds a generator anew")

    def sent(self, blocks: list[Tensor]) -> int:
        """Notes a collective that was called; its tensors stay allocated.

        Args:
            blocks: What it was given.

        Returns:
            Number of its command.
        """
        self._kept.extend(block.memory.ref() for block in blocks)  # type: ignore[attr-defined]
        return len(self._capture.nodes) - 1

    def waited(self, number: int) -> None:
        """Notes that the program has waited for the numbers of a collective."""
        self._values.then(len(self._capture.nodes), partial(self._wait, number))

    def _wait(self, number: int) -> None:
        moved, command = self._moved.pop(number, (None, None))
        if moved is not None and moved.time is None:
            told = Event(command)  # whose label tells reports what the rank waits for
            moved.when_settled(told.settle)
            self._rank.process.wait(told)

    def end(self) -> None:
        """Ends the capture: tensors have again what they had before, or nothing."""
        rank, capture = self._rank, self._capture
        self.__exit__(None, None, None)
        rank.capture = None
        for held in STORAGES.values():
            if held.owner is rank.process:
                capture.forget(held)
        for generator, state in self._states:
            generator.set_state(state)
        self._values.end()
        with unseen():
            for slot, before in self._before.items():
                storage = slot.ref()
                if storage is not None:
                    storage.copy_(before)
            for place in self._values.shown() if rank.data else ():
                tensor = _Tensors(rank).built(place.slot.ref(), place.described)
                rank.hazards.unwritten.note(tensor, capture.site)
        self._before.clear()

    # A replay, see `graphs.replay.Library`

    def begin(self) -> None:
        """Begins a replay."""
        self._values.begin()
        self._forget()

    def before(self, number: int) -> None:
        """Computes what comes before a command, and what it does."""
        with unseen(), torch._C._DisableAutocast(), torch.no_grad():
            self._values.before(number)

    def renewed(self, number: int, posted: Posted) -> Posted:
        """Returns a collective with the bytes that its tensors have now."""
        del number
        targets = [self._fresh(block) for block in posted.targets]
        for block in targets:
            self._rank.hazards.unwritten.forget(block.memory)
        sources = targets
        if posted.sources is not posted.targets:
            sources = [self._fresh(block) for block in posted.sources]
        return posted._replace(sources=sources, targets=targets)

    def _fresh(self, block: Any) -> Tensor:
        held, view = block.memory, block.window
        storage = held.ref()
        return window_on(
            self._rank, held, storage, view.dtype, view.shape, view.strides, view.offset
        )

    def issued(self, number: int, posted: Posted, command: Command) -> None:
        """Notes that a collective of the replay has been issued."""
        blocks: Any = [*posted.sources, *posted.targets]
        for block in blocks if number in self.trusted else ():
            block.memory.trust()
        moved = moved_of(command)
        if moved is None:
            let_go(blocks)
        else:
            moved.when_settled(lambda _: let_go(blocks))
            self._moved[number] = moved, command


def _written(func: Any, args: Any, named: dict[str, Any]) -> list[torch.Tensor]:
    """Returns the tensors that an operation writes."""
    found: list[torch.Tensor] = []
    if isinstance(func, OpOverload) and func._schema.is_mutable:
        for at, one in enumerate(func._schema.arguments):
            if one.alias_info is not None and one.alias_info.is_write:
                found += tensors_in(args[at] if at < len(args) else named.get(one.name))
    return found


class CUDAGraph(simulated.CUDAGraph):
    """`torch.cuda.CUDAGraph`, whose replays compute with PyTorch."""

    _error = AcceleratorCaptureError
    _mode: CaptureMode | None = None

    def _began(self, process: Process, capture: Capture) -> None:
        self._mode = CaptureMode(this_rank(), capture)

    def _ending(self, process: Process, capture: Capture) -> None:
        assert self._mode is not None
        self._mode.end()

    def _play(self, process: Process, recording: Recording) -> None:
        replay(process, recording, self._mode)

    def reset(self) -> None:
        """Forgets what was captured, and gives back the memory that no other graph shares."""
        super().reset()
        self._mode = None


FUNCTIONS: Final[dict[str, Any]] = {
    "CUDAGraph": CUDAGraph,
    "graph": simulated.graph,
    "graph_pool_handle": simulated.graph_pool_handle,
    "is_current_stream_capturing": simulated.is_current_stream_capturing,
}
"""What `torch.cuda` has of graphs while ranks run, by name; all else of them is PyTorch's own."""


def patches() -> Iterator[Patch]:
    """Yields what is replaced of CUDA graphs."""
    for name, ours in FUNCTIONS.items():
        stands = facade(name, ours, getattr(torch.cuda, name))
        yield Patch(torch.cuda, name, stands)
        yield Patch(torch.cuda.graphs, name, stands)
