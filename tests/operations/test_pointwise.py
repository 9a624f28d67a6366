"""Operations element by element, against numpy and against texts of PyTorch's."""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernbench.torch as torch
from kernbench.errors import KernbenchError, NoDataError, UnsupportedError
from kernbench.memory import DType, UninitialisedReadError, dtypes
from kernbench.memory.special import erf_values
from kernbench.operations.unary import gelu, silu
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine

VALUES: Final = [-2.5, -1.0, -0.25, 0.0, 0.5, 1.5, 3.0]

FUNCTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "log10": np.log10,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(math.erf),
    "neg": np.negative,
    "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0),
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "square": np.square,
}


def _expected(name: str, values: Any) -> Any:
    with np.errstate(all="ignore"):
        return FUNCTIONS[name](np.asarray(values, np.float64))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_floats(device: str, name: str) -> None:
    x = torch.tensor(VALUES, device=device)
    result = getattr(torch, name)(x)
    assert result.dtype is torch.float32
    assert result.device.type == device
    np.testing.assert_allclose(result.numpy(), _expected(name, VALUES), rtol=2e-6, atol=1e-7)
    if name != "square":
        getattr(x, f"{name}_")()
        np.testing.assert_array_equal(x.numpy(), result.numpy())


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16])
def test_functions_of_16_bit_floats_are_rounded_once(
    ctx: RuntimeContext, name: str, dtype: DType
) -> None:
    x = torch.tensor(VALUES, device="cuda").to(dtype)
    function = getattr(torch, name)
    expected = function(x.float()).numpy().astype(dtype.numpy).astype(np.float32)
    assert function(x).dtype is dtype
    np.testing.assert_array_equal(function(x).float().numpy(), expected)


@pytest.mark.parametrize("name", ["exp", "sqrt", "sigmoid", "erf", "reciprocal"])
def test_functions_of_integers_give_float32(ctx: RuntimeContext, name: str) -> None:
    result = getattr(torch, name)(torch.tensor([1, 2, 4]))
    assert result.dtype is torch.float32
    np.testing.assert_allclose(result.numpy(), _expected(name, [1, 2, 4]), rtol=1e-6)


