"""`ccl.yaml`: which algorithm for which operation, and how its queues are built."""

import importlib
import inspect
import math
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, Literal

from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.plan import Algorithm
from kernbench.config.load import Loaded, load_with_marks
from kernbench.config.near import did_you_mean
from kernbench.config.problems import ConfigError, Problem
from kernbench.config.schema import Range
from kernbench.config.shipped import shipped
from kernbench.errors import UsageError
from kernbench.hw.pe import PeCosts
from kernbench.hw.queue import PLAIN, Line, QueueSpec
from kernbench.memory import Space
from kernbench.topology.spec import Latency, SystemSpec
from kernbench.units import Bandwidth, Bytes, format_bytes

FILE_NAME: Final = "ccl.yaml"

AUTO: Final = "auto"
"""Stands for whatever algorithm is expected to be the fastest."""

_SLOT: Final = Bytes(4096)
_VC_CHUNK: Final = Bytes(256)
_CREDIT: Final = Bytes(16)

BufferKind = Literal["tcm", "hbm", "sram"]
Backpressure = Literal["sleep", "poll"]
Slots = Annotated[int, Range(1, 1 << 16)]
SlotSize = Annotated[Bytes, Range(8, 1 << 30)]
Small = Annotated[Bytes, Range(1, 1 << 20)]
Elements = Annotated[int, Range(1, 1 << 20)]
Channels = Annotated[int, Range(1, 64)]
Shape = Literal["ring_1d", "tree", "all_pairs", "hypercube", "line", "grid", "nodes"]


@dataclass(frozen=True, slots=True)
class LineProfile:
    """What messages consist of on links.

    Attributes:
        size: Bytes of one line.
        payload: Those of them that are not flags.
    """

    size: Small
    payload: Small


