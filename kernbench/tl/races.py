"""Which programs and lanes of one launch touch the same elements in no order (M12)."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from kernbench.errors import CallSite, call_site, site_fact
from kernbench.memory import Array, Buffer, View
from kernbench.tl.access import Region, Scattered, Unknown, Window, extent, flat
from kernbench.tl.tile import Tile
from kernbench.tl.types import convert
from kernbench.ttir import races
from kernbench.ttir.races import Spans, Touched
from kernbench.ttir.reports import ProgramRaceError

_MOST_LOADS: Final = 1 << 17
"""Loads that are kept for the end of the launch; later loads are not compared with stores."""

_Ids = tuple[int, ...]


class _Place(NamedTuple):
    """An argument.

    Attributes:
        name: Its name.
        view: Its elements.
        base: What stands for the address of its first element: memory of arguments lies one after
            the other.
    """

    name: str
    view: View
    base: int


class _Access(NamedTuple):
    """A load or a store of one program.

    Attributes:
        program: Index of the program on each axis of the grid.
        verb: `loads` or `stores`.
        place: The argument.
        site: The line.
        region: The elements.
        values: What is stored, if several programs may store it; None if it is not known.
    """

    program: _Ids
    verb: str
    place: _Place
    site: CallSite | None
    region: Window | Scattered
    values: Array | None = None


class Races:
    """Compares what the programs of a launch load and store, byte by byte, at its end.

    Programs of a grid run in no order, so no program may touch an element to which another one
    stores, through the same argument or through another one on the same memory. The lanes of one
    store have no order either. Programs that exchange messages are not compared, because messages
    order them.

    Args:
        grid: Extents of the grid.
        views: The tensors among the arguments, by name; no two the same object.
        same_stores: Whether several programs may store one value to one element.
    """

    def __init__(self, grid: _Ids, views: Mapping[str, View], *, same_stores: bool) -> None:
        self._grid: Final = grid
        self._alone: Final = max(grid) == 1
        self._same_stores: Final = same_stores
        self._refused = False
        self._places: Final[dict[int, _Place]] = {}
        bases: dict[Buffer, int] = {}
        end = 0
        for name, view in views.items():
            if view.buffer not in bases:
                bases[view.buffer] = end
                end += view.buffer.allocation.nbytes
            base = bases[view.buffer] + view.offset * view.dtype.itemsize
            self._places[id(view)] = _Place(name, view, base)
        self._numbers: Final[dict[_Ids, int]] = {}
        self._loads: Final[list[_Access]] = []
        self._stores: Final[list[_Access]] = []

    def refuse(self) -> None:
        """Notes that a program sends or receives: programs may be in an order."""
        self._refused = True

    def load(self, program: _Ids, view: View, region: Region) -> None:
        """Notes a load.

        Args:
            program: Index of the program on each axis of the grid.
            region: Elements that are loaded.
        """
        if self._alone or self._refused or len(self._loads) >= _MOST_LOADS:
            return
        if not isinstance(region, Unknown):
            place = self._places[id(view)]
            self._loads.append(_Access(program, "loads", place, call_site(), region))

    def store(self, program: _Ids, view: View, region: Region, tile: Tile) -> None:
        """Notes a store, before the elements are written.

        Args:
            program: Index of the program on each axis of the grid.
            region: Elements that are stored to.
            tile: The values, if they are known.

        Raises:
            ProgramRaceError: If lanes of the store have different values for one element. Values
                that are not known differ.
        """
        if isinstance(region, Unknown):
            return
        mine = _Access(program, "stores", self._places[id(view)], call_site(), region)
        if isinstance(region, Scattered) and tile.numel > 1:
            self._check_lanes(mine, region, tile)
        if self._alone or self._refused:
            return
        self._stores.append(mine._replace(values=tile.values) if self._same_stores else mine)

    def check(self) -> None:
        """Compares loads and stores with stores, at the end of the launch.

        Raises:
            ProgramRaceError: If one program touched an element to which another one stored, before
                or after. Values that are not known differ.
        """
        if self._refused or not self._stores:
            return
        stores = self._spans(self._stores)
        stored = races.flat(stores)
        several = np.flatnonzero(stored.programs < 0)
        if self._same_stores and len(several):
            several = self._changed(stored, several)
        if len(several):
            address = int(stored.starts[several[0]])
            over = np.flatnonzero((stores.starts <= address) & (address < stores.ends))
            first, *others = (self._stores[int(stores.lines[each])] for each in over)
            second = next(each for each in others if each.program != first.program)
            raise self._race(second, first, address)
        memory = {id(each.place.view.buffer) for each in self._stores}
        loads = [each for each in self._loads if id(each.place.view.buffer) in memory]
        if not loads:
            return
        touched, loaded = Touched(), self._spans(loads)
        touched.add(stored)
        met = touched.met(loaded)
        if met is not None:
            mine, theirs = loads[int(loaded.lines[met[0]])], self._stores[met[2]]
            start, end, number = (int(each[met[0]]) for each in loaded[:3])
            other = (stores.ends > start) & (stores.starts < end) & (stores.programs != number)
            raise self._race(mine, theirs, max(start, int(stores.starts[other].min())))

    def _spans(self, accesses: Iterable[_Access]) -> Spans:
        """Returns the bytes of accesses, whose places in the list are the numbers of the lines."""
        starts, sizes, programs, counts = [], [], [], []
        for each in accesses:
            first, run = each.region.runs()
            size = each.place.view.dtype.itemsize
            starts.append(each.place.base + first.astype(np.int64) * size)
            sizes.append(run * size)
            programs.append(self._numbers.setdefault(each.program, len(self._numbers)))
            counts.append(len(first))
        begin = np.concatenate(starts)
        return Spans(
            begin,
            begin + np.repeat(sizes, counts),
            np.repeat(programs, counts),
            np.repeat(np.arange(len(counts)), counts),
        )

    def _changed(self, stored: Spans, several: Array) -> Array:
        """Returns the spans of several programs in which one of them stored other values."""
        lost = [
            mine._replace(region=Scattered(_elements(mine)[differing], None))
            for mine in self._stores
            if (differing := _lost(mine)).any()
        ]
        if not lost:
            return several[:0]
        changed = races.flat(self._spans(lost))
        first = np.searchsorted(changed.ends, stored.starts[several], "right")
        behind = np.searchsorted(changed.starts, stored.ends[several], "left")
        return several[behind > first]

    def _race(self, mine: _Access, theirs: _Access, address: int) -> ProgramRaceError:
        facts = []
        for each in (mine, theirs):
            _, view, base = each.place
            element = (address - base) // view.dtype.itemsize
            facts.append(
                f"program {each.program} {each.verb} element {element} of {each.place.name} "
                + site_fact(each.site)
            )
        if mine.place is not theirs.place:
            facts.append(f"{mine.place.name} and {theirs.place.name} lie in the same memory")
        hint = "give each program elements of its own: offsets from tl.program_id(0) * BLOCK"
        if mine.verb == "stores":
            hint += (
                "; programs that store different values are refused even under same_stores"
                if self._same_stores
                else "; or, if all store the same value, say @tl.jit(same_stores=True)"
            )
        block = mine.place.view.buffer.allocation
        return ProgramRaceError(
            f"programs {mine.program} and {theirs.program} of grid {self._grid} touch the same "
            f"elements of {block.label}, in no order",
            [*facts, site_fact(block.site, "allocated at")],
            hint=hint,
            code="M12",
        )

    def _check_lanes(self, mine: _Access, region: Scattered, tile: Tile) -> None:
        """Refuses lanes of one store that have different values for one element."""
        lanes = region.index.reshape(-1)
        if (lanes[1:] > lanes[:-1]).all():
            return
        order = np.argsort(lanes, kind="stable")
        index = lanes[order]
        again = index[1:] == index[:-1]
        if not again.any():
            return
        if tile.values is not None:
            values = _bytes_of(mine._replace(values=tile.values))[order]
            again &= (values[1:] != values[:-1]).any(axis=1)
            if not again.any():
                return
        block = mine.place.view.buffer.allocation
        raise ProgramRaceError(
            f"lanes of one tl.store have different values for one element of {block.label}",
            [
                f"program {mine.program} of grid {self._grid} stores element "
                f"{int(index[int(again.argmax())])} of {mine.place.name} {site_fact(mine.site)}",
                f"{int(again.sum())} of {index.size} lanes store to an element that another lane "
                "stores to, and which one is last is not defined",
                site_fact(block.site, "allocated at"),
            ],
            hint="give each lane an element of its own, or mask all lanes but one of each element",
            code="M12",
        )


def _elements(mine: _Access) -> Array:
    """Returns the elements that an access touches, lane by lane."""
    found: Array = mine.region.active(np.arange(extent(mine.place.view))).reshape(-1)
    return found


def _bytes_of(mine: _Access) -> Array:
    """Returns the bytes that an access stores, as `[elements, bytes]`."""
    assert mine.values is not None
    chosen = mine.region.chosen(convert(mine.values, mine.place.view.dtype))
    chosen = np.ascontiguousarray(chosen).reshape(-1)
    return chosen.view(np.uint8).reshape(-1, chosen.itemsize)


def _lost(mine: _Access) -> Array:
    """Returns which elements that an access stored hold other values now, lane by lane."""
    if mine.values is None:
        return np.ones(mine.region.count, np.bool_)
    new = _bytes_of(mine)
    now = np.ascontiguousarray(mine.region.active(flat(mine.place.view))).reshape(-1)
    found: Array = (new != now.view(np.uint8).reshape(new.shape)).any(axis=1)
    return found
