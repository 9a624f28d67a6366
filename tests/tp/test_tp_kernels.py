"""The tile kernel multiplies as the library does."""

import pytest
from tp_cases import DTYPES, assert_close, draw, spawn

import kernbench.torch as torch
from kernbench.testing import Kernbench
from kernbench.tp import kernels
from kernbench.tp.utils import Group


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 200, 5), (128, 128, 256), (130, 7, 300)])
def test_products(
    kernbench: Kernbench, dtype: torch.dtype, biased: bool, m: int, n: int, k: int
) -> None:
    def worker(group: Group) -> None:
        del group
        a, b = draw(m, k, seed=1, dtype=dtype), draw(k, n, seed=2, dtype=dtype)
        bias = draw(n, seed=3, dtype=dtype) if biased else None
        expected = kernels.gemm(a, b, bias, kernel="library")
        for x in (a, a.T.contiguous().T):
            for y in (b, b.T.contiguous().T):
                found = kernels.gemm(x, y, bias, kernel="tile")
                assert_close(found, expected)
        exact = a @ b if bias is None else a @ b + bias
        assert_close(expected, exact)

    spawn(kernbench, 1, worker)


def test_small_whole_numbers_are_exact(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        del group
        a, b = ((draw(150, 150, seed=seed) * 2).round() for seed in (1, 2))
        found, expected = (kernels.gemm(a, b, kernel=kernel) for kernel in ("tile", "library"))
        assert found.tolist() == expected.tolist()

    spawn(kernbench, 1, worker)


def test_nothing_to_add(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        del group
        empty = torch.zeros(2, 0, device="cuda")
        assert kernels.gemm(empty, empty.T, kernel="tile").tolist() == [[0.0, 0.0]] * 2

    spawn(kernbench, 1, worker)


def test_time_depends_on_the_kernel_and_not_on_data(kernbench: Kernbench) -> None:
    times: dict[tuple[str, bool], float] = {}

    def worker(group: Group) -> None:
        del group
        for kernel in ("tile", "library"):
            a, b = torch.ones(256, 256, device="cuda"), torch.ones(256, 256, device="cuda")
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            kernels.gemm(a, b, kernel=kernel)
            end.record()
            end.synchronize()
            times[kernel, data] = start.elapsed_time(end)

    for data in (True, False):
        spawn(kernbench, 1, worker, data=data)
    assert times["tile", True] == times["tile", False]
    assert times["library", True] == times["library", False]
    assert times["tile", True] != times["library", True]


def test_another_kernel_is_refused(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        del group
        a = draw(2, 2, seed=1)
        with pytest.raises(RuntimeError) as caught:
            kernels.gemm(a, a, kernel="mine")  # type: ignore[arg-type]
        first = str(caught.value).splitlines()[0]
        assert first == "kernel='mine': expected 'tile' or 'library'"

    spawn(kernbench, 1, worker)
