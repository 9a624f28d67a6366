"""Complex numbers against numpy, and as PyTorch prints them."""

import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import kernbench.torch as torch
from kernbench import tl
from kernbench.errors import KernbenchError, UnsupportedError
from kernbench.runtime_api.context import RuntimeContext

TYPES: Final = [torch.complex64, torch.complex128]
HELD: Final = {torch.complex64: np.complex64, torch.complex128: np.complex128}

VALUES: Final = [[1 + 1j, -2.5j], [3, -4 + 0.5j]]


def _same(tensor: torch.Tensor, expected: Any) -> None:
    found = np.asarray(tensor)
    assert found.dtype == np.asarray(expected).dtype
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", TYPES)
def test_tensors_are_made_of_complex_numbers(device: str, dtype: torch.dtype) -> None:
    held = HELD[dtype]
    x = torch.tensor(VALUES, dtype=dtype, device=device)
    assert x.is_complex()
    assert not x.is_floating_point()
    assert x.element_size() == 2 * x.real.element_size() == np.dtype(held).itemsize
    _same(x, np.array(VALUES, held))
    _same(torch.zeros(2, dtype=dtype, device=device), np.zeros(2, held))
    _same(torch.ones(2, 2, dtype=dtype, device=device), np.ones((2, 2), held))
    _same(torch.full((3,), 2 - 1j, dtype=dtype, device=device), np.full(3, 2 - 1j, held))
    _same(torch.eye(2, dtype=dtype, device=device), np.eye(2, dtype=held))
    _same(torch.full_like(x, 1j), np.full((2, 2), 1j, held))
    _same(x.new_ones(1), np.ones(1, held))
    _same(torch.as_tensor(np.array(VALUES, held)), np.array(VALUES, held))
    assert torch.empty(2, dtype=dtype, device=device).dtype is dtype


def test_complex_numbers_alone_give_complex64(device: str) -> None:
    assert torch.cfloat is torch.complex64
    assert torch.cdouble is torch.complex128
    assert torch.tensor([1, 2.5, 1j], device=device).dtype is torch.complex64
    assert torch.full((2,), 1j, device=device).dtype is torch.complex64
    _same(torch.linspace(0, 1j, 3, device=device), np.array([0, 0.5j, 1j], np.complex64))


BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "number +": lambda a, b: (1 - 2j) + a,
    "number -": lambda a, b: 2j - a,
    "number *": lambda a, b: a * (1 + 2j),
    "number /": lambda a, b: a / (1 + 2j),
    "real number": lambda a, b: a * 2.5 + 1,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != 1j,
    "**": lambda a, b: a**2,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", TYPES)
def test_operators_do_what_numpys_do(device: str, dtype: torch.dtype, name: str) -> None:
    a: Any = np.array(VALUES, HELD[dtype])
    b: Any = np.array([[1 + 1j, 0.5], [1j, 2 - 2j]], HELD[dtype])
    found = BINARY[name](*(torch.tensor(value, device=device) for value in (a, b)))
    expected = BINARY[name](a, b)
    _same(found, expected if expected.dtype == bool else expected.astype(HELD[dtype]))


UNARY: Final = [
    *("abs", "angle", "conj", "cos", "exp", "log", "neg", "real", "imag", "sin", "sqrt", "square"),
    *("tan", "tanh", "isnan", "isinf", "isfinite", "reciprocal"),
]
NUMPY: Final = {"neg": "negative", "conj": "conjugate"}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", TYPES)
def test_functions_do_what_numpys_do(device: str, dtype: torch.dtype, name: str) -> None:
    a: Any = np.array(VALUES, HELD[dtype])
    expected = getattr(np, NUMPY.get(name, name))(a)
    _same(getattr(torch, name)(torch.tensor(a, device=device)), expected)


@pytest.mark.parametrize("name", ["sum", "mean", "prod"])
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_reductions_do_what_numpys_do(device: str, name: str, dim: int | None) -> None:
    a = np.array(VALUES, np.complex64)
    x = torch.tensor(a, device=device)
    found = getattr(x, name)() if dim is None else getattr(x, name)(dim)
    _same(found, getattr(np, name)(a, axis=dim))
    assert x.any().item()
    assert x.count_nonzero().item() == 4
    _same(x.cumsum(1), np.cumsum(a, 1))


PROMOTED: Final = [
    ((torch.int64, torch.complex64), torch.complex64),
    ((torch.bool, torch.complex128), torch.complex128),
    ((torch.float16, torch.complex64), torch.complex64),
    ((torch.bfloat16, torch.complex64), torch.complex64),
    ((torch.float32, torch.complex64), torch.complex64),
    ((torch.float64, torch.complex64), torch.complex128),
    ((torch.float32, torch.complex128), torch.complex128),
    ((torch.complex64, torch.complex128), torch.complex128),
]


