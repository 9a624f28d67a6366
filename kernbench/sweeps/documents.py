"""The file of a finished sweep: `{"kernbench": 1, "sweep": {...}, "records": [...]}`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kernbench.config import ConfigError
from kernbench.errors import UsageError
from kernbench.report.files import replacing
from kernbench.run_spec import read_json
from kernbench.sweeps.records import Record
from kernbench.version import __version__

MOST_BYTES: Final = 1 << 34
"""Of the largest file that is read: that of 10^6 runs with some pages of results each."""


def write_document(path: Path, records: Iterable[Record], runs: int) -> None:
    """Writes the file of a sweep, one record a line; equal records give equal files.

    Args:
        path: The file, which is replaced as a whole.
        records: The records, in the order of the file.
        runs: How many there are.

    Raises:
        UsageError: If the file cannot be written (F15).
    """
    with replacing(path) as file:
        about = json.dumps({"version": __version__, "runs": runs})
        file.write(f'{{\n"kernbench": 1,\n"sweep": {about},\n"records": [')
        for place, record in enumerate(records):
            file.write((",\n" if place else "\n") + json.dumps(record.to_json()))
        file.write("\n]\n}\n")


def read_document(path: Path) -> list[Record]:
    """Returns the records in the file of a sweep.

    Args:
        path: The file, as `kernbench sweep --json` writes it.

    Raises:
        UsageError: If the file cannot be read, or holds no sweep.
    """
    document = read_json(path, MOST_BYTES)
    try:
        return records_of(document)
    except (KeyError, TypeError, ValueError, ConfigError):
        raise UsageError(
            f"{path}: expected a file that `kernbench sweep --json` has written"
        ) from None


def records_of(document: Mapping[str, Any]) -> list[Record]:
    """Returns the records in the plain values of a sweep's file.

    Args:
        document: The plain values.

    Raises:
        KeyError: If a value is missing around the records.
        ValueError: If a record lacks a value, or has one of another kind.
        ConfigError: If a specification cannot be used.
    """
    if "sweep" not in document:
        raise KeyError("sweep")
    records: Sequence[Mapping[str, Any]] = document["records"]
    return [Record.from_json(values) for values in records]
