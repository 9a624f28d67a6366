"""Matrix products, timed as the machine's GEMM engines compute them."""

import string
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from kernbench.caches import cached
from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.hw.library import Library
from kernbench.kernels.names import kernel_name
from kernbench.kernels.products import Sizes, matmul_ps
from kernbench.memory import Array, DType, View, dtypes
from kernbench.operations.elementwise import broadcast, check_out
from kernbench.operations.pointwise import mul
from kernbench.process.effort import EFFORT, LARGE
from kernbench.process.process import current_process
from kernbench.tensors import tape
from kernbench.tensors.errors import TensorError, refuse
from kernbench.tensors.host_time import spend_views
from kernbench.tensors.new import new_tensor
from kernbench.tensors.promotion import Scalar
from kernbench.tensors.running import run, same_device
from kernbench.tensors.settings import products_are_short
from kernbench.tensors.tensor import Tensor
from kernbench.ttir.products import tf32

__all__ = [
    "addmm",
    "baddbmm",
    "bmm",
    "dot",
    "einsum",
    "inner",
    "matmul",
    "mm",
    "mv",
    "outer",
    "tensordot",
]


_Sizes = tuple[int, int, int, int]
"""Number of matrix products, and m, n and k of each."""


def _check_types(name: str, tensors: Sequence[Tensor]) -> DType:
    """Returns the common type of the operands.

    Raises:
        TensorError: If types differ, since PyTorch promotes none here, or the type is bool.
        UnsupportedError: For 8-bit floats.
    """
    dtype = tensors[0].window.dtype
    for tensor in tensors:
        if tensor.window.dtype is not dtype:
            raise TensorError(
                f"{name}: expected the operands to have the same dtype, but got: {dtype} != "
                f"{tensor.dtype}",
                [site_fact(call_site())],
                hint="convert one of them with .to(dtype)",
            )
    if dtype is dtypes.bool_:
        raise TensorError(f"{name} is not defined for {dtype}", [site_fact(call_site())])
    if dtype.is_complex:
        raise UnsupportedError(
            f"{name} of {dtype} is not simulated",
            [site_fact(call_site())],
            hint="compute with the parts: real and imag",
        )
    if dtype.is_floating_point and dtype.itemsize == 1:
        raise UnsupportedError(
            f"{name} is not defined for {dtype}, as in PyTorch",
            [site_fact(call_site())],
            hint="convert to bfloat16 or float32 first",
        )
    return dtype


def check_gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    shape_a: tuple[int, ...],
    shape_b: tuple[int, ...],
) -> None:
    """Refuses operands of `a @ b + bias` as `matmul` would, without running a kernel.

    Args:
        a: Left operand.
        b: Right operand.
        bias: Tensor of shape `[n]`, or None.
        shape_a: Shape `[m, k]` in which the product takes `a`.
        shape_b: Shape `[k, n]` in which the product takes `b`.

    Raises:
        TensorError: If shapes, types or devices do not fit.
        UnsupportedError: For a type that has no products.
    """
    _matmul(shape_a, shape_b)
    if bias is not None and bias.window.shape != shape_b[-1:]:
        raise TensorError(
            f"addmm: a bias of shape {list(bias.window.shape)} does not fit a product of shape "
            f"{[shape_a[0], shape_b[-1]]}",
            [site_fact(call_site()), f"expected {list(shape_b[-1:])}"],
        )
    name, tensors = ("matmul", [a, b]) if bias is None else ("addmm", [bias, a, b])
    _check_types(name, tensors)
    same_device(name, tensors)


def _gemm_ps(
    library: Library, machine_dtype: str, sizes: _Sizes, nbytes: int, windows: Sequence[View]
) -> int:
    """Returns the picoseconds that a device takes for a batch of products of m x k and k x n.

    Without a choice of the library, a product with a vector runs on the MATH engines, since memory
    bounds its time.
    """
    batch, m, n, k = sizes
    if not batch * m * n * k or (min(m, n) == 1 and machine_dtype not in library.tiles):
        return library.elementwise(nbytes, batch * m * n * k)
    return matmul_ps(library, machine_dtype, Sizes(*sizes), nbytes, windows)


