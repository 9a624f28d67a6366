"""`--check-replicas`: whether the parameters of DDP's replicas are alike where they have to be.

PyTorch compares shapes when a module is made, and nothing after that: a program that calls the
module inside of `DistributedDataParallel`, or that changes the weights of one rank, trains
different models in silence. Here the bytes of each parameter are compared in three places: when
DDP has made the module, before its first forward of a training step, and after each step of an
optimizer that has some of its parameters. Nobody waits for it, and it takes no simulated time:
ranks leave what they have seen, and the last one compares.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from kernbench.bridge.base.here import HERE, Rank
from kernbench.bridge.distributed.works import unseen
from kernbench.errors import CallSite, KernbenchError
from kernbench.isolation.replaced import Patch
from kernbench.ranks.ranges import folded

_MOST: Final = 8
"""Most parameters that an error names."""


class ReplicasDifferError(KernbenchError, RuntimeError):
    """Replicas of a module that `DistributedDataParallel` keeps alike are not."""


class _Look(NamedTuple):
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


class _Replica:
    """The replica of one rank.

    Args:
        module: The module of DDP.
        key: What replicas of one model have in common.
        ranks: Ranks that have one.

    Attributes:
        key: What replicas of one model have in common.
        ranks: Ranks that have one.
        steps: How many steps have ended.
        forwards: How often the module was called since the last step.
        gradients: Digests of gradients before the step that goes on.
        alike: The last look at which all were alike; None before the first.
        model: Name of the class of the module inside.
    """

    def __init__(self, module: Any, key: tuple[Any, ...], ranks: Sequence[int]) -> None:
        left_out = set(getattr(module, "parameters_to_ignore", ()))
        named = module.module.named_parameters()
        self._parameters: Final = {name: one for name, one in named if name not in left_out}
        self.key: Final = key
        self.ranks: Final = tuple(ranks)
        self.steps = 0
        self.forwards = 0
        self.gradients: dict[str, bytes] = {}
        self.alike: _Look | None = None
        self.model: Final = type(module.module).__name__

    def has(self, ids: set[int]) -> bool:
        """Returns whether one of its parameters is among some, which are given by `id`."""
        return any(id(each) in ids for each in self._parameters.values())

    def note_gradients(self) -> None:
        """Notes the gradients before a step."""
        grads = {name: each.grad for name, each in self._parameters.items()}
        self.gradients = {name: _digest(one) for name, one in grads.items() if one is not None}

    def look(self, what: str, site: CallSite | None) -> _Look:
        """Returns what there is now."""
        values = {name: _digest(each) for name, each in self._parameters.items()}
        return _Look(what, site, values, self.gradients, self.forwards)

    def told(self, name: str) -> str:
        """Returns a parameter's name with its shape and type."""
        each = self._parameters[name]
        return f"{name} {list(each.shape)} {each.dtype}"


def _digest(tensor: torch.Tensor) -> bytes:
    """Returns what stands for the bytes of a tensor, at which no mode looks."""
    rank, HERE.rank = HERE.rank, None
    try:
        with unseen(), torch.no_grad(), torch._C._DisableAutocast():
            plain = getattr(tensor, "_local_tensor", tensor).detach()
            flat = plain.contiguous().reshape(-1).view(torch.uint8)
            return hashlib.blake2b(flat.numpy().data, digest_size=8).digest()
    finally:
        HERE.rank = rank


