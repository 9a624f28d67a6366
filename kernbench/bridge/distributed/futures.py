"""Futures of collectives: to wait for one lets the stream wait for the collective.

C++ code waits for a future without a call of its methods in Python; where it does so outside of a
backward pass, the works are waited for here.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.futures import Future

from kernbench.bridge.base.here import HERE
from kernbench.isolation.replaced import Patch


class Awaited(Future):
    """A future for which Python code waits: the stream then waits for the operations.

    Args:
        works: The operations that it is the future of.

    Attributes:
        works: As above.
    """

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__()
        self.works: Final = works

    def _wait_for_works(self) -> None:
        for work in self.works:
            work.wait()

    def wait(self) -> Any:
        """Returns the tensors; the stream waits for the operations."""
        self._wait_for_works()
        return super().wait()

    def then(self, callback: Any) -> Any:
        """Returns the future of what a function makes of this one; the stream waits first."""
        self._wait_for_works()
        return super().then(callback)

    def add_done_callback(self, callback: Any) -> None:
        """Calls a function with this future; the stream waits first."""
        self._wait_for_works()
        super().add_done_callback(callback)


class InHook(Awaited):
    """A future in a communication hook, whose callbacks run at once and on behalf of the reducer.

    The stream waits at the end of the backward pass.
    """

    def _trust(self) -> None:
        for work in self.works:
            work.trust()

    def then(self, callback: Any) -> Any:
        """Returns the future of what a function makes of this one."""
        self._trust()
        return Future.then(self, callback)

    def add_done_callback(self, callback: Any) -> None:
        """Calls a function with this future."""
        self._trust()
        Future.add_done_callback(self, callback)


def _works_of(futures: Sequence[Any]) -> list[Any]:
    return [work for one in futures if isinstance(one, Awaited) for work in one.works]


def _collect_all(real: Callable[..., Any]) -> Callable[..., Any]:
    def collect_all(futures: list[Any]) -> Any:
        whole, works = real(futures), _works_of(futures)
        if not works:
            return whole
        in_hook = any(isinstance(one, InHook) for one in futures)
        made = (InHook if in_hook else Awaited)(works)

        def pass_on(done: Any) -> None:
            try:
                result = done.value()
            except Exception as error:
                made.set_exception(error)
            else:
                made.set_result(result)

        whole.add_done_callback(pass_on)
        return made

    return collect_all


def _wait_all(real: Callable[..., Any]) -> Callable[..., Any]:
    def wait_all(futures: list[Any]) -> Any:
        for work in _works_of(futures):
            work.wait()
        return real(futures)

    return wait_all


def _wait_after_backward(real: Callable[..., Any]) -> Callable[..., Any]:
    def install(reducer: Any, futures: list[Any]) -> None:
        rank = HERE.rank
        if rank is not None:
            rank.outstanding.extend(_works_of(futures))
        real(reducer, futures)

    return install


def _run_allreduce_hook(real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the reducer's own hook with a future that is ours: it comes out of C++ as another."""

    def run(reducer: Any, bucket: Any) -> Any:
        future, rank = real(reducer, bucket), HERE.rank
        if rank is None or not rank.hooked:
            return future
        made = InHook([rank.hooked[-1]])
        made.set_result(future.value())
        return made

    return run


def patches() -> Iterator[Patch]:
    """Yields what is replaced of functions that give futures to C++ code, or get them from it."""
    yield Patch(torch.futures, "collect_all", _collect_all(torch.futures.collect_all))
    yield Patch(torch.futures, "wait_all", _wait_all(torch.futures.wait_all))
    for name, make in (
        ("_install_post_backward_futures", _wait_after_backward),
        ("_run_allreduce_hook", _run_allreduce_hook),
    ):
        yield Patch(dist.Reducer, name, make(getattr(dist.Reducer, name)))
