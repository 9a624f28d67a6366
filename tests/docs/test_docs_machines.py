"""docs/machines.md has every key of a machine file, and its blocks print what they show.

`python tests/docs/docs_machines.py` writes tables and outputs anew.
"""

import dataclasses
from pathlib import Path

import docs_machines
import docs_readme
import pytest

from kernbench.cli.machines import MINIMAL

PAGE = docs_machines.PAGE.read_text(encoding="utf-8")
SECTIONS = dict(docs_machines.sections())
STEPS = docs_readme.tutorial(PAGE)


def test_the_tables_are_those_of_the_code() -> None:
    assert docs_machines.with_tables(PAGE) == PAGE, "`python tests/docs/docs_machines.py`"


@pytest.mark.parametrize("section", list(SECTIONS))
def test_every_key_says_what_it_is_and_what_uses_it(section: str) -> None:
    names = [field.name for field in dataclasses.fields(SECTIONS[section])]
    assert list(docs_machines.USERS[section]) == names
    heading = section if section == "a link" else f"`{section}`"
    table = PAGE.split(f"\n### {heading}\n")[1].split("\n### ")[0]
    for name in names:
        assert f"| `{name}` | " in table


def test_there_is_no_section_that_files_do_not_have() -> None:
    assert set(docs_machines.USERS) == set(SECTIONS)


@pytest.mark.parametrize(
    "page", [docs_machines.PAGE, docs_readme.OWN], ids=["machines", "own_torch"]
)
def test_the_shortest_file_is_what_new_machine_writes(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert f"```yaml\n{MINIMAL.format(name='mine')}```\n" in text


def test_the_blocks_print_what_they_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for blocks in STEPS.values():
        for fence, got in docs_readme.outputs(blocks, tmp_path):
            assert got == fence.content, "`python tests/docs/docs_machines.py` writes it anew"
