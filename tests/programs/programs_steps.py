"""Programs of several ranks as plain data: what each rank does, line by line."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

INTEGERS = ("int32", "int64", "uint8")
FLOATS = ("float32", "bfloat16", "float16", "float64")
COMPLEX = ("complex64",)
INEXACT = FLOATS + COMPLEX
DTYPES = INTEGERS + INEXACT + ("bool",)
MESSAGES = ("send", "recv", "isend", "irecv")
OBJECTS = (
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor that each rank has.

    Attributes:
        dtype: Its type, as `torch` calls it.
        size: Number of elements.
        values: By rank, what it holds at first; None: nothing, as `torch.empty` leaves it.
    """

    dtype: str
    size: int
    values: tuple[tuple[complex, ...], ...] | None


def pattern(size: int, rank: int) -> list[complex]:
    """Returns the values of a long tensor; `PATTERN` is the same as a text."""
    return [(7 * i + 3 * rank) % 9 for i in range(size)]


PATTERN = "[(7 * i + 3 * {rank}) % 9 for i in range({size})]"


@dataclass(frozen=True, slots=True)
class Ref:
    """Some neighbouring elements of a slot.

    Attributes:
        slot: Index of the slot.
        start: First element.
        stop: One behind the last.
        width: Length of the rows in which they are seen; 0 for a vector.
    """

    slot: int
    start: int
    stop: int
    width: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    @property
    def shape(self) -> tuple[int, ...]:
        """As the program sees them."""
        return (self.size // self.width, self.width) if self.width else (self.size,)

    def overlaps(self, other: "Ref") -> bool:
        """Returns whether two have an element in common."""
        both = self.slot == other.slot
        return both and max(self.start, other.start) < min(self.stop, other.stop)


@dataclass(frozen=True, slots=True)
class Call:
    """A rank's part in something that ranks do together.

    Attributes:
        event: Number of the event that it is a part of.
        name: Of the function; `coalesced` and `batch_isend_irecv` hold others in `parts`.
        group: Index of the group; 0 is all ranks.
        given: Tensors whose values the rank gives.
        taken: Tensors that get new values.
        op: How values are combined; empty if they are not.
        root: Global rank that plays a part of its own.
        peer: Global rank of the other side of a message; None for any.
        tag: Of a message.
        sends: Elements that go to each rank, if that is not the same for all.
        receives: Elements that come from each rank, likewise.
        objects: What the rank gives to a collective of Python objects.
        parts: What is issued as one.
        handle: Whether it is asynchronous.
        cast: A type that all tensors are converted to first: a mistake.
    """

    event: int
    name: str
    group: int = 0
    given: tuple[Ref, ...] = ()
    taken: tuple[Ref, ...] = ()
    op: str = ""
    root: int | None = None
    peer: int | None = None
    tag: int = 0
    sends: tuple[int, ...] | None = None
    receives: tuple[int, ...] | None = None
    objects: tuple[Any, ...] = ()
    parts: "tuple[Call, ...]" = ()
    handle: bool = False
    cast: str = ""

    def reads(self) -> tuple[Ref, ...]:
        """Returns what is read."""
        return self.given + tuple(ref for part in self.parts for ref in part.given)

    def writes(self) -> tuple[Ref, ...]:
        """Returns what is written."""
        return self.taken + tuple(ref for part in self.parts for ref in part.taken)

    @property
    def is_message(self) -> bool:
        """Whether it concerns two ranks rather than all of a group."""
        return self.name in MESSAGES or self.name == "batch_isend_irecv"

    @property
    def notes(self) -> bool:
        """Whether it notes down what it returns, as `Read` does."""
        return self.name in OBJECTS


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits for an asynchronous call.

    Attributes:
        event: Which one.
        many: Whether the call returned a list of handles.
    """

    event: int
    many: bool = False


@dataclass(frozen=True, slots=True)
class Local:
    """Changes a tensor in place: `ref.method(other)`.

    Attributes:
        ref: What is changed.
        method: Such as `mul_`.
        other: A number, or another tensor of the same size and type.
    """

    ref: Ref
    method: str
    other: "float | Ref"


@dataclass(frozen=True, slots=True)
class Delay:
    """Makes the device of the rank late.

    Attributes:
        count: Kernels.
    """

    count: int


@dataclass(frozen=True, slots=True)
class Read:
    """Copies a tensor to the host, and notes its values.

    Attributes:
        ref: The tensor.
    """

    ref: Ref


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the rank: a mistake.

    Attributes:
        statement: The line that does it.
    """

    statement: str


Step = Call | Wait | Local | Delay | Read | Stop
Event = dict[int, Step]


@dataclass(frozen=True, slots=True)
class Split:
    """Groups that all ranks make with one call.

    Attributes:
        groups: Their indices.
        mesh: Extents of a device mesh whose lines along `dim` they are; empty for `split_group`.
        dim: A dimension of the mesh.
    """

    groups: range
    mesh: tuple[int, ...] = ()
    dim: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A program of several ranks.

    Attributes:
        ranks: How many.
        groups: Global ranks of each group, in order; the first one is all ranks.
        splits: Groups that are not made one by one, with `new_group`.
        scoped: Whether all of it happens in a `group_scope`.
        slots: Tensors that each rank has.
        events: What happens, in an order in which it could happen one by one; by rank.
        steps: By rank, what it does: its parts of the events, maybe in another order.
    """

    ranks: int
    groups: tuple[tuple[int, ...], ...]
    splits: tuple[Split, ...]
    scoped: bool
    slots: tuple[Slot, ...]
    events: tuple[Event, ...]
    steps: tuple[tuple[Step, ...], ...]


def reads_of(step: Step) -> tuple[Ref, ...]:
    """Returns the tensors whose values a step needs."""
    if isinstance(step, Call):
        return step.reads()
    if isinstance(step, Local):
        used = (step.ref,) if step.method in {"add_", "sub_", "mul_"} else ()
        return (*used, step.other) if isinstance(step.other, Ref) else used
    return (step.ref,) if isinstance(step, Read) else ()


def writes_of(step: Step) -> tuple[Ref, ...]:
    """Returns the tensors that a step changes."""
    if isinstance(step, Call):
        return step.writes()
    return (step.ref,) if isinstance(step, Local) else ()


def conflict(
    first: tuple[tuple[Ref, ...], tuple[Ref, ...]], second: tuple[tuple[Ref, ...], tuple[Ref, ...]]
) -> bool:
    """Returns whether the order of two steps matters, given what each reads and writes."""
    return any(
        mine.overlaps(yours)
        for ours, theirs in (
            (first[0], second[1]),
            (first[1], second[0]),
            (first[1], second[1]),
        )
        for mine in ours
        for yours in theirs
    )


def independent(first: Step, second: Step) -> bool:
    """Returns whether two steps of a rank may change places, as far as tensors go."""
    return not conflict((reads_of(first), writes_of(first)), (reads_of(second), writes_of(second)))


def used_slots(steps: tuple[Step, ...]) -> Iterator[int]:
    """Yields the slots that a rank uses, in order, each once."""
    yield from sorted({ref.slot for step in steps for ref in reads_of(step) + writes_of(step)})
