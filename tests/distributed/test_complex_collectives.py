"""Complex numbers between ranks: as PyTorch sends them, which is as their parts."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.process.process import current_process
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench

N: Final = 3


def _run(kernbench: Kernbench, worker: Callable[[int], Any], **dials: Any) -> dict[int, Any]:
    found: dict[int, Any] = {}

    def start(rank: int) -> None:
        dist.init_process_group("ccl")
        skew = torch.ones(64, device="cuda")
        for _ in range(2 * rank):
            skew = skew * 2.0
        found[rank] = worker(rank)
        dist.destroy_process_group()

    kernbench.spawn(start, nprocs=N, **dials)
    return found


def _values(rank: int, *shape: int) -> Any:
    """Whole numbers, whose sums are exact."""
    count = int(np.prod(shape))
    return (np.arange(count) + 1j * (np.arange(count) * 3 % 7 - rank)).reshape(shape) + rank


@pytest.mark.parametrize("where", ["cuda", "cpu"])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("fidelity", ["kernel", "tile", "functional"])
def test_every_collective(
    kernbench: Kernbench, where: str, dtype: torch.dtype, fidelity: str
) -> None:
    def worker(rank: int) -> list[Any]:
        def make(*shape: int, of: int = rank) -> torch.Tensor:
            return torch.tensor(_values(of, *shape), dtype=dtype, device=where)

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=where)

        out: list[torch.Tensor] = [make(5), make(5), make(5)]
        dist.all_reduce(out[0])
        dist.all_reduce(out[1], dist.ReduceOp.AVG)
        dist.all_reduce(out[2], dist.ReduceOp.PREMUL_SUM(0.5))
        out.append(make(2, 2))
        dist.reduce(out[-1], 1)
        out.append(make(4))
        dist.broadcast(out[-1], 2)
        parts = [empty(r + 1) for r in range(N)]
        dist.all_gather(parts, make(rank + 1))
        out += parts
        out.append(empty(N, 2))
        dist.all_gather_into_tensor(out[-1], make(2))
        parts = [empty(2) for _ in range(N)]
        dist.gather(make(2), parts if rank == 0 else None)
        out += parts if rank == 0 else []
        out.append(empty(2))
        dist.scatter(out[-1], [make(2, of=10 * r) for r in range(N)] if rank == 1 else None, 1)
        out.append(empty(2))
        dist.reduce_scatter(out[-1], [make(2, of=rank + r) for r in range(N)])
        out.append(empty(2))
        dist.reduce_scatter_tensor(out[-1], make(6))
        parts = [empty(rank + 1) for _ in range(N)]
        dist.all_to_all(parts, [make(r + 1) for r in range(N)])
        out += parts
        out.append(empty(N * (rank + 1)))
        dist.all_to_all_single(out[-1], make(6), [rank + 1] * N, [1, 2, 3])
        out.append(empty(3))
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, make(3), (rank + 1) % N),
                dist.P2POp(dist.irecv, out[-1], (rank - 1) % N),
            ]
        )
        for work in works:
            work.wait()
        out += [make(3), make(2)]
        dist.all_reduce_coalesced(out[-2:])
        return [np.asarray(tensor) for tensor in out]

    found = _run(kernbench, worker, fidelity=fidelity)
    total = {shape: sum(_values(r, *shape) for r in range(N)) for shape in ((5,), (2, 2), (6,))}
    for rank, values in found.items():
        expected = [
            total[5,],
            total[5,] / 3,
            total[5,] / 2,
            total[2, 2] if rank == 1 else _values(rank, 2, 2),
            _values(2, 4),
            *(_values(r, r + 1) for r in range(N)),
            np.stack([_values(r, 2) for r in range(N)]),
            *(_values(r, 2) for r in range(N) if rank == 0),
            _values(10 * rank, 2),
            sum(_values(rank + r, 2) for r in range(N)),
            total[6,][2 * rank : 2 * rank + 2],
            *(_values(r, rank + 1) for r in range(N)),
            np.concatenate([np.split(_values(r, 6), [1, 3])[rank] for r in range(N)]),
            _values((rank - 1) % N, 3),
            sum(_values(r, 3) for r in range(N)),
            sum(_values(r, 2) for r in range(N)),
        ]
        assert len(values) == len(expected)
        for got, wanted in zip(values, expected, strict=True):
            assert got.dtype == dtype.numpy
            np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_parts_do_not_meet_on_the_way(kernbench: Kernbench) -> None:
    # As complex numbers, infinity times 0.5+0j would be nan.
    def worker(rank: int) -> Any:
        x = torch.tensor([complex(np.inf, 1)], device="cuda")
        y = x.clone()
        dist.all_reduce(x, dist.ReduceOp.PREMUL_SUM(0.5))
        dist.all_reduce(y, dist.ReduceOp.AVG)
        return x.tolist() + y.tolist()

    expected = [complex(np.inf, 1.5), complex(np.inf, 1)]
    assert set(map(tuple, _run(kernbench, worker).values())) == {tuple(expected)}


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_to_all", "send"])
def test_they_take_the_time_of_their_parts(kernbench: Kernbench, operation: str) -> None:
    def elapsed(dtype: torch.dtype, count: int) -> dict[int, int]:
        def worker(rank: int) -> int:
            x = torch.zeros(N * count, dtype=dtype, device="cuda")
            y = torch.zeros(count, dtype=dtype, device="cuda")
            if operation == "all_reduce":
                dist.all_reduce(x)
            elif operation == "reduce_scatter":
                dist.reduce_scatter_tensor(y, x)
            elif operation == "all_to_all":
                dist.all_to_all_single(x.clone(), x)
            elif rank == 0:
                dist.send(x, 1)
            elif rank == 1:
                dist.recv(x, 0)
            torch.cuda.synchronize()
            return current_process().host.clock

        return _run(kernbench, worker, data=False)

    assert elapsed(torch.complex64, 5000) == elapsed(torch.float32, 10000)


@pytest.mark.parametrize("name", ["PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"])
@pytest.mark.parametrize("call", ["all_reduce", "reduce", "reduce_scatter_tensor"])
def test_operations_that_pytorch_refuses(kernbench: Kernbench, name: str, call: str) -> None:
    def worker(rank: int) -> None:
        op = getattr(dist.ReduceOp, name)
        x = torch.ones(N, dtype=torch.complex64, device="cuda")
        message = rf"\[C6\] rank \d: {call} does not support RedOpType\.{name} on complex tensors"
        arguments = {"all_reduce": (x, op), "reduce": (x, 0, op)}.get(call, (x[:1], x, op))
        with pytest.raises(ValueError, match=message):
            getattr(dist, call)(*arguments)

    _run(kernbench, worker)


def test_pairs_of_reals_are_no_complex_numbers(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = torch.ones(4, dtype=torch.complex64, device="cuda")
        dist.all_reduce(torch.view_as_real(x) if rank == 1 else x)

    with pytest.raises(SpawnException, match=r"\[C4\] collective #1 .* differ in dtype"):
        _run(kernbench, worker)
