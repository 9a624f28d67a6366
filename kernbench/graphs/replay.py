"""Issues the commands of a captured graph again, by one call of the host."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kernbench.des import Event
from kernbench.distributed.issuing import Posted, follow, put
from kernbench.errors import CallSite, call_site, site_fact
from kernbench.graphs.capture import CaptureError, Kept, Recording
from kernbench.process.act import Block, Span, act
from kernbench.process.process import Process
from kernbench.ranks.meeting import Role
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.host import Host

_ALL_REPLAY: Final = "every rank of the group must replay its graph as often"


class _Player:
    """Submits commands that take no place in the launch queue, as a `sim_engine.host.Tape`.

    Args:
        outer: Notes what the rank does, for ranks that do the same; None if nobody notes.
    """

    def __init__(self, process: Process, outer: Any) -> None:
        self._engine: Final = process.engine
        self._outer: Final = outer

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
    before: Callable[[int], None] | None = None,
    renewed: Callable[[int, Posted], Posted] | None = None,
) -> None:
    """Issues all commands of a graph: behind what the current stream holds, and before what follows.

    Commands of the stream that captured go to the current one, others to the streams on which they
    were captured. The host takes the time of one launch.

    Args:
        before: Called with the number of each command before it is issued.
        renewed: Returns a call together with other ranks with the blocks of this replay.

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
    for draw in recording.draws:
        draw()
    for line in dict.fromkeys(node.stream for node in recording.nodes):
        if line is not origin and line is not current:
            follow(line, current)
    done: list[tuple[Event, Mapping[Stream, int]]] = []
    outer, site = host.tape, process.call_site()
    host.tape = _Player(process, outer)
    try:
        for number, node in enumerate(recording.nodes):
            line = current if node.stream is origin else node.stream
            process.make_current(line)
            if before is not None:
                before(number)
            for earlier in node.after:
                _behind(line, done[earlier])
            if node.posted is not None:
                posted = node.posted if renewed is None else renewed(number, node.posted)
                role = Role(f"of a CUDA graph, captured {site_fact(posted.site)}", _ALL_REPLAY)
                posted = posted._replace(site=site, role=posted.role or role)
                command, _ = put(process, posted, line, "replayed")
            else:
                assert node.action is not None
                command = act(
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
            done.append((command.done, {**line.seen, line: command.number}))
    finally:
        host.tape = outer
        process.make_current(current)
    for earlier in recording.last:
        _behind(current, done[earlier])
    if done:
        _launched(host, done[-1][0])


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
            block = window.buffer.allocation
            if block.number <= recording.first and memory() is None:
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


def _launched(host: Host, done: Event) -> None:
    """A graph takes one place in the launch queue."""
    host.launched(done)
