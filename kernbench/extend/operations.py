"""Commands made of numpy functions, and the tensors that kernels fill."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernbench.autograd.autograd import is_grad_enabled
from kernbench.autograd.function import Function
from kernbench.errors import OperandError, OptionError, UnsupportedError, call_site, site_fact
from kernbench.kernels.prices import of_bytes
from kernbench.memory import Array, DType
from kernbench.operations.creation import sizes_of
from kernbench.operations.fused import broadcasts, kernel
from kernbench.process.process import current_process
from kernbench.process.types import DeviceLike
from kernbench.runtime_api.tensor_methods import Tensor
from kernbench.tensors.errors import TensorError
from kernbench.tensors.new import new_tensor
from kernbench.tensors.operands import guard
from kernbench.tensors.running import find_device

Formula = Callable[..., Any]
"""A function of numpy arrays; it returns a new one."""


class _Operation(NamedTuple):
    """What `fused` was called with, but for the operands."""

    name: str
    function: Formula
    shape: tuple[int, ...]
    dtype: DType
    gradients: Sequence[Formula | None] | None
    traffic: int | None

    def run(self, operands: Sequence[Tensor | None]) -> Tensor:
        return _run(self.name, self.function, operands, self.shape, self.dtype, self.traffic)


class _Fused(Function):
    @staticmethod
    def forward(ctx: Any, operation: _Operation, *operands: Tensor | None) -> Tensor:
        library, _, stem = operation.name.partition("::")
        ctx.label = f"{library.capitalize()}{stem.title().replace('_', '')}Backward"
        ctx.operation = operation
        ctx.save_for_backward(*operands)
        return operation.run(operands)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        operation: _Operation = ctx.operation
        name, formulas = operation.name, operation.gradients
        if formulas is None:
            raise UnsupportedError(
                f"{name} has no gradients",
                [site_fact(call_site()), site_fact(ctx.site, "it was called at")],
                hint="pass gradients= to fused, or detach() its operands",
            )
        operands: tuple[Tensor | None, ...] = ctx.saved_tensors
        grads: list[Tensor | None] = []
        for formula, operand, needed in zip(
            formulas, operands, ctx.needs_input_grad[1:], strict=True
        ):
            if formula is None or operand is None or not needed:
                grads.append(None)
                continue
            given = grad, *operands
            grads.append(_run(f"{name}_backward", formula, given, operand.shape, operand.dtype))
        return None, *grads


def fused(
    name: str,
    function: Formula,
    operands: Sequence[Tensor | None],
    *,
    shape: Sequence[int] | None = None,
    dtype: DType | None = None,
    gradients: Sequence[Formula | None] | None = None,
    traffic: int | None = None,
) -> Tensor:
    """Runs one command whose effect is a numpy function; returns its result and waits for nothing.

    A device is busy for as long as the traffic takes and for one operation an element of the
    result, as with operations of `torch`; the host takes no simulated time. The function runs when
    the command does, and not at all while data is off.

    ```python
    def softcap(x, cap):
        return extend.fused(
            "mylib::softcap",
            lambda x: cap * np.tanh(x / cap),
            [x],
            gradients=[lambda grad, x: grad / np.cosh(x / cap) ** 2],
        )
    ```

    Args:
        name: As traces and errors show it: `library::operation`.
        function: Takes an array for each operand, which it must not write, and returns a new one
            of the result's shape or one that broadcasts to it. Arrays of 16-bit floats come as
            float32; the result is rounded once.
        operands: Tensors on one device; None for one that is left out, which the function gets too.
        shape: Of the result; None: that of the first tensor.
        dtype: Of the result; None: that of the first tensor.
        gradients: By operand, a function that takes the gradient of the result and then all
            operands, and returns the operand's gradient; None where there is none. Each runs as a
            command `library::operation_backward`. Without the argument, going back through the
            result is an error.
        traffic: Bytes that the command reads and writes; None: those of all tensors.

    Raises:
        OptionError: If the name has no library, or gradients are not as many as operands.
        OperandError: If no operand is a tensor.
        TensorError: If operands are on different devices, or complex; when the command runs, if the
            function returns an array of another shape.
        UnsupportedError: In a backward pass, without `gradients`.
    """
    if not all(name.partition("::")[::2]):
        raise OptionError(
            f"fused({name!r}): expected a name such as 'mylib::softcap'", [site_fact(call_site())]
        )
    tensors = [each for each in operands if each is not None]
    if not tensors:
        raise OperandError(f"{name}: expected at least one tensor", [site_fact(call_site())])
    if gradients is not None and len(gradients) != len(operands):
        raise OptionError(
            f"{name}: {len(gradients)} gradients for {len(operands)} operands",
            [site_fact(call_site()), "expected a function, or None, for each operand"],
        )
    first = tensors[0]
    operation = _Operation(
        name,
        function,
        tuple(first.shape) if shape is None else tuple(shape),
        dtype or first.dtype,
        gradients,
        traffic,
    )
    if (
        operation.dtype.is_floating_point
        and is_grad_enabled()
        and any(each.requires_grad for each in tensors)
    ):
        out: Tensor = _Fused.apply(operation, *operands)
        return out
    return operation.run(operands)


def kernel_output(shape: Sequence[int], dtype: DType, device: DeviceLike | None = None) -> Tensor:
    """Returns a tensor on a device that a kernel of `kernbench.tl` is about to write.

    Unlike `torch.empty` it has no bytes until then, so a kernel that writes all of it need not mark
    every element first. What the kernel leaves out is unwritten, and reading it is an error (M5).

    ```python
    out = extend.kernel_output(x.shape, x.dtype, x.device)
    scale_kernel[(tl.cdiv(x.numel(), 1024),)](x, out, x.numel())
    ```

    Args:
        device: A device of the calling rank; None: its current one.

    Raises:
        OptionError: If the device is the host, where no kernel runs.
        OutOfMemoryError: If the device has no room for it (M7).
    """
    process = current_process()
    where = find_device(process, "cuda" if device is None else device)
    if where.index is None:
        raise OptionError(
            f"kernel_output(device={str(where)!r}): kernels write tensors on devices",
            [site_fact(call_site())],
            hint="torch.empty makes a tensor on the host",
        )
    return new_tensor(process, sizes_of((), shape), dtype, where)


def _run(
    name: str,
    function: Formula,
    operands: Sequence[Tensor | None],
    shape: tuple[int, ...],
    dtype: DType,
    traffic: int | None = None,
) -> Tensor:
    library, _, stem = name.partition("::")

    def compute(*values: Array | None) -> Array:
        result = np.asarray(
            function(*[None if each is None else _guarded(each) for each in values])
        )
        if not broadcasts(result.shape, shape):
            raise TensorError(
                f"{name}: its function returned an array of shape {list(result.shape)}",
                [f"expected {list(shape)}, or what broadcasts to it"],
            )
        return result

    price = None if traffic is None else of_bytes(traffic)
    return kernel(stem, compute, operands, shape, dtype, price=price, library=library)


def _guarded(values: Array) -> Array:
    """Returns an array in place that cannot be written: it may be a tensor's own bytes."""
    seen = values.view()
    seen.flags.writeable = False
    return seen


guard(globals())
