"""Mistakes with memory: a tensor in use by a collective, or sent though nothing has written it.

Operations of PyTorch have no blocks, see `process.act.Alone`; so their operands are looked up
here, while a collective or message of the rank is under way. Whether the order of streams allows an
access does not depend on when the bytes have moved. What was never written is in `unwritten`.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Final

import torch

from kernbench.bridge.base.here import HERE, Rank
from kernbench.bridge.tensors.operands import is_sparse, tensors_in
from kernbench.bridge.tensors.races import Races
from kernbench.bridge.tensors.storages import STORAGES, Held, Ref, is_on_device, is_plain
from kernbench.bridge.tensors.unwritten import Blank, Operation, Unwritten
from kernbench.errors import is_ours
from kernbench.process.access import Verb
from kernbench.sim_engine.command import Command, Stream
from kernbench.symmetric.uses import Uses
from kernbench.tensors.tensor import Tensor

_COPIES: Final = frozenset(
    (
        torch.ops.aten.copy_.default,
        torch.ops.aten._foreach_copy_.default,
        torch.ops.aten._to_copy.default,
    )
)

_REPLACES: Final = frozenset(("set_", "resize_", "resize_as_", "resize_storage_bytes_"))

_FULL: Final = 256
"""Storages after which those are looked for that need no watch any more."""


class Hazards:
    """Which storages of a rank are in use by commands of collectives, and which hold nothing yet.

    Attributes:
        alert: Whether a storage is in use, or there are several streams, so that all operations
            are looked at.
        watch: Whether operations that go the long way are looked at: there also are storages that
            hold nothing yet, of which `Held.direct` tells.
        unwritten: The storages that hold nothing yet, wholly or in part.
        shared: What the operation that was looked at last does with symmetric memory.
        tables: Addresses at which addresses of symmetric memory lie.
    """

    def __init__(self, rank: Rank) -> None:
        self.alert = self.watch = False
        self.shared: Final = Uses(rank.process, numbers=rank.data)
        self.tables: Final[set[int]] = set()
        self._rank = rank
        self._used: dict[Held, None] = {}
        self._blank: Final[dict[Held, Blank]] = {}
        self._watches: Final[tuple[dict[Held, Any], ...]] = (self._used, self._blank)
        self.unwritten: Final = Unwritten(rank, self._blank, self._changed)
        self._full = _FULL

    def note_written(self, tensor: torch.Tensor) -> None:
        """Notes that code which no mode sees may write a tensor."""
        held = STORAGES.get(tensor.untyped_storage()._cdata)
        if held is not None:
            self.unwritten.forget(held)

    def watch_streams(self) -> None:
        """Watches from now on what several streams do with one storage."""
        if self._rank.races is None:
            self._rank.races = Races(self._rank)
            self._changed()

    def watch_shared(self) -> None:
        """Watches from now on which operations touch symmetric memory."""
        self.shared.begin()
        self._changed()

    def look(self, operands: "Operands", name: str, args: Sequence[Any], kwargs: Any) -> bool:
        """Looks at the operands of an operation that is about to run.

        Args:
            operands: What the operation does with them.

        Returns:
            Whether its results get elements that nothing has written, see `Unwritten.carry`.

        Raises:
            AccessError: If a collective uses one of them that nobody has waited for (C14, C15,
                M10).
            UninitialisedReadError: If it computes with elements that nothing has written (M5).
        """
        races = self._rank.races
        # A storage that is gone tells nobody.
        self._set_switches()
        if races is not None and not operands.free:
            races.begin(name)
        tensors = list(operands.of(args, kwargs or {}))
        # As in `process.act`: what an operation in place does too early is that it writes.
        if operands.writes:
            tensors.sort(key=lambda operand: operand[1] != "wrote")
        self.shared.take()
        for tensor, verb in tensors if self.shared.some and not operands.free else ():
            held = STORAGES.get(tensor.untyped_storage()._cdata)
            if held is not None and held.shared is not None:
                nbytes, window = tensor.numel() * tensor.element_size(), held.window_of(tensor)
                self.shared.use(held.shared, window, nbytes, name, writes=verb == "wrote")
        for tensor, verb in tensors if self.alert else ():
            held = STORAGES.get(tensor.untyped_storage()._cdata)
            if held is None or operands.free:
                continue
            does: Verb = "wrote" if verb == "wrote" else "read"
            if races is not None and held.on_device:
                races.touch(held, tensor, does)
            elif held in self._used:
                crosses = operands.copies and not held.on_device and self._crosses(args)
                self._check(held, tensor, does, crosses=crosses)
        if not self._blank or self._rank.capture is not None:  # nothing is read in a capture
            return False
        if operands.free:
            for tensor in operands.replaced(args, kwargs or {}):
                self.note_written(tensor)
            return False
        return self.unwritten.look(operands.operation, tensors, args, kwargs)

    def _crosses(self, args: Sequence[Any]) -> bool:
        """Returns whether a copy with a tensor of the host is one from or to the device."""
        return bool(self._rank.making) or any(map(is_on_device, tensors_in(args)))

    def _check(
        self, held: Held, tensor: torch.Tensor, verb: Verb, *, crosses: bool = False
    ) -> None:
        """Checks an access; `crosses` says that a copy of the current stream has it, no host."""
        process = self._rank.process
        at_device = held.on_device or crosses
        stream = process.current_stream(self._rank.sip) if at_device else None
        held.check(process, stream, held.window_of(tensor), verb)

    def check_read(self, tensor: torch.Tensor) -> None:
        """Checks that the host may read a tensor in a way that no mode sees.

        Raises:
            AccessError: If a collective uses it that nobody has waited for (C15, M10).
        """
        held = STORAGES.get(tensor.untyped_storage()._cdata)
        if held is None:
            return
        if self._rank.races is not None and held.on_device:
            self._rank.races.begin("a read by the host")
            self._rank.races.touch(held, tensor, "read")
        elif held in self._used:
            self._check(held, tensor, "read")

    def check_resized(self, held: Held) -> None:
        """Checks that a storage may change its size: it is read for it, and its memory given back.

        Args:
            held: The storage's memory.

        Raises:
            AccessError: If a collective uses it that nobody has waited for (C14, C15).
        """
        if held in self._used:
            process = self._rank.process
            stream = process.current_stream(held.sip) if held.on_device else None
            whole = held.whole()
            held.check(process, stream, whole, "read")
            held.check(process, stream, whole, "wrote")

    def check_given(
        self, call: str, stream: Stream, reads: Sequence[Tensor], writes: Sequence[Tensor]
    ) -> None:
        """Checks the tensors of a collective that the rank is about to join; a `Process.giving`.

        Args:
            call: Name of the collective.

        Raises:
            UninitialisedReadError: If nothing has written one that it reads (M5).
            AccessError: If another stream may still be at one (M10).
        """
        for block in reads:
            self.unwritten.check_sent(block, call)
        for at, block in enumerate((*writes, *reads)):
            shared = block.memory.shared if isinstance(block.memory, Held) else None
            self.shared.give(shared, stream, block.window, call, at < len(writes))

    @property
    def looks(self) -> bool:
        """Whether a collective may be refused for what it is given."""
        return bool(self._blank or self.shared.some) and self._rank.capture is None

    def note_used(self, blocks: Sequence[Tensor]) -> None:
        """Notes the tensors of a collective or message that the rank has just issued."""
        for block in blocks:
            held = block.memory
            assert isinstance(held, Held)
            self.unwritten.forget(held)  # it is written, or was found to be
            if not self._is_settled(held):
                self._used[held] = None
                held.watches = self._watches
        self._changed()

    def note_waited(self, used: Sequence[Ref], *, trusted: bool = False) -> None:
        """Notes that a rank has waited for a collective or message.

        Args:
            used: The storages of its tensors.
            trusted: Whether library code waits in its own way, and is not to be watched.
        """
        for ref in used:
            held = STORAGES.get(ref.key)
            if held is None or held.ref is not ref:
                continue
            if trusted:
                held.trust()
            if trusted or self._is_settled(held):
                self._used.pop(held, None)
        self._changed()

    def _is_settled(self, held: Held) -> bool:
        """Returns whether every stream that computes comes after all uses of a memory."""
        process = self._rank.process
        commands = [
            (one[0], one[1]) for one in (*held.writes, *held.reads) if isinstance(one[3], Command)
        ]
        if not held.on_device:
            return all(process.seen.get(line, 0) >= number for line, number in commands)
        streams = process.computing_streams(held.sip)
        return all(process.ordered(stream, *one) for one in commands for stream in streams)

    def _changed(self, blank: Held | None = None) -> None:
        """Notes that there are more or fewer storages to look at; `blank`: this one is new."""
        if blank is not None:
            blank.watches = self._watches
        if len(self._used) + len(self._blank) > self._full:
            # A copy: what ends meanwhile takes itself out.
            for held in [held for held in list(self._used) if self._is_settled(held)]:
                self._used.pop(held, None)
            self._full = max(_FULL, 2 * (len(self._used) + len(self._blank)))
        self._set_switches()

    def _set_switches(self) -> None:
        self.alert = bool(self._used or self._rank.races is not None)
        self.watch = self.alert or self.shared.some or bool(self._blank)


class Operands:
    """What an operation does with its operands.

    Args:
        free: Whether it touches no element, such as a view.

    Attributes:
        copies: Whether it only copies, and so may go from host to device or back.
        free: As above.
        operation: What it does with memory that nothing has written.
        writes: Whether it writes any of them.
    """

    __slots__ = ("_names", "_places", "_told", "copies", "free", "operation", "writes")

    def __init__(self, func: Any, free: bool) -> None:
        self.copies: Final = func in _COPIES
        self.free: Final = free
        self.operation: Final = Operation(func)
        arguments = func._schema.arguments
        # What an operation of another library writes, its schema need not say.
        self._told: Final = free or func.namespace == "aten"
        written = [(at, one.name) for at, one in enumerate(arguments) if _is_written(one)]
        self._places: Final = frozenset(at for at, _ in written)
        self._names: Final = frozenset(name for _, name in written)
        self.writes: Final = bool(written) and not free

    def of(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[torch.Tensor, str]]:
        """Yields the tensors among arguments, with what happens to each.

        Args:
            kwargs: Those by name.

        Yields:
            Each tensor, with `read`, `wrote`, or `unknown`.
        """
        other = "read" if self._told else "unknown"
        for at, value in enumerate(args):
            for tensor in tensors_in(value):
                yield tensor, "wrote" if at in self._places else other
        for name, value in kwargs.items():
            for tensor in tensors_in(value):
                yield tensor, "wrote" if name in self._names else other

    def replaced(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
        """Yields the tensors to which an operation without a kernel gives another storage or size.

        Args:
            kwargs: Those by name.
        """
        if self.operation.name in _REPLACES:
            yield from (tensor for tensor, verb in self.of(args, kwargs) if verb == "wrote")

    def note_written(self, args: Sequence[Any], kwargs: Any, number: int) -> None:
        """Notes which storages of a rank with one stream the operation writes.

        Args:
            kwargs: Those by name.
            number: Number of the command.
        """
        find = STORAGES.get
        for at in self._places:
            if at < len(args):
                given = args[at]
                for tensor in (given,) if isinstance(given, torch.Tensor) else given or ():
                    held = find(tensor.untyped_storage()._cdata)
                    if held is not None:
                        held.wrote_at = number
        for name in self._names if kwargs else ():
            for tensor in tensors_in(kwargs.get(name)):
                held = find(tensor.untyped_storage()._cdata)
                if held is not None:
                    held.wrote_at = number


def giving_bytes(
    real: Callable[..., Any], *, reads: bool = False, writes: bool = False, shows: bool = False
) -> Callable[..., Any]:
    """Returns a method of a tensor that gives its bytes away, to code that no mode sees.

    Args:
        real: The method, as it is in ranks.
        reads: Whether the host reads them.
        writes: Whether that code may write them.
        shows: Whether the method gives all of the values.
    """

    @functools.wraps(real)
    def method(self: torch.Tensor, *args: Any, **options: Any) -> Any:
        rank = HERE.rank
        if rank is not None and rank.hazards.watch and is_plain(type(self)) and not is_sparse(self):
            if reads:
                rank.hazards.check_read(self)
            if shows:
                rank.hazards.unwritten.check_shown(self)
            if writes and not _of_triton(sys._getframe(1)):
                rank.hazards.note_written(self)
        return real(self, *args, **options)

    return method


def _of_triton(frame: FrameType | None) -> bool:
    """Returns whether Triton asks, to choose how it compiles: a launch tells what it writes."""
    # A function that Triton has made for a kernel is of no module.
    while frame is not None and (is_ours(frame) or "__name__" not in frame.f_globals):
        frame = frame.f_back
    return frame is not None and frame.f_globals["__name__"].startswith("triton.")


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write
