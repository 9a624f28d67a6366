"""The one path of all elementwise operations: promotion, broadcasting, effect, duration."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from kernbench.caches import cached
from kernbench.errors import OperandError, UnsupportedError, call_site, site_fact
from kernbench.memory import Array, DType, View, contiguous_strides, dtypes
from kernbench.process.process import Process, current_process
from kernbench.tensors import tape
from kernbench.tensors.errors import TensorError
from kernbench.tensors.new import new_tensor
from kernbench.tensors.operands import hint_for, type_name
from kernbench.tensors.promotion import Scalar, category, result_type
from kernbench.tensors.running import read_back, run, same_device
from kernbench.tensors.tensor import Tensor

Operand = Tensor | Scalar

OPERANDS: Final = (Tensor, int, float, complex, np.generic)
"""Types of operands that operators such as `+` accept."""

NUMBERS: Final = frozenset({int, float, bool, complex})
"""Types of Python's numbers; numbers of numpy are converted to them."""
_FLOAT32: Final = dtypes.float32.numpy

_COMPLEX: Final = frozenset(
    {
        *("abs", "add", "addcdiv", "addcmul", "angle", "conj", "cos", "div", "eq", "exp", "expm1"),
        *("isclose", "isfinite", "isinf", "isnan", "lerp", "log", "log10", "log1p", "log2"),
        *("logical_and", "logical_not", "logical_or", "logical_xor", "masked_fill"),
        *("mul", "ne", "neg", "pow", "reciprocal", "rsqrt", "rsub", "sin", "sqrt", "square"),
        *("sub", "tan", "tanh", "where"),
    }
)
"""Operations, without `aten::`, that are defined for complex numbers."""


class ComplexError(TensorError, NotImplementedError):
    """An operation that is not defined, or not simulated, for complex numbers."""


