"""One execution of the programs of a launch, on an event loop of its own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from kernbench.des import DeadlockError, EventLoop, Fifo, Task, order
from kernbench.errors import KernbenchError, site_fact, site_in
from kernbench.hw.network import Network
from kernbench.hw.pe import PeCosts, PeTimeline, later
from kernbench.hw.queue import MOST_SLOTS, Queue, QueueSpec, Sender, least_slots
from kernbench.sim_engine.engine import GraphEngine
from kernbench.tl.arguments import value_in
from kernbench.tl.misfits import told
from kernbench.tl.notices import Notice
from kernbench.tl.program import PROGRAMS, Program, Trace
from kernbench.tl.races import Races
from kernbench.tl.recording import Recorder
from kernbench.tl.tile import Pointer

_MOST_LINES: Final = 8
"""Most programs, and most queues, that a report lists."""


class KernelDeadlockError(KernbenchError):
    """The programs of a kernel wait for each other for ever (K7)."""


class Run:
    """One execution of a grid.

    Args:
        kernel: Function that each program calls.
        grid: Extents of the grid.
        queues: How queues between the programs are built.
        recorder: Takes the computations of the programs in place of computing them; None to
            compute, as far as there are data.
        same_stores: Whether several programs may store one value to one element.
        dry: Whether only to find out if the programs end: nothing is computed or logged.

    Attributes:
        duration: Time until the last program is over, in picoseconds.
        varied: Whether the duration or the actions of the programs may depend on data or on the
            device.
        spans: Activities of the engines of PEs, if everything is logged: the index of the PE and
            the arguments of `Trace`.
        notices: Warnings about the programs, one a line of the kernel.
    """

    def __init__(
        self,
        engine: GraphEngine,
        sip: int,
        kernel: Callable[..., None],
        grid: tuple[int, ...],
        queues: QueueSpec,
        recorder: Recorder | None,
        *,
        same_stores: bool,
        dry: bool = False,
    ) -> None:
        self._engine = engine
        self._data = engine.enable_data and not dry
        self._sip = sip
        self._kernel = kernel
        self._grid = grid
        self._spec = queues
        self._recorder = recorder
        self._dry = dry
        self._same_stores = same_stores
        self._races: Races | None = None
        self._loop = EventLoop()
        self._network = Network(engine.topology, self._loop)
        self._costs = PeCosts.of(engine.devices[sip].sip)
        self._ports: dict[int, Fifo] = {}
        self._queues: dict[tuple[int, int], Queue] = {}
        self.duration = 0
        self.varied = False
        self.spans: Final[list[tuple[int, tuple[Any, ...]]]] = []
        self.notices: Final[list[Notice]] = []

    def run(self, arguments: dict[str, Any]) -> None:
        """Runs every program to its end.

        Args:
            arguments: Arguments by parameter name; no two tensors the same `View`. Numbers of which
                each program makes a tile are `Number`s.

        Raises:
            ProgramRaceError: If two programs store to one element, or one program loads an element
                that another stores, or lanes of a store have different values for one element.
            KernelDeadlockError: If programs wait for each other for ever.
            BaseException: The error of the first program that failed.
        """
        if self._data:
            views = {n: p.view for n, p in arguments.items() if isinstance(p, Pointer)}
            self._races = Races(self._grid, views, same_stores=self._same_stores)
        total = 1
        for extent in self._grid:
            total *= extent
        pes, per_cube = self._engine.topology.num_pes(self._sip), self._costs.cube.pes
        used = min(total, pes)
        if used > 1:
            for cube in range(-(-used // per_cube)):
                self._ports[cube] = Fifo(shared=True)
        tasks = [
            self._loop.start(
                self._programs,
                pe,
                range(pe, total, used),
                arguments,
                total if total <= pes else 0,
                owner=self._loop.owner(order.program_of(pe)),
                name=f"{self._kernel.__name__} on PE {pe}",
            )
            for pe in range(used)
        ]
        waits: Sequence[tuple[Task, object]] = ()
        try:
            self._loop.run()
        except DeadlockError as deadlock:
            waits = deadlock.waits
        places = [
            f"{task.name} waits for {reason}, {site_fact(site_in(task.frame))}"
            for task, reason in waits
        ]
        # An error comes before a deadlock: others may wait for messages of a program that failed.
        failed = [task.error for task in tasks if task.error is not None]
        stop = SystemExit("kernel aborted")
        for task, _ in waits:
            task.interrupt(stop)
        if failed:
            raise told(failed[0])
        if waits:
            raise KernelDeadlockError(
                f"the programs of {self._kernel.__name__} wait for each other",
                [*_cut(places), *_cut(self._full())],
                hint=self._way_out(arguments),
                code="K7",
            )
        if self._races is not None:
            self._races.check()

    def _programs(
        self, pe: int, pids: Sequence[int], arguments: dict[str, Any], peers: int
    ) -> None:
        engine, recorder = self._engine, self._recorder
        full = engine.op_log.full and not self._dry
        per_cube = self._costs.cube.pes
        timeline = PeTimeline(0, self._costs.pe.issue, later)
        task = self._loop.current
        assert task is not None
        owner = self._loop.owner(order.program_of(pe))
        for pid in pids:
            engine.loop.inner_steps += 1  # a grid of many programs is no loop without end
            program = Program(
                task,
                timeline,
                self._costs,
                ids=_unravel(pid, self._grid),
                grid=self._grid,
                port=self._ports.get(pe // per_cube),
                channels=_Channels(self._queue, pid, peers) if peers else None,
                sender=Sender(self._network, timeline, owner),
                data=self._data and recorder is None,
                trace=self._tracer(pe) if full else None,
                # A recording run numbers no messages: a launch that sends is run again.
                flows=engine.op_log.new_flow if full and not recorder else None,
                recorder=recorder,
                races=self._races,
                notices=self.notices,
            )
            task.subject = program
            given = {name: value_in(program, each) for name, each in arguments.items()}
            with np.errstate(all="ignore"):
                self._kernel(**given)
            program.drain()
            timeline.wait_until(program.end)
            self.varied = self.varied or program.data_dependent or program.communicated
        self.duration = max(self.duration, timeline.clock)

    def _tracer(self, pe: int) -> Trace:
        return lambda *span: self.spans.append((pe, span))

    def _full(self) -> list[str]:
        """Returns a line for each queue whose sender waits for a credit, by program."""
        return [
            f"queue {sender}->{receiver} full {queue.spec.n_slots}/{queue.spec.n_slots}"
            for (sender, receiver), queue in sorted(self._queues.items())
            if queue.starved
        ]

    def _way_out(self, arguments: dict[str, Any]) -> str:
        """Returns the hint of a deadlock; runs the programs again if queues are full."""
        n_slots = self._spec.n_slots
        if self._dry or not any(queue.starved for queue in self._queues.values()):
            return "every tl.recv needs a tl.send by the program that it names"
        said = f"{n_slots} messages fit in a queue: receive before the next tl.send"
        if "print" in self._kernel.__code__.co_names:  # it would print once more
            return said
        memory = self._costs.memory(self._spec.space).capacity
        try:
            least = least_slots(
                n_slots,
                memory // self._spec.slot_size,
                lambda count: self._ends(count, arguments),
            )
        except Exception:  # the programs need values
            return said
        if least is None:
            return f"{said}; no n_slots up to {MOST_SLOTS} that fits into memory completes"
        return f"{said}; n_slots={least} is the least that completes"

    def _ends(self, n_slots: int, arguments: dict[str, Any]) -> bool:
        spec = replace(self._spec, n_slots=n_slots)
        again = Run(
            self._engine,
            self._sip,
            self._kernel,
            self._grid,
            spec,
            None,
            same_stores=self._same_stores,
            dry=True,
        )
        try:
            again.run(arguments)
        except KernelDeadlockError:
            return False
        return True

    def _queue(self, sender: int, receiver: int) -> Queue:
        queue = self._queues.get((sender, receiver))
        if queue is None:
            topology = self._engine.topology
            nodes = [topology.pe_node(self._sip, pe) for pe in (sender, receiver)]
            path = self._network.path(
                nodes[0], nodes[1], self._costs.pe.dma, self._spec.vc_chunk_size
            )
            latency = self._costs.memory(self._spec.space).latency
            queue = Queue(path, self._spec, self._costs.pe.poll_interval, latency)
            self._queues[sender, receiver] = queue
        return queue


class _Channels:
    """The queues of one program, by the index of its peer."""

    peers_are = PROGRAMS

    def __init__(self, queue: Callable[[int, int], Queue], pid: int, peers: int) -> None:
        self.peers = peers
        self._queue = queue
        self._pid = pid

    def outgoing(self, peer: int) -> Queue:
        return self._queue(self._pid, peer)

    def incoming(self, peer: int) -> Queue:
        return self._queue(peer, self._pid)


def _cut(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    return [*lines] if more <= 0 else [*lines[:_MOST_LINES], f"and {more} more"]


def _unravel(pid: int, grid: tuple[int, ...]) -> tuple[int, ...]:
    ids = []
    for extent in grid:
        pid, index = divmod(pid, extent)
        ids.append(index)
    return tuple(ids)
