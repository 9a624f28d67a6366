"""One side of a message, from the check of its arguments into the rank's stream."""

from typing import Any, Final, Literal

import numpy as np

from kernbench.distributed.checks import check_library, check_tensor, place_of
from kernbench.distributed.groups import backend_of, find_group
from kernbench.distributed.issuing import follow
from kernbench.errors import Fact, KernbenchError, OptionError, call_site, site_fact
from kernbench.process.called import called
from kernbench.process.process import current_process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.hosted import HOST
from kernbench.ranks.meeting import Call
from kernbench.ranks.transfers import Mailbox, Side, Transfer, TransferMismatchError
from kernbench.ranks.world import world_of
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.engine import Hold
from kernbench.tensors.access import check_access
from kernbench.tensors.new import new_tensor
from kernbench.tensors.tensor import Tensor

Way = Literal["send", "recv"]


class PeerError(KernbenchError, ValueError):
    """A message to or from a rank that cannot be a partner (P6, P9)."""


class Post:
    """One side of a message.

    Args:
        name: Of the function that the user called.
        way: Which side.
        tensor: What is sent, or where it goes.
        group: None for all ranks.
        tag: What both sides must name.

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
        self._site = call_site()
        self.group: Final = find_group(self.process, group, name)
        check_tensor(self.process, name, tensor, home=self.process.device_index)
        self.hosted: Final = tensor.device.index is None
        if self.hosted or ":" in backend_of(self.process, self.group):
            check_library(self.process, self.group, name, tensor.device.type)

    def peer(self, rank: int | None, group_rank: int | None, argument: str) -> int:
        """Returns the global rank of the other side.

        Raises:
            PeerError: If it does not exist or is the caller.
            OptionError: Unless exactly one of both numbers is given.
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
        if number == self.process.rank:
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
        self, peer: int | None, stream: Stream | None = None, mail: Any = None
    ) -> tuple[Command, Transfer]:
        """Calls the other side, and puts a command where it belongs; does not wait.

        Args:
            peer: Global rank of the other side; None for anybody.
            stream: Where it goes; None for that of the pair, behind what the current one holds.
            mail: What the other side finds in the transfer, beside the simulated bytes.
        """
        process, tensor, group = self.process, self._tensor, self.group
        sip = process.device_index
        verb = "read" if self._way == "send" else "wrote"
        if self.hosted:
            stream = self._host_stream(peer)
            check_access(process, tensor, stream, verb)
        else:
            current = process.current_stream(sip)
            check_access(process, tensor, current, verb)
        if stream is None:
            who = "any rank" if peer is None else f"rank {peer}"
            stream = process.side_stream(f"messages with {who} in {group.name}", sip)
            follow(stream, current)
        transfer, side = self._meet(peer)
        if mail is not None:
            transfer.mail[process.rank] = mail
        view = tensor.window
        eager = self._way == "send" and self._is_eager(transfer, view.nbytes)
        if eager:
            copied = self._copy_away(stream, side)
            stream = process.side_stream(f"buffered messages to rank {peer} in {group.name}", sip)
            stream.waits.append(copied.done)
        args = {
            "group": group.name,
            "peer": peer,
            "tag": self._tag,
            "bytes": view.nbytes,
            "dtype": view.dtype.name,
        }
        command = process.issue(
            self._name, "collective", stream, side, site=self._site, args=args, part=transfer
        )
        if eager:
            command = copied
        log = world_of(process).eager
        if log is not None:
            log.note(process, command, transfer)
        if self._way == "send":
            tensor.memory.read(command, view)
        else:
            tensor.memory.wrote(command, view)
        return command, transfer

    def _host_stream(self, peer: int | None) -> Stream:
        """Returns where messages between two hosts wait for each other."""
        who = "any rank" if peer is None else f"rank {peer}"
        way = "to" if self._way == "send" else "from"
        name = f"messages {way} {who} in {self.group.name}, on cpu"
        return self.process.side_stream(name, HOST)

    def _is_eager(self, transfer: Transfer, nbytes: int) -> bool:
        """Returns whether a send is done before it is received, and notes that.

        Between hosts none is: what Gloo buffers is the business of the operating system.
        """
        log = world_of(self.process).eager
        if log is None or self.hosted or nbytes > self.process.ctx.spec.eager_limit:
            return False
        log.eager[transfer] = None
        return True

    def _copy_away(self, stream: Stream, side: Side) -> Command:
        """Lets a send be done with its tensor: the message leaves from a buffer of its own."""
        process, tensor = self.process, self._tensor
        view, device = tensor.window, process.engine.device(process.device_index)
        buffer = new_tensor(process, view.shape, view.dtype, tensor.device, self._site)

        def effect() -> None:
            buffer.window.buffer.adopt(np.array(view.read()))

        side.view = buffer.window
        duration = device.library.elementwise(2 * view.nbytes, view.numel)
        work = Hold(process.engine, None, duration, effect)
        return process.issue(self._name, "copy", stream, work, site=self._site)

    def _meet(self, peer: int | None) -> tuple[Transfer, Side]:
        process, view, world = self.process, self._tensor.window, world_of(self.process)
        sends = self._way == "send"
        other = "any rank" if peer is None else f"rank {peer}"
        text = (
            f"{self._name}({list(view.shape)}, {view.dtype}, {'to' if sends else 'from'} {other}, "
            f"tag {self._tag})"
        )
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
        try:
            found = box.enter(call, process, view, process.rank if sends else peer, sends=sends)
        except TransferMismatchError as error:
            world.blame(error.ranks, error)
            raise
        if world.exited and not found[0].complete:
            world.review()
        return found

    def source(self, src: int | None, group_src: int | None) -> int | None:
        """Returns the global rank of the sender; None for anybody. Raises as `peer` does."""
        if src is None and group_src is None:
            return None
        return self.peer(src, group_src, "src")
