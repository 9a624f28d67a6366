"""Tensors of the host in collectives and messages: their values, their time, and mistakes."""

from collections.abc import Callable
from math import ceil, log2
from typing import Any, Final

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.process.process import current_process
from kernbench.ranks.hosted import duration_ps
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.topology.spec import LinkSpec
from kernbench.units import Bandwidth, Ps

N: Final = 3
GLOO: Final = "cpu:gloo,cuda:nccl"

Worker = Callable[[int], Any]


def _run(
    kernbench: Kernbench, worker: Worker, nprocs: int = N, backend: str | None = GLOO, **dials: Any
) -> dict[int, Any]:
    """Returns what each rank's function returns; hosts come at different times."""
    found: dict[int, Any] = {}

    def start(rank: int) -> None:
        dist.init_process_group(backend)
        current_process().host.clock += 1_000_000 * (nprocs - rank) ** 2
        found[rank] = worker(rank)
        dist.destroy_process_group()

    kernbench.spawn(start, nprocs=nprocs, **dials)
    return found


def _input(rank: int, *shape: int, dtype: torch.dtype = torch.int64, device: Any) -> torch.Tensor:
    count = int(np.prod(shape))
    values = (np.arange(count) * 7 + rank * 3) % 11 + 1
    return torch.tensor(values.reshape(shape).tolist(), dtype=dtype, device=device)


def _everything(rank: int, n: int, device: str, dtype: torch.dtype, async_op: bool) -> list[Any]:
    """Calls every collective once, and returns what came out."""
    outputs: list[torch.Tensor] = []

    def make(*shape: int, of: int = 0) -> torch.Tensor:
        return _input(rank + of, *shape, dtype=dtype, device=device)

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def done(work: Any, *tensors: torch.Tensor) -> None:
        if async_op:
            work.wait()
        outputs.extend(tensors)

    for op in ("SUM", "PRODUCT", "MIN", "MAX"):
        x = make(2, 3)
        done(dist.all_reduce(x, getattr(dist.ReduceOp, op), async_op=async_op), x)
    x = make(4)
    done(dist.reduce(x, n - 1, async_op=async_op), x)
    x = make(3, 2)
    done(dist.broadcast(x, 1 % n, async_op=async_op), x)
    uneven = [empty(r + 1) for r in range(n)]
    done(dist.all_gather(uneven, make(rank + 1), async_op=async_op), *uneven)
    x = empty(n * 2, 3)
    done(dist.all_gather_into_tensor(x, make(2, 3), async_op=async_op), x)
    root = 0
    there = [empty(5) for _ in range(n)] if rank == root else None
    done(dist.gather(make(5), there, dst=root, async_op=async_op), *(there or ()))
    x = empty(2)
    given = [make(2, of=10 * r) for r in range(n)] if rank == root else None
    done(dist.scatter(x, given, src=root, async_op=async_op), x)
    x = empty(rank + 1)
    given = [make(r + 1, of=10 * r) for r in range(n)]
    done(dist.reduce_scatter(x, given, async_op=async_op), x)
    x = empty(2, 2)
    done(dist.reduce_scatter_tensor(x, make(n * 2, 2), async_op=async_op), x)
    came = [empty(rank + 1) for r in range(n)]
    done(dist.all_to_all(came, [make(r + 1) for r in range(n)], async_op=async_op), *came)
    x = empty(n * (rank + 1), 2)
    sends = list(range(1, n + 1))
    y = make(sum(sends), 2)
    done(dist.all_to_all_single(x, y, [rank + 1] * n, sends, async_op=async_op), x)
    tensors = [make(3), make(2, 2)]
    done(dist.all_reduce_coalesced(tensors, async_op=async_op), *tensors)
    lists = [[empty(3), empty(2, 2)] for _ in range(n)]
    work = dist.all_gather_coalesced(lists, [make(3), make(2, 2)], async_op=async_op)
    done(work, *(tensor for part in lists for tensor in part))
    return [tensor.tolist() for tensor in outputs]


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_values_are_those_of_devices(
    kernbench: Kernbench, n: int, async_op: bool, dtype: torch.dtype
) -> None:
    # Small whole numbers are exact in any order, but for products in bfloat16.
    if dtype is torch.bfloat16 and n == 5:
        n = 2

    def worker(rank: int) -> list[Any]:
        return [_everything(rank, n, where, dtype, async_op) for where in ("cpu", "cuda")]

    for on_host, on_device in _run(kernbench, worker, n).values():
        assert on_host == on_device


