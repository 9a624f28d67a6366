"""Commands that run programs, made of the rows of `option_table`."""

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import typer
from typer.core import TyperCommand

from kernbench.cli.option_table import GROUPS, OPTIONS, options_of, outputs_of
from kernbench.cli.output import Output
from kernbench.errors import UsageError
from kernbench.run_spec import PytorchRun, RunSpec
from kernbench.run_spec.options import CommandName, Option, of_command
from kernbench.run_spec.specification import usual_of

if TYPE_CHECKING:
    from kernbench.config import ConfigError

_TYPES: Final[Mapping[str, Any]] = {
    "flag": bool,
    "whole": str,  # read by `_given`
    "number": str,
    "text": str,
    "texts": list[str],
    "file": Path,
}


class Varied(NamedTuple):
    """An option of the command line that may have several values.

    Attributes:
        option: Its name without dashes.
        text: Its value.
    """

    option: Literal["topology", "ccl", "set", "arg"]
    text: str


class Plain(TyperCommand):
    """A command whose texts are written for documents; `--help` shows them as `plain` does."""

    def get_help(self, ctx: Any) -> str:
        """See `click.Command.get_help`."""
        return plain(super().get_help(ctx))


class Command(TyperCommand):
    """Shows its options by group, and says which command has an option that it has not."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """See `click.Command.format_options`.

        Args:
            formatter: Takes the text.
        """
        sections: dict[str, list[Any]] = {name: [] for name in ("Arguments", *GROUPS, "Help")}
        for parameter in self.get_params(ctx):
            group = getattr(parameter, "rich_help_panel", None) or "Help"
            name = "Arguments" if parameter.param_type_name == "argument" else group
            sections[name].append(parameter.get_help_record(ctx))
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`.

        Args:
            args: The words behind the command.

        Raises:
            typer.BadParameter: If a word is an option of another command, or of no command.
        """
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # typer has no public name for the error about an option that is not there.
            flag = getattr(error, "option_name", "")
            own = any(flag in parameter.opts for parameter in self.params)  # without its value
            others = None if own else _elsewhere(flag)
            name, near = ctx.info_name, getattr(error, "possibilities", None)
            if others is None and flag and not own and not near and name in {"run", "sweep"}:
                others = (
                    f"kernbench {name} has no such option; those of the program come behind --: "
                    f"kernbench {name} PROGRAM -- {flag} ..."
                )
            if others is None:
                raise
            raise typer.BadParameter(others, param_hint=flag) from None


def _elsewhere(flag: str) -> str | None:
    """Returns what is said of an option that a command has not, but others have."""
    having = [option for option in OPTIONS if flag in option.flags]
    if not having:
        return None
    commands = dict.fromkeys(name for option in having for name in option.commands)
    names = " and ".join(f"kernbench {name}" for name in commands)
    why = next((option.why for option in having if option.why), "")
    return f"only {names} {'has' if len(commands) == 1 else 'have'} it" + (
        f": here {why}" if why else ""
    )


def with_options(command: CommandName, function: Callable[..., None]) -> Callable[..., None]:
    """Returns a function with a parameter for each option of a command, which typer reads.

    Args:
        function: Takes arguments of its own, and the options by name.
    """
    taken = options_of(command)

    @wraps(function)
    def run(**given: Any) -> None:
        function(**{**given, **{each.name: _given(each, given[each.name]) for each in taken}})

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    options = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default_of(option),
            annotation=_annotation(option),
        )
        for option in taken
    ]
    vars(run)["__signature__"] = inspect.Signature([*own, *options])
    return run


def _given(option: Option, value: Any) -> Any:
    """Returns what an option was given, as its kind has it.

    Raises:
        typer.BadParameter: If it takes no such text, or no such number.
    """
    if option.choices:
        if value in option.choices:
            return value
        expected = f"one of {', '.join(option.choices)}"
    elif option.kind in {"whole", "number"} and value is not None:
        with suppress(ValueError):
            number = int(value) if option.kind == "whole" else float(value)
            if option.least is None or number >= option.least:
                return number
        expected = "a whole number" if option.kind == "whole" else "a number"
        expected += "" if option.least is None else f" from {option.least}"
    else:
        return value
    raise typer.BadParameter(f"expected {expected}; got {value!r}", param_hint=option.flags[0])


