"""Warnings about the values of a kernel: what a GPU computes, too, but nobody wants."""

import warnings
from collections.abc import Iterable
from typing import Any, Final

from kernbench.errors import CallSite


class KernelWarning(UserWarning):
    """A kernel computes what is defined badly or not at all, and goes on as a GPU does."""


Notice = tuple[CallSite | None, str]
"""A line of a kernel, and what is to be said about it."""

_warned: Final[dict[str, dict[Any, Any]]] = {}
"""Python's record of what was said, by file, so that a line in a loop is reported once."""


def notify(site: CallSite | None, text: str) -> None:
    """Warns about a line of a kernel.

    Args:
        site: The line.
        text: What is to be said.
    """
    file, line = ("kernel", 1) if site is None else (site.file, site.line)
    warnings.warn_explicit(text, KernelWarning, file, line, registry=_warned.setdefault(file, {}))


def notify_all(notices: Iterable[Notice]) -> None:
    """Warns about several lines."""
    for site, text in notices:
        notify(site, text)
