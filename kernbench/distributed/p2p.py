"""`torch.distributed`: messages between two ranks.

A send completes only when its receive is there, unless the eager limit allows buffering. Messages
between devices block streams, never the host: each pair of ranks has a stream of its own, as in
PyTorch's NCCL backend.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from kernbench.distributed.groups import is_outside
from kernbench.distributed.issuing import follow, handle
from kernbench.distributed.noting import Message, noted_message
from kernbench.distributed.posting import Post, Way
from kernbench.distributed.works import IllegalWork, Work
from kernbench.errors import OptionError, call_site, site_fact
from kernbench.kernels.host_calls import Issue
from kernbench.memory import HOST_SIP
from kernbench.process.act import act
from kernbench.process.process import Process, current_process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.transfers import Transfer
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import Hold
from kernbench.tensors.running import wait_for
from kernbench.tensors.tensor import Tensor

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Sends a tensor. The current stream goes on when it is received; the host does not wait.

    A tensor that is not contiguous is refused. PyTorch's `nccl` only warns, and sends the right
    number of elements from the memory behind the first one, which are the wrong elements.

    Args:
        tensor: Contiguous tensor on the calling rank's device, or on the host.
        dst: Global rank of the receiver; or give `group_dst`.
        group: Process group; None for all ranks.
        tag: Number that the receive must name, too.
        group_dst: Rank of the receiver in the group.

    Raises:
        PeerError: If the receiver does not exist (P9) or is the caller (P6).
        TransferMismatchError: If the receive expects another size or type (P7).
        KernbenchError: If the tensor or the group cannot be used.
    """
    if is_outside(group, "send"):
        return
    post = Post("send", "send", tensor, group, tag)
    peer = post.peer(dst, group_dst, "dst")
    if not noted_message(post, peer):
        give(post, peer)


