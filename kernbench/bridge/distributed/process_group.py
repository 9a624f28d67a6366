"""`ProcessGroup` of PyTorch over the groups and collectives of this package."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from kernbench.bridge.base.here import this_rank
from kernbench.bridge.distributed.reductions import reduction_of
from kernbench.bridge.distributed.works import SimWork, SimWorks, asked, call
from kernbench.ccl.operations import Reduction
from kernbench.distributed import barriers, collectives, exchanges, p2p
from kernbench.distributed.groups import backend_of, libraries_of
from kernbench.distributed.posting import Way
from kernbench.ranks.groups import ProcessGroup
from kernbench.tensors.tensor import Tensor


def _async(options: Any) -> bool:
    return bool(getattr(options, "asyncOp", True))


def _root(opts: Any, root: int | None = None) -> int:
    """Returns the root, which PyTorch takes by itself or in its options."""
    if root is not None or isinstance(opts, int):
        return root if root is not None else opts
    found: int = getattr(opts, "rootRank", 0)
    return found


def _reduction(opts: Any, op: Any = None) -> Reduction:
    """Returns the reduction, which PyTorch takes by itself or in its options."""
    chosen = opts if op is None else op
    found: Reduction = reduction_of(getattr(chosen, "reduceOp", chosen or dist.ReduceOp.SUM))
    return found


def _one_each(one: Any, several: Any) -> tuple[list[Any], list[Any]]:
    """Returns a list of one tensor, and one of several; PyTorch takes them in lists, too."""
    ones = [one] if isinstance(one, torch.Tensor) else list(one)
    inner = several[0] if several and not isinstance(several[0], torch.Tensor) else several
    return ones, list(inner or ())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor without gaps as a contiguous one over the same memory."""
    if tensor.is_contiguous() or not _is_dense(tensor):
        return tensor
    return tensor.as_strided((tensor.numel(),), (1,))


def _sizes(name: str, given: Any) -> list[int]:
    """Returns sizes as PyTorch's own C++ code takes them: it decides what is a list of numbers.

    Raises:
        TypeError: If it is none.
    """
    if given is None:
        return []
    options = dist.BarrierOptions()
    try:
        options.device_ids = given
    except TypeError:
        raise TypeError(
            f"all_to_all_single(): {name} takes a sequence of integers, such as a list or an array "
            f"of NumPy, and no tensor (call .tolist()); got a {type(given).__name__}"
        ) from None
    sizes: list[int] = options.device_ids
    return sizes


