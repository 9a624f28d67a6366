"""Kernels as Triton compiled them, against numpy and Python."""

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from ttir_texts import Array, kept, run

from kernbench.ttir.reports import KernelAssertionError, KernelWaitError


def draw() -> np.random.Generator:
    return np.random.default_rng(7)


def test_softmax_of_rows_that_a_mask_cuts() -> None:
    x = draw().standard_normal((5, 50)).astype(np.float32)
    out = np.zeros_like(x)

    run(kept("softmax"), [x, out, 50, 50], (5, 1, 1))

    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)


def test_product_of_matrices_in_a_loop_that_moves_pointers() -> None:
    a = draw().standard_normal((50, 40)).astype(np.float16)
    b = draw().standard_normal((40, 72)).astype(np.float16)
    c = np.zeros((50, 72), np.float16)

    run(kept("gemm"), [a, b, c, 50, 72, 40], (2, 3, 1))

    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=2e-2)


def test_a_reduction_of_two_tiles_finds_the_first_of_equal_ones() -> None:
    x = draw().integers(0, 5, (6, 16)).astype(np.float32)
    value, place = np.zeros(6, np.float32), np.zeros(6, np.int32)

    run(kept("largest"), [x, value, place], (6, 1, 1))

    assert value.tolist() == x.max(axis=1).tolist()
    assert place.tolist() == x.argmax(axis=1).tolist()


def test_a_scan_of_two_tiles_solves_a_recurrence() -> None:
    a, b = draw().standard_normal((2, 16)).astype(np.float32)
    out = np.zeros(16, np.float32)

    run(kept("recurrence"), [a, b, out])

    state, states = 0.0, []
    for factor, term in zip(a.tolist(), b.tolist(), strict=True):
        state = state * factor + term
        states.append(state)
    np.testing.assert_allclose(out, states, rtol=1e-4, atol=1e-5)


def test_programs_return_early_and_leave_a_loop_at_different_turns() -> None:
    x = np.array([1, 27, 0, 6, 7, -3, 97], np.int32)
    steps = np.full(7, -5, np.int32)

    run(kept("collatz"), [x, steps], (7, 1, 1))

    assert steps.tolist() == [0, 111, -5, 8, 16, -5, 118]


def test_loops_of_different_lengths_that_print_and_assert() -> None:
    counts, out = np.array([3, 0, 10, 3, 5], np.int32), np.zeros(5, np.int32)

    said = run(kept("triangle"), [counts, out, 1000], (5, 1, 1))

    assert out.tolist() == [3, 0, 45, 3, 10]
    assert said[2] == "pid (2, 0, 0) idx () total: 45"
    with pytest.raises(KernelAssertionError) as caught:
        run(kept("triangle"), [counts, out, 40], (5, 1, 1))
    assert str(caught.value).splitlines() == [
        "triangle: too large",
        "  at kernels.py:79:5",
        "  program (2, 0, 0) of triangle",
    ]


def test_blocks_of_descriptors_end_with_the_tensor() -> None:
    x = draw().standard_normal((20, 40)).astype(np.float32)
    out = np.ones((40, 20), np.float32)

    run(kept("tiles"), [x, out, 20, 40], (3, 3, 1))  # stores each block, then adds it once more

    assert out.tolist() == (2 * x.T).tolist()


def test_rows_are_gathered_and_scattered_but_for_those_outside() -> None:
    x = draw().standard_normal((8, 64)).astype(np.float16)
    order = np.array([3, 1, 0, 2, 7, 9, 5, 4], np.int32)
    out = np.zeros_like(x)

    run(kept("rows"), [x, out, order])

    expected = np.zeros_like(x)
    for row in (3, 1, 0, 2, 7, 5, 4):
        expected[row, :32] = 2 * x[row, 32:]
    assert out.tolist() == expected.tolist()


def test_counters_are_raised_in_the_order_of_programs_and_lanes() -> None:
    x = draw().integers(0, 8, 90).astype(np.int32)
    counts, seen = np.zeros(16, np.int32), np.full(96, -1, np.int32)

    run(kept("counters"), [x, counts, seen, 90], (3, 1, 1))

    so_far, expected = [0] * 8, []
    for value in x.tolist():
        expected.append(so_far[value])
        so_far[value] += 1
    assert seen[:90].tolist() == expected
    assert counts.tolist() == so_far * 2  # by atomic operations, then by histograms


def test_tiles_are_sorted_turned_split_and_joined() -> None:
    x = draw().standard_normal(8).astype(np.float32)
    order, out = draw().permutation(8).astype(np.int32), np.zeros(16, np.float32)

    run(kept("shapes"), [x, out, order])

    assert out.tolist() == [*sorted(x.tolist()), *x[order][::-1].tolist()]


