"""Which programs and lanes of one launch touch the same elements in no order (M12)."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.errors import CallSite, KernbenchError, call_site, site_fact
from kernbench.memory import Array, View
from kernbench.tl.access import Region, Scattered, Unknown, Window, extent, flat
from kernbench.tl.tile import Tile

_MOST_LOADS: Final = 1 << 17
"""Loads that are kept for the end of the launch; later loads are not compared with stores."""

_Ids = tuple[int, ...]


class ProgramRaceError(KernbenchError):
    """Programs of one launch, or lanes of one store, touch an element in no order (M12)."""


class _Ground:
    """Memory to which a launch may store, through one argument or through several.

    Args:
        views: The arguments that lie in one buffer.
    """

    def __init__(self, views: list[View]) -> None:
        self._size: Final = min(view.dtype.itemsize for view in views)
        self._first: Final = min(view.offset * view.dtype.itemsize for view in views)
        end = max((view.offset + extent(view)) * view.dtype.itemsize for view in views)
        self._count: Final = max(end - self._first, 0) // self._size
        self._owners: Array | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing was stored."""
        return self._owners is None

    def owners(self, view: View) -> Array:
        """Returns the number of the last store to each element of an argument; 0 for none.

        If another argument has narrower elements, an element has several numbers.
        """
        if self._owners is None:
            self._owners = np.zeros(self._count, np.int32)
        itemsize = view.dtype.itemsize
        parts = itemsize // self._size
        first = (view.offset * itemsize - self._first) // self._size
        found = self._owners[first : first + extent(view) * parts]
        return found if parts == 1 else found.view(np.dtype((np.void, 4 * parts)))


def _numbers(owners: Array) -> Array:
    """Returns the numbers of elements as `[elements, parts]`."""
    parts = owners.itemsize // 4
    return np.ascontiguousarray(owners).reshape(-1).view(np.int32).reshape(-1, parts)


class _Place(NamedTuple):
    """An argument.

    Attributes:
        name: Its name.
        view: Its elements.
        ground: The memory in which it lies.
    """

    name: str
    view: View
    ground: _Ground


class _Access(NamedTuple):
    """A line that loads or stores in one program.

    Attributes:
        number: Number of the program, from 1.
        verb: `loads` or `stores`.
        place: The argument.
        site: The line.
    """

    number: int
    verb: str
    place: _Place
    site: CallSite | None


