"""`ccl.yaml`: which algorithm, and how its queues are built."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, Literal

from kernbench.ccl.plan import Algorithm
from kernbench.config.load import Loaded, load_with_marks
from kernbench.config.problems import ConfigError
from kernbench.config.schema import Range
from kernbench.config.shipped import shipped
from kernbench.errors import UsageError
from kernbench.hw.queue import QueueSpec
from kernbench.memory import Space
from kernbench.topology.spec import SystemSpec
from kernbench.units import Bytes, format_bytes

FILE_NAME: Final = "ccl.yaml"

OPERATIONS: Final = ("all_reduce",)
"""Collectives that a module may implement."""

_SLOT: Final = Bytes(4096)
_VC_CHUNK: Final = Bytes(256)
_CREDIT: Final = Bytes(16)

BufferKind = Literal["tcm", "hbm", "sram"]
Backpressure = Literal["sleep", "poll"]
Slots = Annotated[int, Range(1, 1 << 16)]
SlotSize = Annotated[Bytes, Range(8, 1 << 30)]
Small = Annotated[Bytes, Range(1, 1 << 20)]
Elements = Annotated[int, Range(1, 1 << 20)]


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """One entry of `algorithms`; what it leaves out comes from `defaults`.

    Attributes:
        module: Importable module with a function per collective, such as `all_reduce`.
        topology: How its ranks are connected logically.
        description: One line for `kernbench list`.
        buffer_kind: Memory of the receiver that holds the slots.
        backpressure: How a sender waits for a credit.
        n_slots: Messages that may be under way or unread between two ranks.
        slot_size: Largest message.
        vc_chunk_size: Chunks in which a message pipelines through the hops of its path.
        ipcq_credit_size_bytes: Size of a credit on its way back.
        n_elem: Chunks begin at multiples of this many elements.
    """

    module: str
    topology: Literal["ring_1d"] = "ring_1d"
    description: str = ""
    buffer_kind: BufferKind | None = None
    backpressure: Backpressure | None = None
    n_slots: Slots | None = None
    slot_size: SlotSize | None = None
    vc_chunk_size: Small | None = None
    ipcq_credit_size_bytes: Small | None = None
    n_elem: Elements | None = None


@dataclass(frozen=True, slots=True)
class Defaults:
    """The algorithm that is used when nobody names one, and the queues of all of them."""

    algorithm: str
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
    """

    name: str
    path: Path
    module: ModuleType
    queue: QueueSpec
    align: int

    def algorithm(self, operation: str) -> Algorithm:
        """Returns the program of a collective.

        Raises:
            UsageError: If the module does not implement it.
        """
        entry: Algorithm | None = getattr(self.module, operation, None)
        if entry is None:
            raise UsageError(
                f"algorithm {self.name} has no {operation}",
                [f"module {self.module.__name__} ({self.module.__file__}), named in {self.path}"],
                hint=f"write a function {operation}(comm) in that module",
                code="F14",
            )
        return entry


def find_ccl_file(path: Path | None = None) -> Path:
    """Returns the `ccl.yaml` to use: as given, else the working directory's, else the shipped."""
    if path is not None:
        return path
    here = Path.cwd() / FILE_NAME
    return here if here.exists() else shipped("configs") / FILE_NAME


def load_ccl(path: Path, overrides: tuple[str, ...] = ()) -> Loaded[CclFile]:
    """Returns a checked `ccl.yaml`.

    Raises:
        ConfigError: With every problem of the file.
    """
    loaded = load_with_marks(CclFile, path, overrides)
    named, known = loaded.value.defaults.algorithm, loaded.value.algorithms
    if named not in known:
        text = f"expected one of the algorithms of this file; got {named!r}"
        hint = f"it has {', '.join(known)}" if known else "it has no algorithms"
        problem = loaded.problem("F7", "defaults.algorithm", text, hint)
        raise ConfigError(loaded.name, [problem])
    return loaded


def select(given: Path | None, overrides: Sequence[str], system: SystemSpec) -> Chosen:
    """Returns the algorithm that collectives on a machine use.

    It is the default one of `ccl.yaml`. Only if that is the shipped file, and no override names
    one, the machine's own choice comes first.

    Args:
        given: The `ccl.yaml` that the user named, if any.
        overrides: `dotted.field=value` texts applied to it.
        system: The machine.

    Raises:
        ConfigError: If the file, the algorithm or its module cannot be used, or does not fit.
    """
    path = find_ccl_file(given)
    loaded = load_ccl(path, tuple(overrides))
    named = any(text.startswith("defaults.algorithm=") for text in overrides)
    shipped_file = given is None and path == shipped("configs") / FILE_NAME
    name = system.algorithm if shipped_file and not named else None
    chosen = choose(loaded, path, name)
    _check_fits(chosen, loaded, system)
    return chosen


def _check_fits(chosen: Chosen, loaded: Loaded[CclFile], system: SystemSpec) -> None:
    queue = chosen.queue
    memories = {
        Space.TCM: system.sip.pe.tcm,
        Space.SRAM: system.sip.cube.sram,
        Space.HBM: system.sip.cube.hbm,
    }
    needed, capacity = queue.n_slots * queue.slot_size, memories[queue.space].capacity
    if needed > capacity:
        text = (
            f"expected slots that fit into the {format_bytes(capacity)} of "
            f"{queue.space.value} of {system.name}; got {queue.n_slots} slots of "
            f"{format_bytes(queue.slot_size)}, {format_bytes(needed)}"
        )
        field_name = f"algorithms.{chosen.name}.slot_size"
        raise ConfigError(loaded.name, [loaded.problem("F12", field_name, text)])


def choose(loaded: Loaded[CclFile], path: Path, name: str | None = None) -> Chosen:
    """Returns an algorithm of the file, by default the one that `defaults` names.

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

    def value(field_name: str) -> Any:
        own = getattr(spec, field_name)
        return getattr(file.defaults, field_name) if own is None else own

    queue = QueueSpec(
        Space(value("buffer_kind")),
        value("backpressure"),
        value("n_slots"),
        value("slot_size"),
        value("vc_chunk_size"),
        value("ipcq_credit_size_bytes"),
    )
    return Chosen(name, path, module, queue, value("n_elem"))


def _check_entries(module: ModuleType, loaded: Loaded[CclFile], dotted: str) -> None:
    entries = {name: getattr(module, name, None) for name in OPERATIONS}
    text = ""
    if all(entry is None for entry in entries.values()):
        text = f"expected a module with a function {' or '.join(OPERATIONS)}(comm); it has none"
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
