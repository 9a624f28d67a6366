"""`torch.autograd.Function`: operations whose gradient the user defines."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.memory import dtypes
from kernbench.operations.creation import zeros
from kernbench.process.process import current_process
from kernbench.process.types import CPU
from kernbench.tensors.errors import TensorError
from kernbench.tensors.new import alias
from kernbench.tensors.nodes import (
    GradState,
    Leaf,
    Like,
    Node,
    Origin,
    Output,
    Saved,
    edge_of,
    grad_state_of,
    history,
    like,
    with_history,
)
from kernbench.tensors.tape import attach, check_in_place, rebase
from kernbench.tensors.tensor import Tensor

__all__ = ["Function", "once_differentiable"]


class FunctionNode(Node):
    """The `ctx` of `forward` and `backward` of a `Function`, and its node in the graph.

    Attributes:
        needs_input_grad: For each argument, whether it needs a gradient.
    """

    foreign = True

    def __init__(
        self, tape: GradState, function: "type[Function]", arguments: Sequence[Any]
    ) -> None:
        edges = [edge_of(each) if isinstance(each, Tensor) else None for each in arguments]
        self.needs_input_grad = tuple([edge is not None for edge in edges])
        self._needed = tape.enabled and any(self.needs_input_grad)
        inputs: list[Like | None] = [None] * len(edges)
        if self._needed:
            places = enumerate(edges)
            inputs = [None if edge is None else like(arguments[at]) for at, edge in places]
        else:
            edges = [None] * len(edges)
        site = call_site() if self._needed else None
        super().__init__(tape, f"{function.__name__}Backward", edges, inputs, site)
        self._function = function
        self._enabled = tape.enabled
        self._saved: list[tuple[Saved, Leaf | Output | int | None] | None] | None = []
        self._given: tuple[Tensor | None, ...] = ()
        self._plain: set[int] = set()
        self._dirty: tuple[Tensor, ...] = ()
        self._materialize = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps tensors for `backward`, which checks that they have not been written since.

        Raises:
            OperandError: If an argument is neither a tensor nor None.
        """
        for tensor in tensors:
            if tensor is not None and not isinstance(tensor, Tensor):
                raise OperandError(
                    f"save_for_backward can only save variables, but got {type(tensor).__name__}",
                    [site_fact(call_site())],
                    hint="keep other values as attributes of ctx",
                )
        self._given = tensors

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors that `save_for_backward` has kept.

        Raises:
            TensorError: If they were dropped after a backward pass, or one was written since.
        """
        if self._saved is None:
            raise self.freed()
        return tuple([None if each is None else self._unpacked(*each) for each in self._saved])

    def _packed(self, tensor: Tensor) -> tuple[Saved, Leaf | Output | int | None]:
        """Returns the form in which a tensor is kept, with its history; a number for an output."""
        graph = history(tensor)
        own = isinstance(graph, Output) and graph.node is self
        return Saved(tensor), graph.index if own and isinstance(graph, Output) else graph

    def _unpacked(self, saved: Saved, graph: Leaf | Output | int | None) -> Tensor:
        """Returns a kept tensor with the history that it had, as PyTorch does."""
        tensor = saved.get(self)
        return with_history(tensor, Output(self, graph) if isinstance(graph, int) else graph)

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Marks outputs that have no gradient."""
        self._plain = {id(tensor) for tensor in tensors}

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Marks arguments that `forward` has written in place; `forward` must return them."""
        self._dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Sets whether missing gradients come as zeros (the default) or as None."""
        self._materialize = value

    def finish(self, results: Any, arguments: Sequence[Any]) -> Any:
        """Gives the outputs of `forward` their place in the graph, and returns them.

        Args:
            results: What `forward` returned.
            arguments: The arguments of `forward`.

        Raises:
            TensorError: If `mark_dirty` was given a tensor that must not be written, or that
                `forward` did not return.
        """
        outputs = list(results) if isinstance(results, tuple) else [results]
        for dirty in self._dirty:
            if not any(dirty is out for out in outputs):
                raise TensorError(
                    "Some elements marked as dirty during the forward method were not returned as "
                    "output. The inputs that are modified inplace must all be outputs of the "
                    "Function.",
                    [site_fact(call_site())],
                    hint="return them from forward()",
                )
            if self._enabled:
                check_in_place(dirty, self._needed)
        for index, out in enumerate(outputs):
            if isinstance(out, Tensor):
                outputs[index] = self._output(index, out, arguments, len(outputs))
            else:
                self.outputs.append(_NOTHING)
        # After the outputs are made, so that tensors written in place are kept with their new
        # version. If no backward pass can follow, nothing is kept, as in PyTorch.
        if self._needed:
            self._saved = [None if each is None else self._packed(each) for each in self._given]
        self._given = ()
        return tuple(outputs) if isinstance(results, tuple) else outputs[0]

    def _output(self, index: int, out: Tensor, arguments: Sequence[Any], count: int) -> Tensor:
        if self._needed:
            self.outputs.append(like(out))
        for dirty in self._dirty:
            if out is dirty:
                if self._needed:
                    rebase(self, [out is argument for argument in arguments], out)
                return out
        given = out.graph is not None
        for argument in arguments:
            given = given or out is argument
        if given:
            # `forward` returned an argument: the caller's tensor keeps its own history.
            plain, base, origin = id(out) in self._plain, out, out.origin
            out = alias(out, out.window.shape, out.window.strides, out.window.offset)
            if plain:
                return out
            # A view that must not be written is never made again, so its steps do not matter.
            out.origin = Origin(base if origin is None else origin.base, (), None)
        dtype = out.window.dtype
        differentiable = dtype.is_floating_point or dtype.is_complex
        if self._needed and differentiable and id(out) not in self._plain:
            attach(self, index, out)
            if out.origin is not None:
                out.origin.forbid("several" if count > 1 else "custom")
        elif out.origin is not None and out.origin.kind is None:
            out.origin = None
        return out

    def backward(
        self, grads: list[Tensor | None], needed: Sequence[bool] | None = None
    ) -> Sequence[Tensor | None]:
        """Returns the gradients of the arguments, see `Node`.

        Raises:
            TensorError: If the function's `backward` returns a wrong number of gradients, or one
                that is neither a tensor nor None.
        """
        del needed  # the user's function computes all gradients at once, as in PyTorch
        if self._materialize:
            grads = [
                zeros(wanted.shape, dtype=wanted.dtype, device=wanted.device)
                if grad is None and wanted.dtype.is_floating_point
                else grad
                for grad, wanted in zip(grads, self.outputs, strict=True)
            ]
        results = current_process().call_theirs(self._function.backward, self, *grads)
        results = list(results) if isinstance(results, tuple | list) else [results]
        count = len(self.edges)
        while len(results) > count and results[-1] is None:
            results.pop()
        if len(results) != count:
            raise TensorError(
                f"function {self.label} returned an incorrect number of gradients (expected "
                f"{count}, got {len(results)})",
                [site_fact(call_site())],
            )
        for index, result in enumerate(results):
            if result is not None and not isinstance(result, Tensor):
                raise TensorError(
                    f"function {self.label} returned a {type(result).__name__} as gradient "
                    f"{index}; expected a tensor or None",
                    [site_fact(call_site())],
                )
        return results

    def release(self) -> None:
        """Drops the saved tensors. A function that kept none can run again, as in PyTorch."""
        if self._saved:
            self._saved = None


