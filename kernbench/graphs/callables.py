"""`torch.cuda.make_graphed_callables`: forward and backward of a part of a model as two graphs."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kernbench.autograd.autograd import grad
from kernbench.autograd.function import Function, once_differentiable
from kernbench.errors import OperandError, call_site, site_fact
from kernbench.graphs.capture import Pool
from kernbench.graphs.cuda_graphs import CUDAGraph, graph
from kernbench.nn.module import Module
from kernbench.operations.creation import zeros_like
from kernbench.operations.cuda import Stream, synchronize
from kernbench.tensors.tensor import Tensor

__all__ = ["make_graphed_callables"]

_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")


class _Captured(NamedTuple):
    """The two graphs of a callable, and the tensors that they always use.

    Attributes:
        forward: The graph of the call.
        backward: The graph of its backward pass; None without one.
        surface: Arguments of the call, and parameters.
        outputs: What the call gives.
        many: Whether it gives a tuple.
        grads: Gradients that come in, one for each output; None for one without.
        results: Gradients that go out, one for each of `surface`; None for one without.
    """

    forward: CUDAGraph
    backward: CUDAGraph | None
    surface: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    many: bool
    grads: tuple[Tensor | None, ...]
    results: tuple[Tensor | None, ...]


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Pool | None = None,
) -> Any:
    """Returns callables that replay graphs, forward and backward.

    A module gets another `forward`, and is returned; it runs as before in the other mode of
    `train()` and `eval()`.

    Args:
        callables: A module or a function, or a tuple of these in the order in which they run.
        sample_args: Tensors for the call, or a tuple of these for each callable.
        num_warmup_iters: Number of calls before the capture.
        allow_unused_input: Whether an input may have no gradient.
        pool: Memory that the graphs share with others.

    Raises:
        OperandError: If an argument is no tensor, or a module has hooks or a buffer that needs a
            gradient.
    """
    alone = not isinstance(callables, tuple)
    functions: tuple[Any, ...] = (callables,) if alone else callables
    samples: tuple[tuple[Tensor, ...], ...] = (sample_args,) if alone else sample_args
    for function, given in zip(functions, samples, strict=True):
        _check(function, given)
    surfaces = [
        (*given, *(function.parameters() if isinstance(function, Module) else ()))
        for function, given in zip(functions, samples, strict=True)
    ]
    shared = pool or Pool()
    synchronize()
    with Stream():
        for function, given, surface in zip(functions, samples, surfaces, strict=True):
            for _ in range(num_warmup_iters):
                outputs, _many = _listed(function(*given))
                _gradients(outputs, surface, _incoming(outputs), allow_unused_input)
    synchronize()
    forwards = []
    for function, given in zip(functions, samples, strict=True):
        captured = CUDAGraph()
        with graph(captured, pool=shared):
            made = function(*given)
        forwards.append((captured, *_listed(made)))
    found: list[_Captured] = []
    for surface, (forward, outputs, many) in reversed(list(zip(surfaces, forwards, strict=True))):
        grads = _incoming(outputs)
        results: tuple[Tensor | None, ...] = (None,) * len(surface)
        backward = None
        if any(one.requires_grad for one in outputs):
            backward = CUDAGraph()
            with graph(backward, pool=shared):
                results = _gradients(outputs, surface, grads, allow_unused_input)
        found.append(_Captured(forward, backward, surface, outputs, many, grads, results))
    graphed = [
        _put(function, len(given), captured)
        for function, given, captured in zip(functions, samples, reversed(found), strict=True)
    ]
    return graphed[0] if alone else tuple(graphed)


def _check(function: Any, given: Any) -> None:
    if not isinstance(given, tuple) or not all(isinstance(one, Tensor) for one in given):
        raise OperandError(
            "make_graphed_callables(): sample_args for each callable must contain only Tensors",
            [site_fact(call_site())],
            hint="pass a tuple of tensors; other values are fixed by the capture",
        )
    if isinstance(function, Module):
        if any(getattr(function, name, None) for name in _HOOKS):
            raise OperandError(
                "make_graphed_callables(): Modules must not have hooks registered at the time they "
                "are passed",
                [site_fact(call_site())],
                hint="register hooks afterwards",
            )
        if any(one.requires_grad for one in function.buffers()):
            raise OperandError(
                "make_graphed_callables(): only parameters may be trainable; all buffers must have "
                "requires_grad=False",
                [site_fact(call_site())],
            )


def _listed(made: Any) -> tuple[tuple[Tensor, ...], bool]:
    many = isinstance(made, tuple | list)
    return tuple(made) if many else (made,), many


def _incoming(outputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    return tuple(zeros_like(one) if one.requires_grad else None for one in outputs)


def _gradients(
    outputs: Sequence[Tensor],
    surface: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    allow_unused: bool,
) -> tuple[Tensor | None, ...]:
    """Returns the gradient of each tensor of a surface; None for one without."""
    ends = [one for one in outputs if one.requires_grad]
    wanted = [one for one in surface if one.requires_grad]
    if not ends or not wanted:
        return (None,) * len(surface)
    given = [one for one in grads if one is not None]
    found = iter(grad(ends, wanted, given, allow_unused=allow_unused))
    return tuple(next(found) if one.requires_grad else None for one in surface)


def _put(function: Any, arguments: int, captured: _Captured) -> Any:
    """Returns what replays the graphs of a callable; a module gets it as its `forward`."""

    class Graphed(Function):
        """One replay forward, and one backward."""

        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Any:
            del ctx
            for static, given in zip(captured.surface[:arguments], inputs, strict=False):
                if static.data_ptr() != given.data_ptr():
                    static.copy_(given)
            captured.forward.replay()
            outputs = tuple(one.detach() for one in captured.outputs)
            return outputs if captured.many else outputs[0]

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Tensor) -> Any:
            del ctx
            for static, given in zip(captured.grads, grads, strict=True):
                if static is not None and static.data_ptr() != given.data_ptr():
                    static.copy_(given)
            assert captured.backward is not None, "no output needed a gradient"
            captured.backward.replay()
            return tuple(None if one is None else one.detach() for one in captured.results)

    def graphed(*given: Tensor) -> Any:
        return Graphed.apply(*given, *captured.surface[arguments:])

    if not isinstance(function, Module):
        return graphed
    training, before = function.training, function.forward

    def forward(*given: Any, **named: Any) -> Any:
        return (
            graphed(*given, **named) if function.training == training else before(*given, **named)
        )

    function.__dict__["forward"] = forward
    return function
