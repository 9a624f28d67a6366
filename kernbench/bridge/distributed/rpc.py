"""`torch.distributed.rpc`: its start and its end. Nobody calls another rank by it.

Libraries start it because a form of theirs would use it. So the ranks meet and learn each other's
names, as with PyTorch, and what calls another rank is refused.
"""

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

import torch.distributed as dist

from kernbench.bridge.base.here import HERE, this_rank
from kernbench.errors import not_simulated
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.process.process import MAIN
from kernbench.ranks.agents import AGENTS, agent_of, begin, next_prefix
from kernbench.ranks.world import world_of
from kernbench.runtime_api.refused_functions import refused
from kernbench.runtime_api.refused_names import refused_by_module

_REFUSED: Final = refused_by_module()["torch.distributed.rpc"]


def init_rpc(
    kind: Any,
    name: str,
    backend: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
) -> None:
    """`torch.distributed.rpc.init_rpc`: waits for all ranks, and learns their names.

    Args:
        kind: PyTorch's class of names and numbers, which refuses bad names.
        name: The rank's own name.
        backend: Ignored by design: nothing is called by it.
        rank: Number of the rank.
        world_size: Number of all ranks.
        rpc_backend_options: Options, of which the way to meet is used.

    Raises:
        RuntimeError: If the rank has begun before, or another one has the name.
        UnsupportedError: If some of the ranks are to meet, or it is unknown how many.
    """
    del backend
    process = this_rank().process
    size = 0 if process.rank == MAIN else world_of(process).size
    if not size or world_size != size:
        raise not_simulated(
            f"rpc.init_rpc(world_size={world_size}) in a run of {size} ranks",
            "call it in every rank, with world_size=int(os.environ['WORLD_SIZE'])",
        )
    if AGENTS.of(process) is not None:
        raise RuntimeError("RPC is already initialized")
    kind(name, 0)
    method = getattr(rpc_backend_options, "init_method", "env://")
    met, number, _ = next(iter(dist.rendezvous(method, rank=rank, world_size=size)))
    begin(process, kind, name, number, size, dist.PrefixStore(next_prefix(process), met))


def shutdown(graceful: bool = True, timeout: float = 0) -> None:
    """`torch.distributed.rpc.shutdown`.

    Args:
        graceful: Whether to wait for all ranks.
        timeout: Ignored by design: a hang is found when it happens, not after a time.
    """
    del timeout
    process = this_rank().process
    agent = agent_of(process)
    if graceful:
        agent.wait_for_all()
    AGENTS.set(process, None)


def get_worker_info(worker_name: str | None = None) -> Any:
    """`torch.distributed.rpc.get_worker_info`; see `ranks.agents.Agent.worker`."""
    return agent_of(this_rank().process).worker(worker_name)


def _in_ranks(real: Any, ours: Callable[..., Any]) -> Any:
    @functools.wraps(real)
    def either(*args: Any, **options: Any) -> Any:
        return (real if HERE.rank is None else ours)(*args, **options)

    return either


def _reference(real: Any) -> Any:
    """Returns the class `RRef`, of which ranks make no objects; annotations may name it."""
    refuse = refused("torch.distributed.rpc.RRef", _REFUSED["RRef"])

    def new(cls: Any, *args: Any, **options: Any) -> Any:
        if HERE.rank is not None:
            refuse()
        return real.__new__(cls, *args, **options)

    space = {"__new__": new, "__module__": real.__module__}
    space["__class_getitem__"] = classmethod(lambda _, item: real[item])
    return type(real)("RRef", (real,), space)


def _of_rpc(rpc: ModuleType) -> Iterator[Patch]:
    ours: dict[str, Callable[..., Any]] = {
        name: refused(f"torch.distributed.rpc.{name}", hint) for name, hint in _REFUSED.items()
    }
    ours |= {"init_rpc": functools.partial(init_rpc, rpc.WorkerInfo), "shutdown": shutdown}
    ours["get_worker_info"] = get_worker_info
    ours["_is_current_rpc_agent_set"] = lambda: AGENTS.of(this_rank().process) is not None
    made = {name: _in_ranks(getattr(rpc, name), function) for name, function in ours.items()}
    made["RRef"] = _reference(rpc.RRef)
    for name, value in made.items():
        for owner in (rpc, rpc.api):
            if hasattr(owner, name):
                yield Patch(owner, name, value)


def patches() -> Iterator[WhenImported]:
    """Yields what stands for remote procedure calls."""
    yield WhenImported("torch.distributed.rpc", _of_rpc)
