"""Times of Triton's kernels on simulated devices."""

import threading
from pathlib import Path
from typing import Any

import pytest
from bridge_devices import on_ranks

from kernbench import caches
from kernbench.errors import UnsupportedError
from kernbench.ranks.spawn_errors import SpawnException

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton.language")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
import launched_kernels as kernels  # noqa: E402 - after the check that Triton is there
import triton.language as tl  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402


def microseconds(work: Any, **options: Any) -> float:
    """Returns how long the only rank's device takes for what a function issues."""

    def timed(rank: int) -> float:
        del rank
        issue = work()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        busy = torch.zeros(1 << 28, device="cuda")
        issue()
        torch.cuda.synchronize()
        busy.zero_()  # meanwhile the host gets ahead
        begin.record()
        issue()
        end.record()
        torch.cuda.synchronize()
        return 1e3 * float(begin.elapsed_time(end))

    (found,) = on_ranks(timed, **options)
    return float(found)


def adding(count: int) -> Any:
    def work() -> Any:
        x, y, out = (torch.zeros(count, device="cuda") for _ in range(3))
        return lambda: kernels.add[(-(-count // 1024),)](x, y, out, count, BLOCK=1024)

    return work


def softmax() -> Any:
    """Rows that are much shorter than the block, so that memory is not what bounds it."""
    given, out = (torch.zeros(8192, 64, device="cuda") for _ in range(2))
    return lambda: kernels.rows[(8192,)](out, given, 64, 64, tl.float32, BLOCK=1024)


def test_a_time_is_the_same_with_and_without_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    caches.clear()
    first = microseconds(adding(5000))
    assert list(tmp_path.glob("*/kernbench.machine.*.json"))
    caches.clear()
    assert microseconds(adding(5000)) == first
    # Nor is it another one where this process makes the machine code: it is not forked then.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "here"))
    caches.clear()
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert microseconds(adding(5000)) == first
    finally:
        done.set()
        thread.join()


def test_times_may_be_estimated_without_machine_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    caches.clear()
    whole = microseconds(softmax, data=False)
    monkeypatch.setenv("KERNBENCH_TRITON_TIME", "ir")
    caches.clear()
    assert microseconds(softmax, data=False) == pytest.approx(whole, rel=0.4)
    assert microseconds(softmax, data=False) != whole
    monkeypatch.setenv("KERNBENCH_TRITON_TIME", "sass")
    caches.clear()
    with pytest.raises(SpawnException, match="KERNBENCH_TRITON_TIME"):
        microseconds(softmax, data=False)


def test_a_kernel_that_has_no_machine_code_is_estimated(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> Any:
        x = torch.zeros(4, device="cuda").to(torch.float8_e5m2)
        return lambda: kernels.adds_one[(1,)](x, 4, BLOCK=4)

    caches.clear()
    assert microseconds(work) > 1
    said = capfd.readouterr().err
    assert "kernel adds_one: Triton makes no machine code of it for sm_90" in said
    assert said.count("kernel adds_one: Triton makes") == 1


def test_the_configuration_is_chosen_that_takes_least_of_those_that_fit() -> None:
    def chosen(rank: int) -> tuple[int, int]:
        del rank
        a, b = (torch.zeros(128 * 2048, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        c = torch.zeros(128, 256, device="cuda")
        kernels.product[(1,)](a, b.repeat(2), c, 2048, BM=128, BN=256)
        best = kernels.product.best_config
        with pytest.raises(OutOfResources, match="out of resource: shared memory, Required"):
            kernels.product.fn[(1,)](a, b.repeat(2), c, 2048, 128, 256, 128, num_stages=4)
        return best.kwargs["BK"], best.num_stages

    # With three stages two turns' loads are ahead; one that does not fit is left out.
    assert on_ranks(chosen, data=False) == [(32, 3)]


def test_a_kernel_takes_as_long_without_numbers() -> None:
    assert microseconds(adding(5000)) == microseconds(adding(5000), data=False)


def test_bytes_are_those_that_programs_ask_for_and_not_those_of_the_tensors() -> None:
    def part() -> Any:
        x, y, out = (torch.zeros(1 << 24, device="cuda") for _ in range(3))
        return lambda: kernels.add[(16384,)](x, y, out, 1 << 22, BLOCK=1024)

    whole, quarter = microseconds(adding(1 << 24), data=False), microseconds(part, data=False)
    assert quarter < 0.4 * whole


def test_sums_at_one_address_come_one_after_the_other() -> None:
    def adding_up(programs: int, numbers: int) -> Any:
        bins = torch.zeros(numbers, dtype=torch.int32, device="cuda")
        return lambda: kernels.adds_up[(programs,)](bins, numbers, BLOCK=256)

    def counting(programs: int, numbers: int) -> Any:
        ids = torch.zeros(programs * 256, dtype=torch.int32, device="cuda")
        bins = torch.zeros(numbers, dtype=torch.int32, device="cuda")
        return lambda: kernels.tallies[(programs,)](ids, bins, BLOCK=256)

    # 1.757 ns each, for those of one warp, too.
    one, two, many = (
        microseconds(lambda each=each: adding_up(*each), data=False)
        for each in ((4096, 1), (8192, 1), (4096, 1 << 20))
    )
    assert two - one == pytest.approx(4096 * 256 * 1.757e-3, rel=0.01)
    assert many < one / 50
    # Where loaded numbers say which, all bins are as likely, with numbers as without.
    drawn, few = (microseconds(lambda n=n: counting(4096, n)) for n in (1 << 20, 2))
    assert drawn == microseconds(lambda: counting(4096, 1 << 20), data=False)
    assert few > 20 * drawn


def test_turns_that_load_nothing_take_what_they_issue() -> None:
    def iterating(turns: int) -> Any:
        out = torch.zeros(1 << 20, device="cuda")
        return lambda: kernels.iterates[(1024,)](out, turns, BLOCK=1024)

    long, short = (microseconds(lambda n=n: iterating(n), data=False) for n in (1000, 500))
    # 8 of 1024 programs on a PE of 132, 4 warps of each. A thread issues 8 products and sums a
    # turn, and the loop's own three instructions once in four turns. A PE issues 4 a cycle of
    # 1.98 GHz.
    issued = 500 * 8 * 4 * (8 + 3 / 4)
    assert long - short == pytest.approx(issued / 4 / 1.98e3, rel=0.05)

    def filling(turns: int) -> Any:
        out = torch.zeros(1 << 20, device="cuda")
        return lambda: kernels.fills[(1024 // turns,)](out, turns, BLOCK=1024)

    many, few = (microseconds(lambda n=n: filling(n), data=False) for n in (32, 1))
    assert many < 2 * few


def test_stores_part_the_loads_of_an_unrolled_loop() -> None:
    def copying() -> Any:
        given, out = (torch.zeros(1 << 20, device="cuda") for _ in range(2))
        return lambda: kernels.copies[(1,)](given, out, 1 << 20, BLOCK=1024)

    # A turn's stores may change what the next one loads: 1024 turns of at least 612 ns.
    assert microseconds(copying, data=False) > 1024 * 0.612


def test_a_tensor_that_is_given_twice_comes_through_the_hbm_once() -> None:
    n = 3 << 22

    def of(first: int, second: int) -> Any:
        def work() -> Any:
            both, out = torch.zeros(2 * n, device="cuda"), torch.zeros(n, device="cuda")
            halves = both[:n], both[n:]
            return lambda: kernels.add[(n // 1024,)](
                halves[first], halves[second], out, n, BLOCK=1024
            )

        return work

    # As many bytes as a sum of two thirds of the elements.
    expected = microseconds(adding(2 * n // 3), data=False)
    assert microseconds(of(0, 0), data=False) == pytest.approx(expected, rel=0.01)
    # Two parts of one storage are different memory.
    assert microseconds(of(0, 1), data=False) == microseconds(adding(n), data=False)


def test_turns_that_depend_on_numbers_are_refused_without_them() -> None:
    def work() -> Any:
        x = torch.zeros(1, device="cuda")
        addresses = torch.tensor([x.data_ptr()] * 3, device="cuda")
        return lambda: kernels.by_addresses[(1,)](addresses, x, 3)

    # The addresses that it loads choose no way, so nothing is missing.
    assert microseconds(work, data=False) > 0
    with pytest.raises(SpawnException) as caught:
        microseconds(_of_counts, data=False)
    (error,) = caught.value.errors.values()
    assert isinstance(error, UnsupportedError)
    assert "depends on numbers that it loads" in str(error)


def _of_counts() -> Any:
    counts = torch.tensor([3, 5], dtype=torch.int32, device="cuda")
    return lambda: kernels.turns_of[(2,)](counts, counts)
