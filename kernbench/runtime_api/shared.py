"""What a context shares with its processes: its machine, its ranks, and what it was asked for."""

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from kernbench.caches import Table
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.tuner import Choices
from kernbench.classes.partition import Partition
from kernbench.classes.roles import Role
from kernbench.classes.splits import Splits
from kernbench.des import Event
from kernbench.errors import UsageError
from kernbench.process.process import Process
from kernbench.process.types import DeviceSelector
from kernbench.ranks.hash_seeds import Calls
from kernbench.ranks.schedules import Schedule
from kernbench.ranks.world import World
from kernbench.routing import Routing, RoutingError, routing_of
from kernbench.run_spec import RunSpec
from kernbench.sim_engine.engine import GraphEngine
from kernbench.tl.recording import Recording, recordings_of


class Shared:
    """The part of a context that its processes use: their `Process.ctx`.

    It refers to no process, and to no context. So a context and all that it holds are freed with
    the last reference to it, and do not wait for the garbage collector.

    Args:
        engine: Engine that runs the commands.
        schedule: Decides which message each receive from any source takes; None: the message that
            comes first.
        calls: Notes what ranks call together; None if nobody asks.
        splits: See the attribute.

    Attributes:
        spec: Specification of the run.
        engine: Engine that runs the commands.
        devices: SIPs that ranks may use; rank r has the r-th.
        places: Place in `devices` of each SIP that ranks may use.
        world: The ranks while a spawn runs.
        worker_waits: Events that workers wait for now.
        schedule: Decides which message each receive from any source takes.
        calls: Notes what ranks call together; None if nobody asks.
        recordings: Launches of kernels recorded on machines equal to this one, see `KernelWork`.
        asks_routing: Whether something has asked which routing there is.
        on_choice: Called with a line of text when an algorithm is chosen for the first time.
        roles: Returns the role of a rank, as the program says; None for one role.
        collapsed: Classes of the ranks of each spawn that was collapsed.
        splits: Classes that earlier attempts of the run have split.
    """

    def __init__(
        self,
        spec: RunSpec,
        engine: GraphEngine,
        schedule: Schedule | None,
        calls: Calls | None,
        splits: Splits,
    ) -> None:
        self.spec: Final = spec
        self.engine: Final = engine
        self.schedule: Final = schedule
        self.calls: Final = calls
        self._routing: Final = None if spec.routing is None else _named(spec.routing)
        self.asks_routing = False
        self.devices: Final[Sequence[int]] = DeviceSelector(spec.devices).indices(
            engine.topology.world_size
        )
        self.places: Final[Mapping[int, int]] = {
            sip: place for place, sip in enumerate(self.devices)
        }
        self.world = World(schedule=schedule)
        self.worker_waits: Final[list[Event]] = []
        self.recordings: Final[Table[Hashable, Recording]] = recordings_of(engine.topology)
        self.on_choice: Callable[[str], None] | None = None
        self.roles: Role | None = None
        self.collapsed: list[Partition] = []
        self.splits: Final = splits
        self._main: weakref.ref[Process] | None = None

    def set_main(self, main: Process) -> None:
        """Notes the process of code outside of workers."""
        self._main = weakref.ref(main)

    @property
    def main(self) -> Process:
        """The process of code outside of workers, which its context holds."""
        main = None if self._main is None else self._main()
        assert main is not None, "the context is gone"
        return main

    @property
    def routing(self) -> Routing | None:
        """Says which experts tokens choose; None for what the program computes."""
        self.asks_routing = True
        return self._routing

    @cached_property
    def collectives(self) -> CollectiveModel:
        """State that all collectives of the context share."""
        return CollectiveModel(self.engine, self.choices.choose)

    @cached_property
    def choices(self) -> Choices:
        """Which algorithm each operation uses."""
        file = None if self.spec.ccl is None else Path(self.spec.ccl)
        return Choices(file, self.spec.ccl_overrides, self.engine.topology)

    def rank_of_device(self, sip: int) -> int | None:
        """Returns the rank that uses a SIP while a spawn runs; None if the SIP is free."""
        place = self.places.get(sip)
        return place if place is not None and place < self.world.size else None


def _named(name: str) -> Routing:
    """Returns the routing that the run names.

    Raises:
        UsageError: If there is none, or its file is not well formed.
    """
    try:
        return routing_of(name)
    except RoutingError as error:
        told = f"--routing (routing=): {error.summary}"
        raise UsageError(told, error.facts, hint=error.hint) from None
