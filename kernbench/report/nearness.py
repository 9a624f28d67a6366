"""How near the laws of a machine were on cells that were measured: tables of `kernbench validate`.

A folder `validation/MACHINE` has `laws.yaml`, which says by which cells a law is judged, and
`result.json`, what `kernbench validate` found: each cell, measured and predicted.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from kernbench.config import load, shipped
from kernbench.topology import Topology, load_topology
from kernbench.topology.spec import SystemSpec

_LAWS: Final = "laws.yaml"
_RESULT: Final = "result.json"
_TORCHES: Final = ("own", "pytorch")


@dataclass(frozen=True, slots=True)
class Near:
    """How near a law was.

    Attributes:
        tables: Names of the tables that judge it, such as `rowops2`; none if nothing was measured.
        error: Mean of `|predicted / measured - 1|` over the cells of these tables that judge it;
            None if nobody has compared.
    """

    tables: Sequence[str] = ()
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Laws:
    """The content of `laws.yaml`.

    Attributes:
        laws: By law, or by what the names of laws begin with, such as `ccl`: tables, or parts of
            tables whose cells begin alike, such as `rowops2 softmax`.
    """

    laws: dict[str, tuple[str, ...]] = field(default_factory=dict)


_Known = tuple[SystemSpec, Mapping[str, tuple[str, ...]], Sequence[Mapping[str, Any]]]
"""A machine that was measured, its laws with what judges them, and the cells of its result."""


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
        self._known: list[_Known] = []
        self._system: Final = system
        for file in sorted((folder or shipped("validation")).glob(f"*/{_LAWS}")):
            measured = load_topology(file.parent.name).topology_obj.machine.system
            if measured.sip == system.sip or measured.host == system.host:
                laws, _ = load(Laws, file)
                self._known.append((measured, laws.laws, _cells(file.parent / _RESULT)))

    def of(self, law: str) -> Near:
        """Returns how near a law was.

        Args:
            law: Key in the machine's file, such as `kernels.softmax`, or `ccl.` and an algorithm.
        """
        for measured, laws, cells in self._known:
            if not _same(law, measured, self._system):
                continue
            key = law
            while key and key not in laws:
                key = key.rpartition(".")[0]
            if key:
                tables = dict.fromkeys(judge.split(" ")[0] for judge in laws[key])
                return Near(tuple(tables), _error(laws[key], cells))
        return Near()


def _same(law: str, measured: SystemSpec, system: SystemSpec) -> bool:
    """Returns whether two machines have the same numbers behind a law."""
    if law.startswith("host."):
        return measured.host == system.host
    between = not law.startswith("ccl.") or measured.sips.network == system.sips.network
    return between and measured.sip == system.sip and not system.sips.changed


def _cells(file: Path) -> Sequence[Mapping[str, Any]]:
    """Returns the cells of a result: `table`, `cell`, `measured`, and a prediction by torch."""
    if not file.exists():
        return ()
    found: Sequence[Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return found


def _error(judges: Sequence[str], cells: Iterable[Mapping[str, Any]]) -> float | None:
    """Returns the mean error of the cells that judge a law, under both torches."""
    errors = [
        abs(cell[each] / cell["measured"] - 1)
        for cell in cells
        if any(f"{cell['table']} {cell['cell']} ".startswith(f"{judge} ") for judge in judges)
        for each in _TORCHES
        if cell.get(each) is not None
    ]
    return fmean(errors) if errors else None