_ADDED: Final = {"addmm": 0, "baddbmm": 0, "linear": 2}
"""Place of the operand that is added and not multiplied."""


def _short(function: Callable[..., Any], added: int | None) -> Callable[..., Any]:
    """Returns a product that drops the bits of its operands that tf32 does not have."""

    def of_short(*arrays: Array) -> Any:
        return function(*[x if at == added else tf32(x) for at, x in enumerate(arrays)])

    return of_short


def product(
    name: str,
    tensors: Sequence[Tensor],
    shape: tuple[int, ...],
    sizes: _Sizes,
    function: Callable[..., Any],
    out: Tensor | None = None,
    *,
    kernel: str | None = None,
    **options: Any,
) -> Tensor:
    """Runs a product; 16-bit floats are multiplied and added in float32 and rounded once.

    Args:
        name: Name of the operation, as in the table of formulas.
        tensors: Operands, of one type.
        shape: Shape of the result.
        sizes: Number of matrix products, and m, n and k of each.
        function: Takes arrays, returns a new array.
        out: Tensor to write the result to; None for a new one.
        kernel: PyTorch's operator that does it; None: that of the name.
        **options: Values that the formulas of the gradients need.
    """
    dtype = _check_types(name, tensors)
    device = same_device(name, tensors)
    process = current_process()
    site = process.site or call_site()
    if out is None:
        result = new_tensor(process, shape, dtype, device, site)
    else:
        check_out(name, out, shape, dtype)
        result = out
    sources, target, wanted = [t.window for t in tensors], result.window, dtype.accumulator
    count = prod(target.shape)
    for source in sources:
        count += prod(source.shape)
    nbytes = count * dtype.itemsize
    sip = device.index
    duration = None
    if sip is not None:
        library, rate = process.engine.devices[sip].library, dtype.machine_name
        if dtype is dtypes.float32 and products_are_short():
            function = _short(function, added=_ADDED.get(name))
            rate = "tf32" if library.multiplies("tf32") else rate
        duration = _gemm_ps(library, rate, sizes, nbytes, (*sources, target))

    flops = 2 * prod(sizes)
    if flops >= LARGE:
        function = _watched(process.rank, name, flops, function)

    def effect() -> None:
        values = function(*[source.read().astype(wanted, copy=False) for source in sources])
        if out is None:
            target.adopt(values)
        else:
            target.store(values)

    node = None
    tracked = result.memory.tracked
    for tensor in tensors:
        if tensor.memory.tracked:
            tracked = True
    if tracked and dtype.is_floating_point:
        node = tape.begin(process, name, tensors, options, out, site)
    label = kernel_name(kernel or name)
    run(process, label, tensors, result, effect, duration_ps=duration, site=site)
    if node is not None:
        tape.finish(node, result)
    return result


def _watched(rank: int, name: str, flops: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that tells the user if what it computes takes minutes."""
    return lambda *arrays: EFFORT.product(rank, name, flops, lambda: function(*arrays))


def matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Returns the product of vectors, matrices or batches of matrices, as `torch.matmul`.

    Args:
        input: Left operand: `[k]`, `[m, k]` or `[..., m, k]`.
        other: Right operand: `[k]`, `[k, n]` or `[..., k, n]`.
        out: Tensor to write the result to; None for a new one.

    Raises:
        TensorError: If the shapes do not fit, or the types differ.
    """
    left, right = len(input.window.shape), len(other.window.shape)
    if left > 2 or right > 2:
        # PyTorch makes one matrix of a batch, or one batch of several, and expands both.
        spend_views(input, 2 if min(left, right) == 2 else 5)
    return _multiplied(input, other, out)


def _multiplied(input: Tensor, other: Tensor, out: Tensor | None = None) -> Tensor:
    shape, sizes, kernel = _matmul(input.window.shape, other.window.shape)
    return product("matmul", (input, other), shape, sizes, np.matmul, out, kernel=kernel)


_PRODUCTS: Final = {(1, 1): "dot", (2, 1): "mv", (1, 2): "mm", (2, 2): "mm"}
"""Operators that `matmul` calls, by the dimensions of its operands, 2 on the left for more."""


@cached("operations.matmul")
def _matmul(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, ...], _Sizes, str]:
    """Returns the shape of a product, the sizes of its matrix products, and its operator."""
    if not a or not b:
        raise TensorError(
            "both arguments to matmul need to be at least 1D, but they are "
            f"{len(a)}D and {len(b)}D",
            [site_fact(call_site())],
        )
    rows, inner = ((1, *a) if len(a) == 1 else a)[-2:]
    depth, columns = ((*b, 1) if len(b) == 1 else b)[-2:]
    if inner != depth:
        raise _misfit("", a, b)
    batch = broadcast("matmul", [a[:-2], b[:-2]])
    shape = batch + ((rows,) if len(a) > 1 else ()) + ((columns,) if len(b) > 1 else ())
    # A batch times a single matrix is one product of a taller matrix, as in PyTorch.
    count, tall = (1, prod(batch) * rows) if len(b) <= 2 else (prod(batch), rows)
    kernel = _PRODUCTS.get((min(len(a), 2), len(b)), "bmm")
    return shape, (count, tall, columns, inner), kernel


