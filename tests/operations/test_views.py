"""Views against numpy's: shapes, strides, shared memory, shared written-tracking."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernbench.torch as torch
from kernbench.memory import UninitialisedReadError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine

View = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def _sliced(key: tuple[slice, ...]) -> View:
    return lambda a: a[key], lambda t: t[key]


def _permuted(order: list[int]) -> View:
    return lambda a: a.transpose(order), lambda t: t.permute(order)


def _unsqueezed(dim: int) -> View:
    return lambda a: np.expand_dims(a, dim), lambda t: t.unsqueeze(dim)


def _selected(index: int) -> View:
    return lambda a: a[..., index % a.shape[-1]], lambda t: t.select(-1, index % t.shape[-1])


SQUEEZED: Final[View] = (lambda a: a.squeeze(), lambda t: t.squeeze())
HALVED: Final[View] = (lambda a: a[len(a) // 2 :], lambda t: t[len(t) // 2 :])


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], list[View]]:
    """Returns a shape and a chain of views, each as numpy's and as PyTorch's."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    chain: list[View] = []
    for _ in range(draw(st.integers(1, 5))):
        extents = _followed(shape, chain).shape
        rank = len(extents)
        if 0 in extents:
            break
        kinds = ["permute", "unsqueeze", "squeeze"] + ["slice", "select", "cut"] * (rank > 0)
        kind = draw(st.sampled_from(kinds))
        if kind == "slice":
            one = st.builds(
                slice, st.none() | st.integers(-4, 4), st.integers(-4, 5), st.integers(1, 3)
            )
            chain.append(_sliced(tuple(draw(st.lists(one, min_size=1, max_size=rank)))))
        elif kind == "permute":
            chain.append(_permuted(list(draw(st.permutations(range(rank))))))
        elif kind == "unsqueeze":
            chain.append(_unsqueezed(draw(st.integers(0, rank))))
        elif kind == "select":
            chain.append(_selected(draw(st.integers(0, 3))))
        else:
            chain.append(SQUEEZED if kind == "squeeze" else HALVED)
    return shape, chain


def _followed(shape: list[int], chain: list[View]) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for theirs, _ in chain:
        array = theirs(array)
    return array


@given(case=steps())
def test_chains_of_views_are_numpys(case: tuple[list[int], list[View]], topology: Any) -> None:
    shape, chain = case
    expected = _followed(shape, chain)
    with RuntimeContext(engine=GraphEngine(topology("sip8"))) as ctx:
        base = torch.arange(float(np.prod(shape)), device="cuda").view(shape)
        commands = ctx.main.current_stream(0).count
        found = base
        for _, ours in chain:
            found = ours(found)
        assert ctx.main.current_stream(0).count == commands, "a view is no command"
        assert found.shape == expected.shape
        for extent, step, nbytes in zip(found.shape, found.stride(), expected.strides, strict=True):
            assert extent < 2 or step * 4 == nbytes
        np.testing.assert_array_equal(found.numpy(), expected)
        assert found.is_contiguous() == expected.flags.c_contiguous or 0 in expected.shape
        found += 1
        plain = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        window = plain
        for theirs, _ in chain:
            window = theirs(window)
        window += 1
        np.testing.assert_array_equal(base.numpy(), plain)


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    order=st.permutations(range(4)),
    cut=st.booleans(),
    wanted=st.lists(st.integers(1, 6), min_size=1, max_size=4),
)
def test_view_finds_strides_exactly_where_there_are_some(
    shape: list[int], order: list[int], cut: bool, wanted: list[int], topology: Any
) -> None:
    dims = [dim for dim in order if dim < len(shape)]
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape).transpose(dims)
    array = array[..., ::2] if cut else array
    with RuntimeContext(engine=GraphEngine(topology("sip8"))):
        x = torch.arange(float(np.prod(shape))).view(shape).permute(dims)
        x = x[..., ::2] if cut else x
        if np.prod(wanted) != array.size:
            with pytest.raises(RuntimeError, match="is invalid for input of size"):
                x.view(wanted)
            return
        try:
            # numpy's own rule for reshaping without a copy
            seen = array.reshape(wanted, copy=False)
        except ValueError:
            with pytest.raises(RuntimeError, match="view size is not compatible"):
                x.view(wanted)
            assert not np.shares_memory(x.reshape(wanted).numpy(), x.numpy())
        else:
            np.testing.assert_array_equal(x.view(wanted).numpy(), seen)
            assert np.shares_memory(x.reshape(wanted).numpy(), x.numpy())
        np.testing.assert_array_equal(x.reshape(wanted).numpy(), array.reshape(wanted))


