"""Averages gradients over a group, bucket by bucket, while the backward pass runs."""

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kernbench.autograd.leaves import is_leaf, register_done_hook
from kernbench.caches import cached
from kernbench.data_parallel.replicas import EVENLY, NAME, DataParallelError
from kernbench.distributed.collectives import all_reduce_into
from kernbench.distributed.issuing import handle, issue, met
from kernbench.distributed.reduce_ops import ReduceOp
from kernbench.distributed.signatures import signature
from kernbench.errors import call_site, site_fact
from kernbench.memory import DType, dtypes
from kernbench.operations.creation import empty
from kernbench.operations.from_values import tensor
from kernbench.operations.pointwise import mul
from kernbench.process.process import Process
from kernbench.process.types import CPU
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.meeting import Exchange, Role
from kernbench.tensors.host_time import spend_views
from kernbench.tensors.nodes import Leaf, Node, edge_of, grad_state_of, leaf_of, recording
from kernbench.tensors.running import read_back
from kernbench.tensors.tensor import Tensor

if TYPE_CHECKING:
    from kernbench.distributed.works import Work

MIB: Final = 1 << 20
FIRST_BUCKET_BYTES: Final = MIB
"""PyTorch's limit for the bucket that fills first, so that communication begins early."""


def assign(sizes: Sequence[tuple[DType, int]], limits: Sequence[int]) -> list[list[int]]:
    """Deals parameters into buckets, the last parameter first.

    A bucket holds one type and is full once it has reached its limit, as in PyTorch; so it may be
    larger than the limit.

    Args:
        sizes: Type and bytes of each parameter.
        limits: Bytes at which the first bucket of a type is full, the second and so on; the last
            limit holds for all further buckets.

    Returns:
        Indices of the parameters by bucket; buckets in the order in which they fill when gradients
        come in reverse order of the parameters.
    """
    closed: list[list[int]] = []
    open_: dict[DType, list[int]] = {}
    held: dict[DType, int] = {}
    made: dict[DType, int] = {}
    for index in reversed(range(len(sizes))):
        dtype, nbytes = sizes[index]
        open_.setdefault(dtype, []).append(index)
        held[dtype] = held.get(dtype, 0) + nbytes
        if held[dtype] >= limits[min(made.get(dtype, 0), len(limits) - 1)]:
            closed.append(open_.pop(dtype))
            held[dtype] = 0
            made[dtype] = made.get(dtype, 0) + 1
    return sorted([*closed, *open_.values()], key=lambda bucket: bucket[-1], reverse=True)


_CENSUS: Final = Role(f"of {NAME}'s used parameters", EVENLY)


_FULL: Final = f"{EVENLY}; if some ranks leave parameters unused, pass find_unused_parameters=True"


@cached("nn.bucket_roles")
def _bucket_role(number: int) -> Role:
    return Role(f"of {NAME}'s bucket {number}", _FULL)


class _Bucket:
    """Gradients that are summed together.

    Attributes:
        indices: Indices of the bucket's parameters.
        flat: Their gradients, one after the other.
        views: View of `flat` for each parameter, in the parameter's shape.
        pending: Number of gradients that have not come yet.
        work: The all-reduce of `flat`, once it was issued.
    """

    __slots__ = ("flat", "indices", "pending", "views", "work")

    def __init__(self, indices: list[int], parameters: Sequence[Tensor]) -> None:
        members = [parameters[index] for index in indices]
        sizes = [member.window.numel for member in members]
        self.indices = indices
        self.flat = empty(sum(sizes), dtype=members[0].dtype, device=members[0].device)
        self.views = [
            part.view(member.shape)
            for part, member in zip(self.flat.split(sizes), members, strict=True)
        ]
        self.pending = 0
        self.work: Work | None = None


