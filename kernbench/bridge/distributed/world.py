"""What `torch.distributed` keeps for a whole process, one for each rank."""

import os
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import WeakSet

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from kernbench.bridge.base.here import HERE, Rank, this_rank
from kernbench.bridge.distributed.process_group import SimProcessGroup
from kernbench.bridge.distributed.recorded_group import RecordedProcessGroup, noted_batch
from kernbench.bridge.distributed.store import SimStore
from kernbench.bridge.distributed.works import SimWork, refs_of, unseen
from kernbench.bridge.tensors.devices import ambient, on_device
from kernbench.bridge.tensors.storages import block_of, let_go
from kernbench.des import Event
from kernbench.distributed import group_lifetime, group_making, p2p
from kernbench.distributed.groups import warn_outside
from kernbench.errors import UsageError, call_site, site_fact
from kernbench.following.followers import Follower
from kernbench.following.tapes import WORLD
from kernbench.process.effort import EFFORT
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.world import world_of

OF_MODULE: Final = (
    *("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag"),
)
"""What `distributed_c10d._World` keeps in variables of its module, beside `group_count`."""


class _World(c10d._World):
    """`distributed_c10d._World` of one rank, with variables of its own in place of the module's."""

    pg_map = pg_names = pg_group_ranks = pg_backend_config = tags_to_pg = pg_to_tag = None
    group_count = 0

    def __init__(self) -> None:
        super().__init__()
        for name in OF_MODULE:
            setattr(self, name, {})


class RankWorld:
    """`distributed_c10d._world` of each rank; outside of ranks, the real one.

    Args:
        real: The real one.
    """

    def __init__(self, real: Any) -> None:
        object.__setattr__(self, "_real", real)

    def _state(self) -> Any:
        rank = HERE.rank
        if rank is None:
            return object.__getattribute__(self, "_real")
        if rank.groups is None:
            rank.groups = _World()
        return rank.groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._state(), name, value)


