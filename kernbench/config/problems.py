"""What is wrong with a file: every problem with its place, all of a file in one error."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from kernbench.errors import UsageError

_SHOWN_PROBLEMS: Final = 50
_SHOWN_WIDTH: Final = 96


def short(text: str, width: int = 60) -> str:
    """Returns the text on one line, cut to `width` characters."""
    cut = text if len(text) <= width else text[: width - 3] + "..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a file or an override.

    Attributes:
        code: Class of the mistake, `F1` to `F16`.
        where: `path:line:column`, the path alone, or the override.
        field: Dotted field; empty when the mistake is not in a field.
        message: What was expected and what was found.
        source: Text of the line of the file; empty if there is no line to show.
        column: Column in `source`, from 1.
        hint: `did you mean ...?`, or empty.
    """

    code: str
    where: str
    field: str
    message: str
    source: str = ""
    column: int = 0
    hint: str = ""

    def lines(self) -> list[str]:
        """Returns the problem as lines: the mistake, the source line with a caret, the hint."""
        field = f"{self.field}: " if self.field else ""
        lines = [f"{self.where}: {field}{self.message} [{self.code}]"]
        if self.source:
            start = max(0, self.column - _SHOWN_WIDTH)
            shown = self.source[start : start + _SHOWN_WIDTH].rstrip()
            # Tabs are kept in the padding, so that the caret stands below its character.
            before = self.source[start : self.column - 1]
            padding = "".join(c if c == "\t" else " " for c in before)
            lines += [f"    {shown}", f"    {padding}^"]
        if self.hint:
            lines.append(f"    {self.hint}")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _place(problem: Problem) -> tuple[int, int]:
    """Returns the line and the column of a problem; problems without them sort last."""
    numbers = re.search(r":(\d+):(\d+)$", problem.where) if problem.column else None
    return (int(numbers[1]), int(numbers[2])) if numbers else (1 << 30, 0)


class ConfigError(UsageError):
    """A file that cannot be used.

    The error has the code of its problems if they all share one.

    Args:
        name: The file as the user named it.
        problems: Everything that is wrong with the file.

    Attributes:
        problems: Everything that is wrong with the file, in order of place.
    """

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=_place))
        count = len(problems)
        facts = [line for problem in self.problems[:_SHOWN_PROBLEMS] for line in problem.lines()]
        if count > _SHOWN_PROBLEMS:
            facts.append(f"and {count - _SHOWN_PROBLEMS} more")
        codes = {problem.code for problem in problems}
        code = codes.pop() if len(codes) == 1 else ""
        super().__init__(f"{name}: {count} problem{'s' if count > 1 else ''}", facts, code=code)

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the problems, each once, in order of place."""
        return tuple(dict.fromkeys(problem.code for problem in self.problems))

    def as_json(self) -> dict[str, object]:
        """Returns the report as plain values."""
        return {**super().as_json(), "problems": [asdict(problem) for problem in self.problems]}