def test_erf_is_right_to_the_last_bit_of_float32() -> None:
    edges = [0.0, -0.0, np.inf, -np.inf, 4.0, -4.0, 3.9999998]
    x = np.concatenate([np.linspace(-5, 5, 20001), np.logspace(-38, 1, 2000), edges])
    x = x.astype(np.float32)
    exact = np.array([math.erf(value) for value in x.tolist()])
    error = np.abs(erf_values(x) - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert error.max() < 0.6
    assert np.isnan(erf_values(np.array([np.nan], np.float32)))[0]
    assert math.copysign(1, erf_values(np.array([-0.0], np.float32))[0]) == -1
    assert erf_values(np.array([0.3]))[0] == math.erf(0.3)


def test_activations(device: str) -> None:
    x = torch.tensor(VALUES, device=device)
    v = np.array(VALUES)
    phi = 0.5 * (1 + np.vectorize(math.erf)(v / math.sqrt(2)))
    np.testing.assert_allclose(gelu(x).numpy(), v * phi, rtol=1e-6, atol=1e-7)
    bent = 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    np.testing.assert_allclose(gelu(x, approximate="tanh").numpy(), bent, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(silu(x).numpy(), v / (1 + np.exp(-v)), rtol=1e-6)
    with pytest.raises(ValueError, match="approximate argument must be either none or tanh"):
        gelu(x, approximate="fast")  # type: ignore[arg-type]


OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


@pytest.mark.parametrize("symbol", OPERATORS)
def test_operators_with_tensors_and_numbers_on_either_side(device: str, symbol: str) -> None:
    operator = OPERATORS[symbol]
    a, b = np.array([[1.5, -2.0, 3.0]]), np.array([[2.0], [3.0]])
    x = torch.tensor(a, dtype=torch.float64, device=device)
    y = torch.tensor(b, dtype=torch.float64, device=device)
    for ours, theirs in (
        (operator(x, y), operator(a, b)),
        (operator(x, 2), operator(a, 2)),
        (operator(2, y), operator(2, b)),
    ):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-15)
        assert ours.shape == theirs.shape


@pytest.mark.parametrize("symbol", ["&", "|", "^"])
def test_bits(device: str, symbol: str) -> None:
    a, b = np.array([0b1100, 7]), np.array([0b1010, -1])
    x, y = torch.tensor(a, device=device), torch.tensor(b, device=device)
    text = {"&": (x & y, a & b), "|": (x | y, a | b), "^": (x ^ 5, a ^ 5)}[symbol]
    np.testing.assert_array_equal(text[0].numpy(), text[1])
    np.testing.assert_array_equal((~x).numpy(), ~a)
    np.testing.assert_array_equal((x << 2).numpy(), a << 2)
    np.testing.assert_array_equal((y >> 1).numpy(), b >> 1)
    with pytest.raises(RuntimeError, match=r"bitwise_and is not defined for torch\.float32"):
        _ = x.float() & x


SHAPES: Final = st.lists(st.sampled_from([1, 2, 3]), max_size=4).map(tuple)


@given(first=SHAPES, second=SHAPES)
def test_broadcasting_is_numpys(
    first: tuple[int, ...], second: tuple[int, ...], topology: Any
) -> None:
    a = np.arange(np.prod(first, dtype=int), dtype=np.float32).reshape(first)
    b = np.arange(np.prod(second, dtype=int), dtype=np.float32).reshape(second)
    with RuntimeContext(engine=GraphEngine(topology("sip8"))):
        x, y = torch.tensor(a, device="cuda"), torch.tensor(b, device="cuda")
        try:
            expected = a - b
        except ValueError:
            with pytest.raises(RuntimeError, match="must match the size of tensor b"):
                _ = x - y
        else:
            np.testing.assert_array_equal((x - y).numpy(), expected)
            assert (x - y).shape == expected.shape


def test_shapes_that_do_not_broadcast_are_refused_in_pytorchs_words(ctx: RuntimeContext) -> None:
    with pytest.raises(RuntimeError) as caught:
        _ = torch.ones(2, 3) + torch.ones(4, 3)
    text = str(caught.value)
    assert text.startswith(
        "aten::add: The size of tensor a (2) must match the size of tensor b (4) at non-singleton "
        "dimension 0\n  at "
    )
    assert "_ = torch.ones(2, 3) + torch.ones(4, 3)" in text
    assert text.endswith("shapes [2, 3], [4, 3]")


def test_numbers_beside_16_bit_floats_are_not_rounded(ctx: RuntimeContext) -> None:
    x = torch.full((1,), 3.0, dtype=torch.bfloat16)
    third = np.float32(1 / 3)
    assert (x * (1 / 3)).item() == float((np.float32(3) * third).astype(dtypes.bfloat16.numpy))
    assert (torch.tensor([1 / 3]).bfloat16() == 1 / 3).item()


def test_alpha_rounding_mode_and_weights(device: str) -> None:
    x = torch.tensor([1.0, -7.0, 9.0], device=device)
    y = torch.tensor([2.0, 2.0, -4.0], device=device)
    a, b = x.numpy(), y.numpy()
    for ours, theirs in {
        torch.add(x, y, alpha=3): a + 3 * b,
        torch.sub(x, y, alpha=0.5): a - 0.5 * b,
        torch.div(x, y, rounding_mode="floor"): np.floor(a / b),
        torch.div(x, y, rounding_mode="trunc"): np.trunc(a / b),
        torch.fmod(x, y): np.fmod(a, b),
        torch.lerp(x, y, 0.25): a + 0.25 * (b - a),
        torch.addcmul(x, x, y, value=2): a + 2 * a * b,
        torch.addcdiv(x, x, y, value=2): a + 2 * a / b,
        torch.clamp(x, -5, 5): np.clip(a, -5, 5),
        torch.clamp(x, max=2): np.minimum(a, 2),
        torch.clamp(x, min=y): np.maximum(a, b),
        torch.maximum(x, y): np.maximum(a, b),
        torch.minimum(x, y): np.minimum(a, b),
        torch.round(x / 8, decimals=1): np.round(a / 8, 1),
    }.items():
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6)
    ints = torch.tensor([7, -7], device=device)
    assert torch.div(ints, 2, rounding_mode="trunc").tolist() == [3, -3]
    assert torch.div(ints, 2, rounding_mode="floor").tolist() == [3, -4]
    assert (ints / 2).tolist() == [3.5, -3.5]
    assert (x / 0).tolist() == [math.inf, -math.inf, math.inf]
    assert (x // 0).tolist() == [math.inf, -math.inf, math.inf]


@pytest.mark.parametrize(
    ("operation", "base"), [(torch.logaddexp, math.e), (torch.logaddexp2, 2.0)]
)
def test_sums_of_powers_without_overflow(device: str, operation: Any, base: float) -> None:
    infinity = math.inf
    x = torch.tensor([1000.0, -infinity, -infinity, infinity, math.nan], device=device)
    y = torch.tensor([1001.0, -infinity, 3.0, -infinity, 1.0], device=device)
    x.requires_grad_()
    y.requires_grad_()
    out = operation(x, y)
    sums = [1001 + math.log(1 + 1 / base, base), -infinity, 3, infinity, math.nan]
    np.testing.assert_allclose(out.detach().numpy(), sums, rtol=1e-6)
    out.backward(torch.ones(5, device=device))
    assert x.grad is not None
    assert y.grad is not None
    share = 1 / (1 + base)
    # Where both are -inf, PyTorch gives nan, too.
    np.testing.assert_allclose(x.grad.numpy(), [share, math.nan, 0, 1, math.nan], rtol=1e-6)
    np.testing.assert_allclose(y.grad.numpy(), [1 - share, math.nan, 1, 0, math.nan], rtol=1e-6)
    into = torch.empty(5, dtype=torch.float64, device=device)
    assert operation(x.detach(), y.detach(), out=into) is into
    np.testing.assert_allclose(into.numpy(), sums, rtol=1e-6)
    ints = torch.ones(2, dtype=torch.int64, device=device)
    with pytest.raises(RuntimeError, match=r"is not implemented for torch\.int64"):
        operation(ints, ints)
    with pytest.raises(RuntimeError, match="can't be cast"):
        operation(x, y, out=torch.empty(5, dtype=torch.int64, device=device))
    with pytest.raises(TypeError, match="must be Tensor, not float"):
        operation(x, 1.0)


def test_choice(device: str) -> None:
    mask = torch.tensor([True, False, True], device=device)
    x = torch.tensor([1, 2, 3], device=device)
    assert torch.where(mask, x, 0.5).tolist() == [1.0, 0.5, 3.0]
    assert torch.where(mask, 1, 2).tolist() == [1, 2, 1]
    assert x.masked_fill(mask, -1).tolist() == [-1, 2, -1]
    assert x.masked_fill_(mask, 9).tolist() == [9, 2, 9]
    assert torch.logical_and(mask, x).tolist() == [True, False, True]
    assert torch.isclose(x.float(), x + 1e-7).tolist() == [True] * 3
    special = torch.tensor([math.nan, math.inf, 1.0], device=device)
    assert torch.isnan(special).tolist() == [True, False, False]
    assert torch.isinf(special).tolist() == [False, True, False]
    assert torch.isfinite(special).tolist() == [False, False, True]
    assert torch.isnan(x).tolist() == [False] * 3


def test_in_place_forms_keep_type_memory_and_count_versions(device: str) -> None:
    x = torch.arange(6.0, device=device).view(2, 3)
    address, version = x.data_ptr(), x._version
    view = x[0]
    x += 1
    x *= 2
    x -= torch.ones(3, device=device)
    x /= 2
    view.fill_(7)
    x.T.sub_(1, alpha=2)
    assert (x.data_ptr(), x._version) == (address, version + 6)
    np.testing.assert_array_equal(x.numpy(), [[5, 5, 5], [1.5, 2.5, 3.5]])
    x.half().zero_()
    assert x.pow_(2)[0, 0].item() == 25
    assert x.lerp_(x * 0, 1.0).sum().item() == 0


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda x, i, m: i.add_(0.5), "can't be cast to the desired output type torch.int64"),
        (lambda x, i, m: m.add_(1), "can't be cast to the desired output type torch.bool"),
        (lambda x, i, m: x.add_(torch.ones(4, 2)), "must match the size of tensor b"),
        (lambda x, i, m: x[0].add_(x), "doesn't match the broadcast shape"),
        (lambda x, i, m: x[0, :1].expand(3).add_(1), "more than one element of the written-to"),
        (lambda x, i, m: -m, "not defined for torch.bool"),
        (lambda x, i, m: m - m, "Subtraction, the `-` operator, with a bool tensor"),
        (lambda x, i, m: 1 - m, "Subtraction, the `-` operator, with a bool tensor"),
        (lambda x, i, m: torch.add(i, i, alpha=0.5), "alpha must not be a floating point number"),
        (lambda x, i, m: i**-1, "Integers to negative integer powers are not allowed"),
        (lambda x, i, m: i // (i - i), "ZeroDivisionError"),
        (lambda x, i, m: torch.clamp(x), "At least one of 'min' or 'max' must not be None"),
        (lambda x, i, m: torch.where(i, 1, 2), "expected a bool tensor, got torch.int64"),
        (lambda x, i, m: i.fill_(1 << 70), "cannot be converted to type torch.int64 without"),
        (lambda x, i, m: x.fill_(x), "only supports 0-dimension value tensor"),
        (lambda x, i, m: torch.div(x, 2, rounding_mode="up"), "but found 'up'"),  # type: ignore[arg-type]
        (lambda x, i, m: torch.addcdiv(i, i, i), "Integer division with addcdiv"),
        (lambda x, i, m: x + x.cuda(), "Expected all tensors to be on the same device"),
        (lambda x, i, m: x.add_(x.cuda().sum()), "two devices, cuda:0 and cpu!"),
    ],
)
def test_what_pytorch_refuses_with_a_runtime_error(
    ctx: RuntimeContext, operation: Callable[..., Any], message: str
) -> None:
    x, i = torch.ones(2, 3), torch.ones(3, dtype=torch.int64)
    with pytest.raises(RuntimeError) as caught:
        operation(x, i, i == 1)
    assert isinstance(caught.value, KernbenchError)
    assert message in str(caught.value).splitlines()[0]  # the source line names it, too
    assert "test_pointwise.py" in str(caught.value)