def _misfit(who: str, a: tuple[int, ...], b: tuple[int, ...]) -> TensorError:
    rows, inner = (1, *a)[-2:]
    depth, columns = ((*b, 1) if len(b) == 1 else b)[-2:]
    return TensorError(
        f"{who}mat1 and mat2 shapes cannot be multiplied ({rows}x{inner} and {depth}x{columns})",
        [site_fact(call_site()), f"operands of shape {list(a)} and {list(b)}"],
    )


def _check_dims(name: str, tensors: Sequence[Tensor], ranks: Sequence[int]) -> None:
    for position, (tensor, rank) in enumerate(zip(tensors, ranks, strict=True), 1):
        if len(tensor.window.shape) != rank:
            raise TensorError(
                f"{name}: argument {position} must be {rank}-D, got {len(tensor.window.shape)}-D",
                [site_fact(call_site())],
            )


def mm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Returns the product of two matrices, as `torch.mm`.

    Args:
        input: Left matrix, `[m, k]`.
        mat2: Right matrix, `[k, n]`.
        out: Tensor to write the result to; None for a new one.

    Raises:
        TensorError: If the shapes do not fit, or the types differ.
    """
    _check_dims("mm", (input, mat2), (2, 2))
    return _multiplied(input, mat2, out)


def bmm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Returns the products of two batches of matrices, as `torch.bmm`.

    Args:
        input: Left matrices, `[b, m, k]`.
        mat2: Right matrices, `[b, k, n]`.
        out: Tensor to write the result to; None for a new one.

    Raises:
        TensorError: If the shapes do not fit, or the types differ.
    """
    _check_dims("bmm", (input, mat2), (3, 3))
    if input.window.shape[0] != mat2.window.shape[0]:
        raise TensorError(
            f"bmm: batches of {input.window.shape[0]} and {mat2.window.shape[0]} matrices",
            [site_fact(call_site())],
        )
    return _multiplied(input, mat2, out)


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """Returns the product of a matrix and a vector, as `torch.mv`."""
    _check_dims("mv", (input, vec), (2, 1))
    return matmul(input, vec)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Returns the inner product of two vectors, as `torch.dot`."""
    _check_dims("dot", (input, tensor), (1, 1))
    return matmul(input, tensor)


def inner(input: Tensor, other: Tensor) -> Tensor:
    """Returns the inner products over the last dimensions, as `torch.inner`."""
    if not input.window.shape or not other.window.shape:
        return mul(input, other)
    return tensordot(input, other, ([-1], [-1]))


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Returns the products of all pairs of elements of two vectors, as `torch.outer`."""
    _check_dims("outer", (input, vec2), (1, 1))
    return mul(input.unsqueeze(1), vec2)


def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """Returns `beta * input + alpha * mat1 @ mat2`, rounded once, as `torch.addmm`.

    Args:
        input: Summand; expands to `[m, n]`.
        mat1: Left matrix, `[m, k]`.
        mat2: Right matrix, `[k, n]`.
        beta: Factor of `input`.
        alpha: Factor of the product.

    Raises:
        TensorError: If the shapes do not fit, or the types differ.
    """
    _check_dims("addmm", (mat1, mat2), (2, 2))
    return _added("addmm", input, mat1, mat2, beta, alpha)


