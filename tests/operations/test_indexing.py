"""`tensor[...]` against numpy, and indices that do not exist."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernbench.torch as torch
from kernbench.errors import NoDataError
from kernbench.operations.shaping import IndexOutOfBoundsError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine

SHAPE: Final = (3, 4, 5)


def _values() -> np.ndarray[Any, Any]:
    return np.arange(60, dtype=np.float32).reshape(SHAPE)


@given(
    key=st.lists(
        st.one_of(
            st.none(),
            st.integers(-3, 2),
            st.builds(
                slice,
                st.none() | st.integers(-6, 6),
                st.none() | st.integers(-6, 6),
                st.none() | st.integers(1, 3),
            ),
        ),
        max_size=3,
    ),
    dots=st.none() | st.integers(0, 3),
)
def test_integers_and_slices_are_views(key: list[Any], dots: int | None, topology: Any) -> None:
    entries = key if dots is None else [*key[:dots], ..., *key[dots:]]
    expected = _values()[tuple(entries)]
    with RuntimeContext(engine=GraphEngine(topology("sip8"))) as ctx:
        x = torch.tensor(_values(), device="cuda")
        count = ctx.main.current_stream(0).count
        found = x[tuple(entries)]
        assert ctx.main.current_stream(0).count == count
        assert found.untyped_storage() is x.untyped_storage()
        np.testing.assert_array_equal(found.numpy(), expected)
        assert found.shape == np.shape(expected)
        x[tuple(entries)] = -1
        plain = _values()
        plain[tuple(entries)] = -1
        np.testing.assert_array_equal(x.numpy(), plain)


ROWS: Final = np.array([2, 0, -1])
KEYS: Final[list[Callable[[Any], Any]]] = [
    lambda i: i(ROWS),
    lambda i: (slice(None), i(ROWS)),
    lambda i: (slice(None), slice(None), i(ROWS)),
    lambda i: (i(ROWS), i(ROWS)),
    lambda i: (i(ROWS[:, None]), i(ROWS)),
    lambda i: (i(ROWS), slice(1, 3), i(ROWS)),
    lambda i: (..., i(ROWS)),
    lambda i: (i(ROWS), None),
    lambda i: (None, i(ROWS), slice(None, None, 2)),
    lambda i: i(ROWS.reshape(3, 1)),
    lambda i: (slice(1, None), i(ROWS), i(ROWS)),
]


@pytest.mark.parametrize("key", KEYS)
def test_index_tensors_gather_and_scatter(device: str, key: Callable[[Any], Any]) -> None:
    x = torch.tensor(_values(), device=device)
    plain = _values()
    theirs = key(lambda rows: rows)
    for make in (
        lambda rows: torch.tensor(rows, device=device),
        torch.tensor,
        lambda rows: rows,
        lambda rows: rows.tolist() if rows.ndim == 1 else rows,
    ):
        found = x[key(make)]
        np.testing.assert_array_equal(found.numpy(), plain[theirs])
        assert found.untyped_storage() is not x.untyped_storage()
    ours = key(lambda rows: torch.tensor(rows, device=device))
    x[ours] = torch.tensor(-plain[theirs], device=device)
    plain[theirs] = -plain[theirs]
    np.testing.assert_array_equal(x.numpy(), plain)
    x[ours] = 3
    plain[theirs] = 3
    np.testing.assert_array_equal(x.numpy(), plain)


def test_an_integer_beside_an_index_tensor_is_a_view_first(ctx: RuntimeContext) -> None:
    # numpy would count the 0 as an index and put the gathered dimension first.
    x = torch.tensor(_values())
    assert x[0, :, torch.tensor([0, 2])].shape == (4, 2)


def test_masks(device: str) -> None:
    values = _values()
    x = torch.tensor(values, device=device)
    np.testing.assert_array_equal(x[x > 30].numpy(), values[values > 30])
    rows = np.array([True, False, True])
    np.testing.assert_array_equal(x[torch.tensor(rows, device=device)].numpy(), values[rows])
    np.testing.assert_array_equal(x[:, [True, False, True, False]].numpy(), values[:, ::2])
    x[x > 30] = 0
    x[x == 1] = torch.tensor([7.0], device=device)
    values[values > 30] = 0
    values[values == 1] = 7
    np.testing.assert_array_equal(x.numpy(), values)
    with pytest.raises(IndexError, match=r"The shape of the mask \[2\] at index 0 does not match"):
        _ = x[torch.tensor([True, False], device=device)]


def test_a_mask_is_read_by_the_host_but_not_to_fill(ctx: RuntimeContext) -> None:
    x = torch.arange(4.0, device="cuda")
    mask = x > 1
    before = ctx.main.host.waited
    x[mask] = 0
    assert ctx.main.host.waited == before
    _ = x[mask]
    assert ctx.main.host.waited > before


def test_gather_scatter_and_selection(device: str) -> None:
    values = _values()[0]
    x = torch.tensor(values, device=device)
    index = np.array([[0, 2], [1, 1], [4, 0], [3, 3]])
    i = torch.tensor(index, device=device)
    np.testing.assert_array_equal(
        torch.gather(x, 1, i).numpy(), np.take_along_axis(values, index, 1)
    )
    np.testing.assert_array_equal(x.index_select(0, i[0]).numpy(), values[[0, 2]])
    expected = values.copy()
    np.put_along_axis(expected, index, 9, 1)
    np.testing.assert_array_equal(x.scatter(1, i, 9).numpy(), expected)
    np.testing.assert_array_equal(x.numpy(), values)
    x.scatter_add_(1, i[1:2], torch.ones(1, 2, device=device))
    assert x[0, 1].item() == values[0, 1] + 2
    with pytest.raises(RuntimeError, match=r"expected self\.dtype to be equal to src.dtype"):
        x.scatter_(1, i, i)
    with pytest.raises(TypeError, match="expected an index tensor of int64 or int32"):
        x.gather(1, x)


MISTAKES: Final = [
    (lambda x: x[5], IndexError, "out of range|out of bounds"),
    (lambda x: x[0, 4], IndexError, "index 4 is out of bounds for dimension 1 with size 4"),
    (lambda x: x[0, 0, 0, 0], IndexError, "too many indices for tensor of dimension 3"),
    (lambda x: x[::-1], ValueError, "step must be greater than zero"),
    (lambda x: x[1.0], IndexError, r"only integers, slices .* are valid indices \(got float\)"),
    (lambda x: x["a"], IndexError, "tensors used as indices must be"),
    (lambda x: x[x], IndexError, "tensors used as indices must be"),
    (lambda x: x.sum()[0], IndexError, "too many indices"),
    (lambda x: x.__setitem__(0, [1, 2]), TypeError, "can't assign a list to a tensor"),
    (lambda x: x.__setitem__(0, x[0, :, :2]), RuntimeError, "cannot be broadcast"),
    (lambda x: x.__setitem__([0, 1], x[:2, :3]), RuntimeError, "must match|shape mismatch"),
    (lambda x: x.index_select(0, x[0]), TypeError, "expected an index tensor"),
    (lambda x: x.gather(0, torch.tensor([0])), RuntimeError, "does not fit input of shape"),
]


@pytest.mark.parametrize(("operation", "kind", "message"), MISTAKES)
def test_mistakes(
    ctx: RuntimeContext, operation: Callable[..., Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        operation(torch.tensor(_values()))
    assert "test_indexing.py" in str(caught.value)


def test_out_of_bounds_on_the_host_is_found_in_the_call(ctx: RuntimeContext) -> None:
    with pytest.raises(IndexError) as caught:
        _ = torch.tensor(_values())[torch.tensor([0, 7, 8])]
    lines = str(caught.value).splitlines()
    assert lines[0] == "[M1] index: index 7 is out of bounds for dimension 0 with size 3"
    assert lines[1] == "  valid indices -3..2; 2 of 3 are bad, the first is number 1"
    assert lines[2].startswith("  aten::index was called at ")


def test_out_of_bounds_on_a_device_is_found_where_the_host_waits(ctx: RuntimeContext) -> None:
    x = torch.tensor(_values(), device="cuda")
    x[:, torch.tensor([4], device="cuda")] = 1
    with pytest.raises(IndexOutOfBoundsError) as caught:
        torch.cuda.synchronize()
    lines = str(caught.value).splitlines()
    assert lines[0] == "[M2] index_put_: index 4 is out of bounds for dimension 1 with size 4"
    assert lines[1] == "  valid indices -4..3; 1 of 1 are bad, the first is number 0"
    assert lines[2].startswith("  aten::index_put_ was issued at ")
    assert 'x[:, torch.tensor([4], device="cuda")] = 1' in lines[2]


def test_without_data_shapes_are_known_and_masks_are_not(ctx_without_data: RuntimeContext) -> None:
    x = torch.zeros(SHAPE, device="cuda")
    assert x[1:, None].shape == (2, 1, 4, 5)
    assert x[:, torch.zeros(6, dtype=torch.int64)].shape == (3, 6, 5)
    x[x > 0] = 1
    with pytest.raises(NoDataError, match=r"__getitem__\(\) needs values"):
        _ = x[x > 0]
