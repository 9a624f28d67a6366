"""Checks of memory accesses: only the owner's commands, in an order that no stream violates.

Both torches ask here: programs of `kernbench.torch` through `process.act`, programs of PyTorch
through `bridge.tensors.hazards`.
"""

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Final, Literal, NamedTuple

from kernbench.errors import CallSite, KernbenchError, call_site, site_fact
from kernbench.memory import HOST_SIP, Buffer, View, dtypes
from kernbench.memory.windows import is_contiguous
from kernbench.process.called import Issued, called, issued
from kernbench.process.disorder import ORDER_STREAMS, hint, refuse
from kernbench.process.process import MAIN, Process
from kernbench.sim_engine.command import Stream
from kernbench.sim_engine.op_log import Category, stream_in_words

Verb = Literal["read", "wrote"]
"""Kind of an access to memory, in the words of reports."""


class OwnershipError(KernbenchError):
    """A rank used a tensor or the device of another rank (M14)."""


_LOADERS: Final = {"torch.serialization"}
"""Modules that put tensors on the device that a file names."""


def loads(module: str) -> None:
    """Notes a module that puts tensors on the device that a file names.

    Args:
        module: Its `__name__`.
    """
    _LOADERS.add(module)


def other_device(name: str, index: int, own: int, owner: int | None) -> OwnershipError:
    """Returns the error of a process that uses another device than its own (M14).

    Args:
        name: Name of the process.
        index: Index of the device, as the program counts.
        own: Index of the process's own device.
        owner: The rank that has the device; None if no rank has it.
    """
    whose = f", the device of rank {owner}" if owner is not None else ""
    hint = (
        f"use cuda:{own}: torch.cuda.set_device(LOCAL_RANK), then device='cuda'; ranks exchange "
        "data through torch.distributed, and a model over several devices needs a rank for each"
    )
    if _is_loading():
        hint = (
            f"torch.load(..., map_location='cuda:{own}'): a file names the device of who saved it"
        )
    return OwnershipError(
        f"{name} used cuda:{index}{whose}",
        [site_fact(call_site()), f"{name} has cuda:{own}"],
        hint=hint,
        code="M14",
    )


_EXCHANGE: Final = "a rank uses its own device; ranks exchange data through torch.distributed"


def tensor_of_another(
    name: str, owner: str, facts: Sequence[str], hint: str = _EXCHANGE
) -> OwnershipError:
    """Returns the error of a process that uses a tensor of another one (M14).

    Args:
        name: Name of the process.
        owner: Name of the one that has the tensor.
        facts: Which tensor it is.
        hint: What to do.
    """
    summary = f"{name} used a tensor of {owner}"
    return OwnershipError(summary, [site_fact(call_site()), *facts], hint=hint, code="M14")


def _is_loading() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") not in _LOADERS:
        frame = frame.f_back
    return frame is not None


class AccessError(KernbenchError):
    """Memory was touched while an asynchronous operation on it was under way (C14, C15, M10)."""


Access = tuple[Stream, int, View, Issued]
"""An access that may be under way: its stream, its number in the stream, the part of the memory
that it touches, and what has been issued. A tuple, since nearly every operation makes one."""


class Asked(NamedTuple):
    """An operation that has been issued, as reports name it."""

    name: str
    issued: int
    site: CallSite | None
    category: Category = "compute"


class Left(NamedTuple):
    """What was done to a tensor that is gone, and whose memory another tensor has now."""

    name: str
    issued: int
    site: CallSite | None
    category: Category = "compute"


_MOST_ACCESSES: Final = 64
"""Accesses of one memory that are kept apart; if there are more, they are merged by stream."""

_NO_STREAM: Final = Stream("host", HOST_SIP)


