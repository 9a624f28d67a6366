"""Ranks that stand for others of their class: what must hold wherever they do things together."""

from typing import TYPE_CHECKING

import numpy as np

from kernbench.ccl.alike import check_alike, crosses
from kernbench.classes.partition import WAY_OUT, NotAlikeError, Standing, role_hint
from kernbench.classes.tilings import Tiling, apart_by_group, moved_pairs
from kernbench.errors import call_site, site_fact
from kernbench.process.process import Process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.spawn_state import collectives_of, spawn_state_of

if TYPE_CHECKING:
    from kernbench.ccl.config import Chosen
    from kernbench.ccl.prepared import Prepared


def standing_of(process: Process, group: ProcessGroup) -> Standing | None:
    """Returns who stands for whom in a group; None if every rank calls itself.

    Raises:
        NotAlikeError: If a rank that runs for members of the group is none of them.
    """
    partition = spawn_state_of(process).partition
    if partition is None:
        return None
    try:
        return partition.standing(group.ranks)
    except NotAlikeError:
        Tiling(group.ranks, partition.ranks).check(partition)  # tells more, if it fails, too
        raise


def check_group(process: Process, group: ProcessGroup, prepared: "Prepared") -> None:
    """Checks that ranks of the same classes do in their groups what those of a group do in theirs.

    Args:
        prepared: What the ranks of the group do together.

    Raises:
        NotAlikeError: If this cannot be proved.
    """
    state = spawn_state_of(process)
    if state.partition is not None:
        tiles = Tiling(group.ranks, state.size).check(state.partition)
        state.met.groups[tuple(group.ranks)] = tiles
        check_alike(prepared, tiles, process.ctx.devices, standing_of(process, group))


def check_choice(
    process: Process, group: ProcessGroup, operation: str, nbytes: int, chosen: "Chosen"
) -> None:
    """Checks that groups that are alike are given one algorithm, as those that run are.

    A choice may know of links that the algorithm it takes does not use.

    Args:
        operation: A key of `OPERATIONS`.
        nbytes: What the choice is made for.
        chosen: The algorithm of the group.

    Raises:
        NotAlikeError: If another group has another one.
    """
    state = spawn_state_of(process)
    if state.partition is None:
        return
    devices = np.asarray(process.ctx.devices)
    tiles = Tiling(group.ranks, state.size).check(state.partition)
    if not crosses(process.engine.topology, group.sips):
        return
    model = collectives_of(process)
    choices = [model.choose(operation, nbytes, tuple(sips)) for sips in devices[tiles].tolist()]
    for tile, other in zip(tiles, choices, strict=True):
        if other != chosen:
            raise NotAlikeError(
                f"{operation} is {chosen.name} among ranks {group.ranks[0]}, .., and {other.name} "
                f"among ranks {tile[0]}, .., which are of the same classes",
                hint=f"name an algorithm (--set defaults.algorithm=ring), or {WAY_OUT}",
                apart=apart_by_group(
                    state.size, tiles, np.asarray([[choices.index(one)] for one in choices])
                ),
            )


def check_message(process: Process, source: int, destination: int, prepared: "Prepared") -> None:
    """Checks that ranks of the sender's class send what it does, each to a receiver of its own.

    Args:
        source: Global rank of the sender.
        destination: Global rank of the receiver.
        prepared: The message.

    Raises:
        NotAlikeError: If this cannot be proved.
    """
    state, route = spawn_state_of(process), (source, destination, prepared.shape.chosen.name)
    if state.partition is not None and route not in state.alike:
        pairs = moved_pairs(state.partition, source, destination)
        state.met.pairs[source, destination] = pairs
        check_alike(prepared, pairs, process.ctx.devices, None)
        state.alike.add(route)


def check_peer(process: Process, peer: int | None, name: str) -> None:
    """Checks that the other side of a message runs the program.

    Args:
        peer: Global rank of the other side; None for any rank.
        name: Name of the function that the user called.

    Raises:
        NotAlikeError: If another rank stands for it, or if it may be any rank where some do.
    """
    partition = spawn_state_of(process).partition
    if partition is None or (peer is not None and partition.calls(peer)):
        return
    if peer is None:
        raise NotAlikeError(
            f"rank {process.rank} called {name} for any source, where ranks stand for others",
            [site_fact(call_site())],
            hint=f"name the source, or {WAY_OUT}",
        )
    other = partition.class_of(peer)
    raise NotAlikeError(
        f"rank {process.rank} called {name} with rank {peer}, for which rank {other.member} runs "
        "the program",
        [site_fact(call_site()), f"both are of class {other.name!r}"],
        hint=role_hint(peer),
    )