@pytest.mark.parametrize(("pair", "result"), PROMOTED)
def test_types_are_promoted(ctx: RuntimeContext, pair: Any, result: torch.dtype) -> None:
    first, second = pair
    assert torch.promote_types(first, second) is result
    assert torch.promote_types(second, first) is result
    assert (torch.ones(2, dtype=first) * torch.ones(2, dtype=second)).dtype is result


SINGLES: Final = [
    (torch.int64, torch.complex64),
    (torch.bool, torch.complex64),
    (torch.float32, torch.complex64),
    (torch.bfloat16, torch.complex64),
    (torch.float64, torch.complex128),
    (torch.complex128, torch.complex128),
]


@pytest.mark.parametrize(("dtype", "result"), SINGLES)
def test_a_single_complex_value_keeps_the_precision(
    ctx: RuntimeContext, dtype: torch.dtype, result: torch.dtype
) -> None:
    x = torch.ones(2, dtype=dtype)
    assert (x * 1j).dtype is result
    assert (x * torch.tensor(1j)).dtype is result
    assert (1j + x).tolist() == [1 + 1j] * 2


def test_parts_are_views(device: str) -> None:
    x = torch.zeros(2, 3, dtype=torch.complex64, device=device)
    x.real.fill_(2)
    x.imag[1] = 5
    assert x.tolist() == [[2] * 3, [2 + 5j] * 3]
    assert x.real.stride() == (6, 2)
    both = torch.view_as_real(x)
    assert both.shape == (2, 3, 2)
    both[0, 0, 1] = -1
    assert x[0, 0].item() == 2 - 1j
    again = torch.view_as_complex(both)
    assert again.dtype is torch.complex64
    assert torch.equal(again, x)
    assert again.data_ptr() == x.data_ptr()
    assert torch.equal(torch.view_as_real(x[:, 1:].T)[..., 0], x.real[:, 1:].T)
    assert torch.equal(torch.complex(x.real, x.imag), x)
    real = torch.ones(2, device=device)
    assert real.real is real
    assert real.conj() is real


shapes = arrays.array_shapes(max_dims=3, max_side=4)
parts = st.floats(-1e3, 1e3, width=32)


@given(shapes.flatmap(lambda s: arrays.arrays(np.float32, (*s, 2), elements=parts)))
def test_views_as_real_and_as_complex_undo_each_other(topology: Any, values: Any) -> None:
    from kernbench.sim_engine.engine import GraphEngine

    with RuntimeContext(engine=GraphEngine(topology("sip8"))):
        pairs = torch.tensor(values, device="cuda")
        x = torch.view_as_complex(pairs)
        expected = values[..., 0] + 1j * values[..., 1]
        assert np.array_equal(np.asarray(x), expected.astype(np.complex64))
        assert torch.equal(torch.view_as_real(x), pairs)
        assert torch.equal(torch.view_as_real(x.conj())[..., 1], -pairs[..., 1])


def test_values_are_written_in_place(device: str) -> None:
    x = torch.zeros(4, dtype=torch.complex64, device=device)
    x[0] = 1j
    x[1] = 2
    x[2:] = torch.tensor([3.5, 4j], device=device)
    x *= 2j
    x.add_(1)
    assert x.tolist() == [-1, 1 + 4j, 1 + 7j, -7]
    assert torch.where(x == -1, x, 0j).tolist() == [-1, 0, 0, 0]
    assert x.masked_fill(x == -1, 1j)[0].item() == 1j
    x.copy_(torch.tensor([1.0, 2, 3, 4]))
    assert x.tolist() == [1, 2, 3, 4]


def test_reading_one_value(device: str) -> None:
    x = torch.tensor([1 + 2j, 3], device=device)
    assert x[0].item() == 1 + 2j
    assert complex(x[0]) == 1 + 2j
    assert (float(x[1]), int(x[1]), bool(x[0])) == (3.0, 3, True)
    assert 3 in x
    assert x.numpy().dtype == np.complex64
    assert f"{x[0]}" == "(1+2j)"
    assert torch.allclose(x, x + 1e-8j)
    torch.testing.assert_close(x, x.clone())
    with pytest.raises(AssertionError):
        torch.testing.assert_close(x, x + 1)


