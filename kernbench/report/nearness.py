"""How near the laws of a machine were on cells that were measured: tables of `kernbench validate`.

A folder `validation/MACHINE` has `laws.yaml`, which says by which tables a law is judged, and
`result.json`, what `kernbench validate` found: the errors of these tables.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kernbench.config import load, shipped
from kernbench.topology import Topology, load_topology
from kernbench.topology.spec import SystemSpec

_LAWS: Final = "laws.yaml"
_RESULT: Final = "result.json"


@dataclass(frozen=True, slots=True)
class Near:
    """How near a law was.

    Attributes:
        tables: Names of the tables that judge it, such as `rowops2`; none if nothing was measured.
        error: Mean of `|predicted / measured - 1|` over all cells of these tables; None if nobody
            has compared.
    """

    tables: Sequence[str] = ()
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Laws:
    """The content of `laws.yaml`.

    Attributes:
        laws: Tables by law, or by what the names of laws begin with, such as `ccl`.
    """

    laws: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Nearness:
    """What is known of a machine's laws.

    A law counts as measured if the numbers behind it are those of a shipped machine that was: a
    machine whose `sip` was changed has other kernels.

    Args:
        topology: The machine.
        folder: Folder with a folder for each machine that was measured; None for the shipped one.

    Raises:
        ConfigError: If a file of the folder cannot be read.
    """

    def __init__(self, topology: Topology, folder: Path | None = None) -> None:
        system = topology.machine.system
        self._known: list[tuple[SystemSpec, Mapping[str, tuple[str, ...]], Mapping[str, Any]]] = []
        self._system: Final = system
        for file in sorted((folder or shipped("validation")).glob(f"*/{_LAWS}")):
            measured = load_topology(file.parent.name).topology_obj.machine.system
            if measured.sip == system.sip or measured.host == system.host:
                laws, _ = load(Laws, file)
                self._known.append((measured, laws.laws, _tables(file.parent / _RESULT)))

    def of(self, law: str) -> Near:
        """Returns how near a law was.

        Args:
            law: Key in the machine's file, such as `kernels.softmax`, or `ccl.` and an algorithm.
        """
        for measured, laws, results in self._known:
            if not _same(law, measured, self._system):
                continue
            key = law
            while key and key not in laws:
                key = key.rpartition(".")[0]
            if key:
                return Near(laws[key], _error(laws[key], results))
        return Near()


def _same(law: str, measured: SystemSpec, system: SystemSpec) -> bool:
    """Returns whether two machines have the same numbers behind a law."""
    if law.startswith("host."):
        return measured.host == system.host
    between = not law.startswith("ccl.") or measured.sips.network == system.sips.network
    return between and measured.sip == system.sip and not system.sips.changed


def _tables(file: Path) -> Mapping[str, Any]:
    if not file.exists():
        return {}
    found: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))["tables"]
    return found


def _error(names: Sequence[str], results: Mapping[str, Any]) -> float | None:
    """Returns the mean error of tables; parts of one are named `table part`."""
    scores = list(_scores(names, results))
    cells = sum(score["cells"] for score in scores)
    return sum(score["cells"] * score["mape"] for score in scores) / cells if cells else None


def _scores(names: Sequence[str], results: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for part, by_torch in results.items():
        if part.split(" ")[0] in names:
            yield from by_torch.values()
