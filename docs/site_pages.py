"""What MkDocs adds to the documents: README as the first page, rooms, the reference, notebooks.

Links that lead out of `docs` lead to the pages that are made of their targets; a link to a file
that is no page becomes its name.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parents[1]

PAGES: Final[Mapping[str, str]] = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    **{
        f"kernbench/{path.parent.name}/README.md": f"rooms/{path.parent.name}.md"
        for path in sorted(ROOT.glob("kernbench/*/README.md"))
    },
}
"""Files outside of `docs` that are pages of the site."""

REFERENCE: Final[Mapping[str, Sequence[str]]] = {
    "kernbench": (
        "kernbench.scripts.calls.context",
        "kernbench.scripts.calls.spawn",
        "kernbench.scripts.torchrun.torchrun_spawn",
        "kernbench.sweeps.sweeping.sweep",
    ),
    "testing": (
        "kernbench.testing.harness.Kernbench",
        "kernbench.testing.worlds.WorldBatch",
        "kernbench.testing.cases.dist_case",
        "kernbench.testing.pytorch_cases.on_kernbench",
        "kernbench.testing.configs.register_config",
    ),
    "run_spec": ("kernbench.run_spec",),
    "tl": ("kernbench.tl",),
    "extend": ("kernbench.extend",),
    "sweeps": ("kernbench.sweeps",),
    "report": ("kernbench.report",),
    "errors": ("kernbench.errors",),
    "cp": ("kernbench.cp",),
    "pp": ("kernbench.pp",),
}
"""Pages of the reference, each with what it documents: public names, from their docstrings."""

_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
_FENCE: Final = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made of other files."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=linked(text, source, page)))
    for name, documented in REFERENCE.items():
        lines = [f"# {name if name == 'kernbench' else f'kernbench.{name}'}", ""]
        lines += [f"::: {each}\n" for each in documented]
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(lines)))
    for path in sorted(ROOT.glob("docs/notebooks/*.ipynb")):
        text = notebook(json.loads(path.read_text(encoding="utf-8")))
        page = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, page, content=linked(text, f"docs/{page}", page)))
        files.remove(files.src_uris[f"notebooks/{path.name}"])
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Returns the text of a page with links that lead to pages of the site."""
    if page.file.generated_by:
        return markdown
    return linked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def linked(text: str, source: str, page: str) -> str:
    """Returns a text whose links fit its place in the site.

    Args:
        text: A text in Markdown.
        source: Where it stands in the checkout.
        page: Where it stands in the site.
    """
    parts = _FENCE.split(text)
    for place in range(0, len(parts), 2):
        parts[place] = _LINK.sub(lambda found: _link(found, source, page), parts[place])
    return "".join(parts)


def _link(found: re.Match[str], source: str, page: str) -> str:
    picture, name, target, anchor = found.groups()
    if not target or ":" in target:
        return found[0]
    path = os.path.normpath(os.path.join(os.path.dirname(source), target))
    if path in PAGES:
        there = PAGES[path]
    elif path.startswith("docs/") and (ROOT / path).is_file():
        there = path.removeprefix("docs/")
    elif path == "docs/adr":
        there = "adr/README.md"
    elif (ROOT / path).exists():
        return f"{name} (`{path}`)" if name != path else f"`{path}`"
    else:
        return found[0]  # MkDocs says that it leads nowhere
    fit = os.path.relpath(there, os.path.dirname(page) or ".")
    return f"{picture}[{name}]({fit}{anchor or ''})"


def notebook(document: Mapping[str, Any]) -> str:
    """Returns a notebook as Markdown: texts, code, and what it printed."""
    parts = []
    for cell in document["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join(printed_by(cell))
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def printed_by(cell: Mapping[str, Any]) -> list[str]:
    """Returns what a cell of code printed, and the text of its value."""
    told = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            told.append("".join(output["text"]))
        else:
            told.append("".join(output["data"].get("text/plain", "")) + "\n")
    return told
