"""Topology files: found by path or by the name of a shipped machine, read and checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from reprlib import repr as shortened

from kernbench.caches import cached
from kernbench.config import ConfigError, Problem, did_you_mean, load_with_marks, shipped
from kernbench.topology.checks import check_machine
from kernbench.topology.defaults import completed
from kernbench.topology.spec import MachineSpec
from kernbench.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class TopologyHandle:
    """A machine and its file.

    Attributes:
        path: The file.
        topology_obj: The machine.
    """

    path: Path
    topology_obj: Topology


def shipped_machines() -> dict[str, Path]:
    """Returns the files of the machines that come with kernbench, by name."""
    folder = shipped("configs") / "topology"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_topology(path: str | Path, overrides: Sequence[str] = ()) -> TopologyHandle:
    """Reads and checks a machine.

    Args:
        path: A topology file, or the bare name of a shipped machine, such as `h200x8`.
        overrides: `dotted.field=value` texts that replace values of the file.

    Raises:
        ConfigError: Everything that is wrong with the file.
    """
    file = find_topology(path)
    try:
        content = file.read_bytes()
    except OSError:
        content = b""  # what is wrong with the file is reported when it is read as YAML
    return TopologyHandle(file, _loaded(file, content, tuple(overrides)))


@cached("topology.machines")
def _loaded(file: Path, content: bytes, overrides: tuple[str, ...]) -> Topology:
    """Returns the machine of a file; `content` tells whether the file has changed."""
    loaded = load_with_marks(MachineSpec, file, overrides)
    if problems := check_machine(loaded):
        raise ConfigError(loaded.name, problems)
    return Topology(MachineSpec(completed(loaded.value.system)), loaded.raw)


@cached("topology.files")
def _shipped_file(name: str) -> Path:
    """Returns where the file of a shipped machine would be."""
    return shipped("configs") / "topology" / f"{name}.yaml"


def find_topology(path: str | Path) -> Path:
    """Returns the topology file of a path or of a shipped machine's name; it may not exist.

    Args:
        path: A topology file, or the bare name of a shipped machine.

    Raises:
        ConfigError: If there is neither such a file nor such a machine (F11), or no name (F2).
    """
    given: object = path  # of any type, like all that callers give
    if not isinstance(given, str | PathLike):
        expected = f"expected a file or the name of a shipped machine, got {shortened(given)}"
        raise ConfigError("the machine", [Problem("F2", "topology", "", expected)])
    file = Path(path)
    is_name = isinstance(path, str) and path == file.name and not file.suffix
    if not is_name or file.exists():
        return file
    there = _shipped_file(file.name)
    if there.exists():
        return there
    machines = shipped_machines()
    name = str(path)
    message = f"expected a file or one of the shipped machines {', '.join(machines)}, got {name!r}"
    problem = Problem("F11", name, "", message, hint=did_you_mean(name, machines))
    raise ConfigError(name, [problem])
