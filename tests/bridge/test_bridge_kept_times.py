"""What is kept of an operation fits only operands that are alike."""

from collections.abc import Callable

import pytest
from bridge_devices import on_ranks

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


def _device_ps(calls: dict[str, Callable[[], object]]) -> dict[str, int]:
    """Returns how long the device takes for each call, one after the other, in picoseconds."""
    from kernbench.process.process import current_process

    process = current_process()
    found = {}
    for name, call in calls.items():
        torch.cuda.synchronize()
        call()
        before = process.host.clock
        torch.cuda.synchronize()
        found[name] = process.host.clock - before
    return found


def _on_one_rank(worker: Callable[[], None]) -> None:
    from kernbench.bridge import bridged
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.sim_engine.engine import GraphEngine
    from kernbench.topology import load_topology

    topology = load_topology("h200x8").topology_obj
    engine = GraphEngine(topology, enable_data=False, moves_at_call=True)
    with RuntimeContext(engine=engine, quiet=True), bridged(data=True):
        torch.multiprocessing.spawn(lambda _: worker(), nprocs=1)


def test_time_of_strided_operands_is_their_own_whichever_comes_first() -> None:
    def times() -> None:
        plain = torch.ones(2048, 2048, device="cuda")
        out = torch.empty_like(plain)
        calls = {
            "transposed": lambda: out.copy_(plain.t()),
            "copied": lambda: out.copy_(plain),
        }
        first = _device_ps(calls)
        assert _device_ps(dict(reversed(calls.items()))) == first
        assert first["transposed"] > first["copied"]

    _on_one_rank(times)


def test_result_that_a_view_may_copy_is_on_the_device() -> None:
    def copies() -> None:
        with torch.inference_mode():
            made = torch.ones(4, 8, device="cuda").t()
            assert made.contiguous().is_cuda
            assert made.reshape(32).is_cuda
            assert made.view(2, 4, 4).is_cuda

    _on_one_rank(copies)


@pytest.mark.parametrize("data", [True, False])
def test_a_switch_of_precision_changes_times_that_are_kept(data: bool) -> None:
    def times(_: int) -> list[float]:
        x, found = torch.ones(1024, 1024, device="cuda"), []
        for precision in ("highest", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            for _ in range(8):
                x @ x
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end))
        return found

    ((exact, fast, again),) = on_ranks(times, data=data)
    assert exact == pytest.approx(again, rel=0.05)
    assert fast < exact / 2


@pytest.mark.parametrize("data", [True, False])
def test_the_newer_switch_of_precision_counts_as_well(data: bool) -> None:
    def times(rank: int) -> list[int]:
        x = torch.ones(1024, 1024, device="cuda")
        found = []
        for precision in ("ieee", "tf32", "ieee"):
            if rank:  # the other rank's own switch stays as it is
                torch.backends.cuda.matmul.fp32_precision = precision
            torch.distributed.barrier(device_ids=[rank])
            torch.cuda.synchronize()
            found.append(_device_ps({"product": lambda: x @ x})["product"])
        return found

    def worker(rank: int) -> list[int]:
        torch.cuda.set_device(rank)
        torch.distributed.init_process_group(
            "nccl", rank=rank, world_size=2, init_method="tcp://x:1"
        )
        return times(rank)

    before = torch.backends.cuda.matmul.fp32_precision
    plain, switched = on_ranks(worker, 2, data=data)
    assert plain[0] == plain[1] == plain[2] == switched[0] == switched[2]
    assert switched[1] < plain[1] / 2
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_a_bool_is_no_number_though_they_are_equal() -> None:
    def times() -> None:
        truth = torch.ones(4096, 4096, device="cuda") > 0
        calls = {"whole": lambda: truth + 1, "truth": lambda: truth + True}
        first = _device_ps(calls)
        assert _device_ps(dict(reversed(calls.items()))) == first
        assert first["truth"] < first["whole"] / 2  # a byte is written in place of eight

    _on_one_rank(times)