class Guard:
    """Checks whether a process may touch a block of memory, and records the accesses.

    Args:
        buffer: The bytes.
        owner: The process that made the block.

    Attributes:
        buffer: The bytes.
        owner: The process that made the block.
        version: Number of writes so far.
        writes: Accesses that write the block. From time to time those are dropped that a later one
            covers or that the host has waited for.
        reads: Accesses that read the block while another stream may write it; some are dropped, as
            of `writes`.
    """

    __slots__ = ("__weakref__", "buffer", "owner", "reads", "version", "writes")

    def __init__(self, buffer: Buffer, owner: Process) -> None:
        self.buffer = buffer
        self.owner = owner
        self.version = 0
        self.writes: list[Access] = []
        self.reads: list[Access] = []

    @property
    def sip(self) -> int:
        """SIP that holds the bytes; `HOST_SIP` for the host."""
        return self.buffer.allocation.memory.home

    def check(self, process: Process, stream: Stream | None, window: View, verb: Verb) -> None:
        """Checks that a process may touch a part of the memory now.

        Args:
            process: The process that touches the memory.
            stream: Stream of what touches the memory; None if the host does.
            window: The part that is touched.
            verb: Whether the part is read or written.

        Raises:
            OwnershipError: If the memory belongs to another rank (M14).
            AccessError: If something that touches the part is under way that nobody has waited for
                (C14, C15, M10).
        """
        if self.owner is not process:
            self.check_owner(process)
        for access in self.writes:
            if access[0] is not stream and _collide(process, stream, window, access):
                _refuse(process, stream, window, verb, access, "write")
                return  # one is told of each access
        if self.reads and verb == "wrote":
            for access in self.reads:
                if access[0] is not stream and _collide(process, stream, window, access):
                    _refuse(process, stream, window, verb, access, "read")
                    return

    def check_owner(self, process: Process) -> None:
        """Checks that a process may touch the memory at all.

        Raises:
            OwnershipError: If the memory is on a device, and belongs to another rank or to the
                machine of another context (M14).
        """
        owner = self.owner
        if owner is process or self.sip < 0:
            return
        whose, hint = owner.name, _EXCHANGE
        if owner.engine is not process.engine:
            whose, hint = (
                "another context",
                "use it inside of the context that made it, or move it to the host there: t.cpu()",
            )
        elif process.rank == MAIN:
            return
        block = self.buffer.allocation
        facts = [f"{block.label} on cuda:{self.sip}", site_fact(block.site, "allocated at")]
        raise tensor_of_another(process.name, whose, facts, hint)

    def wrote(
        self, stream: Stream, number: int, window: View, what: Issued, counts: bool = True
    ) -> None:
        """Notes that something writes a part of the memory.

        Args:
            number: Its number in the stream.
            window: The part that it writes.
            what: What has been issued.
            counts: Whether the write makes a new version. Writes of `tl` kernels make none: as with
                Triton's kernels, autograd does not know about them.
        """
        self.version += counts
        self.buffer.writer = what
        access, writes = (stream, number, window, what), self.writes
        if not writes or (len(writes) == 1 and writes[0][2] is window):
            self.writes = [access]
        else:
            self.writes = self._with(writes, access)
        if self.reads:
            self.reads = _without(self.reads, access, self.owner.seen)

    def read(self, stream: Stream, number: int, window: View, what: Issued) -> None:
        """Notes that something reads a part of the memory while another stream may write it.

        Args:
            number: Its number in the stream.
            window: The part that it reads.
            what: What has been issued.
        """
        access, reads = (stream, number, window, what), self.reads
        if not reads or (len(reads) == 1 and reads[0][2] is window and reads[0][0] is stream):
            self.reads = [access]
        else:
            self.reads = self._with(reads, access)

    def _with(self, accesses: list[Access], access: Access) -> list[Access]:
        stream, _, window, _ = access
        for at, one in enumerate(accesses):
            if one[2] is window and one[0] is stream:  # nearly always
                accesses[at] = access
                return accesses
        kept = _without(accesses, access, self.owner.seen)
        kept.append(access)
        if len(kept) > _MOST_ACCESSES:
            latest = {one[0]: one for one in kept}
            whole = self.whole()
            kept = [(one[0], one[1], whole, one[3]) for one in latest.values()]
        return kept

    def whole(self) -> View:
        """Returns all of the memory as a window."""
        return View(self.buffer, dtypes.uint8, (self.buffer.allocation.nbytes,), (1,), 0)