TEXTS: Final = {
    "tensor([1.+1.0000j, -0.-2.5000j, 3.+0.0000j])": lambda: torch.tensor([1 + 1j, -2.5j, 3]),
    "tensor([0.+0.j, 0.+0.j])": lambda: torch.zeros(2, dtype=torch.complex64),
    "tensor([0.+1.j], dtype=torch.complex128)": lambda: torch.ones(1).double() * 1j,
    "tensor(4.-1.5000j)": lambda: torch.tensor(4 - 1.5j),
    "tensor([   1.+1.0000e-05j, 1000.+0.0000e+00j])": lambda: torch.tensor([1 + 1e-5j, 1000]),
    "tensor([[1.0000+2.0000e+00j, 3.0000-4.0000e+00j],\n"
    "        [0.5000+0.0000e+00j, 0.0000+1.0000e+06j]])": lambda: torch.tensor(
        [[1 + 2j, 3 - 4j], [0.5, 1e6j]]
    ),
    "tensor([1.+1.j], device='cuda:3')": lambda: torch.tensor([1 + 1j], device="cuda:3"),
    "tensor([], dtype=torch.complex64)": lambda: torch.zeros(0, dtype=torch.complex64),
    "tensor([0.+1.j, 0.+1.j, 0.+1.j,  ..., 0.+1.j, 0.+1.j, 0.+1.j])": lambda: torch.full(
        (1001,), 1j
    ),
}


@pytest.mark.parametrize("expected", TEXTS)
def test_text_as_pytorch_prints_it(ctx: RuntimeContext, expected: str) -> None:
    assert str(TEXTS[expected]()) == expected


def test_long_rows_are_broken_as_in_pytorch(ctx: RuntimeContext) -> None:
    x = torch.arange(8) * (1 - 0.5j)
    assert str(x) == (
        "tensor([0.+0.0000j, 1.-0.5000j, 2.-1.0000j, 3.-1.5000j, 4.-2.0000j, 5.-2.5000j,\n"
        "        6.-3.0000j, 7.-3.5000j])"
    )


@pytest.mark.parametrize(
    "name", ["__lt__", "__le__", "__gt__", "__ge__", "__floordiv__", "__mod__"]
)
def test_there_is_no_order(ctx: RuntimeContext, name: str) -> None:
    x = torch.tensor([1j, 2])
    with pytest.raises(NotImplementedError, match=r"not implemented for torch\.complex64") as found:
        getattr(x, name)(x)
    assert "test_complex.py" in str(found.value)


