"""The backward pass: visits the nodes of a result in strict reverse order of creation.

That order is the same on all ranks of a program that is the same on all ranks, so the collectives
of the backward pass meet. A rank whose input needs no gradient prunes the node of a collective and
does not take part; the other ranks then wait for it, and the report says so.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from kernbench.autograd import (  # noqa: F401 - formulas register themselves
    derivatives_nn,
    derivatives_reductions,
)
from kernbench.autograd.leaves import accumulate, retain_grad, summed
from kernbench.errors import OperandError, UnsupportedError, call_site, site_fact
from kernbench.operations.copies import to
from kernbench.operations.creation import ones_like
from kernbench.operations.fused import broadcasts, reduced
from kernbench.operations.pointwise import add
from kernbench.process.effort import EFFORT
from kernbench.process.process import Process, current_process
from kernbench.tensors.errors import TensorError
from kernbench.tensors.nodes import (
    Edge,
    Hook,
    Leaf,
    Like,
    Node,
    edge_of,
    grad_state_of,
    like,
    recording,
)
from kernbench.tensors.tensor import Tensor

if TYPE_CHECKING:
    from kernbench.memory import Allocation


def run_backward(
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    *,
    retain_graph: bool,
    inputs: Sequence[Tensor] | None = None,
    accumulate: bool = True,
) -> list[Tensor | None]:
    """Computes gradients from tensors back to leaves, in the time of the operations that do so.

    Args:
        tensors: Tensors where the pass begins.
        gradients: Gradient of each tensor, of its shape; None for 1, if the tensor is a single
            value.
        retain_graph: Whether the nodes keep their saved tensors for a further pass.
        inputs: Tensors whose gradients are wanted; None: all leaves.
        accumulate: Whether the pass adds gradients to the `grad` of leaves, and to that of
            `inputs`, as if their `retain_grad` had been called.

    Returns:
        The gradients of `inputs`, None for an input that no gradient reached; empty if the pass
        accumulates.

    Raises:
        TensorError: If a tensor needs no gradient, a gradient has another shape than its tensor,
            `inputs` is empty, or the nodes have dropped their saved tensors in an earlier pass.
    """
    if len(gradients) != len(tensors):
        raise TensorError(
            f"got {len(tensors)} tensors and {len(gradients)} gradients", [site_fact(call_site())]
        )
    if inputs is not None and not inputs:
        name = "backward" if accumulate else "grad"
        raise TensorError(
            f"`inputs` argument to `{name}()` cannot be empty.",
            [site_fact(call_site())],
            hint="leave it out for all leaves" if accumulate else "",
        )
    process = current_process()
    # All commands of the pass have one call site.
    before, process.site = process.site, process.call_site()
    tape = grad_state_of(process)
    if not tape.running and any(each.device.index is not None for each in tensors):
        process.host.clock += process.calls.backward
    # A pass may run inside another one; each has its own callbacks at the end.
    around, tape.at_end = (tape.at_end, tape.chosen, tape.running), []
    tape.chosen = inputs is not None
    tape.passes += 1
    tape.running = tape.passes
    EFFORT.backward(process.rank, len(process.ctx.main.ranks) or 1)
    try:
        with recording(process, False):
            roots = [
                (_root_edge(place, tensor), _first(place, tensor, gradient))
                for place, (tensor, gradient) in enumerate(zip(tensors, gradients, strict=True))
            ]
            wanted = None if inputs is None else [_wanted_edge(tensor) for tensor in inputs]
            if accumulate:
                for tensor in inputs or ():
                    retain_grad(tensor)
            found = _Pass(process, wanted, retain_graph, accumulate).run(roots)
            for callback in tape.at_end:
                callback()
            return found
    finally:
        EFFORT.stepped(process.rank)
        process.site = before
        tape.at_end, tape.chosen, tape.running = around


def _root_edge(place: int, tensor: Tensor) -> Edge:
    edge = edge_of(tensor)
    if edge is None:
        raise TensorError(
            f"element {place} of tensors does not require grad and does not have a grad_fn",
            [site_fact(call_site())],
        )
    return edge


def _first(place: int, tensor: Tensor, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        if tensor.window.numel != 1:
            raise TensorError(
                "grad can be implicitly created only for scalar outputs",
                [site_fact(call_site()), f"the output has shape {list(tensor.window.shape)}"],
            )
        return ones_like(tensor)
    if gradient.window.shape != tensor.window.shape:
        raise TensorError(
            f"Mismatch in shape: grad_output[{place}] has a shape of {gradient.shape} and "
            f"output[{place}] has a shape of {tensor.shape}.",
            [site_fact(call_site())],
        )
    return fitted(gradient, like(tensor), "backward", place)


def _wanted_edge(tensor: Tensor) -> Edge:
    edge = edge_of(tensor)
    if edge is None:
        raise TensorError(
            "One of the differentiated Tensors does not require grad", [site_fact(call_site())]
        )
    return edge


def fitted(grad: Tensor, wanted: Like, name: str, index: int) -> Tensor:
    """Returns a gradient reduced to the shape of its tensor and converted to the tensor's type.

    Args:
        grad: The gradient that a node returned.
        wanted: Shape, type and device of the tensor to which the gradient belongs.
        name: Name of the node, for the error.
        index: Number of the node's input, for the error.

    Raises:
        TensorError: If the shape of the gradient cannot be reduced, or its device is another one.
    """
    shape = grad.window.shape
    if shape != wanted.shape:
        if not broadcasts(wanted.shape, shape):
            raise TensorError(
                f"Function {name} returned an invalid gradient at index {index} - got "
                f"{list(shape)} but expected shape compatible with {list(wanted.shape)}",
                [site_fact(call_site())],
            )
        grad = reduced(grad, wanted.shape)
    same = grad.device is wanted.device or grad.device == wanted.device
    if not same and wanted.shape:
        raise TensorError(
            f"Function {name} returned an invalid gradient at index {index} - expected device "
            f"{wanted.device} but got {grad.device}",
            [site_fact(call_site())],
        )
    if same and grad.window.dtype is wanted.dtype:
        return grad
    return to(grad, wanted.device, wanted.dtype)


def _check_replaced(hook: Hook, grad: Any, wanted: Like) -> None:
    """Checks what a hook returned instead of a gradient.

    Raises:
        OperandError: If it is no tensor.
        TensorError: If it has another shape, type or device than the gradient must have.
    """
    name = getattr(hook, "__qualname__", type(hook).__qualname__).rpartition(".")[2]
    if not isinstance(grad, Tensor):
        raise OperandError(
            f"expected Variable, but hook returned '{type(grad).__name__}'",
            [site_fact(call_site()), f"hook {name!r}"],
            hint="a hook returns a tensor, or None to leave the gradient as it is",
        )
    for what, was, got in (
        ("size", list(wanted.shape), list(grad.window.shape)),
        ("type", wanted.dtype, grad.dtype),
        ("device", wanted.device, grad.device),
    ):
        if was != got:
            raise TensorError(
                f"hook {name!r} has changed the {what} of value (was {was} got {got})",
                [site_fact(call_site())],
            )


class _Pass:
    """One backward pass.

    Args:
        process: The rank, or main, that runs the pass.
        wanted: Places where gradients are wanted; None: all leaves.
        retain: Whether the nodes keep their saved tensors for a further pass.
        accumulate: Whether gradients are added to the `grad` of leaves; else the gradients at
            `wanted` are returned.
    """

    def __init__(
        self, process: Process, wanted: list[Edge] | None, retain: bool, accumulate: bool
    ) -> None:
        self._process: Final = process
        self._wanted: Final = wanted
        self._retain: Final = retain
        self._accumulate: Final = accumulate
        self._grads: dict[Edge, Tensor] = {}
        self._captured: dict[Edge, Tensor] = {}
        # Nodes and leaves from which the pass reaches a wanted place; None: all.
        self._open: set[Node | Leaf] | None = None
        # For each leaf, how many nodes may still send it a gradient.
        self._pending: dict[Leaf, int] = {}
        # For each block, how many places hold a gradient in it. If only one does, a leaf may keep
        # the gradient itself. Blocks are never used again, so they are safe keys.
        self._places: dict[Allocation, int] = {}

    def run(self, roots: "Sequence[tuple[Edge, Tensor]]") -> list[Tensor | None]:
        nodes = self._reachable([edge for edge, _ in roots])
        for edge, gradient in roots:
            # The caller may hold the gradient too, so no leaf may keep it itself.
            self._places[gradient.memory.buffer.allocation] = 2
            if isinstance(edge[0], Leaf):
                self._pending[edge[0]] = self._pending.get(edge[0], 0) + 1
        for edge, gradient in roots:
            self._deliver(edge, gradient)
        process, outside = self._process, self._process.ranges
        try:
            for node in nodes:
                process.ranges = node.ranges or outside
                self._step(node)
        finally:
            process.ranges = outside
        if self._wanted is None or self._accumulate:
            return []
        return [self._captured.get(edge) for edge in self._wanted]

    def _reachable(self, edges: list[Edge]) -> list[Node]:
        """Returns the nodes to visit, the latest first; counts the gradients each leaf awaits."""
        found: set[Node] = set()
        waiting = [edge[0] for edge in edges]
        while waiting:
            node = waiting.pop()
            if node not in found and isinstance(node, Node):
                found.add(node)
                waiting += [edge[0] for edge in node.edges if edge is not None]
        nodes = sorted(found, key=attrgetter("number"))
        if self._wanted is not None:
            nodes = self._useful(nodes)
        for node in nodes:
            for edge in node.edges:
                if edge is not None and isinstance(edge[0], Leaf):
                    self._pending[edge[0]] = self._pending.get(edge[0], 0) + 1
        return nodes[::-1]

    def _useful(self, nodes: list[Node]) -> list[Node]:
        """Returns the nodes from which the pass reaches a wanted place."""
        assert self._wanted is not None
        goals = {edge[0] for edge in self._wanted}
        useful: set[Node | Leaf] = set()
        for node in nodes:
            if any(e is not None and (e[0] in useful or e[0] in goals) for e in node.edges):
                useful.add(node)
        # A wanted tensor may be an output of a node: the node must then be visited too.
        self._open = useful | goals
        return [node for node in nodes if node in self._open]

    def _step(self, node: Node) -> None:
        take, came = self._grads.pop, False
        grads: list[Tensor | None] = []
        for index in range(len(node.outputs)):
            grad = take((node, index), None)
            grads.append(grad)
            came = came or grad is not None
        if came:
            needed = None
            if self._wanted is not None:
                needed = [self._takes(edge) for edge in node.edges]
            if needed is not None or node.hooks is not None or node.retained is not None:
                self._seen(node, grads)
            if needed is None or any(needed):
                self._replay(node, grads, needed)
                return
            if self._accumulate and not self._retain:
                # As in PyTorch, the node of a wanted result counts as run.
                node.release()
        elif not self._retain:
            node.release()
        self._arrived(node.edges)

    def _takes(self, edge: Edge | None) -> bool:
        """Returns whether a gradient is wanted at this edge or at one that it leads to."""
        return edge is not None and (self._open is None or edge[0] in self._open)

    def _seen(self, node: Node, grads: list[Tensor | None]) -> None:
        """Shows the gradients of a node's outputs to hooks, `retain_grad` and wanted places."""
        for index, came in enumerate(grads):
            if came is None:
                continue
            hooks = None if node.hooks is None else node.hooks.get(index)
            grad = grads[index] = (
                self._hooked(hooks.values(), came, node.outputs[index]) if hooks else came
            )
            keeper = None if node.retained is None else node.retained.get(index)
            output = None if keeper is None else keeper()
            if output is not None:
                output.grad = grad if output.grad is None else add(output.grad, grad)
                self._share(grad)
            if self._wanted is not None and (node, index) in self._wanted:
                # As in PyTorch, hooks change what is returned only where the pass ends.
                ends = not any(self._takes(edge) for edge in node.edges)
                self._captured[node, index] = grad if ends else came
                self._share(self._captured[node, index])

    def _hooked(self, hooks: "Iterable[Hook]", grad: Tensor, wanted: Like) -> Tensor:
        for hook in list(hooks):
            replaced = self._process.call_theirs(hook, grad)
            if replaced is not None:
                _check_replaced(hook, replaced, wanted)
                grad = replaced
            self._share(grad)
        return grad

    def _share(self, grad: Tensor) -> None:
        """Notes that code outside the pass may hold a gradient, so no leaf may keep its memory."""
        self._places[grad.memory.buffer.allocation] = 2

    def _replay(
        self, node: Node, grads: list[Tensor | None], needed: Sequence[bool] | None
    ) -> None:
        given = [grad.memory.buffer.allocation for grad in grads if grad is not None]
        before = self._counts(node) if node.foreign else None
        results = node.backward(grads, needed)
        places, held, open_ = self._places, self._grads, self._open
        for place in given:
            places[place] = places.get(place, 1) - 1
        index = -1
        for edge, result, wanted in zip(node.edges, results, node.inputs, strict=True):
            index += 1
            if edge is None or result is None or not (open_ is None or edge[0] in open_):
                continue
            block = result.memory.buffer.allocation
            if before and block not in given and block.number <= before.get(result.device.index, 0):
                # The block is older than this step: it was not made for this gradient.
                self._share(result)
            assert wanted is not None
            fitting, window = result, result.window
            if (
                window.shape != wanted.shape
                or window.dtype is not wanted.dtype
                or result.device is not wanted.device
            ):
                fitting = fitted(result, wanted, node.label, index)
                block = fitting.memory.buffer.allocation
            places[block] = places.get(block, 0) + 1
            if edge in held:
                self._deliver(edge, fitting, last=False)
            else:
                held[edge] = fitting
        if not self._retain:
            node.release()
        del results, grads
        self._arrived(node.edges)

    def _counts(self, node: Node) -> dict[int | None, int]:
        """Returns how many blocks each memory has allocated in which a gradient may be made."""
        process = self._process
        sips = {each.device.index for each in node.inputs if each is not None}
        return {
            sip: (process.memory if sip is None else process.engine.devices[sip].hbm).count
            for sip in sips
        }

    def _deliver(self, edge: Edge, grad: Tensor, *, last: bool = True) -> None:
        """Adds a gradient to the gradients that have come to a place before."""
        held = self._grads.get(edge)
        if held is not None:
            self._places.pop(held.memory.buffer.allocation, None)
            grad = summed(held, grad, wide=isinstance(edge[0], Leaf))
            self._places[grad.memory.buffer.allocation] = 1
        self._grads[edge] = grad
        if last:
            self._arrived([edge])

    def _arrived(self, edges: Iterable[Edge | None]) -> None:
        """Notes that the nodes with these edges are done; delivers to leaves that are complete."""
        for edge in edges:
            if edge is None or not isinstance(edge[0], Leaf):
                continue
            leaf = edge[0]
            self._pending[leaf] -= 1
            if not self._pending[leaf]:
                grad = self._grads.pop(edge, None)
                if grad is not None:
                    self._at_leaf(edge, leaf, grad)
                if leaf.done_hooks is not None and self._accumulate and self._takes(edge):
                    for hook in list(leaf.done_hooks.values()):
                        self._process.call_theirs(hook, grad is not None)

    def _at_leaf(self, edge: Edge, leaf: Leaf, grad: Tensor) -> None:
        tensor = leaf.tensor()
        if tensor is None:
            return
        if leaf.hooks:
            grad = self._hooked(leaf.hooks.values(), to(grad, tensor.dtype), like(tensor))
        if not self._accumulate:
            if self._wanted is not None and edge in self._wanted:
                self._captured[edge] = to(grad, tensor.dtype)
            return
        if not leaf.requires_grad:
            return
        alone = self._places.get(grad.memory.buffer.allocation, 0) <= 1
        accumulate(leaf, tensor, grad, owned=alone)
        for hook in list(leaf.post_hooks.values()):
            self._process.call_theirs(hook, tensor)


