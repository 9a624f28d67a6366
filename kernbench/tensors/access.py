"""Who may touch a tensor now: only its rank, and nobody while another stream touches it."""

from typing import Final

from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.memory import View
from kernbench.process.called import called, issued
from kernbench.process.process import MAIN, Process
from kernbench.sim_engine.command import Command, Stream
from kernbench.tensors.tensor import Tensor


class OwnershipError(KernbenchError):
    """A rank used a tensor of another rank (M14)."""


class AccessError(KernbenchError):
    """Memory was touched while an asynchronous operation on it was under way (C14, C15, M10)."""


def check_access(process: Process, tensor: Tensor, stream: Stream | None, verb: str) -> None:
    """Checks that a process may touch a tensor now, in a stream (None: from the host).

    Args:
        process: Who touches it.
        tensor: What is touched; other parts of the same memory do not matter.
        stream: Where.
        verb: `read` or `wrote`.

    Raises:
        OwnershipError: If it belongs to another rank.
        AccessError: If an operation on it is under way that nobody has waited for.
    """
    memory = tensor.memory
    if memory.owner is not process and process.rank != MAIN and tensor.is_cuda:
        raise _not_owned(process, tensor)
    for pending in memory.writes:
        if pending[0].stream is not stream:
            _check_order(process, tensor, stream, verb, pending, "write")
    if memory.reads and verb == "wrote":
        for pending in memory.reads:
            if pending[0].stream is not stream:
                _check_order(process, tensor, stream, verb, pending, "read")


def check_owner(process: Process, tensor: Tensor) -> None:
    """Checks that a process may touch a tensor at all.

    Raises:
        OwnershipError: If it belongs to another rank.
    """
    if tensor.memory.owner is not process and process.rank != MAIN and tensor.is_cuda:
        raise _not_owned(process, tensor)


_NO_STREAM: Final = Stream("host", -1)


def _check_order(
    process: Process,
    tensor: Tensor,
    stream: Stream | None,
    verb: str,
    pending: tuple[Command, View],
    earlier: str,
) -> None:
    command, part = pending
    if process.ordered(stream or _NO_STREAM, command) or not part.overlaps(tensor.window):
        return
    collective = command.category == "collective"
    low, high = part.extent()
    mine_low, mine_high = tensor.window.extent()
    raise AccessError(
        f"{process.name} {verb} a tensor before {command.name} on it was waited for",
        [
            called(process, verb),
            issued(command),
            f"it runs on {_in_words(command.stream)}",
            f"{part.buffer.allocation.label}, bytes {max(low, mine_low)}..{min(high, mine_high)}: "
            f"{'read' if verb == 'read' else 'write'} after {earlier}",
        ],
        hint="call work.wait() first"
        if collective
        else "order the streams with wait_stream(), an event, or synchronize()",
        code=("C14" if verb == "wrote" else "C15") if collective or stream is None else "M10",
    )


def _in_words(stream: Stream) -> str:
    """Returns what a user calls a stream; the same on all ranks for what they have alike."""
    kind, _, rest = stream.name.partition(f" {stream.sip}")
    if kind == "communication":
        return "the communication stream" + (f" of{rest}" if rest else "")
    if kind == "stream":
        return stream.name if rest else "the default stream"
    return f"the stream of {stream.name}"


def _not_owned(process: Process, tensor: Tensor) -> OwnershipError:
    block = tensor.memory.buffer.allocation
    return OwnershipError(
        f"{process.name} used a tensor of {tensor.memory.owner.name}",
        [
            site_fact(call_site()),
            f"{block.label} on {tensor.device}",
            site_fact(block.site, "allocated at"),
        ],
        hint="ranks exchange data through torch.distributed",
        code="M14",
    )
