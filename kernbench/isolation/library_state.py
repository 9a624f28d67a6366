"""State that libraries keep for a whole process, such as their groups: each rank has its own.

What is state is read from a library: variables of a module that its functions assign, attributes
of classes and functions that its code assigns, containers that are empty once it is imported, and
containers that are defaults of parameters.
Beside that it is what a rank writes: an attribute of a class, or of a module (ADR 0040). A rank's
own value stands while the rank runs.
"""

import atexit
import contextlib
import copy
import dis
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Container, Iterable, Iterator
from enum import EnumMeta
from importlib.abc import FileLoader
from importlib.machinery import ModuleSpec
from operator import is_not
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from kernbench.isolation.belonging import SYSTEM, is_installed, is_of_rank, places_of
from kernbench.isolation.defaults import Default, defaults_in
from kernbench.isolation.here import HERE
from kernbench.isolation.replaced import run_within
from kernbench.isolation.written import MISSING, Written

_CONTAINERS: Final = frozenset((dict, list, set, OrderedDict, defaultdict, deque))
_PLAIN: Final = frozenset((type(None), bool, int, float, str))
_STORE_GLOBAL: Final = dis.opmap["STORE_GLOBAL"]
_STORE_ATTR: Final = dis.opmap["STORE_ATTR"]
_CLASS: Final = "cls"
_NEVER: Final = sys.stdlib_module_names | SYSTEM | {"numpy"}
"""Packages whose code is not searched for state."""

_UNWATCHED: Final = frozenset(("kernbench", "sys", "warnings"))
"""Packages in which nobody looks at what is written: `states` and `Warned` have what is a rank's of
`sys` and `warnings`.
"""

_ELSEWHERE: Final = frozenset((("builtins", "print"), ("threading", "excepthook")))
"""Names of modules that `per_rank` and `states` keep for each rank."""

_LISTED: Final = (
    "hydra.core.singleton.Singleton._instances",
    "omegaconf.basecontainer.BaseContainer._resolvers",
)
"""State of libraries that do not import PyTorch, whose code is not searched either."""

_BOOKKEPT: Final = frozenset(
    ("__abstractmethods__", "__annotations__", "__annotations_cache__", "__annotate_func__")
)
"""What Python itself writes."""


class _Slot(NamedTuple):
    """A name that stands for state.

    Attributes:
        owner: The module, class, function, object or default that has it.
        name: The name.
        space: Names of the owner.
        copied: Whether each rank begins with a copy of what stands there.
    """

    owner: Any
    name: str
    space: Any
    copied: bool


_WATCHED: Final[list[Written]] = []
"""What the last run of this process has watched, for the next one; taken out while a run has it."""

# What it holds of libraries would otherwise be freed after they are, as the process ends.
atexit.register(_WATCHED.clear)


