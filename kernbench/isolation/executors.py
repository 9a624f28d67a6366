"""Pools of threads and of processes that a rank makes: they end with it, as with a process.

Their threads take turns with the rank's others, so they must end while these still do.
"""

import contextlib
import functools
import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Any, Final

from kernbench.des import Killed
from kernbench.isolation.endings import before_end
from kernbench.isolation.here import HERE
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.isolation.turns import turns_of
from kernbench.ranks.spawn_errors import RankAborted


def _beginning(
    real: Callable[..., None], ask: Callable[[Any], object], end: Callable[[Any], object]
) -> Callable[..., None]:
    """Returns what makes an executor.

    Args:
        ask: Asks it to end, before its rank waits for threads.
        end: Ends it at once.
    """

    @functools.wraps(real)
    def init(executor: Any, *args: Any, **options: Any) -> None:
        real(executor, *args, **options)
        rank = HERE.rank
        if rank is not None:
            turns_of(rank).executors[executor] = ask, end

    return init


def _nothing(_: Any) -> None:
    pass


def _shut_down(executor: Any) -> None:
    executor.shutdown(wait=False)


def _kill_processes(executor: Any) -> None:
    for process in list((executor._processes or {}).values()):
        process.kill()


def _wait_for_end(pool: Any) -> None:
    rank = HERE.rank
    assert rank is not None
    before_end(rank, pool.terminate)


def _kill_pool(pool: Any) -> None:
    if pool._terminate.still_active():
        pool._terminate.cancel()
        pool._state = "TERMINATE"  # so that it does not say that nobody has ended it
        for worker in pool._pool:
            if hasattr(worker, "kill"):  # else it is a thread
                worker.kill()


def _pools(module: ModuleType) -> Iterator[Patch]:
    kind: Any = module.Pool
    yield Patch(kind, "__init__", _beginning(kind.__init__, _wait_for_end, _kill_pool))


def _processes(module: ModuleType) -> Iterator[Patch]:
    kind: Any = module.ProcessPoolExecutor
    yield Patch(kind, "__init__", _beginning(kind.__init__, _shut_down, _kill_processes))


class _Ready:
    """What a rank puts into a queue: it is pickled at once, since only then its modules stand.

    Args:
        data: The object, pickled.
    """

    def __init__(self, data: bytes) -> None:
        self._data: Final = data

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes]]:
        return pickle.loads, (self._data,)


def _queues(module: ModuleType) -> Iterator[Patch]:
    """Yields what puts into a queue, whose own thread, that is nobody's, sends what is put."""
    kind: Any = module.Queue
    yield Patch(kind, "put", _putting(kind.put, module))


def _putting(real: Callable[..., None], module: Any) -> Callable[..., None]:
    @functools.wraps(real)
    def put(queue: Any, obj: Any, *args: Any, **options: Any) -> None:
        if HERE.rank is not None:
            with contextlib.suppress(Exception):  # the thread of the queue tells, as it does
                obj = _Ready(bytes(module._ForkingPickler.dumps(obj)))
        real(queue, obj, *args, **options)

    return put


def _telling(logger: logging.Logger) -> Callable[..., None]:
    """Returns what tells of an error that has ended a worker; the end of its rank is none."""
    real = logger.critical

    def tell(*args: Any, **options: Any) -> None:
        if not isinstance(sys.exception(), RankAborted | Killed | SystemExit | KeyboardInterrupt):
            real(*args, **options)

    return partial(tell)


def patches() -> Iterator[Patch | WhenImported]:
    """Yields what is replaced of `concurrent.futures` and of pools of processes."""
    kind: Any = ThreadPoolExecutor
    yield Patch(kind, "__init__", _beginning(kind.__init__, _shut_down, _nothing))
    logger = logging.getLogger("concurrent.futures")
    yield Patch(logger, "critical", _telling(logger))
    yield WhenImported("concurrent.futures.process", _processes)
    for package in ("multiprocessing", "multiprocess"):
        yield WhenImported(f"{package}.pool", _pools)
        yield WhenImported(f"{package}.queues", _queues)
