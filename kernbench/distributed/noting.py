"""Calls inside `_coalescing_manager`, noted down to be issued together when the block ends."""

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
        source: Tensor that the rank gives.
        target: Tensor that receives the rank's result.
        reduction: How values are combined; None for operations that combine none.
    """

    operation: str
    source: Tensor
    target: Tensor
    reduction: Reduction | None


class Message(NamedTuple):
    """One side of a message that is noted down.

    Attributes:
        post: The rank's side, with checked arguments.
        peer: Global rank of the other side; None for any rank.
    """

    post: Post
    peer: int | None


@dataclass(slots=True)
class Notes:
    """Calls of a rank inside a coalescing block.

    Attributes:
        takes_messages: Whether messages wait for the end of the block, too.
        entries: Collectives, in the order of the calls.
        messages: Messages, in the order of the calls.
    """

    takes_messages: bool
    entries: list[Entry] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


_NOTES: Final[RankLocal[dict[str, Notes]]] = RankLocal("notes of calls", lambda _: {})
"""The notes of a rank's open coalescing blocks, by name of the group."""


def open_notes(process: Process, group: ProcessGroup, notes: Notes) -> bool:
    """Opens the notes of a rank's calls in a group; returns False if others are open already.

    Args:
        group: Process group of the calls.
        notes: Where to note the calls down.
    """
    return _NOTES.of(process).setdefault(group.name, notes) is notes


def close_notes(process: Process, group: ProcessGroup) -> None:
    """Closes the notes that `open_notes` has opened."""
    del _NOTES.of(process)[group.name]


def noted(
    process: Process,
    group: ProcessGroup,
    operation: str,
    source: Tensor,
    target: Tensor,
    reduction: Reduction | None = None,
) -> bool:
    """Notes a collective down if the rank is in a coalescing block of its group.

    Args:
        group: Process group of the collective.
        operation: A key of `OPERATIONS`.
        source: Tensor that the rank gives.
        target: Tensor that receives the rank's result.
        reduction: How values are combined; None for operations that combine none.

    Returns:
        Whether the collective was noted down; if not, the caller issues it.
    """
    if not process.locals.get(_NOTES):
        return False  # nearly always
    notes = _notes(process, group)
    if notes is None:
        return False
    notes.entries.append(Entry(operation, source, target, reduction))
    return True


def noted_message(post: Post, peer: int | None) -> bool:
    """Notes a message down if the rank is in a block that coalesces messages of its group.

    Returns:
        Whether the message was noted down; if not, the caller issues it.
    """
    notes = _notes(post.process, post.group)
    if notes is None or not notes.takes_messages or post.hosted:
        return False
    notes.messages.append(Message(post, peer))
    return True


def _notes(process: Process, group: ProcessGroup) -> Notes | None:
    notes = process.locals.get(_NOTES)
    return notes.get(group.name) if notes else None
