"""Issues the commands of a captured graph again, by one call of the host."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from kernbench.des import Event
from kernbench.distributed.issuing import Posted, follow, put
from kernbench.errors import CallSite, call_site, site_fact
from kernbench.graphs.capture import MADE, CaptureError, Kept, Node, Recording
from kernbench.process.act import Block, Span, act
from kernbench.process.process import Process
from kernbench.ranks.meeting import Role
from kernbench.sim_engine.command import Command, Stream

_ALL_REPLAY: Final = "every rank of the group must replay its graph as often"


class Library(Protocol):
    """Computes what commands do, where these only take their time."""

    def begin(self) -> None:
        """Begins a replay."""
        ...

    def before(self, number: int) -> None:
        """Does what comes before a command of the graph is issued."""
        ...

    def renewed(self, number: int, posted: Posted) -> Posted:
        """Returns a call together with other ranks, with the bytes that its blocks have now."""
        ...

    def issued(self, number: int, posted: Posted, command: Command) -> None:
        """Takes note that such a call has been made."""
        ...


class _Player:
    """A block in which commands take no place in the launch queue; a `sim_engine.host.Tape`.

    Args:
        outer: Notes what the rank does, for ranks that do the same; None if nobody notes.
    """

    def __init__(self, process: Process, outer: Any) -> None:
        self._engine: Final = process.engine
        self._host: Final = process.host
        self._outer: Final = outer

    later = False
    """See `sim_engine.host.Tape`."""

    def __enter__(self) -> None:
        self._host.tape = self

    def __exit__(self, *_: object) -> None:
        self._host.tape = self._outer

    def submit(
        self, command: Command, reads: Sequence[Block] = (), writes: Sequence[Block] = ()
    ) -> None:
        """See `sim_engine.host.Tape`."""
        if self._outer is None:
            self._engine.enqueue(command)
        else:
            self._outer.submit(command, reads, writes)

    def together(self, joined: Any, posted: Any) -> Any:
        """See `sim_engine.host.Tape`."""
        return None if self._outer is None else self._outer.together(joined, posted)

    def draws(self, again: Any, named: object) -> bool:
        """See `sim_engine.host.Tape`."""
        del again, named
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outer, name)


def replay(
    process: Process,
    recording: Recording,
    library: Library | None = None,
) -> None:
    """Issues all commands of a graph: behind what the current stream holds, before what follows.

    Commands of the stream that captured go to the current one, others to the streams on which they
    were captured. The host takes the time of one launch.

    Args:
        library: Computes the values; None: the commands do.

    Raises:
        CaptureError: If a tensor is gone that the graph uses, and that was there before it.
        AccessError: If something is at a block of the graph that nobody has waited for.
        CollectiveMismatchError: If the call of another rank differs.
    """
    host, origin = process.host, recording.origin
    _check_alive(process, recording)
    host.clock += process.dispatches["graph"]
    sip = origin.sip
    current = process.current_stream(sip)
    computing = process.computing_streams(sip)  # others are no program's current one
    for draw in recording.draws:
        draw()
    for line in dict.fromkeys(node.stream for node in recording.nodes):
        if line is not origin and line is not current:
            follow(line, current)
    done: list[tuple[Event, Mapping[Stream, int]]] = []
    site, player = process.call_site(), _Player(process, host.tape)
    if library is not None:
        library.begin()
    try:
        for number, node in enumerate(recording.nodes):
            line = current if node.stream is origin else node.stream
            process.make_current(line if line in computing else current)
            for earlier in node.after:
                _behind(line, done[earlier])
            if library is not None:
                library.before(number)
            with player:
                command = _issue(process, number, node, line, site, library)
            done.append((command.done, {**line.seen, line: command.number}))
    finally:
        process.make_current(current)
    if library is not None:
        library.before(len(recording.nodes))
    for earlier in recording.last:
        _behind(current, done[earlier])
    if done:  # a graph takes one place in the launch queue
        host.launched(done[-1][0])


def _issue(
    process: Process,
    number: int,
    node: Node,
    line: Stream,
    site: CallSite | None,
    library: Library | None,
) -> Command:
    """Issues a command of a graph.

    Args:
        number: Its number in the graph.
        line: Its stream.
        site: Where the program replays the graph.
        library: See `replay`.
    """
    posted = node.posted
    if posted is None:
        assert node.action is not None
        return act(
            process,
            node.name,
            node.category,
            line,
            node.action,
            reads=_alive(node.reads),
            writes=_alive(node.writes),
            site=node.site,
            args=node.args,
            new_version=False,  # autograd does not know about it
            issue="replayed",
        )
    if library is not None:
        posted = library.renewed(number, posted)
    role = Role(f"of a CUDA graph (captured at {posted.site})", _ALL_REPLAY)
    command, _ = put(
        process, posted._replace(site=site, role=posted.role or role), line, "replayed"
    )
    if library is not None:
        library.issued(number, posted, command)
    return command


def _behind(line: Stream, done: tuple[Event, Mapping[Stream, int]]) -> None:
    line.waits.append(done[0])
    line.learn(done[1])


def _alive(blocks: Sequence[Kept]) -> list[Block]:
    """Returns the blocks that a program still has; what a graph alone uses nobody else touches."""
    found: list[Block] = []
    for memory, window in blocks:
        guard = memory()
        if guard is not None:
            found.append(Span(guard, window))
    return found


def _check_alive(process: Process, recording: Recording) -> None:
    for node in recording.nodes:
        for memory, window in (*node.reads, *node.writes):
            number = window.buffer.allocation.number
            if number > recording.first or memory() is not None:
                continue
            if not any(number in made for made in MADE.of(process)):
                block = window.buffer.allocation
                raise gone(process, str(block.label), block.site, node.name, node.site)


def gone(
    process: Process, what: str, made: CallSite | None, name: str, site: CallSite | None
) -> CaptureError:
    """Returns the error about a tensor that is gone, and that a graph uses.

    Args:
        what: The tensor.
        made: Where it was made.
        name: Name of the command that uses it.
        site: Where that was captured.
    """
    return CaptureError(
        f"{process.name} replays a CUDA graph that uses {what}, which is gone",
        [
            site_fact(call_site()),
            site_fact(site, f"{name} was captured at"),
            site_fact(made, "allocated at"),
        ],
        hint="keep static inputs as long as the graph: copy new values into them with copy_()",
    )
