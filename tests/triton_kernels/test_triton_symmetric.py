"""Kernels of Triton that reach memory of other devices, and wait for each other inside."""

from typing import Any

import pytest
from bridge_devices import milliseconds, on_ranks

from kernbench.errors import UnsupportedError
from kernbench.ranks.spawn_errors import SpawnException

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton.language")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning")]
import launched_symmetric as kernels  # noqa: E402 - after the check that Triton is there

dist: Any = torch.distributed
LINK = 361_000_000_000
"""Bytes a second through the switch of h200x8."""


def begin(rank: int, ranks: int, size: int, dtype: Any = None) -> tuple[Any, Any]:
    """Returns symmetric memory of a rank, and its handle."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, init_method="tcp://x:1")
    import torch.distributed._symmetric_memory as symmetric

    mine = symmetric.empty(size, dtype=dtype or torch.float32, device="cuda")
    return mine, symmetric.rendezvous(mine, dist.group.WORLD)


def test_a_kernel_reads_all_devices_by_their_pointers_and_over_the_link() -> None:
    size = 1 << 20

    def work(rank: int) -> tuple[list[float], float]:
        mine, handle = begin(rank, 4, size)
        mine.fill_(rank + 1)
        out = torch.empty_like(mine)
        handle.barrier()
        launch = kernels.gathered_sum[(size // 1024,)]
        took = milliseconds(lambda: launch(out, handle.buffer_ptrs_dev, size, WORLD=4, BLOCK=1024))
        handle.barrier()
        return out[:: size // 3].tolist(), took

    for values, took in on_ranks(work, 4):
        assert values == [10.0] * 4
        assert took == pytest.approx(3 * 4 * size / LINK * 1e3, rel=0.2)  # of three others


def test_programs_meet_inside_of_kernels() -> None:
    def work(rank: int) -> list[float]:
        mine, handle = begin(rank, 4, 1000)
        found = []
        for turn in range(2):
            mine.copy_(torch.arange(1000, device="cuda") + rank + turn)
            tables = handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev
            kernels.two_shot[(4,)](*tables, 1000, rank, WORLD=4, BLOCK=64)
            found += mine[::333].tolist()
        assert not handle.get_signal_pad(rank).any()
        return found

    expected = [4.0 * at + 6 + 4 * turn for turn in range(2) for at in range(0, 1000, 333)]
    assert on_ranks(work, 4) == [expected] * 4


def test_who_comes_late_holds_up_the_others() -> None:
    def work(rank: int) -> float:
        _, handle = begin(rank, 3, 16)
        handle.barrier()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        if rank == 1:
            torch.zeros(1 << 29, dtype=torch.uint8, device="cuda")
        kernels.waits[(1,)](handle.signal_pad_ptrs_dev, 0, rank, WORLD=3)
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last))

    found = on_ranks(work, 3)
    assert min(found) > 0.1  # at 4.8 TB/s and less, 512 MiB take more
    assert max(found) - min(found) < 0.01


def by_a_kernel(theirs: Any, handle: Any) -> None:
    del handle
    kernels.tell[(1,)](theirs, theirs[2:], 7)


def by_a_stream(theirs: Any, handle: Any) -> None:
    theirs[:1].fill_(7)
    handle.stream_write_value32(theirs.view(torch.uint32), 2, 1)


@pytest.mark.parametrize("tell", [by_a_kernel, by_a_stream])
def test_a_flag_that_one_stores_is_seen_by_one_who_polls_it(tell: Any) -> None:
    def work(rank: int) -> tuple[int, float]:
        mine, handle = begin(rank, 2, 4, torch.int32)
        mine.zero_()
        out = torch.zeros(1, dtype=torch.int32, device="cuda")
        handle.barrier()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        theirs = handle.get_buffer(0, (4,), torch.int32)
        if rank:
            torch.zeros(1 << 29, dtype=torch.uint8, device="cuda")
            tell(theirs, handle)
        else:
            kernels.listen[(1,)](out, theirs, theirs[2:])
        last.record()
        torch.cuda.synchronize()
        return out.item(), float(first.elapsed_time(last))

    (value, listened), (_, told) = on_ranks(work, 2)
    assert value == 7
    assert listened == pytest.approx(told, abs=0.01)
    assert told > 0.1


def test_who_polls_for_what_nobody_writes_is_told() -> None:
    def work(rank: int) -> None:
        _, handle = begin(rank, 3, 4)
        if rank != 1:
            kernels.waits[(1,)](handle.signal_pad_ptrs_dev, 2, rank, WORLD=3)

    with pytest.raises(SpawnException) as raised:
        on_ranks(work, 3)
    told = str(raised.value)
    assert "[K7] kernels of ranks 0, 2 poll memory that nobody is left to write" in told
    assert "rank 0: program (0, 0, 0) of waits polls" in told
    assert 'while tl.atomic_cas(mine + peer, 1, 0, sem="acquire", scope="sys") != 1:' in told
    # Slot 2 of words of three ranks, and the word of rank 1.
    assert f"byte {4 * (2 * 3 + 1)} of the signal pad of rank 2 in symmetric memory 1" in told


def test_a_kernel_may_not_leave_the_memory_of_a_peer() -> None:
    def work(rank: int) -> None:
        mine, handle = begin(rank, 2, 16)
        mine.zero_()
        out = torch.empty(64, device="cuda")
        handle.barrier()
        kernels.gathered_sum[(1,)](out, handle.buffer_ptrs_dev, 64, WORLD=2, BLOCK=64)

    with pytest.raises(SpawnException, match=r"\[M1\] tl.load out of bounds"):
        on_ranks(work, 2)


def test_without_numbers_loaded_addresses_are_refused() -> None:
    def work(rank: int) -> None:
        mine, handle = begin(rank, 2, 16)
        with pytest.raises(UnsupportedError, match="loads addresses of symmetric memory, without"):
            kernels.gathered_sum[(1,)](mine, handle.buffer_ptrs_dev, 16, WORLD=2, BLOCK=16)

    on_ranks(work, 2, data=False)


WEAK = 'puts devices in no order: it has sem="{}", scope="{}"'
ORDER = 'hint: say sem="acq_rel", scope="sys" there, or let the ranks meet: handle.barrier()'


@pytest.mark.parametrize(
    ("put", "take", "weak", "hint"),
    [
        (("relaxed", "sys"), ("acquire", "sys"), WEAK.format("relaxed", "sys"), ORDER),
        (("release", "sys"), ("relaxed", "sys"), WEAK.format("relaxed", "sys"), ORDER),
        (("release", "gpu"), ("acquire", "sys"), "", 'hint: say scope="sys": by default, '),
    ],
)
def test_a_flag_that_puts_nothing_in_order_is_told(
    put: tuple[str, str], take: tuple[str, str], weak: str, hint: str
) -> None:
    def work(rank: int) -> None:
        _, handle = begin(rank, 2, 4, torch.int32)
        theirs = handle.get_buffer(0, (4,), torch.int32)
        out = torch.zeros(1, dtype=torch.int32, device="cuda")
        if rank:
            handle.barrier(1)
            kernels.publishes[(1,)](theirs, theirs[2:], *put)
        else:
            theirs.zero_()
            handle.barrier(1)
            kernels.takes[(1,)](out, theirs, theirs[2:], *take)

    with pytest.raises(SpawnException) as raised:
        on_ranks(work, 2)
    told = str(raised.value)
    assert "[M10] rank 0 " in told
    assert "symmetric memory that rank 1 " in told
    assert "rank 1, program (0, 0, 0) of publishes: tl." in told
    assert "rank 1 launched its kernel at " in told
    assert "the block of rank 0 in symmetric memory 1 of group WORLD, bytes " in told
    assert weak in told
    assert hint in told


def test_a_program_that_has_met_others_tells_those_of_its_launch() -> None:
    def work(rank: int) -> list[int]:
        mine, handle = begin(rank, 2, 4, torch.int32)
        theirs = handle.get_buffer(0, (4,), torch.int32)
        out, start = (torch.zeros(3, dtype=torch.int32, device="cuda") for _ in range(2))
        mine.zero_()
        handle.barrier()
        if rank:
            kernels.publishes[(1,)](theirs, theirs[2:], "release", "sys")
            return [7] * 3
        kernels.first_meets_for_all[(3,)](out, theirs, theirs[2:], start)
        mine.fill_(1)  # the other one has been seen
        return list(out.tolist())

    assert on_ranks(work, 2) == [[7] * 3] * 2


def test_what_a_kernel_reads_of_a_peer_is_over_when_it_has_met_the_peer_again() -> None:
    def work(rank: int) -> None:
        mine, handle = begin(rank, 2, 64)
        out = torch.empty(64, device="cuda")
        mine.fill_(rank)
        for turn in range(2):
            kernels.waits[(1,)](handle.signal_pad_ptrs_dev, 0, rank, WORLD=2)
            kernels.gathered_sum[(2,)](out, handle.buffer_ptrs_dev, 64, WORLD=2, BLOCK=32)
            if turn == 0:
                kernels.waits[(1,)](handle.signal_pad_ptrs_dev, 0, rank, WORLD=2)
                mine.fill_(3)
        if rank:
            mine[40:].fill_(4)
        torch.cuda.synchronize()

    with pytest.raises(SpawnException) as raised:
        on_ranks(work, 2)
    told = str(raised.value)
    assert "rank 0, program (1, 0, 0) of gathered_sum: tl.load at " in told
    assert "rank 1: aten::fill_ at " in told
    assert "the block of rank 1 in symmetric memory 1 of group WORLD, bytes 160..256 of 256" in told
