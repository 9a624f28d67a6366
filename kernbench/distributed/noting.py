"""What is noted down inside `_coalescing_manager`, to be issued together when its block ends."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kernbench.ccl.operations import Reduction
from kernbench.distributed.posting import Post
from kernbench.process.process import Process, RankLocal
from kernbench.ranks.groups import ProcessGroup
from kernbench.tensors.tensor import Tensor


class Entry(NamedTuple):
    """A collective that is noted down.

    Attributes:
        operation: A key of `OPERATIONS`.
        source: What the rank gives.
        target: Where what it takes goes.
        reduction: How values are combined.
    """

    operation: str
    source: Tensor
    target: Tensor
    reduction: Reduction | None


class Message(NamedTuple):
    """One side of a message.

    Attributes:
        post: Its arguments, checked.
        peer: Global rank of the other side; None for anybody.
    """

    post: Post
    peer: int | None


@dataclass(slots=True)
class Notes:
    """What a rank has called inside a block.

    Attributes:
        takes_messages: Whether messages wait for the end of the block, too.
        entries: Collectives, in order.
        messages: Messages, in order.
    """

    takes_messages: bool
    entries: list[Entry] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


_NOTES: Final[RankLocal[dict[str, Notes]]] = RankLocal("notes of calls", lambda _: {})
"""By group, what a rank notes down instead of calling it at once."""


def open_notes(process: Process, group: ProcessGroup, notes: Notes) -> bool:
    """Lets a rank note down what it calls in a group; returns whether it did not do so already."""
    return _NOTES.of(process).setdefault(group.name, notes) is notes


def close_notes(process: Process, group: ProcessGroup) -> None:
    """Undoes `open_notes`."""
    del _NOTES.of(process)[group.name]


def noted(
    process: Process,
    group: ProcessGroup,
    operation: str,
    source: Tensor,
    target: Tensor,
    reduction: Reduction | None = None,
) -> bool:
    """Notes a collective down if the rank is coalescing those of a group; returns whether."""
    notes = _notes(process, group)
    if notes is None:
        return False
    notes.entries.append(Entry(operation, source, target, reduction))
    return True


def noted_message(post: Post, peer: int | None) -> bool:
    """Notes a message down if the rank is coalescing those of its group; returns whether."""
    notes = _notes(post.process, post.group)
    if notes is None or not notes.takes_messages or post.hosted:
        return False
    notes.messages.append(Message(post, peer))
    return True


def _notes(process: Process, group: ProcessGroup) -> Notes | None:
    return _NOTES.of(process).get(group.name)
