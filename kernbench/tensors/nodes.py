"""What tensors know of the operations that made them: leaves, outputs of nodes, and nodes.

A node knows where the gradients of its inputs go and keeps what the formulas of the gradients need.
Only the node's output tensors and later nodes refer to a node, so Python frees a node together with
them. A node refers to no task.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol

from kernbench.errors import CallSite, OperandError, UnsupportedError, call_site, site_fact
from kernbench.memory import DType
from kernbench.process.process import Process, RankLocal, current_process
from kernbench.process.types import Device
from kernbench.tensors.errors import TensorError
from kernbench.tensors.new import wrap
from kernbench.tensors.tensor import Tensor

Hook = Callable[[Tensor], Tensor | None]
Edge = tuple["Node | Leaf", int]
"""Where a gradient goes: a node and which of its outputs the gradient belongs to, or a leaf."""


SavedHooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]
"""What packs a tensor that a node is about to keep, and what turns that into a tensor again."""


class GradState:
    """Whether the operations of a rank are recorded, and how many have been.

    Attributes:
        enabled: Whether operations are recorded.
        count: Number of nodes made so far; also the number of the latest node.
        calls: How often things were called that count it; see `autograd.calls`.
        at_end: Functions to call, in order, at the end of the backward pass that is under way.
        ranges: Names of the ranges that the rank is in, from its process.
        chosen: Whether the backward pass that is under way is for some tensors only.
        passes: Number of backward passes begun so far.
        running: Number of the backward pass that is under way, from 1; 0 outside of one.
        saved_hooks: Functions that pack and unpack the tensors that nodes keep; the last pair acts.
    """

    __slots__ = (
        *("at_end", "calls", "chosen", "count", "enabled", "passes", "ranges", "running"),
        "saved_hooks",
    )  # fmt: skip

    def __init__(self) -> None:
        self.enabled = True
        self.count = 0
        self.calls: dict[object, int] = {}
        self.at_end: list[Callable[[], None]] = []
        self.ranges: tuple[str, ...] = ()
        self.chosen = False
        self.passes = 0
        self.running = 0
        self.saved_hooks: list[SavedHooks] = []


GRAD_STATE: Final = RankLocal("gradients", lambda _: GradState())
"""The state of gradients of each rank; a rank without one records its operations."""


def grad_state_of(process: Process) -> GradState:
    """Returns the state of gradients of a rank, or of main."""
    return GRAD_STATE.of(process)


def goes_back(process: Process) -> bool:
    """Returns whether a rank computes gradients; not where it repeats a forward pass for them.

    A backward pass that is recorded itself (`create_graph`) is one that computes anew.
    """
    state = GRAD_STATE.of(process)
    return state.running > 0 and not state.enabled


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


_HOOKED: Final[list[None]] = []
"""Has an entry for each block, of any rank, in which tensors are packed before they are kept."""


def push_saved_hooks(hooks: SavedHooks) -> None:
    """Lets the nodes that the calling rank records from now on pack the tensors that they keep."""
    grad_state_of(current_process()).saved_hooks.append(hooks)
    _HOOKED.append(None)


def pop_saved_hooks() -> None:
    """Ends what the calling rank's latest `push_saved_hooks` began."""
    grad_state_of(current_process()).saved_hooks.pop()
    _HOOKED.pop()


# Leaves and outputs


class Leaf:
    """A tensor that no recorded operation made, and its gradient; backward passes end here.

    Attributes:
        requires_grad: Whether operations on the tensor are recorded.
        grad: Sum of the gradients so far; None before the first gradient.
        wide: The sum in float32, for 16-bit tensors, after a second gradient was added.
        wide_version: Version of `grad` to which `wide` was rounded.
        hooks: Functions to call with each gradient before it is added.
        post_hooks: Functions to call with the tensor after a gradient was added.
        done_hooks: Functions to call once no node of a backward pass can add to the gradient any
            more, with whether one has.
    """

    __slots__ = (
        "done_hooks", "grad", "hooks", "post_hooks", "requires_grad", "tensor", "wide",
        "wide_version",
    )  # fmt: skip

    def __init__(self, tensor: Tensor) -> None:
        # Not a strong reference: the tensor refers to its leaf.
        self.tensor = weakref.ref(tensor)
        self.requires_grad = False
        self.grad: Tensor | None = None
        self.wide: Tensor | None = None
        self.wide_version = -1
        self.hooks: dict[int, Hook] = {}
        self.post_hooks: dict[int, Callable[[Tensor], None]] = {}
        self.done_hooks: dict[int, Callable[[bool], None]] | None = None


