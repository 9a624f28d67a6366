"""Collectives against numpy: unequal shapes and ranks, groups, in place, uneven, asynchronous."""

import gc
from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401 - registers its types with numpy
import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.ccl.collective import Collective
from kernbench.errors import KernbenchError
from kernbench.process.process import current_process
from kernbench.ranks.world import world_of
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench

N = 3


def _values(rank: int, *shape: int) -> np.ndarray[Any, Any]:
    """Whole numbers that differ everywhere: sums of them are exact."""
    return np.arange(np.prod(shape, dtype=int)).reshape(shape) * 10.0 + rank + 1


def _tensor(values: np.ndarray[Any, Any], dtype: Any = torch.float32) -> torch.Tensor:
    return torch.tensor(values.tolist(), dtype=dtype, device="cuda")


def _run(
    kernbench: Kernbench, worker: Callable[[int], object], nprocs: int = N, **dials: Any
) -> dict[int, Any]:
    """Returns what each rank's function returns, with unequal ranks."""
    found: dict[int, Any] = {}

    def start(rank: int) -> None:
        dist.init_process_group("ccl")
        skew = torch.ones(64, device="cuda")
        for _ in range(2 * rank):
            skew = skew * 2.0
        found[rank] = worker(rank)
        dist.destroy_process_group()

    kernbench.spawn(start, nprocs=nprocs, **dials)
    assert sorted(found) == list(range(nprocs))
    return found


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize(
    ("kind", "fidelity"),
    [
        *((kind, "kernel") for kind in ("sum", "avg", "product", "min", "max", "premul_sum")),
        *(
            (kind, fidelity)
            for kind in ("avg", "premul_sum")
            for fidelity in ("tile", "functional")
        ),
    ],
)
def test_reductions_of_floats(
    kernbench: Kernbench, kind: str, async_op: bool, fidelity: str
) -> None:
    op: Any = getattr(dist.ReduceOp, kind.upper())
    if kind == "premul_sum":
        op = op(0.5)
    inputs = np.stack([_values(rank, 2, 5) for rank in range(N)])
    oracle = {
        "sum": inputs.sum(0),
        "avg": inputs.sum(0).astype(np.float32) / np.float32(N),
        "product": inputs.prod(0),
        "min": inputs.min(0),
        "max": inputs.max(0),
        "premul_sum": (inputs / 2).sum(0),
    }[kind].astype(np.float32)

    def worker(rank: int) -> list[Any]:
        everywhere, one = _tensor(inputs[rank]), _tensor(inputs[rank])
        work = dist.all_reduce(everywhere, op, async_op=async_op)
        if async_op:
            assert work.wait()
        work = dist.reduce(one, 2, op, async_op=async_op)
        if async_op:
            work.wait()
        part = torch.empty(5, device="cuda")
        whole = _tensor(np.concatenate([inputs[rank], inputs[rank][:1]]))
        dist.reduce_scatter_tensor(part, whole, op)
        return [everywhere.numpy(), one.numpy(), part.numpy()]

    rows = np.concatenate([oracle, oracle[:1]])
    for rank, (everywhere, one, part) in _run(kernbench, worker, fidelity=fidelity).items():
        np.testing.assert_array_equal(everywhere, oracle)
        np.testing.assert_array_equal(one, oracle if rank == 2 else inputs[rank])
        np.testing.assert_array_equal(part, rows[rank])


@pytest.mark.parametrize("kind", ["band", "bor", "bxor"])
def test_reductions_of_bits(kernbench: Kernbench, kind: str) -> None:
    inputs = [np.array([0b1100, 0b1010, 7]) >> rank for rank in range(N)]
    ufunc = getattr(np, {"band": "bitwise_and", "bor": "bitwise_or", "bxor": "bitwise_xor"}[kind])

    def worker(rank: int) -> Any:
        x = _tensor(inputs[rank], torch.int32)
        dist.all_reduce(x, getattr(dist.ReduceOp, kind.upper()))
        return x.tolist()

    expected = ufunc.reduce(inputs).tolist()
    assert set(map(tuple, _run(kernbench, worker).values())) == {tuple(expected)}


