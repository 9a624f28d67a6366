"""An entry of `Args:` says more than the name of its parameter."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).resolve().parents[2] / "kernbench"
ARTICLES: Final = {"a", "an", "its", "the"}


def _entries(docstring: str) -> Iterator[tuple[str, str]]:
    _, _, rest = docstring.partition("Args:\n")
    for line in rest.partition("\n\n")[0].splitlines():
        if match := re.fullmatch(r"    \*{0,2}(\w+): (.*)", line):
            yield match[1], match[2]


def says_nothing(name: str, text: str) -> bool:
    """Returns whether an entry has only the words of the parameter's name."""
    said = set(re.findall(r"\w+", text.lower())) - ARTICLES
    return said <= {name, *name.split("_")}


@pytest.mark.parametrize(
    "room", sorted({p.relative_to(PACKAGE).parts[0] for p in PACKAGE.rglob("*.py")})
)
def test_no_entry_only_repeats_a_name(room: str) -> None:
    found = []
    place = PACKAGE / room
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for name, text in _entries(ast.get_docstring(node) or ""):
                    if says_nothing(name, text):
                        found.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {name}: {text}")
    assert found == []


@pytest.mark.parametrize(
    ("name", "text", "nothing"),
    [
        ("rank", "The rank.", True),
        ("event_loop", "Its event loop.", True),
        ("rank", "The rank; None for all.", False),
        ("shape", "Shape of the result.", False),
        ("time", "In picoseconds.", False),
    ],
)
def test_what_says_nothing_is_known(name: str, text: str, nothing: bool) -> None:
    assert says_nothing(name, text) is nothing
