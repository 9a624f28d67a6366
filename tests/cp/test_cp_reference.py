"""The reference itself: its gradients are the slopes of its output."""

import numpy as np
import pytest
from cp_reference import Problem, rows_of, solve, zigzag


def test_zigzag() -> None:
    assert [zigzag(8, 2, rank) for rank in range(2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]


def problem(window: tuple[int, int], bias: tuple[int, ...] | None, sink: bool) -> Problem:
    rng = np.random.default_rng(5)
    queries, keys = rows_of([3, 0, 2], [4, 1, 3]), rows_of([2, 1, 3], [3, 1, 4])
    return Problem(
        rng.normal(size=(8, 2, 2)),
        rng.normal(size=(8, 1, 2)),
        rng.normal(size=(8, 1, 1)),
        rng.normal(size=(8, 2, 1)),
        queries,
        keys,
        window,
        0.7,
        None if bias is None else rng.normal(size=bias),
        rng.normal(size=2) if sink else None,
    )


@pytest.mark.parametrize(
    ("window", "bias", "sink"),
    [
        ((-1, -1), None, False),
        ((-1, 0), None, True),
        ((1, 2), (1, 2, 4, 4), False),
        ((0, 0), (3, 1, 4, 4), True),
        ((-1, 0), (1, 1, 1, 4), True),
    ],
)
def test_gradients_are_slopes(
    window: tuple[int, int], bias: tuple[int, ...] | None, sink: bool
) -> None:
    given = problem(window, bias, sink)
    found = solve(given)
    step = 1e-6
    slopes = {"query": found.dq, "key": found.dk, "value": found.dv}
    if found.dbias is not None:
        slopes["bias"] = found.dbias
    if found.dsink is not None:
        slopes["sink"] = found.dsink
    for name, expected in slopes.items():
        x = getattr(given, name)
        for at in np.ndindex(x.shape):
            around = []
            for moved in (x[at] - step, x[at] + step):
                other = x.copy()
                other[at] = moved
                out = solve(given._replace(**{name: other})).out
                # Rows of padding are 0, and count for nothing.
                around.append(float((out * given.grad).sum()))
            assert (around[1] - around[0]) / (2 * step) == pytest.approx(expected[at], abs=1e-7)


def test_rows_of_padding_are_not_read() -> None:
    given = problem((-1, 0), None, True)
    query, key, value, grad = (np.array(x) for x in given[:4])
    for x, rows in ((query, given.queries), (key, given.keys)):
        x[~rows.real] = np.nan
    value[~given.keys.real] = np.nan
    grad[~given.queries.real] = np.nan
    planted = given._replace(query=query, key=key, value=value, grad=grad)
    for found, expected in zip(solve(planted), solve(given), strict=True):
        if expected is not None:
            np.testing.assert_array_equal(found, expected)
