"""Agents of remote procedure calls: ranks that have met and know each other's names."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from kernbench.process.process import Process, RankLocal


class Store(Protocol):
    """Where ranks meet, as `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None:
        """Keeps a value."""
        ...

    def get(self, key: str) -> bytes:
        """Returns a value, for which it waits."""
        ...

    def wait(self, keys: list[str]) -> None:
        """Waits until there are values."""
        ...


class Agent(NamedTuple):
    """What a rank has begun.

    Attributes:
        workers: Names and numbers of all ranks, as PyTorch has them.
        store: Where they meet.
    """

    rank: int
    workers: tuple[Any, ...]
    store: Store

    def worker(self, name: str | None) -> Any:
        """Returns name and number of a rank.

        Args:
            name: Its name; None: the calling rank's.

        Raises:
            RuntimeError: If no rank has the name.
        """
        if name is None:
            return self.workers[self.rank]
        for worker in self.workers:
            if worker.name == name:
                return worker
        raise RuntimeError(f"Unknown destination worker {name}")

    def wait_for_all(self) -> None:
        """Waits until all ranks have come here."""
        self.store.set(f"end/{self.rank}", "")
        self.store.wait([f"end/{each}" for each in range(len(self.workers))])


AGENTS: Final[RankLocal[Agent | None]] = RankLocal("the agent of rpc", lambda _: None)
_BEGUN: Final[RankLocal[int]] = RankLocal("agents of rpc so far", lambda _: 0)


def agent_of(process: Process) -> Agent:
    """Returns what a rank has begun.

    Raises:
        RuntimeError: If it has begun nothing.
    """
    found = AGENTS.of(process)
    if found is None:
        raise RuntimeError(
            "RPC has not been initialized. Call torch.distributed.rpc.init_rpc first."
        )
    return found


def next_prefix(process: Process) -> str:
    """Returns the prefix of the keys by which ranks that begin now meet."""
    begun = _BEGUN.of(process)
    _BEGUN.set(process, begun + 1)
    return f"rpc_prefix_{begun}"


def begin(
    process: Process,
    kind: Callable[[str, int], Any],
    name: str,
    number: int,
    size: int,
    store: Store,
) -> None:
    """Waits for all ranks, and learns their names.

    Args:
        process: The rank.
        kind: Makes a worker of a name and a number.
        name: The rank's own name.
        number: The rank's own number.
        size: Number of all ranks.
        store: Where they meet.

    Raises:
        RuntimeError: If another rank has the name.
    """
    store.set(f"name/{number}", name)
    names = tuple(store.get(f"name/{each}").decode() for each in range(size))
    if names.count(name) > 1:
        raise RuntimeError(f"RPC worker name {name} is not unique: the ranks have {list(names)}")
    workers = tuple(kind(each, at) for at, each in enumerate(names))
    AGENTS.set(process, Agent(number, workers, store))
