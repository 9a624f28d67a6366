"""What autograd does, as PyTorch does it: leaves, modes, order, errors, time, and nothing left."""

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError, UnsupportedError
from kernbench.memory import dtypes
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.tensors.nodes import Node
from kernbench.testing import Kernbench
from kernbench.torch.autograd import Function


def leaf(*values: Any, device: str = "cpu", dtype: Any = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device, requires_grad=True)


def grad_of(tensor: torch.Tensor) -> Any:
    assert tensor.grad is not None
    return tensor.grad.tolist()


def text_of(error: BaseException) -> list[str]:
    """Returns the lines of an error, the places of this file by their source alone."""
    lines = str(error).splitlines()
    return [
        line.rpartition(".py:")[2].partition(": ")[2] if ".py:" in line else line for line in lines
    ]


# Leaves and results


def test_leaves_and_results(device: str) -> None:
    x = leaf(1.0, 2.0, device=device)
    y = x * 3
    assert (x.requires_grad, x.is_leaf, x.grad, x.grad_fn) == (True, True, None, None)
    assert (y.requires_grad, y.is_leaf) == (True, False)
    assert y.grad_fn is not None
    assert (y.grad_fn.name(), repr(y.grad_fn)) == ("MulBackward0", "<MulBackward0>")
    assert [each and type(each).__name__ for each, _ in y.grad_fn.next_functions] == ["Leaf", None]
    where = "" if device == "cpu" else ", device='cuda:0'"
    assert repr(x) == f"tensor([1., 2.]{where}, requires_grad=True)"
    assert repr(y) == f"tensor([3., 6.]{where}, grad_fn=<MulBackward0>)"
    plain = torch.ones(2, device=device)
    assert (plain.requires_grad, plain.is_leaf, (plain * 2).grad_fn) == (False, True, None)
    assert not torch.ones(2, dtype=torch.int64).requires_grad
    for made in (
        torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True),
        torch.empty(2, requires_grad=True), torch.full((2,), 1.0, requires_grad=True),
        torch.rand(2, requires_grad=True), torch.randn(2, requires_grad=True),
        torch.zeros_like(x, requires_grad=True), torch.ones_like(x, requires_grad=True),
        torch.empty_like(x, requires_grad=True), torch.rand_like(x, requires_grad=True),
        torch.randn_like(x, requires_grad=True), torch.eye(2, requires_grad=True),
        torch.full_like(x, 2.0, requires_grad=True), torch.linspace(0, 1, 2, requires_grad=True),
        torch.arange(2.0, requires_grad=True),
    ):  # fmt: skip
        assert made.requires_grad
        assert made.is_leaf


def test_gradients_add_up_until_they_are_forgotten(device: str) -> None:
    x = leaf(1.0, 2.0, device=device)
    (x * x).sum().backward()
    first = x.grad
    (x * 3).sum().backward()
    assert x.grad is first
    assert grad_of(x) == [5.0, 7.0]
    x.grad = None
    (x + x + x).backward(torch.tensor([1.0, 10.0], device=device))
    assert grad_of(x) == [3.0, 30.0]
    x.grad = torch.zeros(2, device=device)
    x.backward(torch.ones(2, device=device))
    assert grad_of(x) == [1.0, 1.0]


def test_a_gradient_is_never_shared(ctx: RuntimeContext) -> None:
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    seed = torch.ones(2)
    (x + y).backward(seed)
    for tensor in (x, y):
        assert tensor.grad is not None
        tensor.grad.mul_(7)
    assert seed.tolist() == [1.0, 1.0]
    assert grad_of(x) == grad_of(y) == [7.0, 7.0]
    z = leaf(1.0)
    z.expand(3).sum().backward()
    assert z.grad is not None
    matrix = torch.ones((2, 3), requires_grad=True)
    matrix.T.mul(torch.arange(6.0).reshape(3, 2)).sum().backward()
    assert matrix.grad is not None
    assert matrix.grad.is_contiguous()
    row = leaf(1.0, 2.0)
    row.sum().backward()
    assert row.grad is not None
    assert row.grad.stride() == (1,)
    row.grad.add_(1)