def _is_dense(tensor: torch.Tensor) -> bool:
    """Returns whether elements are without gaps; PyTorch's own test imports symbolic shapes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


class SimProcessGroup(dist.ProcessGroup):
    """`torch.distributed.ProcessGroup` of one rank.

    Its methods take what c10d's take. Options say which reduction and root there is, unless an
    argument does; ranks are named by their numbers in the group. `input` is sent, `output` takes
    what comes. Splits are rows to or from each rank; empty: as many of each. `timeout` and
    `wait_all_ranks` are ignored by design: a hang is found when it happens, not after a time, and a
    report tells all ranks that are missing.

    Args:
        group: The group of this package.
        rank: The rank inside the group.
        name: Name that PyTorch knows the group by.

    Attributes:
        simulated: The group of this package.
        has_device: Whether it was made with the device that the rank uses, as `split_group` needs.
    """

    def __init__(self, group: ProcessGroup, rank: int, name: str) -> None:
        super().__init__(rank, len(group.ranks))
        self.simulated: Final = group
        self.has_device = False
        self._place = rank
        self._name = name

    def size(self) -> int:
        """Returns the number of ranks."""
        return len(self.simulated.ranks)

    def rank(self) -> int:
        """Returns the calling rank's number in the group."""
        return self._place

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        """Returns a name of no backend of PyTorch, for whose C++ object it would ask."""
        return "kernbench"

    @property
    def pg_name(self) -> str:
        """Name that PyTorch knows the group by."""
        return self._name

    group_name = pg_name

    @property
    def group_desc(self) -> str:
        """Description of the group's purpose."""
        return self.simulated.desc or "undefined"

    @property
    def _device_types(self) -> list[torch.device]:
        """Kinds of devices whose tensors the group takes, as PyTorch registers its backends."""
        backend = backend_of(this_rank().process, self.simulated)
        return [torch.device(kind) for kind in libraries_of(backend)]

    def __repr__(self) -> str:
        return f"<process group {self.simulated.name}, rank {self._place}>"

    def _each(self, tensors: Any, options: Any, one: Callable[[Tensor, bool], Any]) -> SimWork:
        """Calls a collective once for each tensor; returns the handle of the last one."""
        rank, listed = this_rank(), [tensors] if isinstance(tensors, torch.Tensor) else tensors
        work = SimWork(None, None, listed)
        for tensor in listed:
            work = call(rank, listed, partial(self._one, one, tensor, options))
        return work

    @staticmethod
    def _one(one: Callable[[Tensor, bool], Any], tensor: Any, options: Any, block: Any) -> Any:
        return one(block(_flat(tensor)), _async(options))

    def _gather(self, out: Any, given: Any, options: Any, block: Any) -> Any:
        return collectives.all_gather(
            block(list(out)), block(given), self.simulated, _async(options)
        )

    def _scatter(self, out: Any, given: Any, op: Reduction, options: Any, block: Any) -> Any:
        return collectives.reduce_scatter(
            block(out), block(list(given)), op, self.simulated, _async(options)
        )

    # Each takes PyTorch's names, and its short forms: one tensor, and `op` or `root` for `opts`.
    # Timeouts are ignored by design: a hang is found when it happens, not after a time.

    def allreduce(
        self, tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> SimWork:
        """Combines the tensors of all ranks, in place."""
        del timeout
        reduction = _reduction(opts, op)
        return self._each(
            tensors, opts, lambda t, a: collectives.all_reduce(t, reduction, self.simulated, a)
        )

    allreduce_coalesced = allreduce

    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: Any = None, *, root: int | None = None
    ) -> SimWork:
        """Copies tensors of the root to all ranks."""
        del timeout
        source, member = self._numbered(_root(opts, root))
        return self._each(
            tensors,
            opts,
            lambda t, a: collectives.broadcast(t, source, self.simulated, a, group_src=member),
        )

    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: Any = None,
        *,
        root: int | None = None,
    ) -> SimWork:
        """Combines the tensors of all ranks, on the root."""
        del timeout
        reduction = _reduction(None if isinstance(opts, int) else opts, op)
        target, member = self._numbered(_root(opts, root))
        return self._each(
            tensors,
            opts,
            lambda t, a: collectives.reduce(
                t, target, reduction, self.simulated, a, group_dst=member
            ),
        )

    def allgather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None
    ) -> SimWork:
        """Gives every rank the tensors of all ranks, each in a tensor of its own."""
        del timeout
        outputs, inputs = output_tensors, input_tensors
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        rank, work = this_rank(), SimWork(None, None, outputs)
        for out, given in zip(outputs, inputs, strict=True):
            work = call(rank, outputs, partial(self._gather, out, given, opts))
        return work

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> SimWork:
        """Does what `allgather` does, with the lists the other way round."""
        return self.allgather(
            [[one[index] for one in output_lists] for index in range(len(input_list))],
            input_list,
            opts,
        )

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> SimWork:
        """Gives every rank the tensors of all ranks, in one tensor."""
        return call(
            this_rank(),
            [output],
            lambda b: collectives.all_gather_into_tensor(
                b(output), b(input), self.simulated, _async(opts)
            ),
        )

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> SimWork:
        """Does what `all_gather_single` does for each pair of tensors."""
        return self._pairs(self.all_gather_single, outputs, inputs, opts)

    @staticmethod
    def _pairs(one: Callable[..., SimWork], outputs: Any, inputs: Any, opts: Any) -> SimWork:
        work = SimWork(None, None, outputs)
        for output, given in zip(outputs, inputs, strict=True):
            work = one(output, given, opts)
        work._outputs = list(outputs)
        return work

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: Any = None,
        *,
        op: Any = None,
    ) -> SimWork:
        """Combines lists of tensors; each rank takes the entry of its number."""
        del timeout
        outputs, inputs = output_tensors, input_tensors
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        reduction = _reduction(opts, op)
        rank, work = this_rank(), SimWork(None, None, outputs)
        for out, given in zip(outputs, inputs, strict=True):
            work = call(rank, outputs, partial(self._scatter, out, given, reduction, opts))
        return work

    def reduce_scatter_single(
        self,
        outputTensor: Any,  # noqa: N803 - PyTorch's name
        inputTensor: Any,  # noqa: N803 - PyTorch's name
        opts: Any = None,
    ) -> SimWork:
        """Combines tensors; each rank takes its part."""
        op = _reduction(opts)
        return call(
            this_rank(),
            [outputTensor],
            lambda b: collectives.reduce_scatter_tensor(
                b(outputTensor), b(inputTensor), op, self.simulated, _async(opts)
            ),
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> SimWork:
        """Does what `reduce_scatter_single` does for each pair of tensors."""
        return self._pairs(self.reduce_scatter_single, outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> SimWork:
        """Each rank sends each rank a tensor."""
        return call(
            this_rank(),
            output_tensors,
            lambda b: exchanges.all_to_all(
                b(list(output_tensors)), b(list(input_tensors)), self.simulated, _async(opts)
            ),
        )

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        opts: Any = None,
        timeout: Any = None,
    ) -> SimWork:
        """Each rank sends each rank rows of a tensor."""
        del timeout
        receives = _sizes("output_split_sizes", output_split_sizes)
        sends = _sizes("input_split_sizes", input_split_sizes)
        return call(
            this_rank(),
            [output],
            lambda b: exchanges.all_to_all_single(
                b(output),
                b(input),
                receives or None,
                sends or None,
                self.simulated,
                _async(opts),
            ),
        )

    alltoall_base = all_to_all_single

    def scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: Any = None,
        *,
        root: int | None = None,
    ) -> SimWork:
        """The root sends each rank a tensor."""
        del timeout
        (output,), given = _one_each(output_tensors, input_tensors)
        return call(
            this_rank(),
            [output],
            lambda b: collectives.scatter(
                b(output),
                b(given) if given else None,
                None,
                self.simulated,
                _async(opts),
                _root(opts, root),
            ),
        )

    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: Any = None,
        *,
        root: int | None = None,
    ) -> SimWork:
        """Each rank sends the root a tensor."""
        del timeout
        (given,), taken = _one_each(input_tensors, output_tensors)
        return call(
            this_rank(),
            output_tensors,
            lambda b: collectives.gather(
                b(given),
                b(taken) if taken else None,
                None,
                self.simulated,
                _async(opts),
                _root(opts, root),
            ),
        )

    def _start_coalescing(self, device: Any) -> None:
        del device  # the operands say where
        this_rank().coalesced = []

    def _end_coalescing(self, device: Any) -> SimWork:
        del device
        rank = this_rank()
        works, rank.coalesced = rank.coalesced, None
        return SimWorks(works or [])

    def barrier(self, opts: Any = None, timeout: Any = None) -> SimWork:
        """Waits for all ranks."""
        del timeout
        asynchronous = _async(opts) and opts is not None
        work = barriers.barrier(self.simulated, asynchronous)
        return SimWork(None, work, [])

    def send(
        self,
        tensors: Any,
        dstRank: int,  # noqa: N803 - PyTorch's name
        tag: int = 0,
    ) -> SimWork:
        """Sends a tensor; the numbers leave at once."""
        rank = this_rank()

        def send(block: Callable[[Any], Any]) -> Any:
            given = block(tensors[0])
            rank.hazards.unwritten.check_sent(given, asked("send"))
            return self._start("send", given, dstRank, tag)

        work = call(rank, tensors, send)
        work._moved = None  # the message has a copy
        return work

    def recv(
        self,
        tensors: Any,
        srcRank: int,  # noqa: N803 - PyTorch's name
        tag: int = 0,
    ) -> SimWork:
        """Receives a tensor."""
        return self._receive(tensors, tag, srcRank)

    def _receive(self, tensors: Any, tag: int, source: int | None) -> SimWork:
        rank = this_rank()

        def receive(block: Callable[[Any], Any]) -> Any:
            return self._start("recv", block(tensors[0]), source, tag)

        return call(rank, tensors, receive)

    def _start(self, way: Way, block: Tensor, peer: int | None, tag: int) -> Any:
        peers = self._numbered(peer)
        return p2p.start(asked(way), way, block, peers[0], self.simulated, tag, peers[1])

    def _numbered(self, member: int | None) -> tuple[int | None, int | None]:
        """Returns a member as reports are to number it: as global rank, or as rank in the group.

        PyTorch itself has refused wrong global ranks, but for the group of all ranks.
        """
        return (member, None) if self.simulated.name == "WORLD" else (None, member)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> SimWork:
        """Receives a tensor from the rank whose message comes first in simulated time."""
        return self._receive(tensors, tag, None)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Waits for all ranks."""
        del timeout, wait_all_ranks
        barriers.monitored_barrier(self.simulated)

    def shutdown(self) -> None:
        """Does nothing: the group of this package is given up by `destroy_process_group`."""

    def abort(self) -> None:
        """Does nothing, as `shutdown`."""

    def _has_hooks(self) -> bool:
        return False

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        del desc  # `new_group` of this package was told
