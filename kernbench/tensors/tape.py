"""Recording: operations leave nodes behind; a table has the formulas of their gradients.

The formulas are in the modules `derivatives_*` of the room `autograd`; `backward` runs the nodes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kernbench.errors import CallSite, UnsupportedError, call_site, site_fact
from kernbench.process.process import Process, current_process
from kernbench.tensors.errors import TensorError
from kernbench.tensors.host_time import spend_views
from kernbench.tensors.new import alias, wrap
from kernbench.tensors.nodes import (
    GRAD_STATE,
    Edge,
    GradState,
    Leaf,
    Like,
    Node,
    Origin,
    Output,
    Saved,
    SavedList,
    ViewKind,
    edge_of,
    follow,
    forbidden_write,
    given,
    grad_state_of,
    history,
    inference_error,
    kept,
    like,
    needs_gradient,
)
from kernbench.tensors.tensor import Tensor

if TYPE_CHECKING:
    from types import CodeType


Formula = Callable[..., Any]

# Formulas

_OPERANDS: Final = ("a", "b", "c")
_GIVEN: Final = frozenset({*_OPERANDS, "out", "like", "index", "likes"})
"""Names of a formula's parameters that do not mean an option of its operation."""


def names_of(function: Formula) -> tuple[str, ...]:
    """Returns the names of a formula's parameters; a hundred times as fast as `inspect`."""
    given: tuple[str, ...] | None = getattr(function, "names", None)
    if given is not None:
        return given
    code: CodeType = function.__code__
    return code.co_varnames[: code.co_argcount]


class _Part:
    """The formula of one operand's gradient, and what the formula needs by its parameters' names.

    Attributes:
        function: The formula.
        names: Names of the formula's parameters besides the gradient of the result.
        keeps: Whether the formula needs anything that a node must keep.
        operands: Operands that the formula needs, with their names.
        options: Options that the formula needs.
        out: Whether the formula needs the result.
    """

    __slots__ = ("function", "keeps", "names", "operands", "options", "out")

    def __init__(self, function: Formula) -> None:
        self.function = function
        self.names = names_of(function)[1:]
        self.operands = [(at, name) for at, name in enumerate(_OPERANDS) if name in self.names]
        self.options = [name for name in self.names if name not in _GIVEN]
        self.out = "out" in self.names
        self.keeps = bool(self.operands or self.options or self.out)


def _label(stem: str) -> str:
    """Returns PyTorch's name of an operation's node."""
    stem, _, number = stem.partition(".")
    return f"{''.join([word.capitalize() for word in stem.split('_')])}Backward{number or 0}"


class _Derivative:
    __slots__ = ("every", "joint", "label", "parts", "several")

    def __init__(
        self,
        stem: str,
        parts: Sequence[Formula | None],
        every: Formula | None,
        joint: Formula | None,
        several: bool,
    ) -> None:
        self.joint = None if joint is None else _Part(joint)
        self.several = several
        self.label = _label(stem)
        self.parts = [None if part is None else _Part(part) for part in parts]
        self.every = self.joint if every is None else _Part(every)

    def of(self, count: int) -> Sequence[_Part | None]:
        """Returns the formulas of the operands of a call with so many; a short list lacks Nones."""
        return self.parts if self.every is None else [self.every] * count


_derivatives: Final[dict[str, _Derivative]] = {}


def derivative(
    name: str,
    *parts: Formula | None,
    every: Formula | None = None,
    joint: Formula | None = None,
    several: bool = False,
) -> None:
    """Adds the formulas of an operation's gradients to the table.

    The first parameter of a formula is the gradient of the result. The names of its other
    parameters say what it needs, and a node keeps nothing else: `a`, `b`, `c` are operands, `out`
    is the result, `like` the form of the gradient, `index` the index of the operand, `likes` the
    forms of all gradients of a joint formula, None for one that nobody needs. All other
    names are options of the operation; an option that a call lacks has the parameter's default. The
    value of the formula is reduced to the operand's shape and converted to its dtype.

    Args:
        name: Name of the operation, without `aten::`; PyTorch numbers its overloads: `max.1`.
        parts: A formula for each operand; None for an operand without gradient.
        every: One formula for any number of operands.
        joint: One formula that returns the gradients of all operands.
        several: Whether the operation has several results; the first parameter of a formula is then
            the list of their gradients, in which None stands for zeros.
    """
    assert name not in _derivatives, name
    _derivatives[name] = _Derivative(name, parts, every, joint, several)


