"""Makes the tables of options in `docs/command_line.md` of the options themselves.

`python tests/docs/docs_command_line.py` writes them into the document anew.
"""

import re
from pathlib import Path
from typing import Final, get_args

from kernbench.cli.option_table import options_of
from kernbench.cli.program_command import default_of
from kernbench.run_spec.options import CommandName, Option

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "command_line.md"
COMMANDS: Final[tuple[CommandName, ...]] = get_args(CommandName)

_TABLE: Final = r"(^## `kernbench {} .*?^\|---\|---\|---\|\n).*?(?=^\| `--help`)"


def with_tables(text: str) -> str:
    """Returns the document with the tables that the options say.

    Args:
        text: The document.
    """
    for command in COMMANDS:
        pattern = re.compile(_TABLE.format(command), re.MULTILINE | re.DOTALL)
        assert pattern.search(text), command
        rows = "".join(f"{row}\n" for row in rows_of(command))
        text = pattern.sub(lambda found, rows=rows: found[1] + rows, text)  # type: ignore[misc]
    return text


def rows_of(command: CommandName) -> list[str]:
    """Returns the rows of the table of a command."""
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
    cells = [", ".join(names), said, told]
    row = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return f"| {row} |".replace("|  |", "| |")


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
