"""A run as one value: the machine, the dials, the program. See ADR 0024.

The module imports little, so that the command line knows the defaults before heavy imports.
"""

import json
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import index
from pathlib import Path
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from kernbench.sim_engine.dials import Detail, Fidelity

if TYPE_CHECKING:
    from kernbench.config import ConfigError, Problem

DefaultDevice = Literal["cuda", "cpu"]
"""Type of the device on which ranks make tensors without `device=`."""

Data = bool | Literal["fake"]
"""Whether tensors hold values; `fake`: no, and what a program of PyTorch reads of them is 0."""

Races = Literal["error", "warn"]
"""What becomes of an access to memory that nothing orders."""

VERSION: Final = 1
"""Version of the JSON form."""

MACHINE_ROOTS: Final = ("system",)
"""First keys of overrides that belong to the topology file."""

CCL_ROOTS: Final = ("defaults", "algorithms", "queues")
"""First keys of overrides that belong to `ccl.yaml`."""

_MOST_BYTES: Final = 1 << 28
"""Bytes of the largest file from which a specification is read; it may hold results, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything that a run depends on: equal specifications give the same results and times.

    A specification is frozen and made of plain values, so it can be a key of a dict, be pickled for
    another process, and go to JSON and back. `dataclasses.replace` gives a variant. A list becomes
    a tuple, and an `os.PathLike` becomes text. Relative paths start at the working directory.

    Attributes:
        topology: The machine: a topology file, or the name of a shipped one such as `h200x8`. None
            if code made the machine: then the code that runs the specification gives an engine.
        ccl: The algorithms' file; None for `./ccl.yaml` if there is one, else the shipped one.
        overrides: Texts such as `system.sips.count=4`, in the order in which they apply. The first
            key `system` belongs to the machine; `defaults`, `algorithms` and `queues` to `ccl`.
        devices: SIPs that ranks may use, or `all`; rank r has the r-th SIP.
        default_device: Where tensors are made without `device=`: `cuda`, on their rank's device; or
            `cpu`, on the host, as in PyTorch, and then devices are kept apart as strictly as there.
        data: Whether tensors hold values; if not, only time is simulated. `fake`, of a program of
            PyTorch only: they hold none, and a value that the host reads of a device is 0.
        fidelity: How closely time is simulated, see `GraphEngine`.
        record: How much the log keeps, see `OpLog`.
        shadow: Whether answers of caches are found anew, too, and compared, see `GraphEngine`.
        seed: At least 0; with the rank it says where a rank's default random generator starts.
        eager_limit: Bytes up to which messages of tensors on devices are sent without their
            receive, as some libraries do; 0 finds every deadlock that such buffering hides.
        watchdog_s: Seconds of wall time that a user's code may run without a simulated step, until
            it is stopped (K5); 0 for never.
        max_time_ps: Simulated time in picoseconds that a run may not pass (K10); 0 for no limit.
        step_budget: Number of commands that a rank may issue in a spawn; 0 for any number.
        group_limit: Number of process groups that a rank may hold besides the group of all ranks
            (C17).
        schedule: Number of the candidate, from 1, that each receive from any source takes in turn,
            see `Schedule`; None for the message that comes first.
        bench: A Python file, or the name of a shipped bench; None if code calls the program itself.
        arguments: Texts that the program finds in `ctx.argv`, and a script in `sys.argv`.
        nproc_per_node: Number of ranks that each run the file as `__main__`, as under `torchrun`;
            None if the program spawns its ranks itself.
        as_torch: Whether `import torch` means `kernbench.torch` in the program.
        pytorch: Whether the program is one of the real PyTorch, which must be installed.
        nodes: Number of nodes of the machine, each with `nproc_per_node` ranks, as under
            `torchrun`; of a program of PyTorch.
        as_module: Whether `bench` is the name of a module, which runs as `python -m` runs it; of a
            program of PyTorch.
        same_ranks: Whether ranks do the same, so that rank 0 and `witnesses` run the program, and
            the others repeat what rank 0 does; of a program of PyTorch without values.
        witnesses: Ranks that run the program beside rank 0, with which they are compared; None for
            the last rank. Only with `same_ranks`.
        check_replicas: Whether the parameters of DDP's replicas are compared in each step; of a
            program of PyTorch with values.
        races: What an access does that nothing orders behind what is under way (C14, C15, M10): an
            `error` ends the run; after a `warn` it goes on, and lists them at its end; of a program
            of PyTorch.

    Raises:
        ConfigError: If values are of other kinds; the error lists all of them by field (F2, F3).
    """

    topology: str | None = "sip8"
    ccl: str | None = None
    overrides: tuple[str, ...] = ()
    devices: Literal["all"] | tuple[int, ...] = "all"
    default_device: DefaultDevice = "cuda"
    data: Data = True
    fidelity: Fidelity = "kernel"
    record: Detail = "summary"
    shadow: bool = False
    seed: int = 0
    eager_limit: int = 0
    watchdog_s: float = 30.0
    max_time_ps: int = 0
    step_budget: int = 0
    group_limit: int = 4096
    schedule: tuple[int, ...] | None = None
    bench: str | None = None
    arguments: tuple[str, ...] = ()
    nproc_per_node: int | None = None
    as_torch: bool = False
    pytorch: bool = False
    nodes: int = 1
    as_module: bool = False
    same_ranks: bool = False
    witnesses: tuple[int, ...] | None = None
    check_replicas: bool = False
    races: Races = "error"

    def __post_init__(self) -> None:
        wrong: dict[str, Problem] = {}
        for name, (expected, read) in _KINDS.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, read(value))
            except (TypeError, ValueError) as error:
                code = "F2" if isinstance(error, TypeError) else "F3"
                wrong[name] = _problem(code, name, f"expected {expected}, got {shortened(value)}")
        texts = () if "overrides" in wrong else self.overrides
        lost = [_lost(text) for text in texts if _root(text) is None]
        if wrong or lost:
            raise _refused([*wrong.values(), *lost])

    @property
    def name(self) -> str:
        """Name of the run in results: the bench's file without folder and suffix, or empty."""
        if self.bench is None or self.as_module:
            return self.bench or ""
        return Path(self.bench).stem

    @property
    def machine_overrides(self) -> tuple[str, ...]:
        """The overrides of the topology file."""
        return tuple(text for text in self.overrides if _root(text) in MACHINE_ROOTS)

    @property
    def ccl_overrides(self) -> tuple[str, ...]:
        """The overrides of `ccl.yaml`."""
        return tuple(text for text in self.overrides if _root(text) in CCL_ROOTS)

    def command(self, *more: str) -> str:
        """Returns the shell command that repeats the run; output options then decide `record`.

        Args:
            more: Further options, such as `--explore`, `5`.

        Raises:
            ConfigError: If code made the program or the machine, so that no command names it (F2).
        """
        for name, value in (("bench", self.bench), ("topology", self.topology)):
            if value is None:
                raise _refused([_problem("F2", name, "expected text: a command names it")])
        assert self.bench is not None
        if self.pytorch:  # as `torchrun` has it, all that follows the file belongs to the program
            program = [*(["-m"] if self.as_module else []), self.bench, *self.arguments]
            return shlex.join(["kernbench", "torchrun", *more, *self._options(), *program])
        arguments = ["--", *self.arguments] if self.arguments else []
        return shlex.join(["kernbench", "run", self.bench, *more, *self._options(), *arguments])

    def _options(self) -> Iterator[str]:
        usual = RunSpec()
        if self.pytorch and self.topology == usual.topology:
            yield from ("--topology", str(usual.topology))  # where `torchrun` has another default
        for name, (option, said) in _OPTIONS.items():
            value = getattr(self, name)
            # The seed is always there, so that a report says all that a repetition needs.
            if value != getattr(usual, name) or name == "seed":
                yield option
                if said is not None:
                    yield said(value)
        for text in self.overrides:
            yield from ("--set", text)

    def to_json(self) -> dict[str, Any]:
        """Returns the specification as plain values for JSON: all fields, and the version."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}
        return {"version": VERSION, **plain}

    @classmethod
    def from_json(cls, document: object) -> "RunSpec":
        """Returns the specification of plain values such as those of `to_json`.

        Args:
            document: Plain values by name of the field. `version` must be there; any other missing
                field has its default.

        Raises:
            ConfigError: If something is wrong; the error lists everything by field (F1, F2, F3).
        """
        if not isinstance(document, Mapping):
            message = f"expected a mapping with version, {_NAMES}, got {shortened(document)}"
            raise _refused([_problem("F2", "specification", message)])
        values = dict(document)
        version = values.pop("version", None)
        if type(version) is not int or version != VERSION:
            message = f"expected {VERSION}, got {shortened(version)}"
            raise _refused([_problem("F2", "version", message)])
        return cls.from_fields(values)

    @classmethod
    def from_fields(cls, values: Mapping[str, Any]) -> "RunSpec":
        """Does what the constructor does, and proposes a field's name in place of an unknown name.

        Args:
            values: Values of the fields, by name of the field.

        Raises:
            ConfigError: If something is wrong; the error lists everything by field (F1, F2, F3).
        """
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in values if name not in known]:
            from kernbench.config import did_you_mean

            message = f"expected one of {_NAMES}, got an unknown field"
            hints = {str(name): did_you_mean(str(name), known) for name in unknown}
            raise _refused([_problem("F1", name, message, hint) for name, hint in hints.items()])
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | Path) -> "RunSpec":
        """Returns the specification in a JSON file: alone, or with results as `--json` writes them.

        Args:
            path: Path of the file.

        Raises:
            ConfigError: If the file cannot be read (F9, F10, F11), is no JSON (F10), gives a key
                twice (F6), or holds no specification (F1, F2, F3).
        """
        from kernbench.config import ConfigError

        document = read_json(Path(path))
        if isinstance(document, dict) and "kernbench" in document:
            document = document.get("spec")
        try:
            return cls.from_json(document)
        except ConfigError as error:
            raise ConfigError(str(path), error.problems) from None


def schedule_text(picks: Sequence[int] | None) -> str:
    """Returns the text of a schedule in reports and for `--schedule`: `2.1`, or 0 for None."""
    return "0" if picks is None else ".".join(map(str, picks))


def _problem(code: str, field: str, message: str, hint: str = "") -> "Problem":
    from kernbench.config import Problem

    return Problem(code, field, "", message, hint=hint)


def _lost(text: str) -> "Problem":
    """Returns the problem of an override that belongs to no file."""
    from kernbench.config import Problem, did_you_mean

    roots = (*MACHINE_ROOTS, *CCL_ROOTS)
    message = f"expected dotted.field=value, the field beginning with one of {', '.join(roots)}"
    key, equals, _ = text.partition("=")
    hint = did_you_mean(key.split(".")[0], roots) if equals else ""
    return Problem("F1" if equals else "F2", f"--set {text}", "", message, hint=hint)


def _refused(problems: "Sequence[Problem]") -> "ConfigError":
    # Imported late: the module also imports YAML, and only mistakes need it.
    from kernbench.config import ConfigError

    return ConfigError("RunSpec", problems)


def read_json(path: Path, most: int = _MOST_BYTES) -> Any:
    """Returns the content of a JSON file, in which no mapping may have a key twice.

    Args:
        path: Path of the file.
        most: Bytes of the largest file that is read.

    Raises:
        ConfigError: If the file cannot be read (F9, F10, F11), is no JSON (F10), or gives a key
            twice (F6).
    """
    from kernbench.config import ConfigError, Problem
    from kernbench.config.yaml_file import read_text

    where = str(path)
    twins: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                twins.append(key)
            found[key] = value
        return found

    try:
        document = json.loads(read_text(path, most), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        problem = Problem("F10", where, "", f"not JSON: {error}")
        raise ConfigError(where, [problem]) from None
    if twins:
        raise ConfigError(where, [Problem("F6", key, "", "expected once") for key in twins])
    return document


def _root(text: str) -> str | None:
    """Returns the first key of an override; None if it belongs to no file."""
    key, equals, _ = text.partition("=")
    root = key.split(".")[0]
    return root if equals and root in (*MACHINE_ROOTS, *CCL_ROOTS) else None


def _text(value: Any) -> str:
    text = os.fspath(value)
    if not isinstance(text, str):
        raise TypeError
    return text


def _some_text(value: Any) -> str:
    if not (text := _text(value)):
        raise ValueError
    return text


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _data(value: Any) -> Data:
    return "fake" if value == "fake" else _flag(value)


def _whole(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
        if number < least:
            raise ValueError
        return number

    return read


def _seconds(value: Any) -> float:
    if isinstance(value, (bool, str)):
        raise TypeError
    try:
        number = float(value)
    except OverflowError:
        raise ValueError from None
    if not (math.isfinite(number) and number >= 0):
        raise ValueError
    return number


def _one_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise TypeError
        return choices[choices.index(value)]

    return read


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _each(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def read_all(value: Any) -> tuple[Any, ...]:
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
            raise TypeError
        return tuple(map(read, value))

    return read_all


def _some(read: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    def read_some(value: Any) -> tuple[Any, ...]:
        if not (found := read(value)):
            raise ValueError
        return found

    return read_some


def _different(read: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    def read_different(value: Any) -> tuple[Any, ...]:
        found = _some(read)(value)
        if len(set(found)) != len(found):
            raise ValueError
        return found

    return read_different


def _devices(value: Any) -> Literal["all"] | tuple[int, ...]:
    return "all" if value == "all" else _different(_each(_whole(0)))(value)


def _choice(literal: Any) -> tuple[str, Callable[[Any], Any]]:
    choices = get_args(literal)
    return f"one of {', '.join(choices)}", _one_of(choices)


def _with_commas(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _time_text(ps: int) -> str:
    from kernbench.units import TIME_UNITS, format_exact  # so that `--help` does not import it

    return format_exact(ps, TIME_UNITS).replace(" ", "")


_COUNT: Final = ("an integer from 0", _whole(0))
_TEXTS: Final = ("texts", _each(_text))

_KINDS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "topology": ("a file, the name of a shipped machine, or None", _or_none(_some_text)),
    "ccl": ("a file or None", _or_none(_some_text)),
    "overrides": _TEXTS,
    "devices": ("all, or different integers from 0", _devices),
    "default_device": _choice(DefaultDevice),
    "data": ("true, false or fake", _data),
    "fidelity": _choice(Fidelity),
    "record": _choice(Detail),
    "shadow": ("true or false", _flag),
    "seed": _COUNT,
    "eager_limit": _COUNT,
    "watchdog_s": ("seconds from 0", _seconds),
    "max_time_ps": _COUNT,
    "step_budget": _COUNT,
    "group_limit": _COUNT,
    "schedule": ("integers from 1, or None", _or_none(_some(_each(_whole(1))))),
    "bench": ("a file, the name of a shipped bench, or None", _or_none(_some_text)),
    "arguments": _TEXTS,
    "nproc_per_node": ("an integer from 1, or None", _or_none(_whole(1))),
    "as_torch": ("true or false", _flag),
    "pytorch": ("true or false", _flag),
    "nodes": ("an integer from 1", _whole(1)),
    "as_module": ("true or false", _flag),
    "same_ranks": ("true or false", _flag),
    "witnesses": (
        "different ranks from 1, beside rank 0, or None",
        _or_none(_different(_each(_whole(1)))),
    ),
    "check_replicas": ("true or false", _flag),
    "races": _choice(Races),
}
"""For each field, which values it accepts, and the function that makes the kept value."""

_NAMES: Final = ", ".join(_KINDS)

_OPTIONS: Final[Mapping[str, tuple[str, Callable[[Any], str] | None]]] = {
    "nproc_per_node": ("--nproc-per-node", str),
    "nodes": ("--nnodes", str),
    "as_torch": ("--as-torch", None),
    "topology": ("--topology", str),
    "ccl": ("--ccl", str),
    "devices": ("--devices", _with_commas),
    "default_device": ("--default-device", str),
    "data": ("--data", lambda data: "fake" if data == "fake" else "on" if data else "off"),
    "fidelity": ("--fidelity", str),
    "same_ranks": ("--same-ranks", None),
    "witnesses": ("--witnesses", _with_commas),
    "check_replicas": ("--check-replicas", None),
    "races": ("--races", str),
    "shadow": ("--shadow", None),
    "eager_limit": ("--eager-limit", str),
    "watchdog_s": ("--watchdog", str),
    "max_time_ps": ("--max-time", _time_text),
    "step_budget": ("--step-budget", str),
    "group_limit": ("--group-limit", str),
    "seed": ("--seed", str),
    "schedule": ("--schedule", schedule_text),
}
"""For each field, the option of `kernbench run` that sets it, and the form of its value there;
None for an option without a value."""