@pytest.mark.parametrize("root", range(N))
def test_rooted_operations_from_every_root(kernbench: Kernbench, root: int) -> None:
    def worker(rank: int) -> list[Any]:
        x = _tensor(_values(rank, 3))
        dist.broadcast(x, root)
        mine = _tensor(_values(rank, 2, 2))
        into = [torch.empty((2, 2), device="cuda") for _ in range(N)] if rank == root else None
        dist.gather(mine, into, dst=root)
        out = torch.empty(2, device="cuda")
        parts = [_tensor(_values(10 * r, 2)) for r in range(N)] if rank == root else None
        dist.scatter(out, parts, group_src=root)
        return [x.tolist(), [t.tolist() for t in into or ()], out.tolist()]

    gathered = [_values(rank, 2, 2).tolist() for rank in range(N)]
    for rank, (x, into, out) in _run(kernbench, worker).items():
        assert x == _values(root, 3).tolist()
        assert into == (gathered if rank == root else [])
        assert out == _values(10 * rank, 2).tolist()


def test_the_source_of_a_broadcast_may_change_its_tensor_right_after(kernbench: Kernbench) -> None:
    def worker(rank: int) -> Any:
        x = _tensor(_values(rank, 4))
        dist.broadcast(x, 1)
        if rank == 1:
            x *= 0
        return x.tolist()

    found = _run(kernbench, worker)
    assert found[0] == found[2] == _values(1, 4).tolist()
    assert found[1] == [0.0] * 4


@pytest.mark.parametrize("async_op", [False, True])
def test_uneven_lists(kernbench: Kernbench, async_op: bool) -> None:
    sizes = [4, 1, 2]

    def worker(rank: int) -> list[Any]:
        lists = [torch.empty(size, device="cuda") for size in sizes]
        works = [dist.all_gather(lists, _tensor(_values(rank, sizes[rank])), async_op=async_op)]
        inputs = [_tensor(_values(rank, size)) for size in sizes]
        out = torch.empty(sizes[rank], device="cuda")
        works.append(dist.reduce_scatter(out, inputs, async_op=async_op))
        if async_op:
            for work in works:
                work.wait()
        return [[t.tolist() for t in lists], out.tolist()]

    for rank, (lists, out) in _run(kernbench, worker).items():
        assert lists == [_values(r, size).tolist() for r, size in enumerate(sizes)]
        assert out == sum(_values(r, sizes[rank]) for r in range(N)).tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("fidelity", ["kernel", "tile", "functional"])
def test_exchanges(kernbench: Kernbench, fidelity: str) -> None:
    sends = np.array([[1, 3, 2], [0, 2, 1], [2, 1, 4]])

    def worker(rank: int) -> list[Any]:
        rows = _values(rank, int(sends[rank].sum()), 2)
        out = torch.empty((int(sends[:, rank].sum()), 2), device="cuda")
        ins, outs = sends[rank].tolist(), sends[:, rank].tolist()
        work = dist.all_to_all_single(out, _tensor(rows), outs, ins, async_op=rank != 1)
        if work is not None:
            work.wait()
        even = torch.empty(6, device="cuda")
        dist.all_to_all_single(even, _tensor(_values(rank, 6)))
        lists = [torch.empty(int(count), device="cuda") for count in sends[:, rank]]
        dist.all_to_all(lists, [_tensor(_values(rank, int(count))) for count in sends[rank]])
        return [out.tolist(), even.tolist(), [t.tolist() for t in lists]]

    ends = np.cumsum(sends, axis=1)
    for rank, (out, even, lists) in _run(kernbench, worker, fidelity=fidelity).items():
        parts = []
        for sender in range(N):
            rows = _values(sender, int(sends[sender].sum()), 2)
            parts.append(rows[ends[sender, rank] - sends[sender, rank] : ends[sender, rank]])
        assert out == np.concatenate(parts).tolist()
        assert even == [v for s in range(N) for v in _values(s, 6)[2 * rank : 2 * rank + 2]]
        assert lists == [_values(s, int(sends[s, rank])).tolist() for s in range(N)]


def test_in_place_parts_of_a_whole(kernbench: Kernbench) -> None:
    def worker(rank: int) -> list[Any]:
        whole = torch.zeros((N, 2), device="cuda")
        whole[rank].copy_(_tensor(_values(rank, 2)))
        dist.all_gather_into_tensor(whole, whole[rank])
        gathered = whole.tolist()
        dist.reduce_scatter_tensor(whole[rank], whole)
        return [gathered, whole[rank].tolist()]

    rows = [_values(rank, 2).tolist() for rank in range(N)]
    for rank, (gathered, mine) in _run(kernbench, worker).items():
        assert gathered == rows
        assert mine == [N * value for value in rows[rank]]