def is_differentiable(name: str) -> bool:
    """Returns whether the table has formulas for an operation, named without `aten::`."""
    return name in _derivatives


class Operation(Node):
    """A node of an operation with a formula in the table."""

    __slots__ = ("_derivative", "_freed", "_keeps_out", "_kept", "_once", "in_place", "stem")

    def __init__(
        self,
        state: GradState,
        stem: str,
        operands: Sequence[Any],
        edges: Sequence[Edge | None],
        options: dict[str, Any],
        out: Tensor | None,
        site: CallSite | None,
    ) -> None:
        derivative = _derivatives.get(stem)
        inputs: list[Like | None] = []
        for operand, edge in zip(operands, edges, strict=True):
            inputs.append(None if edge is None else like(operand))
        label = _label(stem) if derivative is None else derivative.label
        Node.__init__(self, state, label, edges, inputs, site)  # `super()` costs more
        self.stem = stem
        self.in_place = [operand is out for operand in operands] if out is not None else None
        self._derivative = derivative
        self._freed = False
        self._keeps_out = False
        # By name, what the formulas need; a node that keeps a tensor can be used only once.
        self._kept: dict[str, Any] = {}
        self._once = False
        if derivative is not None:
            for part, edge in zip(derivative.of(len(edges)), edges, strict=False):
                if edge is not None and part is not None and part.keeps:
                    self._keep(part, operands, options, out)

    def _keep(
        self,
        part: _Part,
        operands: Sequence[Any],
        options: dict[str, Any],
        out: Tensor | None,
    ) -> None:
        """Keeps the operands, options and result that a formula needs."""
        found = self._kept
        for at, name in part.operands:
            if at < len(operands) and name not in found:
                operand = operands[at]
                if operand is out and out is not None:
                    # The operation is about to overwrite this operand.
                    operand = wrap(out.memory, out.window, out.device).clone()
                found[name] = kept(operand)
                self._once = True
        for name in part.options:
            if name in options and name not in found:
                value = options[name]
                if isinstance(value, (Tensor, list)):
                    value = kept(value)
                    self._once = self._once or isinstance(value, (Saved, SavedList))
                found[name] = value
        self._keeps_out = self._keeps_out or part.out

    def made(self, out: Tensor) -> None:
        """Keeps the result, if a formula needs it."""
        self.outputs.append(like(out))
        if self._keeps_out:
            spend_views(out)  # PyTorch keeps a result detached
            self._kept["out"] = Saved(out, (self.label, 0))
            self._once = True

    def backward(
        self, grads: list[Tensor | None], needed: Sequence[bool] | None = None
    ) -> Sequence[Tensor | None]:
        """See `Node`.

        Raises:
            TensorError: If a kept tensor was released, or was written since.
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
        values = self._kept
        if self._once:
            values = {name: given(value, self) for name, value in values.items()}
            if self._keeps_out:
                spend_views(values["out"])
        came: Any = grads if self._derivative.several else grads[0]
        edges = self.edges
        if self._derivative.joint is not None:
            likes = [
                each if edge is not None and (needed is None or needed[at]) else None
                for at, (each, edge) in enumerate(zip(self.inputs, edges, strict=True))
            ]
            joint = self._derivative.joint
            held = {name: values[name] for name in joint.names if name in values}
            found: Sequence[Tensor | None] = joint.function(came, likes=likes, **held)
            return found
        results: list[Tensor | None] = [None] * len(edges)
        for at, part in enumerate(self._derivative.of(len(edges))[: len(edges)]):
            if part is None or edges[at] is None or not (needed is None or needed[at]):
                continue
            arguments: dict[str, Any] = {}
            for name in part.names:
                if name == "like":
                    arguments[name] = self.inputs[at]
                elif name == "index":
                    arguments[name] = at
                elif name in values:
                    arguments[name] = values[name]
            results[at] = part.function(came, **arguments)
        return results

    def release(self) -> None:
        """See `Node`; as in PyTorch, a node that kept no tensor can be used again."""
        if self._once:
            self._freed = True
            self._kept.clear()


class CopySlices(Node):
    """New history of a base tensor after an operation wrote a view of the base in place.

    Args:
        state: State of gradients of the rank.
        inner: Node of the operation on the view.
        own: For each input of `inner`, whether it is the view's earlier value.
        base: Tensor of which the view shows a part.
        steps: Functions with arguments that make the view from the base.
    """

    __slots__ = ("_inner", "_own", "_steps")

    def __init__(
        self, state: GradState, inner: Node, own: Sequence[bool], base: Tensor, steps: Any
    ) -> None:
        edges = [None if mine else edge for edge, mine in zip(inner.edges, own, strict=True)]
        inputs = [None if mine else entry for entry, mine in zip(inner.inputs, own, strict=True)]
        edges, inputs = [edge_of(base), *edges], [like(base), *inputs]
        super().__init__(state, "CopySlices", edges, inputs, inner.site)
        self._inner = inner
        self._steps = steps
        self._own = own
        self.outputs.append(like(base))

    def backward(
        self, grads: list[Tensor | None], needed: Sequence[bool] | None = None
    ) -> Sequence[Tensor | None]:
        """See `Node`."""
        grad = grads[0]
        assert grad is not None
        # The steps make the same view of any tensor that has the base's shape and no gaps.
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
    out: Tensor | None = None,
    site: CallSite | None = None,
) -> Operation | None:
    """Records an operation that is about to be issued, if one of its operands needs a gradient.

    Args:
        process: The rank, or main, that issues the operation.
        name: Name of the operation, with or without `aten::`.
        operands: Tensors and numbers.
        options: Options that the formulas may need, by name.
        out: Existing tensor that the operation overwrites; None if the result is a new tensor.
        site: Where the user called the operation; None: to be found.

    Returns:
        A node to give to `finish` after the operation; None if nothing is recorded.

    Raises:
        TensorError: If `out` must not be written.
        UnsupportedError: If the operation is recorded and overwrites complex numbers.
    """
    if out is not None and out.memory.inference and not process.inference:
        raise inference_error("Inplace update to inference tensor")
    state = grad_state_of(process)
    if not state.enabled or process.inference:
        return None
    edges: list[Edge | None] = []
    needed = False
    for operand in operands:
        edge = edge_of(operand) if isinstance(operand, Tensor) else None
        edges.append(edge)
        needed = needed or edge is not None
    stem = name.removeprefix("aten::")
    if out is not None:
        if stem not in _derivatives:
            stem = stem.removesuffix("_")
        if not any(operand is out for operand in operands):
            if needed or edge_of(out) is not None:
                raise TensorError(
                    f"{stem}(): functions with out=... arguments don't support automatic "
                    "differentiation, but one of the arguments requires grad.",
                    [site_fact(call_site())],
                )
            return None
        check_in_place(out, needed)
    if not needed:
        return None
    if out is not None and out.window.dtype.is_complex:
        raise _no_complex(stem)
    return Operation(state, stem, operands, edges, options or {}, out, site or process.call_site())


def check_in_place(tensor: Tensor, needed: bool) -> None:
    """Checks that a tensor may be written in place while operations are recorded.

    Args:
        needed: Whether what is written needs a gradient.

    Raises:
        TensorError: If the tensor is a leaf that needs a gradient, a view of such a leaf, or a view
            that must not be written.
    """
    what = ""
    origin = tensor.origin
    if origin is not None and origin.kind is not None and (needed or needs_gradient(tensor)):
        raise forbidden_write(tensor, "is being")
    graph = history(tensor) if tensor.memory.tracked else None
    if isinstance(graph, Leaf) and graph.requires_grad:
        what = "a leaf Variable that requires grad"
    elif origin is not None:
        above = origin.base.graph
        if isinstance(above, Leaf) and above.requires_grad:
            what = "a view of a leaf Variable that requires grad"
    if what:
        raise TensorError(
            f"{what} is being used in an in-place operation.",
            [site_fact(call_site())],
            hint="write it inside `with torch.no_grad():`",
        )


def finish(node: Operation, out: Tensor) -> None:
    """Makes a node the history of its result, after the operation was issued."""
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


def attach(node: Node, index: int, out: Tensor) -> None:
    """Makes a node the history of a new tensor.

    Args:
        index: Index of the tensor among the node's outputs.
        out: The new tensor.

    Raises:
        UnsupportedError: If the tensor holds complex numbers.
    """
    if out.window.dtype.is_complex:
        raise _no_complex(node.label)
    old, out.graph = out.graph, Output(node, index)
    if old is not None:
        follow(old, out.graph)
    out.memory.tracked = True


def rebase(node: Node, own: Sequence[bool], out: Tensor) -> None:
    """Makes a node the history of a tensor that it wrote in place, or of the base if it is a view.

    Args:
        own: For each input of the node, whether it is the earlier value of `out`.
        out: The tensor that was written.
    """
    origin = out.origin
    if origin is None:
        attach(node, 0, out)
        return
    state = grad_state_of(current_process())
    attach(CopySlices(state, node, own, origin.base, origin.steps), 0, origin.base)


def view(
    input: Tensor,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    name: str,
    step: tuple[Any, ...],
) -> Tensor:
    """Returns a view with a history: another window on the same memory. Takes no time.

    Args:
        input: Tensor to view.
        shape: Extents of the view's dimensions.
        strides: Strides of the view, in elements.
        offset: Place of the view's first element in the storage, in elements.
        name: Name of the operation, as in the table of formulas.
        step: A function and its further arguments, which make the same view of any tensor that has
            the input's shape and no gaps; formulas get it as the option `step`.
    """
    seen = alias(input, shape, strides, offset)
    process = current_process()
    state = process.locals.get(GRAD_STATE)
    node = None
    if input.device.index is not None:  # as `spend_views`, without a call
        seen_by = state is None or state.enabled or state.running > 0
        process.host.clock += process.calls.view[seen_by]
    if input.memory.tracked and (state is None or state.enabled) and not process.inference:
        # Also renews the history of an input that is a view; then both views share an origin.
        edge = edge_of(input)
        if edge is not None:
            state = state or grad_state_of(process)
            site = process.site or call_site()
            node = Operation(state, name, (input,), (edge,), {"step": step}, None, site)
    seen.origin = _origin(process, state, input, step, None)
    if node is not None:
        node.made(seen)
        attach(node, 0, seen)
    return seen


Window = tuple[Sequence[int], Sequence[int], int, tuple[Any, ...]]
"""Shape, strides, offset and step of a view, see `view`."""


def views(
    input: Tensor, windows: Iterable[Window], name: str, options: dict[str, Any]
) -> tuple[Tensor, ...]:
    """Returns several views with one history, which must not be written, as in PyTorch.

    Args:
        input: Tensor to view.
        windows: Shape, strides, offset and step of each view, see `view`.
        name: Name of the operation, as in the table of formulas, where it is of `several`.
        options: Options that its formula may need, by name.
    """
    process = current_process()
    spend_views(input)
    node = begin(process, name, (input,), options) if input.memory.tracked else None
    state = process.locals.get(GRAD_STATE)
    found = []
    for index, (shape, strides, offset, step) in enumerate(windows):
        seen = alias(input, shape, strides, offset)
        seen.origin = _origin(process, state, input, step, "several")
        if node is not None:
            node.made(seen)
            attach(node, index, seen)
        found.append(seen)
    return tuple(found)


def _origin(
    process: Process,
    state: GradState | None,
    input: Tensor,
    step: tuple[Any, ...],
    kind: ViewKind | None,
) -> Origin:
    """Returns the origin of a view; `kind` says why it must not be written if it is recorded.

    The state is that of the process, None if it has none yet.
    """
    if process.inference:
        kind = "inference"
    elif state is not None and not state.enabled:
        kind = "no_grad"
    origin = input.origin
    if origin is None:
        return Origin(input, (step,), kind)
    above = origin.kind
    if kind is None or above == "inference":
        kind = above
    return Origin(origin.base, (*origin.steps, step), kind)
