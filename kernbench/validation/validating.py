"""A folder of tables in, predictions beside measurements out."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.report.files import replacing
from kernbench.topology import load_topology
from kernbench.validation.reading import read_folder
from kernbench.validation.running import Result, run, torches
from kernbench.validation.summary import Score, lost, missing, scores
from kernbench.validation.table import GPU, Found, Line
from kernbench.version import __version__


@dataclass(frozen=True, slots=True)
class Validation:
    """What came of a folder.

    Attributes:
        machine: Name of the machine.
        torches: Names of the torches that ran.
        results: The rows and what came of them, in the order of `catalogue.TABLES`.
        not_run: Number of rows of each table of whole programs that was not asked for.
        unknown: Why a file is no table, by its path.
    """

    machine: str
    torches: tuple[str, ...]
    results: Sequence[Result]
    not_run: Mapping[str, int]
    unknown: Mapping[str, str]

    def scores(self) -> dict[str, dict[str, Score]]:
        """Returns the scores by part of a table and torch."""
        return scores(self.results, self.torches)

    def lost(self) -> list[Result]:
        """Returns the rows with a cell that no torch predicts."""
        return lost(self.results)

    def as_json(self) -> dict[str, Any]:
        """Returns scores, cells and what was not simulated, as plain values."""
        return {
            "kernbench": 1,
            "version": __version__,
            "machine": self.machine,
            "torches": list(self.torches),
            "tables": {
                part: {torch: told.as_json() for torch, told in each.items()}
                for part, each in self.scores().items()
            },
            "not_run": dict(self.not_run),
            "unknown_files": dict(self.unknown),
            "not_simulated": [
                {**_place(result), "torch": torch, "reason": reason}
                for result, torch, reason in missing(self.results, self.torches)
            ],
            "cells": [
                {
                    **_place(result),
                    "column": column,
                    "measured": measured,
                    **{torch: result.found[torch].predicted.get(column) for torch in self.torches},
                }
                for result in self.results
                for column, measured in result.line.measured.items()
            ],
        }

    def write_json(self, path: Path) -> None:
        """Writes `as_json` with a cell a line; equal results give equal files.

        Args:
            path: The file, which is replaced as a whole.

        Raises:
            UsageError: If the file cannot be written (F15).
        """
        document = self.as_json()
        rows = {key: document.pop(key) for key in ("not_simulated", "cells")}
        with replacing(path) as file:
            head = json.dumps(document, indent=1)
            file.write(head.removesuffix("\n}"))
            for key, values in rows.items():
                lines = ",\n".join(map(json.dumps, values))
                file.write(f',\n "{key}": [\n{lines}\n]' if values else f',\n "{key}": []')
            file.write("\n}\n")


def _place(result: Result) -> dict[str, Any]:
    line = result.line
    return {"table": line.table.name, "line": line.number, "cell": line.label}


def validate(
    folder: Path,
    topology: str,
    *,
    names: Sequence[str] = (),
    programs: bool = False,
    every: int = 1,
    jobs: int = 0,
    which: Sequence[str] | None = None,
) -> Validation:
    """Runs the tables of a folder.

    Args:
        folder: Every `.csv` in it is a table.
        topology: A topology file, or the name of a shipped machine.
        names: Names of tables to run; empty for all.
        programs: Whether tables of whole programs are run though `names` does not name them.
        every: Of each table, the first row and every so many-th after it are run.
        jobs: Most processes at a time; 0 for one a core.
        which: Names of the torches; None for all there are.

    Raises:
        UsageError: If the folder, the machine or PyTorch cannot be used.
        ConfigError: If something is wrong with a file.
    """
    machine = load_topology(topology).topology_obj.name
    read = read_folder(folder, names)
    wanted = [line for line in read.lines if programs or names or not line.table.scripts]
    not_run = Counter(line.table.name for line in read.lines) - Counter(
        line.table.name for line in wanted
    )
    seen: Counter[str] = Counter()
    lines = []
    for line in wanted:
        if seen[line.table.name] % every == 0:
            lines.append(line)
        seen[line.table.name] += 1
    chosen = torches() if which is None else tuple(which)
    here = [line for line in lines if _is_of(line, machine)]
    done = iter(run(here, topology, jobs or os.cpu_count() or 1, chosen))
    results = [
        next(done) if _is_of(line, machine) else _elsewhere(line, machine, chosen) for line in lines
    ]
    return Validation(machine, chosen, results, dict(not_run), read.unknown)


def _is_of(line: Line, machine: str) -> bool:
    return machine.casefold().startswith(line.row.get(GPU, "").casefold())


def _elsewhere(line: Line, machine: str, which: Sequence[str]) -> Result:
    found = Found(missing=f"measured on {line.row[GPU]}, and the machine is {machine}")
    return Result(line, dict.fromkeys(which, found))
