"""Random numbers: the same in every run, one generator a rank."""

from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
from kernbench.memory import dtypes
from kernbench.runtime_api.context import RuntimeContext


def _drawn(ctx: RuntimeContext, nprocs: int, *, seeded: bool = False) -> list[Any]:
    found: list[Any] = [None] * nprocs

    def worker(rank: int) -> None:
        if seeded:
            torch.manual_seed(rank)
        found[rank] = [torch.randn(3).tolist(), torch.randint(100, (2,)).tolist()]

    ctx.multiprocessing.spawn(worker, nprocs=nprocs)
    return found


def test_ranks_start_apart_and_seed_themselves_alone(ctx: RuntimeContext) -> None:
    first, second = _drawn(ctx, 2)
    assert first != second
    assert _drawn(ctx, 2) == [first, second]
    zero, one = _drawn(ctx, 2, seeded=True)
    assert zero != one
    assert _drawn(ctx, 2, seeded=True) == [zero, one]
    torch.manual_seed(1)
    assert torch.randn(3).tolist() == one[0]


def test_a_seed_gives_the_same_numbers_on_the_host_and_on_a_device(device: str) -> None:
    torch.manual_seed(7)
    a = torch.rand(4, device=device)
    assert torch.initial_seed() == 7
    again = torch.manual_seed(7)
    assert a.tolist() == torch.rand(4, device="cpu").tolist()
    assert again.initial_seed() == 7
    generator = torch.Generator(device).manual_seed(7)
    assert torch.rand(4, generator=generator, device=device).tolist() == a.tolist()
    assert torch.rand(4, generator=generator).tolist() != a.tolist()


def test_numbers_do_not_change_from_version_to_version(ctx: RuntimeContext) -> None:
    torch.manual_seed(0)
    found = torch.randint(0, 1000, (6,)).tolist()
    expected = np.random.Generator(np.random.Philox(key=0)).integers(0, 1000, 6)
    assert found == expected.tolist()


@pytest.mark.parametrize("dtype", [dtypes.float64, dtypes.float32, dtypes.float16, dtypes.bfloat16])
def test_distributions(device: str, dtype: Any) -> None:
    even = torch.rand(20000, dtype=dtype, device=device).double().numpy()
    assert 0 <= even.min() < 0.02
    assert 0.98 < even.max() < 1
    assert even.mean() == pytest.approx(0.5, abs=0.01)
    bell = torch.randn(20000, dtype=dtype, device=device).double().numpy()
    assert bell.mean() == pytest.approx(0, abs=0.03)
    assert bell.std() == pytest.approx(1, abs=0.03)
    shifted = torch.normal(3, 2, (20000,), dtype=dtype, device=device).double().numpy()
    assert (shifted.mean(), shifted.std()) == pytest.approx((3, 2), abs=0.06)


def test_integers_permutations_and_choices(device: str) -> None:
    x = torch.randint(-3, 4, (1000,), device=device)
    assert (x.dtype, sorted(set(x.tolist()))) == (torch.int64, [-3, -2, -1, 0, 1, 2, 3])
    assert torch.randint(1, (5,), device=device).tolist() == [0] * 5
    assert sorted(torch.randperm(9, device=device).tolist()) == list(range(9))
    likely = torch.bernoulli(torch.full((1000,), 0.9, device=device))
    assert 850 < likely.sum().item() < 950
    assert torch.rand_like(likely).shape == torch.randn_like(likely).shape == (1000,)


def test_filling(device: str) -> None:
    x = torch.empty(2, 1000, device=device)
    x[0].normal_(5, 0.1)
    x[1].uniform_(-1, 1)
    assert x[0].mean().item() == pytest.approx(5, abs=0.05)
    assert -1 <= x[1].min().item() < -0.9
    assert 0.9 < x[1].max().item() < 1


def test_mistakes(ctx: RuntimeContext) -> None:
    with pytest.raises(RuntimeError, match="less than 'to', but got from=3 >= to=3"):
        torch.randint(3, 3, (1,))
    with pytest.raises(TypeError, match=r"randint\(\) takes"):
        torch.randint(3, 5)
    with pytest.raises(RuntimeError, match=r"rand is not implemented for torch\.int64"):
        torch.rand(2, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="but found from=2 > to=1"):
        torch.ones(1).uniform_(2, 1)


def test_without_data_numbers_are_not_drawn(ctx_without_data: RuntimeContext) -> None:
    assert torch.randn(1 << 40).shape == (1 << 40,)
