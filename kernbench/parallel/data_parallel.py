"""Megatron-Core's data parallelism: gradients add up in buffers, and are reduced there.

Unlike `torch.nn.parallel.DistributedDataParallel` it knows experts, by their mark
`allreduce = False`, and sums their gradients over the ranks that hold the same ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel.config import ModelParallelConfig
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.parallel.members import Group, refuse, size_of
from kernbench.parallel.shards import is_expert

__all__ = ["DistributedDataParallel", "DistributedDataParallelConfig"]


@dataclass
class DistributedDataParallelConfig:
    """Megatron's configuration of the same name, as far as it is simulated.

    Attributes:
        grad_reduce_in_fp32: Whether `main_grad` is float32 whatever the type of the parameter.
        overlap_grad_reduce: Whether a bucket is reduced beside the backward pass, as soon as the
            gradients of the last microbatch are there.
        average_in_collective: Whether the collective averages, rather than to sum what was divided
            before.
        bucket_size: Elements at which a bucket is full, with `overlap_grad_reduce`; None for 40
            million, or a million for each data-parallel rank if that is more.
    """

    grad_reduce_in_fp32: bool = False
    overlap_grad_reduce: bool = False
    average_in_collective: bool = False
    bucket_size: int | None = None


class _Bucket:
    """Gradients that travel together.

    Args:
        params: Parameters of one type of gradient.
        group: Over which they are reduced.
        factor: By which they are multiplied before.
        op: How they are reduced.
    """

    def __init__(
        self,
        params: Sequence[Any],
        dtype: torch.dtype,
        group: Group,
        factor: float,
        op: Any,
    ) -> None:
        sizes = [param.numel() for param in params]
        self.params: Final = params
        self.flat: Final = torch.zeros(sum(sizes), dtype=dtype, device="cuda")
        for param, part in zip(params, self.flat.split(sizes), strict=True):
            param.main_grad = part.view(param.shape)
        self._group, self._factor, self._op = group, factor, op
        self._ready: set[int] = set()
        self._begun = False
        self._work: Any = None

    def reset(self) -> None:
        self._ready.clear()
        self._begun, self._work = False, None

    def ready(self, param: Any, name: str) -> None:
        """Notes the last gradient of a parameter; reduces all when they are there."""
        if id(param) in self._ready:
            raise refuse(
                f"{name} got a second gradient of the last microbatch, and its sum may be on the "
                "way already",
                hint="call backward() of all microbatches but the last in no_sync(), and "
                "zero_grad_buffer() before the first",
            )
        self._ready.add(id(param))
        if len(self._ready) == len(self.params):
            self.start(async_op=True)

    def start(self, *, async_op: bool) -> None:
        if self._factor != 1:
            self.flat.mul_(self._factor)
        if size_of(self._group) > 1:
            self._work = dist.all_reduce(self.flat, self._op, self._group, async_op=async_op)
        self._begun = True

    def finish(self, names: Mapping[int, str], *, overlap: bool) -> None:
        if not overlap:
            self.start(async_op=False)
        elif not self._begun:
            missing = [names[id(p)] for p in self.params if id(p) not in self._ready]
            raise refuse(
                f"the gradients of a bucket are not reduced: {len(missing)} of {len(self.params)} "
                "parameters got none in the last microbatch",
                f"without gradient: {', '.join(missing)}",
                hint="with overlap_grad_reduce each parameter must be used in the last microbatch, "
                "outside of no_sync()",
            )
        if self._work is not None:
            self._work.wait()
        self.reset()


class DistributedDataParallel(torch.nn.Module):
    """Megatron's wrapper of the same name: gradients add up in `main_grad`, and are reduced there.

    Each parameter gets a `main_grad`, part of a buffer; after a backward pass its `grad` is None.
    `finish_grad_sync` averages the sums of dense layers over the data-parallel group, with context
    parallelism. Gradients of experts, marked `allreduce = False`, are summed over the ranks that
    hold the same ones and divided by the same number as the others, since an expert sees tokens of
    several ranks. `finalize_model_grads` of `kernbench.tp` calls it.

    Before the first microbatch of a step call `zero_grad_buffer`; before the optimiser's step set
    `param.grad = param.main_grad`, or that of a copy in float32.

    Args:
        config: What the layers have in common.
        ddp_config: How gradients are reduced.
        module: On the rank's device.
        disable_bucketing: Whether all gradients of a kind and type are one bucket.
        pg_collection: The groups `dp_cp`, `expt_dp` and `pp`; by default those of `parallel_state`.

    Attributes:
        module: The wrapped module.

    Raises:
        ParallelStateError: If groups are not given and model parallelism is not initialised.
    """

    module: torch.nn.Module

    def __init__(
        self,
        config: ModelParallelConfig,
        ddp_config: DistributedDataParallelConfig,
        module: torch.nn.Module,
        disable_bucketing: bool = False,
        pg_collection: ProcessGroupCollection | None = None,
    ) -> None:
        super().__init__()
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
        self.config = config
        self.ddp_config = ddp_config
        self.module = module
        self.is_last_microbatch = True
        self._dense_group: Group = groups.dp_cp
        self._expert_group: Group = groups.expt_dp or groups.dp_cp
        first_stage = groups.pp is None or dist.get_rank(groups.pp) == 0
        limit = float("inf")
        if ddp_config.overlap_grad_reduce and first_stage and not disable_bucketing:
            limit = ddp_config.bucket_size or max(40_000_000, 10**6 * size_of(self._dense_group))
        named: list[tuple[str, Any]] = [
            pair for pair in module.named_parameters() if pair[1].requires_grad
        ]
        self._names: dict[int, str] = {id(param): name for name, param in named}
        self._buckets: list[_Bucket] = []
        for experts in (False, True):
            self._deal([p for _, p in named if is_expert(p) == experts], experts, limit)
        for bucket in self._buckets:
            for param in bucket.params:
                param.grad_added_to_main_grad = False
                param.register_post_accumulate_grad_hook(self._hook(bucket))

    def _deal(self, params: Sequence[Any], experts: bool, limit: float) -> None:
        """Deals parameters into buckets of one type, the last parameter first."""
        ddp, dense = self.ddp_config, size_of(self._dense_group)
        group = self._expert_group if experts else self._dense_group
        average = ddp.average_in_collective
        factor = size_of(group) / dense if average else 1 / dense
        op = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
        by_type: dict[torch.dtype, list[list[Any]]] = {}
        for param in reversed(params):
            dtype = torch.float32 if ddp.grad_reduce_in_fp32 else param.dtype
            filled = by_type.setdefault(dtype, [[]])
            if sum(each.numel() for each in filled[-1]) >= limit:
                filled.append([])
            filled[-1].append(param)
        self._buckets += [
            _Bucket(members, dtype, group, factor, op)
            for dtype, filled in by_type.items()
            for members in filled
        ]

    def _hook(self, bucket: _Bucket) -> Callable[[torch.Tensor], None]:
        def arrived(param: Any) -> None:
            if not param.grad_added_to_main_grad or getattr(param, "zero_out_wgrad", False):
                param.main_grad.add_(param.grad)
            param.grad = None
            # The next microbatch may come by another way.
            param.grad_added_to_main_grad = False
            if self.ddp_config.overlap_grad_reduce and self.is_last_microbatch:
                bucket.ready(param, self._names[id(param)])

        return arrived

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Calls the module."""
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Makes backward passes in a `with` block those of microbatches that are not the last."""
        self.is_last_microbatch = False
        try:
            yield
        finally:
            self.is_last_microbatch = True

    def finish_grad_sync(self) -> None:
        """Reduces gradients, or waits on the current stream for their reduction.

        Raises:
            ParallelError: With `overlap_grad_reduce`, if parameters got no gradient in the last
                microbatch.
        """
        for bucket in self._buckets:
            bucket.finish(self._names, overlap=self.ddp_config.overlap_grad_reduce)

    def zero_grad_buffer(self) -> None:
        """Sets all gradients to 0, before the first microbatch of a step."""
        for bucket in self._buckets:
            bucket.flat.zero_()
            bucket.reset()

    def scale_gradients(self, scaling_factor: float) -> None:
        """Multiplies all gradients by a factor."""
        for bucket in self._buckets:
            bucket.flat.mul_(scaling_factor)

    def broadcast_params(self) -> None:
        """Gives all ranks the parameters of the first rank that holds the same ones."""
        for param in self.module.parameters():
            group = self._expert_group if is_expert(param) else self._dense_group
            if size_of(group) > 1:
                dist.broadcast(param.detach(), dist.get_process_group_ranks(group)[0], group)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns the state of the module, under the names that it has without the wrapper."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Takes over what `state_dict` returned."""
        return self.module.load_state_dict(*args, **kwargs)