_NOTHING: Final = Like((), dtypes.int64, CPU)
"""Shape, type and device that are noted for an output that is no tensor."""


class Function:
    """`torch.autograd.Function`: an operation with a gradient of its own.

    Subclasses define `forward(ctx, *args)` and `backward(ctx, *grads)`, or `forward(*args)` with
    `setup_context(ctx, inputs, output)`. Both run unrecorded, on the rank that calls `apply`.
    """

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Computes the outputs; for subclasses to define."""
        raise NotImplementedError(
            "You must implement the forward function for custom autograd.Function."
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Keeps what `backward` needs, if `forward` takes no `ctx`; for subclasses to define.

        Args:
            ctx: A `FunctionNode`, which `backward` gets too.
            inputs: The arguments of `forward`.
            output: What `forward` returned.
        """
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Returns a gradient, or None, for each argument of `forward`; for subclasses to define."""
        raise NotImplementedError(
            "You must implement the backward function for your custom autograd.Function to use it "
            "with backward."
        )

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Computes the outputs and records the operation for the backward pass.

        Args:
            *args: Arguments of `forward`; gradients go to the tensors among them.
            **kwargs: Further arguments of `forward`; for `backward` they come after the others.
        """
        split = cls.setup_context is not Function.setup_context
        if split and (kwargs or cls.forward.__defaults__):
            bound = inspect.signature(cls.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        given = (*args, *kwargs.values())
        process = current_process()
        tape = grad_state_of(process)
        enabled = tape.enabled
        node = FunctionNode(tape, cls, given)
        tape.enabled = False
        try:
            if split:
                results = cls.forward(*args, **kwargs)
                cls.setup_context(node, given, results)
            else:
                results = cls.forward(node, *args, **kwargs)
        finally:
            tape.enabled = enabled
        return node.finish(results, given)


def once_differentiable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.autograd.function.once_differentiable`: marks a `backward` without gradient.

    Returns `fn` as it is, since gradients of gradients are not simulated for any function.

    Args:
        fn: The `backward` of a `Function`.
    """
    return fn