class Replicas:
    """Compares replicas of a run.

    Attributes:
        compared: How often replicas were compared.
    """

    def __init__(self) -> None:
        self.compared = 0
        self._of: Final[WeakKeyDictionary[Any, _Replica]] = WeakKeyDictionary()
        self._modules: Final[dict[Rank, WeakSet[Any]]] = {}
        self._numbers: Final[Counter[tuple[Any, ...]]] = Counter()
        self._open: Final[dict[tuple[Any, ...], dict[int, tuple[_Replica, _Look]]]] = {}

    def begin(self) -> None:
        """Forgets what ranks have seen that have ended."""
        self._open.clear()
        self._numbers.clear()

    def patches(self) -> Iterator[Patch]:
        """Yields what is replaced of DDP."""
        init, forward = DistributedDataParallel.__init__, DistributedDataParallel.forward

        def __init__(module: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            init(module, *args, **options)
            self._made(module)

        def called(module: Any, *args: Any, **options: Any) -> Any:
            self._called(module)
            return forward(module, *args, **options)

        yield Patch(DistributedDataParallel, "__init__", __init__)
        yield Patch(DistributedDataParallel, "forward", called)

    @contextmanager
    def of_rank(self, rank: Rank) -> Iterator[None]:
        """Watches the optimizers of a rank until the end of the block."""
        inside: list[Any] = []  # an optimizer may call others, as ZeroRedundancyOptimizer does

        def before(optimizer: Any, *_: Any) -> None:
            if optimizer in inside:  # its last step has failed
                del inside[inside.index(optimizer) :]
            inside.append(optimizer)
            if len(inside) == 1:
                for replica in self._with_parameters_of(rank, optimizer):
                    replica.note_gradients()

        def after(optimizer: Any, *_: Any) -> None:
            inside.pop()
            if not inside:
                for replica in self._with_parameters_of(rank, optimizer):
                    self._stepped(rank, replica, type(optimizer).__name__)

        self._modules[rank] = WeakSet()
        handles = [
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            del self._modules[rank]

    def _made(self, module: Any) -> None:
        rank, group = HERE.rank, module.process_group
        if rank is None or rank not in self._modules or group.size() < 2:
            return
        ranks = tuple(torch.distributed.get_process_group_ranks(group))
        counted = rank.process.rank, group.group_name
        self._numbers[counted] += 1
        key = group.group_name, ranks, self._numbers[counted]
        replica = self._of[module] = _Replica(module, key, ranks)
        self._modules[rank].add(module)
        self._compare(rank, replica, "made", "DistributedDataParallel()")

    def _called(self, module: Any) -> None:
        rank, replica = HERE.rank, self._of.get(module)
        if rank is None or replica is None or not (module.training and torch.is_grad_enabled()):
            return  # one rank alone may try its replica with other weights
        replica.forwards += 1
        if replica.forwards == 1:
            self._compare(rank, replica, "forward", f"the forward of step {replica.steps + 1}")

    def _stepped(self, rank: Rank, replica: _Replica, name: str) -> None:
        replica.steps += 1
        self._compare(rank, replica, "step", f"{name}.step() #{replica.steps}")
        replica.forwards = 0

    def _with_parameters_of(self, rank: Rank, optimizer: Any) -> list[_Replica]:
        ids = {id(each) for group in optimizer.param_groups for each in group["params"]}
        replicas = [self._of[each] for each in self._modules[rank]]
        return sorted((each for each in replicas if each.has(ids)), key=lambda each: each.key)

    def _compare(self, rank: Rank, replica: _Replica, kind: str, what: str) -> None:
        """Leaves what a rank sees of its replica; the last rank compares.

        Raises:
            ReplicasDifferError: If the replicas are not alike.
        """
        look = replica.look(what, rank.process.call_site())
        key = *replica.key, kind, replica.steps
        seen = self._open.setdefault(key, {})
        seen[rank.process.rank] = replica, look
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


def _sides(looks: dict[int, _Look], name: str) -> list[list[int]]:
    """Returns the ranks by what they have of a parameter, the largest part first."""
    sides: dict[bytes | None, list[int]] = {}
    for rank, look in looks.items():
        sides.setdefault(look.values.get(name), []).append(rank)
    return sorted(sides.values(), key=lambda side: (-len(side), side))


def _report(
    replica: _Replica, kind: str, looks: dict[int, _Look], differing: list[str]
) -> ReplicasDifferError:
    alike, any_look = replica.alike, next(iter(looks.values()))
    facts = []
    for name in differing[:_MOST]:
        first, *others = _sides(looks, name)
        facts.append(
            f"{replica.told(name)} is one on {folded(first)}, and another on "
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


def _places(looks: dict[int, _Look]) -> list[str]:
    """Returns where ranks found that they differ, ranks with one line together."""
    by_place: dict[str, list[int]] = {}
    for rank, look in looks.items():
        by_place.setdefault(look.place(), []).append(rank)
    return [f"{folded(ranks)}: {place}" for place, ranks in by_place.items()]


def _hint(kind: str, looks: dict[int, _Look]) -> str:
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
