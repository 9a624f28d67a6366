"""Kernels of Triton, compiled by Triton, on simulated devices."""

import os
import runpy
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bridge_devices import in_main, on_ranks

from kernbench import caches
from kernbench.errors import KernbenchError, UsageError
from kernbench.ranks import watchdog
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.triton.registering import _known_by_its_files

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton.language")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
import launched_kernels as kernels  # noqa: E402 - after the check that Triton is there
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.runtime import _allocation  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

dist: Any = torch.distributed


def alone(work: Any, **options: Any) -> Any:
    """Runs a function as the only rank, and returns what it returns."""
    (found,) = on_ranks(lambda _: work(), **options)
    return found


def test_a_kernel_gives_what_pytorch_gives_and_takes_time() -> None:
    def work() -> tuple[float, float, float]:
        x, y = torch.rand(1000, device="cuda"), torch.rand(1000, device="cuda")
        out = torch.empty_like(x)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
        kernels.add[grid](x, y, out, 1000, BLOCK=128)
        end.record()
        given = torch.randn(3, 100, dtype=torch.bfloat16, device="cuda")
        soft = torch.empty(3, 100, device="cuda")
        kernels.rows[(3,)](soft, given, given.stride(0), 100, tl.float32, BLOCK=128, num_warps=2)
        torch.cuda.synchronize()
        return (
            (out - (x * x * 2 + y)).abs().max().item(),
            (soft - torch.softmax(given.float(), 1)).abs().max().item(),
            begin.elapsed_time(end),
        )

    first, second, milliseconds = alone(work)
    assert first < 1e-6
    assert second < 1e-6
    assert 0.001 < milliseconds < 1


def test_a_kernel_takes_the_same_time_without_numbers() -> None:
    def work() -> float:
        x = torch.zeros(1000, device="cuda")
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        kernels.add[(8,)](x, x, x, 1000, BLOCK=128)
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end))

    assert alone(work) == alone(work, data=False)


def test_what_a_kernel_has_written_may_be_sent() -> None:
    def sent(rank: int) -> list[float]:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        x = torch.empty(4, device="cuda")
        kernels.counts[(2,)](x, BLOCK=2)
        dist.all_reduce(x)
        kernels.adds_one[(1,)](x, 3, BLOCK=4)
        found: list[float] = x.tolist()
        return found

    assert on_ranks(sent, 2) == [[5.0, 5.0, 5.0, 4.0]] * 2


@pytest.mark.parametrize("flag", [True, False])
def test_arguments_of_all_kinds_arrive(flag: bool) -> None:
    def work() -> float:
        held = torch.arange(10, device="cuda", dtype=torch.int16)
        out = torch.zeros(1, device="cuda", dtype=torch.float64)
        pair = held[7:], 3
        kernels.takes_all[(1,)](out, pair, None, flag, 1, 1 << 40, 0.5, 0.1, -5, 1e-300, "plain")
        return float(out.item())

    half = 0.0999755859375  # 0.1 as float16
    # Triton rounds to float32 what is no number of fp64: 0.5 is one; `extent` may be a constant.
    assert alone(work) == 7 + 3 + 1 + (1 << 40) - 5 + (0.5 if flag else 0) + half


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int8,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int64,
    ],
    ids=str,
)
def test_tensors_of_all_types_and_views_of_them_are_given(dtype: Any) -> None:
    def work() -> Any:
        base = torch.arange(12, dtype=torch.float32, device="cuda").to(dtype)
        kernels.adds_one[(1,)](base[5:], 3, BLOCK=8)
        return base.cpu().to(torch.float64)

    # An 8-bit float with two bits after the point holds 8 and 10, not 9.
    expected = torch.tensor([0, 1, 2, 3, 4, 6, 7, 8, 8, 9, 10, 11.0]).to(dtype).to(torch.float64)
    assert torch.equal(alone(work), expected)


