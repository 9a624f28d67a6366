"""Operations that were met before, with operands that lie alike: the short way.

Nearly every operation of a step is one of the step before. What may be special about an operation
is looked at when it is met first, by `TimeMode`; here is what is left to do when nothing is. The
short way and the long one do the same: whatever is special now takes the long one again.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import get_default_dtype, is_grad_enabled
from torch._C import DispatchKey, _len_torch_dispatch_stack
from torch._ops import OpOverload

from kernbench.bridge.base.here import Rank
from kernbench.bridge.operations.costs import FREE, Cost, cost_of
from kernbench.bridge.operations.costs_gemm import CONVOLUTIONS, OF_VALUES, precision_of
from kernbench.bridge.operations.half import widened
from kernbench.bridge.operations.known import OF_FLOATS
from kernbench.bridge.operations.overrides import Kept, defined
from kernbench.bridge.operations.timing import KEYS, LISTS, TimeMode
from kernbench.bridge.operations.watched import watched
from kernbench.bridge.tensors.no_numbers import EMPTY, META, depends_on_values
from kernbench.bridge.tensors.room import place_of_size
from kernbench.bridge.tensors.storages import PLAIN, STORAGES, hold_new, no_memory
from kernbench.sim_engine.engine import GraphEngine

COMPARED: Final = KEYS - {torch.device}
"""Types of arguments that are compared. A device is none: it may be another one."""

_COPY: Final = torch.ops.aten.copy_.default
"""It takes the long way: it may cross the bus, and its warnings name the user's line."""

_MOST_MET: Final = 1024
"""Operands of one operation that are remembered."""

Made = tuple[Any, Any, torch.dtype]
"""Sizes, strides and type of a tensor."""


class Met(NamedTuple):
    """What is known of operands that were met.

    Attributes:
        duration: How long the operation takes, in picoseconds.
        run: Does it on this computer.
        made: The tensor to make in place of that; None: it is to run.
    """

    duration: int
    run: Callable[..., Any]
    made: Made | None


class Way:
    """The short way of an operation.

    Attributes:
        func: The operation.
        composite: Whether it is made of others, which autograd parts; in inference mode none does.
        open: Whether there is one.
        views: Whether the operation gives a view of its only tensor, and so takes no memory.
        writes: Whether it writes its first operand, and gives it back; otherwise it makes a tensor.
        run: Does it on this computer.
        cost: What it is on a device.
        multiplies: What the switch of its precision is called, if it is a product.
        met: What is known by the operands that were met.
    """

    __slots__ = (
        *("composite", "cost", "func", "met", "multiplies", "open", "run", "views", "writes"),
    )

    def __init__(self, func: Any) -> None:
        self.func: Final = func
        self.composite: Final = isinstance(func, OpOverload) and [  # unless CUDA has one kernel
            torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key) for key in _COMPOSITE
        ] == [True, False]
        self.views: Final = _is_view(func)
        kind = "" if self.views else kind_of(func)
        self.open = self.views or (bool(kind) and _is_simple(func))
        self.writes: Final = kind == "same"
        self.run: Callable[..., Any] = widened(func)
        self.cost: Final[Cost] = cost_of(func) if self.open else FREE
        convolves = self.open and func._overloadpacket in CONVOLUTIONS
        self.multiplies: Final = "conv" if convolves else "matmul"
        self.met: Final[dict[Any, Met]] = {}


def kind_of(func: Any) -> str:
    """Returns how to repeat an operation; an empty string if it must be run each time.

    Returns:
        `new` if it only makes tensors, `same` if it only writes operands.
    """
    if not isinstance(func, OpOverload):
        return ""
    schema, tags = func._schema, func.tags
    differs = torch.Tag.inplace_view in tags or torch.Tag.nondeterministic_seeded in tags
    if differs or depends_on_values(func) or func.is_view or func._overloadpacket in OF_VALUES:
        return ""
    if func.namespace != "aten" or (cost := cost_of(func)) is FREE or defined(func, cost):
        return ""
    if cost.in_place is not None:  # what it is depends on who calls it
        return ""
    aliases = [one.alias_info for one in schema.returns]
    if not schema.is_mutable:
        return "new" if not any(aliases) and schema.returns else ""
    if any(one.is_out for one in schema.arguments):
        return ""
    written = [one for one in schema.arguments if one.alias_info and one.alias_info.is_write]
    first = schema.arguments[0]
    if not schema.returns:
        return "same"
    alone = len(schema.returns) == 1 and written == [first]
    return "same" if alone and aliases[0] is not None and first.type.kind() == "TensorType" else ""


def _is_simple(func: Any) -> bool:
    """Returns whether an operation takes a tensor, but no list of them, and gives one."""
    arguments, returns = func._schema.arguments, func._schema.returns
    if func is _COPY or func in OF_FLOATS or place_of_size(func) >= 0:
        return False
    if not (arguments and len(returns) == 1):
        return False
    if any("List" in (kind := str(one.type)) and "Tensor" in kind for one in arguments):
        return False
    return bool(arguments[0].type.kind() == returns[0].type.kind() == "TensorType")


def _is_view(func: Any) -> bool:
    if not isinstance(func, OpOverload) or not func.is_view or cost_of(func) is not FREE:
        return False
    if func.namespace == "fsdp":  # Python runs for each of their parameters
        return False
    arguments = func._schema.arguments
    tensors = [at for at, one in enumerate(arguments) if "Tensor" in str(one.type)]
    return tensors == [0]