@given(
    st.integers(1, 6),
    st.sampled_from(["float32", "int64", "complex64"]),
    st.integers(0, 9),
    st.permutations(range(6)),
)
@settings(max_examples=examples(30))
def test_sums_are_in_the_order_of_the_group(
    n: int, name: str, count: int, order: list[int]
) -> None:
    kernbench = Kernbench()
    dtype = getattr(torch, name)
    rng = np.random.default_rng(n * 100 + count)
    inputs = (rng.normal(size=(6, count)) * 1000).astype(dtype.numpy)
    if dtype.is_complex:
        inputs = inputs + np.complex64(1j) * inputs[::-1]
    members = [rank for rank in order if rank < n]
    expected = inputs[members[0]].copy()
    for rank in members[1:]:
        expected = expected + inputs[rank]

    def worker(rank: int) -> Any:
        group = dist.new_group(members, sort_ranks=False)
        x = torch.tensor(inputs[rank], device="cpu")
        dist.all_reduce(x, group=group)
        return np.asarray(x)

    for found in _run(kernbench, worker, n).values():
        np.testing.assert_array_equal(found, expected)
    kernbench.check_nothing_left()


LINK: Final = LinkSpec(Bandwidth(10**9), Ps(5_000_000))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("nbytes", [0, 4, 1 << 20])
def test_durations_are_the_textbooks(n: int, nbytes: int) -> None:
    byte, latency = 1000, 5_000_000
    share = -(-nbytes * (n - 1) // n) * byte
    rounds = ceil(log2(n))
    for operation, expected in (
        ("all_reduce", 2 * (n - 1) * latency + 2 * share),
        ("all_gather", (n - 1) * latency + share),
        ("reduce_scatter", (n - 1) * latency + share),
        ("gather", (n - 1) * latency + share),
        ("scatter", (n - 1) * latency + share),
        ("broadcast", rounds * (latency + nbytes * byte)),
        ("reduce", rounds * (latency + nbytes * byte)),
        ("all_to_all", (n - 1) * latency + nbytes * byte if n > 1 else 0),
    ):
        assert duration_ps(LINK, operation, n, nbytes) == expected
    assert duration_ps(LINK, "send_recv", 2, nbytes) == latency + nbytes * byte


OVERRIDES: Final = ["system.host.gloo={bandwidth: 1 GB/s, latency: 5 us}"]


def _clocks(kernbench: Kernbench, call: Worker, n: int = N, **dials: Any) -> dict[int, int]:
    """Returns when each host goes on, counted from when the last of them has issued its part."""

    def worker(rank: int) -> tuple[int, int]:
        process = current_process()
        before = process.host.clock
        call(rank)
        return before, process.host.clock

    found = _run(kernbench, worker, n, overrides=OVERRIDES, **dials)
    dispatch = 2_000_000 if dials.get("fidelity") != "functional" else 0
    begin = max(before for before, _ in found.values()) + dispatch
    return {rank: after - begin for rank, (_, after) in found.items()}


def test_the_host_waits_for_the_last_rank_and_the_textbooks_time(kernbench: Kernbench) -> None:
    def sums(rank: int) -> None:
        dist.all_reduce(torch.zeros(3000, device="cpu"))

    assert set(_clocks(kernbench, sums).values()) == {4 * 5_000_000 + 16_000_000}
    assert set(_clocks(kernbench, sums, data=False).values()) == {36_000_000}
    assert set(_clocks(kernbench, sums, fidelity="functional").values()) == {0}

    def exchange(rank: int) -> None:
        x = torch.zeros(6, 1000, dtype=torch.uint8, device="cpu")
        y = torch.zeros(3 * (rank + 1), 1000, dtype=torch.uint8, device="cpu")
        dist.all_to_all_single(y, x, [rank + 1] * 3, [1, 2, 3])

    # Rank 2 receives 3 rows from each of the others.
    assert set(_clocks(kernbench, exchange).values()) == {2 * 5_000_000 + 6_000_000}

    def complex_sums(rank: int) -> None:
        dist.all_reduce(torch.zeros(1500, dtype=torch.complex64, device="cpu"))

    assert _clocks(kernbench, complex_sums) == _clocks(kernbench, sums)


def test_an_asynchronous_operation_lets_the_host_go_on(kernbench: Kernbench) -> None:
    def worker(rank: int) -> tuple[int, ...]:
        process = current_process()
        x = torch.full((3000,), float(rank), device="cpu")
        work = dist.all_reduce(x, async_op=True)
        assert not work.is_completed()
        issued = process.host.clock
        assert work.wait()
        assert work.is_completed()
        assert x[0].item() == 3
        assert work.result()[0] is x
        assert work.get_future().wait()[0] is x
        return issued, process.host.clock

    found = _run(kernbench, worker, overrides=OVERRIDES)
    assert len({after for _, after in found.values()}) == 1
    assert all(after - issued >= 36_000_000 for issued, after in found.values())


def test_host_and_device_do_not_wait_for_each_other(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = torch.ones(1 << 20, device="cuda")
        y = torch.ones(2, device="cpu")
        on_device = dist.all_reduce(x, async_op=True)
        dist.all_reduce(y)
        assert y.tolist() == [3, 3]
        on_device.wait()
        assert x[0].item() == 3

    _run(kernbench, worker)


@pytest.mark.parametrize("backend", ["gloo", "ccl", None, GLOO, "cpu:gloo"])
def test_backends_that_take_tensors_of_the_host(kernbench: Kernbench, backend: str | None) -> None:
    def worker(rank: int) -> Any:
        x = torch.tensor([1 << rank], device="cpu")
        dist.all_reduce(x, dist.ReduceOp.BOR)
        return x.item()

    assert set(_run(kernbench, worker, backend=backend).values()) == {7}


def test_the_library_is_that_of_the_tensors_device(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        ops = dist.ReduceOp
        for where, op, missing in (("cpu", ops.PREMUL_SUM(2), "gloo"), ("cuda", ops.BAND, "nccl")):
            with pytest.raises(ValueError, match=f"not defined on backend {missing}"):
                dist.all_reduce(torch.ones(2, device=where), op)
        means = torch.full((2,), rank, dtype=torch.float32, device="cpu")
        dist.all_reduce(means, ops.AVG)
        assert means.tolist() == [1, 1]
        x = torch.ones(2, device="cuda")
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert x.tolist() == [1, 1]

    _run(kernbench, worker)


def test_messages(kernbench: Kernbench) -> None:
    def worker(rank: int) -> Any:
        n = dist.get_world_size()
        x = torch.full((1000,), float(rank), device="cpu")
        y = torch.empty(1000, device="cpu")
        works = [dist.isend(x, (rank + 1) % n), dist.irecv(y, (rank - 1) % n)]
        for work in works:
            work.wait()
        assert y.tolist() == [float((rank - 1) % n)] * 1000
        operations = [
            dist.P2POp(dist.isend, x, (rank - 1) % n),
            dist.P2POp(dist.irecv, y, (rank + 1) % n),
        ]
        works = dist.batch_isend_irecv(operations)
        assert len(works) == 2
        for work in works:
            work.wait()
        assert y[0].item() == (rank + 1) % n
        if rank == 0:
            sources = [dist.recv(y) for _ in range(n - 1)]
            assert sorted(sources) == [1, 2]
            return y[0].item() == sources[-1]
        dist.send(x, 0, tag=0)
        return True

    assert all(_run(kernbench, worker).values())


def test_a_message_takes_the_time_of_its_link(kernbench: Kernbench) -> None:
    def talk(rank: int) -> None:
        x = torch.zeros(250, device="cpu")
        if rank == 0:
            dist.send(x, 1)
        elif rank == 1:
            assert dist.recv(x, 0) == 0

    assert set(_clocks(kernbench, talk, 2).values()) == {5_000_000 + 1_000_000}


def test_barriers_and_objects_of_gloo_go_from_host_to_host(kernbench: Kernbench) -> None:
    def worker(rank: int) -> Any:
        process = current_process()
        dist.barrier()
        dist.monitored_barrier()
        work = dist.barrier(async_op=True)
        assert work is not None
        work.wait()
        found: list[Any] = [None] * N
        dist.all_gather_object(found, {"rank": rank})
        assert found == [{"rank": r} for r in range(N)]
        some = [rank, "x"] if rank == 1 else [None, None]
        dist.broadcast_object_list(some, src=1)
        assert some == [1, "x"]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, ["a", "bb", "ccc"] if rank == 2 else None, src=2)
        assert mine == ["abc"[rank] * (rank + 1)]
        into: list[Any] | None = [None] * N if rank == 0 else None
        dist.gather_object(rank * 10, into, dst=0)
        assert into is None or into == [0, 10, 20]
        if rank == 0:
            dist.send_object_list(["hello", 5], 1)
        elif rank == 1:
            got: list[Any] = [None, None]
            assert dist.recv_object_list(got, 0) == 0
            assert got == ["hello", 5]
        return [stream.name for stream in process.streams(process.device_index) if stream.count]

    assert _run(kernbench, worker, backend="gloo") == {rank: [] for rank in range(N)}


def test_objects_through_the_host_if_asked(kernbench: Kernbench) -> None:
    def worker(rank: int) -> Any:
        process = current_process()
        some = [rank]
        dist.broadcast_object_list(some, src=1, device="cpu")
        return some, [s.name for s in process.streams(process.device_index) if s.count]

    assert _run(kernbench, worker) == {rank: ([1], []) for rank in range(N)}


def test_coalescing_takes_host_and_device(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        tensors = [torch.ones(2, device=where) for where in ("cpu", "cuda", "cpu")]
        with dist._coalescing_manager(async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert len(manager.works) == 2
        manager.wait()
        assert [tensor.tolist() for tensor in tensors] == [[3, 3]] * 3

    _run(kernbench, worker)


def test_counted_as_on_devices(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        with dist.comm_debug.CommDebugMode() as mode:
            dist.all_reduce(torch.ones(2, device="cpu"))
        assert mode.get_comm_counts() == {"all_reduce": 1}

    _run(kernbench, worker)


def test_a_mesh_of_hosts(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        x = torch.tensor([rank], device="cpu")
        dist.all_reduce(x, group=mesh.get_group("b"))
        assert x.item() == (1 if rank < 2 else 5)

    _run(kernbench, worker, 4, backend="gloo")


# Mistakes


def _failure(kernbench: Kernbench, worker: Worker, backend: str = GLOO, **dials: Any) -> str:
    def start(rank: int) -> None:
        dist.init_process_group(backend)
        worker(rank)

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(start, nprocs=N, **dials)
    return str(caught.value)


def _cpu(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="cpu")


def _host_and_device(rank: int) -> None:
    dist.all_reduce(torch.ones(2, device="cpu" if rank == 1 else "cuda"))


def _other_shape(rank: int) -> None:
    dist.all_reduce(_cpu(2 + (rank == 1)))


def _other_type(rank: int) -> None:
    dist.all_reduce(_cpu(2).to(torch.int32 if rank == 1 else torch.float32))


def _other_operation(rank: int) -> None:
    if rank == 1:
        dist.broadcast(_cpu(2), 0)
    else:
        dist.all_reduce(_cpu(2))


def _one_is_missing(rank: int) -> None:
    if rank != 1:
        dist.all_reduce(_cpu(2))


def _pairs_differ(rank: int) -> None:
    if rank == 1:
        dist.all_to_all_single(_cpu(3), _cpu(3), [2, 1, 0], [1, 1, 1])
    else:
        dist.all_to_all_single(_cpu(3), _cpu(3))


def _written_too_early(rank: int) -> None:
    x = _cpu(2)
    work = dist.all_reduce(x, async_op=True)
    if rank == 1:
        x.zero_()
    work.wait()


def _read_too_early(rank: int) -> None:
    x = _cpu(2)
    work = dist.all_reduce(x, async_op=True)
    if rank == 1:
        x.tolist()
    work.wait()


def _never_written(rank: int) -> None:
    x = torch.empty(2, device="cpu") if rank == 1 else _cpu(2)
    dist.all_reduce(x)


def _in_a_circle(rank: int) -> None:
    dist.recv(_cpu(2), (rank + 1) % N)


def _message_to_a_device(rank: int) -> None:
    if rank == 0:
        dist.send(_cpu(2), 1)
    elif rank == 1:
        dist.recv(torch.ones(2, device="cuda"), 0)


def _message_of_another_size(rank: int) -> None:
    if rank == 0:
        dist.send(_cpu(2), 1)
    elif rank == 1:
        dist.recv(_cpu(3), 0)


def _mixed_list(rank: int) -> None:
    if rank == 1:
        dist.all_gather([_cpu(2), torch.ones(2, device="cuda"), _cpu(2)], _cpu(2))


def _mixed_batch(rank: int) -> None:
    if rank == 1:
        there = torch.ones(2, device="cuda")
        dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 0) for x in (_cpu(2), there)])


def _gaps(rank: int) -> None:
    if rank == 1:
        dist.all_reduce(_cpu(4)[::2])


def _a_future_with_a_callback(rank: int) -> None:
    if rank == 1:
        work = dist.isend(_cpu(2), 0)
        work.get_future().then(lambda future: None)


@pytest.mark.parametrize(
    ("worker", "texts"),
    [
        (
            _host_and_device,
            (
                "[C2]",
                "ranks 0-2 differ in device",
                "all_reduce([2], torch.float32, sum) on cpu",
            ),
        ),
        (_other_shape, ("[C3]", "differ in shape")),
        (_other_type, ("[C4]", "differ in dtype")),
        (_other_operation, ("[C2]", "broadcast([2], torch.float32, src=0) on cpu")),
        (_one_is_missing, ("[C1]", "all_reduce on cpu #1", "ranks 0, 2 wait for rank 1")),
        (
            _pairs_differ,
            ("[C11]", "rank 0 sends 1 element to rank 1; rank 1 expects 2"),
        ),
        (_written_too_early, ("[C14]", "rank 1 wrote a tensor before all_reduce on it was waited")),
        (_read_too_early, ("[C15]", "rank 1 read a tensor before all_reduce on it was waited for")),
        (
            _never_written,
            ("[M5]", "2 of 2 elements of tensor [2] torch.float32 were never written"),
        ),
        (_in_a_circle, ("[P4] ranks 0-2 wait for one another: 0 recv<-1",)),
        (_message_to_a_device, ("[P7]", "on cpu to rank 1", "one kind of device")),
        (_message_of_another_size, ("[P7]", "[2] torch.float32, 8 B on cpu")),
        (_mixed_list, ("[C12]", "tensors on different devices", "got cpu and cuda:1")),
        (_mixed_batch, ("batch_isend_irecv takes messages of one kind of device",)),
        (_gaps, ("called all_reduce on a tensor that is not contiguous",)),
        (_a_future_with_a_callback, ("then() on the future", "is not simulated")),
    ],
)
def test_mistakes(kernbench: Kernbench, worker: Worker, texts: tuple[str, ...]) -> None:
    found = _failure(kernbench, worker)
    for text in texts:
        assert text in found
    assert "test_host_collectives.py" in found


@pytest.mark.parametrize(
    ("backend", "where", "has"), [("nccl", "cpu", "cuda:1"), ("cpu:gloo", "cuda", "cpu")]
)
@pytest.mark.parametrize("message", [False, True])
def test_a_backend_without_a_library_for_the_device(
    kernbench: Kernbench, backend: str, where: str, has: str, message: bool
) -> None:
    def worker(rank: int) -> None:
        if rank == 1:
            x = torch.ones(2, device=where)
            dist.send(x, 0) if message else dist.all_reduce(x)

    found = _failure(kernbench, worker, backend)
    name = "send" if message else "all_reduce"
    assert (
        f"rank 1 called {name} on a tensor on {where}: No backend type associated with device type "
        f"{where}"
    ) in found
    assert f"group WORLD has the backend {backend}, for tensors on {has}" in found
    assert "cpu:gloo,cuda:nccl" in found


def test_messages_between_hosts_are_never_eager(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        if rank < 2:
            dist.send(_cpu(2), 1 - rank)
            dist.recv(_cpu(2), 1 - rank)

    assert "[P4]" in _failure(kernbench, worker, eager_limit=1 << 20)
