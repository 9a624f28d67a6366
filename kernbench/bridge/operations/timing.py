"""Every operation of PyTorch as a command of the current stream of the rank's device."""

from functools import partial
from typing import Any, Final

import torch
from torch import get_default_dtype, is_grad_enabled
from torch._C import _get_dispatch_mode
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.bridge.base.here import Rank
from kernbench.bridge.cuda.randomness import draw
from kernbench.bridge.operations.costs import FREE, Cost, cost_of
from kernbench.bridge.operations.costs_gemm import precision
from kernbench.bridge.operations.costs_rows import adds_to_zeros
from kernbench.bridge.operations.eager import Eager
from kernbench.bridge.operations.flex import OPERATIONS, Named
from kernbench.bridge.operations.known import OF_FLOATS, Known, known_of, refuse_on_device
from kernbench.bridge.operations.transfers import VALUE, Transfers
from kernbench.bridge.tensors.devices import placed, wanted
from kernbench.bridge.tensors.hazards import Operands
from kernbench.bridge.tensors.no_numbers import depends_now
from kernbench.bridge.tensors.operands import (
    BOTH,
    DEVICE,
    HOST,
    OTHER,
    checked,
    is_from_nothing,
    is_sparse,
    names_device,
    note_from_nothing,
    of_the_host,
    operands_on,
    sparse_on_device,
    tensors_in,
)
from kernbench.bridge.tensors.room import check_room
from kernbench.bridge.tensors.storages import (
    PINNED,
    PLAIN,
    STORAGES,
    Held,
    hold,
    hold_new,
    is_on_device,
    is_plain,
    no_memory,
)
from kernbench.bridge.tensors.unwritten import zeroed
from kernbench.errors import not_simulated
from kernbench.process.act import Alone, act
from kernbench.process.process import Process
from kernbench.runtime_api.refused_names import REFUSED
from kernbench.symmetric.links import as_they_are
from kernbench.symmetric.visits import action_of, wrote

_FAKE: Final = torch._C._TorchDispatchModeKey.FAKE
_COPY: Final = cost_of(torch.ops.aten.copy_.default)
_FILL: Final = cost_of(torch.ops.aten.fill_.Tensor)
_UPLOAD: Final = Cost("copy", FREE.duration)

_PLAIN_WAY: Final = "use operations on tensors"

_MOST_DURATIONS: Final = 1024
"""Shapes of one operation of which the duration is kept."""

LISTS: Final = frozenset((list, tuple))

KEYS: Final = frozenset(
    (bool, int, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device)
)
"""Types of arguments on which the duration may depend, and that are few for one operation."""

_OWN: Final = 8
"""Beside `DEVICE` and so on: something on which the duration may depend has too many values."""

_GIVEN: Final = 16
"""Beside `DEVICE` and so on: there are tensors."""