def recv(
    tensor: Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receives into a tensor and returns the sender's global rank.

    The current stream goes on when the tensor is there. If no source is given, the host waits until
    the sender is known.

    Args:
        tensor: Contiguous tensor on the calling rank's device, or on the host.
        src: Global rank of the sender; None (and no `group_src`) for any rank of the group.
        group: Process group; None for all ranks.
        tag: Number that the send must name, too.
        group_src: Rank of the sender in the group.

    Raises:
        PeerError: If the sender does not exist (P9) or is the caller (P6).
        TransferMismatchError: If the send brings another size or type (P7).
        KernbenchError: If the tensor or the group cannot be used.
    """
    if is_outside(group, "recv"):
        return -1
    post = Post("recv", "recv", tensor, group, tag)
    source = post.source(src, group_src)
    if source is not None and noted_message(post, source):
        return source
    return take(post, source)[0]


def give(post: Post, peer: int, mail: Any = None) -> None:
    """Sends a message; the current stream goes on when it is received.

    Args:
        post: The sender's side.
        peer: Global rank of the receiver.
        mail: Value that the receiver finds in the transfer, beside the simulated bytes.
    """
    command, _ = post.issue(peer, mail=mail)
    _wait_in_stream(post.process, command)


def take(post: Post, source: int | None) -> tuple[int, Transfer]:
    """Receives a message as `recv` does; returns the sender's global rank and the transfer."""
    command, transfer = post.issue(source)
    source = transfer.wait_for_source(post.process)
    _wait_in_stream(post.process, command)
    return source, transfer


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Any:
    """Starts sending a tensor, and returns a `Work`; neither host nor current stream waits.

    Args:
        tensor: See `send`.
        dst: Global rank of the receiver; or give `group_dst`.
        group: Process group; None for all ranks.
        tag: Number that the receive must name, too.
        group_dst: Rank of the receiver in the group.
    """
    return start("isend", "send", tensor, dst, group, tag, group_dst)


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Any:
    """Starts receiving into a tensor, and returns a `Work`; neither host nor current stream waits.

    Args:
        tensor: See `recv`.
        src: Global rank of the sender; None (and no `group_src`) for any rank of the group.
        group: Process group; None for all ranks.
        tag: Number that the send must name, too.
        group_src: Rank of the sender in the group.
    """
    return start("irecv", "recv", tensor, src, group, tag, group_src)


def start(
    name: str,
    way: Way,
    tensor: Tensor,
    peer: int | None,
    group: ProcessGroup | None,
    tag: int,
    group_peer: int | None,
) -> Any:
    """Starts a message, and returns a `Work`.

    Args:
        name: Name of the function that the user called.
        way: Whether the rank sends or receives.
        tensor: See `isend` and `irecv`, as for `group` and `tag`.
        peer: Global rank of the other side; or give `group_peer`.
        group: See above.
        tag: See above.
        group_peer: Rank of the other side in the group.
    """
    if is_outside(group, name):
        return None
    post = Post(name, way, tensor, group, tag)
    send = way == "send"
    peer = post.peer(peer, group_peer, "dst") if send else post.source(peer, group_peer)
    if noted_message(post, peer):
        return IllegalWork()
    command, _ = post.issue(peer)
    return handle(post.process, command, ())


def _way(op: Callable[..., Any]) -> Way | None:
    """Returns what `isend` or `irecv`, which users have in a wrapper, does; None for another."""
    plain = getattr(op, "__wrapped__", op)
    if plain is not isend and plain is not irecv:
        plain = inspect.unwrap(op)
    return "send" if plain is isend else "recv" if plain is irecv else None


class P2POp:
    """`torch.distributed.P2POp`: one message of `batch_isend_irecv`.

    Args:
        op: `isend` or `irecv`.
        tensor: Tensor to send, or to receive into.
        peer: Global rank of the other side; or give `group_peer`.
        group: Process group; None for all ranks.
        tag: Number that both sides must name.
        group_peer: Rank of the other side in the group.
    """

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Tensor,
        peer: int | None = None,
        group: ProcessGroup | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if _way(op) is None:
            raise OptionError(
                f"P2POp takes isend or irecv; got {getattr(op, '__name__', op)!r}",
                [site_fact(call_site())],
                hint="write P2POp(dist.isend, tensor, peer)",
            )
        self.op = op
        self.tensor = tensor
        self.peer = peer
        self.group = group
        self.tag = tag
        self.group_peer = group_peer


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Starts all messages of a list at once: none of them waits for another.

    Batches of a rank run one after the other. As with NCCL, a rank may send itself a tensor on its
    device if the same batch receives it.

    Args:
        p2p_op_list: At least one message; all messages of one group.

    Returns:
        A list with one handle for all messages, as from PyTorch's NCCL backend; for tensors on the
        host, a list with a handle for each message, as from Gloo.

    Raises:
        OptionError: If the list is empty, or names several groups.
        PeerError: If a message to oneself lacks its other side (P6).
        KernbenchError: As `isend` and `irecv` do.
    """
    groups = {id(op.group) for op in p2p_op_list if isinstance(op, P2POp)}
    if len(groups) != 1 or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise OptionError(
            "batch_isend_irecv takes a list of P2POp of one group",
            [site_fact(call_site()), f"got {len(p2p_op_list)} entries, {len(groups)} groups"],
        )
    messages = []
    for op in p2p_op_list:
        way: Way = _way(op.op) or "recv"
        post = Post(f"i{way}", way, op.tensor, op.group, op.tag)
        oneself = not post.hosted
        if way == "send":
            peer: int | None = post.peer(op.peer, op.group_peer, "peer", oneself=oneself)
        else:
            peer = post.source(op.peer, op.group_peer, oneself=oneself)
        messages.append(Message(post, peer))
    hosted = {message.post.hosted for message in messages}
    if len(hosted) > 1:
        raise OptionError(
            "batch_isend_irecv takes messages of one kind of device",
            [site_fact(call_site()), "got tensors on cpu and on a device"],
        )
    if hosted == {True}:
        return [handle(post.process, post.issue(peer)[0], ()) for post, peer in messages]
    return [issue_batch(current_process(), "batch_isend_irecv", messages)]


def issue_batch(process: Process, name: str, messages: Sequence[Message]) -> Work:
    """Starts messages of one group together; returns one handle for all messages. Does not wait.

    Args:
        name: Name of the function that the user called.
        messages: At least one message.
    """
    copies = _pairs([post for post, peer in messages if peer == process.rank])
    _note_both_ways([message for message in messages if message.peer not in {None, process.rank}])
    sip = process.device_index
    batch = process.side_stream("batches of messages", sip)
    follow(batch, process.current_stream(sip))
    # Taken before the messages, so that the command that joins them waits for the same events.
    waits, batch.waits = batch.waits, []
    commands: list[Command] = []
    for number, (post, peer) in enumerate(messages):
        if peer == process.rank and post not in copies:
            continue
        stream = process.side_stream(f"message {number} of batches", sip)
        stream.waits.extend(waits)
        follow(stream, batch)
        how: Issue = "batched" if commands else "batch"
        if peer == process.rank:
            commands.append(post.copy_to(copies[post], stream, how))
        else:
            commands.append(post.issue(peer, stream, how=how)[0])
    for command in commands:
        batch.waits.append(command.done)
        batch.learn({**command.stream.seen, command.stream: command.number})
    hold = Hold(process.engine, None, 0, None)
    joined = act(process, name, "event", batch, hold, issue="joined")
    return handle(process, joined, ())


def _note_both_ways(messages: Sequence[Message]) -> None:
    """Notes which messages of a batch share NCCL's channels with one the other way.

    In a round, NCCL sends so many ranks on and receives from as many ranks back, over the same
    channels (`p2pSchedule` in src/init.cc).
    """
    rounds = {}
    for post, peer in messages:
        assert peer is not None
        rounds[post] = post.shift(peer)
    ways = set(rounds.values())
    for post, (sends, on) in rounds.items():
        post.both_ways = (not sends, on) in ways


def _pairs(posts: list[Post]) -> dict[Post, Post]:
    """Returns for each send of a rank to itself its receive: the first one with the same tag.

    Raises:
        PeerError: If a message lacks its other side (P6).
        TransferMismatchError: If two sides differ in size or type (P7).
    """
    pairs: dict[Post, Post] = {}
    for post in posts:
        for other in posts:
            if post.fits(other) and other not in pairs.values():
                post.check_alike(other)
                pairs[post] = other
                break
    for post in posts:
        if post not in pairs and post not in pairs.values():
            raise post.alone()
    return pairs


def _wait_in_stream(process: Process, command: Command) -> None:
    """Lets the current stream wait for a command, or the host if the message is between hosts."""
    if command.stream.sip == HOST_SIP:
        wait_for(process, command)
        return
    current = process.current_stream(command.stream.sip)
    current.waits.append(command.done)
    current.learn({**command.stream.seen, command.stream: command.number})