def test_inline_assembly_rotates_and_takes_bytes_apart() -> None:
    x = draw().integers(-(2**31), 2**31, 16).astype(np.int32)
    rotated, bytes_ = np.zeros(16, np.int32), np.zeros(16, np.int32)

    run(kept("assembly"), [x, rotated])
    run(kept("packed"), [x, bytes_])

    words = x.view(np.uint32).tolist()
    assert rotated.view(np.uint32).tolist() == [
        ((word << 8 | word >> 24) & 0xFFFFFFFF) ^ lane for lane, word in enumerate(words)
    ]
    assert bytes_.tolist() == [(word & 255) + 256 * (word >> 24) for word in words]


def philox(counter: Sequence[int], key: Sequence[int]) -> int:
    """Returns the first word of Philox4x32-10 (Salmon et al., SC 2011, section 3.3)."""
    (a, b, c, d), (first, second) = counter, key
    for _ in range(10):
        x, y = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (y >> 32) ^ b ^ first, y & 0xFFFFFFFF, (x >> 32) ^ d ^ second, x & 0xFFFFFFFF
        first, second = (first + 0x9E3779B9) & 0xFFFFFFFF, (second + 0xBB67AE85) & 0xFFFFFFFF
    return a


def test_random_numbers_are_philox() -> None:
    out = np.zeros(16, np.int32)

    run(kept("random"), [7, out])

    assert out.view(np.uint32).tolist() == [philox((lane, 0, 0, 0), (7, 0)) for lane in range(16)]


def test_scaled_products_of_four_and_eight_bits() -> None:
    a = draw().integers(0, 256, (32, 32)).astype(np.uint8)
    b = draw().standard_normal((64, 32)).astype(ml_dtypes.float8_e4m3fn)
    a_scale, b_scale = draw().integers(120, 135, (2, 32, 2)).astype(np.uint8)
    c = np.zeros((32, 32), np.float32)

    run(kept("scaled"), [a, a_scale, b, b_scale, c])

    fours = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    numbers = np.array([*fours, *(-each for each in fours)])
    left = np.zeros((32, 64))
    left[:, 0::2], left[:, 1::2] = numbers[a & 15], numbers[a >> 4]
    scale: list[Array] = [
        np.repeat(2.0 ** (each.astype(int) - 127), 32, axis=1) for each in (a_scale, b_scale)
    ]
    expected = (left * scale[0]) @ (b.astype(np.float64) * scale[1].T)
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-3)


def test_a_function_that_is_not_inlined_calls_the_library() -> None:
    x, out = np.array([-2, 0.5, 3], np.float32), np.zeros(3, np.float32)

    run(kept("calls"), [x, out, 1.0], (3, 1, 1))

    np.testing.assert_allclose(out, [2, 0.5, math.tanh(3)], rtol=1e-6)


def test_a_function_of_numbers_is_mapped_over_tiles() -> None:
    x, y = draw().integers(-9, 9, (2, 16)).astype(np.int32)
    out = np.zeros(32, np.int32)

    run(kept("mapped"), [x, y, out])

    assert out.tolist() == [*np.maximum(x, y).tolist(), *np.minimum(x, y).tolist()]


def test_programs_take_a_lock_one_after_the_other() -> None:
    lock, total, x = np.zeros(1, np.int32), np.zeros(1, np.int32), np.arange(20, dtype=np.int32)

    run(kept("spin"), [lock, total, x], (20, 1, 1))

    assert (lock[0], total[0]) == (0, 190)


def test_a_lock_that_nobody_gives_back_is_reported() -> None:
    lock = np.ones(1, np.int32)

    with pytest.raises(KernelWaitError) as caught:
        run(kept("spin"), [lock, np.zeros(1, np.int32), np.zeros(4, np.int32)], (4, 1, 1))

    assert str(caught.value).splitlines()[:2] == [
        "[K7] program (0, 0, 0) of spin waits for what no program before it writes",
        "  at kernels.py:196:5",
    ]


def test_addresses_in_memory_reach_all_memory_of_the_launch() -> None:
    first, second = draw().standard_normal((2, 16)).astype(np.float32)
    out = np.zeros((2, 16), np.float32)
    table = np.array([3 << 20, 4 << 20], np.int64)  # where the third and fourth argument lie

    run(kept("tables"), [table, out], (2, 1, 1), others=[first, second])

    assert out.tolist() == [first.tolist(), second.tolist()]


def test_pointers_that_a_loop_swaps_may_touch_both_arguments() -> None:
    a, b = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)

    run(kept("swapped"), [a, b, 3])

    assert a.tolist() == (4 * np.arange(16)).tolist()
    assert b.tolist() == (8 * np.arange(16)).tolist()
