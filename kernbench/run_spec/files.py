"""JSON files of specifications and of results."""

import json
from pathlib import Path
from typing import Any, Final

_MOST_BYTES: Final = 1 << 28
"""Bytes of the largest file from which a specification is read; it may hold results, too."""


def read_json(path: Path, most: int = _MOST_BYTES) -> Any:
    """Returns the content of a JSON file, in which no mapping may have a key twice.

    Args:
        most: Bytes of the largest file that is read.

    Raises:
        ConfigError: If the file cannot be read (F9, F10, F11), is no JSON (F10), or gives a key
            twice (F6).
    """
    from kernbench.config import ConfigError, Problem
    from kernbench.config.yaml_file import read_text

    where = str(path)
    twins: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                twins.append(key)
            found[key] = value
        return found

    try:
        document = json.loads(read_text(path, most), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        problem = Problem("F10", where, "", f"not JSON: {error}")
        raise ConfigError(where, [problem]) from None
    if twins:
        raise ConfigError(where, [Problem("F6", key, "", "expected once") for key in twins])
    return document
