"""Kernels that add up what all ranks have: how their threads divide the elements."""

from types import SimpleNamespace
from typing import Any

import pytest

from kernbench.symmetric.names import way_out
from kernbench.symmetric.shots import KINDS, Shot

BF16 = 2
"""Bytes of an element."""


def tensor(count: int, offset: int = 0) -> Any:
    return SimpleNamespace(
        numel=lambda: count, element_size=lambda: BF16, storage_offset=lambda: offset
    )


def one_shot(count: int, offset: int = 0) -> Shot:
    return Shot("one_shot_all_reduce", tensor(count, offset), "sum", "0")


@pytest.mark.parametrize(
    ("count", "parts", "expected"),
    [
        (8, 1, (1, 32, 1)),  # one thread of 16 bytes, of a warp
        (8 * 33, 1, (1, 64, 1)),
        (8 * 512, 1, (1, 512, 1)),
        (8 * 513, 1, (2, 512, 1)),
        (8 * 512 * 24, 1, (24, 512, 1)),
        (8 * 512 * 25, 1, (24, 512, 2)),
        (8 * 512 * 48, 2, (24, 512, 1)),
    ],
)
def test_threads_load_16_bytes_in_at_most_24_blocks(
    count: int, parts: int, expected: tuple[int, int, int]
) -> None:
    assert one_shot(count).loop(parts) == expected


@pytest.mark.parametrize(
    ("count", "offset", "width"), [(8, 0, 16), (8, 4, 8), (12, 0, 8), (8, 2, 4), (8, 1, 0)]
)
def test_a_load_is_as_wide_as_place_and_size_allow(count: int, offset: int, width: int) -> None:
    assert one_shot(count, offset).width == width


def test_arguments_are_those_of_pytorch() -> None:
    here, there, out = tensor(8), tensor(8), tensor(8)
    copied = Shot("one_shot_all_reduce_copy_out", here, there, "sum", "group", out)
    assert (copied.local, copied.group, copied.out, copied.makes) == (there, "group", out, None)
    made = Shot("one_shot_all_reduce_copy", here, there, "sum", "group")
    assert (made.local, made.makes) == (there, there)
    part = Shot("reduce_scatter_out", here, "group", False, out)
    assert (part.local, part.group, part.out, part.makes) == (None, "group", out, None)
    assert Shot("two_shot_all_reduce_", here, "sum", "group").out is here
    assert KINDS["two_shot_all_reduce_"].threads == 1024


def test_the_way_out_is_that_of_the_longest_beginning() -> None:
    assert "_low_contention_all_gather" in way_out("multimem_all_gather_out")
    assert "one_shot_all_reduce" in way_out("multimem_all_reduce_")
    assert "put_signal()" in way_out("nccl_put_signal")
    assert "copy_()" in way_out("nccl_put")
    assert "get_buffer()" in way_out("tile_reduce")
