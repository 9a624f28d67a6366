"""Operators that ranks define by `torch.library`, of which PyTorch keeps one table for a process.

Each rank runs the program's module, and so defines its operators again. What a further rank defines
alike is there already, and is taken away when no rank has it any more. What an operator does is
each rank's own: a rank's call comes to the function that the rank has given.
"""

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from kernbench.isolation.here import HERE
from kernbench.isolation.replaced import Patch
from kernbench.process.process import Process


class _Real:
    """What PyTorch has registered for a rank, until no rank uses it."""

    def __init__(self, library: Any) -> None:
        self.library: Final = library
        self.users: Final[set[Library]] = set()
        self.gone: Final[list[Callable[[], object]]] = []


class _Definition:
    """An operator: its schema and so on, and the libraries of ranks that have defined it."""

    def __init__(self, real: _Real, given: tuple[Any, ...]) -> None:
        self.real: Final = real
        self.given: Final = given
        self.by: Final[list[Library]] = []


class _Kernel:
    """What an operator does for one key of the dispatcher, by the rank that calls it."""

    def __init__(self, real: _Real, library: "Library", function: Callable[..., Any]) -> None:
        self.real: Final = real
        self.functions: Final = [(library, function)]

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Calls the function that the rank has given last, or else what any has."""
        process = _process()
        own = (function for library, function in self.functions if library.process is process)
        return next(own, self.functions[0][1])(*args, **named)


class Library:
    """Stands for PyTorch's own handle of a library, in a rank.

    Args:
        torch: PyTorch.
        make: Makes PyTorch's own.
        kind: `DEF`, `FRAGMENT` or `IMPL`.
        namespace: Of its operators.
        process: The process of the rank.
        rest: Further arguments of `make`.
    """

    def __init__(
        self,
        torch: Any,
        make: Callable[..., Any],
        kind: str,
        namespace: str,
        process: Process,
        *rest: Any,
    ) -> None:
        self._ops: Final = torch.ops
        self._of: Final = weakref.ref(process)
        self._namespace: Final = namespace
        self._uses: Final[list[_Real]] = []
        real = _WHOLE.get(namespace) if kind == "DEF" else None
        if real is not None and _of_former_run(real.users, process):
            _without_users(real)
            real = None
        if real is None or any(each.process is process for each in real.users):
            real = _Real(make(kind, namespace, *rest))
            if kind == "DEF":
                _WHOLE[namespace] = real
                real.gone.append(functools.partial(_WHOLE.pop, namespace))
        self._real: Final = self._use(real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real.library, name)

    @property
    def process(self) -> Process | None:
        """The process of the rank, which may have ended."""
        return self._of()

    def _use(self, real: _Real) -> _Real:
        if self not in real.users:
            real.users.add(self)
            self._uses.append(real)
        return real

    def define(self, schema: str, *rest: Any) -> Any:
        """Defines an operator, unless another rank has defined it alike."""
        name, given = self._full(schema.partition("(")[0]), (schema, *rest)
        known = _DEFINED.get(name)
        if known is not None and _of_former_run(known.by, self.process):
            _without_users(known.real)
            known = None
        others = known is not None and all(each.process is not self.process for each in known.by)
        if known is None or not others or known.given != given:
            self._real.library.define(schema, *rest)  # which refuses what is there
            known = _DEFINED[name] = _Definition(self._real, given)
            self._real.gone.append(functools.partial(self._forget, name))
        self._use(known.real)
        known.by.append(self)
        return schema.partition("(")[0]

    def impl(self, name: str, key: str, function: Any, *rest: Any) -> None:
        """Says what an operator does for a key of the dispatcher, when this rank calls it."""
        if (
            getattr(function, "__name__", "") == "fallthrough_kernel"
        ):  # which PyTorch knows by itself
            self._real.library.impl(name, key, function, *rest)
            return
        place = self._full(name), key, *rest
        known = _KERNELS.get(place)
        if known is None:
            known = _Kernel(self._real, self, function)
            self._real.library.impl(name, key, known, *rest)
            _KERNELS[place] = known
            self._real.gone.append(functools.partial(_KERNELS.pop, place, None))
            return
        self._use(known.real)
        known.functions.insert(0, (self, function))

    def _forget(self, name: str) -> None:
        """Forgets an operator that is gone, also where `torch.ops` keeps it."""
        _DEFINED.pop(name, None)
        namespace = vars(self._ops).get(self._namespace)
        packet = name.rpartition("::")[2].partition(".")[0]
        if namespace is not None and vars(namespace).pop(packet, None) is not None:
            namespace._dir[:] = [one for one in namespace._dir if one != packet]

    def _full(self, name: str) -> str:
        return f"{self._namespace}::{name.rpartition('::')[2]}"

    def reset(self) -> None:
        """Takes away what this rank has defined, as far as no other rank uses it."""
        for known in tuple(_DEFINED.values()):
            if self in known.by:
                known.by.remove(self)
        for kernel in tuple(_KERNELS.values()):
            others = [one for one in kernel.functions if one[0] is not self]
            kernel.functions[:] = others or kernel.functions
        for real in self._uses:
            real.users.discard(self)
            if not real.users:
                real.library.reset()
                for forget in real.gone:
                    forget()
        self._uses.clear()


_WHOLE: Final[dict[str, _Real]] = {}
"""By namespace, what PyTorch calls its only `TORCH_LIBRARY`."""

_DEFINED: Final[dict[str, _Definition]] = {}
_KERNELS: Final[dict[Any, _Kernel]] = {}


def _process() -> Process | None:
    return None if HERE.rank is None else HERE.rank.process


def _of_former_run(libraries: Iterable[Library], process: Process | None) -> bool:
    engines = [each.process and each.process.engine for each in libraries]
    return process is None or process.engine not in engines


def _without_users(real: _Real) -> None:
    for library in tuple(real.users):
        library.reset()


def patches(torch: Any) -> Iterator[Patch]:
    """Yields what stands for PyTorch's own handle of a library.

    Args:
        torch: PyTorch.
    """
    make = torch._C._dispatch_library

    def library(kind: str, namespace: str, *rest: Any) -> Any:
        process = _process()
        if process is None:
            return make(kind, namespace, *rest)
        return Library(torch, make, kind, namespace, process, *rest)

    yield Patch(torch._C, "_dispatch_library", library)