@pytest.mark.parametrize("wrong", ["a", None, [1.0]])
def test_operands_that_are_no_numbers(ctx: RuntimeContext, wrong: Any) -> None:
    x = torch.ones(2)
    with pytest.raises(TypeError, match="takes tensors and numbers"):
        _ = x + wrong
    with pytest.raises(TypeError):
        torch.maximum(x, 3)
    assert (x == wrong) is False
    assert (x != wrong) is True


def test_numpy_numbers_are_numbers_on_both_sides(ctx: RuntimeContext) -> None:
    x = torch.ones(2, dtype=torch.bfloat16)
    number: Any
    for number in (np.float32(3), np.float64(3), np.int64(3), np.bool_(True) * 3):
        product = number * x
        assert (x * number).tolist() == product.tolist()
        assert isinstance(product, torch.Tensor)
        assert (product.dtype, product.tolist()) == (torch.bfloat16, [3.0, 3.0])


def test_8_bit_floats_are_converted_but_not_computed_with(device: str) -> None:
    x = torch.tensor([0.1, 3.0, -1e6], device=device).to(torch.float8_e4m3fn)
    assert x.float().tolist() == [0.1015625, 3.0, -448.0]
    assert torch.tensor([1e6]).to(torch.float8_e5m2).float().tolist() == [math.inf]
    operations: list[Callable[[], Any]] = [lambda: x + x, lambda: x * 2, x.exp, x.sum]
    for operation in operations:
        with pytest.raises(UnsupportedError, match=r"not defined for torch\.float8_e4m3fn"):
            operation()


