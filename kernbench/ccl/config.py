"""`ccl.yaml`: which algorithm for which operation, and how its queues are built."""

import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Annotated, Any, Final, Literal

from kernbench.caches import cached
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.plan import Algorithm
from kernbench.ccl.profiles import (
    Backpressure,
    BufferKind,
    Choosing,
    CollectiveChannels,
    Elements,
    P2pChannels,
    QueueProfile,
    Scope,
    Slots,
    SlotSize,
    Small,
    Tuning,
    message_of,
)
from kernbench.config.load import Loaded, load_with_marks
from kernbench.config.near import did_you_mean
from kernbench.config.problems import ConfigError, Problem
from kernbench.config.schema import Range
from kernbench.config.shipped import shipped
from kernbench.errors import UsageError
from kernbench.hw.pe import PeCosts
from kernbench.hw.queue import PLAIN, Line, QueueSpec
from kernbench.memory import Space
from kernbench.topology.spec import SystemSpec
from kernbench.units import Bytes, format_bytes

FILE_NAME: Final = "ccl.yaml"

_SHIPPED: Final = "kernbench.ccl.algorithms."

AUTO: Final = "auto"
"""Stands for the algorithm that is expected to be the fastest."""

_SLOT: Final = Bytes(4096)
_VC_CHUNK: Final = Bytes(256)
_CREDIT: Final = Bytes(16)

Channels = Annotated[int, Range(1, 64)]
LogicalTopology = Literal["ring_1d", "tree", "all_pairs", "hypercube", "line", "grid", "nodes"]


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """One entry of `algorithms`.

    A field of the queues comes from the entry itself, else from the profile that the entry names,
    else from `defaults`. An entry without any field of queues gets the machine's profile.

    Attributes:
        module: Importable module with a function per operation, such as `all_reduce`.
        file: A file of MSCCL XML, or a plan of MSCCL++, in place of a module; a relative path
            begins at the `ccl.yaml`.
        topology: How the algorithm connects its ranks.
        description: One line for `kernbench list`.
        channels: How many shares of every block run at the same time, each on a PE of its own.
        rails: The most NICs of a node that the algorithm uses between nodes, each with `channels`
            of its own that go through the ranks on another walk (`rails.walks_of`); 1 for ranks as
            the group numbers them.
        links: The most links of a rank, each to another neighbour, that the algorithm sends over at
            once, each with `channels` of its own (`Topology.links_out`).
        queue: Name of a profile in `queues`.
        buffer_kind: See `QueueProfile`.
        backpressure: See `QueueProfile`.
        n_slots: See `QueueProfile`.
        slot_size: See `QueueProfile`.
        vc_chunk_size: See `QueueProfile`.
        ipcq_credit_size_bytes: See `QueueProfile`.
        n_elem: Chunks begin at multiples of this many elements.
        auto: Whether `auto` may choose the algorithm; otherwise a user must name it.
        tuning: The library's own estimate: inside a node, `auto` chooses by it among algorithms
            that all have one.
        inside: Name of the algorithm that takes the place of this one inside a node.
    """

    module: str = ""
    file: str | None = None
    topology: LogicalTopology = "ring_1d"
    description: str = ""
    channels: Channels = 1
    rails: Channels = 1
    links: Channels = 1
    queue: str | None = None
    buffer_kind: BufferKind | None = None
    backpressure: Backpressure | None = None
    n_slots: Slots | None = None
    slot_size: SlotSize | None = None
    vc_chunk_size: Small | None = None
    ipcq_credit_size_bytes: Small | None = None
    n_elem: Elements | None = None
    auto: bool = True
    tuning: Tuning | None = None
    inside: str | None = None


_QUEUE_FIELDS: Final = {entry.name for entry in fields(QueueProfile)} & {
    entry.name for entry in fields(AlgorithmSpec)
}
"""Fields of queues that an entry of `algorithms` may give itself."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The algorithms that are used when nobody names one, and the queues of all of them.

    Attributes:
        algorithm: Algorithm of every operation that its module implements. All other operations,
            and every operation if this is `auto`, get the algorithm that is expected to be the
            fastest.
        operations: An algorithm, or `auto`, by name of an operation.
        buffer_kind: See `QueueProfile`.
        backpressure: See `QueueProfile`.
        n_slots: See `QueueProfile`.
        slot_size: See `QueueProfile`.
        vc_chunk_size: See `QueueProfile`.
        ipcq_credit_size_bytes: See `QueueProfile`.
        n_elem: See `AlgorithmSpec`.
    """

    algorithm: str
    operations: dict[str, str] = field(default_factory=dict)
    buffer_kind: BufferKind = "tcm"
    backpressure: Backpressure = "sleep"
    n_slots: Slots = 4
    slot_size: SlotSize = _SLOT
    vc_chunk_size: Small = _VC_CHUNK
    ipcq_credit_size_bytes: Small = _CREDIT
    n_elem: Elements = 1


