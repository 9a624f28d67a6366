"""Which warnings were shown: each rank shows one of a library once, as a process does.

Python keeps in each module what was shown of it (`__warningregistry__`), with the number of the
filters at that time; when filters change, the number does, and all counts as not shown. Ranks share
the modules of libraries and the number.
"""

import contextlib
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

_Registry = dict[Any, Any]

_NAME: Final = "__warningregistry__"
_IGNORE: Final = [("ignore", None, Warning, None, 0)]


def _version() -> Any:
    """Returns the number of the filters, which only registries tell."""
    registry: _Registry = {}
    filters = warnings.filters
    warnings.filters = _IGNORE
    try:
        warnings.warn_explicit("", UserWarning, "", 0, registry=registry)
    finally:
        warnings.filters = filters
    return registry.get("version")


class Warned:
    """What each rank has shown; that of one rank stands at a time.

    Args:
        own: Gives the names of modules that each rank has for itself.
    """

    def __init__(self, own: Callable[[], Collection[str]]) -> None:
        self._own: Final = own
        self._shared: Final[dict[int, _Registry]] = {}
        self._kept: Final[dict[int, dict[int, _Registry]]] = {}
        self._private: Final[dict[int, dict[int, _Registry]]] = {}
        self._versions: Final[dict[int, Any]] = {}
        self._version: Any = None
        self._shown = True
        once: _Registry = warnings.onceregistry  # type: ignore[attr-defined]  # of no module
        self._shared[id(once)] = once

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A block in which it is noticed that something is shown."""
        real = warnings._showwarnmsg  # type: ignore[attr-defined]

        def show(message: Any) -> None:
            self._shown = True
            real(message)

        warnings._showwarnmsg = show  # type: ignore[attr-defined]
        try:
            yield
        finally:
            warnings._showwarnmsg = real  # type: ignore[attr-defined]

    def leave(self, rank: int) -> None:
        """Keeps what a rank has shown, which stands now.

        Args:
            rank: The rank; -1: code outside of ranks.
        """
        if self._shown:
            self._shown = False
            self._find(rank)
        self._version = self._versions[rank] = _version()
        self._kept[rank] = {place: dict(each) for place, each in self._shared.items()}

    def enter(self, rank: int) -> None:
        """Lets stand what a rank has shown, after `leave` of another one.

        Args:
            rank: The rank; one that is new has shown nothing.
        """
        kept = self._kept.get(rank, {})
        for place, registry in self._shared.items():
            wanted = kept.get(place, {})
            if registry != wanted:
                registry.clear()
                registry.update(wanted)
        # What held for the rank's filters holds still: other ranks have changed theirs alone.
        before, now = self._versions.get(rank), self._version
        if before != now:
            for registry in (*self._shared.values(), *self._private.get(rank, {}).values()):
                if registry.get("version", now) == before:
                    registry["version"] = now

    def _find(self, rank: int) -> None:
        own, private = self._own(), self._private.setdefault(rank, {})
        for name, module in list(sys.modules.items()):
            if name in own:  # `__main__` may stand for that of each rank
                registry = getattr(module, _NAME, None)
            else:
                try:  # a module that is loaded at its first use is not to be loaded
                    registry = object.__getattribute__(module, "__dict__").get(_NAME)
                except AttributeError:
                    continue
            if isinstance(registry, dict):
                (private if name in own else self._shared)[id(registry)] = registry
