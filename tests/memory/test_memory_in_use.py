"""What is in use of a memory, as `torch.cuda` tells it."""

from kernbench.memory import Allocator, Space
from kernbench.memory.in_use import nested, statistics, summary

MIB = 1 << 20


def memory() -> Allocator:
    found = Allocator(Space.HBM, 0, 0, 64 * MIB)
    found.allocate(2 * MIB, "weights", None)
    found.free(found.allocate(8 * MIB, "gone", None), None)
    found.allocate(MIB, "bias", None)
    return found


def test_statistics_are_those_of_blocks_and_their_peak() -> None:
    found = statistics(memory())
    assert found["allocated_bytes.all.current"] == 3 * MIB
    assert found["reserved_bytes.all.peak"] == 10 * MIB
    assert (found["active.all.current"], found["allocation.all.freed"]) == (2, 1)
    assert set(statistics(None).values()) == {0}
    assert statistics(None).keys() == found.keys()
    inside = nested(found)
    assert inside["allocated_bytes"]["all"] == {"current": 3 * MIB, "peak": 10 * MIB}
    assert inside["num_ooms"] == 0


def test_a_summary_has_the_largest_blocks_first() -> None:
    assert summary(memory(), "memory of cuda:0", abbreviated=False) == (
        "memory of cuda:0\n"
        "  in use   3 MiB (3145728 B) in 2 blocks\n"
        "  peak     10 MiB (10485760 B)\n"
        "  free     61 MiB of 64 MiB\n"
        "       2 MiB  weights\n"
        "       1 MiB  bias"
    )
    assert "weights" not in summary(memory(), "memory of cuda:0", abbreviated=True)