def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """Returns `beta * input + alpha * batch1 @ batch2`, rounded once, as `torch.baddbmm`.

    Args:
        input: Summand; expands to `[b, m, n]`.
        batch1: Left matrices, `[b, m, k]`.
        batch2: Right matrices, `[b, k, n]`.
        beta: Factor of `input`.
        alpha: Factor of the products.

    Raises:
        TensorError: If the shapes do not fit, or the types differ.
    """
    _check_dims("baddbmm", (batch1, batch2), (3, 3))
    return _added("baddbmm", input, batch1, batch2, beta, alpha)


def _added(name: str, input: Tensor, a: Tensor, b: Tensor, beta: Scalar, alpha: Scalar) -> Tensor:
    (*batch, rows, depth), (*other, inner, columns) = a.window.shape, b.window.shape
    if depth != inner or batch != other:
        raise _misfit(f"{name}: ", a.window.shape, b.window.shape)
    shape = (*batch, rows, columns)
    if broadcast(name, [input.window.shape, shape]) != shape:
        raise TensorError(
            f"{name}: input of shape {list(input.window.shape)} does not expand to {list(shape)}",
            [site_fact(call_site())],
        )

    def compute(x: Array, y: Array, z: Array) -> Array:
        product: Array = np.matmul(y, z)
        if alpha != 1:
            product *= np.asarray(alpha).astype(product.dtype)
        if beta == 0:
            return product
        product += x if beta == 1 else x * np.asarray(beta).astype(x.dtype)
        return product

    sizes = (prod(batch), rows, columns, depth)
    return product(name, (input, a, b), shape, sizes, compute, beta=beta, alpha=alpha)


def tensordot(
    a: Tensor,
    b: Tensor,
    dims: int | tuple[Sequence[int], Sequence[int]] = 2,
    out: None = None,
) -> Tensor:
    """Returns the sums of products over pairs of dimensions, as `torch.tensordot`.

    Args:
        a: Left operand.
        b: Right operand.
        dims: Number of last dimensions of `a` and first dimensions of `b` to sum over; or the
            dimensions of `a` and those of `b`.
        out: Must be None.

    Raises:
        UnsupportedError: For `out`.
    """
    refuse("tensordot", out=out)
    rank_a, rank_b = len(a.window.shape), len(b.window.shape)
    if isinstance(dims, int):
        pairs = [(rank_a - dims + each, each) for each in range(dims)]
    else:
        pairs = [(x % rank_a, y % rank_b) for x, y in zip(*dims, strict=True)]
    letters = iter(string.ascii_letters)
    left = [next(letters) for _ in range(rank_a)]
    right = [next(letters) for _ in range(rank_b)]
    for x, y in pairs:
        right[y] = left[x]
    taken_left, taken_right = {x for x, _ in pairs}, {y for _, y in pairs}
    result = [c for at, c in enumerate(left) if at not in taken_left]
    result += [c for at, c in enumerate(right) if at not in taken_right]
    equation = f"{''.join(left)},{''.join(right)}->{''.join(result)}"
    return contracted(equation, [a, b], "mm")


# Einsum

_ELLIPSIS: Final = "..."


def einsum(equation: str, *operands: Tensor | Sequence[Tensor]) -> Tensor:
    """Returns the sum of products that an equation describes, as `torch.einsum`.

    Two operands take the time of the equal matmul; more are combined from left to right.

    Args:
        equation: Subscripts of the operands and of the result, such as `ij,jk->ik`.
        *operands: Tensors, one by one or as one sequence.

    Raises:
        TensorError: If the equation is malformed or does not fit the operands.
    """
    tensors: list[Any] = (
        list(operands[0])
        if len(operands) == 1 and isinstance(operands[0], Sequence)
        else list(operands)
    )
    return contracted(equation, tensors)


