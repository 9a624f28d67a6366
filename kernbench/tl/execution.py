"""One execution of the programs of a launch, on an event loop of its own."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from kernbench.des import DeadlockError, EventLoop, Fifo, Task, order
from kernbench.errors import KernbenchError
from kernbench.hw.network import Network
from kernbench.hw.pe import PeCosts, PeTimeline, later
from kernbench.hw.queue import Queue, QueueSpec, Sender
from kernbench.sim_engine.engine import GraphEngine
from kernbench.tl.program import Program, Trace
from kernbench.tl.races import Races
from kernbench.tl.recording import Recorder
from kernbench.tl.tile import Pointer


class KernelDeadlockError(KernbenchError):
    """The programs of a kernel wait for each other for ever (K7)."""


class Run:
    """One execution of a grid.

    Args:
        engine: The engine.
        sip: Index of the device.
        kernel: Function that each program calls.
        grid: Extents of the grid.
        queues: How queues between the programs are built.
        recorder: Takes the computations of the programs in place of computing them; None to
            compute, as far as there are data.
        same_stores: Whether several programs may store one value to one element.

    Attributes:
        duration: Time until the last program is over, in picoseconds.
        varied: Whether the duration or the actions of the programs may depend on data or on the
            device.
        spans: Activities of the engines of PEs, if everything is logged: the index of the PE and
            the arguments of `Trace`.
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
    ) -> None:
        self._engine = engine
        self._sip = sip
        self._kernel = kernel
        self._grid = grid
        self._spec = queues
        self._recorder = recorder
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

    def run(self, arguments: dict[str, Any]) -> None:
        """Runs every program to its end.

        Args:
            arguments: Arguments by parameter name; no two tensors the same `View`.

        Raises:
            ProgramRaceError: If two programs store to one element, or one program loads an element
                that another stores, or lanes of a store have different values for one element.
            KernelDeadlockError: If programs wait for each other for ever.
            BaseException: The error of the first program that failed.
        """
        if self._engine.enable_data:
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
        # An error comes before a deadlock: others may wait for messages of a program that failed.
        failed = [task.error for task in tasks if task.error is not None]
        stop = SystemExit("kernel aborted")
        for task, _ in waits:
            task.interrupt(stop)
        if failed:
            raise failed[0]
        if waits:
            raise KernelDeadlockError(
                f"the programs of {self._kernel.__name__} wait for each other",
                [*(f"{task.name} waits for {reason}" for task, reason in waits), *self._full()],
                hint="every send needs a receive, and n_slots messages fit between them",
                code="K7",
            )
        if self._races is not None:
            self._races.check()

    def _programs(
        self, pe: int, pids: Sequence[int], arguments: dict[str, Any], peers: int
    ) -> None:
        engine, recorder, full = self._engine, self._recorder, self._engine.op_log.full
        per_cube = self._costs.cube.pes
        timeline = PeTimeline(0, self._costs.pe.issue, later)
        task = self._loop.current
        assert task is not None
        owner = self._loop.owner(order.program_of(pe))
        for pid in pids:
            program = Program(
                task,
                timeline,
                self._costs,
                ids=_unravel(pid, self._grid),
                grid=self._grid,
                port=self._ports.get(pe // per_cube),
                channels=_Channels(self._queue, pid, peers) if peers else None,
                sender=Sender(self._network, timeline, owner),
                data=engine.enable_data and recorder is None,
                trace=self._tracer(pe) if full else None,
                # A recording run numbers no messages: a launch that sends is run again.
                flows=engine.op_log.new_flow if full and not recorder else None,
                recorder=recorder,
                races=self._races,
            )
            task.subject = program
            with np.errstate(all="ignore"):
                self._kernel(**arguments)
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

    def __init__(self, queue: Callable[[int, int], Queue], pid: int, peers: int) -> None:
        self.peers = peers
        self._queue = queue
        self._pid = pid

    def outgoing(self, peer: int) -> Queue:
        return self._queue(self._pid, peer)

    def incoming(self, peer: int) -> Queue:
        return self._queue(peer, self._pid)


def _unravel(pid: int, grid: tuple[int, ...]) -> tuple[int, ...]:
    ids = []
    for extent in grid:
        pid, index = divmod(pid, extent)
        ids.append(index)
    return tuple(ids)
