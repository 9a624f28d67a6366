"""Process groups that note each call for PyTorch's analyser; only if somebody asks for it."""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from kernbench.bridge.base.here import this_rank
from kernbench.bridge.distributed.process_group import SimProcessGroup
from kernbench.bridge.tensors.devices import on_device
from kernbench.distributed.groups import meets_on_host
from kernbench.flight_recorder.recorder import FlightRecorder, Shaped, Told

_ELEMENT: Final = Shaped([1], "Float")
_DTYPES: Final = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
    torch.float8_e4m3fn: "Float8_e4m3fn",
    torch.float8_e5m2: "Float8_e5m2",
    torch.uint16: "UInt16",
    torch.uint32: "UInt32",
    torch.uint64: "UInt64",
}


def _shaped(tensor: torch.Tensor) -> Shaped:
    plain = str(tensor.dtype).removeprefix("torch.").capitalize()
    return Shaped(list(tensor.shape), _DTYPES.get(tensor.dtype, plain))


def _listed(value: Any) -> list[torch.Tensor]:
    """Returns the tensors of a tensor, a list, or a list of lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for each in value or () for one in _listed(each)]


def _shapes(tensors: Any) -> list[Shaped]:
    return [_shaped(tensor) for tensor in _listed(tensors)] or [Shaped([0], "Float")]


def _flat(tensors: Sequence[torch.Tensor]) -> Shaped:
    """Returns the recorded shapes when the library flattens equal tensors into one."""
    first = _shaped(tensors[0])
    return Shaped([len(tensors), *first.sizes], first.dtype)


def _whole(tensors: Sequence[torch.Tensor]) -> Shaped:
    """Returns the recorded shape when the library flattens tensors of any shapes into one."""
    return Shaped([sum(math.prod(one.shape) for one in tensors)], _shaped(tensors[0]).dtype)


def _in_place(name: str, tensors: Any) -> list[Told]:
    return [Told(name, _shapes(tensors), _shapes(tensors))]


def _all_reduce(tensors: Any) -> list[Told]:
    several = len(_listed(tensors)) > 1
    return _in_place("allreduce_coalesced" if several else "all_reduce", tensors)


def _apart(one: str, end: str, tensors: Sequence[torch.Tensor]) -> list[Told]:
    """Returns a collective of tensors of several shapes: one for each rank, and their end."""
    each = [Told(one, [_shaped(tensor)], [_shaped(tensor)]) for tensor in tensors]
    return [*each, Told(end, (), ())]


def _alike(tensors: Sequence[torch.Tensor]) -> bool:
    return len({tensor.shape for tensor in tensors}) == 1


def _all_gather(outputs: Any, inputs: Any) -> list[Told]:
    outs = [_listed(outputs)] if isinstance(inputs, torch.Tensor) else list(map(_listed, outputs))
    if len(outs) == 1 and not _alike(outs[0]):
        return _apart("_broadcast_oop", "ALLGATHER_coalesced", outs[0])
    return [Told("all_gather", _shapes(inputs), [_flat(out) for out in outs])]


def _all_gather_lists(outputs: Any, inputs: Any) -> list[Told]:
    by_input = zip(*map(_listed, outputs), strict=True)
    return [Told("all_gather", _shapes(inputs), [_flat(list(out)) for out in by_input])]


def _reduce_scatter(outputs: Any, inputs: Any) -> list[Told]:
    given = [_listed(inputs)] if isinstance(outputs, torch.Tensor) else list(map(_listed, inputs))
    if len(given) == 1 and not _alike(given[0]):
        return _apart("_reduce_oop", "REDUCE_SCATTER_coalesced", given[0])
    return [Told("reduce_scatter", [_flat(one) for one in given], _shapes(outputs))]


def _into(name: str) -> Callable[[Any, Any], list[Told]]:
    return lambda outputs, inputs: [Told(name, _shapes(inputs), _shapes(outputs))]


def _all_to_all(outputs: Any, inputs: Any) -> list[Told]:
    return [Told("all_to_all", [_whole(_listed(inputs))], [_whole(_listed(outputs))])]


def _gather(outputs: Any, inputs: Any) -> list[Told]:
    taken = _listed(outputs)
    return [Told("gather", _shapes(inputs), [_flat(taken)] if taken else _shapes(()))]


def _scatter(outputs: Any, inputs: Any) -> list[Told]:
    given = _listed(inputs)
    return [Told("scatter", [_flat(given)] if given else _shapes(()), _shapes(outputs))]


_TOLD: Final[dict[str, tuple[int, Callable[..., list[Told]]]]] = {
    "allreduce": (1, _all_reduce),
    "allreduce_coalesced": (1, _all_reduce),
    "broadcast": (1, lambda tensors: _in_place("broadcast", tensors)),
    "reduce": (1, lambda tensors: _in_place("reduce", tensors)),
    "allgather": (2, _all_gather),
    "allgather_coalesced": (2, _all_gather_lists),
    "all_gather_single": (2, _into("_all_gather_base")),
    "_allgather_base": (2, _into("_all_gather_base")),
    "all_gather_single_coalesced": (2, _into("all_gather_into_tensor_coalesced")),
    "allgather_into_tensor_coalesced": (2, _into("all_gather_into_tensor_coalesced")),
    "reduce_scatter": (2, _reduce_scatter),
    "reduce_scatter_single": (2, _into("_reduce_scatter_base")),
    "_reduce_scatter_base": (2, _into("_reduce_scatter_base")),
    "reduce_scatter_single_coalesced": (2, _into("reduce_scatter_tensor_coalesced")),
    "reduce_scatter_tensor_coalesced": (2, _into("reduce_scatter_tensor_coalesced")),
    "alltoall": (2, _all_to_all),
    "all_to_all_single": (2, _all_to_all),
    "alltoall_base": (2, _all_to_all),
    "gather": (2, _gather),
    "scatter": (2, _scatter),
}
"""Methods of collectives: how many arguments tell what is moved, and what NCCL notes of it.

