"""A fault of a kernel is told by itself, whatever message its result would have gone into."""

from collections.abc import Callable

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.operations.shaping import IndexOutOfBoundsError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench


def _two() -> torch.Tensor:
    return torch.empty(2, device="cuda")


def _on_the_side(x: torch.Tensor) -> None:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        dist.all_reduce(x)


def _send(x: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        dist.send(x, 1)
    else:
        dist.recv(torch.empty(1, device="cuda"), 0)


MESSAGES: dict[str, Callable[[torch.Tensor], object]] = {
    "all_reduce": dist.all_reduce,
    "all_reduce, asynchronous": lambda x: dist.all_reduce(x, async_op=True).wait(),
    "all_reduce, on another stream": _on_the_side,
    "all_gather": lambda x: dist.all_gather_into_tensor(_two(), x),
    "broadcast": lambda x: dist.broadcast(x, 0),
    "send": _send,
}


@pytest.mark.parametrize("fidelity", ["kernel", "tile"])
@pytest.mark.parametrize("faulty", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("message", MESSAGES)
def test_the_first_fault_is_told(
    kernbench: Kernbench, message: str, faulty: tuple[int, ...], fidelity: str
) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        index = torch.tensor([9 if rank in faulty else 1], device="cuda")
        x = torch.ones(4, device="cuda")[index] * 2
        MESSAGES[message](x)
        torch.cuda.synchronize()
        torch.cuda.synchronize()

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=2, fidelity=fidelity)
    errors = caught.value.errors
    # With a fault each, the first rank to raise its own aborts the other.
    assert set(errors) <= set(faulty)
    for error in errors.values():
        assert isinstance(error, IndexOutOfBoundsError)
        assert error.code == "M1"
        issued = [fact for fact in error.facts if fact.startswith("aten::index was issued at")]
        assert [fact.rpartition(": ")[2] for fact in issued] == [
            'x = torch.ones(4, device="cuda")[index] * 2'
        ]
