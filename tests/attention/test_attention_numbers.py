"""Numbers tile by tile equal those of a matrix of scores; gradients equal slopes of its sums."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from drawn_attention import PADDING, Case, cases, dense, tokens, weights
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.attention import numbers
from kernbench.attention.bands import CAUSAL, EVERYTHING, bands
from kernbench.attention.numbers import Dropout, Operands, backward, forward
from kernbench.attention.rows import Segment, in_order

Array = np.ndarray[Any, Any]

B, HEADS, WIDTH, VALUE_WIDTH = 2, 4, 3, 5
EDGES = st.sampled_from([(1, 1), (2, 3), (5, 7), (64, 512)])
STEP = 1e-6


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets each test choose the edges of tiles, and puts them back."""
    monkeypatch.setattr(numbers, "_EDGES", numbers._EDGES)


def _operands(case: Case, seed: int, groups: int, bias: str, sink: bool) -> Operands:
    rng = np.random.default_rng(seed)
    n = case.rows
    shape = {
        "none": None,
        "whole": (B, HEADS, n, n),
        "heads": (1, HEADS, 1, n),
        "rows": (B, 1, n, 1),
        "bools": (1, 1, n, n),
    }[bias]
    values: Array | None = None if shape is None else np.asarray(rng.standard_normal(shape))
    return Operands(
        rng.standard_normal((B, HEADS, n, WIDTH)),
        rng.standard_normal((B, groups, n, WIDTH)),
        rng.standard_normal((B, groups, n, VALUE_WIDTH)),
        [bands(case.queries, case.keys, case.mask)],
        0.3,
        values > 0 if values is not None and bias == "bools" else values,
        rng.standard_normal(HEADS) if sink else None,
    )


def _padded(array: Array, real: Array) -> Array:
    """Returns rows of which those that are no token hold what must not be read."""
    return np.where(real[None, None, :, None], array, np.nan)


@given(
    cases(),
    EDGES,
    st.integers(0, 99),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["none", "whole", "heads", "rows", "bools"]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=examples(60))
def test_numbers_equal_those_of_a_matrix(
    case: Case,
    edges: tuple[int, int],
    seed: int,
    groups: int,
    bias: str,
    sink: bool,
    each_its_own: bool,
) -> None:
    numbers._EDGES = edges  # type: ignore[misc]
    plain, visible = _operands(case, seed, groups, bias, sink), case.visible()
    patterns = [plain.patterns[0]] * (B if each_its_own else 1)
    q_real, k_real = (tokens(r, case.rows).sequence != PADDING for r in (case.queries, case.keys))
    padded = plain._replace(
        query=_padded(plain.query, q_real),
        key=_padded(plain.key, k_real),
        value=_padded(plain.value, k_real),
        patterns=patterns,
    )
    found = forward(padded)
    np.testing.assert_allclose(found.out, dense(plain, visible), atol=1e-12)
    seen = weights(plain._replace(sink=None), visible).sum(3) > 0
    assert (np.isneginf(found.peak) == ~seen).all()
    if not sink:
        assert (np.isneginf(found.lse) == ~seen).all()
    # Slopes of a sum in a direction of each operand, by differences.
    rng = np.random.default_rng(seed)
    grad: Array = np.asarray(rng.standard_normal(found.out.shape))
    slopes = backward(padded, _padded(grad, q_real), found.out, found.lse)
    for name in ("query", "key", "value", "bias", "sink"):
        start, slope = getattr(plain, name), getattr(slopes, name)
        if start is None or start.dtype == np.bool_:
            assert slope is None
            continue
        assert slope.shape == start.shape
        way = rng.standard_normal(start.shape)
        ahead, behind = (
            (dense(plain._replace(**{name: start + step * way}), visible) * grad).sum()
            for step in (STEP, -STEP)
        )
        expected = (ahead - behind) / (2 * STEP)
        assert abs(expected - (slope * way).sum()) < 1e-6 * (1 + abs(expected)), name


def _plain(s: int, dtype: Any = np.float64, **more: Any) -> Operands:
    rng = np.random.default_rng(s)
    q, k, v = (rng.standard_normal((1, 2, s, 4)).astype(dtype) for _ in range(3))
    return Operands(q, k, v, [bands(in_order(s), in_order(s), CAUSAL)], 0.5, **more)


def test_the_logarithms_are_those_of_sums_of_powers() -> None:
    given = _plain(9)
    scores = np.einsum("bhqd,bhkd->bhqk", given.query, given.key) * 0.5
    powers = np.where(np.tri(9, dtype=np.bool_), np.exp(scores), 0)
    found = forward(given)
    np.testing.assert_allclose(found.lse, np.log(powers.sum(3)), rtol=1e-13)
    np.testing.assert_allclose(found.peak, np.where(powers, scores, -np.inf).max(3), rtol=1e-13)
    sink = np.array([0.5, -2.0])
    total = powers.sum(3) + np.exp(sink)[None, :, None]
    found = forward(given._replace(sink=sink))
    np.testing.assert_allclose(found.lse, np.log(total), rtol=1e-13)
    none = forward(given._replace(sink=np.full(2, -np.inf)))
    np.testing.assert_allclose(none.out, forward(given).out, rtol=1e-13)