class Output:
    """Says which output of which node a tensor is.

    Attributes:
        node: The node.
        index: Index among the node's outputs.
        grad: Gradient of the tensor, if `retain_grad` asked for it.
    """

    __slots__ = ("__weakref__", "grad", "index", "node")

    def __init__(self, node: "Node", index: int) -> None:
        self.node = node
        self.index = index
        self.grad: Tensor | None = None


ViewKind = Literal["no_grad", "inference", "several", "custom"]
"""Why a view must not be written while operations are recorded: it was made while nothing was
recorded, in `inference_mode`, by a function of several views, or by a user's `Function`."""


class Origin:
    """Where a view comes from.

    Attributes:
        base: The tensor that is viewed; the base is no view itself.
        node: The node that had made the base when the view was made.
        steps: Functions with arguments that, one after the other, make the view from the base.
        kind: Why the view must not be written; None if it may be.
        version: Version of the memory when `kind` was set.
    """

    __slots__ = ("base", "kind", "node", "steps", "version")

    def __init__(
        self, base: Tensor, steps: tuple[tuple[Any, ...], ...], kind: ViewKind | None
    ) -> None:
        self.base = base
        graph = base.graph
        self.node: Node | None = graph.node if isinstance(graph, Output) else None
        self.steps = steps
        self.kind = kind
        if kind is not None:
            self.version = base.memory.version

    def forbid(self, kind: ViewKind) -> None:
        """Notes why the view must not be written from now on."""
        self.kind = kind
        self.version = self.base.memory.version


def node_of(tensor: Tensor) -> "Node | None":
    """Returns the node that made a tensor, as far as the tensor itself knows."""
    graph = tensor.graph
    return graph.node if isinstance(graph, Output) else None


def history(tensor: Tensor) -> "Leaf | Output | None":
    """Returns a tensor's leaf or output; a view gets a new one if its base was written since.

    Raises:
        TensorError: If the view must not be written, and the base or the view was.
    """
    origin = tensor.origin
    if origin is None:
        return tensor.graph
    if origin.kind is not None:
        if origin.version != tensor.memory.version and needs_gradient(tensor):
            raise forbidden_write(tensor, "its base or another view of its base has been")
    elif origin.node is not node_of(origin.base):
        with recording(current_process(), True):
            seen: Any = origin.base
            for function, *arguments in origin.steps:
                seen = function(seen, *arguments)
        follow(tensor.graph, seen.graph)
        tensor.graph, tensor.origin = seen.graph, seen.origin
    return tensor.graph


def needs_gradient(tensor: Tensor) -> bool:
    """Returns whether a tensor needs a gradient; a view made while nothing is recorded as its base.

    No gradient reaches such a view: `edge_of` is None.
    """
    origin = tensor.origin
    if origin is None or origin.kind is None:
        return edge_of(tensor) is not None
    graph = tensor.graph
    own = isinstance(graph, Output) or (graph is not None and graph.requires_grad)
    return own or edge_of(origin.base) is not None


_KINDS: Final[dict[ViewKind, tuple[str, str]]] = {
    "no_grad": (
        "Given that this use case is ambiguous and error-prone, it is forbidden.",
        "make the view and write it both inside of no_grad(), or both outside",
    ),
    "inference": (
        "Given that this use case is ambiguous and error-prone, it is forbidden.",
        "make the view and write it both inside of inference_mode(), or both outside",
    ),
    "several": (
        "This view is the output of a function that returns multiple views. Such functions do not "
        "allow the output views to be modified inplace.",
        "write an index or a slice of the tensor itself, or clone() the view first",
    ),
    "custom": (
        "This view was created inside a custom Function (or because an input was returned as-is) "
        "and the autograd logic to handle view+inplace would override the custom backward "
        "associated with the custom Function, leading to incorrect gradients.",
        "clone() the output of the Function before the in-place operation",
    ),
}


