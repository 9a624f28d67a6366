"""Whether replicas of a module are alike: what each rank has seen of its own, compared by digests.

Nobody waits for it, and it takes no simulated time: ranks leave what they have seen, and the last
one compares.
"""

from typing import Any, Final, NamedTuple

from kernbench.errors import CallSite, KernbenchError
from kernbench.process.process import Process
from kernbench.ranks.ranges import folded

_MOST: Final = 8
"""Most parameters that an error names."""


class ReplicasDifferError(KernbenchError, RuntimeError):
    """Replicas of a module that `DistributedDataParallel` keeps alike are not."""


class Look(NamedTuple):
    """What a rank has seen of its replica.

    Attributes:
        what: Where in the program: `the forward of step 3`, say.
        site: The user's line.
        values: Digests of the parameters, by name.
        gradients: Digests of their gradients before the step; without those that have none.
        forwards: How often the module was called since the last step.
    """

    what: str
    site: CallSite | None
    values: dict[str, bytes]
    gradients: dict[str, bytes]
    forwards: int

    def place(self) -> str:
        """Returns where it was, as text."""
        return self.what if self.site is None else f"{self.what}, {self.site.show()}"


class Replica:
    """The replica of one rank.

    Args:
        model: Name of the class of the module.
        key: What replicas of one model have in common.
        ranks: Ranks that have one.
        told: Each parameter's name, with its shape and type.

    Attributes:
        steps: How many steps have ended.
        forwards: How often the module was called since the last step.
        gradients: Digests of gradients before the step that goes on.
        alike: The last look at which all were alike; None before the first.
    """

    def __init__(
        self, model: str, key: tuple[Any, ...], ranks: tuple[int, ...], told: dict[str, str]
    ) -> None:
        self.model: Final = model
        self.key: Final = key
        self.ranks: Final = ranks
        self.told: Final = told
        self.steps = 0
        self.forwards = 0
        self.gradients: dict[str, bytes] = {}
        self.alike: Look | None = None


class Comparison:
    """Compares replicas of a run.

    Attributes:
        compared: How often replicas were compared.
    """

    def __init__(self) -> None:
        self.compared = 0
        self._open: Final[dict[tuple[Any, ...], dict[int, tuple[Replica, Look]]]] = {}

    def begin(self) -> None:
        """Forgets what ranks have seen that have ended."""
        self._open.clear()

    def leave(
        self,
        process: Process,
        replica: Replica,
        kind: str,
        what: str,
        values: dict[str, bytes],
    ) -> None:
        """Leaves what a rank sees of its replica; the last rank compares.

        Args:
            kind: `made`, `forward` or `step`.
            what: Where in the program: `the forward of step 3`, say.
            values: Digests of the parameters, by name.

        Raises:
            ReplicasDifferError: If the replicas are not alike.
        """
        look = Look(what, process.call_site(), values, replica.gradients, replica.forwards)
        key = *replica.key, kind, replica.steps
        seen = self._open.setdefault(key, {})
        seen[process.rank] = replica, look
        if len(seen) < len(replica.ranks):
            return
        del self._open[key]
        self.compared += 1
        looks = {number: each for number, (_, each) in sorted(seen.items())}
        differing = [name for name in look.values if len(_sides(looks, name)) > 1]
        if differing:
            raise _report(replica, kind, looks, differing)
        for other, each in seen.values():
            other.alike = each


def _sides(looks: dict[int, Look], name: str) -> list[list[int]]:
    """Returns the ranks by what they have of a parameter, the largest part first."""
    sides: dict[bytes | None, list[int]] = {}
    for rank, look in looks.items():
        sides.setdefault(look.values.get(name), []).append(rank)
    return sorted(sides.values(), key=lambda side: (-len(side), side))


def _report(
    replica: Replica, kind: str, looks: dict[int, Look], differing: list[str]
) -> ReplicasDifferError:
    alike, any_look = replica.alike, next(iter(looks.values()))
    facts = []
    for name in differing[:_MOST]:
        first, *others = _sides(looks, name)
        facts.append(
            f"{replica.told[name]} is one on {folded(first)}, and another on "
            f"{'; '.join(map(folded, others))}"
        )
    if len(differing) > _MOST:
        facts.append(f"and {len(differing) - _MOST} more of {len(any_look.values)} parameters")
    if alike is not None:
        facts.append(f"all were alike after {alike.place()}")
        changed = [
            rank
            for rank, look in looks.items()
            if any(look.values[name] != alike.values.get(name) for name in differing)
        ]
        if kind != "step" and len(changed) < len(looks):
            facts.append(f"since then {folded(changed)} changed them, and the others did not")
    facts += _places(looks)
    return ReplicasDifferError(
        f"the replicas of {replica.model} on {folded(sorted(looks))} differ in {differing[0]}, "
        f"{'before' if kind == 'forward' else 'since'} {any_look.what}",
        facts,
        hint=_hint(kind, looks),
    )


def _places(looks: dict[int, Look]) -> list[str]:
    """Returns where ranks found that they differ, ranks with one line together."""
    by_place: dict[str, list[int]] = {}
    for rank, look in looks.items():
        by_place.setdefault(look.place(), []).append(rank)
    return [f"{folded(ranks)}: {place}" for place, ranks in by_place.items()]


def _hint(kind: str, looks: dict[int, Look]) -> str:
    if kind == "made":
        return "DistributedDataParallel(init_sync=False) leaves it to the program to make them so"
    if kind == "forward":
        return "a line between these two changed the weights on some ranks: do it on all of them"
    without = [rank for rank, look in looks.items() if not look.forwards]
    if without:
        return (
            f"{folded(without)} did not call the DistributedDataParallel since the last step, so "
            "gradients were not averaged: call it, and not the module inside of it"
        )
    gradients = [look.gradients for look in looks.values()]
    if any(each != gradients[0] for each in gradients):
        return (
            "gradients differed before the step: was the last backward() under no_sync(), or were "
            "they changed afterwards?"
        )
    return (
        "gradients were alike before the step: do ranks have other settings of the optimizer (lr, "
        "groups), or another state of it?"
    )