def test_a_descriptor_of_the_host_reads_zeros_outside_of_the_tensor() -> None:
    def work() -> Any:
        given = torch.arange(24, dtype=torch.float32, device="cuda").reshape(6, 4)
        out = torch.full((8, 4), -1.0, device="cuda")
        kernels.of_descriptor[(2,)](TensorDescriptor.from_tensor(given, [4, 4]), out, 4, 4)
        return out.cpu(), given.cpu()

    out, given = alone(work)
    assert torch.equal(out[:6], given * 2)
    assert (out[6:] == 0).all()


class Part:
    """A program's own kind of tensor: the elements of another one from a place on."""

    def __init__(self, of: Any, place: int) -> None:
        self.dtype = of.dtype
        self._address: int = of.data_ptr() + place * of.element_size()

    def data_ptr(self) -> int:
        return self._address


@pytest.mark.parametrize("data", [True, False])
def test_what_knows_an_address_is_given_as_a_tensor_is(data: bool) -> None:
    def work() -> Any:
        x = torch.zeros(8, device="cuda")
        kernels.adds_one[(1,)](Part(x, 3 if data else 0), 2, BLOCK=4)
        with pytest.raises(KernbenchError, match="argument x is no tensor's address"):
            kernels.adds_one[(1,)](Part(torch.zeros(8), 0), 2, BLOCK=4)
        return x.tolist() if data else None

    assert alone(work, data=data) == ([0, 0, 0, 1, 1, 0, 0, 0] if data else None)


def test_a_kernel_follows_addresses_that_it_loads() -> None:
    def work() -> float:
        parts = [torch.full((1,), 2.0**n, device="cuda") for n in range(4)]
        addresses = torch.tensor([part.data_ptr() for part in parts], device="cuda")
        out = torch.zeros(1, device="cuda")
        kernels.by_addresses[(1,)](addresses, out, 4)
        return float(out.item())

    assert alone(work) == 15


def test_a_grid_without_programs_launches_nothing() -> None:
    def work() -> float:
        x = torch.zeros(4, device="cuda")
        kernels.adds_one[(0,)](x, 4, BLOCK=4)
        kernels.adds_one[(1, 0)](x, 4, BLOCK=4)
        return float(x.sum().item())

    assert alone(work) == 0


def test_what_a_kernel_prints_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    alone(lambda: kernels.says[(1,)](torch.full((2,), 7, device="cuda")))
    assert capsys.readouterr().out == "pid (0, 0, 0) idx () value: 7\n"


def _settled(configs: Any, **options: Any) -> Any:
    return triton.autotune(configs, key=["n"], **options)(kernels.adds_one)


def test_autotune_chooses_by_simulated_time_and_restores_what_it_has_changed() -> None:
    blocks = [triton.Config({"BLOCK": size}) for size in (16, 1024)]
    tuned = _settled(blocks, restore_value=["x"])

    def work() -> tuple[float, list[float]]:
        x = torch.zeros(1000, device="cuda")
        tuned[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, 1000)
        return float(x.max().item()), [times[0] for times in tuned.configs_timings.values()]

    most, times = alone(work)
    assert most == 1
    assert len(times) == 2
    assert all(0.001 < each < 1 for each in times)


def test_heuristics_warmup_and_hooks_are_tritons() -> None:
    sized = triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["n"])})(
        kernels.adds_one
    )
    told: list[Any] = []

    def work() -> tuple[float, bool]:
        x = torch.zeros(100, device="cuda")
        compiled = kernels.adds_one.warmup(x, 100, BLOCK=32, grid=(4,))
        with triton.knobs.runtime.scope():
            triton.knobs.runtime.launch_enter_hook = lambda meta: told.append(meta.get()["name"])
            sized[(1,)](x, 100)
        return float(x.sum().item()), "tt.store" in compiled.asm["ttir"]

    assert alone(work) == (100, True)
    assert told == ["adds_one"]


