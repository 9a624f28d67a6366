"""Makes the tables of `docs/command_line.md` of the commands and their options themselves.

`python tests/docs/docs_command_line.py` writes them into the document anew.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast, get_args

import typer

from kernbench.cli.app import app
from kernbench.cli.option_table import options_of
from kernbench.cli.program_command import default_of
from kernbench.run_spec.options import CommandName, Option

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "command_line.md"

_HEAD: Final = "| option | meaning | default |\n|---|---|---|\n"
_HELP: Final = "| `--help` | shows all this | |\n"
_ALL: Final = "| command | what it does |\n|---|---|\n"


def commands() -> dict[str, Any]:
    """Returns all commands that run something, by their names, such as `collective check`."""
    found: dict[str, Any] = {}

    def walk(group: Any, before: str) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                walk(command, f"{before}{name} ")
            else:
                found[before + name] = command

    walk(typer.main.get_command(app), "")
    return found


def sections(text: str) -> dict[str, re.Match[str]]:
    """Returns the headings of commands, by the names of the commands.

    Args:
        text: The document.
    """
    found = {}
    for heading in re.finditer(r"^##+ `kernbench (.*)`\n", text, re.MULTILINE):
        name = re.match(r"[a-z][a-z-]*(?: [a-z][a-z-]*)*", heading[1])
        assert name is not None, heading[0]
        found[name[0]] = heading
    return found


def with_tables(text: str) -> str:
    """Returns the document with the tables that the commands say.

    Args:
        text: The document.
    """
    all_of = commands()
    before, head, after = text.partition(_ALL)
    assert head, "no table of commands"
    rows = "".join(_named(name, command, text) for name, command in all_of.items())
    text = before + head + rows + re.sub(r"\A(\|.*\n)*", "", after)
    for name, command in all_of.items():
        start = sections(text)[name].end()
        place = text.find(_HEAD, start)
        following = re.search(r"^##+ `kernbench", text[start:], re.MULTILINE)
        end = start + following.start() if following else len(text)
        table = [*rows_of(name, command)]
        if not table:
            assert not start <= place < end, f"kernbench {name} has no options"
            continue
        assert start <= place < end, f"kernbench {name} has no table"
        place += len(_HEAD)
        stop = text.index(_HELP, place)
        text = text[:place] + "".join(f"{row}\n" for row in table) + text[stop:]
    return text


def _named(name: str, command: Any, text: str) -> str:
    title = sections(text)[name][0].lstrip("#").strip().strip("`")
    anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
    told = command.get_short_help_str(limit=200).removesuffix(".").replace("|", "\\|")
    return f"| [`{name}`](#{anchor}) | {told} |\n"


def rows_of(name: str, command: Any) -> list[str]:
    """Returns the rows of the table of a command, without that of `--help`."""
    if name in get_args(CommandName):
        return _rows_of_program(cast(CommandName, name))
    return [*_rows(command)]


def _rows(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            names = f"`{parameter.metavar}`"
        elif parameter.is_flag:
            names = _names(parameter.opts, "")
        else:
            names = _names(parameter.opts, f" {parameter.metavar}")
        help_, default = parameter.help, parameter.default
        told = getattr(parameter, "show_default", None)
        if parameter.required:
            default = "**required**" if parameter.param_type_name == "option" else ""
        elif isinstance(told, str):
            default = told
        else:
            default = "" if default is None or default is False else f"`{default}`"
        yield _cells(names, _small(help_).removesuffix("."), default)


def _names(flags: list[str], value: str) -> str:
    return ", ".join([f"`{flags[0]}{value}`", *(f"`{flag}{value}`" for flag in flags[1:])])


def _small(text: str) -> str:
    """Returns a sentence with a small letter at its beginning, but for names."""
    name = text[1].isupper() or text.startswith(("Python ", "PyTorch "))
    return text if name else text[0].lower() + text[1:]


def _rows_of_program(command: CommandName) -> list[str]:
    options = options_of(command)
    if command == "run":
        return [_row(option) for option in options]
    of_run = options_of("run")
    own = [_row(option) for option in options if option not in of_run]
    flags = [f"`{flag}`" for each in options if each in of_run for flag in each.flags]
    whose = "of every run, as" if command == "sweep" else "as"
    return [*own, f"| {', '.join(flags)} | {whose} of `kernbench run` | |"]


def _row(option: Option) -> str:
    value = option.metavar or "|".join(option.choices)
    flag = option.flags[0] if option.kind == "flag" else f"{option.flags[0]} {value}"
    names = [f"`{flag}`", *(f"`{short}`" for short in option.flags[1:])]
    said = option.help[0].lower() + option.help[1:].removesuffix(".") + option.more
    default = default_of(option)
    if option.kind == "flag" or default is None:
        told = option.default_told
    else:
        told = f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
    return _cells(", ".join(names), said, told)


def _cells(*cells: str) -> str:
    row = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return f"| {row} |".replace("|  |", "| |")


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
