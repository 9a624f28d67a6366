"""Reductions of 8-bit floats: each partial result rounded to the type and cut off at its largest.

The expected bits come from the list of all values of a type, in double precision.
"""

from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.memory.arithmetic import function_named
from kernbench.sim_engine.dials import Fidelity
from kernbench.testing import Kernbench

Bits = np.ndarray[Any, np.dtype[np.uint8]]
Values = np.ndarray[Any, np.dtype[np.float64]]

KINDS: Final = {
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
}
RING: Final = ("defaults.algorithm=ring",)
ALIGN: Final = 8


class EightBits:
    """All values of a type, and how others are rounded to them."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.decoded = np.arange(256, dtype=np.uint8).view(KINDS[dtype]).astype(np.float64)
        bits = np.flatnonzero(np.isfinite(self.decoded[:128]))
        self.steps = self.decoded[bits]
        assert (np.diff(self.steps) > 0).all()

    def rounded(self, values: Values) -> Values:
        """Returns the nearest values; of two, that with an even last bit; none is too large."""
        size = np.minimum(abs(values), self.steps[-1])
        above = np.searchsorted(self.steps, size)
        below = np.maximum(above - 1, 0)
        up, down = self.steps[above] - size, size - self.steps[below]
        take_below = (down < up) | ((down == up) & (below % 2 == 0))
        chosen: Values = np.copysign(self.steps[np.where(take_below, below, above)], values)
        return chosen


def _fold(kind: EightBits, parts: list[Values], name: str) -> Values:
    total = parts[0]
    for part in parts[1:]:
        match name:
            case "MIN":
                total = np.minimum(total, part)
            case "MAX":
                total = np.maximum(total, part)
            case "PRODUCT":
                total = kind.rounded(total * part)
            case _:
                total = kind.rounded(total + part)
    return total


def _around_the_ring(kind: EightBits, given: list[Values], name: str) -> Values:
    """What a ring makes of it: block `b` from rank `b` on."""
    ranks, count = len(given), len(given[0])
    even = -(-count // ranks)
    size = -(-even // ALIGN) * ALIGN
    blocks = []
    for block in range(ranks):
        cut = slice(block * size, (block + 1) * size)
        blocks.append(_fold(kind, [given[(block + i) % ranks][cut] for i in range(ranks)], name))
    return np.concatenate(blocks)


def _given(dtype: torch.dtype, ranks: int, count: int) -> list[Bits]:
    """Bits of any finite values, both zeros and the largest ones among them."""
    rng = np.random.default_rng(ranks)
    finite = np.flatnonzero(np.isfinite(EightBits(dtype).decoded)).astype(np.uint8)
    return [rng.choice(finite, count) for _ in range(ranks)]


def _tensor(bits: Bits, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(bits.tolist(), dtype=torch.uint8, device="cuda").view(dtype)


def _run(
    kernbench: Kernbench, ranks: int, backend: str, work: Callable[[int], Any], **dials: Any
) -> list[Any]:
    found: list[Any] = [None] * ranks

    def worker(rank: int) -> None:
        dist.init_process_group(backend)
        skew = torch.ones(64, device="cuda")
        for _ in range((3 * rank) % 5):
            skew = skew * 2.0
        found[rank] = work(rank)
        dist.destroy_process_group()

    machine = "sip8" if ranks <= 8 else "torus4x4"
    kernbench.spawn(worker, nprocs=ranks, topology=machine, **dials)
    return found


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("name", ["add", "multiply"])
def test_any_two_values(dtype: torch.dtype, name: str) -> None:
    kind = EightBits(dtype)
    finite = np.flatnonzero(np.isfinite(kind.decoded)).astype(np.uint8)
    left, right = (side.ravel() for side in np.meshgrid(finite, finite))
    a, b = (kind.decoded[side] for side in (left, right))
    wanted = kind.rounded(a + b if name == "add" else a * b)
    operands = [side.view(KINDS[dtype]) for side in (left, right)]
    got = function_named(name, KINDS[dtype])(*operands)
    assert got.dtype == KINDS[dtype]
    np.testing.assert_array_equal(got.astype(np.float64), wanted)
    # As NCCL's kernels get there: added as half, which rounds, too, and then to 8 bits.
    with np.errstate(over="ignore"):
        half = [side.astype(np.float16) for side in operands]
        through = getattr(np, name)(*half).astype(np.float64)
    np.testing.assert_array_equal(kind.rounded(through), wanted)


@pytest.mark.parametrize("fidelity", ["kernel", "tile", "functional"])
@pytest.mark.parametrize("backend", ["nccl", "ccl"])
@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("name", ["SUM", "PRODUCT", "MIN", "MAX", "AVG"])
def test_all_reduce_adds_around_the_ring(
    kernbench: Kernbench, dtype: torch.dtype, name: str, backend: str, fidelity: Fidelity
) -> None:
    kind = EightBits(dtype)
    for ranks, count in ((1, 5), (2, 1), (3, 50), (7, 131)):
        bits = _given(dtype, ranks, count)

        def work(rank: int, bits: list[Bits] = bits) -> Any:
            x = _tensor(bits[rank], dtype)
            dist.all_reduce(x, getattr(dist.ReduceOp, name))
            return x.view(torch.uint8).tolist()

        found = _run(kernbench, ranks, backend, work, overrides=RING, fidelity=fidelity)
        assert all(one == found[0] for one in found)
        given = [kind.decoded[one] for one in bits]
        if name == "AVG":
            share = kind.rounded(np.array([1 / ranks]))
            given = [kind.rounded(one * share) for one in given]
        wanted = _around_the_ring(kind, given, name)
        np.testing.assert_array_equal(kind.decoded[found[0]], wanted)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("ranks", range(2, 17))
def test_every_rank_ends_with_the_same_bits(
    kernbench: Kernbench, dtype: torch.dtype, ranks: int
) -> None:
    bits = _given(dtype, ranks, 37)

    def work(rank: int) -> Any:
        x = _tensor(bits[rank], dtype)
        dist.all_reduce(x)
        return x.view(torch.uint8).tolist()

    for algorithm in ("halving_doubling", "double_binary_tree", "direct", "two_shot"):
        dials = {"overrides": [f"defaults.algorithm={algorithm}"]}
        found = _run(kernbench, ranks, "ccl", work, **dials)
        assert all(one == found[0] for one in found)
        if algorithm == "direct":
            kind = EightBits(dtype)
            wanted = _fold(kind, [kind.decoded[one] for one in bits], "SUM")
            np.testing.assert_array_equal(kind.decoded[found[0]], wanted)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_the_others_add_alike(kernbench: Kernbench, dtype: torch.dtype) -> None:
    ranks, count = 3, 24
    bits = _given(dtype, ranks, ranks * count)
    kind = EightBits(dtype)

    def work(rank: int) -> Any:
        whole = _tensor(bits[rank], dtype)
        mine = torch.empty(count, dtype=torch.uint8, device="cuda").view(dtype)
        dist.reduce_scatter_tensor(mine, whole)
        scaled = _tensor(bits[rank], dtype)
        dist.all_reduce(scaled, dist.ReduceOp.PREMUL_SUM(0.3))
        root = _tensor(bits[rank], dtype)
        dist.reduce(root, 1)
        return [x.view(torch.uint8).tolist() for x in (mine, scaled, root)]

    found = _run(kernbench, ranks, "ccl", work, overrides=RING)
    given = [kind.decoded[one] for one in bits]
    for rank in range(ranks):
        block = slice(rank * count, (rank + 1) * count)
        # A block ends where it is wanted, so it begins behind that rank.
        parts = [given[(rank + 1 + i) % ranks][block] for i in range(ranks)]
        np.testing.assert_array_equal(kind.decoded[found[rank][0]], _fold(kind, parts, "SUM"))
    factor = kind.rounded(np.array([0.3]))
    scaled = [kind.rounded(one * factor) for one in given]
    for one in found:
        np.testing.assert_array_equal(kind.decoded[one[1]], _around_the_ring(kind, scaled, "SUM"))
    exact = sum(abs(one) for one in given)
    slack = 2.0**-2 * exact + kind.steps[1]
    in_range = exact < kind.steps[-1]
    assert in_range.any()
    got = kind.decoded[found[1][2]]
    assert (abs(got - sum(given)) <= slack)[in_range].all()


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_tensors_of_the_host_add_in_the_order_of_ranks(
    kernbench: Kernbench, dtype: torch.dtype
) -> None:
    kind, bits = EightBits(dtype), _given(dtype, 5, 40)

    def work(rank: int) -> Any:
        sums = _tensor(bits[rank], dtype).cpu()
        means = sums.clone()
        dist.all_reduce(sums)
        dist.all_reduce(means, dist.ReduceOp.AVG)
        return [x.view(torch.uint8).tolist() for x in (sums, means)]

    given = [kind.decoded[one] for one in bits]
    share = kind.rounded(np.array([1 / 5]))
    wanted = [given, [kind.rounded(one * share) for one in given]]
    for found in _run(kernbench, 5, "ccl", work):
        for got, parts in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(kind.decoded[got], _fold(kind, parts, "SUM"))


def test_what_is_no_number_stays_so(kernbench: Kernbench) -> None:
    def work(rank: int) -> Any:
        # e5m2 has infinities, which the device turns into the largest value when it adds.
        x = torch.tensor([float("nan"), float("inf"), 1.0], device="cuda").to(torch.float8_e5m2)
        dist.all_reduce(x)
        return x.float().tolist()

    for first, second, third in _run(kernbench, 2, "nccl", work):
        assert np.isnan(first)
        assert (second, third) == (57344.0, 2.0)
