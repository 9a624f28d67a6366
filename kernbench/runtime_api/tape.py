"""Recording: operations leave nodes behind, whose gradients are formulas of a table.

The formulas stand in `derivatives_pointwise` and its neighbours; `backward` replays the nodes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.runtime_api.nodes import (
    Edge,
    Leaf,
    Node,
    Origin,
    Output,
    Saved,
    SavedList,
    Tape,
    edge_of,
    given,
    history,
    kept,
    like,
    node_of,
    tape_of,
)
from kernbench.runtime_api.process import Process, current_process
from kernbench.runtime_api.tensor_base import TensorBase, TensorError, alias, wrap

if TYPE_CHECKING:
    from types import CodeType

    from kernbench.runtime_api.tensor import Tensor

Formula = Callable[..., Any]

# Formulas

_OPERANDS: Final = ("a", "b", "c")


def names_of(function: Formula) -> tuple[str, ...]:
    """Returns the names of a formula's parameters; `inspect` would take a hundred times as long."""
    given: tuple[str, ...] | None = getattr(function, "names", None)
    if given is not None:
        return given
    code: CodeType = function.__code__
    return code.co_varnames[: code.co_argcount]


class _Part:
    """The formula of one operand's gradient, and by the names of its parameters what it needs."""

    __slots__ = ("function", "names", "operands")

    def __init__(self, function: Formula) -> None:
        self.function = function
        self.names = names_of(function)[1:]
        self.operands = tuple([at for at, name in enumerate(_OPERANDS) if name in self.names])


class _Derivative:
    __slots__ = ("every", "parts")

    def __init__(self, parts: Sequence[Formula | None], every: Formula | None) -> None:
        self.parts = [None if part is None else _Part(part) for part in parts]
        self.every = None if every is None else _Part(every)

    def part(self, operand: int) -> _Part | None:
        if self.every is not None:
            return self.every
        return self.parts[operand] if operand < len(self.parts) else None


_derivatives: Final[dict[str, _Derivative]] = {}


def derivative(name: str, *parts: Formula | None, every: Formula | None = None) -> None:
    """Says how gradients go back through an operation.

    A formula takes the gradient of the result and, by the names of its further parameters, what
    it needs; only that is kept: `a`, `b`, `c` are operands, `out` the result, `like` what the
    gradient must look like, `index` which operand it belongs to, all others options of the
    operation, which fall back to the parameter's default. What it returns is reduced to the
    operand's shape and converted to its type.

    Args:
        name: Of the operation, without `aten::`.
        parts: A formula per operand; None for those without gradient.
        every: One formula for any number of operands.
    """
    assert name not in _derivatives, name
    _derivatives[name] = _Derivative(parts, every)


def is_differentiable(name: str) -> bool:
    """Returns whether an operation, named without `aten::`, has its derivative."""
    return name in _derivatives


