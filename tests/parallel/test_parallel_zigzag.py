"""Which tokens a rank of a context-parallel group has, against numpy and the specification."""

from collections.abc import Callable

import numpy as np
import pytest

import kernbench.torch as torch
from kernbench.parallel import zigzag
from kernbench.testing import Kernbench

SIZES = [1, 2, 3, 4, 6, 8]


def test_the_chunks_of_every_rank() -> None:
    assert [zigzag.zigzag_chunks(4, rank) for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    # The parts of three ranks have the chunks 0, 5 | 1, 4 | 2, 3.
    assert zigzag.places_by_chunk(3) == [0, 2, 4, 5, 3, 1]
    # Two of the four sequences of the specification's example: 8 and 16 tokens on 4 ranks.
    assert [*map(list, zigzag.zigzag_ranges(8, 4, 0))] == [[0], [7]]
    assert [*map(list, zigzag.zigzag_ranges(16, 4, 0))] == [[0, 1], [14, 15]]


@pytest.mark.parametrize("cp", SIZES)
def test_every_token_is_on_one_rank_and_finds_its_way_back(kernbench: Kernbench, cp: int) -> None:
    kernbench.context()
    whole = np.arange(2 * 2 * cp * 3 * 5, dtype=np.float32).reshape(2, 2 * cp * 3, 5)
    x = torch.from_numpy(whole)
    parts = [zigzag.take_zigzag(x, 1, cp, rank) for rank in range(cp)]
    for rank, part in enumerate(parts):
        rows = np.split(whole, 2 * cp, 1)
        expected = np.concatenate([rows[rank], rows[-1 - rank]], 1)
        np.testing.assert_array_equal(part.numpy(), expected)
    gathered = torch.cat(parts, 1)
    np.testing.assert_array_equal(zigzag.join_zigzag(gathered, -2, cp).numpy(), whole)


def test_gradients_of_a_part_reach_its_tokens(kernbench: Kernbench) -> None:
    kernbench.context()
    x = torch.zeros(8, requires_grad=True)
    (zigzag.take_zigzag(x, 0, 2, 1) * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 1, 2, 3, 4, 0, 0]


def test_sequences_that_cannot_be_cut(kernbench: Kernbench) -> None:
    kernbench.context()
    x = torch.zeros(10)
    calls: tuple[Callable[[], object], ...] = (
        lambda: zigzag.take_zigzag(x, 0, 2, 0),
        lambda: zigzag.join_zigzag(x, 0, 2),
    )
    for call in calls:
        with pytest.raises(ValueError, match="10 is not divisible by 2 \\* cp = 4") as caught:
            call()
        assert "test_parallel_zigzag.py" in str(caught.value)
    with pytest.raises(ValueError, match="a group of 2 ranks has no place 2"):
        zigzag.take_zigzag(torch.zeros(8), 0, 2, 2)
