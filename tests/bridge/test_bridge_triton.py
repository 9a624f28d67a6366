"""Kernels of Triton in programs of PyTorch on simulated devices."""

from functools import partial
from typing import Any

import pytest
from bridge_devices import on_ranks

from kernbench.errors import KernbenchError
from kernbench.ranks.spawn_errors import SpawnException

torch = pytest.importorskip("torch")
triton: Any = pytest.importorskip("triton")
pytestmark = pytest.mark.torch
import triton.language as tl  # noqa: E402 - after the check that it is there
from triton.language.extra import libdevice  # noqa: E402

dist: Any = torch.distributed

SCALE = tl.constexpr(2)


@triton.jit  # type: ignore[untyped-decorator]
def square(x: Any) -> Any:
    return x * x


@triton.jit  # type: ignore[untyped-decorator]
def add(x_ptr: Any, y_ptr: Any, out_ptr: Any, n: Any, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask)  # launched
    y = tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, square(x) * SCALE + y, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def rows(out: Any, given: Any, stride: Any, n: Any, T: tl.constexpr, BLOCK: tl.constexpr) -> None:
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(given + row * stride + at, mask=at < n, other=-float("inf")).to(T)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out + row * stride + at, e / tl.sum(e, axis=0), mask=at < n)


@triton.jit  # type: ignore[untyped-decorator]
def with_libdevice(x: Any, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    tl.store(x + at, libdevice.asin(tl.load(x + at)))


@triton.jit  # type: ignore[untyped-decorator]
def with_assembler(x: Any, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    y = tl.inline_asm_elementwise("", "=r,r", [tl.load(x + at)], tl.float32, True, 1)
    tl.store(x + at, y)


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])  # type: ignore[untyped-decorator]
@triton.jit  # type: ignore[untyped-decorator]
def tuned(x: Any, n: Any, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, at, mask=at < n)


@triton.autotune([triton.Config({"BLOCK": 64})], key=["n"])  # type: ignore[untyped-decorator]
@triton.jit  # type: ignore[untyped-decorator]
def settled(x: Any, n: Any, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, at.to(tl.float32), mask=at < n)


def sums(rank: int, add: Any = add) -> tuple[float, float, float]:
    x, y = torch.rand(1000, device="cuda"), torch.rand(1000, device="cuda")
    out = torch.empty_like(x)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, 1000, BLOCK=128)
    end.record()
    given = torch.randn(3, 100, dtype=torch.bfloat16, device="cuda")
    soft = torch.empty(3, 100, device="cuda")
    rows[(3,)](soft, given, given.stride(0), 100, tl.float32, BLOCK=128, num_warps=2)
    torch.cuda.synchronize()
    wrong = (out - (x * x * 2 + y)).abs().max().item()
    return (
        wrong,
        (soft - torch.softmax(given.float(), 1)).abs().max().item(),
        begin.elapsed_time(end),
    )


@pytest.mark.parametrize("interpreted", [False, True])
def test_a_kernel_gives_what_pytorch_gives_and_takes_time(interpreted: bool) -> None:
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = interpreted
        kernel = triton.jit(add.fn)
    assert type(kernel).__name__ == ("InterpretedFunction" if interpreted else "JITFunction")
    ((first, second, milliseconds),) = on_ranks(partial(sums, add=kernel))
    assert first < 1e-6
    assert second < 1e-6
    assert 0.001 < milliseconds < 1


def test_a_kernel_takes_the_same_time_without_numbers() -> None:
    def timed(rank: int) -> float:
        x = torch.zeros(1000, device="cuda")
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        add[(8,)](x, x, x, 1000, BLOCK=128)
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end))

    assert on_ranks(timed) == on_ranks(timed, data=False)


def test_what_a_kernel_has_written_may_be_sent() -> None:
    def sent(rank: int) -> float:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        x = torch.empty(100, device="cuda")
        settled[(2,)](x, 100)
        dist.all_reduce(x)
        settled[(2,)](x, 50)
        return float(x.sum().item())

    assert on_ranks(sent, 2) == [49 * 25.0 + 2 * (4950 - 1225)] * 2