class Operation(Node):
    """A node of an operation with a formula in the table."""

    __slots__ = ("_derivative", "_freed", "_options", "_saved", "in_place", "stem")

    def __init__(
        self,
        tape: Tape,
        stem: str,
        operands: Sequence[Any],
        edges: Sequence[Edge | None],
        options: dict[str, Any],
        out: TensorBase | None,
    ) -> None:
        camel = "".join([word.capitalize() for word in stem.split("_")])
        inputs = [
            None if edge is None else like(operand)
            for operand, edge in zip(operands, edges, strict=True)
        ]
        super().__init__(tape, f"{camel}Backward0", edges, inputs)
        self.stem = stem
        self.in_place = [operand is out for operand in operands] if out is not None else None
        self._derivative = _derivatives.get(stem)
        self._freed = False
        self._saved: dict[str, Any] = {}
        self._options: dict[str, Any] = {}
        for part in self._parts():
            for at in part.operands:
                if at < len(operands) and _OPERANDS[at] not in self._saved:
                    operand = operands[at]
                    if operand is out and out is not None:
                        # The operation is about to write it.
                        operand = wrap(out.memory, out.window, out.device).clone()
                    self._saved[_OPERANDS[at]] = kept(operand)
            for name in part.names:
                if name in options and name not in self._options:
                    self._options[name] = kept(options[name])

    def _parts(self) -> Iterator[_Part]:
        if self._derivative is not None:
            for at, edge in enumerate(self.edges):
                part = self._derivative.part(at)
                if edge is not None and part is not None:
                    yield part

    def made(self, out: TensorBase) -> None:
        """Notes the result."""
        self.outputs.append(like(out))
        if any("out" in part.names for part in self._parts()):
            self._saved["out"] = Saved(out, (self.label, 0))

    def backward(
        self, grads: "list[Tensor | None]", needed: Sequence[bool] | None = None
    ) -> "Sequence[Tensor | None]":
        """See `Node`.

        Raises:
            TensorError: If what was kept is gone, or was written since.
            UnsupportedError: If the operation has no formula.
        """
        if self._freed:
            raise self.freed()
        if self._derivative is None:
            raise UnsupportedError(
                f"derivative for aten::{self.stem} is not implemented",
                [site_fact(call_site()), site_fact(self.site, "it was called at")],
                hint="detach() its operands if no gradient should go through it",
            )
        values = {name: given(value, self) for name, value in self._saved.items()}
        values |= {name: given(value, self) for name, value in self._options.items()}
        results: list[Tensor | None] = []
        for at, (edge, wanted) in enumerate(zip(self.edges, self.inputs, strict=True)):
            part = self._derivative.part(at)
            if edge is None or part is None or not (needed is None or needed[at]):
                results.append(None)
                continue
            values["like"], values["index"] = wanted, at
            results.append(
                part.function(grads[0], **{n: values[n] for n in part.names if n in values})
            )
        return results

    def release(self) -> None:
        """See `Node`; as in PyTorch a node that kept nothing can be used again."""
        values = [*self._saved.values(), *self._options.values()]
        if self._saved or any(isinstance(value, Saved | SavedList) for value in values):
            self._freed = True
            self._saved.clear()
            self._options.clear()


class CopySlices(Node):
    """A node in the place of its base's: an operation wrote a view of that base in place.

    Args:
        tape: Of the rank.
        inner: The operation on the view.
        base: What the view is a view of.
        steps: How the view is made of the base.
    """

    __slots__ = ("_inner", "_own", "_steps")

    def __init__(
        self, tape: Tape, inner: Node, own: Sequence[bool], base: TensorBase, steps: Any
    ) -> None:
        edges = [None if mine else edge for edge, mine in zip(inner.edges, own, strict=True)]
        inputs = [None if mine else entry for entry, mine in zip(inner.inputs, own, strict=True)]
        super().__init__(tape, "CopySlices", [edge_of(base), *edges], [like(base), *inputs])
        self._inner = inner
        self._steps = steps
        self._own = own
        self.outputs.append(like(base))

    def backward(
        self, grads: "list[Tensor | None]", needed: Sequence[bool] | None = None
    ) -> "Sequence[Tensor | None]":
        """See `Node`."""
        grad = grads[0]
        assert grad is not None
        # A view of the base is a view of any tensor of its shape without gaps.
        whole = grad.clone() if grad.is_contiguous() else grad.contiguous()
        part: Any = whole
        for function, *arguments in self._steps:
            part = function(part, *arguments)
        inner = None
        if needed is not None:
            inner = [needed[0] if own else needed[at + 1] for at, own in enumerate(self._own)]
        results = list(self._inner.backward([part.clone()], inner))
        mine = [g for g, own in zip(results, self._own, strict=True) if own and g is not None]
        if self.edges[0] is not None:
            part.zero_()
            for each in mine:
                part.add_(each)
        others = [None if own else g for g, own in zip(results, self._own, strict=True)]
        return [whole, *others]

    def release(self) -> None:
        """See `Node`."""
        self._inner.release()


# Recording


