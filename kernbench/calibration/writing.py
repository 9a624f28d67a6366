"""Writes a calibrated machine: every number with what it is from."""

import textwrap
from collections.abc import Mapping
from pathlib import Path

from kernbench.calibration.calibrating import Calibrated
from kernbench.config.schema import Names
from kernbench.config.write import dump
from kernbench.topology.spec import MachineSpec

_WIDTH = 98


def text_of(found: Calibrated, folder: Path, base: str, given: Mapping[str, str]) -> str:
    """Returns a machine file.

    Args:
        found: The machine.
        folder: The tables.
        base: Name of the machine whose numbers stay where no table has others.
        given: Comments of a file that has numbers of a datasheet, by place under `system`.
    """
    system = found.system

    def comment(names: Names) -> str:
        place = ".".join(names[1:])
        kinds = []
        for kind, measured in (("measured", True), ("inferred", False)):
            fields: dict[str, list[str]] = {}
            for key, told in found.told.items():
                if (key == place or key.startswith(f"{place}.")) and told.measured is measured:
                    fields.setdefault(str(told), []).append(key[len(place) + 1 :])
            said = [
                told if not any(of) or of[0][0].isdigit() else f"{' '.join(of)} {told}"
                for told, of in fields.items()
            ]
            kinds += [f"{kind}, " + "; ".join(said)] if said else []
        if kinds:
            return "; ".join(kinds)
        if place in given:
            return given[place]
        return f"inferred from {base}" if len(names) > 2 else ""

    def on_a_line(names: Names) -> bool:
        return len(names) == 4 and names[1:3] == ("sip", "kernels")

    head = [
        f"# {system.name}: calibrated by `kernbench calibrate` on the tables of {folder.name}.",
        '# "Measured" names the table; "4 % of 12" is the mean error of the law that has it,',
        "# fitted on half of its cells, on the 12 of the other half. Numbers without a table are",
        f"# those of {base}; kernels are shares of this machine's own peaks.",
    ]
    body = dump(MachineSpec(system), comment, on_a_line)
    lines = (part for line in body.splitlines() for part in _wrapped(line))
    return "\n".join([*head, *lines, ""])


def _wrapped(line: str) -> list[str]:
    """Returns an entry of a list on as many lines as it takes."""
    lead = line[: len(line) - len(line.lstrip())]
    if len(line) <= _WIDTH or not line.startswith(f"{lead}- {{"):
        return [line]
    return textwrap.wrap(
        line,
        _WIDTH,
        subsequent_indent=f"{lead}   ",
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