@dataclass(frozen=True, slots=True)
class P2pChannels:
    """How much of a link a message between two ranks gets.

    NCCL deals its channels out to the peers of a rank, and a message gets twice as many as long as
    a channel's part of it would be too large (`calcP2pChannelCount` in src/enqueue.cc).

    Attributes:
        count: Channels of a rank, for all ranks of its group.
        rate: Bytes a second that one channel moves.
        part: Largest part of a message that a channel takes before there are more of them.
    """

    count: Annotated[int, Range(1, 1 << 10)]
    rate: Bandwidth
    part: Bytes

    def rate_of(self, nbytes: int, ranks: int) -> Bandwidth:
        """Returns what a message gets.

        Args:
            nbytes: Its size.
            ranks: Ranks of the group in which it is sent.
        """
        channels = max(1, self.count // ranks)
        while nbytes > channels * self.part and 2 * channels <= self.count:
            channels *= 2
        return Bandwidth(channels * self.rate.per_second)


@dataclass(frozen=True, slots=True)
class QueueProfile:
    """One entry of `queues`; what it leaves out comes from `defaults`, or is absent.

    Attributes:
        buffer_kind: Memory of the receiver that holds the slots.
        backpressure: How a sender waits for a credit.
        n_slots: Messages that may be under way or unread between two ranks.
        slot_size: Largest message.
        vc_chunk_size: Chunks in which a message pipelines through the hops of its path.
        ipcq_credit_size_bytes: Size of a credit on its way back.
        launch: Start-up of a collective over such queues, in place of the machine's.
        notice: How long after its last byte a receiver learns of a message.
        line: What messages consist of on links; payload alone if it is absent.
        own_share: Rate at which a rank takes the share that it has in charge through, besides what
            it exchanges; takes no time if it is absent.
        p2p: How much of a link a message between two ranks gets; all of it if it is absent.
    """

    buffer_kind: BufferKind | None = None
    backpressure: Backpressure | None = None
    n_slots: Slots | None = None
    slot_size: SlotSize | None = None
    vc_chunk_size: Small | None = None
    ipcq_credit_size_bytes: Small | None = None
    launch: Latency | None = None
    notice: Latency | None = None
    line: LineProfile | None = None
    own_share: Bandwidth | None = None
    p2p: P2pChannels | None = None


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """One entry of `algorithms`.

    A field of its queues comes from the entry itself, else from the profile that it names, else
    from `defaults`. An entry that says nothing about its queues gets the machine's profile.

    Attributes:
        module: Importable module with a function per operation, such as `all_reduce`.
        topology: How its ranks are connected logically.
        description: One line for `kernbench list`.
        channels: How many shares of every block run at the same time, each on a PE of its own.
        queue: One of `queues`.
        buffer_kind: See `QueueProfile`.
        backpressure: See `QueueProfile`.
        n_slots: See `QueueProfile`.
        slot_size: See `QueueProfile`.
        vc_chunk_size: See `QueueProfile`.
        ipcq_credit_size_bytes: See `QueueProfile`.
        n_elem: Chunks begin at multiples of this many elements.
        auto: Whether it takes part where the fastest of the whole file is looked for; if not, it is
            only for those who name it.
    """

    module: str
    topology: Shape = "ring_1d"
    description: str = ""
    channels: Channels = 1
    queue: str | None = None
    buffer_kind: BufferKind | None = None
    backpressure: Backpressure | None = None
    n_slots: Slots | None = None
    slot_size: SlotSize | None = None
    vc_chunk_size: Small | None = None
    ipcq_credit_size_bytes: Small | None = None
    n_elem: Elements | None = None
    auto: bool = True


_QUEUE_FIELDS: Final = {entry.name for entry in fields(QueueProfile)} & {
    entry.name for entry in fields(AlgorithmSpec)
}
"""What an entry may say about its queues itself."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The algorithms that are used when nobody names one, and the queues of all of them.

    Attributes:
        algorithm: For every operation that its module implements; the others, or all if it is
            `auto`, get the one that is expected to be the fastest.
        operations: An algorithm, or `auto`, for some operations.
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
    """A `ccl.yaml`."""

    defaults: Defaults
    queues: dict[str, QueueProfile] = field(default_factory=dict)
    algorithms: dict[str, AlgorithmSpec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chosen:
    """An algorithm with everything that it needs to run.

    Attributes:
        name: Its key in `ccl.yaml`.
        path: The file that says so.
        module: Where its code is.
        queue: How its queues are built.
        align: Chunks begin at multiples of this many elements.
        channels: How many shares of every block run at the same time, each on a PE of its own.
        shape: How its ranks are connected logically.
        auto: Whether it was found to be the fastest, not named.
        p2p: How much of a link a message between two ranks gets; None for all of it.
        slots_at: Where the file says how many slots queues have; empty if it does not.
    """

    name: str
    path: Path
    module: ModuleType
    queue: QueueSpec
    align: int
    channels: int = 1
    shape: Shape = "ring_1d"
    auto: bool = False
    p2p: P2pChannels | None = None
    slots_at: str = field(default="", compare=False)

    def for_message(self, nbytes: int, ranks: int) -> "Chosen":
        """Returns the algorithm for a message of some size in a group of some ranks."""
        if self.p2p is None:
            return self
        rate = self.p2p.rate_of(nbytes, ranks)
        return replace(self, queue=replace(self.queue, rate=rate))

    def implements(self, operation: str) -> bool:
        """Returns whether the module has a function for an operation."""
        return _entry(self.module, operation) is not None

    def algorithm(self, operation: str) -> Algorithm:
        """Returns the program of a collective.

        Raises:
            UsageError: If the module does not implement it.
        """
        entry: Algorithm | None = _entry(self.module, operation)
        if entry is None:
            raise UsageError(
                f"algorithm {self.name} has no {operation}",
                [f"module {self.module.__name__} ({self.module.__file__}), named in {self.path}"],
                hint=f"write a function {operation}(comm) in that module",
                code="F14",
            )
        return entry


def shipped_ccl_file() -> Path:
    """Returns the `ccl.yaml` that comes with kernbench."""
    return shipped("configs") / FILE_NAME


def find_ccl_file(path: Path | None = None) -> Path:
    """Returns the `ccl.yaml` to use: as given, else the working directory's, else the shipped."""
    if path is not None:
        return path
    here = Path.cwd() / FILE_NAME
    return here if here.exists() else shipped_ccl_file()


def load_ccl(path: Path, overrides: tuple[str, ...] = ()) -> Loaded[CclFile]:
    """Returns a checked `ccl.yaml`.

    Raises:
        ConfigError: With every problem of the file.
    """
    loaded = load_with_marks(CclFile, path, overrides)
    problems = list(_wrong_names(loaded))
    if problems:
        raise ConfigError(loaded.name, problems)
    return loaded


def _wrong_names(loaded: Loaded[CclFile]) -> Iterator[Problem]:
    """Yields a problem for every name that stands for nothing, and for lines that are all flags."""
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
    for name, queue in file.queues.items():
        if queue.line is not None and queue.line.payload > queue.line.size:
            most, given = format_bytes(queue.line.size), format_bytes(queue.line.payload)
            text = f"expected at most the line's {most}; got {given}"
            yield loaded.problem("F3", f"queues.{name}.line.payload", text)


def default_algorithms(
    given: Path | None, overrides: Sequence[str], loaded: Loaded[CclFile], system: SystemSpec
) -> tuple[str, ...]:
    """Returns the names of the algorithms that a machine uses by default; none for any of the file.

    Only if the file is the shipped one, and no override names one, the machine's own come first.
    """
    named = any(text.startswith("defaults.algorithm=") for text in overrides)
    own = given is not None or find_ccl_file() != shipped_ccl_file()
    if system.algorithms and not (own or named):
        return system.algorithms
    default = loaded.value.defaults.algorithm
    return () if default == AUTO else (default,)


def select(given: Path | None, overrides: Sequence[str], system: SystemSpec) -> Chosen:
    """Returns an algorithm that a machine uses by default.

    If that depends on sizes, it is the first of those that it may be. It serves to find out whether
    a file can be used at all; `Choices` knows better.

    Args:
        given: The `ccl.yaml` that the user named, if any.
        overrides: `dotted.field=value` texts applied to it.
        system: The machine.

    Raises:
        ConfigError: If the file, the algorithm or its module cannot be used, or does not fit.
    """
    path = find_ccl_file(given)
    loaded = load_ccl(path, tuple(overrides))
    names = default_algorithms(given, overrides, loaded, system)
    name = next(iter(names or loaded.value.algorithms))
    chosen = choose(loaded, path, name, system)
    check_fits(chosen, loaded, system)
    return chosen


def check_fits(chosen: Chosen, loaded: Loaded[CclFile], system: SystemSpec) -> None:
    """Checks that every SIP of a machine has the memory and the PEs that an algorithm needs.

    Raises:
        ConfigError: If it does not.
    """
    queue, place = chosen.queue, f"algorithms.{chosen.name}"
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
    if chosen.channels > pes:
        text = (
            f"expected at most the {pes} PEs of {smallest or 'a SIP of '}{system.name}; "
            f"got {chosen.channels}"
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
        loaded: The file.
        path: Where it is.
        name: Name of the algorithm.
        system: The machine, if its own queues are to be used where the entry says nothing.

    Raises:
        ConfigError: If there is no such algorithm, or its module cannot be imported.
    """
    file = loaded.value
    name = file.defaults.algorithm if name is None else name
    if name not in file.algorithms:
        known = ", ".join(file.algorithms)
        raise UsageError(f"no algorithm {name!r} in {path}", [f"it has {known}"], code="F7")
    spec = file.algorithms[name]
    dotted = f"algorithms.{name}.module"
    module = _import(spec.module, loaded, dotted)
    _check_entries(module, loaded, dotted)
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
        slots_at=_given_at(loaded, name, profile, "n_slots"),
    )


def _given_at(loaded: Loaded[CclFile], name: str, profile: QueueProfile, field: str) -> str:
    """Returns where the file gives a field of the queues of an algorithm; empty if nowhere."""
    queues = [queue for queue, entry in loaded.value.queues.items() if entry is profile]
    sources = [f"algorithms.{name}", *(f"queues.{queue}" for queue in queues), "defaults"]
    places = (f"{source}.{field}" for source in sources)
    given = next((place for place in places if place in loaded.marks), None)
    return "" if given is None else loaded.problem("", given, "").where


def _profile(file: CclFile, spec: AlgorithmSpec, system: SystemSpec | None) -> QueueProfile:
    silent = spec.queue is None and all(getattr(spec, name) is None for name in _QUEUE_FIELDS)
    name = system.queue if silent and system is not None else spec.queue
    # A user's own file need not know the machine's profile; then its defaults are good enough.
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
    )


def _entry(module: ModuleType, operation: str) -> Any:
    """Returns a module's function for an operation; `reduce` of `functools` is none."""
    entry = getattr(module, operation, None)
    return None if inspect.isbuiltin(entry) else entry


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
        try:
            inspect.signature(entry).bind(None)
        except TypeError:
            text = f"expected {name}(comm); got {name}{inspect.signature(entry)}"
    if text:
        text += f", in {module.__file__}"
        raise ConfigError(loaded.name, [loaded.problem("F14", dotted, text)])


def _import(module: str, loaded: Loaded[CclFile], dotted: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # a user's own module lies beside the ccl.yaml
    try:
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
                    f"it is looked for in {here} and on sys.path",
                )
            ],
        ) from None
    except Exception as error:
        raise _broken(module, loaded, dotted, error) from error


def _broken(module: str, loaded: Loaded[CclFile], dotted: str, error: Exception) -> ConfigError:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    said = str(error)
    if isinstance(error, SyntaxError):
        where, said = f" at {error.filename}:{error.lineno}", error.msg
    text = f"importing {module!r} failed{where}: {type(error).__name__}: {said}"
    return ConfigError(loaded.name, [loaded.problem("F14", dotted, text)])
