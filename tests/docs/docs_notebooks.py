"""What the notebooks of `docs/notebooks` print; `python tests/docs/docs_notebooks.py` writes it."""

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


def printed_by(document: dict[str, Any], folder: Path) -> list[str]:
    """Returns what each cell of code prints, in order.

    Args:
        document: The notebook. It is executed without Jupyter, whose kernel adds only values that
            a cell ends with: the cells print all that they show.
        folder: Where the notebook's files go.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    with contextlib.chdir(folder):
        for number, cell in enumerate(cells_of(document)):
            text = "".join(cell["source"])
            name = f"<cell {number}>"
            linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
            told = io.StringIO()
            with contextlib.redirect_stdout(told):
                exec(compile(text, name, "exec"), names)
            printed.append(told.getvalue())
    return printed


def main() -> None:
    """Writes into each notebook what it prints now."""
    sys.path.insert(0, str(ROOT))
    for path in NOTEBOOKS:
        document = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            printed = printed_by(document, Path(folder))
        for cell, text in zip(cells_of(document), printed, strict=True):
            output = {"output_type": "stream", "name": "stdout", "text": text}
            cell["outputs"] = [output] if text else []
        fresh = json.dumps(document, indent=1, ensure_ascii=False)
        path.write_text(f"{fresh}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