class Distributed:
    """Functions of `torch.distributed` for ranks; outside of ranks, the real ones."""

    def __init__(self) -> None:
        self._store = SimStore()
        self._spawn: Any = None
        self._helper: Final = c10d._new_process_group_helper
        self._rendezvous: Final = c10d.rendezvous
        self._init: Final = c10d.init_process_group
        self._destroy: Final = c10d.destroy_process_group
        self._batch: Final = c10d.batch_isend_irecv

    @property
    def store(self) -> SimStore:
        """The store of the spawn whose rank runs: a spawn begins without keys."""
        spawn = world_of(this_rank().process)
        if spawn is not self._spawn:
            self._store, self._spawn = SimStore(), spawn
        return self._store

    def new_group_helper(
        self,
        group_size: int,
        group_rank: int,
        ranks: list[int],
        backend: Any,
        store: Any,
        group_name: str,
        **options: Any,
    ) -> Any:
        """`distributed_c10d._new_process_group_helper`.

        Args:
            group_size: Number of ranks of the group.
            group_rank: Number of this rank in the group.
            ranks: Ranks of the group; empty: all.
            backend: Names of backends; None: the usual ones.
            store: Where ranks of the group meet.

        Raises:
            ValueError: If there is a group of that name already.
        """
        rank = HERE.rank
        if rank is None:
            return self._helper(
                group_size, group_rank, ranks, backend, store, group_name, **options
            )
        if group_name in c10d._world.pg_names.values():
            raise ValueError("The specified group name has already been created")
        tag = options.get("pg_tag")
        if tag:
            found = c10d._find_pg_by_ranks_and_tag(tag, ranks)
            if found:
                return found, c10d._world.pg_map[found][1]
        process = rank.process
        desc = options.get("group_desc")
        group: ProcessGroup | None
        tape = rank.tape
        if not ranks:
            library = _backend(backend)
            if tape is not None:
                tape.did(_begin, library, shown=library)
            group_lifetime.init_process_group(library)
            group = world_of(process).group
        else:
            make = group_making.new_group if tape is None else tape.new_group
            group = make(
                list(ranks),
                backend=_backend(backend),
                use_local_synchronization=not group_name.isdigit(),
                group_desc=None if desc == "undefined" else desc,
                sort_ranks=False,
            )
            if process.rank not in ranks:
                return c10d.GroupMember.NON_GROUP_MEMBER, None
        assert group is not None
        kind = SimProcessGroup if rank.flight is None else RecordedProcessGroup
        made = kind(group, group.place(process.rank), group_name)
        if rank.flight is not None:
            rank.flight.joined(group_name, desc, group.ranks, options.get("timeout"))
        prefix = c10d.PrefixStore(f"{group_name}/", store)
        kept = {
            "backend_name": str(backend),
            "store": prefix,
            "group_name": group_name,
            "backend_config": str(backend),
        }
        if tag:
            c10d._register_pg_in_world(made, pg_tag=f"user:{tag}", **kept)
        else:
            c10d._register_pg_in_world(made, add_to_default_tag=True, **kept)
        return made, prefix

    def rendezvous(
        self, url: str, rank: int = -1, world_size: int = -1, **options: Any
    ) -> Iterator[Any]:
        """`torch.distributed.rendezvous`: every way leads to the store of the spawn.

        Args:
            url: A way to meet; any.
            rank: Number of this rank; -1: `RANK`.
            world_size: Number of ranks; -1: `WORLD_SIZE`.

        Raises:
            UsageError: If number and ranks are not those of the spawn.
        """
        here = HERE.rank
        if here is None:
            yield from self._rendezvous(url, rank, world_size, **options)
            return
        process = here.process
        size = world_of(process).size
        number = rank if rank >= 0 else int(os.environ.get("RANK", process.rank))
        total = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", size))
        if (number, total) != (process.rank, size):
            alone = f"by rank {process.rank} as rank {number}"
            mistake = alone if total == size else f"for {total} ranks, where {size} run"
            raise UsageError(
                f"init_process_group was called {mistake}",
                [site_fact(call_site())],
                hint="let all ranks call it, each by its RANK; new_group makes smaller groups",
            )
        yield self.store, number, total

    def init_process_group(self, backend: Any = None, *args: Any, **options: Any) -> None:
        """`torch.distributed.init_process_group`.

        Args:
            backend: Names of backends; None: the usual ones.

        Raises:
            UsageError: If the program is no rank.
        """
        rank = HERE.rank
        if rank is None:
            self._init(backend, *args, **options)
            return
        if world_of(rank.process).size == 0:
            raise UsageError(
                "init_process_group was called by a program that is no rank",
                [site_fact(call_site())],
                hint="start its ranks, or its only one: kernbench torchrun --nproc-per-node N FILE",
            )
        device = options.pop("device_id", None)
        options.pop("store", None)
        with unseen():
            self._init(_backend(backend), *args, **options)
        c10d._get_default_group().has_device = device is not None

    def destroy_process_group(self, group: Any = None) -> None:
        """`torch.distributed.destroy_process_group`."""
        rank = HERE.rank
        if rank is None:
            self._destroy(group)
            return
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return
        wait_for_outstanding(rank)
        simulated = getattr(group, "simulated", None)
        whole = group is None or group is dist.GroupMember.WORLD
        if rank.tape is not None:
            batch = WORLD if whole or simulated is None else rank.tape.batch_of(simulated)
            rank.tape.did(_end, batch, shown=batch)
        with unseen():
            group_lifetime.destroy_process_group(None if whole else simulated)
            self._destroy(group)

    def batch_isend_irecv(self, messages: list[Any]) -> list[Any]:
        """`torch.distributed.batch_isend_irecv`: all messages at once, as NCCL sends them.

        PyTorch gives a process group in Python one message after the other, and those might wait
        for each other.
        """
        if HERE.rank is None:
            found: list[Any] = self._batch(messages)
            return found
        c10d._check_p2p_op_list(messages)
        rank, blocks, ours = this_rank(), [], []
        with unseen():
            for message in messages:
                group = message.group or c10d._get_default_group()
                sends = message.op in {dist.isend, c10d.isend}
                blocks.append(block_of(rank, message.tensor))
                peer = message.peer
                if peer is None:
                    peer = group.simulated.ranks[message.group_peer]
                way = p2p.isend if sends else p2p.irecv
                if sends:
                    rank.hazards.unwritten.check_sent(blocks[-1], "isend")
                ours.append(p2p.P2POp(way, blocks[-1], peer, group.simulated, message.tag))
            events: list[Event] = []
            rank.process.heard, heard = _listener(rank.process.heard, events)
            try:
                with noted_batch(rank.flight, messages):
                    works = p2p.batch_isend_irecv(ours)
            finally:
                rank.process.heard = heard
        rank.hazards.note_used(blocks)
        used = refs_of(blocks)
        left = [event for event in events if event.time is None]
        if not left:
            let_go(blocks)
        for event in left:
            event.when_settled(lambda _: _let_go_after(left, blocks))
        return [SimWork(_all_of(events), work, [], used) for work in works]