def test_a_hook_may_keep_what_it_saw(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    seen: list[torch.Tensor] = []
    x.register_hook(seen.append)
    for _ in range(2):
        (x * 3).sum().backward()
    assert [each.tolist() for each in seen] == [[3.0, 3.0], [3.0, 3.0]]
    assert grad_of(x) == [6.0, 6.0]


def test_16_bit_gradients_add_up_in_float32(device: str) -> None:
    x = leaf(1.0, device=device, dtype=torch.bfloat16)
    small = torch.tensor([2.0**-9], dtype=torch.bfloat16, device=device)
    x.backward(torch.ones(1, dtype=torch.bfloat16, device=device))
    for _ in range(4):
        x.backward(small)  # one by one, bfloat16 would lose each of them
    assert x.grad is not None
    assert x.grad.dtype is torch.bfloat16
    assert grad_of(x) == [1 + 2.0**-7]
    x.grad.zero_()  # what others write counts
    x.backward(small)
    assert grad_of(x) == [2.0**-9]
    parts = [x * float(f) for f in (1, 2.0**-9, 2.0**-9, 2.0**-9, 2.0**-9)]
    x.grad = None
    torch.autograd.backward(parts, [torch.ones(1, dtype=torch.bfloat16, device=device)] * 5)
    assert grad_of(x) == [1 + 2.0**-7]


def test_types_and_devices_of_gradients_are_those_of_their_tensors(ctx: RuntimeContext) -> None:
    half = leaf(1.0, 2.0, dtype=torch.float16)
    wide = leaf(1.0, 2.0, dtype=torch.float64)
    (half * wide).sum().backward()
    assert half.grad is not None
    assert wide.grad is not None
    assert (half.grad.dtype, wide.grad.dtype) == (torch.float16, torch.float64)
    scale = torch.tensor(2.0, requires_grad=True)
    there = leaf(1.0, 2.0, device="cuda")
    (there * scale).sum().backward()
    assert scale.grad is not None
    assert scale.grad.is_cpu
    assert (scale.grad.item(), grad_of(there)) == (3.0, [2.0, 2.0])


def test_empty_tensors(device: str) -> None:
    x = torch.zeros((0, 3), device=device, requires_grad=True)
    w = torch.ones((2, 3), device=device, requires_grad=True)
    (torch.nn.functional.linear(x, w).exp().sum(0) + w.sum()).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, 3)
    assert grad_of(w) == [[2.0] * 3] * 2


# Modes


def test_modes(ctx: RuntimeContext) -> None:
    x = leaf(1.0)

    @torch.no_grad()
    def unrecorded() -> torch.Tensor:
        assert not torch.is_grad_enabled()
        with torch.enable_grad():
            assert (x * 2).requires_grad
        return x * 2

    def recorded() -> torch.Tensor:
        return x * 2

    bare: Any = torch.no_grad(recorded)

    @torch.set_grad_enabled(False)
    def switched() -> torch.Tensor:
        return x * 2

    assert torch.is_grad_enabled()
    for _ in range(2):
        assert not any(made.requires_grad for made in (unrecorded(), bare(), switched()))
    with torch.set_grad_enabled(False):
        assert not (x * 2).requires_grad
    torch.set_grad_enabled(False)
    assert not torch.is_grad_enabled()
    torch.set_grad_enabled(True)


def test_inference_mode(ctx: RuntimeContext) -> None:
    x = leaf(1.0)
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled()
        y = x * 2
    with torch.inference_mode(False):
        assert (x * 2).requires_grad
    assert not y.requires_grad
    assert not torch.is_inference_mode_enabled()
    with pytest.raises(TypeError, match="takes tensors and numbers"), torch.no_grad():
        _ = x + "one"  # type: ignore[operator]
    assert torch.is_grad_enabled()
    with torch.no_grad():
        view = x[:1]
    assert view.requires_grad, "as its base"
    assert view.grad_fn is None