_IMPLICIT: Final = DispatchKey.CompositeImplicitAutograd
_COMPOSITE: Final = _IMPLICIT.name, "CPU"  # which has those of CUDA, too
_WAYS: Final[WeakKeyDictionary[GraphEngine, dict[int, dict[int, Way]]]] = WeakKeyDictionary()


class DirectMode(TimeMode):
    """Sees each operation of one rank, and lets those take the short way that can.

    Args:
        ways: What is known of operations, which ranks of one kind of device share; None: what such
            ranks of the engine share.
    """

    exact = False
    """Whether results are made by what is known of operands, and so all of it is compared."""

    def __init__(self, rank: Rank, ways: dict[int, Way] | None = None) -> None:
        super().__init__(rank)
        if ways is None:
            ways = _WAYS.setdefault(self._engine, {}).setdefault(id(self._library), Kept())
        self._ways: Final = ways  # by `id`: the hash of an operation is slow

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation; see `TimeMode`."""
        way = self._ways.get(id(func))
        if way is None:
            way = self._ways[id(func)] = self.way_of(func)
        rank = self._rank
        if way.composite and not types and not _len_torch_dispatch_stack():
            with self:
                return func._op_dk(_IMPLICIT, *args, **(kwargs or {}))
        if (
            not way.open
            or types
            or rank.making is not None
            or self._hazards.alert
            or _len_torch_dispatch_stack()  # PyTorch finds out a shape
        ):
            return self.walk(func, types, args, kwargs)
        process, find = self._process, STORAGES.get
        if way.views:
            value, held = args[0], None
            if not kwargs and type(value) in PLAIN:
                try:
                    held = find(value.untyped_storage()._cdata)
                except NotImplementedError:  # a sparse tensor has no storage
                    held = None
            if held is None or not held.on_device or held.owner is not process:
                return self.walk(func, types, args, kwargs)
            out = way.run(*args)
            process.host.clock += self.eager.view[rank.ambient or is_grad_enabled()]
            return out
        cost, exact, short = way.cost, self.exact, False
        # Sums of integers and floats are of the default type.
        key: list[Any] = [get_default_dtype()]
        if cost.blas:
            key.append(precision_of("cuda", way.multiplies))
        try:
            for value in args:
                kind = type(value)
                if kind in PLAIN:
                    held = find(value.untyped_storage()._cdata)
                    if held is None or not held.direct or held.owner is not process:
                        break
                    key.append(value.shape)
                    key.append(value.dtype)
                    if exact or not value.is_contiguous():
                        key.append(value.stride())
                elif not self._note(key, kind, value):
                    break
            else:
                short = not kwargs or self._note_named(key, kwargs)
        except NotImplementedError:  # a sparse tensor has no storage
            pass
        if not short:
            return self.walk(func, types, args, kwargs)
        signature = tuple(key)
        met = way.met.get(signature)
        if met is None:
            out = self.walk(func, types, args, kwargs)
            self._meet(way, signature, args, kwargs, out)
            return out
        duration, run, made = met
        try:
            if made is not None:
                out = EMPTY(made[0], made[1], dtype=made[2], device=META)
            else:
                out = run(*args, **kwargs) if kwargs else run(*args)
        except RuntimeError as error:
            raise no_memory(rank, error, on_device=True) from None
        if way.writes:
            held = find(out.untyped_storage()._cdata)
            assert held is not None
            held.wrote_at = self._line.count + 1
        else:
            storage = out.untyped_storage()
            place = storage._cdata
            if place not in STORAGES:
                hold_new(rank, storage, place, out).wrote_at = self._line.count + 1
        if not cost.known:
            self._issue(cost, duration)
            return out
        # As `_issue`, without a call.
        process.host.clock += self.eager.kernel[rank.ambient or is_grad_enabled()]
        stream = process.current_stream(rank.sip)
        if cost.blas:
            self.eager.blas(stream)
        self._alone.issue(cost.name, stream, duration)
        return out

    walk = TimeMode.__torch_dispatch__
    """The long way."""

    def way_of(self, func: Any) -> Way:
        """Returns the short way of an operation, which may not be open."""
        return Way(func)

    def _note(self, key: list[Any], kind: type, value: Any) -> bool:
        """Adds to a key what is no tensor; returns whether it can be compared."""
        if kind in COMPARED:
            key += (kind, value)
        elif kind is float:
            key += (kind, value) if self.exact else (kind,)
        elif kind in LISTS and all(type(one) in COMPARED for one in value):
            key += (list, tuple(value))  # strides of a tensor before it are a tuple, too
        else:
            return False
        return True

    def _note_named(self, key: list[Any], kwargs: Mapping[str, Any]) -> bool:
        """Adds arguments that come by name; returns whether they can be compared."""
        for name, value in kwargs.items():
            key.append(name)
            if not self._note(key, type(value), value):
                return False
        return True

    def _meet(self, way: Way, signature: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Caches the result of the slow path for operands with this signature."""
        if len(way.met) >= _MOST_MET:
            return
        if way.writes:
            alike = out is args[0]
        else:
            held = STORAGES.get(out.untyped_storage()._cdata) if type(out) is torch.Tensor else None
            alike = held is not None and held.on_device and held.owner is self._process
        again = self.again(way, args, out) if alike else None
        if again is not None:
            duration = way.cost.duration(self._library, args, kwargs or {}, out)
            way.met[signature] = Met(duration, *again)

    def again(self, way: Way, args: Any, out: Any) -> tuple[Callable[..., Any], Made | None] | None:
        """Returns how to give again what `out` is; None if it must go the long way."""
        del out
        if type(args[0]) not in PLAIN:  # a number, as in `5 // tensor`
            return None
        return watched(way.func, widened(way.func, args[0].dtype)), None