def _begin(follower: Follower, library: str) -> None:
    """Does `init_process_group` in a rank that does not run the program."""
    del follower
    group_lifetime.init_process_group(library)


def _end(follower: Follower, batch: int) -> None:
    """Does `destroy_process_group` in a rank that does not run the program."""
    group = None if batch == WORLD else follower.group(batch)
    group_lifetime.destroy_process_group(group)


def _listener(heard: Any, events: list[Event]) -> tuple[Callable[..., Any], Any]:
    def hear(meeting: Any, gives: Any, action: Any) -> Any:
        joint = meeting.joint
        if not gives:  # a receive
            moved = getattr(joint, "moved", None)
            if moved is not None:
                events.append(moved)
        return action if heard is None else heard(meeting, gives, action)

    return hear, heard


def _let_go_after(events: list[Event], blocks: list[Any]) -> None:
    if all(event.time is not None for event in events):
        let_go(blocks)


def _all_of(events: list[Event]) -> Event | None:
    """Returns an event that settles when all of several have settled."""
    open_events = [event for event in events if event.time is None]
    if not open_events:
        return None
    whole = Event("the calls of the other ranks")

    def one_more(_: int) -> None:
        if whole.time is None and all(event.time is not None for event in open_events):
            whole.settle(0)

    for event in open_events:
        event.when_settled(one_more)
    return whole


def _backend(backend: Any) -> str:
    """Returns the backend as this package calls it; the default takes all tensors."""
    name = str(backend or "").lower()
    return "cpu:gloo,cuda:nccl" if name in {"", "undefined", "fake", "threaded"} else name


def end_of_backward(real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that runs a backward pass; the stream then waits for its collectives."""

    def run(roots: Any, gradients: Any, *args: Any, **options: Any) -> Any:
        rank = HERE.rank
        if rank is None:
            return real(roots, gradients, *args, **options)
        before, rank.backward = rank.backward, True
        # A root may be a `GradientEdge`, which has no memory; its gradient is where its tensor was.
        there = any(isinstance(t, torch.Tensor) and on_device(t) for t in (*roots, *gradients))
        if not before:
            EFFORT.backward(rank.process.rank, max(len(rank.process.ctx.main.ranks), 1))
            rank.process.host.clock += there * rank.process.calls.backward
        try:
            with ambient(rank, there):
                result = real(roots, gradients, *args, **options)
        finally:
            rank.backward = before
        if not before:  # not after a pass inside of one, such as that of a checkpoint
            EFFORT.stepped(rank.process.rank)
            wait_for_outstanding(rank)
        return result

    return run


def warn_not_in_group(real: Callable[[str], None]) -> Callable[[str], None]:
    """Returns what warns of a communication on a group that the rank is not in, with its line."""

    def warn(op_name: str) -> None:
        rank = HERE.rank
        if rank is None:
            real(op_name)
        else:
            warn_outside(rank.process, op_name)

    return warn


def wait_for_outstanding(rank: Rank) -> None:
    """Lets the stream wait for operations whose numbers a future has given.

    Args:
        rank: The rank that issued them.
    """
    works, rank.outstanding = rank.outstanding, []
    for work in works:
        work.wait()


class Reducers:
    """DDP's reducers, which make tensors in C++: on the device if their parameters are there.

    Args:
        real: The class of PyTorch.
    """

    def __init__(self, real: Any) -> None:
        self._real: Final = real
        self._rebuild: Final = real._rebuild_buckets
        self._on_device: WeakSet[Any] = WeakSet()

    def make(self, parameters: Any, *args: Any, **options: Any) -> Any:
        """`torch.distributed.Reducer`.

        Args:
            parameters: Parameters of the model.
        """
        rank = HERE.rank
        if rank is None:
            return self._real(parameters, *args, **options)
        on = any(on_device(one) for one in parameters)
        with ambient(rank, on):
            reducer = self._real(parameters, *args, **options)
        if on:
            self._on_device.add(reducer)
        return reducer

    def rebuild(self, reducer: Any) -> Any:
        """`Reducer._rebuild_buckets`."""
        rank = HERE.rank
        if rank is None:
            return self._rebuild(reducer)
        if reducer not in self._on_device:
            return self._rebuild(reducer)
        if not rank.data:
            with rank.mode.remembering():
                return self._rebuild(reducer)
        with ambient(rank, True):
            return self._rebuild(reducer)