def test_the_other_views(device: str) -> None:
    values = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    x = torch.tensor(values, device=device)
    for ours, theirs in (
        (x.flatten(1), values.reshape(2, 12)),
        (x.unflatten(2, (2, -1)), values.reshape(2, 3, 2, 2)),
        (x.T, values.T),
        (x.mT, values.swapaxes(1, 2)),
        (x[0].t(), values[0].T),
        (x.movedim(0, 2), np.moveaxis(values, 0, 2)),
        (x.narrow(1, 1, 2), values[:, 1:3]),
        (x[:, :1].expand(2, 5, -1), np.broadcast_to(values[:, :1], (2, 5, 4))),
        (x[0, 0].expand_as(x), np.broadcast_to(values[0, 0], values.shape)),
        (x.diagonal(1, 1, 2), values.diagonal(1, 1, 2)),
        (x.diagonal(-1, 2, 0), values.diagonal(-1, 2, 0)),
        (x.reshape_as(x.flatten()), values.reshape(-1)),
        (x.data, values),
    ):
        np.testing.assert_array_equal(ours.numpy(), theirs)
        assert ours.untyped_storage() is x.untyped_storage()
    for pieces, others in (
        (x.split(2, 1), (values[:, :2], values[:, 2:])),
        (x.split([1, 3], -1), (values[..., :1], values[..., 1:])),
        (x.chunk(3, 2), np.split(values, [2], 2)),
        (x.unbind(1), list(values.swapaxes(0, 1))),
        (tuple(x), list(values)),
    ):
        for mine, other in zip(pieces, others, strict=True):
            np.testing.assert_array_equal(mine.numpy(), other)
    assert (x.size(), x.size(-1), x.stride(), x.stride(0)) == ((2, 3, 4), 4, (12, 4, 1), 12)
    assert (x.dim(), x.ndim, x.numel(), len(x), x.nbytes) == (3, 3, 24, 2, 96)
    assert x[1].storage_offset() == 12
    assert x[1].data_ptr() == x.data_ptr() + 48
    assert repr(x.shape) == "torch.Size([2, 3, 4])"


def test_the_same_bytes_as_another_type(device: str) -> None:
    x = torch.tensor([[1.0, -2.0]], device=device)
    bits = x.view(torch.int32)
    np.testing.assert_array_equal(bits.numpy(), x.numpy().view(np.int32))
    bits[0, 0] = 0
    assert x.tolist() == [[0.0, -2.0]]
    assert x.view(torch.int8).shape == (1, 8)
    assert x.view(torch.int8)[:, 4:].view(torch.float32).tolist() == [[-2.0]]
    assert x.view(torch.float64).shape == (1, 1)
    with pytest.raises(RuntimeError, match=r"cannot be viewed as torch\.int64"):
        x.T.view(torch.int64)