def contracted(equation: str, tensors: list[Any], operator: str | None = None) -> Tensor:
    """Does what `einsum` does.

    Args:
        equation: Subscripts of the operands and of the result.
        tensors: The operands.
        operator: Operator of PyTorch that does it; None: the one of `einsum`.
    """
    terms, result = _parsed(equation, tensors)
    while len(tensors) > 2:
        later = {c for term in terms[2:] for c in term} | set(result)
        kept = "".join(dict.fromkeys(c for c in terms[0] + terms[1] if c in later))
        tensors = [_contracted(terms[:2], kept, tensors[:2]), *tensors[2:]]
        terms = [kept, *terms[2:]]
    return _contracted(terms, result, tensors, operator)


def _bad_equation(equation: str, problem: str) -> TensorError:
    return TensorError(f"einsum(): {problem}", [site_fact(call_site()), f"equation {equation!r}"])


def _parsed(equation: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """Returns the letters of each operand and of the result, without dots and spaces."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(tensors):
        raise _bad_equation(
            equation, f"the equation has {len(terms)} operands, {len(tensors)} were given"
        )
    used = set(text) - set(".,->")
    bad = sorted(c for c in used if c not in string.ascii_letters)
    if bad:
        raise _bad_equation(
            equation, f"subscripts must be letters, found {', '.join(map(repr, bad))}"
        )
    spare = [c for c in string.ascii_letters if c not in used]
    widths = []
    for position, (term, tensor) in enumerate(zip(terms, tensors, strict=True)):
        rest = term.replace(_ELLIPSIS, "", 1)
        width = len(tensor.window.shape) - len(rest)
        if "." in rest or width < 0 or (width and rest == term):
            raise _bad_equation(
                equation,
                f"the subscripts {term!r} of operand {position} do not fit its "
                f"{len(tensor.window.shape)} dimensions",
            )
        widths.append(width)
    dots = "".join(spare[: max(widths)])
    full = [
        term.replace(_ELLIPSIS, dots[len(dots) - width :])
        for term, width in zip(terms, widths, strict=True)
    ]
    if arrow:
        result = right.replace(_ELLIPSIS, dots, 1)
    else:
        letters = "".join(full)
        once = sorted(c for c in set(letters) - set(dots) if letters.count(c) == 1)
        result = dots + "".join(once)
    if len(set(result)) != len(result) or not set(result) <= set("".join(full)):
        raise _bad_equation(
            equation, f"the result {right!r} names a subscript twice or one that no operand has"
        )
    _extents(equation, full, tensors)
    return full, result


def _extents(equation: str, terms: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, int]:
    """Returns the extent of each letter; an extent of 1 broadcasts."""
    extents: dict[str, int] = {}
    for term, tensor in zip(terms, tensors, strict=True):
        for letter, extent in zip(term, tensor.window.shape, strict=True):
            known = extents.get(letter, 1)
            if 1 not in {known, extent} and known != extent:
                raise _bad_equation(
                    equation, f"operands do not broadcast: {letter!r} is {known} and {extent}"
                )
            extents[letter] = max(known, extent) if known and extent else 0
    return extents


def _contracted(
    terms: Sequence[str], result: str, tensors: Sequence[Tensor], operator: str | None = None
) -> Tensor:
    equation = f"{','.join(terms)}->{result}"
    extents = _extents(equation, terms, tensors)
    shape = tuple([extents[letter] for letter in result])

    def count(letters: "set[str]") -> int:
        return prod([extents[letter] for letter in letters])

    def compute(*arrays: Array) -> Any:
        return np.einsum(equation, *arrays, optimize=len(arrays) > 1)

    if len(tensors) == 1:
        sizes = (1, count(set(terms[0])), 1, 1)
    else:
        a, b, kept = set(terms[0]), set(terms[1]), set(result)
        sizes = (count(a & b & kept), count(a - b), count(b - a), count((a & b) - kept))
    summed = len(tensors) == 1
    name = "sum" if summed else "bmm" if set(terms[0]) & set(terms[1]) - set(result) else "mul"
    return product(
        "einsum",
        tensors,
        shape,
        sizes,
        compute,
        kernel=operator or name,
        terms=list(terms),
        result=result,
        operator=operator,
    )
