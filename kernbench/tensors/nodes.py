"""What tensors know of the operations that made them: leaves, outputs of nodes, and nodes.

A node knows where the gradients of its inputs go and keeps what their formulas need. Nothing but
the tensors that it made, and later nodes, refer to it: it goes when they go, and it knows no task.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, NamedTuple

from kernbench.errors import CallSite, UnsupportedError, call_site, site_fact
from kernbench.memory import DType
from kernbench.process.process import Process, RankLocal, current_process
from kernbench.process.types import Device
from kernbench.tensors.errors import TensorError
from kernbench.tensors.new import wrap
from kernbench.tensors.tensor import Tensor

Hook = Callable[[Tensor], Tensor | None]
Edge = tuple["Node | Leaf", int]
"""Where a gradient goes: a node and which of its outputs the gradient belongs to, or a leaf."""


class GradState:
    """Whether the operations of a rank are recorded, and how many have been.

    Attributes:
        enabled: Whether operations are recorded.
        inference: Whether `inference_mode` has switched that off.
        count: Nodes made so far; the number of the latest one.
        at_end: Called, in order, at the end of the backward pass that is under way.
        ranges: Ranges that the rank is in, as its process has them.
    """

    __slots__ = ("at_end", "count", "enabled", "inference", "ranges")

    def __init__(self) -> None:
        self.enabled = True
        self.inference = False
        self.count = 0
        self.at_end: list[Callable[[], None]] = []
        self.ranges: tuple[str, ...] = ()


_GRAD_STATE: Final = RankLocal("gradients", lambda _: GradState())


def grad_state_of(process: Process) -> GradState:
    """Returns the state of gradients of a rank, or of main."""
    return _GRAD_STATE.of(process)


@contextmanager
def recording(process: Process, enabled: bool) -> Iterator[None]:
    """Switches the recording of a rank's operations on or off for a while."""
    state = grad_state_of(process)
    before = state.enabled
    state.enabled = enabled
    try:
        yield
    finally:
        state.enabled = before


# What a tensor knows


class Leaf:
    """The end of the way: a tensor that no recorded operation made, and its gradient.

    Attributes:
        requires_grad: Whether operations on the tensor are recorded.
        grad: Sum of the gradients so far.
        wide: The same in float32, for 16-bit tensors, once a second gradient was added.
        wide_version: Version of `grad` that `wide` was rounded to.
        hooks: Called with each gradient before it is added.
        post_hooks: Called with the tensor after that.
    """

    __slots__ = ("grad", "hooks", "post_hooks", "requires_grad", "tensor", "wide", "wide_version")

    def __init__(self, tensor: Tensor) -> None:
        # Not a strong reference: the tensor refers to its leaf.
        self.tensor = weakref.ref(tensor)
        self.requires_grad = False
        self.grad: Tensor | None = None
        self.wide: Tensor | None = None
        self.wide_version = -1
        self.hooks: dict[int, Hook] = {}
        self.post_hooks: dict[int, Callable[[Tensor], None]] = {}


class Output:
    """Says which output of which node a tensor is.

    Attributes:
        node: The node.
        index: Which of its outputs.
        grad: Its gradient, if `retain_grad` asked for it.
    """

    __slots__ = ("__weakref__", "grad", "index", "node")

    def __init__(self, node: "Node", index: int) -> None:
        self.node = node
        self.index = index
        self.grad: Tensor | None = None


class Origin(NamedTuple):
    """Where a view comes from.

    Attributes:
        base: What it is a view of, itself no view.
        node: The node that had made the base when the view was made.
        steps: Functions with arguments that make the view of the base, one after the other.
    """

    base: Tensor
    node: "Node | None"
    steps: tuple[tuple[Any, ...], ...]


def node_of(tensor: Tensor) -> "Node | None":
    """Returns the node that made a tensor, as far as the tensor itself knows."""
    graph = tensor.graph
    return graph.node if isinstance(graph, Output) else None


def history(tensor: Tensor) -> "Leaf | Output | None":
    """Returns what a tensor knows; that of a view is made anew if its base was written since."""
    origin = tensor.origin
    if origin is not None and origin.node is not node_of(origin.base):
        with recording(current_process(), True):
            seen: Any = origin.base
            for function, *arguments in origin.steps:
                seen = function(seen, *arguments)
        tensor.graph, tensor.origin = seen.graph, seen.origin
    return tensor.graph


def edge_of(tensor: Tensor) -> Edge | None:
    """Returns where the gradient of a tensor goes; None if it needs none."""
    if not tensor.memory.tracked:
        return None
    graph = tensor.graph if tensor.origin is None else history(tensor)
    if isinstance(graph, Output):
        return graph.node, graph.index
    return (graph, 0) if graph is not None and graph.requires_grad else None


def leaf_of(tensor: Tensor) -> Leaf:
    """Returns the leaf that a tensor is, made if need be; for tensors that no node made."""
    graph = history(tensor)
    assert not isinstance(graph, Output)
    if graph is None:
        graph = tensor.graph = Leaf(tensor)
    return graph


def require(tensor: Tensor, requires_grad: bool) -> None:
    """Says whether a leaf needs a gradient.

    Raises:
        TensorError: If its type has none, or an operation made it and it needs one.
    """
    graph = history(tensor)
    if isinstance(graph, Output):
        if not requires_grad:
            raise TensorError(
                "you can only change requires_grad flags of leaf variables. If you want to use a "
                "computed variable in a subgraph that doesn't require differentiation use "
                "var_no_grad = var.detach().",
                [site_fact(call_site())],
            )
        return
    if requires_grad:
        if tensor.dtype.is_complex:
            raise UnsupportedError(
                f"gradients of {tensor.dtype} are not simulated",
                [site_fact(call_site())],
                hint="let the parts be leaves: torch.complex(real, imag) of their detached values",
            )
        if not tensor.dtype.is_floating_point:
            raise TensorError(
                "only Tensors of floating point dtype can require gradients",
                [site_fact(call_site()), f"got {tensor.dtype}"],
            )
        leaf_of(tensor).requires_grad = True
        tensor.memory.tracked = True
        tensor.origin = None
    elif graph is not None:
        graph.requires_grad = False


