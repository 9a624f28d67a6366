"""A run as one value: the machine, the dials, the program. See ADR 0024.

The module imports little, so that the command line knows the defaults before heavy imports.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any, Final, Literal

from kernbench.run_spec.files import read_json
from kernbench.run_spec.options import Option, of_command
from kernbench.run_spec.values import OF_ALL, OF_PYTORCH, Collapse, DefaultDevice, Kinds, Races
from kernbench.sim_engine.dials import Detail, Fidelity

if TYPE_CHECKING:
    from kernbench.config import ConfigError, Problem

VERSION: Final = 2
"""Version of the JSON form; version 1, which had the fields of `PytorchRun` beside the others, is
read, too."""

MACHINE_ROOTS: Final = ("system",)
"""First keys of overrides that belong to the topology file."""

CCL_ROOTS: Final = ("defaults", "algorithms", "queues")
"""First keys of overrides that belong to `ccl.yaml`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PytorchRun:
    """What only a run of a program of the real PyTorch has, see `RunSpec.pytorch`.

    Attributes:
        nodes: Number of nodes of the machine, each with `nproc_per_node` ranks, as under
            `torchrun`.
        as_module: Whether `bench` is the name of a module, which runs as `python -m` runs it.
        fake: Whether a value that the host reads of a device is 0 where tensors hold none, so only
            without `data`; otherwise such a read is an error.
        same_ranks: Whether ranks do the same, so that rank 0 and `witnesses` run the program, and
            the others repeat what rank 0 does; only without values.
        witnesses: Ranks that run the program beside rank 0, with which they are compared; None for
            the last rank. Only with `same_ranks`.
        check_replicas: Whether the parameters of DDP's replicas are compared in each step; only
            with values.
        races: What an access does that nothing orders behind what is under way (C14, C15, M10): an
            `error` ends the run; after a `warn` it goes on, and lists them at its end.

    Raises:
        ConfigError: If values are of other kinds; the error lists all of them by field (F2, F3).
    """

    nodes: int = 1
    as_module: bool = False
    fake: bool = False
    same_ranks: bool = False
    witnesses: tuple[int, ...] | None = None
    check_replicas: bool = False
    races: Races = "error"

    def __post_init__(self) -> None:
        if wrong := _keep(self, OF_PYTORCH):
            raise _refused([*wrong.values()], "PytorchRun")


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
        data: Whether tensors hold values; if not, only time is simulated.
        fidelity: How closely time is simulated, see `GraphEngine`.
        record: How much the log keeps, see `OpLog`.
        shadow: Whether answers of caches are found anew, too, and compared, see `GraphEngine`.
        collapse: Whether ranks that do the same are simulated once, `exact`, or each, `off`; the
            first only without values, see `classes`.
        roles: With `collapse`, a file that says which ranks have the same program, see
            `classes.roles`; None for what the program says, or for all ranks.
        witnesses: With `collapse`, ranks that run beside the one that runs for their class, and are
            compared with it; None for no such rank.
        seed: At least 0; with the rank it says where a rank's default random generator starts.
        eager_limit: Bytes up to which messages of tensors on devices are sent without their
            receive, as some libraries do; 0 finds every deadlock that such buffering hides.
        watchdog_s: Seconds of wall time that a user's code may run without a simulated step, until
            it is stopped (K5); 0 for never.
        max_time_ps: Simulated time in picoseconds that a run may not pass (K10); 0 for no limit.
        step_budget: Number of commands that a rank may issue in a spawn; 0 for any number.
        group_limit: Number of process groups that a rank may hold besides the group of all ranks
            (C17).
        class_limit: With `collapse`, most classes of ranks.
        schedule: Number of the candidate, from 1, that each receive from any source takes in turn,
            see `Schedule`; None for the message that comes first.
        routing: Which experts tokens choose, by name or as a file, see `routing.routing_of`; None
            for what the program computes.
        bench: A Python file, or the name of a shipped bench; None if code calls the program itself.
        arguments: Texts that the program finds in `ctx.argv`, and a script in `sys.argv`.
        nproc_per_node: Number of ranks that each run the file as `__main__`, as under `torchrun`;
            None if the program spawns its ranks itself.
        as_torch: Whether `import torch` means `kernbench.torch` in the program.
        pytorch: What a program of the real PyTorch has besides, which must be installed; None for
            any other program.

    Raises:
        ConfigError: If values are of other kinds; the error lists all of them by field (F2, F3).
    """

    topology: str | None = "sip8"
    ccl: str | None = None
    overrides: tuple[str, ...] = ()
    devices: Literal["all"] | tuple[int, ...] = "all"
    default_device: DefaultDevice = "cuda"
    data: bool = True
    fidelity: Fidelity = "kernel"
    record: Detail = "summary"
    shadow: bool = False
    collapse: Collapse = "off"
    roles: str | None = None
    witnesses: tuple[int, ...] | None = None
    seed: int = 0
    eager_limit: int = 0
    watchdog_s: float = 30.0
    max_time_ps: int = 0
    step_budget: int = 0
    group_limit: int = 4096
    class_limit: int = 4096
    schedule: tuple[int, ...] | None = None
    routing: str | None = None
    bench: str | None = None
    arguments: tuple[str, ...] = ()
    nproc_per_node: int | None = None
    as_torch: bool = False
    pytorch: PytorchRun | None = None

    def __post_init__(self) -> None:
        wrong = _keep(self, OF_ALL)
        pytorch: object = self.pytorch  # of any type, like all that callers give
        if not isinstance(pytorch, PytorchRun | None):
            expected = f"expected a PytorchRun or None, got {shortened(pytorch)}"
            wrong["pytorch"] = _problem("F2", "pytorch", expected)
        elif pytorch is not None and pytorch.fake and self.data is True:
            wrong["pytorch.fake"] = _problem(
                "F3", "pytorch.fake", "expected false with data, whose values can be read, got true"
            )
        texts = () if "overrides" in wrong else self.overrides
        lost = [_lost(text) for text in texts if _root(text) is None]
        if wrong or lost:
            raise _refused([*wrong.values(), *lost])

    @property
    def name(self) -> str:
        """Name of the run in results: the bench's file without folder and suffix, or empty."""
        if self.bench is None or (self.pytorch is not None and self.pytorch.as_module):
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
        options = [*more, *_said(self)]
        if self.pytorch is not None:  # as `torchrun` has it, all behind the file is the program's
            module = ["-m"] if self.pytorch.as_module else []
            program = [*module, self.bench, *self.arguments]
            return shlex.join(["kernbench", "torchrun", *options, *program])
        arguments = ["--", *self.arguments] if self.arguments else []
        return shlex.join(["kernbench", "run", self.bench, *options, *arguments])

    def to_json(self) -> dict[str, Any]:
        """Returns the specification as plain values for JSON: all fields, and the version."""
        pytorch = None if self.pytorch is None else _plain(self.pytorch)
        return {"version": VERSION, **_plain(self), "pytorch": pytorch}

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
        if type(version) is int and version == 1:
            _nest(values)
        elif type(version) is not int or version != VERSION:
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
        wrong = _unknown(cls, values)
        pytorch = values.get("pytorch")
        if isinstance(pytorch, Mapping):
            wrong += _unknown(PytorchRun, pytorch, "pytorch.")
        if wrong:
            raise _refused(wrong)
        if not isinstance(pytorch, Mapping):
            return cls(**values)
        from kernbench.config import ConfigError

        problems: list[Problem] = []
        nested = None
        try:
            nested = PytorchRun(**pytorch)
        except ConfigError as error:
            problems += [replace(each, where=f"pytorch.{each.where}") for each in error.problems]
        try:
            spec = cls(**{**values, "pytorch": nested})
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise _refused(problems)
        return spec

    @classmethod
    def from_file(cls, path: str | Path) -> "RunSpec":
        """Returns the specification in a JSON file: alone, or with results as `--json` writes them.

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


def value_of(spec: RunSpec, field: str) -> Any:
    """Returns the value of a field of a specification.

    Args:
        field: Name of the field; one of `PytorchRun` as `pytorch.nodes`, which has its default in
            a specification of another program.
    """
    of_pytorch = field.removeprefix("pytorch.")
    return getattr(spec, field) if of_pytorch == field else getattr(_pytorch_of(spec), of_pytorch)


def usual_of(option: Option) -> tuple[Any, ...]:
    """Returns what fields have without an option; None stands for what the option tells.

    Args:
        option: An option that sets fields.
    """
    if option.default_told:
        return (None,) * len(option.sets)
    return tuple(value_of(_USUAL, field) for field in option.sets)


def _pytorch_of(spec: RunSpec) -> PytorchRun:
    return _USUAL_PYTORCH if spec.pytorch is None else spec.pytorch


def _said(spec: RunSpec) -> Iterator[str]:
    """Yields the options of the command that repeats a run, but for the program."""
    for option in of_command("run" if spec.pytorch is None else "torchrun"):
        values = tuple(value_of(spec, field) for field in option.sets)
        # The seed is always there, so that a report says all that a repetition needs. `-m` stands
        # in front of the module, and overrides, which may be many, at the end.
        known = values == usual_of(option) and option.name != "seed"
        if known or option.kind == "texts" or option.name == "module":
            continue
        yield option.flags[0]
        if option.kind != "flag":
            yield option.write(*values)
    for text in spec.overrides:
        yield from ("--set", text)


def _keep(instance: object, kinds: Kinds) -> dict[str, "Problem"]:
    """Replaces values of a specification by plain ones, and returns what is wrong, by field."""
    wrong: dict[str, Problem] = {}
    for name, (expected, read) in kinds.items():
        value = getattr(instance, name)
        try:
            object.__setattr__(instance, name, read(value))
        except (TypeError, ValueError) as error:
            code = "F2" if isinstance(error, TypeError) else "F3"
            # The word of the command line stands in a field of its own.
            hint = _FAKE if (name, value) == ("data", "fake") else ""
            message = f"expected {expected}, got {shortened(value)}"
            wrong[name] = _problem(code, name, message, hint)
    return wrong


_FAKE: Final = (
    "False; only a program of PyTorch can read values that are not there: "
    "kernbench torchrun --data fake"
)


def _plain(instance: RunSpec | PytorchRun) -> dict[str, Any]:
    values = {field.name: getattr(instance, field.name) for field in fields(instance)}
    return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}


def _nest(values: dict[str, Any]) -> None:
    """Makes plain values of version 1 those of the newest one."""
    old = {name: values.pop(name) for name in OF_PYTORCH if name != "fake" and name in values}
    if values.get("pytorch") is True:
        fake = values.get("data") == "fake"
        values["pytorch"] = {**old, "fake": fake}
        if fake:
            values["data"] = False
    else:
        values.pop("pytorch", None)


def _unknown(
    kind: type[RunSpec | PytorchRun], values: Mapping[str, Any], prefix: str = ""
) -> "list[Problem]":
    """Returns the problems of names that are no fields."""
    known = [field.name for field in fields(kind)]
    names = [name for name in values if name not in known]
    if not names:
        return []
    from kernbench.config import did_you_mean

    message = f"expected one of {', '.join(known)}, got an unknown field"
    hints = {
        name: f"`pytorch` has it: pytorch={{'{name}': ...}}"
        if name in OF_PYTORCH
        else did_you_mean(str(name), known)
        for name in names
    }
    return [_problem("F1", f"{prefix}{name}", message, hint) for name, hint in hints.items()]


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


def _refused(problems: "Sequence[Problem]", what: str = "RunSpec") -> "ConfigError":
    # Imported late: the module also imports YAML, and only mistakes need it.
    from kernbench.config import ConfigError

    return ConfigError(what, problems)


def _root(text: str) -> str | None:
    """Returns the first key of an override; None if it belongs to no file."""
    key, equals, _ = text.partition("=")
    root = key.split(".")[0]
    return root if equals and root in (*MACHINE_ROOTS, *CCL_ROOTS) else None


_USUAL: Final = RunSpec()
_USUAL_PYTORCH: Final = PytorchRun()
_NAMES: Final = ", ".join(field.name for field in fields(RunSpec))
