"""`torch.cuda` of a rank."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
from bridge_devices import in_main, machine, milliseconds, on_ranks

from kernbench.errors import KernbenchError, UnsupportedError

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
MIB = 1 << 20


def _one(worker: Callable[[], Any], **options: Any) -> Any:
    return on_ranks(lambda _: worker(), 1, **options)[0]


def test_every_name_of_torch_cuda_is_simulated_or_refused_by_name() -> None:
    from kernbench.bridge.cuda.cuda import FUNCTIONS
    from kernbench.bridge.operations import graphs

    of_classes = {"AcceleratorError", "CudaError", "DeferredCudaCallError", "OutOfMemoryError"}
    helpers = {"classproperty", "cudaStatus"}  # as is what PyTorch imports for itself
    left = {
        name
        for name, value in vars(torch.cuda).items()
        if not name.startswith("_")
        and callable(value)
        and not name.endswith(("Storage", "Tensor"))
        and getattr(value, "__module__", "torch").partition(".")[0] == "torch"
    }
    captured = {*graphs.FUNCTIONS, "make_graphed_callables"}  # the last is PyTorch's own
    assert left - set(FUNCTIONS) - captured == of_classes | helpers


@pytest.mark.parametrize(("base", "ours"), [("Stream", "Stream"), ("Event", "Event")])
def test_streams_and_events_have_every_name_of_pytorchs(base: str, ours: str) -> None:
    from kernbench.bridge.cuda import cuda

    for real in (getattr(torch, base), getattr(torch.cuda, base)):
        names = {name for name in dir(real) if not name.startswith("_")}
        assert names - {"priority"} <= set(dir(getattr(cuda, ours)))  # which each stream has


def test_programs_find_cuda_before_and_in_ranks() -> None:
    with machine():
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 8
    assert not torch.cuda.is_available()

    def worker() -> Any:
        properties = torch.cuda.get_device_properties(0)
        return (
            properties.name,
            torch.cuda.get_device_capability(),
            torch.accelerator.current_accelerator().type,
            torch.get_device_module().__name__,
            torch.version.cuda is not None and torch.cuda.nccl.version() >= (2, 10),
        )

    before = torch.version.cuda
    assert _one(worker) == ("NVIDIA H200", (9, 0), "cuda", "torch.cuda", True)
    assert torch.version.cuda == before


def test_properties_are_those_of_the_gpu() -> None:
    """As NVIDIA's tuning guide for Hopper has them."""

    def worker() -> Any:
        found = torch.cuda.get_device_properties("cuda")
        return {name: getattr(found, name) for name in expected}

    expected = {
        "major": 9,
        "minor": 0,
        "multi_processor_count": 132,
        "warp_size": 32,
        "max_threads_per_multi_processor": 2048,
        "regs_per_multiprocessor": 64 << 10,
        "shared_memory_per_multiprocessor": 228 << 10,
        "shared_memory_per_block": 48 << 10,
        "shared_memory_per_block_optin": 227 << 10,
    }
    assert _one(worker) == expected


def test_events_measure_simulated_time() -> None:
    def worker() -> Any:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        side = torch.cuda.Stream(priority=-1)
        x = torch.ones(64 * MIB, device="cuda")
        torch.cuda.synchronize()
        start.record()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)
        torch.cuda.current_stream().wait_stream(side)
        end.record()
        assert isinstance(side, torch.Stream)
        assert isinstance(torch.Event("cuda"), torch.cuda.Event)
        before = end.query()
        end.synchronize()
        return before, end.query(), start.elapsed_time(end), side.priority

    before, after, milliseconds, priority = _one(worker)
    assert (before, after, priority) == (False, True, -1)
    # 512 MiB of traffic at 4.8 TB/s, the peak of an H200, take 0.11 ms.
    assert 0.11 < milliseconds < 0.3


def _slept(cycles: int) -> float:
    return milliseconds(lambda: torch.cuda._sleep(cycles))


@pytest.mark.parametrize("data", [True, False])
def test_a_device_sleeps_for_cycles_of_its_clock(data: bool) -> None:
    def worker() -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.cuda._sleep(10**6)
        with pytest.raises(TypeError, match="'float'"):
            torch.cuda._sleep(1.5)
        return [_slept(-1), _slept(10**6), milliseconds(graph.replay)]

    none, slept, replayed = _one(worker, data=data)
    assert none == pytest.approx(1.3e-3 + 4.2e-3)  # `launch` and `event` of h200x8
    assert slept == replayed == pytest.approx(none + 10**6 / 1.98e9 * 1e3)