def test_a_single_value_on_the_host_goes_with_a_device_as_it_is_at_the_call(
    ctx: RuntimeContext,
) -> None:
    torch.cuda.Stream()  # from now on kernels run when the loop does
    x, scale = torch.ones(2, device="cuda"), torch.tensor(3.0)
    y = x * scale
    x.fill_(scale)
    scale.fill_(100)
    assert y.tolist() == [3.0, 3.0]
    assert x.tolist() == [3.0, 3.0]


def test_results_are_laid_out_as_the_operands(device: str) -> None:
    x = torch.arange(24.0, device=device).view(2, 3, 4)
    turned = x.permute(2, 0, 1)
    assert (turned + 1).stride() == turned.stride() == (1, 12, 4)
    assert turned[:2].exp().stride() == (1, 6, 2)
    assert (x[0].T + torch.ones(4, 3, device=device)).stride() == (1, 4)
    assert (torch.ones(4, 3, device=device) + x[0].T).stride() == (3, 1)
    assert (x[:, :1].expand(2, 3, 4) * 2).stride() == (12, 4, 1)
    np.testing.assert_array_equal((turned + 1).numpy(), turned.numpy() + 1)


def test_operations_on_unwritten_memory_fail_where_it_is_read(ctx: RuntimeContext) -> None:
    x = torch.empty(4, device="cuda")
    x[:2] = 1
    half = x[:2] + 1
    assert half.tolist() == [2.0, 2.0]
    y = x + 1  # the device finds it; the host runs on
    with pytest.raises(UninitialisedReadError) as caught:
        y.sum().item()
    assert "2 of 4 elements of tensor [4] torch.float32 were never written" in str(caught.value)
    assert "aten::add was issued at" in str(caught.value)