@dataclass(frozen=True, slots=True)
class CclFile:
    """A `ccl.yaml`.

    Attributes:
        defaults: Algorithms and queues that hold where an entry says nothing.
        choice: How `auto` finds the fastest algorithm.
        queues: Profiles of queues, by name.
        algorithms: Algorithms, by name.
    """

    defaults: Defaults
    choice: Choosing = field(default_factory=Choosing)
    queues: dict[str, QueueProfile] = field(default_factory=dict)
    algorithms: dict[str, AlgorithmSpec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chosen:
    """An algorithm with everything that it needs to run.

    Attributes:
        name: Key of the algorithm in `ccl.yaml`.
        path: The `ccl.yaml`.
        module: Module with a function per operation.
        queue: How queues between ranks are built.
        align: Number of elements; chunks begin at multiples of it.
        channels: How many shares of every block run at the same time, each on a PE of its own.
        topology: How the algorithm connects its ranks.
        auto: Whether `auto` found the algorithm to be the fastest.
        p2p: How much of a link a message between two ranks gets; None for all of it.
        by_size: How much of a link a broadcast or a reduce gets; None for all of it.
        tuning: The library's own estimate; None if there is none.
        inside: Name of the algorithm that takes its place inside a node; None for none.
        rails: The most NICs of a node that are used between nodes, each with `channels` of its own.
        links: The most links of a rank that are used at once, each with `channels` of its own.
        only_first: Whether only the first of these NICs is used, which is enough for small sizes.
        scope: What `auto` takes it for; None for all. A file of a collective says it.
        slots_at: Place in the file that gives `n_slots`; empty if the file does not.
    """

    name: str
    path: Path
    module: ModuleType
    queue: QueueSpec
    align: int
    channels: int = 1
    topology: LogicalTopology = "ring_1d"
    auto: bool = False
    p2p: P2pChannels | None = None
    by_size: CollectiveChannels | None = None
    tuning: Tuning | None = None
    inside: str | None = None
    rails: int = 1
    links: int = 1
    only_first: bool = False
    scope: Scope | None = None
    slots_at: str = field(default="", compare=False)

    @property
    def sized(self) -> bool:
        """Whether its rate depends on the size, or its place is taken inside a node."""
        return bool(self.p2p or self.by_size or self.inside)

    def for_size(
        self, operation: str, nbytes: int, ranks: int, *, one_way: bool = False
    ) -> "Chosen":
        """Returns the algorithm with the rate that a rank gets.

        Args:
            operation: A key of `OPERATIONS`.
            nbytes: Size of all blocks of the buffer together.
            ranks: Ranks that take part; of a message, those of its group.
            one_way: Whether a message has channels that only send, or only receive.
        """
        if self.p2p is not None:
            each = message_of(operation, nbytes, ranks)
            messages = ranks - 1 if operation in {"all_to_all", "scatter"} else 1
            one_way = one_way or operation in {"gather", "scatter"}
            rate = self.p2p.rate_of(each, ranks, messages=max(1, messages), one_way=one_way)
        elif self.by_size is not None and operation in {"broadcast", "reduce"}:
            rate = self.by_size.rate_of(nbytes, ranks)
        else:
            return self
        return replace(self, queue=replace(self.queue, rate=rate))

    def implements(self, operation: str) -> bool:
        """Returns whether the module has a function for an operation."""
        return _entry(self.module, operation) is not None

    def algorithm(self, operation: str) -> Algorithm:
        """Returns the program of a collective.

        Raises:
            UsageError: If the module has no function for the operation.
        """
        entry: Algorithm | None = _entry(self.module, operation)
        if entry is None:
            hint = f"write a function {operation}(comm) in that module"
            if _is_shipped(self.module):
                others = ", ".join(_shipped_with(operation, self.path)) or "none"
                hint = f"algorithms of that file with one: {others}"
            raise UsageError(
                f"algorithm {self.name} has no {operation}",
                [f"module {self.module.__name__} ({self.module.__file__}), named in {self.path}"],
                hint=hint,
                code="F14",
            )
        return entry


def _is_shipped(module: ModuleType) -> bool:
    return module.__name__.startswith(_SHIPPED)


def _shipped_with(operation: str, path: Path) -> Iterator[str]:
    """Yields the algorithms of a `ccl.yaml` whose shipped modules have an operation."""
    for name, spec in load_ccl(path).value.algorithms.items():
        if spec.module.startswith(_SHIPPED):
            module = importlib.import_module(spec.module)
            if _entry(module, operation) is not None:
                yield name


def shipped_ccl_file() -> Path:
    """Returns the `ccl.yaml` that comes with kernbench."""
    return shipped("configs") / FILE_NAME


def find_ccl_file(path: Path | None = None) -> Path:
    """Returns the given `ccl.yaml`, else the working directory's, else the shipped one."""
    return path or local_ccl_file() or shipped_ccl_file()


def local_ccl_file() -> Path | None:
    """Returns the working directory's `ccl.yaml`; None if it has none, or is the shipped one's."""
    here, shipped = Path.cwd() / FILE_NAME, shipped_ccl_file()
    return here if here.exists() and not here.samefile(shipped) else None


def local_file_notice(
    named: Iterable[str | None] = (None,), way_out: str = "--ccl FILE"
) -> str | None:
    """Returns a line about a `ccl.yaml` that is used since it lies in the working directory.

    Args:
        named: The files that runs name, None for each that names none.
        way_out: How a run names another file.
    """
    used = local_ccl_file() if None in set(named) else None
    return None if used is None else f"algorithms are those of {used}; {way_out} names others"


def load_ccl(path: Path, overrides: tuple[str, ...] = ()) -> Loaded[CclFile]:
    """Returns a checked `ccl.yaml`.

    Args:
        overrides: `dotted.field=value` texts applied to it.

    Raises:
        ConfigError: Every problem of the file and the overrides.
    """
    try:
        content = path.read_bytes()
    except OSError:
        content = b""  # what is wrong with the file is reported when it is read as YAML
    return _loaded(path, content, overrides)


@cached("ccl.files")
def _loaded(path: Path, content: bytes, overrides: tuple[str, ...]) -> Loaded[CclFile]:
    """Returns a checked file; `content` tells whether the file has changed."""
    loaded = load_with_marks(CclFile, path, overrides)
    problems = list(_wrong_names(loaded))
    if problems:
        raise ConfigError(loaded.name, problems)
    return loaded


def _wrong_names(loaded: Loaded[CclFile]) -> Iterator[Problem]:
    """Yields a problem for every unknown name, and for lines with more payload than bytes."""
    file = loaded.value
    known = list(file.algorithms)
    has = f"it has {', '.join(known)}" if known else "it has no algorithms"
    named = {"defaults.algorithm": file.defaults.algorithm}
    for operation, name in file.defaults.operations.items():
        place = f"defaults.operations.{operation}"
        if operation in OPERATIONS:
            named[place] = name
        else:
            text = f"expected one of {', '.join(OPERATIONS)}; got {operation!r}"
            yield loaded.problem("F1", place, text, did_you_mean(operation, OPERATIONS))
    for place, name in named.items():
        if name != AUTO and name not in known:
            text = f"expected one of the algorithms of this file, or {AUTO}; got {name!r}"
            yield loaded.problem("F7", place, text, did_you_mean(name, [*known, AUTO]) or has)
    for name, spec in file.algorithms.items():
        if name == AUTO:
            text = f"expected a name; {AUTO} stands for the fastest of all"
            yield loaded.problem("F7", f"algorithms.{name}", text)
        if spec.queue is not None and spec.queue not in file.queues:
            text = f"expected one of `queues`; got {spec.queue!r}"
            profiles = ", ".join(file.queues)
            hint = did_you_mean(spec.queue, file.queues) or f"the file has {profiles or 'none'}"
            yield loaded.problem("F7", f"algorithms.{name}.queue", text, hint)
        if spec.inside is not None and spec.inside not in known:
            text = f"expected one of the algorithms of this file; got {spec.inside!r}"
            hint = did_you_mean(spec.inside, known) or has
            yield loaded.problem("F7", f"algorithms.{name}.inside", text, hint)
        if (not spec.module) == (spec.file is None):
            text = "expected one of module and file"
            yield loaded.problem("F1" if not spec.module else "F12", f"algorithms.{name}", text)
        if spec.file is not None and (spec.channels, spec.links, spec.rails) != (1, 1, 1):
            text = "expected neither channels, links nor rails: a file has its own"
            yield loaded.problem("F12", f"algorithms.{name}", text)
    for name, queue in file.queues.items():
        if queue.line is not None and queue.line.payload > queue.line.size:
            most, given = format_bytes(queue.line.size), format_bytes(queue.line.payload)
            text = f"expected at most the line's {most}; got {given}"
            yield loaded.problem("F3", f"queues.{name}.line.payload", text)


def default_algorithms(
    given: Path | None, overrides: Sequence[str], loaded: Loaded[CclFile], system: SystemSpec
) -> tuple[str, ...]:
    """Returns the names of the algorithms that a machine uses by default.

    A machine's own algorithms are used if the file is the shipped one and no override names an
    algorithm; otherwise the file's default is used.

    Args:
        given: The `ccl.yaml` that the user named; None if the user named no file.
        overrides: `dotted.field=value` texts applied to the file.
        system: The machine.

    Returns:
        The names; empty if every algorithm of the file may be used.

    Raises:
        UsageError: If the machine names what the shipped file does not have (F7).
    """
    named = any(text.startswith("defaults.algorithm=") for text in overrides)
    own = given is not None or local_ccl_file() is not None
    if not own:
        _check_names(loaded, system)
    if system.algorithms and not (own or named):
        return system.algorithms
    default = loaded.value.defaults.algorithm
    return () if default == AUTO else (default,)


def _check_names(loaded: Loaded[CclFile], system: SystemSpec) -> None:
    """Checks that the shipped file has the algorithms and the queues that a machine names.

    Raises:
        UsageError: If it does not have one of them.
    """
    file = loaded.value
    queues = () if system.queue is None else (system.queue,)
    for key, names, known in (
        ("algorithms", system.algorithms, file.algorithms),
        ("queue", queues, file.queues),
    ):
        for name in names:
            if name not in known:
                raise UsageError(
                    f"system.{key} of {system.name}: expected one of {', '.join(known)}; "
                    f"got {name!r}",
                    hint=did_you_mean(name, known),
                    code="F7",
                )


def check_default(given: Path | None, overrides: Sequence[str], system: SystemSpec) -> str:
    """Checks a file and the algorithm that a machine uses by default, without running any of it.

    The module of an algorithm is imported when a collective first needs it.

    Args:
        given: The `ccl.yaml` that the user named; None if the user named no file.
        overrides: `dotted.field=value` texts applied to the file.
        system: The machine.

    Returns:
        The algorithm; where it depends on sizes, the first candidate that fits the machine, or
        `auto` if the file has no candidate, so that the shipped file's serve.

    Raises:
        ConfigError: If the file cannot be used, or no candidate fits the machine.
        UsageError: If the machine names what the shipped file does not have (F7).
    """
    loaded = load_ccl(find_ccl_file(given), tuple(overrides))
    algorithms = loaded.value.algorithms
    names = default_algorithms(given, overrides, loaded, system)
    misfits = []
    for name in names or [name for name, spec in algorithms.items() if spec.auto]:
        spec = algorithms[name]
        queue = _queue(loaded.value, spec, _profile(loaded.value, spec, system))
        try:
            _check_fits(name, queue, _most_channels(spec, system), loaded, system)
        except ConfigError as misfit:
            misfits.append(misfit)
        else:
            return name
    if misfits:
        raise misfits[0]
    return AUTO


def check_fits(chosen: Chosen, loaded: Loaded[CclFile], system: SystemSpec) -> None:
    """Checks that every SIP of a machine has the memory and the PEs that an algorithm needs.

    Args:
        chosen: The algorithm.
        loaded: The `ccl.yaml`, for places in errors.
        system: The machine.

    Raises:
        ConfigError: If the slots do not fit into memory, or channels outnumber the PEs of a SIP.
    """
    _check_fits(chosen.name, chosen.queue, _most_channels(chosen, system), loaded, system)


def _most_channels(algorithm: AlgorithmSpec | Chosen, system: SystemSpec) -> int:
    """Returns how many channels an algorithm has in the largest groups of a machine."""
    node = system.sips.network.node
    return algorithm.channels * (1 if node is None else min(algorithm.rails, node.size))


def _check_fits(
    name: str, queue: QueueSpec, channels: int, loaded: Loaded[CclFile], system: SystemSpec
) -> None:
    place = f"algorithms.{name}"
    needed = queue.n_slots * queue.slot_size
    capacity = min(PeCosts.of(sip).memory(queue.space).capacity for sip in system.kinds)
    smallest = "the smallest SIP of " if len(system.kinds) > 1 else ""
    if needed > capacity:
        text = (
            f"expected slots that fit into the {format_bytes(capacity)} of "
            f"{queue.space.value} of {smallest}{system.name}; got {queue.n_slots} slots of "
            f"{format_bytes(queue.slot_size)}, {format_bytes(needed)}"
        )
        raise ConfigError(loaded.name, [loaded.problem("F12", f"{place}.slot_size", text)])
    pes = min(math.prod(sip.cubes.shape) * sip.cube.pes for sip in system.kinds)
    if channels > pes:
        text = (
            f"expected at most the {pes} PEs of {smallest or 'a SIP of '}{system.name}; "
            f"got {channels}"
        )
        raise ConfigError(loaded.name, [loaded.problem("F12", f"{place}.channels", text)])


def choose(
    loaded: Loaded[CclFile],
    path: Path,
    name: str | None = None,
    system: SystemSpec | None = None,
) -> Chosen:
    """Returns an algorithm of the file, by default the one that `defaults` names.

    Args:
        name: Name of the algorithm.
        system: The machine, whose queue profile serves entries without any; None for no such
            profile.

    Raises:
        UsageError: If there is no such algorithm.
        ConfigError: If the module of the algorithm cannot be imported.
    """
    file = loaded.value
    name = file.defaults.algorithm if name is None else name
    if name not in file.algorithms:
        known = ", ".join(file.algorithms)
        raise UsageError(f"no algorithm {name!r} in {path}", [f"it has {known}"], code="F7")
    spec = file.algorithms[name]
    dotted = f"algorithms.{name}.module"
    scope = None
    if spec.file is None:
        module = _import(spec.module, path, loaded, dotted)
        _check_entries(module, loaded, dotted)
    else:
        from kernbench.ccl.files.program import module_of, scope_of  # most runs read no such file

        module = module_of(path.absolute().parent / spec.file)
        scope = scope_of(module)
    n_elem = file.defaults.n_elem if spec.n_elem is None else spec.n_elem
    profile = _profile(file, spec, system)
    queue = replace(
        _queue(file, spec, profile), slot_size_at=_given_at(loaded, name, profile, "slot_size")
    )
    return Chosen(
        name,
        path,
        module,
        queue,
        n_elem,
        spec.channels,
        spec.topology,
        p2p=profile.p2p,
        by_size=profile.by_size,
        tuning=spec.tuning,
        inside=spec.inside,
        rails=spec.rails,
        links=spec.links,
        scope=scope,
        slots_at=_given_at(loaded, name, profile, "n_slots"),
    )


def _given_at(loaded: Loaded[CclFile], name: str, profile: QueueProfile, field: str) -> str:
    """Returns the place in the file that gives a field of an algorithm's queues; empty if none."""
    queues = [queue for queue, entry in loaded.value.queues.items() if entry is profile]
    sources = [f"algorithms.{name}", *(f"queues.{queue}" for queue in queues), "defaults"]
    places = (f"{source}.{field}" for source in sources)
    given = next((place for place in places if place in loaded.marks), None)
    return "" if given is None else loaded.problem("", given, "").where


def _profile(file: CclFile, spec: AlgorithmSpec, system: SystemSpec | None) -> QueueProfile:
    silent = spec.queue is None and all(getattr(spec, name) is None for name in _QUEUE_FIELDS)
    name = system.queue if silent and system is not None else spec.queue
    # A user's own file need not have the machine's profile; its defaults serve then.
    return file.queues.get(name or "", QueueProfile())


def _queue(file: CclFile, spec: AlgorithmSpec, profile: QueueProfile) -> QueueSpec:
    sources = [spec, profile, file.defaults]
    line = PLAIN if profile.line is None else Line(profile.line.size, profile.line.payload)

    def value(name: str) -> Any:
        return next(given for source in sources if (given := getattr(source, name)) is not None)

    return QueueSpec(
        Space(value("buffer_kind")),
        value("backpressure"),
        value("n_slots"),
        value("slot_size"),
        value("vc_chunk_size"),
        value("ipcq_credit_size_bytes"),
        profile.notice or 0,
        line,
        profile.launch,
        profile.own_share,
        profile.sent_share,
        pes=profile.pes or 1,
    )


def _entry(module: ModuleType, operation: str) -> Any:
    """Returns a module's function for an operation; builtins such as `reduce` do not count."""
    entry = getattr(module, operation, None)
    return None if inspect.isbuiltin(entry) else entry


@cached("ccl.entries")
def _takes_comm(entry: Callable[..., object]) -> bool:
    """Returns whether a function can be called as `entry(comm)`."""
    try:
        inspect.signature(entry).bind(None)
    except TypeError:
        return False
    return True


def _check_entries(module: ModuleType, loaded: Loaded[CclFile], dotted: str) -> None:
    entries = {name: _entry(module, name) for name in OPERATIONS}
    text, known = "", ", ".join(OPERATIONS)
    if all(entry is None for entry in entries.values()):
        text = f"expected a module with a function such as all_reduce(comm); it has none of {known}"
    for name, entry in entries.items():
        if entry is None:
            continue
        if not callable(entry):
            text = f"expected a function {name}(comm); got {type(entry).__name__}"
            continue
        if not _takes_comm(entry):
            text = f"expected {name}(comm); got {name}{inspect.signature(entry)}"
    if text:
        text += f", in {module.__file__}"
        raise ConfigError(loaded.name, [loaded.problem("F14", dotted, text)])


def programs_of(loaded: Loaded[CclFile], operation: str) -> tuple[object, ...] | None:
    """Returns what the modules of a file's algorithms have for an operation now.

    Args:
        operation: A key of `OPERATIONS`.

    Returns:
        For each algorithm its module and the function, None for what there is not, or is not yet;
        None if a module may be a file of its own, which depends on the working directory, or has
        something else than a function.
    """
    found: list[object] = []
    for spec in loaded.value.algorithms.values():
        if spec.file is not None or not _is_in_package(spec.module):
            return None
        module = sys.modules.get(spec.module)
        entry = None if module is None else _entry(module, operation)
        if not isinstance(entry, FunctionType | None):
            return None
        found += module, entry
    return tuple(found)


def _is_in_package(module: str) -> bool:
    """Returns whether a module belongs to a package that is there, wherever the file lies."""
    top, dot, _ = module.partition(".")
    return bool(dot) and top in sys.modules


def _import(module: str, path: Path, loaded: Loaded[CclFile], dotted: str) -> ModuleType:
    """Returns the module of an algorithm, which is imported if it has not been.

    A user's own module lies beside the `ccl.yaml`, or in the working directory. The folder is on
    `sys.path` only while the module is imported, so that the module finds its neighbours, and no
    other code finds them by accident.
    """
    if module in sys.modules and _is_in_package(module):
        return sys.modules[module]
    folders = list(dict.fromkeys([path.absolute().parent, Path.cwd()]))
    top, _, rest = module.partition(".")
    try:
        for folder in folders:
            file = folder / f"{module}.py"
            if not rest and file.is_file():
                with _on_sys_path(folder):
                    return _import_file(module, file)
            if (folder / top).is_dir() and top not in sys.modules:
                with _on_sys_path(folder):
                    return importlib.import_module(module)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module and not module.startswith(f"{error.name}."):
            raise _broken(module, loaded, dotted, error) from error
        raise ConfigError(
            loaded.name,
            [
                loaded.problem(
                    "F14",
                    dotted,
                    f"expected an importable module; there is no {module!r}",
                    f"it is looked for in {', '.join(map(str, folders))} and on sys.path",
                )
            ],
        ) from None
    except Exception as error:
        raise _broken(module, loaded, dotted, error) from error


@contextmanager
def _on_sys_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _import_file(module: str, file: Path) -> ModuleType:
    """Returns the module of a file, also where a module of another file has its name."""
    name = module
    present = sys.modules.get(module)
    if present is not None and getattr(present, "__file__", None) != str(file):
        name = f"{module} of {file.parent}"
        present = sys.modules.get(name)
    if present is not None:
        return present
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[name]
        raise
    return made


def _broken(module: str, loaded: Loaded[CclFile], dotted: str, error: Exception) -> ConfigError:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    said = str(error)
    if isinstance(error, SyntaxError):
        where, said = f" at {error.filename}:{error.lineno}", error.msg
    text = f"importing {module!r} failed{where}: {type(error).__name__}: {said}"
    return ConfigError(loaded.name, [loaded.problem("F14", dotted, text)])