def _without(accesses: list[Access], access: Access, waited: Mapping[Stream, int]) -> list[Access]:
    """Returns the accesses that a wait for a later one does not include.

    Args:
        accesses: The earlier accesses.
        access: The later one.
        waited: Numbers of the last commands for which the host has waited.
    """
    stream, _, window, _ = access
    seen = stream.seen
    low, high = -1, -1
    kept = []
    for one in accesses:
        line, number, part, _ = one
        if waited.get(line, 0) >= number:
            continue
        if line is stream or seen.get(line, 0) >= number:
            if part is window:
                continue
            if low < 0:
                low, high = window.extent() if is_contiguous(window) else (0, 0)
            begin, end = part.extent()
            if low <= begin and end <= high:
                continue
        kept.append(one)
    return kept


def _collide(process: Process, stream: Stream | None, window: View, access: Access) -> bool:
    line, number, part, _ = access
    return not process.ordered(stream or _NO_STREAM, line, number) and part.overlaps(window)


def _refuse(
    process: Process,
    stream: Stream | None,
    window: View,
    verb: Verb,
    access: Access,
    earlier: str,
) -> None:
    """Raises, or notes, that an access comes before an earlier one was waited for.

    Args:
        process: The process that touches the memory.
        stream: Stream of what touches the memory; None if the host does.
        window: The part that is touched.
        verb: Whether it is read or written.
        access: The earlier access.
        earlier: `write` or `read`, what the earlier one is.
    """
    line, _, part, doing = access
    noun = "read" if verb == "read" else "write"
    gone = isinstance(doing, Left)
    tensor = "memory of a tensor that is gone" if gone else "a tensor"
    what = f"{verb} {tensor} before {doing.name} on it was waited for"
    where = f"{doing.name} runs on {stream_in_report(line)}"
    if stream is not None:
        where += f", the {noun} on {stream_in_report(stream)}"
    if gone:
        last = "the allocator gives memory to the next tensor of its stream at once"
        way = "call tensor.record_stream(stream), or wait_stream(), before the tensor is gone"
    else:
        low, high = part.extent()
        mine_low, mine_high = window.extent()
        block = part.buffer.allocation
        label = block.label  # of a user's own memory; otherwise the tensor as it is touched
        name = label if isinstance(label, str) else f"tensor {list(window.shape)} {window.dtype}"
        last = (
            f"{name}, bytes {max(low, mine_low)}..{min(high, mine_high)} of {block.nbytes}: "
            f"{noun} after {earlier}"
        )
        way = _hint(process, access, stream)
    early = "C14" if verb == "wrote" else "C15"
    facts = [called(process, verb), where, last]
    if doing.site is not None:
        facts.insert(1, issued(doing))
    else:  # of what was issued before there were several streams, none is kept
        way += "; make the second stream first, and the report names the earlier operation's line"
    error = AccessError(
        f"{process.name} {what}",
        facts,
        hint=hint(process, way),
        code=early if doing.category == "collective" or stream is None else "M10",
    )
    refuse(process, error, what, doing.site)


def _hint(process: Process, access: Access, stream: Stream | None) -> str:
    line, number, _, doing = access
    # A collective that the program waits for by its call runs on a stream of the program.
    apart = doing.category == "collective" and not line.name.startswith("stream ")
    others = process.computing_streams(line.sip)
    waited = any(one.seen.get(line, 0) >= number for one in others)
    if apart and not waited:  # otherwise another stream of the program has waited for it
        return "call work.wait() first"
    if stream is None:
        return "let the host wait first: synchronize() of the device, the stream, or an event"
    return ORDER_STREAMS


def stream_in_report(stream: Stream) -> str:
    """Returns a user's words for a stream; equal on all ranks for the streams that all have."""
    words = stream_in_words(stream.name)
    if words != stream.name:
        return f"the {words}"
    return words if words.startswith("stream ") else f"the stream of {words}"
