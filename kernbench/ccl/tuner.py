"""`auto`: which algorithm is expected to be the fastest for an operation, a size and a group."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

from kernbench.caches import Table, cached
from kernbench.ccl.config import (
    AUTO,
    CclFile,
    Chosen,
    check_fits,
    choose,
    default_algorithms,
    find_ccl_file,
    load_ccl,
    programs_of,
    shipped_ccl_file,
)
from kernbench.ccl.cut_bound import CutBound, cut_bound, shortfall
from kernbench.ccl.estimate import SlotLimit, estimator_of
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.plan import RefusedError
from kernbench.ccl.profiles import Choosing, Scope, message_of
from kernbench.ccl.programs import channels_of
from kernbench.ccl.rails import rails_of
from kernbench.ccl.trials import Case, Trial, timed
from kernbench.config.load import Loaded
from kernbench.config.problems import ConfigError
from kernbench.errors import UsageError
from kernbench.memory import dtypes
from kernbench.topology import Topology

_MANY: Final = 256
"""Number of ranks above which plans between all pairs, and long plans, cost too much to make."""

_HARDLY_SLOWER: Final = 1.02
"""Ratio of two estimates that say nothing about which algorithm is the faster one."""

_LARGEST_SLOT_BITS: Final = 31
"""Bits of a slot size that `enough_slots` does not try any more."""

_Key = tuple[str, int, int, tuple[int, ...], bool, frozenset[str]]
"""What a choice depends on beside file and machine.

Operation, bits of size, ranks, devices, whether a message goes over channels with one way, and
candidates whose files are for other ranks or sizes.
"""

_Kept = Table[Hashable, tuple[Loaded[CclFile], Chosen]]
"""Choices on a machine, each with its file: one object while the file has not changed.

