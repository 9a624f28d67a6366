"""What a sweep runs: grids of values, and lists of specifications."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from shlex import join
from typing import Any, Final, Literal

from kernbench.ccl.config import check_default
from kernbench.config import ConfigError
from kernbench.errors import UsageError
from kernbench.run_spec import RunSpec, read_json
from kernbench.runtime_api.engines import load_machine
from kernbench.scripts.running import find_bench
from kernbench.sweeps.documents import MOST_BYTES, read_document
from kernbench.sweeps.keys import Keys
from kernbench.sweeps.records import Run

Kind = Literal["topology", "ccl", "set", "arg"]

MOST_RUNS: Final = 10**6
"""The most runs of a sweep; at 20 ms a run they take six hours."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Something that a grid varies.

    Attributes:
        kind: What it is: the machine, the algorithms' file, a key of their files, or a flag of the
            bench.
        name: Its name in tables: `topology`, `ccl`, the key, or the flag.
        values: The values, in their order.
    """

    kind: Kind
    name: str
    values: tuple[str, ...]

    def of(self, spec: RunSpec, value: str) -> RunSpec:
        """Returns a specification with a value of this axis.

        Args:
            spec: The specification without it.
            value: One of the values.

        Raises:
            ConfigError: If no specification can have the value.
        """
        if self.kind == "topology":
            return replace(spec, topology=value)
        if self.kind == "ccl":
            return replace(spec, ccl=value)
        if self.kind == "set":
            return replace(spec, overrides=(*spec.overrides, f"{self.name}={value}"))
        return replace(spec, arguments=(*spec.arguments, self.name, value))


def axis_of(option: Kind, text: str) -> Axis:
    """Returns the axis of an option's value, such as `system.sips.count=2,4,8` of `--set`.

    Args:
        option: Name of the option, without dashes.
        text: Its value.

    Raises:
        UsageError: If it does not have the form of the option, or as of `axis`.
    """
    said = f"--{option} {text}"
    if option in {"topology", "ccl"}:
        return axis(option, option, split(text), said)
    name, equals, values = text.partition("=")
    if not equals or not name:
        word = "KEY" if option == "set" else "FLAG"
        raise UsageError(f"{said}: expected {word}=V1,V2,...")
    return axis(option, name, split(values), said)


def axis(kind: Kind, name: str, values: Iterable[str], said: str) -> Axis:
    """Returns a checked axis.

    Args:
        kind: See `Axis`.
        name: See `Axis`.
        values: See `Axis`.
        said: What the user has said, for errors.

    Raises:
        UsageError: If there is no value, a value comes twice, or a flag is none.
    """
    found = tuple(values)
    if not found or not all(found):
        raise UsageError(
            f"{said}: expected at least one value, and none that is empty",
            hint="a comma in a value is written as \\," if "," in said else "",
        )
    if twice := _twice(found):
        raise UsageError(f"{said}: {twice} comes twice", hint="a run of a sweep takes place once")
    if kind == "arg" and not re.match(r"--?[^\W\d]", name):
        dashes = "-" if len(name) == 1 else "--"
        raise UsageError(
            f"{said}: expected a flag of the bench, with its dashes",
            hint=f"did you mean `{dashes}{name}`?",
        )
    return Axis(kind, name, found)


def split(text: str) -> list[str]:
    r"""Returns the values of a text with commas between; of an empty text, one empty value.

    A comma inside of brackets, as in the list `[1,2]`, belongs to its value, and so does one that
    is written as `\,`.
    """
    values, depth = [""], 0
    for piece in re.findall(r"\\,|.", text, re.DOTALL):
        if piece == "," and depth <= 0:
            values.append("")
            continue
        depth += (piece in "[{(") - (piece in "]})")
        values[-1] += "," if piece == "\\," else piece
    return values


def grid(base: RunSpec, axes: Sequence[Axis]) -> list[Run]:
    """Returns the runs of a grid; the values of the last axis vary fastest.

    A machine or a file that is the only one is not among what varies.

    Args:
        base: What all runs have in common.
        axes: What varies.

    Raises:
        UsageError: If something is varied twice, or also held fast; or if there are more than
            `MOST_RUNS` runs.
    """
    if twice := _twice(axis.name for axis in axes):
        raise UsageError(f"{twice} is varied twice", hint="give all of its values in one option")
    fixed = {"arg": base.arguments, "set": base.overrides}
    for axis in axes:
        if any(text.partition("=")[0] == axis.name for text in fixed.get(axis.kind, ())):
            where = "arguments of the bench" if axis.kind == "arg" else "overrides"
            raise UsageError(f"--{axis.kind} {axis.name}: it stands among the {where}, too")
    _check_number(prod(len(axis.values) for axis in axes))
    keys, runs = Keys(), []
    for values in product(*(axis.values for axis in axes)):
        spec, varied = base, {}
        for axis, value in zip(axes, values, strict=True):
            spec = axis.of(spec, value)
            if axis.kind in {"set", "arg"} or len(axis.values) > 1:
                varied[axis.name] = value
        runs.append(Run(spec, varied, keys.of(spec)))
    return runs


def runs_of(
    specs: Iterable[RunSpec], varied: Sequence[Mapping[str, str]] | None = None
) -> list[Run]:
    """Returns the runs of specifications.

    Args:
        specs: The specifications.
        varied: What each of them varies; None for what differs between them.

    Raises:
        UsageError: If there are none, more than `MOST_RUNS`, or equal ones.
    """
    found = list(specs) if isinstance(specs, Iterable) else [specs]
    _check_number(len(found))
    for each in found:
        if not isinstance(each, RunSpec):
            raise UsageError(f"specs: expected run specifications, got {each!r}")
    first: dict[RunSpec, int] = {}
    for place, spec in enumerate(found, 1):
        if spec in first:
            raise UsageError(
                f"the runs {first[spec]} and {place} are equal",
                hint="a run of a sweep takes place once; leave one of them out",
            )
        first[spec] = place
    keys = Keys()
    return [
        Run(spec, named, keys.of(spec))
        for spec, named in zip(found, varied or _differences(found), strict=True)
    ]


def runs_of_file(path: Path) -> list[Run]:
    """Returns the runs of a JSON file.

    Args:
        path: File with a list of run specifications or of documents of `kernbench run --json`, or
            with one document of `kernbench run --json` or `kernbench sweep --json`.

    Raises:
        ConfigError: If the file cannot be read, or a specification cannot be used.
        UsageError: As of `runs_of`.
    """
    document = read_json(path, MOST_BYTES)
    if isinstance(document, dict) and "records" in document:
        records = read_document(path)
        return runs_of([r.run.spec for r in records], [r.run.varied for r in records])
    entries = document if isinstance(document, list) else [document]
    _check_number(len(entries))
    specs = []
    for place, entry in enumerate(entries, 1):
        plain = entry["spec"] if isinstance(entry, dict) and "spec" in entry else entry
        try:
            specs.append(RunSpec.from_json(plain))
        except ConfigError as error:
            raise ConfigError(f"{path}: run {place}", error.problems) from None
    return runs_of(specs)


def with_breakdowns(runs: Iterable[Run]) -> list[Run]:
    """Returns the same runs, each keeping every record, from which its breakdown is made."""
    keys = Keys()
    full = [replace(run, spec=replace(run.spec, record="full")) for run in runs]
    return [replace(run, key=keys.of(run.spec)) for run in full]


def check(runs: Sequence[Run]) -> None:
    """Checks what is cheap to check before any run: benches, machines, and keys of their files.

    A value that a machine refuses is found by the run, which then fails alone.

    Raises:
        UsageError: If a bench or a file does not exist or is unreadable, or a key is unknown.
    """
    for bench in dict.fromkeys(run.spec.bench for run in runs):
        if bench is None:
            raise UsageError("a run of a sweep names a bench, and one of these does not")
        find_bench(bench)
    for spec in _one_of_each_kind(runs):
        try:
            file = None if spec.ccl is None else Path(spec.ccl)
            check_default(file, spec.ccl_overrides, load_machine(spec).machine.system)
        except ConfigError as error:
            told = [problem for problem in error.problems if problem.code in _OF_ALL_RUNS]
            if told:
                raise ConfigError(spec.topology or "", told) from None
        except UsageError:
            pass  # the machine of this run does not fit; the run will tell


_OF_ALL_RUNS: Final = frozenset({"F1", "F6", "F9", "F10", "F11"})
"""Codes of problems that no other value of a key mends: unknown keys, unreadable files."""


def _one_of_each_kind(runs: Iterable[Run]) -> Iterator[RunSpec]:
    """Yields one specification for each set of files and keys."""
    seen = set()
    for run in runs:
        spec = run.spec
        keys = tuple(text.partition("=")[0] for text in spec.overrides)
        kind = spec.topology, spec.ccl, keys
        if kind not in seen:
            seen.add(kind)
            yield spec


def _twice(texts: Iterable[str]) -> str | None:
    """Returns the first text that comes twice; None if there is none."""
    seen = set()
    for text in texts:
        if text in seen:
            return text
        seen.add(text)
    return None


def _check_number(number: int) -> None:
    if not number:
        raise UsageError("the sweep has no runs", hint="give at least one run or value")
    if number > MOST_RUNS:
        raise UsageError(
            f"the sweep has {number:,} runs; the most are {MOST_RUNS:,}",
            hint="give fewer values, or several sweeps",
        )


def _differences(specs: Sequence[RunSpec]) -> list[dict[str, str]]:
    """Returns for each specification the values that are not the same in all of them."""
    flat = [_flat(spec) for spec in specs]
    names = dict.fromkeys(name for values in flat for name in values)
    differ = [name for name in names if len({values.get(name, "") for values in flat}) > 1]
    return [{name: values.get(name, "") for name in differ} for values in flat]


def _flat(spec: RunSpec) -> Mapping[str, str]:
    """Returns a specification as texts by name, its overrides by their keys."""
    values: dict[str, Any] = spec.to_json()
    del values["version"], values["overrides"]
    pytorch = values.pop("pytorch") or {}
    values |= {f"pytorch.{name}": value for name, value in pytorch.items()}
    texts = {
        name: join(value) if name == "arguments" else _text(value) for name, value in values.items()
    }
    return texts | dict(text.partition("=")[::2] for text in spec.overrides)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
