"""Arguments that every rank of a group gives alike, before anything is made of them."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from kernbench.caches import cached
from kernbench.distributed.groups import find_group
from kernbench.errors import OperandError, call_site, site_fact
from kernbench.process.process import current_process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.meeting import Call, Term
from kernbench.ranks.world import meet
from kernbench.tensors.tensor import Tensor


def agree(name: str, arguments: Mapping[str, object], group: ProcessGroup | None = None) -> None:
    """Compares the arguments of a call with those of the other ranks; nobody waits.

    Ranks that disagree are found when the second of them calls, and a rank that never calls when
    it returns. The k-th call of a name is compared with the k-th call of that name by the others.
    It takes no simulated time.

    ```python
    def shard_model(model, degree, group=None):
        extend.agree("shard_model", {"degree": degree}, group)
        ...
    ```

    Args:
        name: Of the function whose arguments they are, as reports show it.
        arguments: By name, what is compared with `==`; reports leave out those that are None.
        group: Whose ranks call it; None for all.

    Raises:
        GroupMismatchError: If another rank gave others, or called something else (C9).
        GroupError: If the calling rank may not use the group (C8, C18).
        OperandError: If an argument is a tensor or an array, which `==` does not compare.
    """
    process = current_process()
    among = find_group(process, group, name)
    given = tuple([(key, type(value), value) for key, value in arguments.items()])
    # All ranks, and later calls, say the same. Other values may change, or keep a run alive.
    plain = _PLAIN.issuperset([kind for _, kind, _ in given])
    for key, _, value in () if plain else given:
        if isinstance(value, Tensor | np.ndarray):
            raise OperandError(
                f"{name}: ranks cannot agree on {key}, which is a {type(value).__name__}",
                [site_fact(call_site()), "expected a value that == compares as a whole"],
                hint="pass its shape, its type, or .tolist()",
            )
    whose = "the world" if among.birth is None else f"group {among.name}"
    terms, text, advice = (_kept if plain else _asked)(name, whose, given)
    now = process.host.clock
    call = Call(process.rank, name, terms, text, process.call_site(), now, hint=advice)
    meet(process, ("agree", name, among.name), among.ranks, call, lambda number: number)


_PLAIN: Final = frozenset({bool, int, float, str, type(None)})


class _Asked(NamedTuple):
    """What a call says to other ranks.

    Attributes:
        terms: What must agree.
        text: The call, as reports show it.
        advice: A hint for reports.
    """

    terms: tuple[Term, ...]
    text: str
    advice: str


def _asked(name: str, whose: str, given: tuple[tuple[str, type, object], ...]) -> _Asked:
    """Returns what a call says, from its arguments with their types: 1 and True are equal."""
    advice = f"every rank of {whose} calls {name} with the same arguments"

    def hint(expected: object, got: object) -> str:
        del expected, got
        return advice

    shown = ", ".join(f"{key}={value!r}" for key, _, value in given if value is not None)
    terms = [Term("C9", "the names of arguments", tuple([key for key, _, _ in given]), hint)]
    terms += [Term("C9", key, value, hint) for key, _, value in given]
    return _Asked(tuple(terms), f"{name}({shown})", advice)


_kept: Final = cached("extend.agreements")(_asked)