class Reducer:
    """Averages the gradients of a module's parameters over the ranks of a group.

    A complete gradient is divided by the number of ranks and copied into its bucket. A full bucket
    is summed on the communication stream of the group, but only after all earlier buckets: so all
    ranks issue the same collectives in the same order, whatever the order in which their gradients
    come. At the end of the backward pass the current stream waits for the buckets, one after the
    other, and the averages become the gradients.

    Args:
        process: The rank that owns the module.
        group: Group over which gradients are averaged.
        named: Parameters that need a gradient, with their names, in the module's order.
        limits: Bytes at which buckets are full, see `assign`.
        find_unused: Whether to look for parameters that the result of a forward pass does not
            depend on.
        as_views: Whether gradients lie in the buckets.
    """

    def __init__(
        self,
        process: Process,
        group: ProcessGroup,
        named: "Sequence[tuple[str, Tensor]]",
        limits: Sequence[int],
        *,
        find_unused: bool,
        as_views: bool,
    ) -> None:
        self._process: Final = process
        self._group: Final = group
        self._names: Final = [name for name, _ in named]
        self._parameters: Final = [parameter for _, parameter in named]
        self._factor: Final = 1 / group.size()
        self._find_unused: Final = find_unused
        self._as_views: Final = as_views
        parts = [(each.dtype, each.window.nbytes) for each in self._parameters]
        with recording(process, False):
            self._buckets: Final = [
                _Bucket(indices, self._parameters) for indices in assign(parts, limits)
            ]
        self._place: Final = {
            index: (bucket, at)
            for bucket in self._buckets
            for at, index in enumerate(bucket.indices)
        }
        self._expecting = False
        self._begun = False
        self._ready: set[int] = set()
        self._unused: list[int] = []
        # Parameters that have got a gradient since the last averages, be it in `no_sync`.
        self._used: set[int] = set()
        self._next = 0
        self._census: tuple[Work, Tensor, Exchange] | None = None
        me = weakref.ref(self)
        for index, parameter in enumerate(self._parameters):
            # The hook must not keep the buckets alive after the module is dropped.
            register_done_hook(leaf_of(parameter), _hook(me, index))

    @property
    def buckets(self) -> list[list[str]]:
        """Names of the parameters by bucket, in the order of the collectives."""
        return [[self._names[index] for index in bucket.indices] for bucket in self._buckets]

    def check_finished(self) -> None:
        """Checks that the previous backward pass has averaged all gradients.

        Raises:
            DataParallelError: If some parameters got no gradient in it.
        """
        if not self._begun:
            return
        missing = [n for at, n in enumerate(self._names) if at not in self._ready]
        raise DataParallelError(
            f"rank {self._process.rank} begins a forward pass of {NAME}, but the gradients of the "
            f"one before are not averaged: {len(missing)} of {len(self._names)} parameters "
            "got none",
            [site_fact(call_site()), f"without gradient: {', '.join(missing)}"],
            hint="a loss must depend on all outputs of forward; if it uses only a part of the "
            "parameters, pass find_unused_parameters=True",
        )

    def expect(self, outputs: Iterable[Tensor]) -> None:
        """Makes the next backward pass average its gradients.

        Args:
            outputs: Results of the forward pass; used only to look for unused parameters.
        """
        self._expecting, self._begun, self._next = True, False, 0
        self._ready.clear()
        for bucket in self._buckets:
            bucket.pending, bucket.work = len(bucket.indices), None
        if self._find_unused:
            used = _leaves_behind(outputs)
            self._unused = [
                at for at, each in enumerate(self._parameters) if leaf_of(each) not in used
            ]

    def arrived(self, index: int, came: bool) -> None:
        """Takes the complete gradient of the parameter with this index.

        Args:
            index: Index of the parameter.
            came: Whether the backward pass has added to its gradient, rather than only reached it.

        Raises:
            DataParallelError: If it is the parameter's second gradient since the forward pass.
        """
        if came:
            self._used.add(index)
        if not self._expecting:
            return
        if not self._begun:
            self._begun = True
            for unused in self._unused:
                self._take(unused)
        self._take(index)

    def _take(self, index: int) -> None:
        if index in self._ready:
            raise DataParallelError(
                f"rank {self._process.rank}: {self._names[index]} got a second gradient before "
                "all parameters had their first one",
                [site_fact(call_site())],
                hint="go back once from the sum of the losses; use a parameter only where the "
                "outputs of forward depend on it, and return no parameter itself from forward",
            )
        self._ready.add(index)
        parameter = self._parameters[index]
        bucket, at = self._place[index]
        view, grad = bucket.views[at], parameter.grad
        if grad is None:
            view.zero_()
        else:
            mul(grad, self._factor, out=view)
            if self._as_views:
                parameter.grad = view
        bucket.pending -= 1
        while self._next < len(self._buckets) and not self._buckets[self._next].pending:
            full = self._buckets[self._next]
            flat, role = full.flat, _bucket_role(self._next)
            full.work = all_reduce_into(flat, flat, ReduceOp.SUM, self._group, True, role)
            self._next += 1
        if len(self._ready) == len(self._parameters):
            if self._find_unused:
                self._take_census()
            grad_state_of(self._process).at_end.append(self._finish)

    def _take_census(self) -> None:
        """Tells all ranks which parameters this rank has used."""
        process, group = self._process, self._group
        used = tuple([at in self._used for at in range(len(self._parameters))])
        device = self._parameters[0].device
        counts = tensor(used, dtype=dtypes.int32, device=CPU, pin_memory=True)
        mine = counts.to(device, non_blocking=True)
        shape, reduction = mine.window.shape, ReduceOp.SUM
        what = signature("all_reduce", "all_reduce", dtypes.int32, (shape,), reduction)
        command, meeting = met(
            issue(process, group, what, (mine,), (mine,), async_op=True, mail=used, role=_CENSUS)
        )
        self._census = handle(process, command, (mine,)), mine, meeting

    def _idle(self) -> set[int]:
        """Returns the parameters that no rank has used; waits if this rank has not used some."""
        if self._census is None:
            return set()
        work, counts, meeting = self._census
        self._census = None
        work.wait()
        unused = set(range(len(self._parameters))) - self._used
        if not unused:
            return set()
        if counts.is_cuda:
            read_back(self._process, counts, lambda _: None)
        return {at for at in unused if not any(used[at] for used in meeting.mail.values())}

    def _finish(self) -> None:
        idle = self._idle()
        for bucket in self._buckets:
            assert bucket.work is not None
            bucket.work.wait()
            spend_views(bucket.flat, len(bucket.indices))  # PyTorch makes them anew
            for index, view in zip(bucket.indices, bucket.views, strict=True):
                if index not in idle:
                    self._give(self._parameters[index], view)
        self._expecting = self._begun = False
        self._used.clear()

    def _give(self, parameter: Tensor, average: Tensor) -> None:
        grad = parameter.grad
        if self._as_views:
            parameter.grad = average
        elif grad is None:
            parameter.grad = average.clone()
        else:
            grad.copy_(average)


def _hook(reducer: "weakref.ref[Reducer]", index: int) -> Any:
    def arrived(came: bool) -> None:
        found = reducer()
        if found is not None:
            found.arrived(index, came)

    return arrived


def _leaves_behind(outputs: Iterable[Tensor]) -> set[Leaf]:
    """Returns the leaves that results of operations depend on.

    A leaf that is itself an output is not found, as in PyTorch.
    """
    seen: set[Node | Leaf] = set()
    waiting = [edge_of(output) for output in outputs if not is_leaf(output)]
    while waiting:
        edge = waiting.pop()
        if edge is not None and edge[0] not in seen:
            seen.add(edge[0])
            if isinstance(edge[0], Node):
                waiting += edge[0].edges
    return {each for each in seen if isinstance(each, Leaf)}
