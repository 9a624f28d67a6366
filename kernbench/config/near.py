"""Nearest names, for `did you mean`."""

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name closest to `name`, ignoring case; None if no name is close."""
    folded: dict[str, str] = {}
    for candidate in known:
        folded.setdefault(candidate.casefold(), candidate)
    from difflib import get_close_matches

    matches = get_close_matches(name.casefold(), folded, n=1)
    return folded[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a hint with the closest known name; empty if no name is close."""
    match = nearest(name, known)
    return f"did you mean `{match}`?" if match is not None else ""
