"""`os.environ` of each rank, which a real run gives to each process."""

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

from kernbench.des import current_task
from kernbench.process.process import Process, RankLocal


class Environments(MutableMapping[str, str]):
    """Stands for `os.environ`: each rank has a copy of main's, made when the rank first writes.

    Args:
        of_main: The environment of the process, on which code outside of ranks acts.
    """

    def __init__(self, of_main: MutableMapping[str, str]) -> None:
        self._main: Final = of_main
        self._ranks: Final[RankLocal[dict[str, str]]] = RankLocal(
            "environment", lambda _: dict(of_main)
        )

    @property
    def _read(self) -> MutableMapping[str, str]:
        process = _calling_rank()
        return self._main if process is None else process.locals.get(self._ranks, self._main)

    @property
    def _written(self) -> MutableMapping[str, str]:
        process = _calling_rank()
        return self._main if process is None else self._ranks.of(process)

    def __getitem__(self, name: str) -> str:
        value = self._read.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: str) -> None:
        for text in (name, value):
            if not isinstance(text, str):
                raise TypeError(f"str expected, not {type(text).__name__}")
        self._written[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self._read:
            raise KeyError(name)
        del self._written[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._read))

    def __len__(self) -> int:
        return len(self._read)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name!r}: {value!r}" for name, value in self.items())
        return f"environ({{{inside}}})"

    def own(self, name: str) -> str | None:
        """Returns a variable if the calling rank has a value of its own; else None."""
        mine = self._read
        if mine is self._main:
            return None
        value = mine.get(name)
        return None if value == self._main.get(name) else value

    def copy(self) -> dict[str, str]:
        """Returns the variables of whoever calls."""
        return dict(self)

    def __or__(self, other: Mapping[str, str]) -> dict[str, str]:
        return {**self, **other} if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Mapping[str, str]) -> dict[str, str]:
        return {**other, **self} if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other: Mapping[str, str]) -> "Environments":
        self.update(other)
        return self


def _calling_rank() -> Process | None:
    task = current_task()
    process = None if task is None else task.subject
    return process if isinstance(process, Process) else None


def own_variable(name: str) -> str | None:
    """Returns a variable of `os.environ` if the calling rank has a value of its own; else None."""
    variables: object = os.environ
    return variables.own(name) if isinstance(variables, Environments) else None


@contextmanager
def own_environments() -> Iterator[None]:
    """Gives each rank an `os.environ` of its own inside a block."""
    before: Any = os.environ
    if isinstance(before, Environments):
        yield
        return
    stands: Any = Environments(before)
    os.environ = stands  # noqa: B003 - nothing is cleared
    try:
        yield
    finally:
        if os.environ is stands:  # otherwise the program has replaced it
            os.environ = before  # noqa: B003