Keys tell files apart by identity: an entry keeps its file alive, so no other one gets its number.
"""


@cached("ccl.choosers")
def _kept_of(_topology: Topology) -> _Kept:
    """Returns the choices on a machine; of equal machines, the same object."""
    return Table("ccl.choices")


def _of_size(candidates: list[Chosen], nbytes: int) -> list[Chosen]:
    """Returns the candidates whose queues a library takes for messages of a size.

    Where an algorithm takes part that is not the library's, all do: its bounds tell its own apart,
    and the fastest is wanted.

    Args:
        nbytes: Bytes that a rank sends to another one.
    """
    if any(one.p2p is None for one in candidates):
        return candidates
    bounds = [None if one.p2p is None else one.p2p.up_to for one in candidates]
    bounded = list(zip(candidates, bounds, strict=True))
    small = [one for one, bound in bounded if bound is not None and nbytes <= bound]
    return small or [one for one, bound in bounded if bound is None] or candidates


def _own_estimate(chosen: Chosen, operation: str, nbytes: int, ranks: int) -> float:
    assert chosen.tuning is not None
    return chosen.tuning.time(operation, nbytes, ranks, tree=chosen.topology == "line")


class Choices:
    """Which algorithm each operation uses on a machine.

    The first of these that implements the operation is used: the algorithm that
    `defaults.operations` names; `defaults.algorithm`, or the fastest of the machine's own
    algorithms; the fastest algorithm of the file; the fastest algorithm of the shipped file.

    Args:
        given: The `ccl.yaml` that the user named; None if the user named no file.
        overrides: `dotted.field=value` texts applied to the file.
    """

    def __init__(self, given: Path | None, overrides: Sequence[str], topology: Topology) -> None:
        self._given: Final = given
        self._overrides: Final = tuple(overrides)
        self._topology: Final = topology
        self._estimator: Final = estimator_of(topology)
        self._system: Final = topology.machine.system
        self._named: dict[str, Chosen | None] = {}
        self._candidates: dict[str, list[Chosen]] = {}
        self._scopes: Final[dict[str, list[tuple[str, Scope]]]] = {}
        self._chosen: dict[_Key, Chosen] = {}
        self._kept: Final = _kept_of(topology)

    def choose(
        self,
        operation: str,
        nbytes: int,
        sips: Sequence[int],
        ranks: int | None = None,
        *,
        one_way: bool = False,
    ) -> Chosen:
        """Returns the algorithm of an operation.

        Args:
            operation: A key of `OPERATIONS`.
            nbytes: Size of all blocks of the buffer together. The choice is the same for all sizes
                between two powers of two, except for files of collectives that begin or end there.
            sips: Device of each rank that takes part.
            ranks: Ranks of the group in which two ranks exchange a message; by default as many as
                the machine has.
            one_way: Whether a message has channels that only send, or only receive.

        Raises:
            UsageError: If the file, or an algorithm that it names, cannot be used.
        """
        message = operation == "send_recv"
        named = self._named.get(operation)
        if named is not None and not (named.sized or message):
            return named
        group = (ranks or self._topology.world_size) if message else len(sips)
        members = self._estimator.like(tuple(sips))
        unfit = self._unfit(operation, nbytes, group)
        key = operation, max(nbytes - 1, 0).bit_length(), group, members, one_way, unfit
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._chosen[key] = self._look_up(key)
            if not (chosen.auto or message or self._is_sized(operation)):
                self._named[operation] = chosen
        return chosen

    def _unfit(self, operation: str, nbytes: int, group: int) -> frozenset[str]:
        """Returns the candidates whose files are for other ranks or sizes."""
        scopes = self._scopes.get(operation)
        if scopes is None:
            if operation not in self._named:
                self._named[operation] = self._find_named(operation)
            every = [] if self._named[operation] else self._candidates_of(operation)
            scopes = [(one.name, one.scope) for one in every if one.scope is not None]
            self._scopes[operation] = scopes
        return frozenset(name for name, scope in scopes if not scope.holds(group, nbytes))

    def _candidates_of(self, operation: str) -> list[Chosen]:
        if operation not in self._candidates:
            self._candidates[operation] = self._find_candidates(operation)
        return self._candidates[operation]

    def _is_sized(self, operation: str) -> bool:
        """Returns whether what is named for an operation depends on sizes or groups."""
        if operation not in self._named:
            self._named[operation] = self._find_named(operation)
        named = self._named[operation]
        return named is not None and named.sized

    def _look_up(self, key: _Key) -> Chosen:
        """Returns the choice of an equal context, if there was one; else chooses."""
        path, loaded = self._file
        file = self._given is None, id(loaded), key
        programs = programs_of(loaded, key[0])
        if programs is None:
            return self._choose(*key)
        known = self._kept.get((file, programs))
        if known is not None:
            return known[1]
        chosen = self._choose(*key)
        if chosen.path == path:
            # To choose may have imported modules.
            self._kept.keep((file, programs_of(loaded, key[0])), (loaded, chosen))
        return chosen

    def _choose(
        self,
        operation: str,
        bits: int,
        group: int,
        members: tuple[int, ...],
        one_way: bool,
        unfit: frozenset[str],
    ) -> Chosen:
        if operation not in self._named:
            self._named[operation] = self._find_named(operation)
        named = self._named[operation]
        if named is not None and not named.sized:
            return named
        if named is None:
            every = [one for one in self._candidates_of(operation) if one.name not in unfit]
            every = every or self._shipped(operation)
        else:
            every = [named]
        candidates = [self._in_place_of(one, operation, members) for one in every]
        candidates = [each for one in candidates for each in self._by_rails(one, members)]
        candidates = _of_size(candidates, message_of(operation, 1 << bits, group))
        candidates = [
            one.for_size(operation, 1 << bits, group, one_way=one_way) for one in candidates
        ]
        fastest = self._fastest(candidates, operation, 1 << bits, members)
        return replace(fastest, auto=named is None)

    def _in_one_node(self, sips: Sequence[int]) -> bool:
        if self._system.sips.network.node is None:
            return True
        return len(set(map(self._topology.node_of, sips))) == 1

    def _in_place_of(self, chosen: Chosen, operation: str, sips: Sequence[int]) -> Chosen:
        """Returns the algorithm that takes the place of another one in a group, if there is one."""
        if chosen.inside is None or not self._in_one_node(sips):
            return chosen
        path, loaded = self._file
        inner = choose(loaded, path, chosen.inside, self._system)
        check_fits(inner, loaded, self._system)
        return inner if inner.implements(operation) else chosen

    def slot_limit(
        self, operation: str, nbytes: int, sips: Sequence[int], ranks: int | None = None
    ) -> SlotLimit | None:
        """Returns what too few slots cost an operation; None if they cost nothing that is known.

        Args:
            operation: See `choose`.
            nbytes: See `choose`.
            sips: See `choose`.
            ranks: See `choose`.
        """
        chosen = self.choose(operation, nbytes, sips, ranks)
        try:
            return self._estimator.slot_limit(chosen, operation, nbytes, tuple(sips))
        except RefusedError:
            return None

    def enough_slots(
        self, operation: str, nbytes: int, sips: Sequence[int], ranks: int | None = None
    ) -> int | None:
        """Returns the smallest size of slots, a power of 2, that limits an operation no longer.

        Args:
            operation: See `choose`.
            nbytes: See `choose`.
            sips: See `choose`.
            ranks: See `choose`.

        Returns:
            Bytes of a slot; None if no size that fits into the memory is enough.
        """
        chosen = self.choose(operation, nbytes, sips, ranks)
        for bits in range(chosen.queue.slot_size.bit_length(), _LARGEST_SLOT_BITS):
            larger = replace(chosen, queue=replace(chosen.queue, slot_size=1 << bits))
            try:
                check_fits(larger, self._file[1], self._system)
            except ConfigError:
                return None
            try:
                limit = self._estimator.slot_limit(larger, operation, nbytes, tuple(sips))
            except RefusedError:
                return None
            if limit is None:
                return 1 << bits
        return None

    def shortfall(
        self,
        operation: str,
        nbytes: int,
        sips: Sequence[int],
        time: int,
        *,
        ranks: int | None = None,
        root: int = 0,
    ) -> str | None:
        """Returns what limits an operation that gets less than half of its cut bound, else None.

        Args:
            operation: See `choose`.
            nbytes: See `choose`.
            sips: See `choose`.
            time: How long the operation takes, in picoseconds.
            ranks: See `choose`.
            root: Root inside the group.
        """
        bound = self.bound(operation, nbytes, sips, root)
        if bound is None:
            return None
        chosen = self.choose(operation, nbytes, sips, ranks)
        try:
            least = self._estimator.estimate(chosen, operation, len(sips), tuple(sips))
        except RefusedError:
            least = None
        host = self._system.host
        issued = host.dispatch_of.collective
        issued = host.dispatch if issued is None else issued
        return shortfall(bound, time, least or 0.0, chosen.name, issued)

    def bound(
        self, operation: str, nbytes: int, sips: Sequence[int], root: int = 0
    ) -> CutBound | None:
        """Returns the least time that the links leave to an operation: see `cut_bound`."""
        return cut_bound(self._topology, operation, nbytes, sips, root)

    def name(self, operation: str) -> str:
        """Returns the algorithm of an operation; `auto` if it depends on sizes and groups."""
        if operation not in self._named:
            self._named[operation] = self._find_named(operation)
        named = self._named[operation]
        return AUTO if named is None else named.name

    @cached_property
    def _file(self) -> tuple[Path, Loaded[CclFile]]:
        path = find_ccl_file(self._given)
        return path, load_ccl(path, self._overrides)

    def _find_named(self, operation: str) -> Chosen | None:
        path, loaded = self._file
        own, names = self._names(operation)
        if len(names) != 1:
            return None
        name = names[0]
        chosen = choose(loaded, path, name, self._system)
        if own and not chosen.implements(operation):
            text = f"expected an algorithm with a function {operation}(comm); {name} has none"
            if chosen.scope is not None:
                of = ", ".join(each for each in OPERATIONS if chosen.implements(each))
                text = f"expected an algorithm of {operation}; {name} is a file of {of}"
            place = f"defaults.operations.{operation}"
            raise ConfigError(loaded.name, [loaded.problem("F14", place, text)])
        if not chosen.implements(operation):
            return None
        check_fits(chosen, loaded, self._system)
        return chosen

    def _names(self, operation: str) -> tuple[bool, tuple[str, ...]]:
        """Returns whether the file names the algorithm of an operation, and the names.

        No names stand for every algorithm of the file.
        """
        loaded = self._file[1]
        own = loaded.value.defaults.operations.get(operation)
        if own is not None:
            return True, () if own == AUTO else (own,)
        return False, default_algorithms(self._given, self._overrides, loaded, self._system)

    def _find_candidates(self, operation: str) -> list[Chosen]:
        path, loaded = self._file
        names = self._names(operation)[1]
        found = self._implementing(operation, path, loaded, names)
        found = found or self._implementing(operation, path, loaded)
        return found or self._shipped(operation)

    def _shipped(self, operation: str) -> list[Chosen]:
        path = shipped_ccl_file()
        found = self._implementing(operation, path, load_ccl(path))
        if not found:
            raise UsageError(f"no algorithm of {path} implements {operation}", code="F14")
        return found

    def _implementing(
        self, operation: str, path: Path, loaded: Loaded[CclFile], names: Sequence[str] = ()
    ) -> list[Chosen]:
        """Returns the algorithms that implement an operation and fit the machine.

        Args:
            operation: A key of `OPERATIONS`.
            names: Algorithms to consider; by default all of the file that `auto` may choose.
        """
        found, misfits = [], []
        every = [name for name, spec in loaded.value.algorithms.items() if spec.auto]
        for name in names or every:
            chosen = choose(loaded, path, name, self._system)
            if not chosen.implements(operation):
                continue
            try:
                check_fits(chosen, loaded, self._system)
            except ConfigError as misfit:
                misfits.append(misfit)
            else:
                found.append(chosen)
        if misfits and not found:
            raise misfits[0]
        return found

    def _fastest(
        self, candidates: Sequence[Chosen], operation: str, nbytes: int, sips: tuple[int, ...]
    ) -> Chosen:
        """Returns the candidate that takes the least time; the first of equals.

        In groups of few ranks candidates are timed (ADR 0066), in larger ones estimated. Of those
        that are hardly slower than the fastest, or on one NIC in place of all not much slower, it
        is one with the fewest channels, since each channel is simulated.
        """
        worthy = self._worthy(candidates, sips)
        if all(one.tuning for one in worthy) and self._in_one_node(sips):
            return min(worthy, key=lambda one: _own_estimate(one, operation, nbytes, len(sips)))
        if len(worthy) == 1:
            return worthy[0]
        times = self._estimated(worthy, operation, nbytes, sips)
        if len(sips) <= self._choice.ranks and len(times) > 1:
            times = self._timed(times, operation, nbytes, sips) or times
        if not times:
            return worthy[0]
        least = min(time for time, _ in times)
        near = [
            (self._channels(one, sips), time, one)
            for time, one in times
            if time <= least * self._margin(one)
        ]
        return min(near, key=lambda each: each[:2])[2]

    def _estimated(
        self, candidates: Sequence[Chosen], operation: str, nbytes: int, sips: tuple[int, ...]
    ) -> list[tuple[float, Chosen]]:
        """Returns the candidates that have an estimate, each with its time."""
        times = []
        for candidate in candidates:
            try:
                time = self._estimator.estimate(candidate, operation, nbytes, sips)
            except RefusedError:
                continue
            if time is not None:
                times.append((time * self._doubt(candidate, sips), candidate))
        return times

    def _timed(
        self,
        estimated: Sequence[tuple[float, Chosen]],
        operation: str,
        nbytes: int,
        sips: tuple[int, ...],
    ) -> list[tuple[float, Chosen]]:
        """Returns candidates with the times that they take by themselves.

        Candidates with a much longer estimate than the fastest one are left out, and those that
        still run when one timed before has long ended.
        """
        order = sorted(estimated, key=lambda each: each[0])
        most = order[0][0] * self._choice.within / 100
        trials = [Trial(one, estimate) for estimate, one in order if estimate <= most]

        def estimate(chosen: Chosen, size: int) -> float:
            time = self._estimator.estimate(chosen, operation, size, sips)
            assert time is not None
            return time * self._doubt(chosen, sips)

        case = Case(self._topology, operation, sips, nbytes, dtypes.float32, estimate)
        found = timed(case, trials, self._choice.calls, self._margin)
        return [(trial.time, trial.chosen) for trial in found]

    def _margin(self, chosen: Chosen) -> float:
        """Returns by which ratio an algorithm may be slower than the fastest, and be taken."""
        return max(_HARDLY_SLOWER, self._choice.all_nics / 100 * chosen.only_first)

    def _doubt(self, chosen: Chosen, sips: tuple[int, ...]) -> float:
        topology = self._topology
        apart = chosen.links == 1 or topology.links_out(sips) == 1 or topology.meshed(sips)
        return 1.0 if apart else self._choice.all_links / 100

    @property
    def _choice(self) -> Choosing:
        return self._file[1].value.choice

    def _by_rails(self, chosen: Chosen, sips: tuple[int, ...]) -> list[Chosen]:
        """Returns an algorithm on as many rails as it uses, and on one where these are several."""
        rails = rails_of(self._topology, sips, chosen.rails)
        one = replace(chosen, only_first=True)
        return [chosen] if rails is None or len(rails.walks) == 1 else [one, chosen]

    def _channels(self, chosen: Chosen, sips: tuple[int, ...]) -> int:
        return channels_of(chosen, self._topology, sips)[0]

    def _worthy(self, candidates: Sequence[Chosen], sips: Sequence[int]) -> Sequence[Chosen]:
        """Returns the candidates that are worth an estimate; at least one.

        In groups that are timed all are. Else, on groups of one dimension, algorithms for grids,
        and in one node those for nodes, are the other algorithms under another name, but for
        channels that meet, of which estimates know little. In large groups, estimates of algorithms
        with many messages would take too long.
        """
        if len(sips) <= self._choice.ranks:
            return candidates
        if len(self._topology.grid(sips)) == 1:
            alike = ("grid", "nodes") if self._in_one_node(sips) else ("grid",)
            flat = [one for one in candidates if one.topology not in alike]
            candidates = flat or candidates
        if len(sips) <= _MANY:
            return candidates
        first = {"ring_1d", "grid", "nodes"}
        if self._system.sips.network.kind in {"switch", "nodes", "fat_tree"}:
            first.add("hypercube")  # elsewhere its partners are far apart, with many links between
        for topologies in (first, {"tree"}):
            found = [one for one in candidates if one.topology in topologies]
            if found:
                return found
        return candidates[:1]
