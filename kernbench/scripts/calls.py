"""`kernbench.spawn` and `kernbench.context`: a run in a line, for scripts and notebooks."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any, Final

from kernbench.ccl.config import local_file_notice
from kernbench.config.near import did_you_mean
from kernbench.errors import UsageError, call_site, site_fact
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.run_spec import PytorchRun, RunSpec
from kernbench.runtime_api.context import RuntimeContext

_OF_THE_COMMAND: Final = frozenset(
    {
        *("nproc_per_node", "as_torch", "pytorch"),
        *(field.name for field in fields_of(PytorchRun)),
    }
)
"""Fields that only a command can follow: they say how it runs a file."""


_warned: Final[dict[str, dict[Any, Any]]] = {}
"""Python's record of what was said, by file, so that a call in a loop is reported once."""


class LocalFileWarning(UserWarning):
    """A call uses the `ccl.yaml` of the working directory, and has not named it."""


def warn_of_local_file(spec: RunSpec) -> None:
    """Warns, at the user's line, that a `ccl.yaml` of the working directory is used.

    Args:
        spec: Specification of the run that begins.
    """
    notice, site = local_file_notice([spec.ccl], "ccl=FILE"), call_site()
    if notice is not None and site is not None:
        registry = _warned.setdefault(site.file, {})
        warnings.warn_explicit(notice, LocalFileWarning, site.file, site.line, registry=registry)


def spec_of_arguments(name: str, given: Mapping[str, Any], beside: tuple[str, ...] = ()) -> RunSpec:
    """Returns the specification that keyword arguments of a function say.

    Args:
        name: Name of the function, for errors.
        given: Values of fields of `RunSpec`, by name; `machine` is another name of `topology`.
        beside: Other parameters of the function, for `did you mean`.

    Raises:
        UsageError: If an argument is unknown, stands for another one that is given, or cannot be
            used.
    """
    __tracebackhide__ = True
    values = dict(given)
    known = {field.name for field in fields_of(RunSpec)} - _OF_THE_COMMAND
    for unknown in [each for each in values if each not in known and each != "machine"]:
        if unknown in _OF_THE_COMMAND:
            hint = "it says how `kernbench run` runs a file"
        else:
            hint = did_you_mean(unknown, [*known, *beside, "machine"])
        expected = ", ".join(sorted({*known, *beside, "machine"}))
        raise UsageError(
            f"{name} got an unknown argument {unknown}",
            [site_fact(call_site()), f"expected one of {expected}"],
            hint=hint,
        )
    if "machine" in values:
        if "topology" in values:
            raise UsageError(
                f"{name}(machine=, topology=): expected one of them, which mean the same",
                [site_fact(call_site())],
            )
        values["topology"] = values.pop("machine")
    try:
        return RunSpec.from_fields(values)
    except UsageError as error:
        raise error.with_traceback(None) from None


def context(machine: str | Path | None = None, **fields: Any) -> RuntimeContext:
    """Returns a simulated machine on which `kernbench.torch` acts inside `with`.

    Args:
        machine: A topology file, or the name of a shipped machine such as `h200x8`; by default
            `sip8`. The field of `RunSpec` is called `topology`, which is taken, too.
        fields: Further fields of `RunSpec`, such as `data=False`, `seed=3` or
            `overrides=["system.sips.count=4"]`.

    Raises:
        UsageError: If there is no such machine, or an argument is unknown or cannot be used.
    """
    __tracebackhide__ = True
    given = fields if machine is None else {"machine": machine, **fields}
    return _context("kernbench.context", given)


def _context(name: str, given: Mapping[str, Any], beside: tuple[str, ...] = ()) -> RuntimeContext:
    __tracebackhide__ = True
    spec = spec_of_arguments(name, given, beside)
    warn_of_local_file(spec)
    try:
        return RuntimeContext(spec)
    except UsageError as error:
        raise error.with_traceback(None) from None


def spawn(
    worker: Callable[..., object],
    *,
    nprocs: int = 8,
    args: tuple[Any, ...] = (),
    machine: str | Path | None = None,
    **fields: Any,
) -> RuntimeContext:
    """Calls `worker(rank, *args)` once for each rank of a fresh simulated machine.

    Args:
        worker: Function that runs as each rank; a function of a notebook's cell, too.
        nprocs: Number of ranks; rank r has the r-th device of the machine.
        args: Arguments of the worker after the rank.
        machine: The machine, as in `context`.
        fields: Further fields of `RunSpec`, as in `context`.

    Returns:
        The context, for a look at its state after the run.

    Raises:
        UsageError: If there is no such machine, or an argument is unknown or cannot be used.
        SpawnException: If a rank failed; the text tells each rank's failure with its line.
    """
    __tracebackhide__ = True
    given = fields if machine is None else {"machine": machine, **fields}
    ctx = _context("kernbench.spawn", given, ("args", "nprocs"))
    try:
        with ctx:
            ctx.multiprocessing.spawn(worker, args=args, nprocs=nprocs)
    except SpawnException as error:
        # Its text has the users' lines; the frames below this one are not theirs.
        raise error.with_traceback(None) from None
    return ctx