class Races:
    """Compares what the programs of a launch load and store, element by element.

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
        self._views: Final = views
        self._places: Final[dict[int, _Place]] = {}
        self._numbers: Final[dict[_Ids, int]] = {}
        self._programs: Final[list[_Ids]] = []
        # Stores are numbered from 1; the program of each is kept twice, to look up many at once.
        self._stores: Final[list[_Access]] = []
        self._known: Final[dict[tuple[int, int, int], int]] = {}
        self._program_of: Array = np.zeros(64, np.int32)
        self._loads: Final[list[tuple[_Access, Region]]] = []

    def refuse(self) -> None:
        """Notes that a program sends or receives: from now on programs may be in an order."""
        self._refused = True

    def load(self, program: _Ids, view: View, region: Region) -> None:
        """Notes a load, which `check` compares with stores.

        Args:
            program: Index of the program on each axis of the grid.
            region: Elements that are loaded.
        """
        if self._alone or self._refused or len(self._loads) >= _MOST_LOADS:
            return
        number, place = self._number(program), self._place(view)
        self._loads.append((_Access(number, "loads", place, call_site()), region))

    def store(self, program: _Ids, view: View, region: Region, tile: Tile) -> None:
        """Notes a store, before the elements are written.

        Args:
            program: Index of the program on each axis of the grid.
            region: Elements that are stored to.
            tile: The values, if they are known.

        Raises:
            ProgramRaceError: If lanes of the store have different values for one element, or
                another program stored to one of the elements. Values that are not known differ.
        """
        if isinstance(region, Unknown):
            return
        place = self._place(view)
        if isinstance(region, Scattered) and tile.numel > 1:
            self._check_lanes(program, place, region, tile)
        if self._alone or self._refused:
            return
        mine = _Access(self._number(program), "stores", place, call_site())
        owners = place.ground.owners(view)
        found = region.active(owners)
        foreign = self._foreign(found, mine.number)
        if foreign is not None and self._same_stores:
            foreign &= _differing(view, region, tile)
        if foreign is not None and foreign.any():
            raise self._race(mine, region, found, foreign)
        number: Any = self._store_number(mine)
        if owners.itemsize > 4:
            number = np.full(owners.itemsize // 4, number, np.int32).view(owners.dtype)[0]
        region.fill(owners, number)

    def check(self) -> None:
        """Compares loads with stores, at the end of the launch.

        Raises:
            ProgramRaceError: If one program loaded an element that another stored, before or after.
        """
        if self._refused:
            return
        for mine, region in self._loads:
            place = mine.place
            if place.ground.empty or isinstance(region, Unknown):
                continue
            found = region.active(place.ground.owners(place.view))
            foreign = self._foreign(found, mine.number)
            if foreign is not None:
                raise self._race(mine, region, found, foreign)

    def _number(self, program: _Ids) -> int:
        number = self._numbers.get(program)
        if number is None:
            self._programs.append(program)
            number = self._numbers[program] = len(self._programs)
        return number

    def _place(self, view: View) -> _Place:
        place = self._places.get(id(view))
        if place is None:
            together = {n: each for n, each in self._views.items() if each.buffer is view.buffer}
            ground = _Ground(list(together.values()))
            for name, each in together.items():
                self._places[id(each)] = _Place(name, each, ground)
            place = self._places[id(view)]
        return place

    def _store_number(self, store: _Access) -> int:
        key = store.number, id(store.place), id(store.site)
        found = self._known.get(key)
        if found is None:
            self._stores.append(store)
            found = self._known[key] = len(self._stores)
            if found == self._program_of.size:
                self._program_of = np.concatenate([self._program_of] * 2)
            self._program_of[found] = store.number
        return found

    def _foreign(self, found: Array, mine: int) -> Array | None:
        """Returns which elements another program stored to, by lane; None if there are none.

        Args:
            found: Numbers of the last stores to the elements.
            mine: Number of the program.
        """
        numbers = _numbers(found) if found.itemsize > 4 else found
        if not numbers.size or not (largest := int(numbers.max())):
            return None
        if largest == numbers.min() and int(self._program_of[largest]) == mine:
            return None
        programs = self._program_of[_numbers(found)]
        foreign: Array = ((programs != 0) & (programs != mine)).any(axis=1)
        return foreign if foreign.any() else None

    def _race(
        self, mine: _Access, region: Window | Scattered, found: Array, foreign: Array
    ) -> ProgramRaceError:
        found = _numbers(found)
        lane = int(foreign.argmax())
        programs = self._program_of[found[lane]]
        part = int(((programs != 0) & (programs != mine.number)).argmax())
        theirs = self._stores[int(found[lane][part]) - 1]
        element = int(region.active(np.arange(extent(mine.place.view))).reshape(-1)[lane])
        mine_at, theirs_at = mine.place.view, theirs.place.view
        size = mine_at.dtype.itemsize // found.shape[1]
        byte = (mine_at.offset + element) * mine_at.dtype.itemsize + part * size
        other = byte // theirs_at.dtype.itemsize - theirs_at.offset
        block = mine_at.buffer.allocation
        me, they = self._programs[mine.number - 1], self._programs[theirs.number - 1]
        facts = [
            f"program {program} {access.verb} element {at} of {access.place.name} "
            + site_fact(access.site)
            for program, access, at in ((me, mine, element), (they, theirs, other))
        ]
        if mine.place is not theirs.place:
            facts.append(f"{mine.place.name} and {theirs.place.name} lie in the same memory")
        hint = "give each program elements of its own: offsets from tl.program_id(0) * BLOCK"
        if mine.verb == "stores":
            hint += (
                "; programs that store different values are refused even under same_stores"
                if self._same_stores
                else "; or, if all store the same value, say @tl.jit(same_stores=True)"
            )
        return ProgramRaceError(
            f"programs {me} and {they} of grid {self._grid} touch the same elements of "
            f"{block.label}, in no order",
            [*facts, site_fact(block.site, "allocated at")],
            hint=hint,
            code="M12",
        )

    def _check_lanes(self, program: _Ids, place: _Place, region: Scattered, tile: Tile) -> None:
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
            values = _bytes_of(region, tile.values.astype(place.view.dtype.numpy))[order]
            again &= (values[1:] != values[:-1]).any(axis=1)
            if not again.any():
                return
        block = place.view.buffer.allocation
        raise ProgramRaceError(
            f"lanes of one tl.store have different values for one element of {block.label}",
            [
                f"program {program} of grid {self._grid} stores element "
                f"{int(index[int(again.argmax())])} of {place.name} {site_fact(call_site())}",
                f"{int(again.sum())} of {index.size} lanes store to an element that another lane "
                "stores to, and which one is last is not defined",
                site_fact(block.site, "allocated at"),
            ],
            hint="give each lane an element of its own, or mask all lanes but one of each element",
            code="M12",
        )


def _bytes_of(region: Window | Scattered, values: Array) -> Array:
    """Returns the bytes that a region takes from values, as `[elements, bytes]`."""
    chosen = np.ascontiguousarray(region.chosen(values)).reshape(-1)
    return chosen.view(np.uint8).reshape(-1, chosen.itemsize)


def _differing(view: View, region: Window | Scattered, tile: Tile) -> Array:
    """Returns which elements have another value in memory than in a tile, by lane."""
    if tile.values is None:
        return np.ones(region.count, np.bool_)
    new = _bytes_of(region, tile.values.astype(view.dtype.numpy))
    old = np.ascontiguousarray(region.active(flat(view))).reshape(-1)
    differing: Array = (new != old.view(np.uint8).reshape(new.shape)).any(axis=1)
    return differing
