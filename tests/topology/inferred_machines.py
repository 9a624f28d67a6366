"""Writes what machines of datasheets have of `h200x8`: attention, kernels, and the host.

`python tests/topology/inferred_machines.py` writes the end of their files anew, from the line that
says so on; what stands before it is written by hand.
"""

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kernbench.calibration.shares import with_shares  # noqa: E402 - the path says which package
from kernbench.config.schema import Names  # noqa: E402
from kernbench.config.write import dump  # noqa: E402
from kernbench.topology import load_topology, shipped_machines  # noqa: E402
from kernbench.topology.spec import MachineSpec  # noqa: E402

LIKE: Final = "h200x8"
INFERRED: Final = ("a100x8", "b200x8", "gb200_nvl72", "mi300x8")
HERE: Final = f"# From here on all is inferred from {LIKE}: tests/topology/inferred_machines.py."


def _on_a_line(names: Names) -> bool:
    return len(names) == 4 and names[1:3] == ("sip", "kernels")


def inferred(name: str) -> str:
    """Returns the text of a machine's file with its end as it should be."""
    path = shipped_machines()[name]
    by_hand, mark, _ = path.read_text().partition(HERE)
    assert mark, f"{path} has no line {HERE!r}"
    like = load_topology(LIKE).topology_obj.machine.system
    system = with_shares(load_topology(path).topology_obj.machine.system, like)
    lines = dump(MachineSpec(system), lambda _: "", _on_a_line).splitlines()
    in_pe = ("      attention:", "      programs:")
    heads = (
        *in_pe,
        "    event:",
        "    overlap:",
        "    warm:",
        "    peers:",
        "    kernels:",
        "  host:",
    )
    blocks = [_block(lines, head) for head in heads]
    return by_hand + HERE + "\n" + "\n".join(line for block in blocks for line in block) + "\n"


def _block(lines: list[str], head: str) -> list[str]:
    """Returns a line and those that are further to the right behind it."""
    begin = next(place for place, line in enumerate(lines) if line.startswith(head))
    indent = len(head) - len(head.lstrip())
    end = begin + 1
    while end < len(lines) and lines[end].startswith(" " * (indent + 1)):
        end += 1
    return lines[begin:end]


if __name__ == "__main__":
    for machine in INFERRED:
        text = inferred(machine)
        shipped_machines()[machine].write_text(text)
        print(f"wrote {machine}")
