"""C20: a kernel has no host. C16: a handle may be waited for as often as one likes."""

import pytest
from report_text import relative

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import tl
from kernbench.process.process import current_process
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench


@tl.jit
def asks_for_its_rank(pointer: tl.Pointer, BLOCK: tl.constexpr) -> None:
    dist.get_rank()


@tl.jit
def sums_between_ranks(pointer: tl.Pointer, BLOCK: tl.constexpr) -> None:
    dist.all_reduce(torch.ones(BLOCK, device="cuda"))


@pytest.mark.parametrize(
    ("kernel", "name", "called"),
    [
        (asks_for_its_rank, "asks_for_its_rank", "dist.get_rank()"),
        (
            sums_between_ranks,
            "sums_between_ranks",
            'dist.all_reduce(torch.ones(BLOCK, device="cuda"))',
        ),
    ],
)
def test_c20_a_function_of_the_host_inside_a_kernel(
    kernbench: Kernbench, kernel: tl.Kernel, name: str, called: str
) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda")
        if rank == 1:
            kernel[(1,)](x, BLOCK=4)
        x.tolist()

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=3)
    (rank,) = caught.value.errors
    assert rank == 1
    inside = kernel.function.__code__.co_firstlineno + 2 - worker.__code__.co_firstlineno
    assert relative(str(caught.value.errors[1]), worker) == (
        "[C20] a function of the host was called from inside a kernel\n"
        f"  at FILE+{inside}: {called}\n"
        f"  {name} was issued at FILE+4: kernel[(1,)](x, BLOCK=4)\n"
        "  hint: a kernel uses kernbench.tl only; compute host values before the launch"
    )


def test_c16_a_second_wait_is_legal_and_free(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.full((4,), float(rank), device="cuda")
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        assert work.wait()
        before = current_process().host.clock
        assert work.wait()
        assert current_process().host.clock == before
        assert x.tolist() == [3.0] * 4

    kernbench.spawn(worker, nprocs=3)