def begin(
    process: Process,
    name: str,
    operands: Sequence[Any],
    options: dict[str, Any] | None = None,
    out: TensorBase | None = None,
) -> Operation | None:
    """Records an operation that is about to be issued, if one of its operands needs a gradient.

    Args:
        process: Who issues it.
        name: For traces and errors.
        operands: Tensors and numbers.
        options: What else its formulas need, by name.
        out: Tensor that it writes, if that exists before.

    Returns:
        A node to give to `finish` after the operation; None if nothing is recorded.

    Raises:
        TensorError: If `out` must not be written.
    """
    tape = tape_of(process)
    if not tape.enabled:
        return None
    edges = [edge_of(each) if isinstance(each, TensorBase) else None for each in operands]
    stem = name.removeprefix("aten::")
    if out is not None:
        if not any(operand is out for operand in operands):
            if any(edges) or edge_of(out) is not None:
                raise TensorError(
                    f"{stem}(): functions with out=... arguments don't support automatic "
                    "differentiation, but one of the arguments requires grad.",
                    [site_fact(call_site())],
                )
            return None
        check_in_place(out)
    if not any(edges):
        return None
    if out is not None and out.window.dtype.is_complex:
        raise _no_complex(stem)
    return Operation(tape, stem, operands, edges, options or {}, out)


def check_in_place(tensor: TensorBase) -> None:
    """Checks that a tensor may be written in place while operations are recorded.

    Raises:
        TensorError: If it is a leaf that needs a gradient, or a view of one.
    """
    what = ""
    graph = history(tensor) if tensor.memory.tracked else None
    if isinstance(graph, Leaf) and graph.requires_grad:
        what = "a leaf Variable that requires grad"
    elif tensor.origin is not None:
        above = tensor.origin.base.graph
        if isinstance(above, Leaf) and above.requires_grad:
            what = "a view of a leaf Variable that requires grad"
    if what:
        raise TensorError(
            f"{what} is being used in an in-place operation.",
            [site_fact(call_site())],
            hint="write it inside `with torch.no_grad():`",
        )


def finish(node: Operation, out: TensorBase) -> None:
    """Makes a node the history of its result."""
    node.made(out)
    if node.in_place is None:
        attach(node, 0, out)
    else:
        rebase(node, node.in_place, out)


def _no_complex(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name}: gradients of complex numbers are not simulated",
        [site_fact(call_site())],
        hint="detach() the operands, or compute with the two parts: view_as_real(), real and imag",
    )


def attach(node: Node, index: int, out: TensorBase) -> None:
    """Makes a node the history of a new tensor.

    Raises:
        UnsupportedError: If that holds complex numbers.
    """
    if out.window.dtype.is_complex:
        raise _no_complex(node.label)
    out.graph = Output(node, index)
    out.memory.tracked = True


def rebase(node: Node, own: Sequence[bool], out: TensorBase) -> None:
    """Makes a node that wrote `out` in place its history and, if it is a view, its base's.

    Args:
        node: The node.
        own: By input, whether it is what `out` held before.
        out: What was written.
    """
    origin = out.origin
    if origin is None:
        attach(node, 0, out)
        return
    tape = tape_of(current_process())
    attach(CopySlices(tape, node, own, origin.base, origin.steps), 0, origin.base)


def view(
    input: TensorBase,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    name: str,
    step: tuple[Any, ...],
) -> "Tensor":
    """Returns a view with a history: another window on the same memory. Takes no time.

    Args:
        input: What it is a view of.
        shape: Extents.
        strides: In elements.
        offset: First element.
        name: Of the operation, for its derivative.
        step: A function that makes the same view of any tensor of the input's shape without gaps,
            and its further arguments; an option of the derivative too.
    """
    seen = alias(input, shape, strides, offset)
    origin = input.origin
    if origin is None:
        seen.origin = Origin(input, node_of(input), (step,))
    else:
        seen.origin = Origin(origin.base, origin.node, (*origin.steps, step))
    if input.memory.tracked:
        _record_view(input, seen, name, step)
    return seen


def _record_view(input: TensorBase, seen: TensorBase, name: str, step: tuple[Any, ...]) -> None:
    # Brings the history of the input, if it is a view, up to date; `seen` then shares its origin.
    node = begin(current_process(), name, (input,), {"step": step})
    origin = seen.origin
    assert origin is not None
    seen.origin = origin._replace(node=node_of(origin.base))
    if node is not None:
        finish(node, seen)