def test_machine_code_is_made_when_a_program_asks_for_it() -> None:
    def work() -> tuple[Any, ...]:
        x = torch.zeros(1024, device="cuda")
        kernel = kernels.rows[(1,)](x, x, 0, 1024, tl.float32, BLOCK=1024)
        stages = set(kernel.asm)
        shared, registers = kernel.metadata.shared, kernel.n_regs
        return (
            stages,
            shared,
            registers,
            kernel.n_spills,
            ".visible .entry rows" in kernel.asm["ptx"],
        )

    stages, shared, registers, spilled, entered = alone(work)
    assert "ptx" not in stages
    assert shared == 4 * 4  # a sum of each of the 4 warps
    assert 8 <= registers <= 255
    assert spilled == 0
    assert entered


def test_a_kernel_may_come_from_a_file_of_tritons_ir(tmp_path: Path) -> None:
    def work() -> Any:
        x = torch.arange(6.0, device="cuda")
        kernel = kernels.adds_one.warmup(x, 5, BLOCK=8, grid=(1,))
        for stage in ("ttir", "ttgir"):
            (tmp_path / f"kernel.{stage}").write_text(kernel.asm[stage])
        triton.compile(str(tmp_path / "kernel.ttir"))[(1, 1, 1)](x, 5)
        with pytest.raises(KernbenchError, match=r"Triton's later IR is not simulated"):
            triton.compile(str(tmp_path / "kernel.ttgir"))
        return x.tolist()

    assert alone(work) == [1, 2, 3, 4, 5, 5]


def out_of_bounds() -> None:
    x = torch.zeros(100, device="cuda")
    kernels.add[(2,)](x, x, x, 200, BLOCK=128)  # launched


def on_the_host() -> None:
    kernels.adds_one[(1,)](torch.zeros(4), 4, BLOCK=4)  # launched


def without_memory() -> None:
    kernels.adds_one[(1,)](torch.zeros(4, device="meta"), 4, BLOCK=4)  # launched


def pinned() -> None:
    kernels.adds_one[(1,)](torch.zeros(4).pin_memory(), 4, BLOCK=4)  # launched


def of_assembler() -> None:
    kernels.of_unknown_assembler[(1,)](torch.zeros(4, device="cuda"), BLOCK=4)  # launched


def does_not_compile() -> None:
    kernels.refused_by_triton[(1,)](torch.zeros(64, device="cuda"))  # launched


def too_many() -> None:
    kernels.adds_one[(1, 1 << 16)](torch.zeros(4, device="cuda"), 4, BLOCK=4)  # launched


def reads_unwritten() -> None:
    x = torch.empty(8, device="cuda")
    kernels.counts[(2,)](x, BLOCK=2)
    kernels.adds_one[(1,)](x, 4, BLOCK=8)  # of what is written
    kernels.adds_one[(1,)](x, 5, BLOCK=8)  # launched


def host_reads_unwritten() -> None:
    x = torch.empty(8, device="cuda")
    kernels.counts[(2,)](x, BLOCK=2)  # launched
    x.tolist()


def shares_elements() -> None:
    x = torch.ones(6, device="cuda")
    kernels.rows[(2,)](x, x, 2, 4, tl.float32, BLOCK=4)  # launched


def no_whole_extent() -> None:
    kernels.adds_one[(2.0,)](torch.zeros(4, device="cuda"), 4, BLOCK=4)  # launched


def on_another_stream() -> None:
    x = torch.zeros(4, device="cuda")
    compiled = kernels.adds_one.warmup(x, 4, BLOCK=4, grid=(1,))
    compiled[(1, 1, 1)](x, 4, 4)
    stream = torch.cuda.Stream().cuda_stream
    compiled[(1, 1, 1)](x, 4, 4, stream=stream)  # launched


def measured_in_no_way() -> None:
    triton.testing.do_bench(lambda: None, return_mode="mode")  # launched


def of_four_axes() -> None:
    x = torch.zeros(4, device="cuda")
    kernels.adds_one[(1, 1, 1, 1)](x, 4, BLOCK=4)  # launched


def without_allocator() -> None:
    x = torch.zeros(16, 16, device="cuda")
    kernels.makes_a_descriptor[(1,)](x, x, M=16, N=16)  # launched


