"""`--check-replicas`: whether the parameters of DDP's replicas are alike where they have to be.

PyTorch compares shapes when a module is made, and nothing after that: a program that calls the
module inside of `DistributedDataParallel`, or that changes the weights of one rank, trains
different models in silence. Here the bytes of each parameter are compared in three places: when
DDP has made the module, before its first forward of a training step, and after each step of an
optimizer that has some of its parameters.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from kernbench.bridge.base.here import HERE, Rank
from kernbench.bridge.distributed.works import unseen
from kernbench.data_parallel.comparing import Comparison, Replica
from kernbench.isolation.replaced import Patch


class _Replica(Replica):
    """The replica of one rank.

    Args:
        module: The module of DDP.
        key: What replicas of one model have in common.
        ranks: Ranks that have one.
    """

    def __init__(self, module: Any, key: tuple[Any, ...], ranks: tuple[int, ...]) -> None:
        left_out = set(getattr(module, "parameters_to_ignore", ()))
        named = module.module.named_parameters()
        self._parameters: Final = {name: one for name, one in named if name not in left_out}
        told = {
            name: f"{name} {list(each.shape)} {each.dtype}"
            for name, each in self._parameters.items()
        }
        super().__init__(type(module.module).__name__, key, ranks, told)

    def has(self, ids: set[int]) -> bool:
        """Returns whether one of its parameters is among some, which are given by `id`."""
        return any(id(each) in ids for each in self._parameters.values())

    def note_gradients(self) -> None:
        """Notes the gradients before a step."""
        grads = {name: each.grad for name, each in self._parameters.items()}
        self.gradients = {name: _digest(one) for name, one in grads.items() if one is not None}

    def values(self) -> dict[str, bytes]:
        """Returns digests of the parameters, by name."""
        return {name: _digest(each) for name, each in self._parameters.items()}


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
    """Compares replicas of a run."""

    def __init__(self) -> None:
        self._comparison: Final = Comparison()
        self._of: Final[WeakKeyDictionary[Any, _Replica]] = WeakKeyDictionary()
        self._modules: Final[dict[Rank, WeakSet[Any]]] = {}
        self._numbers: Final[Counter[tuple[Any, ...]]] = Counter()

    @property
    def compared(self) -> int:
        """How often replicas were compared."""
        return self._comparison.compared

    def begin(self) -> None:
        """Forgets what ranks have seen that have ended."""
        self._comparison.begin()
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
        self._comparison.leave(rank.process, replica, kind, what, replica.values())
