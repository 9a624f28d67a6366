"""Executes the notebooks of `docs/notebooks`, and compares what they print with what they show.

`python docs/notebooks.py` fails on a difference; `python docs/notebooks.py --write` writes it.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

sys.path.insert(0, str(Path(__file__).parent))

from site_pages import printed_by


def main() -> int:
    """Returns the exit code: 1 if a notebook prints what it does not show."""
    writes = "--write" in sys.argv[1:]
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    different = []
    for path in sorted((Path(__file__).parent / "notebooks").glob("*.ipynb")):
        shown = json.loads(path.read_text(encoding="utf-8"))
        now = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            resources = {"metadata": {"path": folder}}
            NotebookClient(now, timeout=120, resources=resources).execute()
        cells = [cell for cell in now.cells if cell.cell_type == "code"]
        for cell in cells:
            cell.metadata.clear()
        before = [
            "".join(printed_by(cell)) for cell in shown["cells"] if cell["cell_type"] == "code"
        ]
        if ["".join(printed_by(cell)) for cell in cells] != before:
            different.append(path.name)
        if writes:
            text = json.dumps(now, indent=1, ensure_ascii=False)
            path.write_text(f"{text}\n", encoding="utf-8")
    print(f"{len(different)} notebooks print something else: {', '.join(different) or 'none'}")
    return int(bool(different) and not writes)


if __name__ == "__main__":
    sys.exit(main())
