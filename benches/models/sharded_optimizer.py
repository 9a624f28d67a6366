"""A distributed optimiser of Megatron's kind: each data-parallel rank updates a part of weights.

Gradients of microbatches add up in float32. Then they are averaged bucket by bucket, and a rank
gets its part (reduce-scatter), behind the last backward pass or beside it. It updates its part, of
which it keeps weights in float32 and two moments, and all parts are gathered.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.parallel.shards import is_expert

_BUCKET: Final = 40_000_000
"""Elements of a bucket, as in Megatron-Core."""


class _Bucket:
    """Weights whose gradients travel together.

    Args:
        params: The weights, of one type.
        group: Ranks that hold the same ones.
    """

    def __init__(self, params: Sequence[Any], group: dist.ProcessGroup) -> None:
        self.group, self.params, ranks = group, params, group.size()
        sizes = [param.numel() for param in params]
        whole = -(-sum(sizes) // ranks) * ranks
        padding = [whole - sum(sizes)] if whole > sum(sizes) else []
        self.weights = torch.zeros(whole, dtype=params[0].dtype, device="cuda")
        self.gradients = torch.zeros(whole, dtype=torch.float32, device="cuda")
        parts = zip(
            params,
            self.weights.split([*sizes, *padding]),
            self.gradients.split([*sizes, *padding]),
            strict=False,
        )
        for param, weights, gradients in parts:
            weights.copy_(param.detach().view(-1))
            param.data = weights.view(param.shape)
            param.main_grad = gradients.view(param.shape)
        mine = self.weights.chunk(ranks)[group.rank()]
        self.master = torch.nn.Parameter(mine.float().clone())
        self.sums = torch.empty(whole // ranks, device="cuda")
        self.master.grad = self.sums
        self._left = len(params)
        self._work: Any = None

    def arrived(self, param: Any, *, last: bool) -> None:
        """Takes a gradient of a microbatch.

        Args:
            param: Whose gradient it is.
            last: Whether it is of the last microbatch.
        """
        param.main_grad.add_(param.grad)
        param.grad = None
        if last:
            self._left -= 1
            if not self._left:
                self._work = self._reduce(async_op=True)

    def _reduce(self, *, async_op: bool) -> Any:
        return dist.reduce_scatter_tensor(
            self.sums,
            self.gradients,
            dist.ReduceOp.AVG,
            self.group,
            async_op=async_op,
        )

    def finish(self) -> None:
        """Sums gradients, or lets the current stream wait for the sums."""
        if self._work is None:
            self._reduce(async_op=False)
        else:
            self._work.wait()
        self._left, self._work = len(self.params), None

    def gather(self) -> None:
        """Gathers the weights that ranks have updated."""
        mine = self.master.detach().to(self.weights.dtype)
        dist.all_gather_into_tensor(self.weights, mine, group=self.group)


class ShardedOptimizer:
    """AdamW over weights of which each rank updates a part.

    Args:
        model: Whose weights it updates.
        groups: `dp_cp`, and `expt_dp` of experts; `tp`, `ep` and `pp` for the norm.
        overlap: Whether gradients are summed beside the last backward pass.

    Attributes:
        state_bytes: What the rank keeps for its part once it has updated it, in bytes.
        held_bytes: How much of that it keeps before, the weights, in bytes.
    """

    def __init__(
        self, model: torch.nn.Module, groups: ProcessGroupCollection, *, overlap: bool
    ) -> None:
        self._groups, self._overlap, self._last = groups, overlap, True
        self._buckets: list[_Bucket] = []
        for experts, group in ((False, groups.dp_cp), (True, groups.expt_dp)):
            filled: list[list[Any]] = [[]]
            for param in reversed(
                [each for each in model.parameters() if is_expert(each) == experts]
            ):
                if sum(each.numel() for each in filled[-1]) >= _BUCKET:
                    filled.append([])
                filled[-1].append(param)
            self._buckets += [_Bucket(params, group) for params in filled if params]
        for bucket in self._buckets:
            for param in bucket.params:
                param.register_post_accumulate_grad_hook(self._hook(bucket))
        masters = [bucket.master for bucket in self._buckets]
        self._adam = torch.optim.AdamW(masters, lr=1e-4, fused=True)
        self.held_bytes = sum(4 * master.numel() for master in masters)
        self.state_bytes = 3 * self.held_bytes

    def _hook(self, bucket: _Bucket) -> Any:
        return lambda param: bucket.arrived(param, last=self._last and self._overlap)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Is around backward passes of microbatches that are not the last."""
        self._last = False
        try:
            yield
        finally:
            self._last = True

    def zero_grad(self) -> None:
        """Sets all gradients to 0, before the first microbatch of a step."""
        for bucket in self._buckets:
            bucket.gradients.zero_()

    def step(self) -> None:
        """Updates the weights by sums of gradients, whose norm is clipped."""
        for bucket in self._buckets:
            bucket.finish()
        masters = [bucket.master for bucket in self._buckets]
        total = torch.nn.utils.get_total_norm([bucket.sums for bucket in self._buckets])
        total = total.square().view(1)
        groups = self._groups
        # All ranks of the stage: experts are shared by neighbours.
        shared = groups.ep.size() > 1
        for group in (groups.ep, groups.expt_dp) if shared else (groups.dp_cp, groups.tp):
            if group.size() > 1:
                # Gathered, not reduced: of so few bytes a tree would add, on which ranks differ.
                every = torch.empty(group.size(), device="cuda")
                dist.all_gather_into_tensor(every, total, group=group)
                total = every.sum().view(1)
        if groups.pp.size() > 1:
            total = _over_stages(total, groups.pp)
        torch.nn.utils.clip_grads_with_norm_(masters, 1.0, total.sqrt().squeeze(0))
        self._adam.step()
        for bucket in self._buckets:
            bucket.gather()


def _over_stages(mine: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Returns the sum of a number over stages.

    Sent as messages, each of which begins when both of its stages have come: a collective would
    begin with the first of them, beside the sums of gradients of those that are still to come.
    """
    stage = group.rank()
    others = [other for other in range(group.size()) if other != stage]
    every = torch.empty(len(others), device="cuda")
    ops = [dist.P2POp(dist.isend, mine, group=group, group_peer=other) for other in others]
    ops += [
        dist.P2POp(dist.irecv, every[place : place + 1], group=group, group_peer=other)
        for place, other in enumerate(others)
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return every.sum().view(1) + mine