# The method of tensors


def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Sequence[Tensor] | Tensor | None = None,
) -> None:
    """Computes the gradients of the leaves that this tensor depends on and adds them to `grad`.

    The operations go to the current stream, and the host does not wait, as in the forward pass.

    Args:
        self: The tensor where the pass begins.
        gradient: Gradient of this tensor, of its shape; None for 1, if the tensor is a single
            value.
        retain_graph: Whether the nodes keep their saved tensors for a further pass.
        create_graph: Must be False: gradients of gradients are not simulated.
        inputs: Tensors whose `grad` changes, leaves or not; None: all leaves.

    Raises:
        TensorError: If this tensor needs no gradient, `inputs` is empty, `gradient` has another
            shape, saved tensors were dropped in an earlier pass, or a saved tensor was written in
            place since.
        UnsupportedError: For `create_graph`, or an operation without a derivative.
    """
    check_create_graph(create_graph)
    chosen = [inputs] if isinstance(inputs, Tensor) else None if inputs is None else list(inputs)
    run_backward([self], [gradient], retain_graph=bool(retain_graph), inputs=chosen)


def check_create_graph(create_graph: bool) -> None:
    """Refuses a request for gradients of gradients.

    Raises:
        UnsupportedError: If `create_graph` is True.
    """
    if create_graph:
        raise UnsupportedError(
            "create_graph=True: gradients of gradients are not simulated", [site_fact(call_site())]
        )
