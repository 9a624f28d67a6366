"""Operations without numbers: each shape is found out once, and then repeated."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import get_default_dtype
from torch._C import _get_dispatch_mode

from kernbench.bridge.base.here import Rank
from kernbench.bridge.cuda.randomness import given_generator
from kernbench.bridge.operations.costs import Cost, cost_of
from kernbench.bridge.operations.costs_gemm import precision
from kernbench.bridge.operations.direct import COMPARED, DirectMode, Made, Way, kind_of
from kernbench.bridge.operations.known import ONTO, refuse_on_device
from kernbench.bridge.operations.overrides import Kept
from kernbench.bridge.operations.timing import LISTS
from kernbench.bridge.tensors.hazards import Operands
from kernbench.bridge.tensors.no_numbers import (
    EMPTY,
    META,
    depends_now,
    depends_on_values,
    goes_to_host,
    made_on_device,
    mapped,
    read,
    shaped,
    shaping,
)
from kernbench.bridge.tensors.operands import names_device, tensors_in
from kernbench.bridge.tensors.storages import PLAIN, STORAGES, hold, is_on_device
from kernbench.process.process import Process

_FAKE: Final = torch._C._TorchDispatchModeKey.FAKE
_KEYS: Final = COMPARED | {float}
_ITEM: Final = torch.ops.aten._local_scalar_dense.default
_COPY: Final = torch.ops.aten.copy_.default
_CONVOLUTION: Final = torch.ops.aten.convolution.default
_MASKED_FILLS: Final = frozenset(
    (torch.ops.aten.masked_fill.Tensor, torch.ops.aten.masked_fill_.Tensor)
)
"""Operations that take a single value of the host, as CUDA does, but not for a shape alone."""

_DEVICE: Final = object()
"""Stands in a signature behind which a tensor of the device comes: values of the host are real."""

_HOST: Final = object()
"""Stands in a signature behind which a single value of the host comes."""

_MOST_SHAPES: Final = 4096
"""Shapes of operations that are kept for all ranks."""


class Seen(NamedTuple):
    """What an operation does with operands of certain shapes.

    Attributes:
        made: Sizes, strides and type of each tensor that it makes; None if it gives back its first
            operand, or nothing.
        many: Whether it gives a tuple.
        cost: What it is on a device.
        duration: Its time in picoseconds.
    """

    made: tuple[tuple[Any, Any, torch.dtype], ...] | None
    many: bool
    cost: Cost
    duration: int


class Shapes:
    """What is known of operations on tensors of the device, by the shapes of their operands.

    Ranks of one kind of device share it.

    Attributes:
        shadows: Whether each operation is run all the same, and compared with what is known.
        seen: What is known of them, by the operation and all on which it depends.
        ways: Short ways, by the `id` of the operation.
    """

    def __init__(self) -> None:
        self.shadows = False
        self.seen: dict[Any, Seen] = Kept()
        self.ways: dict[int, Way] = Kept()
        self._kinds: dict[Any, str] = Kept()

    def kind(self, func: Any) -> str:
        """Returns how to repeat an operation; an empty string if it must be run each time.

        Returns:
            `new` if it only makes tensors, `same` if it only writes operands.
        """
        found = self._kinds.get(func)
        if found is None:
            found = self._kinds[func] = kind_of(func)
        return found


class ShapeMode(DirectMode):
    """The mode of a rank whose tensors have no numbers.

    What the short way does not do is known here by everything on which it depends, lists and all.
    """

    exact = True

    def __init__(self, rank: Rank, shapes: Shapes) -> None:
        super().__init__(rank, shapes.ways)
        self._shapes: Final = shapes
        self._operands: dict[Any, Operands] = {}
        self._written: dict[int, torch.Tensor] | None = None
        self._value: int | None = None

    def way_of(self, func: Any) -> Way:
        """Returns the short way of an operation, which may not be open."""
        way = super().way_of(func)
        way.open = way.open and not self._shapes.shadows
        way.run = _first if way.writes else shaping(func)
        return way

    def again(self, way: Way, args: Any, out: Any) -> tuple[Callable[..., Any], Made | None] | None:
        """Returns how to give again what `out` is; None if it must go the long way."""
        if way.writes:
            return way.run, None
        if not _fits(out, args):
            return None
        return way.run, (tuple(out.shape), out.stride(), out.dtype)

    def walk(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation; see `TimeMode`."""
        rank = self._rank
        if kwargs and names_device(kwargs):
            return self.on_named_device(func, types, args, kwargs)
        if rank.making is None and not types and _get_dispatch_mode(_FAKE) is None:
            kind = self._shapes.kind(func)
            if kind and not _on_host(args[:1] if kind == "same" else args):
                key: list[Any] = [func, precision(), get_default_dtype()]
                process = self._process
                found = _look(args, process, key)
                if found and (not kwargs or _look_named(kwargs, process, key)) and _DEVICE in key:
                    signature = tuple(key)
                    seen = self._shapes.seen.get(signature)
                    if seen is not None and not self._shapes.shadows:
                        if self._hazards.watch or seen.made is None:
                            operands = self._look(func, seen.cost, args, kwargs)
                            if operands is not None:
                                out = self._repeat(seen, args)
                                self._hazards.unwritten.carry(operands.operation, args, kwargs, out)
                                return out
                        return self._repeat(seen, args)
                    out = super().walk(func, types, args, kwargs)
                    self._learn(signature, seen, kind, func, args, kwargs, out)
                    return out
            elif made_on_device(kwargs) and not goes_to_host(func, args, kwargs):
                rank.making = True  # C++ code names the device
                try:
                    return super().walk(func, types, args, kwargs)
                finally:
                    rank.making = None
        return super().walk(func, types, args, kwargs)

    def _look(self, func: Any, cost: Cost, args: Any, kwargs: Any) -> Operands | None:
        """Looks at operands; returns what they are if elements that nothing has written move."""
        operands = self._operands.get(func)
        if operands is None:
            operands = self._operands[func] = Operands(func, free=False)
        moves = self._hazards.watch and self._hazards.look(operands, cost.name, args, kwargs)
        if operands.writes and self._rank.races is None:
            operands.note_written(args, kwargs, self._line.count + 1)
        return operands if moves else None

    def _repeat(self, seen: Seen, args: Any) -> Any:
        rank = self._rank
        if seen.made is None:
            out = args[0] if not seen.many else None
        else:
            made = []
            for shape, strides, dtype in seen.made:
                one = EMPTY(shape, strides, dtype=dtype, device=META)
                held = hold(rank, one.untyped_storage(), on_device=True, of=one)
                self._made(held, one, seen.cost)
                made.append(one)
            out = tuple(made) if seen.many else made[0]
        self._issue(seen.cost, seen.duration, args)
        return out

    def _learn(
        self,
        signature: Any,
        before: Seen | None,
        kind: str,
        func: Any,
        args: Any,
        kw: Any,
        out: Any,
    ) -> None:
        if not _repeats(func, kind, args, kw) or (func in ONTO and _HOST in signature):
            return  # what comes from the host crosses the bus
        cost = cost_of(func)
        duration = cost.duration(self._library, args, kw or {}, out)
        many = isinstance(out, list | tuple) or out is None
        made = None
        if kind == "new":
            outs = out if many else (out,)
            if not all(type(one) is torch.Tensor and _fits(one, args) for one in outs):
                return
            made = tuple((tuple(one.shape), one.stride(), one.dtype) for one in outs)
        seen = Seen(made, many, cost._replace(duration=_no_formula), duration)
        if before is not None:
            assert before == seen, f"{func}: {before} became {seen}"
        elif len(self._shapes.seen) < _MOST_SHAPES:
            self._shapes.seen[signature] = seen

    def _run(self, known: Any, func: Any, args: Any, kwargs: Any, making: bool) -> Any:
        """Runs an operation for its shape, or gives what it reads."""
        if known.host_only and _on_device(args):
            refuse_on_device(func)
        if known.draws:
            given_generator(making, args, kwargs)
        written = self._written
        depends = depends_on_values(func) and _on_device(args) and depends_now(func, args)
        if depends or goes_to_host(func, args, kwargs):
            if written is not None and func is _COPY:
                return args[0].copy_(written[args[1].untyped_storage()._cdata])
            if self._value is not None and func is _ITEM:
                return self._value
            return read(self._rank, func, args, kwargs)
        if written is not None and func is _COPY and not _on_device(args[1:2]):
            written[args[0].untyped_storage()._cdata] = args[1].clone()
        if known.collective is not None and not _on_device(args):
            return func(*args, **(kwargs or {}))  # of the host: as with numbers
        if func in _MASKED_FILLS and not is_on_device(args[2]) and not args[2].dim():
            args = (*args[:2], EMPTY((), (), dtype=args[2].dtype, device=META))
        if known.operands.writes and args and _overlaps(args[0]):
            _try_on_host(func, args, kwargs)
        run = partial(shaped, self._rank, func, args, kwargs)
        out = known.resizes.run(self._rank, run, args, kwargs) if known.resizes.some else run()
        return _as_cudnn(out, *args[:2]) if func is _CONVOLUTION else out

    @contextlib.contextmanager
    def remembering(self, value: int | None = None) -> Iterator[None]:
        """A block of C++ code that reads from the device what it has written to it.

        All ranks write the same there.

        Args:
            value: What `item` gives there; None: it reads what no rank knows.
        """
        self._written, self._value = {}, value
        try:
            yield
        finally:
            self._written = self._value = None


