"""docs/errors.md has every code of the package, each with the report of a program that is run here.

`python tests/docs/docs_errors.py` writes the reports of the page anew.
"""

import ast
import re
from collections import Counter
from pathlib import Path

import docs_errors
import pytest
from docs_errors_examples import EXAMPLES

from kernbench.cli.explaining import entries

PAGE = docs_errors.PAGE.read_text(encoding="utf-8")
SHOWN = docs_errors.shown(PAGE)

NO_REPORT = {"C16", "K8"}
"""Codes that no program can cause; the page says why."""

NEVER_RAISED = {"C16"}
"""Codes that are not in the source either."""


def _codes(path: Path) -> set[str]:
    """Returns the codes in the strings of a file that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    ]
    found = (re.match(r"([CPMKRF]\d+)$|\[([CPMKRF]\d+)\] ", text) for text in texts)
    return {match[1] or match[2] for match in found if match is not None}


def test_every_code_of_the_package_has_one_entry_and_every_entry_a_code() -> None:
    raised = set().union(*map(_codes, (docs_errors.ROOT / "kernbench").rglob("*.py")))
    assert len(raised) > 60
    headings = Counter(re.findall(r"^#+ ([A-Z]\d+)\b", PAGE, re.MULTILINE))
    assert headings == dict.fromkeys(raised | NEVER_RAISED, 1)
    assert not raised & NEVER_RAISED


def test_an_entry_has_a_title_a_meaning_a_report_and_what_to_do() -> None:
    found = entries(PAGE)
    assert set(found) - set(SHOWN) == NO_REPORT
    for code, entry in found.items():
        assert f"### {code}\n\n**{entry.title}**\n\n" in PAGE
        shape = r"\S.+?\.\n\n```text\n.+?\n```\n\nWhat to do: .+\."
        if code not in NO_REPORT:
            assert re.fullmatch(shape, entry.body, re.DOTALL), code
    titles = [entry.title for entry in found.values()]
    assert len(set(titles)) == len(titles)


def test_entries_are_in_order() -> None:
    codes = [code for code in entries(PAGE) if code not in NO_REPORT]
    places = [("CPMKRF".index(code[0]), int(code[1:])) for code in codes]
    assert places == sorted(places)


def test_every_program_has_its_report_on_the_page() -> None:
    assert list(SHOWN) == [docs_errors.WHOLE, *EXAMPLES]


@pytest.mark.parametrize("heading", SHOWN)
def test_a_report_is_what_its_program_is_told(heading: str) -> None:
    report = docs_errors.report(heading)
    assert SHOWN[heading] == report, "`python tests/docs/docs_errors.py` writes it anew"
    code = "C1" if heading == docs_errors.WHOLE else heading
    assert re.search(rf": \[{code}\] | \[{code}\]$", report, re.MULTILINE)
