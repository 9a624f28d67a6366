"""What too few slots cost: the estimate is what a simulation shows."""

from collections.abc import Callable

import pytest

from kernbench.ccl.tuner import Choices
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology import Topology
from kernbench.units import PS_PER_S

RANKS, SIZES = 8, (16 << 20, 64 << 20)


def _rate(overrides: tuple[str, ...]) -> float:
    """Returns the simulated bytes a second of a rank to its neighbour, in a ring all-reduce."""
    times_ps: list[int] = []

    def worker(rank: int) -> None:
        dist = ctx.distributed
        dist.init_process_group("nccl")
        for nbytes in SIZES:
            x = ctx.empty(nbytes // 4)
            start, end = (ctx.cuda.Event(enable_timing=True) for _ in range(2))
            dist.barrier()
            start.record()
            dist.all_reduce(x)
            end.record()
            end.synchronize()
            if rank == 0:
                times_ps.append(round(start.elapsed_time(end) * 10**9))

    with RuntimeContext(RunSpec(overrides=overrides, data=False), quiet=True) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=RANKS)
    # 2 (N - 1) / N of the buffer leaves each rank.
    sent = (SIZES[1] - SIZES[0]) * 2 * (RANKS - 1) / RANKS
    return sent * PS_PER_S / (times_ps[1] - times_ps[0])


@pytest.mark.parametrize("latency", ["100 ns", "1 us", "5 us"])
@pytest.mark.parametrize(("n_slots", "slot_size"), [(2, 4096), (4, 4096), (4, 16384), (8, 32768)])
def test_a_limit_is_the_rate_of_a_simulation(
    topology: Callable[..., Topology], n_slots: int, slot_size: int, latency: str
) -> None:
    overrides = (
        "defaults.algorithm=ring",
        f"defaults.n_slots={n_slots}",
        f"defaults.slot_size={slot_size} B",
        f"system.sips.network.latency={latency}",
    )
    with RuntimeContext(RunSpec(overrides=overrides, data=False), quiet=True) as ctx:
        limit = ctx.choices.slot_limit("all_reduce", SIZES[1], range(RANKS))
        enough = ctx.choices.enough_slots("all_reduce", SIZES[1], range(RANKS))
    rate = _rate(overrides)
    if limit is None:
        assert rate == pytest.approx(50e9, rel=0.1)
        return
    assert limit.n_slots == n_slots
    assert limit.slot_size == slot_size
    assert limit.rate == pytest.approx(rate, rel=0.05)
    assert limit.unlimited == pytest.approx(50e9)
    if enough is not None:
        assert enough > slot_size
        larger = (*overrides, f"algorithms.ring.slot_size={enough} B")
        assert _rate(larger) == pytest.approx(50e9, rel=0.15)


def test_the_text_says_what_limits(topology: Callable[..., Topology]) -> None:
    machine = topology("sip8")
    named = Choices(None, ("defaults.algorithm=ring_allreduce_tcm",), machine)
    assert str(named.slot_limit("all_reduce", SIZES[1], range(RANKS))) == (
        "limited by 4 slots of 4 KiB (29.8 GB/s), not by the link (50 GB/s)"
    )
    assert named.enough_slots("all_reduce", SIZES[1], range(RANKS)) == 8192
    assert named.slot_limit("all_reduce", 0, range(RANKS)) is None


def test_the_default_is_not_limited_on_shipped_machines(
    topology: Callable[..., Topology],
) -> None:
    for name in ("sip8", "torus4x4", "h200x8"):
        machine = topology(name)
        sips = range(machine.world_size)
        assert Choices(None, (), machine).slot_limit("all_reduce", SIZES[1], sips) is None, name