def _as_cudnn(out: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
    """Returns a convolution's result in the order that cuDNN takes of operands, `meta` does not."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(out.dim())
    if last is None or out.dtype is torch.float64:
        return out
    is_last = [x.is_contiguous(memory_format=last) and not x.is_contiguous() for x in operands]
    return out.to(memory_format=last) if any(is_last) else out


def _overlaps(tensor: Any) -> bool:
    """Returns whether elements of a tensor lie in one place, as those of an expanded one do."""
    if not isinstance(tensor, torch.Tensor):
        return False
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    return any(not stride and size > 1 for size, stride in extents)


def _try_on_host(func: Any, args: Any, kwargs: Any) -> None:
    """Runs an operation with zeros, as shapes alone do not tell whether it may write where it does.

    Raises:
        RuntimeError: PyTorch's, if it may not.
    """
    given, named = mapped((args, kwargs or {}), _zeros_like)
    func(*given, **named)


def _zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()


def _repeats(func: Any, kind: str, args: Any, kwargs: Any) -> bool:
    """Returns whether an operation writes memory of the device only: values of the host are real.

    The key of an operation tells which of its operands are on the host.
    """
    if kind == "new":
        return _on_device(args) or bool(kwargs and _on_device(kwargs.values()))
    for place, one in enumerate(func._schema.arguments):
        if one.alias_info is not None and one.alias_info.is_write:
            value = args[place] if place < len(args) else (kwargs or {}).get(one.name)
            if not all(map(is_on_device, tensors_in(value))):
                return False
    return True


def _first(value: Any, /, *_: Any, **__: Any) -> Any:
    """Does what an operation does that only writes numbers to its first operand: there are none.

    Operations have arguments by any name, such as `value`.
    """
    return value


def _no_formula(*_: Any) -> int:
    raise AssertionError("the duration is known")


def _fits(tensor: torch.Tensor, args: Any) -> bool:
    """Returns whether `empty_strided` makes the same tensor, with memory of its own.

    Some operations may give back an operand, of which their schema says nothing: `type_as`.
    """
    storage = tensor.untyped_storage()
    if any(one.untyped_storage()._cdata == storage._cdata for one in tensors_in(args)):
        return False
    return tensor.storage_offset() == 0 and bool(
        storage.nbytes()
        == (
            EMPTY(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
            .untyped_storage()
            .nbytes()
        )
    )


def _look(values: Any, process: Process, key: list[Any]) -> bool:
    """Adds what an operation's result and time depend on; says whether all tensors are there."""
    for value in values:
        kind = type(value)
        if kind in PLAIN:
            held = STORAGES.get(value.untyped_storage()._cdata)
            if held is None or held.sip < 0:
                if value.dim():
                    return False
                key.append(_HOST)
            elif held.owner is not process:
                return False  # a mistake, which the long way tells
            else:
                key.append(_DEVICE)
            key += (value.shape, value.stride(), value.dtype)
        elif kind in _KEYS:
            key += (kind, value)
        elif kind in LISTS:
            key.append(len(value))
            if not _look(value, process, key):
                return False
        else:
            return False
    return True


def _look_named(named: dict[str, Any], process: Process, key: list[Any]) -> bool:
    for name, value in named.items():
        key.append(name)
        if not _look((value,), process, key):
            return False
    return True


def _on_host(values: Any) -> bool:
    """Returns whether there are tensors, and all of them have numbers."""
    found = False
    for tensor in tensors_in(values):
        if is_on_device(tensor):
            return False
        found = True
    return found


def _on_device(values: Any) -> bool:
    for value in values:
        if isinstance(value, torch.Tensor):
            if is_on_device(value):
                return True
        elif isinstance(value, list | tuple) and _on_device(value):
            return True
    return False
