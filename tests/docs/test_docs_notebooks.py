"""Notebooks print what they show."""

import json
from pathlib import Path

import docs_notebooks
import pytest


@pytest.mark.parametrize("path", docs_notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path: Path, tmp_path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    printed = docs_notebooks.executed(document, tmp_path)
    assert printed == [docs_notebooks.shown_by(cell) for cell in docs_notebooks.cells_of(document)]


def test_there_are_notebooks() -> None:
    assert docs_notebooks.NOTEBOOKS