class LibraryState:
    """State of libraries, one for each rank; see the module. Finds modules, to look into them.

    Args:
        listed: Names of further state, of the packages whose code is not searched.
    """

    def __init__(self, listed: Iterable[str] = ()) -> None:
        self._slots: list[_Slot] = []
        self._seen: set[tuple[int, str]] = set()
        self._standing: list[Any] = []
        self._origins: list[Any] = []  # what stood when the slot was found
        self._first: list[Any] = []  # with what a rank begins
        self._blank: list[Any] = []  # containers that stand and nothing has filled yet
        self._live: list[int] = []  # slots whose values differ between ranks
        self._own: dict[int, dict[int, Any]] = {-1: {}}
        self._rank = -1
        self._found: list[ModuleType] | None = None
        self._listed = [*_LISTED, *listed]
        self._written = Written()
        self._watched: set[str] = set()
        self._count, self._newest = 0, ""  # of modules
        self._unfinished: list[ModuleType] = []  # modules that were being imported at the last look

    def begin(self) -> None:
        """Takes what libraries have now for what all ranks begin with."""
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] not in _NEVER and _is_library(name, module):
                self._watch(module)
        before = _WATCHED.pop() if _WATCHED else None
        if before is not None and before.stands():
            self._written = before
            before.absorb()
        self._watch_writes(sys.modules)  # what is being imported now waits for the run
        self._written.begin()

    def end(self) -> None:
        """Hands what was watched to the next run of this process."""
        if self._watched:
            self._written.keep()
            _WATCHED[:] = [self._written]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Finds a module that ranks share as Python does, and looks at its state once it has run.

        Args:
            path: Where the package of the module looks; None: `sys.path`.
            target: The module that is loaded anew, if any.
        """
        if HERE.rank is None or name.partition(".")[0] in SYSTEM:
            return None
        finders = sys.meta_path
        for finder in finders[finders.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                if isinstance(spec.loader, FileLoader) and not is_of_rank(name, spec):
                    run_within(spec, self.importing)
                return spec
        return None

    @contextlib.contextmanager
    def importing(self, module: ModuleType) -> Iterator[None]:
        """Lets all ranks have what a module changes while it is imported, as in each process.

        Args:
            module: The module, which ranks share.
        """
        if self._found is not None:  # a module imports others
            self._found.append(module)
            yield
            return
        self._found = [module]
        self._notice()
        before = self._now()
        copies = [copy.copy(value) for value in self._contents(before)]
        try:
            yield
        finally:
            found, self._found = self._found, None
            self._spread(before, copies)
            for each in found:
                if each.__name__.partition(".")[0] not in _NEVER:
                    self._watch(each)
            self._watch_listed()  # before the rank goes on, and fills it
            self._watch_writes({each.__name__ for each in found})
            self._written.absorb()

    def _contents(self, values: list[Any]) -> list[Any]:
        return [value if type(value) in _CONTAINERS else () for value in values]

    def _spread(self, before: list[Any], copies: list[Any]) -> None:
        now = self._now()
        others = [own for rank, own in self._own.items() if rank != self._rank]
        for number, (value, was, held) in enumerate(zip(now, before, copies, strict=True)):
            if value is not was:
                self._standing[number] = self._first[number] = value
                for own in others:
                    if own.get(number) is was:
                        own[number] = value
            elif held != () and len(value) != len(held):
                for target in (self._first[number], *(own.get(number) for own in others)):
                    if target is not None and target is not value:
                        _add_to(target, value, held)

    def _watch(self, module: ModuleType) -> None:
        for owner, name in _state_of(module):
            self._add(owner, name)

    def _watch_writes(self, imported: Container[str] = ()) -> None:
        """Looks at what is written in modules that ranks share and that have come since.

        Not in those whose code still runs, such as one that a finder before this one has found:
        what it writes, all ranks have.

        Args:
            imported: Names of modules whose code has run, although Python does not say so yet.
        """
        self._unfinished = []
        for name in sys.modules.keys() - self._watched:
            module = sys.modules[name]
            if _is_being_imported(module) and name not in imported:
                self._unfinished.append(module)
                continue
            self._watched.add(name)
            if (
                not self._written.has(module)
                and isinstance(module, ModuleType)
                and name.partition(".")[0] not in _UNWATCHED
                and name not in _MAINS
                and not is_of_rank(name, module)
            ):
                self._written.add(module)

    def _notice(self) -> None:
        """Makes state of what the rank that stands has written."""
        for owner, name, was in self._written.changed():
            if (id(owner), name) in self._seen or not self._is_own(owner, name, was):
                continue
            self._seen.add((id(owner), name))
            self._slots.append(_Slot(owner, name, vars(owner), copied=False))
            self._standing.append(was)
            self._origins.append(was)
            self._first.append(was)
            self._blank.append(())

    def _is_own(self, owner: Any, name: str, was: Any) -> bool:
        """Returns whether what was written is the rank's, and not of the process of all ranks."""
        value = vars(owner).get(name, MISSING)
        if isinstance(was if value is MISSING else value, ModuleType) and (
            was is MISSING or value is MISSING or value.__name__ == f"{owner.__name__}.{name}"
        ):
            return False  # the import of a module binds its name
        if isinstance(owner, type):
            return name not in _BOOKKEPT
        if was is MISSING:  # perhaps a library only makes it when it is asked for the first time
            return _home_of(value) not in self._watched
        if (owner.__name__, name) in _ELSEWHERE:
            return False
        root = owner.__name__.partition(".")[0]
        return callable(was) or isinstance(was, ModuleType) or root not in _NEVER

    def _add(self, owner: Any, name: str) -> None:
        space = owner if isinstance(owner, Default) else vars(owner)
        value = space.get(name, MISSING)
        if isinstance(value, ModuleType) or (id(owner), name) in self._seen:
            return
        self._seen.add((id(owner), name))
        container = type(value) in _CONTAINERS
        if container:
            self._first.append(copy.copy(value))
        else:
            self._first.append(value)
        self._slots.append(_Slot(owner, name, space, container))
        self._standing.append(value)
        self._origins.append(value)
        self._blank.append(value if container else ())
        if container and value:
            self._live.append(len(self._slots) - 1)
            self._blank[-1] = ()

    def _watch_listed(self) -> None:
        """Looks at the state that is listed, where its module is imported by now."""
        left = []
        for path in self._listed:
            owner_path, _, name = path.rpartition(".")
            owner = _owner(owner_path)
            if owner is None:
                left.append(path)
            else:
                self._add(owner, name)
        self._listed = left

    def forget_ranks(self) -> None:
        """Forgets the state of ranks, which have ended; that of code outside of ranks stands."""
        assert self._rank == -1
        self._own = {-1: self._own[-1]}

    def leave(self) -> None:
        """Keeps the state of the rank that stands, before anything else of its process is put away.

        The program's own modules are not in `sys.modules`.
        """
        if self._listed:
            self._watch_listed()
        if (
            len(sys.modules) != self._count
            or next(reversed(sys.modules)) != self._newest
            or not all(map(_is_being_imported, self._unfinished))
        ):
            self._watch_writes()
            self._count, self._newest = len(sys.modules), next(reversed(sys.modules))
        self._notice()
        now = self._now()
        if any(map(is_not, now, self._standing)) or any(self._blank):
            known = set(self._live)
            for number, (value, stood) in enumerate(zip(now, self._standing, strict=True)):
                if number not in known and (value is not stood or self._blank[number]):
                    self._live.append(number)
                    self._blank[number] = ()
        own = self._own[self._rank]
        for number in self._live:
            own[number] = now[number]

    def let_stand(self, rank: int) -> None:
        """Lets a rank's state stand, after `leave`.

        Args:
            rank: Number of the rank; -1: of code outside of ranks.
        """
        self._rank = rank
        own = self._own.get(rank)
        if own is None:
            own = self._own[rank] = {}
        for number in self._live:
            if number not in own:
                own[number] = self._fresh(number, own)
            self._put(number, own[number])
        self._written.look()

    def _now(self) -> list[Any]:
        return [slot.space.get(slot.name, MISSING) for slot in self._slots]

    def _fresh(self, number: int, own: dict[int, Any]) -> Any:
        """Returns what a rank begins with: one copy for all names of one container."""
        if not self._slots[number].copied:
            return self._first[number]
        origin = self._origins[number]
        for other, value in own.items():
            if self._origins[other] is origin:
                return value
        return copy.copy(self._first[number])

    def _put(self, number: int, value: Any) -> None:
        self._standing[number] = value
        owner, name, space, _ = self._slots[number]
        if space.get(name, MISSING) is value:
            return
        if value is MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, value)