def test_detaching(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    z = y.detach()
    assert not z.requires_grad
    assert z.data_ptr() == y.data_ptr()
    (y * z).sum().backward()
    assert grad_of(x) == [4.0, 8.0]
    made = (x * 2).detach_()
    assert (made.requires_grad, made.is_leaf) == (False, True)
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        (x * 2)[:1].detach_()
    x.requires_grad_(False)
    assert not (x * 2).requires_grad
    x.requires_grad = True
    assert (x * 2).requires_grad


def test_copies_of_leaves(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    twin = copy.deepcopy(x)
    assert (twin.requires_grad, twin.is_leaf, twin.tolist()) == (True, True, [1.0, 2.0])
    assert copy.copy(x).requires_grad
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(x * 2)
    again = torch.tensor(x)
    assert not again.requires_grad


# Writing in place


def test_what_was_kept_must_not_be_written(device: str) -> None:
    x = leaf(1.0, 2.0, device=device)
    y = x.exp()
    y[0].add_(1)
    with pytest.raises(RuntimeError) as caught:
        y.sum().backward()
    kind = "torch.FloatTensor" if device == "cpu" else "torch.cuda.FloatTensor"
    lines = text_of(caught.value)
    assert lines[0] == (
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{kind} [2]], which is output 0 of ExpBackward0, is at version 2; expected "
        "version 1 instead."
    )
    assert lines[1:] == [
        "y.sum().backward()",
        "y = x.exp()",
        "  hint: clone() the tensor before the in-place operation",
    ]
    w = x * 3
    product = w * w
    w.add_(1)
    with pytest.raises(RuntimeError, match=r"which is output 0 of MulBackward0, is at version"):
        product.sum().backward()


def test_what_was_not_kept_may_be_written(device: str) -> None:
    x = leaf(1.0, -2.0, device=device)
    y = x + 1
    y.mul_(3)
    y += x
    y.sum().backward()
    assert grad_of(x) == [4.0, 4.0]


@pytest.mark.parametrize("view", [False, True])
def test_leaves_are_not_written_in_place(ctx: RuntimeContext, view: bool) -> None:
    x = leaf(1.0, 2.0)
    target = x[:1] if view else x
    what = "a view of a leaf Variable" if view else "a leaf Variable"
    for write in (
        lambda: target.add_(1), target.zero_, target.normal_,
        lambda: target.copy_(target.detach()), lambda: target.__setitem__(0, 5.0),
        lambda: target.__setitem__(torch.tensor([0]), 5.0),
        lambda: target.scatter_(0, torch.tensor([0]), 5.0),
    ):  # fmt: skip
        with pytest.raises(RuntimeError) as caught:
            write()
        message = str(caught.value).splitlines()
        possible = {what, "a view of a leaf Variable"}
        assert any(
            message[0] == f"{each} that requires grad is being used in an in-place operation."
            for each in possible
        )
        assert message[-1] == "  hint: write it inside `with torch.no_grad():`"
    with torch.no_grad():
        target.add_(1)
        x.data.mul_(2)
    assert x.tolist() == ([4.0, 4.0] if view else [4.0, 6.0])


def test_out_tensors_take_no_gradients(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    for function in (torch.add, torch.matmul):
        with pytest.raises(RuntimeError) as caught:
            function(x, x, out=torch.empty(2) if function is torch.add else torch.empty(()))
        assert str(caught.value).splitlines()[0] == (
            f"{function.__name__}(): functions with out=... arguments don't support automatic "
            "differentiation, but one of the arguments requires grad."
        )
    with torch.no_grad():
        assert torch.add(x, x, out=torch.empty(2)).tolist() == [2.0, 4.0]


def test_random_numbers_in_place_end_the_way(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    y.uniform_()
    y.sum().backward()
    assert grad_of(x) == [0.0, 0.0]


def test_a_view_made_unrecorded_stays_so(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    with torch.no_grad():
        view = y[:1]
    assert not (view * 2).requires_grad
    later = torch.zeros(2)
    part = later[:1]
    later[1:].copy_(x[1:])
    assert part.requires_grad
    assert (later.grad_fn and later.grad_fn.name()) == "CopySlices"


# Asking for what cannot be


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda x: torch.ones(1).sum().backward(),
            "element 0 of tensors does not require grad and does not have a grad_fn",
        ),
        (lambda x: (x * 2).backward(), "grad can be implicitly created only for scalar outputs"),
        (
            lambda x: (x * 2).backward(torch.ones(3)),
            "Mismatch in shape: grad_output[0] has a shape of torch.Size([3]) and output[0] has a "
            "shape of torch.Size([2]).",
        ),
        (
            lambda x: (x * 2).requires_grad_(False),
            "you can only change requires_grad flags of leaf variables. If you want to use a "
            "computed variable in a subgraph that doesn't require differentiation use "
            "var_no_grad = var.detach().",
        ),
        (
            lambda x: x.long().requires_grad_(),
            "only Tensors of floating point dtype can require gradients",
        ),
        (
            lambda x: x.numpy(),
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.",
        ),
        (
            lambda x: np.asarray(x * 2),
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.",
        ),
        (lambda x: setattr(x, "grad", torch.ones(3)), "assigned grad has data of a different size"),
        (
            lambda x: setattr(x, "grad", torch.ones(2).half()),
            "assigned grad has data of a different type",
        ),
        (
            lambda x: setattr(x, "grad", torch.ones(2).cuda()),
            "assigned grad has data located on a different device",
        ),
        (
            lambda x: torch.ones(2).register_hook(print),
            "cannot register a hook on a tensor that doesn't require gradient",
        ),
        (
            lambda x: torch.ones(2).register_post_accumulate_grad_hook(print),
            "cannot register a hook on a tensor that doesn't require gradient",
        ),
        (
            lambda x: (x * 2).register_post_accumulate_grad_hook(print),
            "post accumulate grad hooks cannot be registered on non-leaf tensors",
        ),
        (
            lambda x: torch.ones(2).retain_grad(),
            "can't retain_grad on Tensor that has requires_grad=False",
        ),
        (
            lambda x: torch.autograd.grad((x * 2).sum(), leaf(1.0)),
            "One of the differentiated Tensors appears to not have been used in the graph. "
            "Set allow_unused=True if this is the desired behavior.",
        ),
        (
            lambda x: torch.autograd.grad((x * 2).sum(), torch.ones(1)),
            "One of the differentiated Tensors does not require grad",
        ),
        (
            lambda x: (x * 2).sum().backward(create_graph=True),
            "create_graph=True: gradients of gradients are not simulated",
        ),
    ],
)
def test_mistakes(ctx: RuntimeContext, wrong: Any, message: str) -> None:
    with pytest.raises(KernbenchError) as caught:
        wrong(leaf(1.0, 2.0))
    lines = str(caught.value).splitlines()
    assert lines[0] == message
    assert "test_autograd.py" in lines[1]
    assert isinstance(caught.value, RuntimeError | UnsupportedError)


def test_a_gradient_that_is_no_tensor(ctx: RuntimeContext) -> None:
    x: Any = leaf(1.0)
    with pytest.raises(TypeError, match="must be Tensor or None, not int"):
        x.grad = 1


def test_the_gradient_of_a_result_is_kept_on_request_only(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    with pytest.warns(UserWarning, match="is not a leaf Tensor is being accessed"):
        assert y.grad is None
    y.retain_grad()
    x.retain_grad()
    (y * y).sum().backward()
    assert grad_of(y) == [4.0, 8.0]
    assert grad_of(x) == [8.0, 16.0]


# Going back twice


def test_what_is_kept_is_freed(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert grad_of(x) == [4.0, 8.0]
    with pytest.raises(RuntimeError) as caught:
        y.backward()
    assert text_of(caught.value) == [
        "Trying to backward through the graph a second time (or directly access saved tensors "
        "after they have already been freed). Saved intermediate values of the graph are freed "
        "when you call .backward() or autograd.grad(). Specify retain_graph=True if you need to "
        "backward through the graph a second time or if you need to access saved tensors after "
        "calling backward.",
        "y.backward()",
        "y = (x * x).sum()",
    ]
    z = (x + 1).sum()
    z.backward()
    z.backward()  # as in PyTorch: nothing was kept that could be gone


def test_device_memory_is_given_back(ctx: RuntimeContext) -> None:
    hbm = ctx.engine.devices[0].hbm
    x = torch.ones(1 << 16, device="cuda", requires_grad=True)
    before = hbm.allocated
    y = x.exp().exp().exp().sum()
    assert hbm.allocated >= before + 3 * x.nbytes
    y.backward()
    assert x.grad is not None
    assert hbm.allocated == before + x.nbytes + 512
    del y
    assert hbm.allocated == before + x.nbytes


def test_only_what_is_needed_is_kept(ctx: RuntimeContext) -> None:
    hbm = ctx.engine.devices[0].hbm
    x = torch.ones(1 << 16, device="cuda", requires_grad=True)
    before = hbm.allocated
    y = ((x + 1) * 2).neg().view(256, 256).T.sum(0)
    assert hbm.allocated == before + 1024
    del y
    with torch.no_grad():
        kept = x.exp().sum()
    assert hbm.allocated == before + 512
    assert not kept.requires_grad


def test_nothing_is_left_without_the_collector(ctx: RuntimeContext) -> None:
    gc.collect()
    gc.disable()
    try:
        x = leaf(1.0, 2.0)
        y = x.exp()
        z = (y * y.softmax(0)).sum()
        assert z.grad_fn is not None
        nodes: list[weakref.ref[Node]] = [weakref.ref(z.grad_fn)]
        waiting: list[Any] = [z.grad_fn]
        while waiting:
            for target, _ in waiting.pop().next_functions:
                if isinstance(target, Node):
                    nodes.append(weakref.ref(target))
                    waiting.append(target)
        del target
        assert len(nodes) >= 4
        z.backward()
        del y, z
        assert [node() for node in nodes] == [None] * len(nodes)
    finally:
        gc.enable()


# Hooks and order


def test_hooks_see_and_replace(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    seen = []
    handle = y.register_hook(lambda g: seen.append(g.tolist()))
    y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)
    (y * 3).sum().backward()
    assert seen == [[3.0, 3.0]]
    assert grad_of(x) == [61.0, 61.0]
    handle.remove()
    with x.register_hook(lambda g: g * 0):
        pass
    (x * 2 * 3).sum().backward()
    assert len(seen) == 1
    assert grad_of(x) == [68.0, 68.0]


def test_a_leaf_is_told_as_soon_as_its_gradient_is_complete(ctx: RuntimeContext) -> None:
    events: list[str] = []
    leaves = {name: leaf(2.0) for name in "abc"}
    for name, tensor in leaves.items():
        tensor.register_post_accumulate_grad_hook(
            lambda t, name=name: events.append(f"{name} {t.grad.item()}")  # type: ignore[misc]
        )

    class Mark(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, name: str) -> Any:
            ctx.name = name
            return x

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            events.append(ctx.name)
            return grads[0], None

    x = Mark.apply(leaves["a"] * leaves["b"], "first")
    x = Mark.apply(x * leaves["c"], "second")
    x = Mark.apply(x + leaves["b"], "third")
    x.backward()
    assert events == ["third", "second", "c 4.0", "first", "a 4.0", "b 5.0"]


def test_nodes_run_in_reverse_order_of_creation(ctx: RuntimeContext) -> None:
    order: list[int] = []

    class Step(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, number: int) -> Any:
            ctx.number = number
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            order.append(ctx.number)
            return grads[0], None

    x = leaf(1.0)
    a = Step.apply(x, 0)
    b = Step.apply(x, 1)
    c = Step.apply(a, 2)
    d = Step.apply(b, 3)
    (d + c + Step.apply(x, 4)).backward()
    assert order == [4, 3, 2, 1, 0]


# autograd.grad


def test_gradients_on_request(ctx: RuntimeContext) -> None:
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    y = x * w
    z = (y * y).sum()
    gx, gy = torch.autograd.grad(z, [x, y], retain_graph=True)
    assert gx is not None
    assert gy is not None
    assert (gx.tolist(), gy.tolist()) == ([18.0, 64.0], [6.0, 16.0])
    assert x.grad is None
    assert w.grad is None
    found = torch.autograd.grad(z, (w, leaf(1.0)), allow_unused=True, retain_graph=True)
    assert found[0] is not None
    assert found[1] is None
    z.backward(inputs=[w], retain_graph=True)
    assert x.grad is None
    assert grad_of(w) == [6.0, 32.0]
    z.backward(inputs=x)
    assert grad_of(x) == [18.0, 64.0]
    (seeded,) = torch.autograd.grad(x * 2, x, torch.tensor([1.0, 5.0]))
    assert seeded is not None
    assert seeded.tolist() == [2.0, 10.0]


def test_gradcheck(ctx: RuntimeContext) -> None:
    x = torch.tensor([[0.5, 2.0], [1.5, -1.0]], dtype=torch.float64, requires_grad=True)
    w = torch.ones((2,), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: ((a * b).exp(), a.argmax()), (x, w))

    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, a: Any) -> Any:
            return a * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * 3

    assert not torch.autograd.gradcheck(Wrong.apply, (x,), raise_exception=False)
    with pytest.raises(
        RuntimeError, match="Jacobian mismatch for output 0 with respect to input 0"
    ):
        torch.autograd.gradcheck(Wrong.apply, x)
    with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
        torch.autograd.gradcheck(torch.exp, torch.ones(2))


# Time, and data off


def test_going_back_takes_time_on_the_device_and_the_host_runs_ahead(
    ctx_without_data: RuntimeContext,
) -> None:
    process = ctx_without_data.main
    x = torch.ones((1024, 1024), device="cuda", requires_grad=True)
    w = torch.ones((1024, 1024), device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    begin = process.host.clock
    loss = torch.nn.functional.linear(x, w).sum()
    torch.cuda.synchronize()
    forward = process.host.clock - begin
    begin = process.host.clock
    loss.backward()
    issued = process.host.clock - begin
    torch.cuda.synchronize()
    backward = process.host.clock - begin
    assert issued < backward
    assert 1.5 * forward < backward < 3.5 * forward
    assert x.grad is not None
    assert w.grad is not None
    assert (x.grad.shape, w.grad.shape) == (x.shape, w.shape)


def test_what_needs_no_gradient_costs_no_kernel(ctx_without_data: RuntimeContext) -> None:
    def commands(x_needs: bool) -> int:
        x = torch.ones((64, 64), device="cuda", requires_grad=x_needs)
        w = torch.ones((64, 64), device="cuda", requires_grad=True)
        loss = torch.nn.functional.linear(x, w).sum()
        stream = ctx_without_data.main.current_stream(0)
        before = stream.count
        loss.backward()
        return stream.count - before

    assert commands(True) == commands(False) + 1


def test_what_is_not_asked_for_costs_no_kernel(ctx_without_data: RuntimeContext) -> None:
    x = torch.ones((8, 8), device="cuda", requires_grad=True)
    w = torch.ones((8, 8), device="cuda", requires_grad=True)
    hidden = x.exp() @ w
    hidden[0].mul_(w[0])
    loss = hidden.square().sum()
    stream = ctx_without_data.main.current_stream(0)

    def commands(*inputs: torch.Tensor) -> int:
        before = stream.count
        torch.autograd.grad(loss, inputs, retain_graph=True)
        return stream.count - before

    counts = [commands(hidden), commands(x), commands(w), commands(x, w)]
    assert counts == sorted(set(counts))
    assert counts[0] == 4  # a one, and for the square a power and two products


def test_gradients_go_to_the_current_stream(ctx: RuntimeContext) -> None:
    x = torch.ones(4, device="cuda", requires_grad=True)
    y = (x * 2).sum()
    side: Any = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    before = ctx.main.default_stream(0).count
    with torch.cuda.stream(side):
        y.backward()
    assert ctx.main.default_stream(0).count == before
    torch.cuda.current_stream().wait_stream(side)
    assert grad_of(x) == [2.0] * 4


# Ranks


def test_ranks_have_tapes_of_their_own(kernbench: Kernbench) -> None:
    found: dict[int, Any] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.full((4,), rank + 1.0, device="cuda", requires_grad=True)
        with torch.set_grad_enabled(rank % 2 == 0):
            for _ in range(rank + 1):
                dist.barrier()  # lets the others run in the middle of this one's mode
            assert torch.is_grad_enabled() == (rank % 2 == 0)
            for _ in range(7 - rank):
                dist.barrier()
        y = x
        for _ in range(rank + 1):
            y = y * x
            dist.barrier()
        for _ in range(7 - rank):
            dist.barrier()
        y.sum().backward()
        found[rank] = grad_of(x)

    kernbench.spawn(worker, nprocs=8)
    assert found == {rank: [(rank + 2.0) * (rank + 1.0) ** (rank + 1)] * 4 for rank in range(8)}


def test_collectives_in_the_backward_pass_meet(kernbench: Kernbench) -> None:
    class Copy(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            total = grads[0].clone()
            dist.all_reduce(total)
            return total

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda", requires_grad=True)
        (Copy.apply(x) * rank + Copy.apply(x) * 10).sum().backward()
        assert grad_of(x) == [6.0 + 40.0] * 4

    kernbench.spawn(worker, nprocs=4)


def test_an_aborted_rank_leaves_no_node(kernbench: Kernbench) -> None:
    nodes: list[weakref.ref[Any]] = []

    class Wait(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            dist.barrier()
            return grads[0]

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank == 1:
            raise ValueError("on purpose")
        x = torch.ones(4, device="cuda", requires_grad=True)
        y = Wait.apply(x.exp()).sum()
        nodes.append(weakref.ref(y.grad_fn))
        y.backward()

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=2)
    assert list(caught.value.errors) == [1]
    del caught
    gc.collect()
    assert [node() for node in nodes] == [None]


def test_nodes_know_no_task(kernbench: Kernbench) -> None:
    kept: list[torch.Tensor] = []

    def worker(rank: int) -> None:
        x = torch.ones(4, device="cuda", requires_grad=True)
        kept.append((x.exp() * x).sum())

    ctx = kernbench.spawn(worker, nprocs=2)
    assert all(process.task is None for process in ctx.processes)
    assert len(kept) == 2


# Functions of one's own


class Scale(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, factor: float, other: Any) -> Any:
        ctx.save_for_backward(x, other)
        ctx.factor = factor
        whole = (x > 0).long()
        ctx.mark_non_differentiable(whole)
        assert not torch.is_grad_enabled()
        return x * factor * other, whole

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        _, other = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False, False)
        return grads[0] * ctx.factor * other, None, None


def test_functions(device: str) -> None:
    x = leaf(1.0, -2.0, device=device)
    y, whole = Scale.apply(x, 3.0, torch.tensor([1.0, 2.0], device=device))
    assert y.grad_fn.name() == "ScaleBackward"
    assert (whole.requires_grad, whole.tolist()) == (False, [1, 0])
    y.sum().backward()
    assert grad_of(x) == [3.0, 6.0]
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.sum().backward()
    with torch.no_grad():
        plain, _ = Scale.apply(x, 3.0, x.detach())
    assert not plain.requires_grad


def test_missing_gradients_come_as_zeros(ctx: RuntimeContext) -> None:
    seen: list[Any] = []

    class Two(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, materialize: bool) -> Any:
            ctx.set_materialize_grads(materialize)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            seen.append(None if grads[1] is None else grads[1].tolist())
            return grads[0] * 2, None

    for materialize in (True, False):
        Two.apply(leaf(1.0, 2.0), materialize)[0].sum().backward()
    assert seen == [[0.0, 0.0], None]


def test_outputs_that_are_no_tensors_or_are_somebody_elses(ctx: RuntimeContext) -> None:
    outer = leaf(5.0) * 2

    class Mixed(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(None)
            ctx.mark_non_differentiable(x)
            return x * 2, "text", outer, x

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            assert ctx.saved_tensors == (None,)
            assert grads[1] is None
            return grads[0] * 2 + grads[2], None  # more than arguments, but nothing

    x = leaf(1.0)
    y, text, other, same = Mixed.apply(x)
    assert (text, other.tolist(), same.requires_grad) == ("text", [10.0], False)
    assert other is not outer
    (y + other).backward()
    assert grad_of(x) == [3.0]
    plain, *_ = Mixed.apply(torch.ones(1))
    assert not plain.requires_grad


def test_a_gradient_that_was_there_before_is_not_taken_over(device: str) -> None:
    constant = torch.ones(2, device=device)

    class Constant(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return constant

    x = leaf(1.0, 2.0, device=device)
    for _ in range(2):
        Constant.apply(x).sum().backward()
    assert grad_of(x) == [2.0, 2.0]
    assert constant.tolist() == [1.0, 1.0]


def test_gradients_that_never_come(ctx: RuntimeContext) -> None:
    class Stop(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return None

    x, w = leaf(1.0), leaf(2.0)
    (Stop.apply(x * w) + w).backward()
    assert x.grad is None
    assert grad_of(w) == [1.0]


def test_leaves_that_are_gone_get_nothing(ctx: RuntimeContext) -> None:
    x = leaf(1.0)
    y = leaf(2.0) * x
    y.backward()
    assert grad_of(x) == [2.0]


def test_a_gradient_set_on_a_result_is_kept(ctx: RuntimeContext) -> None:
    y = leaf(1.0) * 2
    y.grad = torch.ones(1)
    assert grad_of(y) == [1.0]
    y.grad = None
    x = leaf(1.0)
    x.grad = torch.ones(1)
    x.grad.zero_()
    x.grad = None
    assert x.grad is None


def test_forward_without_context(ctx: RuntimeContext) -> None:
    class Square(Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return 2 * ctx.saved_tensors[0] * grads[0]

    x = leaf(3.0)
    Square.apply(x).backward()
    assert grad_of(x) == [6.0]


def test_a_function_keeps_nothing_if_nobody_will_go_back(ctx: RuntimeContext) -> None:
    contexts: list[Any] = []

    class Square(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            contexts.append(ctx)
            return x * x

    with torch.no_grad():
        Square.apply(leaf(3.0))
    Square.apply(torch.ones(1))
    Square.apply(leaf(3.0))
    assert [len(each.saved_tensors) for each in contexts] == [0, 0, 1]


def test_writing_an_argument(ctx: RuntimeContext) -> None:
    class Double(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * 2

    x = leaf(3.0, 4.0)
    y = x * 1
    z = Double.apply(y)
    assert z is y
    part = y[:1]
    Double.apply(part)
    y.sum().backward()
    assert grad_of(x) == [4.0, 2.0]
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        Double.apply(x)


def test_a_view_returned_by_a_function(ctx: RuntimeContext) -> None:
    class First(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x[:1]

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return torch.cat([grads[0] * 5, torch.zeros(1)])

    x = leaf(3.0, 4.0)
    First.apply(x).backward(torch.ones(1))
    assert grad_of(x) == [5.0, 0.0]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            lambda g: (g, g),
            RuntimeError,
            "function BadBackward returned an incorrect number of gradients (expected 1, got 2)",
        ),
        (
            lambda g: 3,
            RuntimeError,
            "function BadBackward returned a int as gradient 0; expected a tensor or None",
        ),
        (
            lambda g: torch.ones(3),
            RuntimeError,
            "Function BadBackward returned an invalid gradient at index 0 - got [3] but "
            "expected shape compatible with [2]",
        ),
        (
            lambda g: g.cuda(),
            RuntimeError,
            "Function BadBackward returned an invalid gradient at index 0 - expected device "
            "cpu but got cuda:0",
        ),
    ],
)
def test_functions_that_return_what_does_not_fit(
    ctx: RuntimeContext, given: Any, error: type[Exception], message: str
) -> None:
    class Bad(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return given(grads[0])

    y = Bad.apply(leaf(1.0, 2.0))
    with pytest.raises(error) as caught:
        y.sum().backward()
    assert str(caught.value).splitlines()[0] == message


def test_functions_that_lack_something(ctx: RuntimeContext) -> None:
    class Empty(Function):
        pass

    class OneWay(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

    class Odd(OneWay):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(3)
            return x

    with pytest.raises(NotImplementedError, match="You must implement the forward function"):
        Empty.apply(leaf(1.0))
    with pytest.raises(NotImplementedError, match="You must implement the backward function"):
        OneWay.apply(leaf(1.0)).backward()
    with pytest.raises(TypeError, match="can only save variables, but got int"):
        Odd.apply(leaf(1.0))


def test_main_may_begin_what_a_rank_goes_on_with(kernbench: Kernbench) -> None:
    found: list[Any] = []

    def worker(rank: int, begun: torch.Tensor) -> None:
        (begun * 2).sum().backward()

    with kernbench.context() as ctx:
        x = leaf(1.0, 2.0)
        y = x.exp().log()
        ctx.multiprocessing.spawn(worker, args=(y,), nprocs=1)
        assert x.grad is not None
        found = x.grad.tolist()
    np.testing.assert_allclose(found, [2.0, 2.0], rtol=1e-6)


def test_types_without_gradients_do_not_carry_them(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    assert not (x.to(torch.int32) * 2).requires_grad
    index = x.detach().long()
    assert torch.ones(3)[index].dtype is dtypes.float32