class TimeMode(TorchDispatchMode):
    """Sees each operation of one rank, runs it, and issues the command that it is on the device.

    Attributes:
        unknown: Operations without a cost of their own, timed by their bytes: how often, and their
            time in picoseconds.
        eager: What PyTorch itself takes on the host.
        copy_out: Issues a copy from the device to the host, for which the host waits.
    """

    supports_higher_order_operators = True

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.unknown: dict[str, list[int]] = {}
        self._rank = rank
        process = self._process = rank.process
        self._engine = process.engine
        self._device = process.engine.devices[rank.sip]
        self._library = self._device.library
        self._alone = Alone(process, "compute", self._device.compute)
        self._hazards = rank.hazards
        self._line = process.default_stream(rank.sip)
        self._known: Final = known_of(self._engine, self._library, rank.data)
        self.eager: Final = Eager(rank)
        self._walks = 0
        self._transfers: Final = Transfers(rank)
        self.copy_out: Final = self._transfers.copy_out

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing compiles what runs here; to say so again costs a call an operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation; see the class."""
        if _get_dispatch_mode(_FAKE) is not None:  # PyTorch finds out a shape
            return func(*args, **(kwargs or {}))
        if types:
            for kind in types:
                if not is_plain(kind):
                    if issubclass(kind, FakeTensor):  # made to find out a shape, by PyTorch itself
                        return func(*args, **(kwargs or {}))
                    self.eager.spend(self.eager.calls.dtensor)
                    return NotImplemented  # a DTensor calls again with what it stands for
        if kwargs and names_device(kwargs):
            return self.on_named_device(func, types, args, kwargs)
        known = self._known.get(id(func))
        if known is None:
            if isinstance(func, HigherOrderOperator):
                return self._higher_order(func, args)
            known = self._known[id(func)] = Known(func, self._rank.data)
        self._walks += 1
        rank, cost, process, find = self._rank, known.cost, self._process, STORAGES.get
        try:
            # One pass over the operands, as every operation comes here: where they are, and what
            # the duration depends on.
            where, given, repeats = 0, False, known.repeats
            key: list[Any] = [get_default_dtype()]
            if cost.blas:
                key.append(precision())
            if cost.in_place is not None and adds_to_zeros():
                cost = cost.in_place
                key.append(cost)
            for value in args:  # as `_look`, without a call
                kind = type(value)
                if kind in PLAIN or isinstance(value, torch.Tensor):
                    given = True
                    held = find(value.untyped_storage()._cdata)
                    if held is not None and held.on_device:
                        where |= DEVICE if held.owner is process else OTHER
                    else:
                        key.append(None)
                        if value.dim():
                            where |= HOST
                    key.append(value.shape)
                    key.append(value.dtype)
                    if not value.is_contiguous():  # less is read of what is expanded
                        key.append(value.stride())
                elif kind in LISTS:
                    found = _look(value, process, key)
                    where |= found & ~_OWN & ~_GIVEN
                    given = given or found >= _GIVEN
                    repeats = repeats and not found & _OWN
                elif kind is not float:
                    key += (kind, value)  # True and 1 are equal, but not what is made with them
            if kwargs:
                for name, value in kwargs.items():
                    key.append(name)
                    found = _look((value,), process, key)
                    where |= found & ~_OWN & ~_GIVEN
                    given = given or found >= _GIVEN
                    repeats = repeats and not found & _OWN
        except NotImplementedError:
            if any(map(is_sparse, tensors_in((args, kwargs)))):
                return of_the_host(func, args, kwargs)
            raise
        if where >= BOTH:
            args = checked(rank, func, args, kwargs)
        touched = bool(where & DEVICE)
        if known.sparse and touched:
            raise sparse_on_device(known.cost.name)
        if known.collective is not None and touched:
            with self:
                return known.collective(rank, *args, **(kwargs or {}))
        if known.defined and (touched or not cost.known):
            with self:
                return known.inside(touched, args, kwargs or {})
        carries = self._hazards.watch and self._hazards.look(
            known.operands, cost.name, args, kwargs
        )
        making = rank.making
        if making is None:
            making = touched or (rank.ambient and not given)
        if known.size >= 0 and making:
            check_room(rank, known.size, args, kwargs)
        if known.plain:  # as `_run`, without a call
            try:
                out = known.run(*args, **kwargs) if kwargs else known.run(*args)
            except RuntimeError as error:
                raise no_memory(rank, error, on_device=making) from None
        else:
            out = self._run(known, func, args, kwargs, making)
        if known.blank:
            zeroed(out)
        if known.operands.writes and rank.races is None:
            known.operands.note_written(args, kwargs, self._line.count + 1)
        if known.onto and touched and self._copied_across(args, kwargs):
            return out
        if making and cost.fresh:
            if type(out) is torch.Tensor:  # as `_hold`, without a call
                storage = out.untyped_storage()
                place = storage._cdata
                if place not in STORAGES:
                    fresh = hold_new(rank, storage, place, out)
                    if cost is not FREE:
                        if rank.races is None:
                            fresh.wrote_at = self._line.count + 1
                        else:
                            rank.races.made(fresh, out)
            else:
                self._hold(out[known.on_device] if type(out) is tuple else out, cost)
        if known.reads and not touched:
            self._transfers.note_read(args[0], out, self._walks)
            return out
        if carries:
            self._hazards.unwritten.carry(known.operands.operation, args, kwargs, out)
        if not making and cost.fresh and rank.making is None:
            if is_from_nothing(args) if given else not where:
                note_from_nothing(out)
            return out
        if cost.fresh and given and making != touched and not known.reads:
            later = bool(kwargs and kwargs.get("non_blocking"))
            if later and not making:
                setattr(out.untyped_storage(), PINNED, True)  # as PyTorch does for such a copy
            self._transfers.copy(out, args[0] if making else out, to_device=making, later=later)
            if not (making or later):
                self._transfers.note_read(args[0], out, self._walks)
            return out
        if not (touched or making):
            return out
        if known.shards:
            self.eager.parameters(args)
        if cost is FREE:
            # `ambient`: in a backward pass
            process.host.clock += self.eager.view[rank.ambient or is_grad_enabled()]
            return out
        if known.reads:
            self.copy_out(VALUE)
            self._transfers.note_read(args[0], out, self._walks)
            return out
        signature = tuple(key) if repeats and given else None
        duration = known.durations.get(signature)
        if duration is None:
            duration = cost.duration(self._library, args, kwargs, out)
            if signature is not None and len(known.durations) < _MOST_DURATIONS:
                known.durations[signature] = duration
        self._issue(cost, duration, args)
        if known.sizes and depends_now(func, args):
            self.copy_out(VALUE)  # the host asks how large the result is
        return out

    def on_named_device(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs an operation that names the simulated device itself, as an exported program does.

        Args:
            kwargs: Its arguments by name, with the device.
        """
        rank = self._rank
        wanted(rank, kwargs["device"])
        with placed(rank, True):
            return self.__torch_dispatch__(func, types, args, {**kwargs, "device": rank.physical})

    def known(self, func: Any) -> Known:
        """Returns what is known of an operation."""
        known = self._known.get(id(func))
        if known is None:
            known = self._known[id(func)] = Known(func, self._rank.data)
        return known

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operation of the device on this computer, and issues nothing."""
        if isinstance(func, HigherOrderOperator):
            return OPERATIONS[func.name()](self._rank, self._library, *args).out
        known = self.known(func)
        if self._hazards.watch:
            self._hazards.look(known.operands, known.cost.name, args, kwargs)
        if known.plain:
            return known.run(*args, **kwargs)
        return self._run(known, func, args, kwargs, True)

    def _issue(self, cost: Cost, duration: int, args: Any = ()) -> None:
        """Issues the command of an operation."""
        rank, process = self._rank, self._process
        if not cost.known:
            entry = self.unknown.setdefault(cost.name, [0, 0])
            entry[0] += 1
            entry[1] += duration
        process.host.clock += self.eager.kernel[rank.ambient or is_grad_enabled()]
        stream = process.current_stream(rank.sip)
        if cost.blas:
            self.eager.blas(stream)
        if args and cost.lists:  # the first argument may be a number
            tensors = next((len(one) for one in args if type(one) in LISTS), 0)
            self.eager.spend(self.eager.calls.tensor * tensors)
        shared = self._hazards.shared
        if shared.moves or shared.written:
            moves, written = shared.take()
            copies = bool(moves) and cost.name == _COPY.name and as_they_are(*args[:2])
            resource = None if copies else self._device.compute
            held = self._library.sip.peers.copy if copies else duration
            work = action_of(self._engine, resource, held, None, moves)
            wrote(process, written, act(process, cost.name, "compute", stream, work).done)
            return
        self._alone.issue(cost.name, stream, duration)

    def _higher_order(self, func: HigherOrderOperator, args: Any) -> Any:
        """Runs an operation of higher order, on a device as one command."""
        rank, name = self._rank, func.name()
        operation = OPERATIONS.get(name)
        if operation is None:
            way = REFUSED.get(f"torch.{name}", _PLAIN_WAY)
            raise not_simulated(f"torch.ops.higher_order.{name}", way)
        if not is_on_device(args[0]):
            return func(*args)
        if operands_on(args, rank.process) >= BOTH:
            checked(rank, Named(name), args)
        if self._hazards.watch:
            self._hazards.look(Operands(Named(name), free=False), name, args, None)
        ran = operation(rank, self._library, *args)
        cost = Cost(name, FREE.duration)
        for one in tensors_in(ran.out):
            self._hold(one, cost)
        self._issue(cost, ran.duration)
        return ran.out

    def _run(self, known: Known, func: Any, args: Any, kwargs: Any, making: bool) -> Any:
        """Runs an operation on this computer; `making` says whether it is the device's."""
        rank, run = self._rank, known.run
        if known.host_only and (making or is_on_device(args[0])):
            refuse_on_device(func)
        if known.draws:
            run = partial(draw, rank, func, making)
        elif func in OF_FLOATS and not args[0].dtype.is_floating_point:
            run = partial(_as_floats, func)
        try:
            if known.resizes.some:
                return known.resizes.run(rank, partial(run, *args, **(kwargs or {})), args, kwargs)
            return run(*args, **kwargs) if kwargs else run(*args)
        except RuntimeError as error:
            raise no_memory(rank, error, on_device=making) from None

    def _hold(self, out: Any, cost: Cost) -> None:
        for value in tensors_in(out):
            storage = value.untyped_storage()
            if storage._cdata not in STORAGES:
                self._made(hold(self._rank, storage, on_device=True, of=value), value, cost)

    def _made(self, held: Held, tensor: torch.Tensor, cost: Cost) -> None:
        """Notes the storage of a result, whose command is about to be issued."""
        if cost is FREE:
            return
        if self._rank.races is None:
            held.wrote_at = self._line.count + 1
        else:
            self._rank.races.made(held, tensor)

    def _copied_across(self, args: Any, kwargs: Any) -> bool:
        """Issues what an operation of `ONTO` copies across the bus; returns whether it does."""
        pairs = list(zip(tensors_in(args[0]), tensors_in(args[1]), strict=True))
        if all(is_on_device(to) == is_on_device(given) for to, given in pairs):
            return False
        later = bool(args[2] if len(args) > 2 else kwargs and kwargs.get("non_blocking"))
        for to, given in pairs:
            to_device, cost = is_on_device(to), _FILL if _is_number(given) else _COPY
            if to_device != is_on_device(given) and cost is _COPY:
                self._transfers.copy(
                    to, given if to_device else to, to_device=to_device, later=later
                )
            elif to_device:
                self._issue(cost, cost.duration(self._library, (to, given), {}, to))
        done = self._process.current_stream(self._rank.sip).tail
        if self._hazards.shared.written and done is not None:
            wrote(self._process, self._hazards.shared.written, done)
        return True

    def uploaded(self, made: torch.Tensor) -> None:
        """Places a tensor on the device that was made of values of the host.

        Args:
            made: The tensor, which has no numbers.
        """
        if self._rank.races is not None:
            self._rank.races.begin(_UPLOAD.name)
        self._hold(made, _UPLOAD)
        self._transfers.copy(made, to_device=True)


