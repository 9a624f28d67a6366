"""What programs set for a whole process, or for a thread: tables of it, and what Python has.

Each rank has its own, which begins as it was when the run began, as in a new process; at the end
all is as before.
"""

import contextlib
import copy
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple


def _begin(value: Any) -> Any:
    """Returns what a rank begins with, which it may change in place."""
    return copy.copy(value) if isinstance(value, list | dict) else value


class State(NamedTuple):
    """Something that a program may set.

    Attributes:
        name: What it is.
        read: Returns it.
        write: Sets it.
        alone: Whether equal values are still another rank's.
        begin: Takes what there was when the run began; returns what one more rank begins with.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    alone: bool = False
    begin: Callable[[Any], Any] = _begin


class States:
    """A table of what programs set.

    Args:
        states: The rows; they are set in this order, those that are `alone` last.
    """

    def __init__(self, *states: State) -> None:
        self._alone: Final = tuple(state for state in states if state.alone)
        self._all: Final = (*(state for state in states if not state.alone), *self._alone)

    def __iter__(self) -> Iterator[State]:
        return iter(self._all)

    def values(self) -> list[Any]:
        """Returns what there is now."""
        return [state.read() for state in self._all]

    def put(self, wanted: list[Any]) -> None:
        """Sets the new values, in the order of `values`."""
        for state, value in zip(self._all, wanted, strict=True):
            now = state.read()
            if now is not value and (state.alone or now != value):
                state.write(value)

    def swap(self, now: list[Any], wanted: list[Any]) -> None:
        """Does what `put` does, without reading again if nothing else is wanted.

        Args:
            now: What there is, as `values` has just returned it.
            wanted: What is to be.
        """
        if all(map(_is_same, self._all, now, wanted)):
            if self._alone:
                for state, value in zip(self._alone, wanted[-len(self._alone) :], strict=True):
                    state.write(value)
        else:
            self.put(wanted)

    def begun(self, values: list[Any]) -> list[Any]:
        """Returns what one more rank begins with.

        Args:
            values: What there was when the run began.
        """
        return [state.begin(value) for state, value in zip(self._all, values, strict=True)]

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Puts back at the end of the block what was there at its beginning."""
        before = self.values()
        try:
            yield
        finally:
            self.put(before)


def _is_same(state: State, one: Any, other: Any) -> bool:
    return one is other or state.alone or bool(one == other)


def _set_filters(filters: list[Any]) -> None:
    # Without `_filters_mutated`, which lets each warning be shown again: see `warned`.
    warnings.filters = filters


def _set_recursion(limit: int) -> None:
    with contextlib.suppress(RecursionError):  # the thread that swaps is deeper than that already
        sys.setrecursionlimit(limit)


def _set_disabled(level: int) -> None:
    logging.root.manager.disable = level


PYTHON: Final = (
    State("recursion limit", sys.getrecursionlimit, _set_recursion),
    State("logging.disable", lambda: logging.root.manager.disable, _set_disabled),
    *(
        State(
            f"{module.__name__}.{name}",
            partial(getattr, module, name),
            partial(setattr, module, name),
        )
        # `init_process_group` replaces the first by one that names the rank.
        for module, name in (
            (sys, "excepthook"),
            (sys, "unraisablehook"),
            (threading, "excepthook"),
            (warnings, "showwarning"),
            (warnings, "_showwarnmsg_impl"),
        )
    ),
    State("filters of warnings", lambda: warnings.filters, _set_filters, alone=True),
)
"""What Python has for a process, and a rank believes its own."""
