"""Signals from one rank to another, each of which is waited for once."""

from collections import deque
from collections.abc import Callable
from typing import Final

from kernbench.des import Event
from kernbench.process.act import act
from kernbench.process.process import Process
from kernbench.sim_engine.engine import GraphEngine, Hold
from kernbench.symmetric.barriers import wait_for_call
from kernbench.symmetric.links import latency, peers_of
from kernbench.symmetric.orders import Seen, follow, known_to

_Told = tuple[Event, Seen]
"""The end of the command that gives or takes a signal, and what comes before who follows it."""


class Signals:
    """The signals of one channel from one rank to another.

    Args:
        name: Name of the memory and the channel in reports.
        ends: Global ranks that give and take them.
        sips: The devices of both.
        engine: What runs their commands.
    """

    def __init__(
        self, name: str, ends: tuple[int, int], sips: tuple[int, int], engine: GraphEngine
    ) -> None:
        self._name: Final = f"{name}, from rank {ends[0]} to rank {ends[1]}"
        self._sips: Final = sips
        self._engine: Final = engine
        self._given: Final[deque[_Told]] = deque()
        self._taken: _Told | None = None
        self._changed = Event("a signal")

    def put(self, process: Process) -> None:
        """Gives a signal, on the current stream; waits for the one before to be taken."""
        self._until(process, lambda: not self._given, "room for a signal")
        self._given.append(self._issue(process, "put_signal", self._sips[0], self._taken))
        self._touch()

    def wait(self, process: Process) -> None:
        """Waits for a signal on the current stream, and takes it."""
        self._until(process, lambda: bool(self._given), "a signal")
        given = self._given.popleft()
        self._taken = self._issue(process, "wait_signal", self._sips[1], given)
        self._touch()

    def _issue(self, process: Process, name: str, sip: int, after: _Told | None) -> _Told:
        """Issues a command, behind that of the other rank whose signal it has got."""
        engine, stream = self._engine, process.current_stream(sip)
        launch, peers = engine.devices[sip].library.sip.launch, peers_of(engine, sip)
        # Who gives it waits until it is known to be there.
        way = 2 * latency(engine, *self._sips) + peers.fence if name == "put_signal" else 0
        if after is not None:
            stream.waits.append(after[0])
        work, args = Hold(engine, None, launch, None, way + peers.atomic), {"channel": self._name}
        command = act(process, f"symm_mem::{name}", "kernel", stream, work, args=args)
        follow(process, stream, command.number, {} if after is None else after[1])
        return command.done, known_to(process, stream, command.number)

    def _until(self, process: Process, ready: Callable[[], bool], what: str) -> None:
        """Parks the host until another one has called, which takes no simulated time."""
        while not ready():
            wait_for_call(process, self._changed, f"{what} in {self._name}")

    def _touch(self) -> None:
        changed, self._changed = self._changed, Event("a signal")
        changed.settle(0)
