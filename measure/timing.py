"""How a call on a GPU is timed: caches flushed, the host ahead of the device, events, medians.

Plain PyTorch: this folder is copied to a host that has GPUs and no kernbench.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[], Any]

FLUSHED_BYTES = 1 << 28
WARM_UP = 3
BUDGET_US = 20_000.0


def seconds() -> float:
    """Returns the wall clock: this folder measures, and simulates nothing."""
    return time.perf_counter()


class Timer:
    """Times calls on one device.

    On `cpu` every call is timed by the wall clock, so that the tables can be tried without a GPU;
    the numbers are then of no use.

    Args:
        device: `cuda:3`, or `cpu`.
        quick: Repeats once and waits for nothing, to try the tables.
    """

    def __init__(self, device: str, *, quick: bool = False) -> None:
        self.device, self.quick = torch.device(device), quick
        self.gpu = self.device.type == "cuda"
        self._scratch = torch.empty(FLUSHED_BYTES if self.gpu else 1, device=device).byte()
        self._cycles = 1e3
        if self.gpu:
            self._warm()

    def _warm(self) -> None:
        """Lets the clocks rise, and finds how many cycles of the spin kernel are a microsecond."""
        a = torch.randn(4096, 4096, device=self.device, dtype=torch.float16)
        begin = seconds()
        while seconds() - begin < (0.1 if self.quick else 1.0):
            a @ a
            self.wait()
        for _ in range(2):
            took = self._events(lambda: torch.cuda._sleep(10_000_000))
        self._cycles = 10_000_000 / took

    def wait(self) -> None:
        """Waits for the device."""
        if self.gpu:
            torch.cuda.synchronize(self.device)

    def spin(self, us: float) -> None:
        """Keeps the device busy, so that the host runs ahead of it."""
        if self.gpu:
            torch.cuda._sleep(int(us * self._cycles))

    def flush(self) -> None:
        """Writes more than the L2 cache holds."""
        self._scratch.zero_()

    def _events(self, call: Call, *, spin_us: float = 0, flush: bool = False) -> float:
        if not self.gpu:
            begin = seconds()
            call()
            return 1e6 * (seconds() - begin)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if flush:
            self.flush()
        if spin_us:
            self.spin(spin_us)
        first.record()
        call()
        last.record()
        last.synchronize()
        return 1e3 * first.elapsed_time(last)

    def host_us(self, call: Call) -> float:
        """Returns how long the host takes to enqueue a call on an idle device."""
        self.wait()
        begin = seconds()
        call()
        return 1e6 * (seconds() - begin)

    def us(self, call: Call, *, flush: bool = True, spin_us: float = 150, least: int = 7) -> float:
        """Returns the median time of a call on the device, in microseconds, an event pair included.

        Args:
            call: Enqueues the work.
            flush: Writes over the L2 cache before every repeat.
            spin_us: Least time of the spin kernel before the call; a slow host gets more.
            least: Least repeats; short calls are repeated up to 60 times.
        """
        if self.quick or not self.gpu:
            return self._events(call)
        host = max(self.host_us(call) for _ in range(WARM_UP)) if WARM_UP else 0.0
        host = min(host, self.host_us(call))
        spin = max(spin_us, 2 * host)
        once = self._events(call, spin_us=spin, flush=flush)
        repeats = max(
            3 if once > BUDGET_US else least, min(60, int(BUDGET_US / (once + spin + 80)))
        )
        return statistics.median(
            self._events(call, spin_us=spin, flush=flush) for _ in range(repeats)
        )

    def eager(self, call: Call, calls: int = 200) -> float:
        """Returns the mean time of a call on the device, the host not ahead of it."""

        def all_of_them() -> None:
            for _ in range(calls):
                call()

        return statistics.median(
            self._events(all_of_them) / calls for _ in range(1 if self.quick else 10)
        )

    def together(self, calls: Sequence[Call]) -> float:
        """Returns the mean time of a call among others back to back, in microseconds."""

        def all_of_them() -> None:
            for call in calls:
                call()

        return self.us(all_of_them, flush=False, spin_us=20 * len(calls)) / len(calls)

    def graph(self, call: Call, calls: int = 20) -> tuple[float, float]:
        """Returns median and least time of a call replayed from a CUDA graph of so many."""
        if not self.gpu:
            return (self._events(call),) * 2
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(calls):
                call()
        graph.replay()
        repeats = 2 if self.quick else 20
        found = [self._events(graph.replay, spin_us=100) / calls for _ in range(repeats)]
        return statistics.median(found), min(found)

    def kernels(self, calls: Sequence[Call], repeats: int = 3) -> list[float]:
        """Returns the time of the kernels of each call, by the profiler, in microseconds.

        Between the calls a spin kernel runs, by which the kernels of a profile are told apart.

        Raises:
            RuntimeError: The profiler reports no kernels, as where CUPTI may not be used.
        """
        if not self.gpu:
            return [self._events(call) for call in calls]
        for call in calls:
            call()
        self.wait()
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            for call in calls:
                for _ in range(repeats):
                    self.flush()
                    torch.cuda._sleep(1000)
                    call()
                    torch.cuda._sleep(1000)
                    self.wait()
        found: list[list[float]] = [[]]
        device = [
            each for each in profile.events() if each.device_type == torch.autograd.DeviceType.CUDA
        ]
        device.sort(key=lambda each: each.time_range.start)
        for each in device:
            if "spin_kernel" in each.name:
                found.append([])
            else:
                found[-1].append(each.time_range.end - each.time_range.start)
        if len(found) != 2 * repeats * len(calls) + 1:
            raise RuntimeError("the profiler has not seen the kernels: it may lack permission")
        sums = [sum(each) for each in found[1::2]]
        return [statistics.median(sums[at : at + repeats]) for at in range(0, len(sums), repeats)]