@pytest.mark.parametrize(
    "name",
    [
        *("amax", "amin", "max", "min", "sort", "argsort", "unique", "relu", "sign", "floor"),
        *("ceil", "trunc", "round", "erf", "sigmoid", "std", "var", "norm"),
    ],
)
def test_functions_that_are_not_there_say_so(ctx: RuntimeContext, name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"not implemented for torch\.complex64"):
        getattr(torch.tensor([1j, 2]), name)()


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda x: torch.maximum(x, x), NotImplementedError, "maximum"),
        (lambda x: x.clamp(0), NotImplementedError, "clamp_min"),
        (lambda x: x.div(2, rounding_mode="floor"), NotImplementedError, "div_floor"),
        (lambda x: x.softmax(0), NotImplementedError, "softmax"),
        (lambda x: x.argmax(), RuntimeError, "does not support complex input"),
        (lambda x: x.topk(1), NotImplementedError, "topk"),
        (lambda x: torch.nn.functional.mse_loss(x, x), NotImplementedError, "mse_loss"),
        (torch.nn.functional.silu, NotImplementedError, "silu"),
        (torch.nn.functional.dropout, NotImplementedError, "native_dropout"),
        (lambda x: x & x, RuntimeError, "bitwise_and is not defined for torch.complex64"),
        (lambda x: ~x, TypeError, "only implemented on integer and Boolean"),
        (lambda x: x.abs_(), RuntimeError, "In-place abs is not supported"),
        (lambda x: float(x[0]), RuntimeError, "converted to type double without overflow"),
        (lambda x: int(x[0]), RuntimeError, "converted to type int64_t without overflow"),
        (lambda x: torch.ones(2).add_(x), RuntimeError, "can't be cast to the desired output"),
        (lambda x: torch.ones(2).fill_(1j), RuntimeError, "without overflow"),
        (lambda x: torch.ones(2).fill_(x[0]), RuntimeError, "cannot be converted to type"),
        (lambda x: torch.tensor([1j], dtype=torch.float32), RuntimeError, "without overflow"),
        (lambda x: torch.ones(1).imag, RuntimeError, "imag is not implemented for tensors with"),
        (lambda x: torch.view_as_real(torch.ones(1)), RuntimeError, "only supported for complex"),
        (lambda x: torch.view_as_complex(torch.ones(3)), RuntimeError, "dimension of size 2"),
        (lambda x: torch.view_as_complex(torch.ones(2, 2).T), RuntimeError, "of stride 1"),
        (lambda x: torch.view_as_complex(torch.ones(2).long()), RuntimeError, "float32 and float"),
        (lambda x: torch.view_as_complex(torch.ones(5)[1:3]), RuntimeError, "storage offset"),
        (lambda x: torch.view_as_complex(torch.ones(2, 3)[:, :2]), RuntimeError, "divisible by 2"),
        (lambda x: torch.ones(2).to(torch.float8_e5m2) * 1j, KernbenchError, "is not supported"),
        (lambda x: torch.complex(torch.ones(1), x.real.double()), RuntimeError, "both float64"),
        (lambda x: torch.arange(2, dtype=torch.cfloat), NotImplementedError, "arange"),
        (lambda x: torch.add(torch.ones(1), 1, alpha=1j), RuntimeError, "complex number"),
        (lambda x: x.sum(dtype=torch.float32), RuntimeError, "the imaginary part is lost"),
    ],
)
def test_mistakes(
    ctx: RuntimeContext, call: Callable[[Any], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        call(torch.tensor([1j, 2]))
    assert "test_complex.py" in str(caught.value)


def _into_a_tensor_in_a_kernel(x: Any) -> None:
    @tl.jit
    def kernel(pointer: tl.Pointer) -> None:
        tl.load(pointer + tl.arange(0, 2))

    kernel[1,](x.cuda())


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.randn(2, dtype=torch.cfloat),
        lambda x: x @ x,
        lambda x: torch.ones(2).half() * 1j,
        lambda x: torch.complex(torch.ones(1).half(), torch.ones(1).half()),
        lambda x: x.requires_grad_(),
        lambda x: x.normal_(),
        lambda x: torch.optim.SGD([x], lr=1),
        lambda x: torch.zeros(1, dtype=torch.cfloat, requires_grad=True),
        _into_a_tensor_in_a_kernel,
    ],
)
def test_what_is_not_simulated_says_so(ctx: RuntimeContext, call: Callable[[Any], Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"(is|are) not simulated"):
        call(torch.tensor([1j, 2]))


@pytest.mark.parametrize(
    "call",
    [
        lambda leaf, z: leaf * 1j,
        lambda leaf, z: z * leaf,
        lambda leaf, z: z.mul_(leaf),
        lambda leaf, z: z.copy_(leaf),
        lambda leaf, z: z.__setitem__(0, leaf[0]),
        lambda leaf, z: leaf.cfloat(),
        lambda leaf, z: leaf.sum(dtype=torch.cfloat),
        lambda leaf, z: torch.complex(leaf, leaf),
        lambda leaf, z: torch.view_as_complex(leaf),
        lambda leaf, z: leaf.view(torch.cfloat),
        lambda leaf, z: torch.cat([z, leaf]),
        lambda leaf, z: torch.where(z == 0, z, leaf),
    ],
)
def test_no_gradient_is_lost_in_silence(
    ctx: RuntimeContext, call: Callable[[Any, Any], Any]
) -> None:
    leaf = torch.ones(2, requires_grad=True)
    z = torch.zeros(2, dtype=torch.complex64)
    with pytest.raises(UnsupportedError, match="gradients of complex numbers are not simulated"):
        call(leaf, z)
    with torch.no_grad():
        call(leaf, z)


def test_casting_to_real_warns(ctx: RuntimeContext) -> None:
    x = torch.tensor([1 + 2j, 0j])
    with pytest.warns(UserWarning, match="discards the imaginary part") as caught:
        assert x.float().tolist() == [1, 0]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert x.bool().tolist() == [True, False]
        assert x.cdouble().cfloat().tolist() == [1 + 2j, 0]


def test_a_kernel_on_complex_numbers_takes_the_time_of_its_bytes(ctx: RuntimeContext) -> None:
    def elapsed(dtype: torch.dtype, count: int) -> float:
        x = torch.zeros(count, dtype=dtype, device="cuda")
        torch.cuda.synchronize()
        before = ctx.main.host.clock
        x.clone()
        torch.cuda.synchronize()
        return ctx.main.host.clock - before

    n = 1 << 20
    assert elapsed(torch.complex64, n) == elapsed(torch.float32, 2 * n)
    assert elapsed(torch.complex128, n) == elapsed(torch.float64, 2 * n)
