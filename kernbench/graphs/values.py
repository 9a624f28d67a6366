"""What another library computes in a graph: calls on its tensors, to be done again at each replay.

A graph keeps no tensor of the program alive. A storage that was made in the capture, and that is
gone, has bytes again for the time from the call that writes it to the last call that uses it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from kernbench.errors import CallSite, KernbenchError
from kernbench.process.process import RankLocal

Before = Callable[[], None]


class Tensors(Protocol):
    """How the tensors of a library are taken apart and put together."""

    def is_tensor(self, value: Any) -> bool:
        """Returns whether a value is a tensor whose memory a replay looks at."""
        ...

    def fixed(self, tensor: Any) -> Any:
        """Returns a tensor as it is now, or itself if a replay is to see what it has then."""
        ...

    def storage(self, tensor: Any) -> tuple[int, Any, Any]:
        """Returns the key of its storage, the storage, and what refers to that weakly."""
        ...

    def described(self, tensor: Any) -> Any:
        """Returns what `built` makes the same tensor of."""
        ...

    def built(self, storage: Any, described: Any) -> Any:
        """Returns a tensor on a storage."""
        ...

    def room(self, nbytes: int) -> Any:
        """Returns a storage that stands for no memory of the device."""
        ...

    def put(self, result: Any, storage: Any, described: Any, *, shown: bool) -> Any:
        """Writes a result to a storage; returns the storage that has it.

        Args:
            storage: The storage; None: one that stands for no memory of the device.
            shown: Whether the program has the storage.
        """
        ...


class Slot:
    """A storage that graphs use.

    Attributes:
        ref: Returns the storage; None once it is gone.
        made: Whether it was made in a capture.
        nbytes: Its size.
        kept: A storage that has its bytes while it is gone; or itself, to be kept.
        graphs: Number of graphs that use it.
    """

    __slots__ = ("graphs", "kept", "made", "nbytes", "ref")

    def __init__(self, ref: Any, nbytes: int, *, made: bool) -> None:
        self.ref: Final = ref
        self.nbytes: Final = nbytes
        self.made: Final = made
        self.kept: Any = None
        self.graphs = 0


SLOTS: Final[RankLocal[dict[int, Slot]]] = RankLocal("storages of graphs", lambda _: {})
"""The storages that graphs of a rank use, by key."""


class Place(NamedTuple):
    """A tensor: its storage, and how it lies there."""

    slot: Slot
    described: Any


class _Call(NamedTuple):
    """A call to be done again.

    Attributes:
        name: Name in reports.
        site: Where the program made it.
        run: Does it; its tensors are those of the replay.
        args: Arguments, with places for tensors.
        named: Further arguments.
        outs: Places of its results, in order; None for a result that is an operand.
    """

    name: str
    site: CallSite | None
    run: Callable[..., Any]
    args: Any
    named: dict[str, Any]
    outs: Sequence[Place | None]


class Values:
    """Notes the calls of a capture, and does them again.

    Args:
        tensors: How tensors are taken apart.
        slots: The storages of all graphs of the rank, by key.
        gone: Returns the error about a storage that is gone, and that was there before the capture;
            takes its bytes, and name and place of the call.
    """

    def __init__(
        self,
        tensors: Tensors,
        slots: dict[int, Slot],
        gone: Callable[[int, str, CallSite | None], KernbenchError],
    ) -> None:
        self._tensors: Final = tensors
        for key in [key for key, slot in slots.items() if not slot.graphs and slot.ref() is None]:
            del slots[key]
        self._slots: Final = slots
        self._gone: Final = gone
        self._used: Final[dict[Slot, int]] = {}
        self._first: Final[dict[Slot, Any]] = {}
        self._steps: Final[list[tuple[int, _Call | Before]]] = []
        self._last: list[list[Slot]] = []
        self._next = 0

    def __del__(self) -> None:
        for slot in self._used:
            slot.graphs -= 1
            if not slot.graphs:
                slot.kept = None

    def place(self, tensor: Any, *, made: bool = False) -> Place:
        """Returns where a tensor is.

        Args:
            made: Whether the capture has made its storage, if nobody knows it yet.
        """
        key, storage, ref = self._tensors.storage(tensor)
        slot = self._slots.get(key)
        if slot is None or slot.ref() is None:
            slot = self._slots[key] = Slot(ref, storage.nbytes(), made=made)
        if slot not in self._used:
            slot.graphs += 1
        self._used[slot] = len(self._steps)
        place = Place(slot, self._tensors.described(tensor))
        self._first.setdefault(slot, place.described)
        return place

    def pieces(self, tensors: Iterable[Any]) -> Iterator[tuple[Slot, int]]:
        """Yields the slots of tensors, and how many bytes of them a kernel moves."""
        for tensor in tensors:
            slot = self.place(tensor).slot
            yield slot, min(tensor.nbytes, slot.nbytes)  # of what is expanded, only what is there

    def packed(self, value: Any) -> Any:
        """Returns a value with places for tensors."""
        if self._tensors.is_tensor(value):
            fixed = self._tensors.fixed(value)
            return self.place(value) if fixed is value else fixed
        if type(value) in (list, tuple):
            return type(value)([self.packed(one) for one in value])
        return value

    def made(self, args: Any, named: dict[str, Any], out: Any) -> list[Place]:
        """Notes a call that a replay need not do again, such as a view; returns all of its places.

        Args:
            args: Its arguments.
            named: Further ones.
            out: What it has made.
        """
        given = [self.place(one) for one in self._flat([*args, *named.values()])]
        return [*given, *self._made(out)]

    def _made(self, out: Any) -> list[Place]:
        return [self.place(one, made=True) for one in self._flat(out)]

    def note(
        self,
        node: int,
        name: str,
        site: CallSite | None,
        run: Callable[..., Any],
        args: Any,
        named: dict[str, Any],
        outs: Any,
    ) -> None:
        """Notes a call.

        Args:
            node: Number of its first command in the graph.
            name: Its name in reports.
            site: Where the program made it.
            run: Does it.
            args: Its arguments.
            named: Further ones.
            outs: What it has made.
        """
        given = self.packed(tuple(args)), {key: self.packed(one) for key, one in named.items()}
        known = {place.slot for place in _places(given)}
        places = self._made(outs)
        results = [None if one.slot in known else one for one in places]
        self._steps.append((node, _Call(name, site, run, *given, results)))

    def then(self, node: int, step: Before) -> None:
        """Notes something else that each replay does before a command of the graph is issued."""
        self._steps.append((node, step))

    def end(self) -> None:
        """Finds out which storages are not needed any more after which call."""
        self._last = [[] for _ in range(len(self._steps) + 1)]
        for slot, step in self._used.items():
            if slot.made:
                self._last[step].append(slot)

    def shown(self) -> Iterator[Place]:
        """Yields what the capture has made, and the program still has."""
        for slot in self._used:
            if slot.made and slot.ref() is not None:
                yield Place(slot, self._first[slot])

    def begin(self) -> None:
        """Begins a replay."""
        self._next = 0

    def before(self, node: int) -> None:
        """Does what the capture did before it issued a command of the graph, and that command."""
        steps = self._steps
        while self._next < len(steps) and steps[self._next][0] <= node:
            number, (_, step) = self._next, steps[self._next]
            self._next += 1
            if isinstance(step, _Call):
                self._do(step)
            else:
                step()
            for slot in self._last[number]:
                if slot.graphs == 1 and slot.ref() is None:
                    slot.kept = None

    def storage(self, slot: Slot, name: str, site: CallSite | None) -> Any:
        """Returns the storage of a slot, or one that stands for it.

        Args:
            name: Name of what uses it.
            site: Where the program called that.

        Raises:
            KernbenchError: If it was there before the capture, and is gone.
        """
        found = slot.ref()
        if found is not None:
            return found
        if slot.kept is None:
            if not slot.made:
                raise self._gone(slot.nbytes, name, site)
            slot.kept = self._tensors.room(slot.nbytes)
        return slot.kept

    def _do(self, call: _Call) -> None:
        def built(value: Any) -> Any:
            if type(value) is Place:
                storage = self.storage(value.slot, call.name, call.site)
                return self._tensors.built(storage, value.described)
            if type(value) in (list, tuple):
                return type(value)([built(one) for one in value])
            return value

        out = call.run(*built(call.args), **{key: built(one) for key, one in call.named.items()})
        for result, place in zip(self._flat(out), call.outs, strict=True):
            if place is not None:
                slot = place.slot
                there = slot.ref()
                found = self._tensors.put(
                    result, slot.kept if there is None else there, place.described,
                    shown=there is not None,
                )  # fmt: skip
                if there is None:
                    slot.kept = found

    def _flat(self, value: Any) -> Iterator[Any]:
        if self._tensors.is_tensor(value):
            yield value
        elif isinstance(value, list | tuple):
            for one in value:
                yield from self._flat(one)


def _places(value: Any) -> Iterator[Place]:
    if type(value) is Place:
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _places(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _places(one)