# Nodes


class Like(NamedTuple):
    """What a gradient must look like: its tensor."""

    shape: tuple[int, ...]
    dtype: DType
    device: Device


def like(tensor: Tensor) -> Like:
    """Returns what the gradient of a tensor must look like."""
    window = tensor.window
    return Like(window.shape, window.dtype, tensor.device)


class Node:
    """An operation that was recorded; `Tensor.grad_fn`.

    Attributes:
        number: Greater than those of all nodes made before by the same rank.
        edges: By input, where its gradient goes; None if it needs none.
        inputs: By input that needs a gradient, what that looks like.
        outputs: What the gradients of its outputs look like.
        hooks: By output, what is called with its gradient first.
        retained: By output, who wants to keep its gradient.
        ranges: Ranges in which the user called the operation.
        site: Where that was.
        foreign: Whether somebody else's code computes its gradients: then they need not be new.
    """

    __slots__ = (
        "__weakref__", "edges", "hooks", "inputs", "label", "number", "outputs", "ranges",
        "retained", "site",
    )  # fmt: skip
    foreign: ClassVar[bool] = False

    def __init__(
        self,
        state: GradState,
        label: str,
        edges: Sequence[Edge | None],
        inputs: Sequence[Like | None],
        site: CallSite | None,
    ) -> None:
        number: int = state.count
        for edge in edges:
            if edge is not None:
                earlier = edge[0]
                # Main may have begun what a rank goes on with.
                if isinstance(earlier, Node) and earlier.number > number:
                    number = earlier.number
        self.number: int = number + 1
        state.count = self.number
        self.label = label
        self.edges = edges
        self.inputs = inputs
        self.outputs: list[Like] = []
        self.hooks: dict[int, dict[int, Hook]] | None = None
        self.retained: dict[int, weakref.ref[Output]] | None = None
        self.ranges = state.ranges
        self.site = site

    def name(self) -> str:
        """Returns PyTorch's name of such a node."""
        return self.label

    @property
    def next_functions(self) -> tuple[tuple["Node | Leaf | None", int], ...]:
        """Where the gradients of its inputs go."""
        return tuple([(None, 0) if edge is None else edge for edge in self.edges])

    def __repr__(self) -> str:
        return f"<{self.label}>"

    def backward(
        self, grads: list[Tensor | None], needed: Sequence[bool] | None = None
    ) -> Sequence[Tensor | None]:
        """Returns the gradients of the inputs, given those of the outputs.

        Args:
            grads: By output; None where none has come.
            needed: By input, whether its gradient is asked for; None: where there is an edge.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Drops what was kept for the formulas."""
        raise NotImplementedError

    def freed(self) -> TensorError:
        """Returns the error for going back a second time."""
        return TensorError(
            "Trying to backward through the graph a second time (or directly access saved tensors "
            "after they have already been freed). Saved intermediate values of the graph are freed "
            "when you call .backward() or autograd.grad(). Specify retain_graph=True if you need "
            "to backward through the graph a second time or if you need to access saved tensors "
            "after calling backward.",
            [site_fact(call_site()), site_fact(self.site, f"{self.label} was recorded at")],
        )


_TYPE_NAMES: Final = {
    "bfloat16": "BFloat16", "bool": "Bool", "float16": "Half", "float32": "Float",
    "float64": "Double", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
    "uint8": "Byte",
}  # fmt: skip


class Saved:
    """A tensor kept for a formula: without its history, which may lead back to its own node."""

    __slots__ = ("_maker", "_tensor", "_version")

    def __init__(self, tensor: Tensor, maker: tuple[str, int] | None = None) -> None:
        self._tensor = wrap(tensor.memory, tensor.window, tensor.device)
        self._version = tensor.memory.version
        graph = tensor.graph
        if maker is None and isinstance(graph, Output):
            maker = (graph.node.label, graph.index)
        self._maker = maker

    def get(self, node: Node) -> Tensor:
        """Returns the tensor.

        Raises:
            TensorError: If it was written since.
        """
        tensor = self._tensor
        version = tensor.memory.version
        if version != self._version:
            place = "torch.cuda" if tensor.is_cuda else "torch"
            kind = _TYPE_NAMES.get(tensor.dtype.name, tensor.dtype.name)
            maker = (
                "" if self._maker is None else f", which is output {self._maker[1]} of "
                f"{self._maker[0]},"
            )  # fmt: skip
            raise TensorError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{place}.{kind}Tensor {list(tensor.shape)}]{maker} is at "
                f"version {version}; expected version {self._version} instead.",
                [site_fact(call_site()), site_fact(node.site, f"{node.label} was recorded at")],
                hint="clone() the tensor before the in-place operation",
            )
        return tensor


class SavedList(list[Any]):
    """A list of which some entries are tensors."""


def kept(value: Any) -> Any:
    """Returns what to keep of a value: of tensors, also in a list, what `Saved` is."""
    if isinstance(value, Tensor):
        return Saved(value)
    if isinstance(value, list) and any(isinstance(entry, Tensor) for entry in value):
        return SavedList(kept(entry) for entry in value)
    return value


def given(value: Any, node: Node) -> Any:
    """Returns what was kept."""
    if isinstance(value, Saved):
        return value.get(node)
    if isinstance(value, SavedList):
        return [given(entry, node) for entry in value]
    return value