def _is_number(tensor: torch.Tensor) -> bool:
    """Returns whether `tensor[key] = number` makes a tensor, which on a GPU it fills in instead."""
    on_meta = tensor.is_meta and not is_on_device(tensor)  # of the program's own, PyTorch says no
    return on_meta and tensor.dim() > 0 and tensor.untyped_storage().nbytes() == tensor.itemsize


def _look(values: Any, process: Process, key: list[Any]) -> int:
    """Adds to a key what the duration depends on, of a list; returns where its tensors are.

    Returns:
        As `operands_on`, with `_GIVEN` if there are tensors, and with `_OWN` if there is something
        else on which the duration may depend.
    """
    where = 0
    key.append(len(values))
    for value in values:
        kind = type(value)
        if kind in PLAIN or isinstance(value, torch.Tensor):
            where |= _GIVEN
            held = STORAGES.get(value.untyped_storage()._cdata)
            if held is not None and held.on_device:
                where |= DEVICE if held.owner is process else OTHER
            else:
                key.append(None)
                if value.dim():
                    where |= HOST
            key.append(value.shape)
            key.append(value.dtype)
            if not value.is_contiguous():
                key.append(value.stride())
        elif kind in LISTS:
            where |= _look(value, process, key)
        elif kind in KEYS:
            key += (kind, value)
        elif kind is not float:  # no kernel takes longer for another number
            where |= _OWN
    return where


def _as_floats(func: Any, tensor: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
    found: torch.Tensor = func(tensor.double(), *rest, **named).to(tensor.dtype)
    return found
