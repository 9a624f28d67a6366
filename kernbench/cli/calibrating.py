"""`kernbench calibrate`: a machine file from tables that were measured on a host."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from kernbench.calibration.calibrating import Calibrated, calibrate
from kernbench.calibration.shares import with_shares
from kernbench.calibration.writing import text_of
from kernbench.cli.failures import Exit, failed
from kernbench.config import load_with_marks
from kernbench.config.yaml_file import read_text
from kernbench.errors import UsageError
from kernbench.report import check_writable, replacing
from kernbench.topology import load_topology
from kernbench.topology.spec import MachineSpec


def calibrate_machine(
    folder: Path, out: Path, base: str, topology: str | None, *, verbose: bool
) -> int:
    """Writes a machine file; prints how near it comes to each table; returns the exit code.

    Args:
        folder: The tables.
        out: The file to write.
        base: Machine whose numbers stay where no table tells others.
        topology: Machine with the datasheet's numbers; None for the base.
        verbose: Prints every fit, too.
    """
    try:
        check_writable(out)  # before minutes of fitting
        like = load_topology(base).topology_obj
        chip = load_topology(topology or base)
        given = _comments(chip.path)
        system = chip.topology_obj.machine.system
        if topology is not None:
            system = with_shares(system, like.machine.system)
        system = replace(system, name=out.stem)
        found = calibrate(folder, system, lambda stage: print(f"# {stage}"))
        links = any(place.startswith("sips.") for place in found.told)
        what = system.description.partition(" (calibrated")[0]
        said = f"{what} (calibrated{'' if links else ', but not its links'})"
        found = replace(found, system=replace(found.system, description=said))
        text = text_of(found, folder, like.name, {} if topology is None else given)
        with replacing(out) as file:
            file.write(text)
        load_topology(out)
    except UsageError as error:
        return failed(error)
    _show(found, verbose=verbose)
    print(f"wrote {out}; kernbench show-machine {out}")
    return Exit.OK


def _comments(file: Path) -> dict[str, str]:
    """Returns the comment behind each value of a machine's file, by its place under `system`."""
    lines = read_text(file).splitlines()
    found = {}
    for field, mark in load_with_marks(MachineSpec, file).marks.items():
        _, sign, said = lines[mark.line - 1].partition(" # ")
        if sign and not said.startswith("measured,"):
            found[field.removeprefix("system.")] = said.strip()
    return found


def _show(found: Calibrated, *, verbose: bool) -> None:
    if verbose:
        rows = []
        for outcome in found.outcomes:
            first = outcome.fit.numbers[0].split("+")[0].rpartition("sip.")[2]
            more = f" and {len(outcome.fit.numbers) - 1} more" if outcome.fit.numbers[1:] else ""
            if outcome.missing:
                rows.append([first + more, outcome.missing, "", "", ""])
                continue
            ours, aside = outcome.errors
            cells = " + ".join(map(str, outcome.cells))
            rows.append(
                [first + more, cells, f"{ours:.1%}", f"{aside:.1%}", f"{outcome.before:.1%}"]
            )
        _print(["numbers", "cells", "fitted", "aside", "aside, before"], rows)
    rows = [
        [name, str(cells), f"{before:.1%}", f"{after:.1%}", f"{aside:.1%}"]
        for name, (cells, before, after, aside) in found.tables.items()
    ]
    _print(["table", "cells", "error before", "error", "aside"], rows)
    for line in _doubts(found):
        print(f"! {line}")


_FAR: Final = 0.15
"""Mean error on cells kept aside from which on a table's laws are said not to hold."""


def _doubts(found: Calibrated) -> Iterator[str]:
    """Yields what somebody should know who uses the machine."""
    for place, why in found.unbelieved.items():
        yield f"{place} is the base's: {why}"
    for name, (_, before, after, aside) in found.tables.items():
        if aside >= _FAR:
            yield (
                f"{name}: off by {aside:.0%} on cells kept aside. The laws do not hold there, or "
                f"lines are wrong: `kernbench validate` names the worst ones"
            )
        elif after > before + _WORSE:
            yield f"{name}: the base was nearer, by {after - before:.1%} of the measured times"


_WORSE: Final = 0.01


def _print(header: list[str], rows: list[list[str]]) -> None:
    """Prints a table: texts to the left, all other columns to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        first, *others = (
            f"{text:<{width}}" if not at else f"{text:>{width}}"
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join((first, *others)))
