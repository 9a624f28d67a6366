"""What the notebooks of `docs/notebooks` print; `python tests/docs/docs_notebooks.py` writes it."""

import ast
import contextlib
import io
import json
import linecache
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def cells_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the cells with code of a notebook."""
    return [cell for cell in document["cells"] if cell["cell_type"] == "code"]


def shown_by(cell: dict[str, Any]) -> str:
    """Returns what a cell shows as printed; nothing else may be shown, such as a picture."""
    assert {output["output_type"] for output in cell["outputs"]} <= {"stream"}
    return "".join("".join(output["text"]) for output in cell["outputs"])


def executed(document: dict[str, Any], folder: Path) -> list[str]:
    """Returns what each cell of code prints, in order, and values that cells end with.

    Args:
        document: The notebook, which is executed without Jupyter.
        folder: Where the notebook's files go.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    with contextlib.chdir(folder):
        for number, cell in enumerate(cells_of(document)):
            text = "".join(cell["source"])
            name = f"<cell {number} in {folder}>"
            linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
            told = io.StringIO()
            *before, last = ast.parse(text, name).body
            with contextlib.redirect_stdout(told):
                exec(compile(ast.Module(before, []), name, "exec"), names)
                exec(compile(ast.Interactive([last]), name, "single"), names)
            printed.append(told.getvalue())
    return printed


def main() -> None:
    """Writes into each notebook what it prints now."""
    sys.path.insert(0, str(ROOT))
    for path in NOTEBOOKS:
        document = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            printed = executed(document, Path(folder))
        for cell, text in zip(cells_of(document), printed, strict=True):
            output = {"output_type": "stream", "name": "stdout", "text": text}
            cell["outputs"] = [output] if text else []
        fresh = json.dumps(document, indent=1, ensure_ascii=False)
        path.write_text(f"{fresh}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