ERRORS: Final = [
    (lambda x: x.view(5, 5), RuntimeError, r"shape '\[5, 5\]' is invalid for input of size 24"),
    (lambda x: x.view(-1, -1), RuntimeError, "only one dimension can be inferred"),
    (lambda x: x.view(-2, 3), RuntimeError, "invalid shape dimension -2"),
    (lambda x: x.view("a"), TypeError, "expected integers; got"),
    (lambda x: x.transpose(0, 5), IndexError, r"expected to be in range of \[-3, 2\], but got 5"),
    (lambda x: x.permute(0, 1), RuntimeError, "3 dimensions need an order of 3, got 2"),
    (lambda x: x.permute(0, 1, 1), RuntimeError, "duplicate dims are not allowed"),
    (lambda x: x.unsqueeze(4), IndexError, r"expected to be in range of \[-4, 3\], but got 4"),
    (lambda x: x.expand(4, 3, 4), RuntimeError, "must match the existing size"),
    (lambda x: x.expand(-1, 2, 3, 4), RuntimeError, "leading, non-existing dimension 0"),
    (lambda x: x.expand(3, 4), RuntimeError, "must be greater or equal to the number of dim"),
    (lambda x: x.narrow(1, 2, 2), RuntimeError, r"start \(2\) \+ length \(2\) exceeds dimension"),
    (lambda x: x.select(1, 5), IndexError, r"select\(\): index 5 out of range for tensor of size"),
    (lambda x: x[0, 0, 0].select(0, 0), IndexError, "cannot be applied to a 0-dim tensor"),
    (lambda x: x.split([1, 1], 1), RuntimeError, "to sum exactly to 3"),
    (lambda x: x.split(0), RuntimeError, "split_size can only be 0"),
    (lambda x: x.chunk(0), RuntimeError, "chunk expects `chunks` to be greater than 0"),
    (lambda x: x.flatten(2, 1), RuntimeError, "start_dim cannot come after end_dim"),
    (lambda x: x.t(), RuntimeError, r"t\(\) expects a tensor with <= 2 dimensions, but self is 3D"),
    (lambda x: x[0, 0].mT, RuntimeError, "only supported on matrices or batches of matrices"),
    (lambda x: x.diagonal(0, 1, 1), RuntimeError, "diagonal dimensions cannot be identical"),
    (lambda x: len(x.sum()), TypeError, r"len\(\) of a 0-d tensor"),
    (lambda x: iter(x.sum()), TypeError, "iteration over a 0-d tensor"),
]


@pytest.mark.parametrize(("operation", "kind", "message"), ERRORS)
def test_mistakes(
    ctx: RuntimeContext, operation: Callable[..., Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        operation(torch.ones(2, 3, 4))
    assert "test_views.py" in str(caught.value)


def test_a_view_that_has_no_strides_says_why(ctx: RuntimeContext) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2, 3).T.view(6)
    assert str(caught.value).splitlines() == [
        "view size is not compatible with input tensor's size and stride (at least one dimension "
        "spans across two contiguous subspaces). Use .reshape(...) instead.",
        *[line for line in str(caught.value).splitlines() if line.startswith("  at ")],
        "  shape [3, 2], strides [1, 3], wanted [6]",
    ]


def test_views_share_what_is_written(device: str) -> None:
    x = torch.empty(4, 4, device=device)
    x[:, 1].fill_(1)
    x.T[2] = torch.arange(4.0, device=device)
    assert x[:, 1:3].tolist() == [[1, 0], [1, 1], [1, 2], [1, 3]]
    with pytest.raises(UninitialisedReadError) as caught:
        x[1:].tolist()
    assert str(caught.value).startswith(
        "[M5] 6 of 12 elements of tensor [4, 4] torch.float32 were never written\n"
    )
    x[:, ::3] = 0
    assert x.untyped_storage().buffer.unwritten is not None
    x.sum().item()  # who reads all of it finds that all of it is written
    assert x.untyped_storage().buffer.unwritten is None


def test_views_work_without_data(ctx_without_data: RuntimeContext) -> None:
    x = torch.empty(2, 3, device="cuda")
    assert x.T[1:].unsqueeze(0).expand(5, -1, -1).shape == (5, 2, 2)
    assert x.mT.reshape(-1).shape == (6,)
