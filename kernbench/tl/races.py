"""Which programs of one launch touch the same elements in no order (M12)."""

from typing import Final

import numpy as np

from kernbench.errors import CallSite, KernbenchError, call_site, site_fact
from kernbench.memory import Array, View
from kernbench.tl.access import Region, Unknown, extent

_MOST_LOADS: Final = 1 << 17
"""Loads that are kept for the end of the launch; later loads are not compared with stores."""

_Ids = tuple[int, ...]


class ProgramRaceError(KernbenchError):
    """Programs of one launch touch the same element in no order (M12)."""


class _Stores:
    """The stores to one tensor.

    Attributes:
        owners: For each element, the number of the program that stored to it, counted from 1; 0 for
            none.
        sites: Line of each program's last store, by number of the program.
    """

    def __init__(self, view: View) -> None:
        self.owners: Final = np.zeros(extent(view), np.int32)
        self.sites: Final[dict[int, CallSite | None]] = {}


class Races:
    """Compares what the programs of a launch load and store, element by element.

    Programs of a grid run in no order, so no program may touch an element to which another one
    stores. Each tensor argument is checked by itself, whether or not it shares memory with another
    one. Programs that exchange messages are not compared, because messages order them.

    Args:
        grid: Extents of the grid.
    """

    def __init__(self, grid: _Ids) -> None:
        self._grid: Final = grid
        self._alone: Final = max(grid) == 1
        self._refused = False
        self._numbers: Final[dict[_Ids, int]] = {}
        self._programs: Final[list[_Ids]] = []
        self._stores: Final[dict[int, _Stores]] = {}
        self._loads: Final[list[tuple[int, View, Region, CallSite | None]]] = []

    def refuse(self) -> None:
        """Notes that a program sends or receives: from now on programs may be in an order."""
        self._refused = True

    def load(self, program: _Ids, view: View, region: Region) -> None:
        """Notes a load, which `check` compares with stores.

        Args:
            program: Index of the program on each axis of the grid.
            view: The tensor.
            region: Elements that are loaded.
        """
        if self._alone or self._refused or len(self._loads) >= _MOST_LOADS:
            return
        self._loads.append((self._number(program), view, region, call_site()))

    def store(self, program: _Ids, view: View, region: Region) -> None:
        """Notes a store.

        Args:
            program: Index of the program on each axis of the grid.
            view: The tensor.
            region: Elements that are stored to.

        Raises:
            ProgramRaceError: If another program stored to one of the elements.
        """
        if self._alone or self._refused or isinstance(region, Unknown):
            return
        number, site = self._number(program), call_site()
        stores = self._stores.get(id(view))
        if stores is None:
            stores = self._stores[id(view)] = _Stores(view)
        other = _another(region.active(stores.owners), number)
        if other:
            raise self._race(view, (number, "stores", site), other, stores)
        region.fill(stores.owners, number)
        stores.sites[number] = site

    def check(self) -> None:
        """Compares loads with stores, at the end of the launch.

        Raises:
            ProgramRaceError: If one program loaded an element that another stored, before or after.
        """
        if self._refused:
            return
        for number, view, region, site in self._loads:
            stores = self._stores.get(id(view))
            if stores is None or isinstance(region, Unknown):
                continue
            other = _another(region.active(stores.owners), number)
            if other:
                raise self._race(view, (number, "loads", site), other, stores)

    def _number(self, program: _Ids) -> int:
        number = self._numbers.get(program)
        if number is None:
            self._programs.append(program)
            number = self._numbers[program] = len(self._programs)
        return number

    def _race(
        self, view: View, mine: tuple[int, str, CallSite | None], other: int, stores: _Stores
    ) -> ProgramRaceError:
        number, verb, site = mine
        block = view.buffer.allocation
        me, they = self._programs[number - 1], self._programs[other - 1]
        return ProgramRaceError(
            f"programs {me} and {they} of grid {self._grid} touch the same elements of "
            f"{block.label}, in no order",
            [
                f"program {me} {verb} {site_fact(site)}",
                f"program {they} stores {site_fact(stores.sites[other])}",
                site_fact(block.site, "allocated at"),
            ],
            hint="give each program elements of its own: offsets from tl.program_id(0) * BLOCK",
            code="M12",
        )


def _another(owners: Array, mine: int) -> int:
    """Returns the first of the owners that is another program; 0 if there is none."""
    if not owners.size:
        return 0
    largest = int(owners.max())
    if largest == owners.min():
        return largest if largest != mine else 0
    others = owners[(owners != 0) & (owners != mine)]
    return int(others[0]) if others.size else 0