def broadcast(name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the common shape.

    Raises:
        TensorError: If there is no common shape; the text is PyTorch's.
    """
    first = shapes[0]
    for shape in shapes:
        if shape != first:
            break
    else:
        return first
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise _no_broadcast(name, shapes) from None


def _no_broadcast(name: str, shapes: Sequence[tuple[int, ...]]) -> TensorError:
    summary = f"{name}: the shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast"
    if len(shapes) == 2:
        rank = max(map(len, shapes))
        a, b = ((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes)
        bad = max(d for d in range(rank) if a[d] != b[d] and 1 not in {a[d], b[d]})
        summary = (
            f"{name}: The size of tensor a ({a[bad]}) must match the size of tensor b ({b[bad]}) "
            f"at non-singleton dimension {bad}"
        )
    return TensorError(
        summary, [site_fact(call_site()), f"shapes {', '.join(str(list(s)) for s in shapes)}"]
    )


def elementwise(
    name: str,
    function: Callable[..., Any],
    *operands: Operand,
    result: DType | None = None,
    compute: DType | None = None,
    out: Tensor | None = None,
    keep: int = 0,
    options: dict[str, Any] | None = None,
) -> Tensor:
    """Applies a numpy function to each element.

    16-bit floats are computed in float32 and rounded once; numbers among the operands are not
    rounded first.

    Args:
        name: Name of the operation in traces and errors.
        function: Takes arrays of one type, returns a new array.
        *operands: Tensors and numbers.
        result: Type of the result; None: the type of the computation.
        compute: Type of the computation; None: by promotion.
        out: Tensor to write the result to, in its own type; None for a new one.
        keep: Number of operands, from the first, that keep their type and do not take part in
            promotion.
        options: Values that the formulas of the gradients need, by name.

    Raises:
        TensorError: If shapes or devices do not fit, or `out` cannot hold the result.
        OperandError: If an operand is neither tensor nor number.
        UnsupportedError: For 8-bit floats.
        ComplexError: For complex numbers, if the operation is not defined for them.
    """
    process = current_process()
    site = process.site or call_site()
    tensors = []
    windows = []
    tracked = False
    for operand in operands:
        if isinstance(operand, Tensor):
            tensors.append(operand)
            window = operand.window
            windows.append((window.shape, window.strides))
            if operand.memory.tracked:
                tracked = True
        elif type(operand) not in NUMBERS:
            operands = tuple([_plain(name, each) for each in operands])
    if not tensors:
        raise OperandError(f"{name} takes at least one tensor", [site_fact(site)])
    if compute is None:
        compute = result_type(operands[keep:] if keep else operands)
    wanted = compute.numpy
    if not compute.is_floating_point:
        if compute.is_complex:
            check_complex(name, compute, _COMPLEX)
    elif compute.itemsize < 4:
        if compute.itemsize == 1:
            raise _no_arithmetic(name, compute)
        wanted = _FLOAT32
    result = result or compute
    shape, strides = _laid_out(name, tuple(windows))
    if out is None:
        device = same_device(name, tensors)
        out = new_tensor(process, shape, result, device, site, strides=strides)
        adopt = True
    else:
        device = same_device(name, [*tensors, out])
        check_out(name, out, shape, result)
        adopt = False
        tracked = tracked or out.memory.tracked
    node = None
    if tracked and (result.is_floating_point or result.is_complex or not adopt):
        node = tape.begin(process, name, operands, options, None if adopt else out, site)
    inputs = tensors
    sources: list[View | Array] = []
    alike = True
    for position, operand in enumerate(operands):
        if isinstance(operand, Tensor):
            if operand.device is device or operand.device == device:
                window = operand.window
                sources.append(window)
                alike = alike and window.dtype.numpy is wanted
                continue
            alike = False
            inputs = [tensor for tensor in tensors if tensor.device == device]
            sources.append(argument(process, operand, wanted if position >= keep else None))
            continue
        alike = False
        if result is dtypes.bool_:
            sources.append(np.asarray(operand).astype(compute.numpy).astype(wanted))
        else:
            sources.append(np.asarray(operand).astype(wanted))
    effect = None
    if process.engine.executor.enabled:
        if alike and adopt and not keep and compute.itemsize != 2:
            effect = _plain_effect(function, sources, out.window)
        else:
            effect = _effect(
                function, sources, keep, compute, result, wanted, out.window, fresh=adopt
            )
    run(process, name, inputs, out, effect, site=site)
    if node is not None:
        tape.finish(node, out)
    return out


_Windows = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Shape and strides of each operand."""


@cached("operations.laid_out")
def _laid_out(name: str, windows: _Windows) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shape of a result, and its strides if it is a new tensor."""
    shape = broadcast(name, [extents for extents, _ in windows])
    return shape, _strides(shape, windows)


def _plain_effect(function: Callable[..., Any], views: Any, target: View) -> Callable[[], None]:
    """Returns what `_effect` does if nothing is converted and the result is a new tensor."""
    return lambda: target.adopt(function(*map(View.read, views)))


def _effect(
    function: Callable[..., Any],
    sources: Sequence[View | Array],
    keep: int,
    compute: DType,
    result: DType,
    wanted: Any,
    target: View,
    *,
    fresh: bool,
) -> Callable[[], None]:
    """Returns a function that computes the result in memory.

    Args:
        function: Takes arrays, returns a new array.
        sources: Views, and values that are already converted.
        keep: Number of sources, from the first, that keep their type.
        compute: Type of the operation.
        result: Type of the result.
        wanted: The numpy type of the computation; float32 for 16-bit floats.
        target: View that is written.
        fresh: Whether `target` is a new tensor that no other command uses.
    """
    in_place = (
        not fresh
        and isinstance(function, np.ufunc)
        and result is compute
        and target.dtype.numpy == wanted
    )

    short = fresh and compute.itemsize == 2 and not keep
    by_blocks = short and prod(target.shape) > _BLOCK

    def effect() -> None:
        arrays = [source.read() if isinstance(source, View) else source for source in sources]
        if by_blocks:
            shape = target.shape
            if all(not a.ndim or (a.shape == shape and a.flags.c_contiguous) for a in arrays):
                target.adopt(_by_blocks(function, arrays, wanted, target))
                return
        arrays[keep:] = [array.astype(wanted, copy=False) for array in arrays[keep:]]
        if fresh:
            target.adopt(function(*arrays))
        elif in_place:
            function(*arrays, out=target.write())
        else:
            target.store(function(*arrays))

    return effect


_BLOCK: Final = 1 << 15
"""16-bit floats that are computed at a time, so that their float32 copies stay in the cache."""


def _by_blocks(
    function: Callable[..., Any], arrays: Sequence[Array], wanted: Any, target: View
) -> Array:
    values: Array = np.empty(target.shape, target.dtype.numpy)
    row = values.reshape(-1)
    rows = [array.reshape(-1) if array.ndim else array.astype(wanted) for array in arrays]
    for low in range(0, row.size, _BLOCK):
        part = slice(low, low + _BLOCK)
        row[part] = function(*[r[part].astype(wanted) if r.ndim else r for r in rows])
    return values


def layout(shape: tuple[int, ...], inputs: Sequence[Tensor]) -> tuple[int, ...]:
    """Returns the strides of a result: the order of dimensions of the operands, without gaps.

    For example, `x.T + 1` has the order of `x.T`, as in PyTorch.
    """
    return _strides(shape, tuple([(t.window.shape, t.window.strides) for t in inputs]))


@cached("operations.strides")
def _strides(shape: tuple[int, ...], inputs: _Windows) -> tuple[int, ...]:
    plain = contiguous_strides(shape)
    for extents, strides in inputs:
        if strides != plain and (extents == shape or len(extents) > 1):
            return _permuted(shape, inputs)
    return plain


def _permuted(shape: tuple[int, ...], inputs: _Windows) -> tuple[int, ...]:
    """Orders dimensions as PyTorch's TensorIterator: by the first operand whose strides differ."""
    rank = len(shape)
    steps = []
    for extents, strides in inputs:
        missing = rank - len(extents)
        own = [s if n > 1 else 0 for n, s in zip(extents, strides, strict=True)]
        steps.append([0] * missing + own)

    def compare(inner: int, outer: int) -> int:
        for operand in steps:
            a, b = operand[inner], operand[outer]
            if a and b:
                if a != b:
                    return 1 if a > b else -1
                if shape[inner] > shape[outer]:
                    return 1
        return 0

    order = list(range(rank - 1, -1, -1))
    for start in range(1, rank):
        place = start
        for other in range(start - 1, -1, -1):
            verdict = compare(order[other], order[place])
            if verdict > 0:
                order[other], order[place] = order[place], order[other]
                place = other
            elif verdict < 0:
                break
    result = [0] * rank
    step = 1
    for dim in order:
        result[dim] = step
        step *= max(shape[dim], 1)
    return tuple(result)


def argument(process: Process, tensor: Tensor, dtype: Any) -> Array:
    """Returns the present values of a tensor elsewhere, as an argument of a kernel.

    The host waits for a tensor on a device.

    Args:
        process: The calling rank, or main.
        dtype: The numpy type of the result; None for the tensor's own.

    Raises:
        AccessError: If a command on the tensor is under way that nobody has waited for.
    """
    copied: list[Array] = []
    if tensor.is_cuda:
        read_back(process, tensor, lambda values: copied.append(np.array(values)))
    else:
        tensor.memory.check(process, None, tensor.window, "read")
    if not process.engine.enable_data:
        return np.zeros((), np.bool_)
    values = copied[0] if copied else tensor.window.read()
    return np.array(values, values.dtype if dtype is None else dtype)


def _plain(name: str, operand: Any) -> Operand:
    if isinstance(operand, Tensor | bool | int | float | complex):
        return operand
    if isinstance(operand, np.generic) and operand.dtype.kind in "biufc":
        number: Scalar = operand.item()
        return number
    raise OperandError(
        f"{name} takes tensors and numbers; got {type_name(operand)}",
        [site_fact(call_site())],
        hint=hint_for(operand),
    )


def check_complex(name: str, dtype: DType, defined: frozenset[str]) -> None:
    """Checks that an operation is among those that are defined for complex numbers.

    Args:
        name: Name of the operation.
        dtype: Type of the computation; real types always pass.
        defined: Names of the operations that are defined for complex numbers.

    Raises:
        ComplexError: If `dtype` is complex and the operation is not defined for it.
    """
    stem = name.removeprefix("aten::").removesuffix("_")
    if stem not in defined:
        raise ComplexError(
            f'"{stem}" not implemented for {dtype}',
            [site_fact(call_site()), "complex numbers have no order, and not every operation"],
            hint="use abs(), or the parts: real, imag, view_as_real()",
        )


def _no_arithmetic(name: str, dtype: DType) -> UnsupportedError:
    return UnsupportedError(
        f"{name} is not defined for {dtype}, as in PyTorch",
        [site_fact(call_site())],
        hint="convert to bfloat16 or float32 first",
    )


def check_out(name: str, out: Tensor, shape: tuple[int, ...], result: DType) -> None:
    """Checks that a tensor can take the result of an operation.

    Args:
        name: Name of the operation, for the error.
        out: The tensor to be written.
        shape: Shape of the result.
        result: Type of the result.

    Raises:
        TensorError: If shape or type do not fit, or elements of `out` share memory.
    """
    if out.window.shape != shape:
        raise TensorError(
            f"{name}: output with shape {list(out.window.shape)} doesn't match the broadcast shape "
            f"{list(shape)}",
            [site_fact(call_site())],
        )
    if category(result) > category(out.window.dtype):
        raise TensorError(
            f"{name}: result type {result} can't be cast to the desired output type "
            f"{out.window.dtype}",
            [site_fact(call_site())],
        )
    check_distinct(name, out)


def check_distinct(name: str, out: Tensor) -> None:
    """Checks that no two elements of a tensor that is to be written share memory.

    Raises:
        TensorError: If two elements do, as after `expand`.
    """
    for extent, stride in zip(out.window.shape, out.window.strides, strict=True):
        if stride == 0 and extent > 1 and out.window.numel:
            raise TensorError(
                f"{name}: unsupported operation: more than one element of the written-to tensor "
                "refers to a single memory location",
                [
                    site_fact(call_site()),
                    f"shape {list(out.window.shape)}, strides {list(out.window.strides)}",
                ],
                hint="clone() the tensor before performing the operation",
            )
