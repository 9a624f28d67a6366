"""`os.environ` of each rank, which a real run gives to each process."""

import os
from collections.abc import Iterator, Mapping, MutableMapping
from threading import Lock
from typing import Any, ClassVar, Final

from kernbench.des import current_task
from kernbench.process.process import Process, RankLocal


class Environments(MutableMapping[str, str]):
    """Stands for `os.environ`: each rank has a copy of main's, made when the rank first writes.

    Args:
        of_main: The environment of the process, on which code outside of ranks acts.

    Attributes:
        of_main: The same.
        blocks: Number of blocks of `own_environments` in which it stands, of all threads.
    """

    def __init__(self, of_main: MutableMapping[str, str]) -> None:
        self.of_main: Final = of_main
        self.blocks = 0
        self._ranks: Final[RankLocal[dict[str, str]]] = RankLocal(
            "environment", lambda _: dict(of_main)
        )

    @property
    def _read(self) -> MutableMapping[str, str]:
        process = _calling_rank()
        return self.of_main if process is None else process.locals.get(self._ranks, self.of_main)

    @property
    def _written(self) -> MutableMapping[str, str]:
        process = _calling_rank()
        return self.of_main if process is None else self._ranks.of(process)

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

    def own(self, process: Process) -> dict[str, str]:
        """Returns the variables of which a rank has values of its own."""
        mine = process.locals.get(self._ranks)
        if mine is None:
            return {}
        return {name: value for name, value in mine.items() if value != self.of_main.get(name)}

    def copy(self) -> dict[str, str]:
        """Returns the variables of the caller."""
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


def own_variables(process: Process) -> dict[str, str]:
    """Returns what a rank, and not main, has put into `os.environ`."""
    variables: object = os.environ
    return variables.own(process) if isinstance(variables, Environments) else {}


class own_environments:  # noqa: N801 - used as a function in `with`
    """Gives each rank an `os.environ` of its own inside a block.

    Blocks may be nested, and may overlap in several threads.
    """

    __slots__ = ("_stands",)

    _lock: ClassVar = Lock()
    _latest: ClassVar[Environments | None] = None

    def __enter__(self) -> None:
        with own_environments._lock:
            stands: Any = os.environ
            if not isinstance(stands, Environments):
                # Every spawn comes here, so the last one is used again.
                before, stands = stands, own_environments._latest
                if stands is None or stands.of_main is not before:
                    stands = own_environments._latest = Environments(before)
                os.environ = stands  # noqa: B003 - nothing is cleared
            stands.blocks += 1
            self._stands = stands

    def __exit__(self, *exception: object) -> None:
        stands, main = self._stands, self._stands.of_main
        with own_environments._lock:
            stands.blocks -= 1
            # Otherwise another block goes on, or the program has replaced it.
            if not stands.blocks and os.environ is stands:
                os.environ = main  # noqa: B003