_KNOWN: Final[WeakKeyDictionary[ModuleType, list[tuple[Any, str]]]] = WeakKeyDictionary()


def _state_of(module: ModuleType) -> list[tuple[Any, str]]:
    """Returns names that stand for state of a module, each with its owner."""
    known = _KNOWN.get(module)
    if known is None:
        known = _KNOWN[module] = list(_found_in(module))
    return known


def _found_in(module: ModuleType) -> Iterator[tuple[Any, str]]:
    code = _code_of(module)
    if code is None or not any(name.partition(".")[0] == "torch" for name in code.co_names):
        return
    space = vars(module)
    classes = [value for value in list(space.values()) if _is_class_of(value, module)]
    names, attributes = _assigned(code)
    for name in sorted(names):
        yield module, name
    for owner_name, name in sorted(attributes):
        if owner_name == _CLASS:
            yield from ((kind, name) for kind in classes if _is_value(vars(kind).get(name, kind)))
        else:
            owner = space.get(owner_name)
            if _may_own(owner):
                yield owner, name
    for owner in (module, *classes):
        for name, value in list(vars(owner).items()):
            if type(value) in _CONTAINERS and not value and not name.startswith("__"):
                yield owner, name
        for default in defaults_in(list(vars(owner).values()), space, _CONTAINERS):
            yield default, "value"