def test_an_allocator_lets_programs_make_descriptors() -> None:
    def work() -> float:
        given, out = torch.ones(16, 16, device="cuda"), torch.zeros(16, 16, device="cuda")
        allocate = _allocation._allocator.set(lambda size, align, stream: None)
        try:
            kernels.makes_a_descriptor[(1,)](given, out, M=16, N=16)
        finally:
            _allocation._allocator.reset(allocate)
        return float(out.sum())

    assert alone(work) == 256


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (on_another_stream, "kernel adds_one on a stream that is not the current one, is not"),
        (measured_in_no_way, "return_mode is one of min, max, mean, median, all; got 'mode'"),
        (out_of_bounds, "[M1] tl.load out of bounds of argument x_ptr, a tensor of 100 float32"),
        (on_the_host, "[K3] kernel adds_one: argument x is a tensor of the host"),
        (without_memory, "[K3] kernel adds_one: argument x is a tensor of the device meta"),
        (pinned, "kernel adds_one on argument x, pinned memory of the host, is not"),
        (of_assembler, "bogus"),
        (does_not_compile, "arange's range must be a power of 2"),
        (too_many, "[K1] kernel adds_one: a grid of (1, 65536, 1) is larger than a device"),
        (
            reads_unwritten,
            "[M5] tl.load reads what nothing has written of argument x, a tensor of 8",
        ),
        (host_reads_unwritten, "[M5] 4 of 8 elements of tensor [8] torch.float32"),
        (shares_elements, "[M12] program (0, 0, 0) and program (1, 0, 0) of rows touch the same"),
        (of_four_axes, "[K1] kernel adds_one: a grid has one to three extents; got (1, 1, 1, 1)"),
        (without_allocator, "Kernel requires a runtime memory allocation, but no allocator was"),
        (no_whole_extent, "[K1] kernel adds_one: extents of a grid are whole numbers"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_kernel_may_not_do_is_told_with_the_programs_line(work: Any, said: str) -> None:
    with pytest.raises((SpawnException, KernbenchError)) as failed:
        alone(work)
    text = str(failed.value)
    assert said in text
    assert "# launched" in text
    assert "site-packages" not in text


def test_a_mistake_in_a_copy_of_a_program_is_told_with_the_copys_line(tmp_path: Path) -> None:
    source = (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        f"def beyond(x):\n    tl.store(x + 4, 1.0)  # {tmp_path}\n"  # compiled in no run before
    )

    def told(file: Path) -> str:
        file.parent.mkdir()
        file.write_text(source)
        beyond = runpy.run_path(str(file))["beyond"]
        with pytest.raises((SpawnException, KernbenchError)) as failed:
            alone(lambda: beyond[(1,)](torch.zeros(4, device="cuda")))
        return str(failed.value)

    for file in (tmp_path / "first" / "a.py", tmp_path / "été" / "b.py"):
        text = told(file)
        assert f"{file.parent.name}/{file.name}:7:5: tl.store(x + 4, 1.0)" in text


def test_a_pe_has_the_shared_memory_of_its_machine() -> None:
    def work() -> dict[str, int]:
        utilities = triton.runtime.driver.active.utils
        return dict(utilities.get_device_properties(0))

    expected = {"max_num_regs": 65536, "warpSize": 32}  # CUDA C++ Programming Guide: 227, 163 KiB
    assert alone(work) == expected | {"max_shared_mem": 232448, "multiprocessor_count": 132}
    of_a100 = in_main(work, machine="a100x8")
    assert of_a100 == expected | {"max_shared_mem": 166912, "multiprocessor_count": 108}


def test_the_tensor_of_another_rank_is_refused() -> None:
    given: list[Any] = []

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        if not rank:
            given.append(torch.zeros(4, device="cuda"))
        dist.barrier(device_ids=[rank])
        if rank:
            kernels.adds_one[(1,)](given[0], 4, BLOCK=4)

    with pytest.raises(SpawnException, match="M14"):
        on_ranks(worker, 2)


@pytest.mark.parametrize("data", [True, False])
def test_do_bench_measures_simulated_time(data: bool) -> None:
    def work() -> Any:
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
            triton.testing.do_bench_cudagraph(lambda: big.add_(1)),
            triton.testing.do_bench_cudagraph(lambda: small.add_(1)),
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

    found = alone(work, data=data)
    mean, least, (half, fifth), small, by_driver, by_graph, small_in_graph, own = found
    assert mean == pytest.approx(own, rel=1e-3)
    assert mean == pytest.approx(least) == pytest.approx(half) == pytest.approx(fifth)
    assert by_driver == pytest.approx(mean)
    # In a graph of many calls nobody waits for an event, which takes as long for any kernel.
    assert 0 < small_in_graph < 0.5 * small
    assert mean - by_graph == pytest.approx(small - small_in_graph, rel=1e-6)
    assert 0 < small < 0.01 < mean  # 512 MiB at 4.8 TB/s take 0.1 ms


def test_a_plain_script_launches_on_the_first_device() -> None:
    def work() -> float:
        x = torch.zeros(4, device="cuda")
        kernels.adds_one[(1,)](x, 4, BLOCK=4)
        return float(x.sum().item())

    assert in_main(work) == 4


def test_the_cache_on_disk_knows_triton_by_sizes_and_times_of_its_files(tmp_path: Path) -> None:
    for folder, name in (("runtime", "cache.py"), ("compiler", "code.py"), ("_C", "libtriton.so")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text("first")
    module: Any = ModuleType("cache")
    module.__file__ = str(tmp_path / "runtime" / "cache.py")

    def key() -> str:
        caches.clear()  # of a process of its own
        (patch,) = _known_by_its_files(module)
        return str(patch.value())

    library, first = tmp_path / "_C" / "libtriton.so", key()
    assert key() == first
    library.write_text("longer")
    longer = key()
    os.utime(library, ns=(0, 0))
    assert len({first, longer, key()}) == 3


def test_after_a_run_triton_is_as_before() -> None:
    from triton.backends import backends
    from triton.runtime.driver import driver

    before = dict(backends), driver._active, triton.testing.do_bench
    x: list[Any] = []

    def work() -> None:
        assert driver.active.get_active_torch_device().type == "cuda"
        x.append(torch.zeros(4, device="cuda"))
        kernels.adds_one[(1,)](x[0], 4, BLOCK=4)

    alone(work)
    assert (dict(backends), driver._active, triton.testing.do_bench) == before
    with pytest.raises(RuntimeError, match="active drivers"):
        kernels.adds_one[(1,)](x[0], 4, BLOCK=4)


def test_a_run_beside_a_real_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.driver import driver

    monkeypatch.setattr(driver, "_active", partial)
    with pytest.raises(UsageError, match="already runs kernels"):
        alone(lambda: None)


def test_names_of_triton_are_there_and_the_ones_that_are_missing_are_told() -> None:
    from kernbench.triton.versions import NAMES, check_names

    modules = {name: __import__(name, fromlist=["*"]) for name in NAMES}
    check_names(triton.__version__, modules)
    with pytest.raises(UsageError, match=r"missing: triton.testing._summarize_statistics"):
        check_names("3.99.0", {"triton.testing": sys.modules["json"]})
    with pytest.raises(UsageError, match=r"Triton 3.5.1 is installed"):
        check_names("3.5.1", {})


@pytest.mark.parametrize("data", [True, False])
def test_a_loop_that_never_ends_is_stopped_with_its_line(
    data: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sooner(limit: float) -> Any:
        assert limit == watchdog.SECONDS
        return watchdog.patience(0.2)

    monkeypatch.setattr("kernbench.triton.launches.patience", sooner)
    with pytest.raises(SpawnException) as caught:
        alone(lambda: kernels.never_ends[(1,)](torch.zeros(1, device="cuda")), data=data)
    (error,) = caught.value.errors.values()
    assert "[K5] program (0, 0, 0) of never_ends goes on and on in a loop, 0.2 s" in str(error)
    assert "while i >= 0:" in str(error)
