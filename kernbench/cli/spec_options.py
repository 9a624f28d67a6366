"""Options of the command line as run specifications."""

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

import typer

from kernbench.run_spec import RunSpec

USUAL: Final = RunSpec()
"""A specification with all defaults."""


class Switch(StrEnum):
    """A dial with two settings."""

    on = "on"
    off = "off"


class Varied(NamedTuple):
    """An option of the command line that may have several values.

    Attributes:
        option: Its name without dashes.
        text: Its value.
    """

    option: Literal["topology", "ccl", "set", "arg"]
    text: str


def spec_of_options(options: Mapping[str, Any]) -> RunSpec:
    """Returns the specification that options of `kernbench run` say.

    Args:
        options: Their values by name of the parameter; one that is missing has its default.

    Raises:
        typer.BadParameter: If a value is malformed.
        ConfigError: If a value cannot be used.
    """
    devices, schedule = options["devices"], options["schedule"]
    witnesses = options.get("witnesses")
    return RunSpec(
        topology=options.get("topology", USUAL.topology),
        ccl=options.get("ccl"),
        overrides=tuple(options.get("set_") or ()),
        devices="all" if devices == "all" else _numbers(devices, _DEVICES, ","),
        data="fake" if options["data"] == "fake" else options["data"] == Switch.on,
        default_device=options["default_device"],
        fidelity=options["fidelity"],
        shadow=options["shadow"],
        seed=options["seed"],
        eager_limit=options["eager_limit"],
        watchdog_s=options["watchdog"],
        max_time_ps=_time(options["max_time"]),
        step_budget=options["step_budget"],
        group_limit=options["group_limit"],
        schedule=None if schedule == "0" else _numbers(schedule, _SCHEDULE, "."),
        bench=options["bench"],
        arguments=tuple(options["arguments"] or ()),
        nproc_per_node=options["nproc_per_node"],
        as_torch=options["as_torch"],
        pytorch=options.get("pytorch", False),
        nodes=options.get("nodes", 1),
        as_module=options.get("as_module", False),
        same_ranks=options.get("same_ranks", False),
        witnesses=None if witnesses is None else _numbers(witnesses, _WITNESSES, ","),
        check_replicas=options.get("check_replicas", False),
        races=options.get("races", USUAL.races),
    )


def _time(text: str) -> int:
    """Returns the picoseconds of an option's value.

    Raises:
        typer.BadParameter: If it is neither 0 nor a time with a unit.
    """
    if text == "0":
        return 0
    from kernbench.units import UnitError, parse_time

    try:
        return parse_time(text)
    except UnitError as error:
        raise typer.BadParameter(str(error), param_hint="--max-time") from None


_SCHEDULE: Final = (r"[1-9]\d*(\.[1-9]\d*)*", "numbers from 1 with dots between, such as 2.1; or 0")
_DEVICES: Final = (r"\d+(,\d+)*", "numbers with commas between, such as 0,2,5; or all")

_WITNESSES: Final = (r"\d+(,\d+)*", "ranks with commas between, such as 3,17")


def _numbers(text: str, form: tuple[str, str], between: str) -> tuple[int, ...]:
    """Returns the numbers of an option's value.

    Args:
        text: The value.
        form: The form of the value, as a regular expression and in words.
        between: Separator of the numbers.

    Raises:
        typer.BadParameter: If the value does not have the form.
    """
    pattern, words = form
    if not re.fullmatch(pattern, text, re.ASCII):
        raise typer.BadParameter(f"expected {words}")
    return tuple(map(int, text.split(between)))


def check_alone(context: typer.Context, allowed: Collection[str]) -> None:
    """Checks that no option beside `--spec` sets what the specification sets.

    Args:
        context: Knows which parameters the command line gives.
        allowed: Parameters that may stand beside it.

    Raises:
        typer.BadParameter: If one does; the error names all such options.
    """
    beside = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        given = source is not None and source.name == "COMMANDLINE"
        if given and parameter.name not in allowed:
            option = parameter.opts[0]
            beside.append(option if option.startswith("-") else option.upper())
    if beside:
        raise typer.BadParameter(
            f"the file says what runs, so {', '.join(beside)} cannot stand beside it",
            param_hint="--spec",
        )
