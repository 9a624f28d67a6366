"""What is noted down inside `_coalescing_manager`, to be issued together when its block ends."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kernbench.ccl.operations import Reduction
from kernbench.runtime_api.comm.posting import Post
from kernbench.runtime_api.comm.rendezvous import ProcessGroup
from kernbench.runtime_api.process import Process
from kernbench.runtime_api.tensor_base import TensorBase

_KEY: Final = "coalescing"


class Entry(NamedTuple):
    """A collective that is noted down.

    Attributes:
        operation: A key of `OPERATIONS`.
        source: What the rank gives.
        target: Where what it takes goes.
        reduction: How values are combined.
    """

    operation: str
    source: TensorBase
    target: TensorBase
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


def open_notes(process: Process, group: ProcessGroup, notes: Notes) -> bool:
    """Lets a rank note down what it calls in a group; returns whether it did not do so already."""
    return process.scratch.setdefault(_KEY, {}).setdefault(group.name, notes) is notes


def close_notes(process: Process, group: ProcessGroup) -> None:
    """Undoes `open_notes`."""
    del process.scratch[_KEY][group.name]


def noted(
    process: Process,
    group: ProcessGroup,
    operation: str,
    source: TensorBase,
    target: TensorBase,
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
    found: dict[str, Notes] | None = process.scratch.get(_KEY)
    return found.get(group.name) if found else None