def test_groups_that_cross_and_ranks_out_of_order(kernbench: Kernbench) -> None:
    def worker(rank: int) -> list[Any]:
        rows = dist.new_group([0, 1, 2]), dist.new_group([3, 4, 5])
        columns = [dist.new_group([c, c + 3]) for c in range(3)]
        turned = dist.new_group([4, 2], sort_ranks=False)
        x = torch.full((2,), float(rank), device="cuda")
        y = x.clone()
        first = dist.all_reduce(x, group=rows[rank // 3], async_op=True)
        second = dist.all_reduce(y, group=columns[rank % 3], async_op=True)
        first.wait()
        second.wait()
        z = []
        if rank in {2, 4}:
            parts = [torch.empty(1, device="cuda") for _ in range(2)]
            dist.all_gather(parts, torch.full((1,), float(rank), device="cuda"), turned)
            z = [part.item() for part in parts]
            assert turned.rank() == dist.get_rank(turned) == (0 if rank == 4 else 1)
        return [x.tolist(), y.tolist(), z]

    for rank, (x, y, z) in _run(kernbench, worker, 6).items():
        assert x == [3.0 if rank < 3 else 12.0] * 2
        assert y == [2.0 * (rank % 3) + 3] * 2
        assert z == ([4.0, 2.0] if rank in {2, 4} else [])


def test_coalesced_collectives_are_one(kernbench: Kernbench) -> None:
    def worker(rank: int) -> list[Any]:
        xs = [_tensor(_values(rank, size)) for size in (2, 3)]
        half = _tensor(_values(rank, 2), torch.float16)
        gathered = [torch.empty(size * N, device="cuda") for size in (1, 2)]
        parts = [torch.empty(size, device="cuda") for size in (1, 2)]
        with dist.comm_debug.CommDebugMode() as mode:
            with dist._coalescing_manager(async_ops=True) as cm:
                for x in (*xs, half):
                    dist.all_reduce(x)
            assert len(cm.works) == 2
            cm.wait()
            with dist._coalescing_manager():
                for out, size in zip(gathered, (1, 2), strict=True):
                    dist.all_gather_into_tensor(out, _tensor(_values(rank, size)))
            with dist._coalescing_manager():
                for out, size in zip(parts, (1, 2), strict=True):
                    dist.reduce_scatter_tensor(out, _tensor(_values(rank, size * N)))
        counts = mode.get_comm_counts()
        assert counts == {
            "all_gather_coalesced": 1,
            "all_reduce_coalesced": 2,
            "reduce_scatter_coalesced": 1,
        }
        return [t.tolist() for t in (*xs, half, *gathered, *parts)]

    total = [sum(_values(r, size) for r in range(N)) for size in (2, 3, 3, 6)]
    for rank, found in _run(kernbench, worker).items():
        a, b, half, one, two, p, q = found
        assert [a, b, half] == [t.tolist() for t in (total[0], total[1], total[0])]  # type: ignore[union-attr]
        assert one == [v for r in range(N) for v in _values(r, 1)]
        assert two == [v for r in range(N) for v in _values(r, 2)]
        assert p == [total[2][rank]]  # type: ignore[index]
        assert q == total[3][2 * rank : 2 * rank + 2].tolist()  # type: ignore[index]


def test_works_and_futures(kernbench: Kernbench) -> None:
    def worker(rank: int) -> list[float]:
        x = torch.ones(1 << 14, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        assert work.result() == [x]
        future = work.get_future()
        assert not future.done()
        halved = future.then(lambda reached: reached.value()[0] / 2)
        y = halved.wait()
        assert work.wait()
        assert work.wait()
        assert y[0].item() == N / 2
        assert future.wait()[0] is x
        assert future.done()
        assert halved.done()
        assert work.is_success()
        assert work.exception() is None
        return [x[0].item()]

    assert list(_run(kernbench, worker).values()) == [[3.0]] * N


def test_a_barrier_makes_the_host_wait(kernbench: Kernbench) -> None:
    def worker(rank: int) -> list[int]:
        host = current_process().host
        if rank == 1:
            x = torch.ones(1 << 20, device="cuda")
            for _ in range(50):
                x = x + 1
            torch.cuda.synchronize()
        before = host.clock
        work = dist.barrier(async_op=True, device_ids=[rank])
        assert work is not None
        issued = host.clock
        work.wait()
        return [before, issued, host.clock]

    found = _run(kernbench, worker)
    slow = found[1][0]
    assert all(issued < slow < done for _, issued, done in (found[0], found[2]))


def test_programs_run_with_data_off(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = torch.ones(6, device="cuda")
        out = torch.empty(6, device="cuda")
        dist.all_to_all_single(out, x)
        dist.all_to_all_single(out, x, [1, 2, 3], [1, 1, 1])

    with pytest.raises(SpawnException) as caught:
        _run(kernbench, worker, data=False)
    error = caught.value.errors[0]
    assert isinstance(error, KernbenchError)
    assert error.code == "C12"

    def fits(rank: int) -> None:
        x = torch.ones(3 * (rank + 1), device="cuda")
        out = torch.empty(6, device="cuda")
        dist.all_to_all_single(out, x, [1, 2, 3], [rank + 1] * 3)
        dist.barrier()

    _run(kernbench, fits, data=False)


def test_the_choice_of_an_algorithm_is_told_once(kernbench: Kernbench) -> None:
    told: list[str] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(256, device="cuda")
        pair = dist.new_group([0, 1])
        for _ in range(3):
            dist.all_reduce(x)
            if rank < 2:
                dist.all_reduce(x, group=pair)
        dist.destroy_process_group()

    ctx = kernbench.context()
    ctx.on_choice = told.append
    ctx.multiprocessing.spawn(worker, nprocs=N)
    assert len(told) == 2
    assert any(line.startswith("all_reduce 1 KiB, 3 ranks of WORLD: ") for line in told)
    assert any(line.startswith("all_reduce 1 KiB, 2 ranks of G1{0-1}: ") for line in told)


def test_functional_collectives(kernbench: Kernbench) -> None:
    funcol = torch.distributed._functional_collectives

    def worker(rank: int) -> list[Any]:
        group = dist.group.WORLD
        x = _tensor(_values(rank, 2, 3))
        found = [
            funcol.all_reduce(x, "sum", group),
            funcol.broadcast(x, 1, group),
            funcol.all_gather_tensor(x, 0, group),
            funcol.all_gather_tensor(x, 1, group),
            funcol.reduce_scatter_tensor(x, "sum", 1, group),
            funcol.all_to_all_single(x[0], None, None, group),
            dist.functional_all_reduce(x, dist.ReduceOp.MAX),
        ]
        assert x.tolist() == _values(rank, 2, 3).tolist()
        return [funcol.wait_tensor(t).numpy() for t in found]

    inputs = np.stack([_values(rank, 2, 3) for rank in range(N)])
    for rank, found in _run(kernbench, worker).items():
        expected = [
            inputs.sum(0),
            inputs[1],
            np.concatenate(list(inputs), 0),
            np.concatenate(list(inputs), 1),
            inputs.sum(0)[:, rank : rank + 1],
            inputs[:, 0, rank],
            inputs.max(0),
        ]
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_arguments_of_functional_collectives(kernbench: Kernbench) -> None:
    funcol = torch.distributed._functional_collectives

    def worker(rank: int) -> Any:
        x = _tensor(_values(rank, 4))
        with pytest.raises(ValueError, match="must be a multiple of 3"):
            funcol.reduce_scatter_tensor(x, "sum", 0, None)
        with pytest.raises(ValueError, match="give both of output_split_sizes"):
            funcol.all_to_all_single(x, [1, 1, 2], None, None)
        with pytest.raises(KernbenchError, match="in place of a process group"):
            funcol.all_reduce(x, "sum", [0, 1])
        with pytest.raises(KernbenchError, match="in place of a process group"):
            funcol.all_reduce(x, "sum", None, "tag")
        with pytest.raises(ValueError, match="'xor' is no reduce operation"):
            funcol.all_reduce(x, "xor", None)
        with pytest.raises(KernbenchError, match="PREMUL_SUM with a tensor"):
            dist._make_nccl_premul_sum(x)
        with pytest.raises(TypeError, match="takes a number as its factor"):
            dist.ReduceOp.PREMUL_SUM("half")
        assert dist.ReduceOp.RedOpType.MAX == dist.ReduceOp.MAX
        sent = [1, 1, 1] if rank < 0 else [2, 1, 1]
        y = funcol.all_to_all_single(x, [1, 1, 1], sent, None)
        return y.tolist()

    with pytest.raises(SpawnException) as caught:
        _run(kernbench, worker)
    error = caught.value.errors[0]
    assert isinstance(error, KernbenchError)
    assert error.code == "C11"


def test_many_asynchronous_operations(kernbench: Kernbench) -> None:
    """Handles that were waited for are forgotten, and those that were not are found."""

    def worker(rank: int) -> tuple[int, int]:
        x = torch.ones(1, device="cuda")
        for _ in range(300):
            work = dist.all_reduce(x, async_op=True)
            assert work.wait(timeout=None)
            work.synchronize()
            work.block_current_stream()
        works = world_of(current_process()).unwaited[rank]
        left = len(works)
        # The host knows of these, too, but not by their handles, and looks now and then.
        for _ in range(300):
            dist.all_reduce(x, async_op=True)
            torch.cuda.synchronize()
        return left, len(works)

    assert set(_run(kernbench, worker, data=False).values()) == {(0, 300 - 256 + 1)}


@pytest.mark.parametrize("async_ops", [True, False])
def test_messages_of_a_coalescing_block_start_together(
    kernbench: Kernbench, async_ops: bool
) -> None:
    """One after the other they would wait for one another for ever."""
    got: dict[int, list[list[float]]] = {}

    def worker(rank: int) -> None:
        n = dist.get_world_size()
        x, y, z = (torch.full((4,), float(rank), device="cuda") for _ in range(3))
        device = torch.device("cuda", rank)
        with dist._coalescing_manager(device=device, async_ops=async_ops) as cm:
            assert dist.recv(y, (rank - 1) % n) == (rank - 1) % n
            work = dist.irecv(z, (rank - 1) % n, tag=1)
            dist.send(x, (rank + 1) % n)
            dist.isend(x, (rank + 1) % n, tag=1)
        with pytest.raises(KernbenchError, match="coalesced with others"):
            work.wait()
        if async_ops:
            cm.wait()
        got[rank] = [y.tolist(), z.tolist()]

    _run(kernbench, worker)
    assert all(rows == [[float((r - 1) % len(got))] * 4] * 2 for r, rows in got.items())


def test_barriers_do_not_race_with_each_other(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        group = dist.new_group(range(dist.get_world_size()))
        work = dist.barrier(async_op=True)
        dist.barrier(group=group)
        dist.barrier()
        assert work is not None
        work.wait()

    _run(kernbench, worker)


def test_an_operation_is_refused_inside_a_coalescing_block_of_its_group(
    kernbench: Kernbench,
) -> None:
    def worker(rank: int) -> None:
        with dist._coalescing_manager():
            with pytest.raises(RuntimeError, match="inside another one of group WORLD"):
                dist._coalescing_manager().__enter__()
            dist.barrier()
        lost: list[int] = []
        try:
            with dist._coalescing_manager():
                dist.all_reduce(torch.ones(rank + 1, device="cuda"))
                raise KeyError("left")
        except KeyError:
            lost.append(rank)
        assert lost == [rank]
        dist.barrier()

    _run(kernbench, worker)


@pytest.mark.parametrize("fidelity", ["kernel", "functional"])
def test_what_is_over_refers_to_nothing_that_refers_back(
    kernbench: Kernbench, fidelity: str
) -> None:
    # Else memory would come back only when Python looks for garbage, and that takes long.
    alive: list[int] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.full((8,), float(rank), device="cuda")
        for _ in range(20):
            dist.all_reduce(x)
            dist.broadcast(x, src=1)
        dist.barrier()
        dist.barrier()  # now nobody need be told of what came before the first
        engine = current_process().engine
        found = [thing for thing in gc.get_objects() if issubclass(type(thing), Collective)]
        alive.append(sum(collective.engine is engine for collective in found))

    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        kernbench.spawn(worker, nprocs=N, fidelity=fidelity)
    finally:
        if enabled:
            gc.enable()
    assert max(alive) <= 8  # of 42: the last ones, by whoever may still ask for them
