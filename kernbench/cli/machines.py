"""`kernbench new-machine` and `show-machine`: files of machines, written and shown."""

import os
import re
from pathlib import Path
from typing import Final

from kernbench.cli.failures import Exit, failed
from kernbench.config import load_with_marks, value_at
from kernbench.config.schema import Names
from kernbench.config.write import dump, with_texts
from kernbench.config.yaml_file import read_text
from kernbench.errors import UsageError
from kernbench.report import replacing
from kernbench.topology import load_topology, shipped_machines
from kernbench.topology.spec import FOLLOWS, MachineSpec

MINIMAL: Final = """\
# {name}.yaml
# Change the numbers. What is not here has a default: `kernbench show-machine {name}.yaml`.
system:
  name: {name}
  sips:                         # accelerators; a GPU is a SIP
    count: 8
    # switch, ring, torus, graph, nodes or fat_tree; what one link carries in one direction
    network: {{kind: switch, bandwidth: 450 GB/s, latency: 500 ns}}
  sip:
    cube:                       # a die; a GPU has one
      pes: 132                  # processing elements: the SMs of a GPU
      hbm: {{capacity: 80 GB, bandwidth: 3.35 TB/s}}
    pe: {{gemm: {{rate: {{bf16: 7.49 TFLOP/s}}}}}}   # of one PE: the accelerator's over `pes`
"""
"""Text of a machine that gives what has no default, with the numbers of eight H100."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def new_machine(name: str, origin: str | None) -> int:
    """Writes `NAME.yaml` into the working directory; returns the exit code.

    Args:
        name: Name of the machine.
        origin: The machine to copy: a shipped one or a file; None for a file with what has no
            default.
    """
    try:
        file = _write(name, origin)
    except UsageError as error:
        return failed(error)
    print(f"wrote {file}; change its numbers, then")
    print(f"  kernbench run ccl_allreduce --topology {file}")
    print(f"  kernbench show-machine {file}")
    return Exit.OK


def _write(name: str, origin: str | None) -> Path:
    _check_name(name)
    text = MINIMAL.format(name=name) if origin is None else _copy(name, origin)
    file = Path(f"{name}.yaml")
    if os.path.lexists(file):
        hint = "give another name, or remove the file first"
        raise UsageError(f"{file} is there already", hint=hint)
    with replacing(file) as out:
        out.write(text)
    return file


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        stem = name.removesuffix(".yaml").removesuffix(".yml")
        hint = f"did you mean `{stem}`?" if stem != name and _NAME.fullmatch(stem) else ""
        message = "expected a name that begins with a letter and has letters, digits, - and _ only"
        raise UsageError(f"NAME: {message}, got {name!r}", hint=hint)
    if name in shipped_machines():
        raise UsageError(
            f"NAME: {name} is a machine that comes with kernbench",
            hint=f"give the copy a name of its own: kernbench new-machine my-{name} --like {name}",
        )


def _copy(name: str, origin: str) -> str:
    """Returns the text of a machine's file with another name and description."""
    handle = load_topology(origin)
    source = handle.topology_obj.name
    texts: dict[Names, str] = {
        ("system", "name"): name,
        ("system", "description"): f"{name}, made from {source}",
    }
    head = (
        f"# {name}: a copy of {source}. What its comments call measured is measured on {source}.\n"
    )
    return f"{head}#\n{with_texts(read_text(handle.path), texts)}"


def show_machine(machine: str) -> int:
    """Prints every value of a machine, with a word on those that its file does not give.

    Args:
        machine: A shipped machine, or a file.

    Returns:
        The exit code.
    """
    try:
        handle = load_topology(machine)
        given = load_with_marks(MachineSpec, handle.path)
    except UsageError as error:
        return failed(error)

    def comment(names: Names) -> str:
        if ".".join(names) in given.marks:
            return ""
        try:
            follows = value_at(given.value, names) is FOLLOWS
        except KeyError:  # a rate
            follows = True
        return "follows from other values" if follows else "default"

    print(dump(handle.topology_obj.machine, comment), end="")
    return Exit.OK
