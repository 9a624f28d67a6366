"""Cases: functions that run on every rank, found by name in any process."""

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import FrameType, FunctionType
from typing import Any, Final, TypeVar, overload

from kernbench.errors import UsageError, call_site, site_fact
from kernbench.run_spec import RunSpec

Body = Callable[..., object]
"""Called on every rank as `body(ctx, rank, **kwargs)`."""

B = TypeVar("B", bound=Body)

WATCHDOG_S: Final = RunSpec().watchdog_s
"""Seconds of wall time that a case may take without a simulated step, if nobody says otherwise."""

_OF_RUN: Final = ("request", "case", "world_size")
"""Parameters of `world_batch.run`, which can therefore not go to a case."""


@dataclass(frozen=True, slots=True)
class Case:
    """A function that was registered with `dist_case`.

    Attributes:
        name: Its name, unique in a process.
        body: The function.
        fields: Fields of `RunSpec` for its runs.
        imported: Identifies the import of its module; another one registers the case anew.
        signature: How it is called.
        specs: Specifications of its runs so far, see `spec_of_case`.
    """

    name: str
    body: Body
    fields: Mapping[str, Any]
    signature: inspect.Signature = field(repr=False, compare=False)
    imported: object = field(default=None, repr=False)
    specs: dict[tuple[Any, ...], RunSpec] = field(default_factory=dict, repr=False, compare=False)

    @property
    def module(self) -> str:
        """Name of the module that registers the case when it is imported."""
        return self.body.__module__

    @property
    def file(self) -> str:
        """The file of that module."""
        return os.path.abspath(_innermost(self.body).__code__.co_filename)

    @property
    def place(self) -> str:
        """File and line of the function."""
        return f"{self.file}:{_innermost(self.body).__code__.co_firstlineno}"


_CASES: Final[dict[str, Case]] = {}


@overload
def dist_case(body: B) -> B: ...


@overload
def dist_case(*, name: str = "", **fields: Any) -> Callable[[B], B]: ...


def dist_case(body: B | None = None, *, name: str = "", **fields: Any) -> B | Callable[[B], B]:
    """Registers a function as a case: it runs on every rank as `body(ctx, rank, **kwargs)`.

    Args:
        body: The function, of the top level of a module.
        name: Name of the case; by default that of the function.
        fields: Fields of `RunSpec` for its runs, such as `data=False`; `machine` is `topology`.
            They win over the options of the session, such as `--kb-machine`.

    Raises:
        UsageError: If another function has the name, another process could not find the function,
            or a field cannot be used.
    """
    __tracebackhide__ = True
    if fields:
        from kernbench.scripts.calls import spec_of_arguments

        spec_of_arguments("dist_case", fields, ("name",))

    def register(body: B) -> B:
        __tracebackhide__ = True
        _check_can_be_found(body)
        _check_takes_what_cases_get(body)
        imported = _innermost(body).__globals__.get("__spec__")
        case = Case(name or body.__name__, body, dict(fields), inspect.signature(body), imported)
        before = _CASES.get(case.name)
        if before is not None and not _replaces(case, before):
            raise UsageError(
                f"two cases are called {case.name!r}",
                [f"one is at {before.place}", f"the other one is at {case.place}"],
                hint="give one of them another name: @dist_case(name=...)",
            )
        _CASES[case.name] = case
        return body

    return register if body is None else register(body)


def find_case(name: str) -> Case:
    """Returns the case of a name.

    Raises:
        UsageError: If there is none.
    """
    __tracebackhide__ = True
    case = _CASES.get(name) if isinstance(name, str) else None
    if case is None:
        from kernbench.config.near import did_you_mean

        known = ", ".join(sorted(_CASES)) or "none: decorate a function with @dist_case"
        raise UsageError(
            f"no case is called {name!r}",
            [site_fact(call_site()), f"the cases are {known}"],
            hint=did_you_mean(str(name), _CASES),
        )
    return case


def spec_of_case(
    case: Case, machine: str | None, seed: int, max_time_ps: int, watchdog_s: float
) -> RunSpec:
    """Returns the specification of the runs of a case.

    Args:
        case: The case; its own fields win.
        machine: A machine; None for that of `RunSpec`.
        seed: Where the random generators of ranks start.
        max_time_ps: Simulated picoseconds that it may take; 0 for no limit.
        watchdog_s: Seconds of wall time that it may take without a simulated step.

    Raises:
        UsageError: If a field cannot be used.
    """
    __tracebackhide__ = True
    from kernbench.scripts.calls import spec_of_arguments

    known = case.specs.get((machine, seed, max_time_ps, watchdog_s))
    if known is not None:
        return known
    given: dict[str, Any] = {"seed": seed, "max_time_ps": max_time_ps, "watchdog_s": watchdog_s}
    if machine is not None and not {"machine", "topology"} & case.fields.keys():
        given["machine"] = machine
    spec = spec_of_arguments("dist_case", {**given, **case.fields})
    case.specs[machine, seed, max_time_ps, watchdog_s] = spec
    return spec