def default_of(option: Option) -> Any:
    """Returns the value that the command line gives without an option."""
    if option.kind == "flag":
        return False
    if not option.sets:
        return option.default
    values = usual_of(option)
    if option.default_told or option.kind == "texts" or (None in values and option.write is str):
        return None
    return values[0] if option.kind in {"whole", "number"} else option.write(*values)


def _annotation(option: Option) -> Any:
    kind = _TYPES[option.kind]
    choices = [*option.choices]
    said = typer.Option(
        *option.flags,
        metavar=f"<{'|'.join(choices)}>" if choices else option.metavar,
        autocompletion=(lambda: choices) if choices else None,
        help=plain(option.help),
        show_default=plain(option.default_told) or True,
        rich_help_panel=option.group,
    )
    return Annotated[kind if default_of(option) is not None else kind | None, said]


def plain(text: str) -> str:
    """Returns a text for terminals: backticks stay where they hold several words together.

    Args:
        text: A text for documents.
    """
    return re.sub(r"`([^\s`]+)`", r"\1", text)


def value_of(option: Option, options: Mapping[str, Any]) -> Any:
    """Returns what an option says of the fields that it sets.

    Args:
        options: The values of options by name.

    Raises:
        typer.BadParameter: If its value is malformed.
    """
    value = options[option.name]
    try:
        return None if value is None else option.read(value)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option.flags[0]) from None


def output_of_options(command: CommandName, options: Mapping[str, Any]) -> Output:
    """Returns what a run shows and writes, as options of a command say.

    Args:
        options: Their values by name.

    Raises:
        typer.BadParameter: If a value is malformed.
    """
    return Output(**{each.name: value_of(each, options) for each in outputs_of(command)})


def spec_of_options(
    command: CommandName, options: Mapping[str, Any], bench: str, arguments: Sequence[str] | None
) -> RunSpec:
    """Returns the specification that options of a command say.

    Args:
        options: Their values by name.
        bench: The program.

    Raises:
        typer.BadParameter: If a value is malformed.
        ConfigError: If a value cannot be used.
    """
    found: dict[str, Any] = {"bench": bench, "arguments": tuple(arguments or ())}
    for option in of_command(command):
        value = value_of(option, options)
        if option.kind == "texts":
            value = tuple(value or ())
        found |= zip(option.sets, value if len(option.sets) > 1 else (value,), strict=True)
    of_pytorch = {
        name.removeprefix("pytorch."): found.pop(name) for name in [*found] if "." in name
    }
    try:
        spec = RunSpec(**found, pytorch=PytorchRun(**of_pytorch) if of_pytorch else None)
    except UsageError as error:
        raise _by_flag(command, error) from None
    if spec.max_time_ps and spec.fidelity == "functional":
        raise typer.BadParameter(
            "no run passes it with --fidelity functional, which has no time; --watchdog and "
            "--step-budget end a loop",
            param_hint="--max-time",
        )
    return spec


def _by_flag(command: CommandName, error: UsageError) -> "ConfigError":
    """Returns the error about fields of a specification with the flags that set them."""
    from kernbench.config import ConfigError  # late, as it imports YAML, and only mistakes need it

    assert isinstance(error, ConfigError)
    flags = {
        field.removeprefix("pytorch."): option.flags[0]
        for option in of_command(command)
        for field in option.sets
    }
    problems = [replace(each, where=flags.get(each.where, each.where)) for each in error.problems]
    return ConfigError(f"kernbench {command}", problems)


def check_alone(context: typer.Context, command: CommandName) -> None:
    """Checks that no option beside `--spec` sets what the specification sets.

    Args:
        context: Knows which parameters the command line gives.

    Raises:
        typer.BadParameter: If one does; the error names all such options.
    """
    allowed = {each.name for each in options_of(command) if not (each.sets or each.varies)}
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


def with_value(command: CommandName) -> Collection[str]:
    """Returns the flags of a command that have a value, which may look like any option."""
    return {flag for each in options_of(command) if each.kind != "flag" for flag in each.flags}