def test_without_data_everything_but_reads_works(ctx_without_data: RuntimeContext) -> None:
    for device in ("cpu", "cuda"):
        x = torch.ones(4, 4, device=device)
        y = torch.where(x > 0, x.exp() + 2, 0.0).clamp_(0, 1)
        y += torch.tensor(1.0)
        assert y.shape == (4, 4)
        assert y[1:, None].dtype is torch.float32
        with pytest.raises(NoDataError) as caught:
            y.tolist()
        assert str(caught.value).startswith("tolist() needs values, and data is off\n  at ")
    assert ctx_without_data.engine.executor.applied == 0
    ctx_without_data.main.synchronize()
    assert ctx_without_data.main.host.clock > 0


def test_a_kernel_takes_launch_and_traffic(ctx: RuntimeContext) -> None:
    n = 1 << 20
    x = torch.ones(n, device="cuda")
    torch.cuda.synchronize()
    stream = ctx.main.current_stream(0)
    _ = x + x
    before = ctx.main.host.clock
    torch.cuda.synchronize()
    # 12 MiB over 4 x 400 GB/s behind a launch of 1 us: 8.86 us, all in sight of the waiting host.
    expected = 1_000_000 + -(-3 * 4 * n * 1000 // 1600)
    assert ctx.main.host.clock - before == pytest.approx(expected, rel=1e-3)
    assert stream.count == 2