def forbidden_write(tensor: Tensor, what: str) -> TensorError:
    """Returns the error for a write of a view that must not be written, in PyTorch's words.

    Args:
        tensor: The view.
        what: What was written: `is being` for the view itself.
    """
    origin = tensor.origin
    assert origin is not None
    kind: ViewKind = origin.kind or "no_grad"
    node = node_of(tensor)
    made = "inference" if kind == "inference" else "no_grad"
    ends = "in normal mode" if kind == "inference" else "with grad mode enabled"
    if node is None:
        first = f"A view was created in {made} mode and {what} modified inplace {ends}."
    elif kind in {"no_grad", "inference"}:
        first = (
            f"Output 0 of {node.label} is a view of a view which was created in {made} mode and "
            f"{what} modified inplace {ends}."
        )
    else:
        first = f"Output 0 of {node.label} is a view and {what} modified inplace."
    reason, hint = _KINDS[kind]
    facts = [site_fact(call_site())]
    if node is not None:
        facts.append(site_fact(node.site, "the view was made at"))
    return TensorError(f"{first} {reason}", facts, hint=hint)


def follow(old: "Leaf | Output | None", new: "Leaf | Output | None") -> None:
    """Gives the new history of a tensor that was written what the earlier one had for the user.

    That is the gradient, and the wish of `retain_grad`, which from then on means the new values.
    """
    if old is None or not isinstance(new, Output) or new is old:
        return
    new.grad = old.grad
    if isinstance(old, Output):
        keepers = old.node.retained
        if keepers is not None and keepers.pop(old.index, None) is not None:
            retain(new)


def retain(output: Output) -> None:
    """Makes backward passes keep the gradient of an output of a node."""
    if output.node.retained is None:
        output.node.retained = {}
    output.node.retained[output.index] = weakref.ref(output)


def edge_of(tensor: Tensor) -> Edge | None:
    """Returns where the gradient of a tensor goes; None if the tensor needs no gradient."""
    if not tensor.memory.tracked:
        return None
    graph = tensor.graph if tensor.origin is None else history(tensor)
    if isinstance(graph, Output):
        return graph.node, graph.index
    return (graph, 0) if graph is not None and graph.requires_grad else None


def inference_error(what: str) -> TensorError:
    """Returns the error for a use of a tensor made in `inference_mode` outside of that mode."""
    return TensorError(
        f"{what} outside InferenceMode is not allowed.",
        [site_fact(call_site())],
        hint="clone() the tensor, or make it inside of no_grad() instead",
    )


def leaf_of(tensor: Tensor) -> Leaf:
    """Returns the leaf of a tensor that no node made; makes the leaf if there is none yet."""
    graph = history(tensor)
    assert not isinstance(graph, Output)
    if graph is None:
        graph = tensor.graph = Leaf(tensor)
    return graph


def require(tensor: Tensor, requires_grad: bool) -> None:
    """Sets whether a leaf needs a gradient.

    Raises:
        TensorError: If the tensor's type has no gradients, or if an operation made the tensor and
            `requires_grad` is False.
        UnsupportedError: If the tensor holds complex numbers and `requires_grad` is True.
    """
    graph = history(tensor)
    if requires_grad and tensor.memory.inference and not current_process().inference:
        raise inference_error("Setting requires_grad=True on inference tensor")
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
    """Shape, dtype and device that a gradient must have: those of its tensor."""

    shape: tuple[int, ...]
    dtype: DType
    device: Device


def like(tensor: Tensor) -> Like:
    """Returns the shape, dtype and device that the gradient of a tensor must have."""
    window = tensor.window
    return _like((window.shape, window.dtype, tensor.device))


_like: Final[Callable[[tuple[tuple[int, ...], DType, Device]], Like]] = partial(tuple.__new__, Like)
"""Makes a `Like` of its fields without a call of Python: every recorded operation makes some."""


class Node:
    """A recorded operation; `Tensor.grad_fn`.

    Attributes:
        number: Number of the node; greater than the numbers of all earlier nodes of the rank.
        edges: For each input, where its gradient goes; None for an input without gradient.
        inputs: Form of the gradient, by index of each input that needs one.
        outputs: Form of the gradient of each output.
        hooks: Functions to call first with the gradient of an output, by index of the output.
        retained: Outputs whose gradient `retain_grad` keeps, by index of the output.
        ranges: Names of the ranges in which the user called the operation.
        site: Where the user called the operation.
        foreign: Whether a user's code computes the gradients, which then may be tensors that are in
            use elsewhere.
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
                # A rank may go on with a graph that main has begun.
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
        """Where the gradients of the node's inputs go."""
        return tuple([(None, 0) if edge is None else edge for edge in self.edges])

    def __repr__(self) -> str:
        return f"<{self.label}>"

    def backward(
        self, grads: list[Tensor | None], needed: Sequence[bool] | None = None
    ) -> Sequence[Tensor | None]:
        """Returns the gradients of the inputs, given the gradients of the outputs.

        Args:
            grads: Gradient of each output; None for an output that no gradient has reached.
            needed: For each input, whether its gradient is wanted; None: wherever there is an edge.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Drops the tensors and values that were kept for the formulas."""
        raise NotImplementedError

    def freed(self) -> TensorError:
        """Returns the error for a second backward pass through the node."""
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