Receives from any source are left out: NCCL has none, and PyTorch's analyser knows no such name.
"""


class RecordedProcessGroup(SimProcessGroup):
    """A process group that notes each call in the rank's recorder before it makes it."""

    def _noting_message(self, name: str, tensors: Any, way: tuple[int, int]) -> Any:
        told = _message(name, tensors, way)
        return _recorder().noting(self.pg_name, _library(_listed(tensors)), [told])

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:  # noqa: N803
        """See `SimProcessGroup`."""
        with self._noting_message("send", tensors, (self.rank(), dstRank)):
            return super().send(tensors, dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:  # noqa: N803
        """See `SimProcessGroup`."""
        with self._noting_message("recv", tensors, (srcRank, self.rank())):
            return super().recv(tensors, srcRank, tag)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """See `SimProcessGroup`."""
        host = meets_on_host(this_rank().process, self.simulated)
        told = Told("barrier" if host else "all_reduce_barrier", [_ELEMENT], [_ELEMENT])
        with _recorder().noting(self.pg_name, "gloo" if host else "nccl", [told]):
            return super().barrier(opts, timeout)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """See `SimProcessGroup`."""
        told = Told("barrier", [_ELEMENT], [_ELEMENT])
        with _recorder().noting(self.pg_name, "gloo", [told]):
            super().monitored_barrier(timeout, wait_all_ranks)

    def _start_coalescing(self, device: Any) -> None:
        _recorder().begin_batch()
        super()._start_coalescing(device)

    def _end_coalescing(self, device: Any) -> Any:
        _recorder().end_batch(self.pg_name)
        return super()._end_coalescing(device)


def _recorder() -> FlightRecorder:
    recorder: FlightRecorder = this_rank().flight
    return recorder


def _library(tensors: Sequence[torch.Tensor]) -> str:
    return "nccl" if any(on_device(tensor) for tensor in tensors) else "gloo"


def _message(name: str, tensors: Any, way: tuple[int, int]) -> Told:
    shapes = _shapes(tensors)  # NCCL notes one tensor for both sides
    return Told(name, shapes, shapes, way)


def _noting(method: Callable[..., Any], count: int, tell: Callable[..., list[Told]]) -> Any:
    """Returns a method of a group that notes its calls."""
    signature = inspect.signature(method)

    @wraps(method)
    def noted(self: RecordedProcessGroup, *args: Any, **options: Any) -> Any:
        given = signature.bind(self, *args, **options).arguments
        moved = list(given.values())[1 : count + 1]
        with _recorder().noting(self.pg_name, _library(_listed(moved)), tell(*moved)):
            return method(self, *args, **options)

    return noted


for _name, (_count, _tell) in _TOLD.items():
    setattr(RecordedProcessGroup, _name, _noting(getattr(SimProcessGroup, _name), _count, _tell))


@contextmanager
def noted_batch(recorder: FlightRecorder | None, messages: Sequence[Any]) -> Iterator[None]:
    """Notes the messages of `batch_isend_irecv` until the end of the block.

    Args:
        recorder: The rank's recorder; None if nobody asks.
        messages: The `P2POp`s.
    """
    if recorder is None or not messages:
        yield
        return
    told = []
    group = messages[0].group or c10d._get_default_group()
    mine = group.rank()
    for message in messages:
        peer = message.group_peer
        sends = message.op in {dist.isend, c10d.isend}
        way = (mine, peer) if sends else (peer, mine)
        told.append(_message("send" if sends else "recv", message.tensor, way))
    told.append(Told("coalesced", (), (), told[-1].way))
    with recorder.noting(group.pg_name, _library([messages[0].tensor]), told):
        yield