def test_a_stream_that_sleeps_holds_up_no_other() -> None:
    def worker() -> Any:
        side, x = torch.cuda.Stream(), torch.empty(64 * MIB, device="cuda")

        def both() -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(10**7)
            for _ in range(10):
                x.zero_()
            torch.cuda.current_stream().wait_stream(side)

        return _slept(10**7), milliseconds(both)

    alone, both = _one(worker)
    assert both == alone


def test_a_machine_without_a_clock_does_not_sleep() -> None:
    with pytest.raises(
        UnsupportedError, match=r"_sleep on sip8, whose file gives no clock, is"
    ) as raised:
        in_main(lambda: torch.cuda._sleep(100), "sip8")
    assert "hint: give system.sip.clock, such as --set system.sip.clock='1.98 GHz'" in str(
        raised.value
    )


def test_memory_is_that_of_the_simulated_device() -> None:
    def worker() -> Any:
        x = torch.ones(MIB, device="cuda")
        free, total = torch.cuda.mem_get_info()
        y = torch.ones(MIB, device="cuda")
        del y
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        stats = torch.cuda.memory_stats()
        assert stats["allocated_bytes.all.peak"] == torch.cuda.memory_allocated() == x.nbytes
        assert torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"]
        assert "4 MiB" in torch.cuda.memory_summary()
        return total - free, peak

    assert _one(worker) == (4 * MIB, 8 * MIB)


def test_a_program_may_ask_about_every_device_of_its_node() -> None:
    def worker(rank: int) -> Any:
        import torch.distributed as dist

        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        x = torch.ones(MIB * (rank + 1), device="cuda")
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
        cuda, found = torch.cuda, []
        for index in range(cuda.device_count()):
            assert cuda.get_device_name(index) == "NVIDIA H200"
            assert cuda.get_device_capability(f"cuda:{index}") == (9, 0)
            assert cuda.get_device_properties(torch.device("cuda", index)).total_memory > 1 << 30
            assert "supported_dtypes" in torch.accelerator.get_device_capability(index)
            free, total = cuda.mem_get_info(index)
            assert torch.accelerator.get_memory_info(index) == (free, total)
            mine = cuda.memory_allocated(index)
            assert cuda.memory_stats(index)["allocated_bytes.all.current"] == mine
            assert cuda.max_memory_allocated(index) == cuda.max_memory_reserved(index)
            cuda.reset_peak_memory_stats(index)
            found.append((total - free >= 4 * MIB * (index + 1), mine >= x.nbytes, mine))
        for ask in (cuda.get_device_properties, cuda.get_device_name, cuda.mem_get_info):
            for index in (-1, cuda.device_count()):
                with pytest.raises(AssertionError, match="Invalid device id"):
                    ask(index)
        with pytest.raises(KernbenchError, match=f"rank {rank} has cuda:{rank}"):
            torch.ones(1, device=f"cuda:{1 - rank}")
        dist.all_reduce(torch.ones(1, device="cuda"))
        return found

    first, second = on_ranks(worker, 2)
    assert [used for used, _, _ in first[:2]] == [used for used, _, _ in second[:2]] == [True, True]
    for rank, found in enumerate((first, second)):
        assert [owned for _, owned, _ in found] == [index == rank for index in range(len(found))]
        assert all(mine == 0 for index, (_, _, mine) in enumerate(found) if index != rank)


def test_what_compiled_programs_call_of_cuda_is_there() -> None:
    def worker() -> list[Any]:
        from torch._C import _cuda_getCurrentRawStream as raw

        side = torch.cuda.Stream()
        with torch.cuda._DeviceGuard(1), torch.cuda.stream(side):
            inside = torch.cuda.current_device(), raw(0) == side.cuda_stream
        before = torch.cuda._exchange_device(2), torch.cuda._maybe_exchange_device(-1)
        now = torch.cuda.current_device()
        torch.cuda.set_device(0)
        made = torch._C._dynamo.guards._empty_strided_cuda((2, 3), (1, 2), torch.float16)
        return [inside, before, now, (str(made.device), made.stride())]

    assert _one(worker) == [(1, True), (0, 2), 2, ("cuda:0", (1, 2))]