def _innermost(body: Body) -> FunctionType:
    """Returns the function that decorators have wrapped."""
    inner: Any = inspect.unwrap(body)
    assert isinstance(inner, FunctionType)
    return inner


def _check_can_be_found(body: object) -> None:
    """Refuses what another process would not register when it imports the module."""
    __tracebackhide__ = True
    why = ""
    if not isinstance(body, FunctionType) or not isinstance(inspect.unwrap(body), FunctionType):
        why = f"expected a function, got {type(body).__name__}"
    elif inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body):
        why = f"{body.__name__} is a generator or a coroutine: calling it runs nothing"
    elif body.__name__ == "<lambda>":
        why = "a lambda has no name by which it could be found"
    elif "." in body.__qualname__:
        why = f"{body.__qualname__} is not at the top level of its module"
    elif not _is_being_imported(_innermost(body).__globals__):
        why = f"it is registered after {body.__module__} has been imported, or by another module"
    if why:
        raise UsageError(
            "dist_case cannot register this function",
            [site_fact(call_site()), why],
            hint="another process finds a case by importing its module: write "
            "`@dist_case` above a `def` at the top level of a file",
        )


def _is_being_imported(module: Mapping[str, Any]) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals is module:
            return True
        frame = frame.f_back
    return False


def _check_takes_what_cases_get(body: Body) -> None:
    __tracebackhide__ = True
    parameters = inspect.signature(body).parameters.values()
    positional = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    some = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    taken = [p.name for p in positional[2:] if p.name in _OF_RUN]
    taken += [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name in _OF_RUN]
    why = ""
    if len(positional) < 2 and not some:
        why = f"expected the parameters ctx, rank, ..., got {inspect.signature(body)}"
    elif taken:
        why = f"its parameter {taken[0]} is one of world_batch.run, which cannot pass it on"
    if why:
        raise UsageError(
            f"dist_case cannot register {body.__name__}",
            [f"it is at {_innermost(body).__code__.co_filename}", why],
            hint="a case runs on every rank as body(ctx, rank, **kwargs)",
        )


def _replaces(case: Case, before: Case) -> bool:
    """Returns whether a case is the same function, from another import of its file.

    Any case may replace one whose module is gone, such as that of another session of pytest.
    """
    module = sys.modules.get(before.module)
    if module is None or vars(module) is not _innermost(before.body).__globals__:
        return True
    same = case.file == before.file and case.body.__qualname__ == before.body.__qualname__
    anew = case.imported is not before.imported or case.place == before.place
    return same and anew


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRequest:
    """One run of a case, as plain values: it may cross to another process.

    Attributes:
        nodeid: The test that asks, with `#1` and so on if it asks more than once.
        case: Name of the case.
        module: Module that registers it.
        file: File of that module.
        world_size: Number of ranks.
        seed: Where the random generators of Python, numpy and the ranks start.
        kwargs: Arguments of the case, JSON values.
        env: Environment variables that the test has changed; None removes one.
        machine: Machine of cases that name none; None for that of `RunSpec`.
        folder: Current folder of the case; empty for that of the process.
        max_time_ps: Simulated picoseconds that a case may take; 0 for no limit.
        leaks: What a leak is: `fail`, `warn`, or `off` for no look.
        watchdog_s: Seconds of wall time that a case may take without a simulated step, at most.
        as_torch: Whether `import torch` means `kernbench.torch` in the module.
        asserts: How pytest tells failed assertions of the module; None if as Python does.
        filters: Filters of warnings, see `warned.encoded_filters`; None for those of the process.
    """

    nodeid: str
    case: str
    module: str
    file: str
    world_size: int
    seed: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    folder: str = ""
    machine: str | None = None
    max_time_ps: int = 0
    leaks: str = "fail"
    watchdog_s: float = WATCHDOG_S
    as_torch: bool = False
    asserts: Mapping[str, Any] | None = None
    filters: Sequence[Sequence[Any]] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the request as plain values."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "CaseRequest":
        """Returns the request of plain values such as those of `to_json`.

        Args:
            document: The values by name; what the protocol adds is left out.
        """
        known = [each.name for each in fields(cls)]
        return cls(**{name: document[name] for name in known if name in document})