def _code_of(module: ModuleType) -> CodeType | None:
    loader = getattr(module, "__loader__", None)
    try:
        code = loader.get_code(module.__name__)  # type: ignore[union-attr]
    except (AttributeError, ImportError, OSError, SyntaxError):
        return None
    return code if isinstance(code, CodeType) else None


_MAINS: Final = frozenset(("__main__", "__mp_main__"))


def _is_library(name: str, module: Any) -> bool:
    """Returns whether a module is of an installed distribution."""
    return isinstance(module, ModuleType) and any(
        is_installed(place, name.count(".") + 2) for place in places_of(module)
    )


def _is_being_imported(module: Any) -> bool:
    """Returns whether the code of a module still runs."""
    spec = vars(module).get("__spec__") if isinstance(module, ModuleType) else None
    return bool(getattr(spec, "_initializing", False))


def _home_of(value: Any) -> str:
    """Returns the name of the module that has made a value; an empty one if none is known."""
    if isinstance(value, FunctionType):
        return str(value.__globals__.get("__name__"))
    home = value.__module__ if isinstance(value, type) else type(value).__module__
    return "" if home in ("builtins", "unittest.mock") else str(home)


def _is_class_of(value: Any, module: ModuleType) -> bool:
    return (
        isinstance(value, type)
        and value.__module__ == module.__name__
        and not isinstance(value, EnumMeta)
        and not issubclass(value, tuple)
    )


def _is_value(value: Any) -> bool:
    return type(value) in _PLAIN or type(value) in _CONTAINERS


def _may_own(owner: Any) -> bool:
    if owner is None or isinstance(owner, ModuleType) or not hasattr(owner, "__dict__"):
        return False
    home = getattr(owner, "__module__", None)
    return isinstance(home, str) and home.partition(".")[0] not in _NEVER


def _assigned(code: CodeType) -> tuple[set[str], set[tuple[str, str]]]:
    """Returns variables that functions assign, and attributes as (name of the owner, name)."""
    names: set[str] = set()
    attributes: set[tuple[str, str]] = set()
    codes = [code]
    while codes:
        each = codes.pop()
        codes += [value for value in each.co_consts if isinstance(value, CodeType)]
        operations = each.co_code[::2]
        if _STORE_GLOBAL not in operations and _STORE_ATTR not in operations:
            continue
        before = None
        for step in dis.get_instructions(each):
            if step.opcode == _STORE_GLOBAL:
                names.add(step.argval)
            elif step.opcode == _STORE_ATTR and before is not None:
                kind, of = before.opname, before.argval
                if kind in ("LOAD_GLOBAL", "LOAD_NAME"):
                    attributes.add((of, step.argval))
                elif of in (_CLASS, "__class__") or kind == "CALL":
                    attributes.add((_CLASS, step.argval))
            before = step
    return names, attributes


def _owner(path: str) -> Any:
    """Returns what a dotted name stands for, None if its module is not imported."""
    parts, value = path.split("."), None
    for number in range(len(parts), 0, -1):
        value = sys.modules.get(".".join(parts[:number]))
        if value is not None:
            break
    for part in parts[number:]:
        value = getattr(value, part, None)
    return value


def _add_to(target: Any, value: Any, before: Any) -> None:
    """Gives a container what another one has more than it had before."""
    if isinstance(value, dict):
        for key, held in value.items():
            if key not in before:
                target.setdefault(key, held)
    elif isinstance(value, set):
        target |= value - before
    else:
        target.extend(list(value)[len(before) :])
