"""Finds the entries of docs/errors.md and the reports that they show.

`python tests/docs/docs_errors.py` writes the reports into docs/errors.md anew.
"""

import ast
import contextlib
import io
import os
import re
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "errors.md"
PROGRAMS: Final = Path(__file__).with_name("docs_errors_examples.py")

WHOLE: Final = "How to read a report"
"""The heading above a report as the command line shows it, of the first code."""

_SHOWN: Final = re.compile(
    rf"^##+ ({WHOLE}|[A-Z]\d+)\n(?:(?!^##).)*?^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_PLACE: Final = re.compile(rf"[^\s\"]*{PROGRAMS.name}(:|\", line )(\d+)|\(l\.(\d+)\)")


def shown(text: str) -> dict[str, str]:
    """Returns the reports of a page, by the heading above them: a code, or `WHOLE`."""
    return {match[1]: match[2] for match in _SHOWN.finditer(text)}


def report(heading: str) -> str:
    """Runs the program of a code and returns what is told, without the paths of this computer.

    Args:
        heading: A code, or `WHOLE` for all that the command line shows of the first code.
    """
    from docs_errors_examples import EXAMPLES

    from kernbench.testing import Kernbench

    code = next(iter(EXAMPLES)) if heading == WHOLE else heading
    kernbench = Kernbench()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as around:
        folder = Path(name).resolve()
        around.enter_context(contextlib.chdir(folder))
        around.enter_context(contextlib.redirect_stdout(io.StringIO()))
        around.callback(sys.path.__setitem__, slice(None), list(sys.path))
        caught = around.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        try:
            EXAMPLES[code](kernbench)
        except Exception as error:
            text = _on_command_line(error) if heading == WHOLE else _told(error, code)
        else:
            (warning,) = caught
            text = f"{warning.category.__name__}: {warning.message}"
    kernbench.check_nothing_left()
    return _PLACE.sub(_place, text).replace(str(folder), "/project") + "\n"


def _told(error: Exception, code: str) -> str:
    """Returns the class and the text of an error; of a spawn that of the ranks with this code."""
    from kernbench.errors import KernbenchError
    from kernbench.runtime_api.multiprocessing import SpawnException

    if isinstance(error, SpawnException):
        for _, cause, text in error.alike():
            if isinstance(cause, KernbenchError) and cause.code == code:
                return f"{type(cause).__name__}: {text}"
    if not isinstance(error, KernbenchError):
        raise error
    return f"{type(error).__name__}: {error}"


def _on_command_line(error: Exception) -> str:
    from kernbench.cli.failures import failed

    with contextlib.redirect_stderr(io.StringIO()) as text:
        failed(error, "kernbench run c1.py --seed 0")
    return text.getvalue().rstrip("\n")


def _place(found: re.Match[str]) -> str:
    line = int(found[2] or found[3])
    name, first = next((name, first) for name, first, last in _programs() if first <= line <= last)
    line += 1 - first
    return f"{name}.py{found[1]}{line}" if found[1] else f"(l.{line})"


@cache
def _programs() -> list[tuple[str, int, int]]:
    """Returns the name of each program, the line of its `def`, and its last line."""
    tree = ast.parse(PROGRAMS.read_text(encoding="utf-8"))
    return [
        (node.name, node.lineno, node.end_lineno or node.lineno)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    ]


def main() -> None:
    """Writes the reports into the page anew."""
    text = PAGE.read_text(encoding="utf-8")
    for match in reversed(list(_SHOWN.finditer(text))):
        text = text[: match.start(2)] + report(match[1]) + text[match.end(2) :]
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    main()
