"""One side of a message, from the check of its arguments into the rank's stream."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import numpy as np

from kernbench.distributed.checks import check_library, check_tensor, check_type, place_of
from kernbench.distributed.groups import backend_of, find_group
from kernbench.distributed.issuing import follow
from kernbench.distributed.libraries import PARTIAL
from kernbench.errors import Fact, KernbenchError, OptionError, call_site, site_fact
from kernbench.kernels.host_calls import Issue
from kernbench.memory import HOST_SIP
from kernbench.process.act import Entered, act
from kernbench.process.called import called
from kernbench.process.process import current_process
from kernbench.ranks.at_call import Called, at_call
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.meeting import Call
from kernbench.ranks.standing import check_peer
from kernbench.ranks.transfers import Mailbox, Transfer, TransferMismatchError
from kernbench.ranks.world import world_of
from kernbench.sim_engine.command import Action, Command, Stream
from kernbench.sim_engine.engine import Hold
from kernbench.sim_engine.op_log import Together, TogetherArgs
from kernbench.tensors.new import new_tensor
from kernbench.tensors.tensor import Tensor

Way = Literal["send", "recv"]


class PeerError(KernbenchError, ValueError):
    """A message to or from a rank that cannot be the other side (P6, P9)."""


def _move(calls: Mapping[int, Called]) -> None:
    """Moves the bytes of a message."""
    ((source,), (target,)) = calls[0].sources, calls[1].targets
    target.write()[...] = source.array().reshape(target.shape)


class Post:
    """One side of a message.

    Args:
        name: Name of the function that the user called.
        way: `send` or `recv`.
        tensor: Tensor to send, or to receive into.
        group: Process group; None for all ranks.
        tag: Number that both sides must name.

    Attributes:
        process: The calling rank.
        group: Process group of the message.
        hosted: Whether the tensor is on the host.
        both_ways: Whether the library's channels of the message carry another one the other way.

    Raises:
        KernbenchError: If the tensor or the group cannot be used.
    """

    def __init__(
        self, name: str, way: Way, tensor: Tensor, group: ProcessGroup | None, tag: int
    ) -> None:
        self.process: Final = current_process()
        self._name = name
        self._way: Way = way
        self._tensor = tensor
        self._tag = tag
        self.both_ways = False
        self._site = call_site()
        self.group: Final = find_group(self.process, group, name)
        check_tensor(self.process, name, tensor, home=self.process.device_index)
        self.hosted: Final = tensor.device.index is None
        if self.hosted or ":" in backend_of(self.process, self.group):
            check_library(self.process, self.group, name, tensor.device.type)
        if tensor.window.dtype in PARTIAL:
            kind, dtype = tensor.device.type, tensor.window.dtype
            check_type(self.process, self.group, name, "send_recv", kind, dtype)

    def peer(
        self, rank: int | None, group_rank: int | None, argument: str, *, oneself: bool = False
    ) -> int:
        """Returns the global rank of the other side.

        Args:
            rank: The user's global rank of the other side.
            group_rank: The user's rank of the other side in the group.
            argument: Name of the user's argument: `src`, `dst` or `peer`.
            oneself: Whether the caller may be the other side.

        Raises:
            PeerError: If the rank does not exist (P9) or is the caller (P6).
            OptionError: Unless exactly one of the two ranks is given.
        """
        group = self.group
        if (rank is None) == (group_rank is None):
            both = "both" if rank is not None else "neither"
            raise OptionError(
                f"{self._name}: expected either {argument} or group_{argument}; got {both}",
                [site_fact(self._site)],
            )
        place = place_of(group, rank, group_rank)
        if place is None:
            raise self._no_peer(rank, group_rank, argument)
        number = group.ranks[place]
        if number == self.process.rank and not oneself:
            raise PeerError(
                f"rank {number} called {self._name} with itself as the other side",
                [self._called(), "PyTorch refuses it, and a blocking one never ends"],
                hint="copy inside a rank with copy_()",
                code="P6",
            )
        return number

    def _called(self) -> Fact:
        return called(self.process, self._name, self.group, message=True, site=self._site)

    def _no_peer(self, rank: object, group_rank: object, argument: str) -> PeerError:
        group, world = self.group, world_of(self.process).size
        number, valid = rank, f"0..{world - 1}, numbered globally"
        if group_rank is not None:
            number, argument = group_rank, f"group_{argument}"
            valid = f"0..{group.size() - 1}, numbered inside group {group.name}"
        elif group.size() != world:
            members = ", ".join(map(str, group.ranks))
            valid = f"a member of group {group.name}, numbered globally: {members}"
        hint = f"{argument.removeprefix('group_')}= takes global ranks, group_"
        hint += f"{argument.removeprefix('group_')}= ranks in the group"
        is_rank = isinstance(number, int) and not isinstance(number, bool)
        expected = f"expected {valid}" if is_rank else "a rank is an integer"
        return PeerError(
            f"rank {self.process.rank} called {self._name}({argument}={number!r}): there is no "
            "such rank",
            [self._called(), expected],
            hint=hint,
            code="P9",
        )

    def issue(
        self,
        peer: int | None,
        stream: Stream | None = None,
        mail: Any = None,
        how: Issue = "message",
    ) -> tuple[Command, Transfer]:
        """Joins the call with the other side's call, and issues the rank's command; does not wait.

        Args:
            peer: Global rank of the other side; None for any rank.
            stream: Stream of the command; None for the stream of the pair of ranks, behind all
                commands that the current stream holds now.
            mail: Value that the other side finds in the transfer, beside the simulated bytes.
            how: What the host calls, for a message between devices.

        Returns:
            The command for which the rank waits, and the transfer.

        Raises:
            AccessError: If a command on the tensor is under way that nobody has waited for.
            TransferMismatchError: If the other side differs in size or type (P7).
        """
        process, sends = self.process, self._way == "send"
        follows, asking = stream is None and not self.hosted, None
        if self.hosted:
            stream = self._host_stream(peer)
        else:
            asking = process.current_stream(process.device_index)
            stream = stream or self._pair_stream(peer)
        found: list[Transfer] = []

        def meet() -> Transfer:
            if follows and asking is not None:
                follow(stream, asking)
            found.append(self._meet(peer, mail))
            return found[0]

        if sends and self._is_eager():
            command = self._copy_away(stream, asking, meet)
            transfer = found[0]
            self._send_copy(peer, transfer, command, how)
        else:
            command = act(
                process,
                self._way,
                "collective",
                stream,
                lambda: self._joined(meet(), peer),
                reads=(self._tensor,) if sends else (),
                writes=() if sends else (self._tensor,),
                site=self._site,
                asking=asking,
                issue="hosted" if self.hosted else how,
            )
            (transfer,) = found
        log = world_of(process).eager
        if log is not None:
            log.note(process, command, transfer)
        return command, transfer

    def _joined(self, transfer: Transfer, peer: int | None) -> Entered:
        """Returns the work of the rank's command in a transfer."""
        view = transfer.sides[self.process.rank].view
        sends = self._way == "send"
        if transfer.joint is transfer.message:
            transfer.joint = at_call(
                transfer.message, self.process.engine, 2, (view,), _move, copies=True
            )
        assert transfer.joint is not None
        gives, takes = ([view], []) if sends else ([], [view])
        action: Action = transfer.joint.join(int(not sends), gives, takes, ())
        if self.process.heard is not None:
            action = self.process.heard(transfer, gives, action)
        args = {
            "group": self.group.name,
            "peer": peer,
            "tag": self._tag,
            "bytes": view.nbytes,
            "dtype": view.dtype.name,
        }
        if self.process.engine.op_log.full:
            count, group = view.numel, self.group
            together = Together(self._way, group.ranks, group.desc, count, count)
            args = TogetherArgs(args, together)
        return Entered(action, transfer, args)

    def _pair_stream(self, peer: int | None) -> Stream:
        """Returns the stream of messages between this rank's device and another rank's."""
        name = f"messages with {_named(peer)} in {self.group.name}"
        return self.process.side_stream(name, self.process.device_index)

    def _host_stream(self, peer: int | None) -> Stream:
        """Returns the stream of messages to, or from, another rank's host.

        Gloo keeps the messages of each tag in order, and those of different tags apart.
        """
        way = "to" if self._way == "send" else "from"
        tag = f" with tag {self._tag}" if self._tag else ""
        name = f"messages {way} {_named(peer)}{tag} in {self.group.name}, on cpu"
        return self.process.side_stream(name, HOST_SIP)

    def _is_eager(self) -> bool:
        """Returns whether the send completes before its receive.

        No send between hosts does: buffering below Gloo is up to the operating system.
        """
        log, limit = world_of(self.process).eager, self.process.ctx.spec.eager_limit
        return log is not None and not self.hosted and self._tensor.window.nbytes <= limit

    def _copy_away(
        self, stream: Stream, asking: Stream | None, meet: Callable[[], Transfer]
    ) -> Command:
        """Copies the tensor to a buffer, from which the message leaves; returns the command."""
        process, tensor = self.process, self._tensor
        view, device = tensor.window, process.engine.devices[process.device_index]

        def enter() -> Entered:
            buffer = new_tensor(process, view.shape, view.dtype, tensor.device, self._site)
            side = meet().sides[process.rank]
            side.kept = buffer
            target = side.view = buffer.window
            duration = device.library.elementwise(2 * view.nbytes, view.numel)

            def copy() -> None:
                target.buffer.adopt(np.array(view.read()))

            if process.engine.moves_at_call and view.buffer.data is not None:
                copy()
            action = Hold(process.engine, None, duration, copy)
            return Entered(action, None, None)

        return act(
            process,
            self._way,
            "copy",
            stream,
            enter,
            reads=(tensor,),
            site=self._site,
            asking=asking,
        )

    def _send_copy(self, peer: int | None, transfer: Transfer, copied: Command, how: Issue) -> None:
        """Sends the buffer that `_copy_away` has filled, after the copy is done."""
        process = self.process
        log = world_of(process).eager
        assert log is not None
        log.eager[transfer] = None
        name = f"buffered messages to rank {peer} in {self.group.name}"
        stream = process.side_stream(name, process.device_index)
        stream.waits.append(copied.done)
        entered = self._joined(transfer, peer)
        act(process, self._way, "collective", stream, lambda: entered, site=self._site, issue=how)

    def _meet(self, peer: int | None, mail: Any) -> Transfer:
        process, view, world = self.process, self._tensor.window, world_of(self.process)
        check_peer(process, peer, self._name)
        sends = self._way == "send"
        towards = f"{'to' if sends else 'from'} {_named(peer)}"
        text = f"{self._name}({list(view.shape)}, {view.dtype}, {towards}, tag {self._tag})"
        done = self.group.messages
        number = done[process.rank] = done.get(process.rank, 0) + 1
        call = Call(process.rank, self._name, (), text, self._site, process.host.clock)
        call.number = number
        destination = peer if sends else process.rank
        assert destination is not None
        key = (self.group.name, destination, self._tag)
        box = world.mailboxes.get(key)
        if box is None:
            box = world.mailboxes[key] = Mailbox(self.group, destination, self._tag, world.awaited)
            world.mailboxes_of.setdefault((self.group.name, destination), []).append(box)
        try:
            transfer = box.enter(call, process, view, process.rank if sends else peer, sends=sends)
        except TransferMismatchError as error:
            world.blame(error.ranks, error)
            raise
        transfer.sides[process.rank].both_ways = self.both_ways
        if mail is not None:
            transfer.mail[process.rank] = mail
        if world.exited and not transfer.complete:
            world.review()
        return transfer

    def source(
        self, src: int | None, group_src: int | None, *, oneself: bool = False
    ) -> int | None:
        """Returns the global rank of the sender; None for any rank.

        Args:
            src: The user's global rank of the sender.
            group_src: The user's rank of the sender in the group.
            oneself: Whether the caller may be the sender.

        Raises:
            PeerError: If the rank does not exist (P9), is the caller, or if the group has no other
                rank (P6).
            OptionError: If both ranks are given.
        """
        if src is None and group_src is None:
            if self.group.size() == 1:
                raise PeerError(
                    f"rank {self.process.rank} called {self._name} for a message from any rank of "
                    f"group {self.group.name}, which has no other rank",
                    [self._called()],
                    hint="copy inside a rank with copy_()",
                    code="P6",
                )
            return None
        return self.peer(src, group_src, "src", oneself=oneself)

    # Messages of a rank to itself

    def shift(self, peer: int) -> tuple[bool, int]:
        """Returns whether it is a send, and how many ranks on the receiver is from the sender.

        Args:
            peer: Global rank of the other side.
        """
        group, sends = self.group, self._way == "send"
        on = group.place(peer) - group.place(self.process.rank)
        return sends, (on if sends else -on) % len(group.ranks)

    def fits(self, other: "Post") -> bool:
        """Returns whether this send and another receive of the same rank belong together."""
        return (self._way, other._way) == ("send", "recv") and self._tag == other._tag

    def check_alike(self, other: "Post") -> None:
        """Checks that a receive of the same rank takes what this send brings.

        Raises:
            TransferMismatchError: If the sizes or types differ (P7).
        """
        mine, theirs = self._tensor.window, other._tensor.window
        if (mine.numel, mine.dtype) != (theirs.numel, theirs.dtype):
            raise TransferMismatchError(
                f"rank {self.process.rank} sends itself another size or type than it receives",
                [
                    site_fact(self._site, f"sends {list(mine.shape)} {mine.dtype} at"),
                    site_fact(other._site, f"receives {list(theirs.shape)} {theirs.dtype} at"),
                ],
                code="P7",
            )

    def alone(self) -> PeerError:
        """Returns the error for a message to oneself of which the batch has one side only (P6)."""
        lacks = "irecv from" if self._way == "send" else "isend to"
        return PeerError(
            f"rank {self.process.rank} gave a batch an {self._name} with itself as the other side, "
            f"and no {lacks} itself",
            [self._called(), "NCCL refuses a message to oneself without its other side"],
            hint="put both into one batch, or copy inside the rank with copy_()",
            code="P6",
        )

    def copy_to(self, other: "Post", stream: Stream, how: Issue) -> Command:
        """Issues the copy that a message to oneself is; does not wait.

        Args:
            other: The receive.
            stream: Stream of the command.
            how: What the host calls to issue the command.
        """
        process, source, target = self.process, self._tensor, other._tensor
        view, wanted = source.window, target.window
        device = process.engine.devices[process.device_index]
        duration = device.library.elementwise(2 * view.nbytes, view.numel)

        def copy() -> None:
            wanted.store(np.array(view.read()).reshape(wanted.shape))

        work = Hold(process.engine, None, duration, copy)
        command = act(
            process,
            "message to itself",
            "copy",
            stream,
            work,
            reads=(source,),
            writes=(target,),
            site=self._site,
            asking=process.current_stream(process.device_index),
            issue=how,
        )
        if process.engine.moves_at_call and view.buffer.data is not None:
            copy()
        return command


def _named(peer: int | None) -> str:
    """Returns the name of the other side of a message; None stands for any rank."""
    return "any rank" if peer is None else f"rank {peer}"