class Keeper(Protocol):
    """What keeps a tensor: its name and the user's line, for errors."""

    label: str
    site: CallSite | None


class Saved:
    """A tensor kept for a formula, without its history, which may lead back to the same node.

    Between `push_saved_hooks` and its end only what the tensor was packed into is kept.

    Raises:
        TensorError: If the tensor was made in `inference_mode`, or was written while it was packed.
    """

    __slots__ = ("_block", "_maker", "_packed", "_tensor", "_unpack", "_version")

    def __init__(self, tensor: Tensor, maker: tuple[str, int] | None = None) -> None:
        if tensor.memory.inference:
            raise TensorError(
                "Inference tensors cannot be saved for backward. Please do not use Tensors created "
                "in inference mode in computation tracked by autograd.",
                [site_fact(call_site())],
                hint="clone() the tensor, or make it inside of no_grad() instead",
            )
        self._version = tensor.memory.version
        self._block = tensor.memory.buffer.allocation.number
        graph = tensor.graph
        if isinstance(graph, Leaf) and graph.requires_grad:
            # As in PyTorch a leaf is kept itself: it may show other memory once its `data` is set.
            self._tensor: Tensor | None = tensor
        else:
            self._tensor = wrap(tensor.memory, tensor.window, tensor.device)
        if maker is None and isinstance(graph, Output):
            maker = (graph.node.label, graph.index)
        self._maker = maker
        if _HOOKED:
            self._pack()

    def _pack(self) -> None:
        """Keeps what the calling rank's hooks make of the tensor, if it has any."""
        process = current_process()
        stack = grad_state_of(process).saved_hooks
        tensor = self._tensor
        if not stack or tensor is None:
            return
        pack, self._unpack = stack[-1]
        process.host.clock += process.calls.hook
        with recording(process, False):
            self._packed = process.call_theirs(pack, tensor)
        self._tensor = None
        if tensor.memory.version != self._version:
            raise TensorError(
                "A saved tensor pack hook is modifying its input in place. Tensors provided as "
                "input to pack hook can not be modified by in-place operations as this can lead to "
                "unexpected side-effects.",
                [site_fact(call_site())],
                hint="clone() the tensor in the hook first",
            )

    def _unpacked(self) -> Tensor:
        process = current_process()
        process.host.clock += process.calls.hook
        tensor: object = process.call_theirs(self._unpack, self._packed)
        if not isinstance(tensor, Tensor):
            raise OperandError(
                "Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
                f"{type(tensor).__name__}",
                [site_fact(call_site())],
            )
        return tensor

    def get(self, node: Keeper) -> Tensor:
        """Returns the tensor.

        Raises:
            TensorError: If the tensor was written since.
            OperandError: If what a hook unpacks is no tensor.
        """
        tensor = self._tensor
        if tensor is None:
            return self._unpacked()
        version = tensor.memory.version
        if version != self._version and tensor.memory.buffer.allocation.number == self._block:
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


History = Leaf | Output | None


def with_history(tensor: Tensor, graph: History) -> Tensor:
    """Returns a kept tensor with the history that it had, as PyTorch does.

    Args:
        tensor: What was kept, or what was unpacked.
        graph: The history, from `history`.
    """
    if graph is None or tensor.graph is graph:
        return tensor
    if isinstance(graph, Leaf) and not graph.requires_grad:
        return tensor
    seen = wrap(tensor.memory, tensor.window, tensor.device)
    seen.graph = graph
    seen.memory.tracked = True
    return seen


class SavedList(list[Any]):
    """A list of which some entries are tensors."""


def kept(value: Any) -> Any:
    """Returns the form in which a node keeps a value: tensors, also in a list, become `Saved`."""
    if isinstance(value, Tensor):
        return Saved(value)
    if isinstance(value, list) and any(isinstance(entry, Tensor) for entry in value):
        return SavedList(kept(entry) for entry in value)
    return value


def given(value: Any, node: Node) -> Any:
    """Returns the value that `kept` has turned into its kept form."""
    if isinstance(value, Saved):
        return value.get(node)
    if isinstance(value, SavedList):
        return [given(entry, node) for entry in value]
    return value
