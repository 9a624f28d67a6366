"""`time` in programs of PyTorch: simulated for the program and `timeit`, real for libraries."""

import queue
import time
import timeit

import pytest
from bridge_devices import on_ranks

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_a_program_measures_what_its_events_measure() -> None:
    def measured(_: int) -> tuple[float, float]:
        x = torch.ones(4096, 4096, device="cuda")
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start = time.perf_counter()
        begin.record()
        for _ in range(20):
            x @ x
        end.record()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3, begin.elapsed_time(end)

    ((host_ms, device_ms),) = on_ranks(measured, data=False)
    assert device_ms > 1
    assert host_ms == pytest.approx(device_ms, rel=0.05)


def test_timeit_and_the_timer_of_pytorch_measure_simulated_time() -> None:
    """One product of 4096^3 in float32 takes some milliseconds; to issue it takes far less."""
    from torch.utils import benchmark

    def measured(_: int) -> list[float]:
        x = torch.ones(4096, 4096, device="cuda")
        torch.cuda.synchronize()

        def product() -> None:
            x @ x
            torch.cuda.synchronize()

        begin = time.perf_counter()
        product()
        own = time.perf_counter() - begin
        begin = timeit.default_timer()
        product()
        return [
            own,
            timeit.default_timer() - begin,
            timeit.timeit(product, number=2) / 2,
            timeit.repeat("product()", repeat=1, number=2, globals={"product": product})[0] / 2,
            benchmark.Timer("x @ x", globals={"x": x}).timeit(10).mean,
        ]

    (seconds,) = on_ranks(measured, data=False)
    assert seconds[0] > 1e-3
    assert seconds == pytest.approx([seconds[0]] * 5, rel=0.02)
    assert timeit.default_timer is time.perf_counter


def test_a_rank_sleeps_in_simulated_time_and_others_go_on() -> None:
    written: list[str] = []

    def sleeps(rank: int) -> tuple[int, int, float]:
        first = time.monotonic_ns(), time.time_ns(), time.time()
        if rank == 0:
            time.sleep(3600)
        written.append(f"rank {rank}")
        last = time.monotonic_ns(), time.time_ns(), time.time()
        return last[0] - first[0], last[1] - first[1], last[2] - first[2]

    assert on_ranks(sleeps, 2) == [(3600 * 10**9, 3600 * 10**9, 3600.0), (0, 0, 0.0)]
    assert written == ["rank 1", "rank 0"]


def test_libraries_and_code_outside_of_ranks_have_real_time() -> None:
    outside = time.perf_counter()

    def waits(_: int) -> bool:
        begin = time.perf_counter()
        with pytest.raises(queue.Empty):
            queue.Queue[int]().get(timeout=0.001)
        with pytest.raises(ValueError, match="non-negative"):
            time.sleep(-1)
        return time.perf_counter() == begin

    assert on_ranks(waits) == [True]
    assert time.perf_counter() > outside
