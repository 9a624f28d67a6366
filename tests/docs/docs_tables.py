"""Tables of pages that one command prints; `python tests/docs/docs_tables.py` writes them anew."""

import re
from pathlib import Path
from typing import Final, NamedTuple

from docs_readme import printed_by

ROOT: Final = Path(__file__).resolve().parents[2]

_ROW: Final = re.compile(r"[#\s]*([A-Za-z]+\d?(?: [a-z]+)?)")


class Table(NamedTuple):
    """A block of a page, and the command whose rows it shows.

    Attributes:
        page: Name of the page in `docs`.
        place: Which of the blocks without a language it is.
        command: As a user writes it.
    """

    page: str
    place: int
    command: str


QUICK: Final = (
    Table("experts.md", 0, "kernbench run benches/moe.py --topology h200x8 --data off"),
)
LONG: Final = (
    Table(
        "experts.md",
        1,
        "kernbench run benches/moe.py --topology h200x8_x4_nodes --data off -- --ep 32",
    ),
    Table(
        "clusters.md",
        1,
        "kernbench run cluster --topology h200x8_x4_nodes --set system.sips.count=16384 --data off "
        "--collapse exact -- --model llama3-405b --ranks 16384 --tp 8 --pp 16 --virtual 8 "
        "--microbatches 16",
    ),
)


def block_of(table: Table) -> tuple[str, int, int]:
    """Returns the text of a table, and where it begins and ends in its page."""
    text = (ROOT / "docs" / table.page).read_text(encoding="utf-8")
    found = [*re.finditer(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)][table.place]
    return found.group(1), *found.span(1)


def printed(table: Table) -> str:
    """Returns the lines of a table as the command prints them now."""
    rows = {}
    for line in printed_by(table.command):
        named = _ROW.match(line)
        if named is not None:
            rows[named.group(1)] = line
    now = []
    for line in block_of(table)[0].splitlines():
        named = _ROW.match(line)
        row = rows[named.group(1)] if named is not None and re.search(r"\d", line) else line
        now.append(row)
    return "\n".join(now) + "\n"


def main() -> None:
    """Writes all tables."""
    for table in (*QUICK, *LONG):
        now = printed(table)
        _, begin, end = block_of(table)
        path = ROOT / "docs" / table.page
        text = path.read_text(encoding="utf-8")
        path.write_text(text[:begin] + now + text[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
