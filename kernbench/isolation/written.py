"""Which attributes of shared modules and classes have been written since the last look.

CPython counts versions of the dicts that modules have, and gives classes a version that is gone
once an attribute is written. Both are read where they lie in memory, thousands at once, in a few
microseconds. Only an owner whose version is another one is compared, name by name.
"""

import ctypes
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

MISSING: Final = object()
"""Stands for the value of a name that is not there."""

_HEAP_TYPE: Final = 1 << 9
_OF_CLASS: Final = 48 * ctypes.sizeof(ctypes.c_void_p)
_OF_DICT: Final = 3 * ctypes.sizeof(ctypes.c_void_p)
"""Where in a class and in a dict CPython has the version."""


class Written:
    """Sees attributes of modules and classes that are written.

    Runs may use it one after the other: each calls `begin`, then the others, and in the end `keep`.
    """

    def __init__(self) -> None:
        self._owners: Final[list[Any]] = []
        self._known: Final[list[dict[str, Any]]] = []
        self._places: Final[list[int]] = []
        self._seen: Final[set[int]] = set()
        self._modules: Final[set[int]] = set()
        self._memory: Any = None
        self._index: Any = ()
        self._versions: Any = np.zeros(0, np.uint32)
        self._begun: Any = self._versions

    def has(self, module: object) -> bool:
        """Returns whether a module is watched."""
        return id(module) in self._modules

    def stands(self) -> bool:
        """Returns whether all modules that are watched are still imported."""
        return self._modules <= {id(module) for module in sys.modules.values()}

    def begin(self) -> None:
        """Takes what is known for what a run begins with."""
        self.look()
        self._begun = self._versions

    def keep(self) -> None:
        """Takes what stands at the end of a run as known, for the next one.

        What a rank wrote is known until then: `changed` has seen it, and `look` has passed over
        what was put back.
        """
        if _COUNTS:
            for number in _others(self._begun, self._now()):
                self._known[number] = dict(vars(self._owners[number]))
        self.look()

    def add(self, module: ModuleType) -> None:
        """Watches a module and the classes that it defines, as they are now."""
        self._modules.add(id(module))
        for owner in (module, *_classes_of(module)):
            if id(owner) in self._seen:
                continue
            self._seen.add(id(owner))
            self._owners.append(owner)
            self._known.append(dict(vars(owner)))
            self._places.append(_place(owner))

    def changed(self) -> Iterator[tuple[Any, str, Any]]:
        """Yields owner, name, and what stood there at the last look, of all that was written.

        What stands there now is known from now on.
        """
        for number in self._suspects():
            owner, known = self._owners[number], self._known[number]
            space = vars(owner)
            written = [key for key, value in space.items() if known.get(key, MISSING) is not value]
            if written or len(space) != len(known):
                written += [key for key in known if key not in space]
            if written:
                self._known[number] = dict(space)
                for name in written:
                    yield owner, name, known.get(name, MISSING)

    def _suspects(self) -> Iterable[int]:
        """Returns the owners that may have been written, and takes their versions as seen."""
        if not _COUNTS:
            return range(len(self._owners))
        before, now = self._versions, self._now()
        self._versions = now
        if not now.all():
            self._give_versions(now)
        return _others(before, now)

    def absorb(self) -> None:
        """Takes what stands now as known."""
        for _ in self.changed():
            pass

    def look(self) -> None:
        """Takes the current versions as seen: earlier writes are ignored."""
        if not _COUNTS:
            self._known[:] = [dict(vars(owner)) for owner in self._owners]
            return
        now = self._versions = self._now()
        if not now.all():
            self._give_versions(now)

    def _give_versions(self, now: Any) -> None:
        """Gives a version to each class that has none, so that the next writing is seen."""
        for number in np.flatnonzero(now == 0).tolist():
            _give_version(self._owners[number])
        self._versions = self._now()

    def _now(self) -> Any:
        if len(self._index) != len(self._places):
            places = np.array(self._places, np.int64)
            base = int(places.min())
            words = (int(places.max()) - base) // 4 + 1
            words_from_base: Any = (ctypes.c_uint32 * words).from_address(base)
            self._memory = np.frombuffer(words_from_base, np.uint32)
            self._index = (places - base) // 4
        return self._memory.take(self._index)


def _others(before: Any, now: Any) -> list[int]:
    """Returns the places of versions that are no more what they were, or that nobody knew."""
    others = now == 0
    others[: len(before)] |= now[: len(before)] != before
    others[len(before) :] = True
    found: list[int] = np.flatnonzero(others).tolist()
    return found


def _place(owner: Any) -> int:
    return id(owner) + _OF_CLASS if isinstance(owner, type) else id(vars(owner)) + _OF_DICT


def _give_version(owner: Any) -> None:
    if isinstance(owner, type):
        type.__getattribute__(owner, "__init__")  # looks it up, which needs a version


_CLASSES: Final[WeakKeyDictionary[ModuleType, list[type]]] = WeakKeyDictionary()


def _classes_of(module: ModuleType) -> list[type]:
    known = _CLASSES.get(module)
    if known is None:
        known = []
        found = list(vars(module).values())
        while found:
            value = found.pop()
            if (
                issubclass(type(value), type)  # `isinstance` may ask an object that answers itself
                and value.__flags__ & _HEAP_TYPE
                and vars(value).get("__module__") == module.__name__
                and value not in known
            ):
                known.append(value)
                found += list(vars(value).values())
        _CLASSES[module] = known
    return known


def _counts() -> bool:
    """Returns whether versions are where they are expected."""
    owners: list[Any] = [ModuleType("probe"), type("Probe", (), {"name": 0})]
    for owner in owners:
        found = []
        for value in (1, 1.5, "another"):
            owner.name = value
            _give_version(owner)
            found.append(ctypes.c_uint32.from_address(_place(owner)).value)
        if len(set(found)) != len(found) or 0 in found:
            return False
    return True


_COUNTS: Final = _counts()
