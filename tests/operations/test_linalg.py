"""Products of matrices, against numpy and the machine's rates."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
from kernbench.errors import UnsupportedError
from kernbench.memory import dtypes
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import Topology

SHAPES: Final = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
]


def _some(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7 - 3
    return values.astype(dtype)


@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_matmul_of_all_ranks(device: str, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = _some(first), _some(second)
    found = torch.tensor(a, device=device) @ torch.tensor(b, device=device)
    np.testing.assert_array_equal(found.numpy(), a @ b)
    assert found.shape == (a @ b).shape


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_16_bit_products_are_added_in_float32_and_rounded_once(device: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 9, 64)).astype(np.float32).astype(dtype.numpy)
    x, y = torch.tensor(a, device=device), torch.tensor(b, device=device)
    wide = a.astype(np.float32) @ b.T.astype(np.float32)
    np.testing.assert_array_equal((x @ y.T).numpy(), wide.astype(dtype.numpy))
    assert (x @ y.T).dtype is dtype
    biased = torch.addmm(torch.ones(9, dtype=dtype, device=device), x, y.T)
    np.testing.assert_array_equal(biased.numpy(), (wide + 1).astype(dtype.numpy))


def test_integers_are_exact(device: str) -> None:
    a = _some((3, 4), np.int64) * (1 << 40)
    found = torch.tensor(a, device=device) @ torch.tensor(a.T.copy(), device=device)
    np.testing.assert_array_equal(found.numpy(), a @ a.T)


def test_the_other_products(device: str) -> None:
    a, b, v = _some((2, 3)), _some((3, 4)), _some((3,))
    x, y, w = (torch.tensor(each, device=device) for each in (a, b, v))
    for ours, theirs in (
        (torch.mm(x, y), a @ b),
        (torch.mv(x, w), a @ v),
        (torch.dot(w, w), v @ v),
        (torch.outer(w, w), np.outer(v, v)),
        (torch.inner(x, x), np.inner(a, a)),
        (torch.inner(w, torch.tensor(2.0, device=device)), v * 2),
        (torch.tensordot(x, y, 1), a @ b),
        (torch.tensordot(x, x, ([1], [1])), a @ a.T),
        (torch.bmm(x[None], y[None]), (a @ b)[None]),
        (torch.addmm(w[:1], x, y, beta=0.5, alpha=2), 0.5 * v[:1] + 2 * a @ b),
        (torch.baddbmm(y[:1], x[None], y[None]), b[:1] + (a @ b)[None]),
    ):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6)
    out = torch.empty(2, 4, device=device)
    assert torch.matmul(x, y, out=out) is out
    np.testing.assert_array_equal(out.numpy(), a @ b)


EQUATIONS: Final = {
    "ij,jk->ik": ((2, 3), (3, 4)),
    "ij,jk": ((2, 3), (3, 4)),
    "bij,bkj->bik": ((5, 2, 3), (5, 4, 3)),
    "...ij,...kj->...ik": ((6, 5, 2, 3), (5, 4, 3)),
    "bhid,bhjd->bhij": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "i,j->ij": ((2,), (3,)),
    "ij,ij->": ((2, 3), (2, 3)),
    "ij,ij->i": ((2, 3), (2, 3)),
    "ij->ji": ((2, 3),),
    "ii->i": ((3, 3),),
    "ij->": ((2, 3),),
    "ba": ((2, 3),),
    "i j , j k -> i k": ((2, 3), (3, 4)),
    "ij,jk,kl->il": ((2, 3), (3, 4), (4, 5)),
    "ij,j->i": ((2, 3), (1,)),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(device: str, equation: str) -> None:
    arrays = [_some(shape) for shape in EQUATIONS[equation]]
    found = torch.einsum(equation, *(torch.tensor(array, device=device) for array in arrays))
    np.testing.assert_array_equal(found.numpy(), np.einsum(equation, *arrays))


@pytest.mark.parametrize(
    ("equation", "problem"),
    [
        ("ij,jk,kl->il", "the equation has 3 operands, 2 were given"),
        ("i1,1k->ik", "subscripts must be letters, found '1'"),
        ("ijk,jk->i", "the subscripts 'ijk' of operand 0 do not fit its 2 dimensions"),
        ("i,jk->ik", "the subscripts 'i' of operand 0 do not fit its 2 dimensions"),
        ("ij,jk->iz", "the result 'iz' names a subscript twice or one that no operand has"),
        ("ij,jk->ii", "the result 'ii' names a subscript twice or one that no operand has"),
        ("ij,kj->ik", "operands do not broadcast: 'j' is 3 and 4"),
    ],
)
def test_equations_that_do_not_fit(ctx: RuntimeContext, equation: str, problem: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.einsum(equation, torch.ones(2, 3), torch.ones(3, 4))
    assert f"einsum(): {problem}" in str(caught.value)
    assert f"equation {equation!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda x: x @ x, r"mat1 and mat2 shapes cannot be multiplied \(2x3 and 2x3\)"),
        (lambda x: x @ x.sum(), "both arguments to matmul need to be at least 1D"),
        (lambda x: x @ x.T.double(), "expected the operands to have the same dtype"),
        (lambda x: (x > 0) @ (x > 0).T, "matmul is not defined for torch.bool"),
        (lambda x: x.expand(4, 2, 3) @ x.T.expand(5, 3, 2), "matmul: The size of tensor a"),
        (lambda x: torch.mm(x[0], x), "mm: argument 1 must be 2-D, got 1-D"),
        (lambda x: torch.dot(x, x), "dot: argument 1 must be 1-D, got 2-D"),
        (lambda x: torch.bmm(x[None], x.T.expand(2, 3, 2)), "bmm: batches of 1 and 2 matrices"),
        (lambda x: torch.addmm(x, x, x.T), "does not expand to|must match"),
        (lambda x: torch.addmm(x, x, x), "addmm: mat1 and mat2 shapes cannot be multiplied"),
        (lambda x: x.cuda() @ x.T, "Expected all tensors to be on the same device"),
    ],
)
def test_mistakes(ctx: RuntimeContext, operation: Callable[..., Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message) as caught:
        operation(torch.ones(2, 3))
    assert "test_linalg.py" in str(caught.value)


def test_8_bit_floats_are_refused(ctx: RuntimeContext) -> None:
    x = torch.ones(2, 2).to(torch.float8_e5m2)
    with pytest.raises(UnsupportedError, match=r"matmul is not defined for torch\.float8_e5m2"):
        _ = x @ x


def _duration_us(ctx: RuntimeContext, operation: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    host = ctx.main.host
    before = host.clock
    operation()
    torch.cuda.synchronize()
    dispatch = ctx.engine.topology.machine.system.host.dispatch
    return (host.clock - before - dispatch) / 1e6


def test_a_matmul_takes_the_waves_of_its_tiles(ctx: RuntimeContext) -> None:
    # sip8: 32 PEs, tiles of 64 x 64, 2 TFLOP/s of bf16 each, launch of 1 us.
    x = torch.ones(512, 512, dtype=torch.bfloat16, device="cuda")
    tile_us = 2 * 64 * 64 * 512 / 2e12 * 1e6
    assert _duration_us(ctx, lambda: x @ x) == pytest.approx(1 + 2 * tile_us, rel=1e-4)
    # A batch fills the PEs together: 8 products of 2 x 2 tiles are one wave of 32.
    y = torch.ones(8, 128, 128, dtype=torch.bfloat16, device="cuda")
    tile_us = 2 * 64 * 64 * 128 / 2e12 * 1e6
    assert _duration_us(ctx, lambda: y @ y) == pytest.approx(1 + tile_us, rel=1e-4)
    assert _duration_us(ctx, lambda: torch.einsum("bij,bjk->bik", y, y)) == pytest.approx(
        1 + tile_us, rel=1e-4
    )


def test_a_product_with_a_vector_is_bound_by_memory(ctx: RuntimeContext) -> None:
    x = torch.ones(4096, 4096, dtype=torch.bfloat16, device="cuda")
    traffic_us = 2 * 4096 * 4096 / 1.6e12 * 1e6
    assert _duration_us(ctx, lambda: x @ x[0]) == pytest.approx(1 + traffic_us, rel=1e-2)


def test_a_large_matmul_on_the_h200_is_as_long_as_measured(
    topology: Callable[[str], Topology],
) -> None:
    engine = GraphEngine(topology("h200x8"), enable_data=False)
    with RuntimeContext(engine=engine) as ctx:
        x = torch.ones(8192, 8192, dtype=torch.bfloat16, device="cuda")
        measured_us = 1400.1  # gemm.csv
        assert _duration_us(ctx, lambda: x @ x) == pytest.approx(measured_us, rel=0.1)
