"""Arguments that every rank of the world gives alike, even those that change no group yet."""

from collections.abc import Mapping

from kernbench.errors import call_site
from kernbench.process.process import Process
from kernbench.ranks.making import meet
from kernbench.ranks.meeting import Call, Term
from kernbench.ranks.world import world_of


def agree(process: Process, name: str, arguments: Mapping[str, object]) -> None:
    """Compares the arguments of a call with those of the other ranks; nobody waits.

    Ranks that disagree are found when the second of them calls, and one that never calls when it
    returns.

    Args:
        process: Who calls.
        name: Of the function, as reports show it.
        arguments: By name; those that are None are not shown.

    Raises:
        GroupMismatchError: If another rank gave others, or called it elsewhere (C9).
    """

    def hint(expected: object, got: object) -> str:
        del expected, got
        return f"every rank of the world calls {name} with the same arguments"

    world = world_of(process)
    ranks = tuple(range(world.size))
    shown = ", ".join(f"{key}={value!r}" for key, value in arguments.items() if value is not None)
    terms = tuple([Term("C9", key, value, hint) for key, value in arguments.items()])
    call = Call(process.rank, name, terms, f"{name}({shown})", call_site(), process.host.clock)
    meet(process, ("agree", name), ranks, call, lambda number: number)