def test_a_sink_of_nothing_where_nothing_is_seen() -> None:
    given = _plain(3)._replace(patterns=[()], sink=np.full(2, -np.inf))
    found = forward(given)
    assert not found.out.any()
    assert np.isneginf(found.lse).all()
    slopes = backward(given, np.ones_like(found.out), found.out, found.lse)
    assert slopes.sink is not None
    assert not slopes.sink.any()


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_scores_do_not_overflow(size: float) -> None:
    given = _plain(8, np.float32)
    given.query[:] = size
    given.key[:] = np.arange(8, dtype=np.float32)[None, None, :, None]
    found = forward(given)
    expected = given.value if size > 0 else np.repeat(given.value[:, :, :1], 8, 2)
    np.testing.assert_allclose(found.out, expected, rtol=1e-6)
    assert all(
        np.isfinite(each).all()
        for each in backward(given, np.ones_like(found.out), found.out, found.lse)
        if each is not None
    )


@pytest.mark.parametrize("edges", [(2, 3), (64, 512)])
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_keys_merge_to_the_whole(edges: tuple[int, int], parts: int) -> None:
    numbers._EDGES = edges  # type: ignore[misc]
    s = 12
    given = _plain(s)
    whole, grad = forward(given), np.random.default_rng(1).standard_normal((1, 2, s, 4))
    slopes = backward(given, grad, whole.out, whole.lse)
    size, outs, sums, dq = s // parts, [], [], np.zeros_like(given.query)
    for part in range(parts):
        keys = slice(part * size, (part + 1) * size)
        some = given._replace(
            key=given.key[:, :, keys],
            value=given.value[:, :, keys],
            patterns=[bands(in_order(s), (Segment(0, part * size, size, 0),), CAUSAL)],
        )
        found = forward(some)
        outs.append(found.out)
        sums.append(found.lse)
        # With the sums of the whole, these are the gradients that pass through the part.
        through = backward(some, grad, whole.out, whole.lse)
        dq += through.query
        np.testing.assert_allclose(through.key, slopes.key[:, :, keys], atol=1e-13)
        np.testing.assert_allclose(through.value, slopes.value[:, :, keys], atol=1e-13)
    shares = np.exp(np.stack(sums) - whole.lse[None])[..., None]
    np.testing.assert_allclose((np.stack(outs) * shares).sum(0), whole.out, atol=1e-13)
    np.testing.assert_allclose(dq, slopes.query, atol=1e-13)


@pytest.mark.parametrize("edges", [(3, 3), (64, 512)])
def test_dropout(edges: tuple[int, int]) -> None:
    numbers._EDGES = edges  # type: ignore[misc]
    s, p = 10, 0.4
    given = _plain(s, dropout=Dropout(p, seed=7))
    # The value that stands alone in its own column shows the factor of its weight.
    shown = given._replace(value=np.broadcast_to(np.eye(s), (1, 2, s, s)).copy())
    visible = np.tri(s, dtype=np.bool_)
    full = weights(given, visible)
    kept = forward(shown).out / np.where(full == 0, 1, full)
    factors = np.round(kept * (1 - p), 9)
    assert set(np.unique(factors[:, :, visible])) == {0.0, 1.0}
    assert 0.4 < factors[:, :, visible].mean() < 0.8
    found = forward(given)
    np.testing.assert_allclose(found.out, dense(given, visible, kept), atol=1e-12)
    np.testing.assert_array_equal(found.lse, forward(given._replace(dropout=None)).lse)
    # Backward drops the same weights.
    rng = np.random.default_rng(3)
    grad: Array = np.asarray(rng.standard_normal(found.out.shape))
    slopes = backward(given, grad, found.out, found.lse)
    for name in ("query", "key", "value"):
        start = getattr(given, name)
        way = rng.standard_normal(start.shape)
        ahead, behind = (
            (dense(given._replace(**{name: start + step * way}), visible, kept) * grad).sum()
            for step in (STEP, -STEP)
        )
        expected = (ahead - behind) / (2 * STEP)
        assert abs(expected - (getattr(slopes, name) * way).sum()) < 1e-6 * (1 + abs(expected))
    other = forward(given._replace(dropout=Dropout(p, seed=8))).out
    assert not np.array_equal(other, found.out)
    assert not forward(given._replace(dropout=Dropout(1.0, seed=7))).out.any()


def test_each_tile_drops_others() -> None:
    numbers._EDGES = 8, 8  # type: ignore[misc]
    s = 16
    given = Operands(
        np.zeros((1, 1, s, 1)),
        np.ones((1, 1, s, 1)),
        np.eye(s)[None, None],
        [bands(in_order(s), in_order(s), EVERYTHING)],
        1.0,
        dropout=Dropout(0.5, seed=1),
    )
    kept = (forward(given).out[0, 0] > 0).reshape(2, 8, 2, 8).swapaxes(1, 2).reshape(4, 64)
    assert len({each.tobytes() for each in kept}) == 4


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)], ids=str)
def test_empty_operands(shape: tuple[int, int, int, int]) -> None:
    q = np.ones(shape)
    rows = in_order(shape[2])
    given = Operands(q, q, np.ones((*shape[:3], 2)), [bands(rows, rows, EVERYTHING)], 1.0)
    found = forward(given)
    np.testing.assert_array_equal(found.out, np.ones((*shape[:3], 2)))
    slopes = backward(given, found.out, found.out, found.lse)
    assert slopes.query.shape == slopes.key.shape == shape


def _peak_bytes(s: int) -> int:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, s, 8), np.float32) for _ in range(3))
    given = Operands(q, k, v, [bands(in_order(s), in_order(s), CAUSAL)], 0.3)
    tracemalloc.start()
    found = forward(given)
    backward(given, q, found.out, found.lse)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_grows_with_the_rows_and_not_their_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_EDGES", (256, 256))
    short, long = _peak_bytes(4096), _peak_bytes(8192)
    assert long < 2.1 * short
    assert long < 8192 * 8192 * 4 / 50, "far less than a matrix of scores"
