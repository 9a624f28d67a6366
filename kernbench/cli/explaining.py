"""`kernbench explain`: what docs/errors.md says of the codes of reports."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from kernbench.cli.failures import Exit, failed
from kernbench.config.near import did_you_mean
from kernbench.config.shipped import shipped
from kernbench.errors import UsageError

PAGE: Final = "docs/errors.md"

_HEADING: Final = re.compile(r"^##+ (.+)\n", re.MULTILINE)
_CODE: Final = re.compile(r"[A-Z]\d+")
_FENCED: Final = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Entry(NamedTuple):
    """Entry of one code in a page of codes.

    Attributes:
        title: The mistake, in one line.
        body: What the mistake means, an example, and what to do; in Markdown.
    """

    title: str
    body: str


def entries(page: str) -> dict[str, Entry]:
    """Returns the entries of a page by code, in the order of the page.

    An entry is a heading that is a code, a title in bold, and the text up to the next heading.
    """
    _, *parts = _HEADING.split(page)
    found = {}
    for heading, part in zip(parts[::2], parts[1::2], strict=True):
        if _CODE.fullmatch(heading):
            title, _, body = part.strip().partition("\n\n")
            found[heading] = Entry(title.strip("*"), body)
    return found


def print_entries(codes: Sequence[str]) -> int:
    """Prints the entries of codes, or without codes all titles; returns the exit code."""
    known = entries(shipped(PAGE).read_text(encoding="utf-8"))
    wanted = [code.upper() for code in codes]
    for code in wanted:
        if code not in known:
            return failed(
                UsageError(
                    f"there is no code {code}",
                    [f"expected one of {', '.join(known)}"],
                    hint=did_you_mean(code, known),
                )
            )
    if wanted:
        print("\n\n".join(_shown(code, known[code]) for code in dict.fromkeys(wanted)))
    else:
        print("\n".join(f"{code:<4} {entry.title}" for code, entry in known.items()))
    return Exit.OK


def _shown(code: str, entry: Entry) -> str:
    """Returns an entry as text for printing: without Markdown, and with its example indented."""
    body = _FENCED.sub(lambda found: _indented(found[1]), entry.body)
    return f"{code}: {entry.title}\n\n{body}"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())
