"""With the shadow dial, whatever a cache answers wrongly is found; nothing else changes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import caches, tl
from kernbench.ccl.model import Kept, kept_of
from kernbench.ccl.prepared import CollectiveShape, Prepared
from kernbench.cli.failures import Exit, failed
from kernbench.report import dump_records
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.sim_engine.shadow import ShadowError, compare
from kernbench.tl.recording import Recording

RING = ("defaults.algorithm=ring_allreduce_tcm",)
"""Its ranks go in step, so that arrays time them, and so that their patterns are kept."""


@tl.jit
def scale(x: tl.Pointer, y: tl.Pointer, factor: float, n: int, block: tl.constexpr) -> None:
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    mask = offsets < n
    tl.store(y + offsets, tl.load(x + offsets, mask=mask, other=0.0) * factor, mask=mask)


def worker(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.arange(300, device="cuda") * 1.5 + rank
    for _ in range(2):
        dist.all_reduce(x)
    y = torch.empty_like(x)
    scale[(4,)](x, y, 0.5, 300, 128)
    scale[(4,)](y, y, 3.0, 300, 128)
    torch.cuda.synchronize()


def run(*, shadow: bool, data: bool = True) -> list[str]:
    spec = RunSpec(record="full", shadow=shadow, data=data, overrides=RING)
    with RuntimeContext(spec) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=4)
    return list(dump_records(ctx.engine.op_log))


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    caches.clear()
    yield
    caches.clear()


@pytest.mark.parametrize("data", [True, False])
def test_looking_again_changes_nothing(data: bool) -> None:
    expected = run(shadow=False, data=data)
    for _ in range(2):
        assert run(shadow=True, data=data) == expected


def _found(part: str) -> None:
    run(shadow=False)  # nobody looks
    with pytest.raises((ShadowError, SpawnException)) as caught:
        run(shadow=True)
    error = caught.value
    errors = error.errors.values() if isinstance(error, SpawnException) else [error]
    assert any(isinstance(error, ShadowError) and part in str(error) for error in errors), errors
    assert failed(caught.value) == Exit.INTERNAL


def test_a_wrong_time_of_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, timings = kept_of(RuntimeContext().engine.topology), []
    asked = kept.together

    def ask(*arguments: Any) -> Any:
        timings.append(asked(*arguments))
        return timings[-1]

    with monkeypatch.context() as patch:
        patch.setattr(kept, "together", ask)
        run(shadow=False)
    for ends, _ in timings:
        ends[2] += 1
    _found("picoseconds at which ranks are done, at once, for 'all_reduce of 4 ranks, channel 0")


def test_a_wrong_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Prepared] = []
    prepare = Kept.prepare

    def remember(kept: Kept, shape: CollectiveShape) -> Prepared:
        made.append(prepare(kept, shape))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Kept, "prepare", remember)
        run(shadow=False)
    for prepared in made:
        prepared.start_ups[1] += 1000
    _found("start-ups of a collective, by rank, for CollectiveShape(")


def _recordings(change: Callable[[Recording], Recording]) -> None:
    run(shadow=False)
    recordings = RuntimeContext().recordings
    assert recordings
    for key, recording in recordings.items():
        recordings[key] = change(recording)


def test_a_wrong_duration_of_a_launch() -> None:
    _recordings(lambda one: replace(one, duration=(one.duration or 0) + 1))
    _found("picoseconds of a launch of scale, for 'grid (4,), x float32 (300,)")


def test_wrong_bytes_of_a_launch() -> None:
    def wrong(one: Recording) -> Recording:
        assert one.calls is not None
        constants = [0.25 if each == 0.5 else each for each in one.calls.constants]
        return replace(one, calls=replace(one.calls, constants=constants))

    _recordings(wrong)
    _found("of y after a launch of scale, for 'grid (4,), x float32 (300,)")


def test_both_values_are_told() -> None:
    compare("sum", (1, 2), 3, 3)
    with pytest.raises(ShadowError) as caught:
        compare("sum", (1, 2), 4, 3)
    assert str(caught.value) == (
        "sum, for (1, 2): expected 3 as found the slow way, got 4 as it was kept"
    )