@pytest.mark.parametrize("data", [True, False])
def test_a_full_device_raises_pytorchs_own_error_with_the_report(data: bool) -> None:
    def worker() -> Any:
        kept = torch.ones(8 * MIB, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory") as caught:
            torch.ones(1 << 39, dtype=torch.uint8, device="cuda")
        del kept
        return str(caught.value)

    text = _one(worker, data=data)
    assert text.startswith("[M7] CUDA out of memory. Tried to allocate 512 GiB on cuda:0 of rank 0")
    assert f"32 MiB tensor [8388608] torch.float32 at {__file__}" in text


def test_random_numbers_of_a_device_follow_from_seed_and_offset() -> None:
    def worker() -> Any:
        torch.cuda.manual_seed(5)
        state = torch.cuda.get_rng_state()
        first = torch.randn(6, device="cuda")
        offset = torch.cuda._get_rng_state_offset()
        with torch.random.fork_rng(devices=[0]):
            torch.manual_seed(9)
            torch.randn(3, device="cuda")
        second = torch.randn(6, device="cuda")
        torch.cuda.set_rng_state(state)
        again = torch.randn(6, device="cuda"), torch.randn(6, device="cuda")
        own = torch.randn(6, device="cuda", generator=torch.Generator("cuda").manual_seed(5))
        host = torch.default_generator.get_state()
        torch.rand(3, device="cuda")
        assert torch.equal(host, torch.default_generator.get_state())
        return state.tolist(), offset, [x.tolist() for x in (first, *again, second, own)]

    state, offset, (first, once, twice, second, own) = _one(worker)
    assert state == [5, *[0] * 15]
    assert offset == 8
    assert first == once == own != second
    assert second == twice


@pytest.mark.parametrize("data", [True, False])
def test_a_generator_of_another_device_is_refused_as_in_pytorch(data: bool) -> None:
    def worker(rank: int) -> None:
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
            torch.randn(3, device="cuda", generator=torch.Generator())
        with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
            torch.randn(3, generator=torch.Generator("cuda"))
        assert isinstance(torch.Generator("cuda"), torch.Generator)
        assert isinstance(torch.Generator(), torch.Generator)

    on_ranks(worker, data=data)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("MemPool", ()),
        ("ExternalStream", (0,)),
        ("memory_snapshot", ()),
        ("memory._record_memory_history", ()),
        ("set_per_process_memory_fraction", (0.5,)),
        ("utilization", ()),
    ],
)
def test_what_is_not_simulated_says_so(name: str, arguments: tuple[Any, ...]) -> None:
    def worker() -> Any:
        with pytest.raises(UnsupportedError, match=rf"torch\.cuda\.{name}.* is not simulated"):
            attrgetter(name)(torch.cuda)(*arguments)

    _one(worker)


@pytest.mark.parametrize("data", [True, False])
def test_dtensors_of_random_numbers_are_made(data: bool) -> None:
    def worker(rank: int) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, rand

        torch.cuda.set_device(rank)
        torch.distributed.init_process_group("nccl", rank=rank, world_size=2)
        mesh = init_device_mesh("cuda", (2,))
        torch.manual_seed(3)
        split = rand(8, device_mesh=mesh, placements=[Shard(0)])
        whole = rand(8, device_mesh=mesh, placements=[Replicate()])
        local = split.to_local(), whole.to_local()
        torch.distributed.destroy_process_group()
        return [one.tolist() for one in local] if data else [str(one.device) for one in local]

    (split, whole), (other, same) = on_ranks(worker, 2, data=data)
    if data:
        assert whole == same
        assert len(split) == 4
    assert split != other


@pytest.mark.parametrize("data", [True, False])
def test_a_dtensor_is_gathered_with_and_without_numbers(data: bool) -> None:
    def worker(rank: int) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        torch.cuda.set_device(rank)
        torch.distributed.init_process_group("nccl", rank=rank, world_size=2)
        mesh = init_device_mesh("cuda", (2,))
        split = distribute_tensor(torch.arange(4.0, device="cuda"), mesh, [Shard(0)])
        with torch.profiler.profile() as profiler:
            whole = split.full_tensor()
        assert whole.is_cuda
        assert not data or whole.tolist() == [0, 1, 2, 3]
        torch.distributed.destroy_process_group()
        return [row.count for row in profiler.key_averages() if row.key.startswith("all_gather")]

    assert on_ranks(worker, 2, data=data) == [[1], [1]]
