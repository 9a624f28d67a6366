"""`torch.autograd`: its functions and, from other modules, `Function` and the gradient modes."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from kernbench.autograd.backward import check_create_graph, run_backward
from kernbench.autograd.function import Function
from kernbench.errors import KernbenchError, OptionError, call_site, site_fact
from kernbench.operations.creation import zeros_like
from kernbench.operations.from_values import from_numpy
from kernbench.process.process import current_process
from kernbench.tensors import grad_modes
from kernbench.tensors.errors import TensorError, refuse
from kernbench.tensors.grad_modes import *  # noqa: F403 - one namespace for users
from kernbench.tensors.nodes import edge_of, grad_state_of, recording
from kernbench.tensors.running import host_array
from kernbench.tensors.tensor import Tensor

__all__ = ["Function", "_is_checkpoint_valid", "backward", "grad", "gradcheck"]
__all__ += grad_modes.__all__


def _several(value: Any) -> list[Any]:
    return [value] if isinstance(value, Tensor) or value is None else list(value)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Returns the gradients of `inputs`, as `torch.autograd.grad`; changes no tensor's `grad`.

    Args:
        outputs: Tensors where the backward pass begins.
        inputs: Tensors whose gradients are returned.
        grad_outputs: Gradient of each output, of its shape; None for 1, if the output is a single
            value.
        retain_graph: Whether the nodes keep their saved tensors for a further pass.
        create_graph: Must be False: gradients of gradients are not simulated.
        only_inputs: Must be True.
        allow_unused: Whether an input that the outputs do not depend on gets None instead of an
            error.
        is_grads_batched: Must be False.
        materialize_grads: Whether an input that the outputs do not depend on gets zeros instead of
            an error.

    Raises:
        OptionError: For `materialize_grads` with `allow_unused=False`.
        TensorError: If an input is unused, there is none, or for a reason given at
            `Tensor.backward`.
        UnsupportedError: For other values of arguments that are not simulated.
    """
    refuse(
        "grad",
        only_inputs=None if only_inputs else only_inputs,
        is_grads_batched=is_grads_batched or None,
    )
    check_create_graph(create_graph)
    if materialize_grads and allow_unused is False:
        raise OptionError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: "
            "allow_unused=False.",
            [site_fact(call_site())],
        )
    roots, wanted = _several(outputs), _several(inputs)
    given = _several(grad_outputs) if grad_outputs is not None else [None] * len(roots)
    found = run_backward(
        roots, given, retain_graph=bool(retain_graph), inputs=wanted, accumulate=False
    )
    if materialize_grads:
        with recording(current_process(), False):
            return tuple(
                [zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]
            )
    if not allow_unused and any(each is None for each in found):
        raise TensorError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set "
            "allow_unused=True if this is the desired behavior.",
            [site_fact(call_site())],
        )
    return tuple(found)


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: None = None,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Adds the gradients of several tensors to the leaves they depend on, see `Tensor.backward`.

    Args:
        tensors: Tensors where the backward pass begins.
        grad_tensors: Gradient of each tensor, of its shape; None for 1, if the tensor is a single
            value.
        retain_graph: Whether the nodes keep their saved tensors for a further pass.
        create_graph: Must be False: gradients of gradients are not simulated.
        grad_variables: Must be None: PyTorch's old name for `grad_tensors`.
        inputs: Tensors whose `grad` changes, leaves or not; None: all leaves.

    Raises:
        TensorError: For a reason given at `Tensor.backward`.
        UnsupportedError: For `create_graph` or `grad_variables`.
    """
    refuse("backward", grad_variables=grad_variables)
    check_create_graph(create_graph)
    roots = _several(tensors)
    given = _several(grad_tensors) if grad_tensors is not None else [None] * len(roots)
    chosen = None if inputs is None else _several(inputs)
    run_backward(roots, given, retain_graph=bool(retain_graph), inputs=chosen)


def _is_checkpoint_valid() -> bool:
    """Returns whether a pass inside of the one under way may add to the gradients of leaves.

    It may not under `grad`, or `backward(inputs=...)`, which promise to leave other leaves alone.
    """
    return not grad_state_of(current_process()).chosen


class GradcheckError(KernbenchError, RuntimeError):
    """A gradient differs from the finite differences of the function."""


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Compares the gradients of a function with finite differences; the host waits for each value.

    Args:
        func: Takes the inputs, returns a tensor or several.
        inputs: Arguments of `func`. Those that need a gradient must be float64 leaves.
        eps: Step of the differences.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        raise_exception: Whether a difference raises an error, rather than returning False.
        nondet_tol: Must be 0.
        check_undefined_grad: Must be True: a formula gets no undefined gradients here.
        check_grad_dtypes: Must be False.
        check_batched_grad: Must be False.
        check_batched_forward_grad: Must be False.
        check_forward_ad: Must be False.
        check_backward_ad: Must be True.
        fast_mode: Must be False.
        masked: Must be None.

    Raises:
        GradcheckError: If gradients differ from the finite differences.
        OptionError: If no input needs a gradient.
        UnsupportedError: For other values of arguments that are not simulated.
    """
    refuse(
        "gradcheck",
        nondet_tol=nondet_tol or None,
        check_undefined_grad=None if check_undefined_grad else False,
        check_grad_dtypes=check_grad_dtypes or None,
        check_batched_grad=check_batched_grad or None,
        check_batched_forward_grad=check_batched_forward_grad or None,
        check_forward_ad=check_forward_ad or None,
        check_backward_ad=None if check_backward_ad else False,
        fast_mode=fast_mode or None,
        masked=masked,
    )
    given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    checked = cast(
        "list[Tensor]",
        [x for x in given if isinstance(x, Tensor) and edge_of(x) is not None],
    )
    if not checked:
        raise OptionError(
            "gradcheck expects at least one input tensor to require gradient",
            [site_fact(call_site())],
        )

    def outputs() -> list[Tensor]:
        found = _several(func(*given))
        return [each for each in found if each.dtype.is_floating_point]

    for place, out in enumerate(outputs()):
        count = out.window.numel
        if edge_of(out) is None:
            continue
        rows = []
        for row in range(count):
            one = np.zeros(count, out.dtype.numpy)
            one[row] = 1
            seed = from_numpy(one.reshape(out.window.shape)).to(out.device)
            found = grad([out], checked, [seed], retain_graph=True, allow_unused=True)
            rows.append([None if g is None else host_array(g, "gradcheck").copy() for g in found])
        for which, x in enumerate(checked):
            exact = np.zeros((count, x.window.numel))
            for row, grads in enumerate(rows):
                found_here = grads[which]
                if found_here is not None:
                    exact[row] = found_here.reshape(-1)
            numeric = _differences(outputs, place, x, eps, count)
            if not np.allclose(exact, numeric, rtol, atol):
                if not raise_exception:
                    return False
                raise GradcheckError(
                    f"Jacobian mismatch for output {place} with respect to input {which}",
                    [
                        site_fact(call_site()),
                        f"numerical: {numeric.tolist()}",
                        f"analytical: {exact.tolist()}",
                    ],
                )
    return True


def _differences(
    outputs: "Callable[[], list[Tensor]]", place: int, x: Tensor, eps: float, count: int
) -> Any:
    """Returns the Jacobian by central differences: a row per element of the output."""
    values = host_array(x, "gradcheck").copy()
    jacobian = np.zeros((count, values.size))
    with recording(current_process(), False):
        for index in range(values.size):
            sides = []
            for step in (eps, -eps):
                moved = values.copy()
                moved.reshape(-1)[index] += step
                x.copy_(from_numpy(moved).to(x.device))
                sides.append(host_array(outputs()[place], "gradcheck").copy().reshape(-1))
            jacobian[:, index] = (sides[0] - sides[1]) / (2 * eps)
        x.copy_(from_numpy(values).to(x.device))
    return jacobian