def out_of_bounds(rank: int) -> None:
    x = torch.zeros(100, device="cuda")
    add[(2,)](x, x, x, 200, BLOCK=128)


def on_the_host(rank: int) -> None:
    settled[(1,)](torch.zeros(4), 4)  # launched


def several_configs(rank: int) -> None:
    tuned[(1,)](torch.zeros(4, device="cuda"), 4)  # launched


def warmed(rank: int) -> None:
    add.warmup(torch.zeros(4, device="cuda"), 4, grid=(1,))  # launched


def assembler(rank: int) -> None:
    with_assembler[(1,)](torch.zeros(4, device="cuda"), BLOCK=4)  # launched


def from_libdevice(rank: int) -> None:
    with_libdevice[(1,)](torch.zeros(4, device="cuda"), BLOCK=4)  # launched


def complex_numbers(rank: int) -> None:
    settled[(1,)](torch.zeros(4, device="cuda", dtype=torch.complex64), 4)  # launched


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        (out_of_bounds, "M1"),
        (on_the_host, "kernel settled needs its tensors on one device"),
        (several_configs, "the Triton kernel tuned: to tune 2 configs is not simulated"),
        (warmed, "the Triton kernel add: warmup(...) is not simulated"),
        (assembler, "inline_asm_elementwise"),
        (from_libdevice, "libdevice"),
        (complex_numbers, "a pointer to torch.complex64 is not simulated"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_kernel_may_not_do_is_told_with_the_programs_line(worker: Any, said: str) -> None:
    with pytest.raises((SpawnException, KernbenchError)) as failed:
        on_ranks(worker)
    text = str(failed.value)
    assert said in text
    assert "# launched" in text
    assert "site-packages" not in text


@pytest.mark.parametrize("data", [True, False])
def test_do_bench_measures_simulated_time(data: bool) -> None:
    def worker(_: int) -> Any:
        from triton.testing import do_bench

        big, small = (torch.ones(size, device="cuda") for size in (1 << 26, 1 << 10))
        grown = torch.ones(4, device="cuda", requires_grad=True)
        calls: list[int] = []

        def backward() -> None:
            assert grown.grad is None or not calls
            calls.append(1)
            grown.sum().backward()

        found = [
            do_bench(lambda: big.add_(1)),
            triton.testing.do_bench(lambda: big.add_(1), warmup=1, rep=1, return_mode="min"),
            do_bench(lambda: big.add_(1), quantiles=[0.5, 0.2]),
            do_bench(lambda: small.add_(1), return_mode="median"),
            triton.runtime.driver.active.get_benchmarker()(lambda: big.add_(1)),
        ]
        times = do_bench(backward, grad_to_none=[grown], return_mode="all")
        assert len(times) == len(calls) - 1
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        big.add_(1)  # the host is ahead of the device
        begin.record()
        big.add_(1)
        end.record()
        torch.cuda.synchronize()
        return [*found, begin.elapsed_time(end)]

    ((mean, least, (half, fifth), small, by_driver, alone),) = on_ranks(worker, data=data)
    assert mean == pytest.approx(alone, rel=1e-3)
    assert mean == pytest.approx(least) == pytest.approx(half) == pytest.approx(fifth)
    assert by_driver == pytest.approx(mean)
    assert 0 < small < 0.01 < mean  # 512 MiB at 4.8 TB/s take 0.1 ms


def test_do_bench_of_a_kernel_and_outside_of_ranks() -> None:
    def worker(_: int) -> float:
        x = torch.rand(1000, device="cuda")
        out = torch.empty_like(x)
        time: float = triton.testing.do_bench(lambda: add[(8,)](x, x, out, 1000, BLOCK=128))
        assert torch.allclose(out, x * x * 2 + x)
        return time

    (found,) = on_ranks(worker)
    assert 0.0005 < found < 1
    with pytest.raises(RuntimeError):
        triton.testing.do_bench(lambda: None)  # this computer has no GPU
