"""Notes what a rank issues while it captures a CUDA graph; nothing of it runs."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from kernbench.des import Event
from kernbench.distributed.issuing import Joined, Posted
from kernbench.errors import CallSite, KernbenchError, call_site, site_fact
from kernbench.graphs.warm import Warmth
from kernbench.memory import Allocation, OutOfMemoryError, View
from kernbench.process.access import Guard
from kernbench.process.act import Block, Entered
from kernbench.process.process import Process, RankLocal
from kernbench.sim_engine.command import Action, Command, Stream
from kernbench.sim_engine.engine import Hold
from kernbench.sim_engine.op_log import Awaited, Category
from kernbench.tl.launch import KernelWork

ErrorMode = Literal["global", "thread_local", "relaxed"]
"""Of CUDA: which waits are refused during a capture. Ranks have one thread."""

_WAY: Final = (
    "let the host look at values and wait before the capture, or after a replay; inside only issue "
    "work for the device"
)


class CaptureError(KernbenchError, RuntimeError):
    """Something that CUDA does not permit while a stream is capturing."""


class Kept(NamedTuple):
    """A block of memory that a command uses, and that the command does not keep.

    Attributes:
        memory: Refers to the guard of the bytes.
        window: The elements.
    """

    memory: "weakref.ref[Guard]"
    window: View


class Node(NamedTuple):
    """A command of a graph.

    Attributes:
        name: Name in traces and errors.
        category: Kind of work.
        stream: Stream on which it was captured.
        action: What it does; None for a call together with other ranks.
        posted: That call; None for a command of the rank alone.
        reads: Blocks that it reads.
        writes: Blocks that it writes.
        site: The user's line.
        args: Further facts for reports.
        after: Numbers of the commands that it waits for, beside its predecessor in the stream.
    """

    name: str
    category: Category
    stream: Stream
    action: Action | None
    posted: Posted | None
    reads: Sequence[Kept]
    writes: Sequence[Kept]
    site: CallSite | None
    args: Any
    after: tuple[int, ...]


class Recording(NamedTuple):
    """What a capture has noted.

    Attributes:
        nodes: The commands, in the order of the calls.
        origin: Stream on which the capture began and ended.
        last: Numbers of the commands of other streams for which the origin waits at the end.
        draws: Draw the random numbers of a replay, in the order of the calls.
        first: Number of the last block of memory that was there before the capture.
    """

    nodes: Sequence[Node]
    origin: Stream
    last: tuple[int, ...]
    draws: Sequence[Callable[[], None]]
    first: int


class _Posted:
    """The action of a call that is only noted."""

    def __init__(self, posted: Posted) -> None:
        self.posted: Final = posted

    def begin(self, command: Command, start: int) -> None:
        """Refuses to begin."""
        raise AssertionError(f"{command.name} is only noted, and begins at {start} ps")


class Pool:
    """Memory that graphs keep for themselves: what their captures had in use at one time."""

    def __init__(self) -> None:
        self._blocks: list[Allocation] = []

    def give_back(self) -> int:
        """Lets others have the memory; returns how many bytes it were."""
        blocks, self._blocks = self._blocks, []
        nbytes = sum(block.reserved for block in blocks)
        for block in blocks:
            block.memory.free(block)
        return nbytes

    def withhold(self, memory: Any, nbytes: int, site: CallSite | None) -> None:
        """Keeps memory from others.

        Args:
            memory: The allocator.
            nbytes: How many bytes; as many as there are, if there are fewer.
            site: Where the graph was captured.
        """
        while nbytes > 0:
            part = min(nbytes, memory.largest_hole)
            if not part:
                return
            try:
                self._blocks.append(memory.withhold(part, "memory pool of CUDA graphs", site))
            except OutOfMemoryError:  # the hole was that of blocks which were set aside
                return
            nbytes -= self._blocks[-1].reserved

    def __del__(self) -> None:
        for block in self._blocks:
            if not block.freed:
                block.memory.give_back(block)


MADE: Final[RankLocal[list[range]]] = RankLocal("blocks made in captures", lambda _: [])
"""Numbers of the blocks that a rank's captures have made: graphs read each other's results."""

CAPTURE: Final[RankLocal["list[Capture]"]] = RankLocal("capture under way", lambda _: [])
"""The capture of a rank, if there is one."""


def capturing(process: Process) -> "Capture | None":
    """Returns the capture that a rank is in; None if it is in none."""
    found = CAPTURE.of(process)
    return found[0] if found else None


class Capture:
    """Notes the commands of a rank, as a `sim_engine.host.Tape`; from its making until `end`.

    Args:
        process: The rank.
        pool: What keeps the memory.
        generators: Generators that the graph knows beside the default one.
        mode: Which waits are refused.
        error: Class of the errors that it raises.

    Attributes:
        nodes: The commands so far.
        generators: Generators that the graph knows beside the default one.
        broken: Whether something was refused, so that there is no graph.
        site: Where the capture began.
        warmth: Notes what kernels touch.
        first: Number of the last block of memory that was there before it.

    Raises:
        CaptureError: If the rank captures already, or its current stream is the default one.
    """

    def __init__(
        self,
        process: Process,
        pool: Pool,
        generators: Sequence[object] = (),
        mode: str = "global",
        error: type[CaptureError] = CaptureError,
    ) -> None:
        self.nodes: Final[list[Node]] = []
        self._drawn: Final[list[Callable[[], None]]] = []
        self.generators: Final = generators
        self.broken = False
        self._error: Final = error
        self._process: Final = process
        self._relaxed: Final = mode == "relaxed"
        self._pool: Final = pool
        sip = process.device_index
        self._origin: Final = process.current_stream(sip)
        if mode not in get_args(ErrorMode):
            raise self._refused(
                ": Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, "
                f"got {mode}",
                "leave capture_error_mode out",
            )
        if capturing(process) is not None:
            raise self._refused(": capture_begin() inside of a capture", "end the other one first")
        if self._origin is process.default_stream(sip):
            raise self._refused(
                ": CUDA graphs must be captured on a non-default stream (However, after capture, "
                "it's ok to replay them on the default stream.)",
                "use `with torch.cuda.graph(g):`, which takes a stream of its own",
            )
        self.site: Final = call_site()
        self._memory: Final = process.engine.devices[sip].hbm
        self._peak, self._began = self._memory.peak, self._memory.allocated
        self._memory.peak = self._began
        self.first: Final = self._memory.count
        self._had: Final = pool.give_back()
        # What the streams hold now is no part of the graph, and comes before every replay.
        self._before: Final = [
            (line, line.tail, line.waits, dict(line.seen)) for line in process.streams()
        ]
        self._seen: Final = dict(process.seen)
        self._counts: Final = {line: line.count for line in process.streams()}
        for line, *_ in self._before:
            line.tail, line.waits = None, []
        process.learn(self._counts)
        self._after: Final[dict[Event, tuple[int, ...]]] = {}
        self._outer: Final = process.host.tape
        process.host.tape = self
        self.warmth: Final = Warmth(process.engine.devices[sip])
        CAPTURE.of(process).append(self)

    def _refused(self, what: str, way: str, site: CallSite | None = None) -> CaptureError:
        self.broken = True
        return self._error(
            f"{self._process.name}{what}",
            [site_fact(site or call_site())],
            hint=way,
        )

    def not_permitted(self, what: str, way: str = _WAY) -> CaptureError:
        """Returns the error about a call that cannot be captured; the graph is lost.

        Args:
            what: What the rank does, such as `waits for the device`.
            way: What to do instead.
        """
        return self._refused(
            f" {what}: operation not permitted when stream is capturing a CUDA graph", way
        )

    def not_of_graphs(self) -> CaptureError:
        """Returns the error about the replay of another graph inside of this one, which is lost."""
        return self._refused(
            ": replay() of a CUDA graph inside of a capture is not simulated",
            "capture its work again, or replay one graph after the other",
        )

    def holds(self, stream: Stream) -> bool:
        """Returns whether commands of a stream are captured."""
        return stream is self._origin or stream.tail is not None or bool(stream.waits)

    later = True
    """See `sim_engine.host.Tape`."""

    # What a host does, see `sim_engine.host.Tape`

    def submit(
        self,
        command: Command,
        reads: Sequence[Block] = (),
        writes: Sequence[Block] = (),
        *,
        queued: bool = True,
    ) -> None:
        """See `sim_engine.host.Tape`.

        Raises:
            CaptureError: If the command can be no part of a graph.
        """
        del queued  # a replay decides it
        stream = command.stream
        events = (*command.after, *(() if stream.tail is None else (stream.tail,)))
        self._check(command, bool(events))
        after: set[int] = set()
        for event in events:
            numbers = self._after.get(event)
            if numbers is None:
                raise self._refused(
                    f": {command.name} waits for an event that was recorded before the capture "
                    "(cudaErrorStreamCaptureIsolation)",
                    "wait for it before the capture; a replay comes after what its stream holds",
                    command.site,
                )
            after.update(numbers)
        stream.tail = command.done
        if command.category == "event":  # an edge of the graph, and no node
            self._after[command.done] = tuple(sorted(after))
            return
        action = command.action
        posted = action.posted if isinstance(action, _Posted) else None
        self._after[command.done] = (len(self.nodes),)
        self.warmth.issued(len(self.nodes), action, reads, writes)
        self.nodes.append(
            Node(
                command.name,
                command.category,
                stream,
                None if posted is not None else action,
                posted,
                [Kept(weakref.ref(block.memory), block.window) for block in reads],
                [Kept(weakref.ref(block.memory), block.window) for block in writes],
                command.site,
                command.args,
                tuple(
                    sorted(number for number in after if self.nodes[number].stream is not stream)
                ),
            )
        )

    def _of_others(self, stream: Stream, numbers: set[int]) -> tuple[int, ...]:
        """Returns those numbers of commands that are not of a stream."""
        return tuple(sorted(one for one in numbers if self.nodes[one].stream is not stream))

    def _check(self, command: Command, follows: bool) -> None:
        """Refuses a command that can be no part of a graph.

        Args:
            follows: Whether it waits for another one of the graph.
        """
        if command.part is not None:
            raise self._refused(
                f": {command.name}: a message inside of a CUDA graph is not simulated",
                "use a collective, or send it outside of the graph",
                command.site,
            )
        kinds = (Hold, _Posted, KernelWork)
        if not isinstance(command.action, kinds):
            raise self._refused(
                f": {command.name} between devices is no part of a CUDA graph that is simulated",
                "copy outside of the graph",
                command.site,
            )
        if command.stream.sip < 0:
            raise self._refused(
                f": {command.name}: a collective between hosts is no part of a CUDA graph",
                "call it outside of the graph, or with tensors of the device",
                command.site,
            )
        if command.stream is not self._origin and not follows:
            raise self._refused(
                f": {command.name} goes to {command.stream.name}, which does not follow the stream "
                "that captures",
                "call stream.wait_stream(torch.cuda.current_stream()) inside of the capture first",
                command.site,
            )

    def together(self, joined: Joined, posted: Posted) -> Entered:
        """See `sim_engine.host.Tape`; every replay calls the other ranks.

        Raises:
            CaptureError: If values of the host go with the call.
        """
        if joined.mail is not None:
            raise self.not_permitted("sends Python objects")
        args = {"group": joined.group.name, "bytes": joined.what.nbytes}
        return Entered(_Posted(posted), None, args)

    def stream(self, stream: Stream, kind: str) -> None:
        """See `sim_engine.host.Tape`."""
        self._counts[stream] = stream.count
        if self._outer is not None:
            self._outer.stream(stream, kind)

    def wait(self, event: Event, awaited: Awaited) -> None:
        """See `sim_engine.host.Tape`.

        Raises:
            CaptureError: If the wait is for something that only a replay does, or waits are
                refused.
        """
        if not self._relaxed or event in self._after:
            what = "the device" if awaited == "host" else f"the {awaited}"
            raise self.not_permitted(f"waits for {what}")

    def waited(self, event: Event) -> None:
        """See `sim_engine.host.Tape`."""

    def look(self) -> None:
        """See `sim_engine.host.Tape`.

        Raises:
            CaptureError: Always.
        """
        raise self.not_permitted("asks whether the device is done")

    def draws(self, again: Callable[[], None], named: object) -> bool:
        """See `sim_engine.host.Tape`; every replay draws.

        Raises:
            CaptureError: If the graph does not know the generator that the program names.
        """
        self.check_generator(named)
        self._drawn.append(again)
        return True

    def check_generator(self, named: object) -> None:
        """Refuses a generator that the graph does not know.

        Args:
            named: The generator that the program names; None for the default one.

        Raises:
            CaptureError: If the graph does not know it.
        """
        if named is not None and all(named is not one for one in self.generators):
            raise self._refused(
                ": Attempt to increase offset for a CUDA generator not in capture mode.",
                "call g.register_generator_state(generator) before the capture",
            )

    def did(self, function: Any, *args: Any, shown: Any = None) -> None:
        """See `sim_engine.host.Tape`."""
        if self._outer is not None:
            self._outer.did(function, *args, shown=shown)

    def flush(self) -> None:
        """See `sim_engine.host.Tape`."""

    # The end

    def forget(self, guard: Guard) -> None:
        """Forgets what the capture has told a guard, since nothing of it has run."""
        counts = self._counts
        guard.writes = [one for one in guard.writes if one[1] <= counts.get(one[0], one[1])]
        guard.reads = [one for one in guard.reads if one[1] <= counts.get(one[0], one[1])]

    def end(self) -> Recording:
        """Ends the capture; the streams are as they were before.

        Raises:
            CaptureError: If a stream has commands for which the one that captures does not wait.
        """
        process, origin = self._process, self._origin
        tail = () if origin.tail is None else (origin.tail,)
        last = [number for event in (*tail, *origin.waits) for number in self._after.get(event, ())]
        current = process.current_stream(origin.sip)
        self.leave()
        for node in self.nodes:
            for kept in (*node.reads, *node.writes):
                guard = kept.memory()
                if guard is not None:
                    self.forget(guard)
        if not self.broken:
            if current is not origin:
                raise self._refused(
                    ": capture_end() is called on another stream than capture_begin()",
                    "end the capture inside of the same `with torch.cuda.stream(...)`",
                )
            self._check_joined(last)
            self.warmth.end([(node.action, (*node.reads, *node.writes)) for node in self.nodes])
        after = self._of_others(origin, set(last))
        return Recording(self.nodes, origin, after, self._drawn, self.first)

    def leave(self) -> None:
        """Puts the rank back to where it was before the capture."""
        process = self._process
        CAPTURE.of(process).remove(self)
        process.host.tape = self._outer
        self.warmth.leave()
        for line in process.streams():
            line.tail, line.waits, line.seen = None, [], {}
        for line, tail, waits, seen in self._before:
            line.tail, line.waits, line.seen = tail, waits, seen
        process.seen.clear()
        process.seen.update(self._seen)
        memory = self._memory
        lives, most = memory.allocated - self._began, memory.peak - self._began
        self._pool.withhold(memory, max(self._had, most) - lives, self.site)
        memory.peak = max(memory.peak, self._peak)
        MADE.of(process).append(range(self.first + 1, memory.count + 1))
        never = self._error(
            f"{process.name} asks for a moment that no replay tells: the event was recorded while "
            "a CUDA graph was captured",
            [site_fact(self.site, "the capture began at")],
            hint="record events around replay()",
        )
        for event in self._after:
            event.label = "a command of a CUDA graph"
            event.fail(never, process.host.clock)

    def _check_joined(self, last: Sequence[int]) -> None:
        """Refuses streams that left the one that captures, and for which it does not wait."""
        latest: dict[Stream, int] = {}
        joined, nodes = set(last), self.nodes
        for number in range(len(nodes) - 1, -1, -1):
            node = nodes[number]
            if number in joined or latest.get(node.stream, -1) > number:
                joined.update(node.after)
                latest[node.stream] = max(latest.get(node.stream, -1), number)
            else:
                raise self._refused(
                    f": capture_end(): nobody waits for {node.name} on {node.stream.name} "
                    "(cudaErrorStreamCaptureUnjoined)",
                    "wait inside of the capture: torch.cuda.current_stream().wait_stream(stream), "
                    "or work.wait()",
                    node.site,
                )
