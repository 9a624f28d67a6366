"""What docs/limits.md lists is still not modelled; whoever changes that changes the list."""

from pathlib import Path

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import tl
from kernbench.errors import UnsupportedError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench


def test_the_host_takes_no_time_for_arithmetic(kernbench: Kernbench) -> None:
    with kernbench.context() as ctx:
        before = ctx.main.host.clock
        x = torch.ones(100, 100)
        (x @ x).sum().item()
        assert ctx.main.host.clock == before


def test_a_kernel_beside_a_collective_slows_neither(kernbench: Kernbench) -> None:
    spans: dict[bool, float] = {}

    def worker(rank: int, beside: bool) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1 << 16, device="cuda")
        y = torch.ones(1 << 16, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        if beside:
            y += 1
        work.wait()
        end.record()
        end.synchronize()
        spans[beside] = start.elapsed_time(end)

    for beside in (False, True):
        kernbench.spawn(worker, args=(beside,), nprocs=2)
    assert spans[False] == spans[True]


def test_what_raises_by_name(kernbench: Kernbench) -> None:
    with kernbench.context():
        x = torch.ones(1)
        y = torch.ones(1, requires_grad=True).sum()
        for call in (
            lambda: y.backward(create_graph=True),
            lambda: torch.nn.functional.dropout(x, inplace=True),
            lambda: torch.optim.Adam([x], amsgrad=True),
            lambda: torch.cuda.Stream(priority=-1),
            lambda: torch.cuda.Event(interprocess=True),
            lambda: torch.randn(2, dtype=torch.complex64),
            lambda: x.to(torch.complex64) @ x.to(torch.complex64),
            lambda: torch.ones(1, dtype=torch.complex64, requires_grad=True),
        ):
            with pytest.raises(UnsupportedError, match="not simulated"):
                call()


def test_a_conjugate_is_a_copy(kernbench: Kernbench) -> None:
    with kernbench.context():
        x = torch.tensor([1j])
        y = x.conj()
        x.zero_()
        assert y.tolist() == [-1j]


def test_the_rank_is_known_before_the_group_of_all_ranks(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        assert dist.get_rank() == rank

    kernbench.spawn(worker, nprocs=2)


def test_host_and_device_are_one_sequence(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("cpu:gloo,cuda:nccl")
        there, here = torch.ones(1, device="cuda"), torch.ones(1, device="cpu")
        for tensor in (there, here) if rank else (here, there):
            dist.all_reduce(tensor, async_op=True)

    with pytest.raises(SpawnException, match=r"\[C2\] collective #1 .* differ in device"):
        kernbench.spawn(worker, nprocs=2)


def test_a_rank_runs_on_until_its_host_waits(kernbench: Kernbench) -> None:
    order = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1, device="cuda")
        for _ in range(2):
            order.append(rank)
            dist.all_reduce(x)

    kernbench.spawn(worker, nprocs=2)
    assert order in ([0, 0, 1, 1], [1, 1, 0, 0])


def test_the_host_does_not_wait_for_gloo_on_devices(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        end = torch.cuda.Event()
        dist.all_reduce(torch.ones(1 << 16, device="cuda"))
        end.record()
        assert not end.query()

    kernbench.spawn(worker, nprocs=2)


def test_what_another_rank_saved_from_its_device_needs_a_map(
    kernbench: Kernbench, tmp_path: Path
) -> None:
    file = tmp_path / "saved.pt"

    def worker(rank: int, to: str | None) -> None:
        dist.init_process_group("nccl")
        if rank == 0:
            torch.save(torch.ones(2, device="cuda"), file)
        dist.barrier()
        assert torch.load(file, map_location=to).tolist() == [1, 1]

    kernbench.spawn(worker, args=("cuda",), nprocs=2)
    with pytest.raises(SpawnException, match=r"\[M14\] rank 1 used cuda:0"):
        kernbench.spawn(worker, args=(None,), nprocs=2)


def test_what_is_absent() -> None:
    for name in ("compile", "complex32", "sparse_coo_tensor", "func"):
        with pytest.raises(AttributeError):
            getattr(torch, name)
    assert not hasattr(torch.cuda, "MemPool")
    for name in ("atomic_add", "make_block_ptr", "make_tensor_descriptor"):
        assert not hasattr(tl, name)


def test_live_tiles_together_may_be_larger_than_the_scratch_memory(kernbench: Kernbench) -> None:
    count = 1 << 17  # 512 KiB; a PE of sip8 has 1 MiB

    @tl.jit
    def add(x: tl.Pointer, out: tl.Pointer, count: tl.constexpr) -> None:
        tile = tl.load(x + tl.arange(0, count))
        tl.store(out + tl.arange(0, count), tile + tl.load(x + tl.arange(0, count)))

    with kernbench.context(data=False):
        x, out = (torch.empty(count, device="cuda") for _ in range(2))
        add[(1,)](x, out, count)
        torch.cuda.synchronize()
