"""What PyTorch refuses or does in rarer uses of autograd, with values worked out by hand."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kernbench.torch as torch
from kernbench.runtime_api.context import RuntimeContext

NO_GRAD = "A view was created in no_grad mode and is being modified inplace"
SEVERAL = "the output of a function that returns multiple views"


def leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values, requires_grad=True)


def test_a_view_made_in_no_grad_is_not_written_outside(ctx: RuntimeContext) -> None:
    y = leaf(1.0, 2.0) * 2
    with torch.no_grad():
        view = y[:1]
    for value in (leaf(3.0), torch.ones(1)):
        with pytest.raises(RuntimeError, match=NO_GRAD) as caught:
            view.copy_(value)
        assert str(caught.value).splitlines()[-1] == (
            "  hint: make the view and write it both inside of no_grad(), or both outside"
        )
    assert y.tolist() == [2.0, 4.0], "refused before anything was written"


def test_a_view_made_and_written_in_no_grad_changes_the_value_only(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    with torch.no_grad():
        view = y[:1]
        view.mul_(10)
    y.sum().backward()
    assert y.tolist() == [20.0, 4.0]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match="its base or another view of its base has been"):
        _ = view * 2


def test_a_plain_view_made_in_no_grad_may_be_written_with_plain_values(ctx: RuntimeContext) -> None:
    whole = torch.zeros(2)
    with torch.no_grad():
        view = whole[:1]
    view.add_(1)
    assert whole.tolist() == [1.0, 0.0]
    with pytest.raises(RuntimeError, match=NO_GRAD):
        view.add_(leaf(1.0))


@pytest.mark.parametrize(
    "cut",
    [
        lambda y: y.split(1),
        lambda y: y.split([1, 1]),
        lambda y: y.chunk(2),
        lambda y: y.unbind(),
        list,
    ],
    ids=["split", "split with sizes", "chunk", "unbind", "iteration"],
)
def test_one_of_several_views_is_not_written(ctx: RuntimeContext, cut: Callable[..., Any]) -> None:
    y = leaf(1.0, 2.0) * 2
    with pytest.raises(RuntimeError, match=SEVERAL):
        cut(y)[0].mul_(2)
    with torch.no_grad():
        cut(y)[0].mul_(2)
    assert y.tolist() == [4.0, 4.0]
    plain = torch.ones(2)
    cut(plain)[0].mul_(2)
    assert plain.tolist() == [2.0, 1.0]


def test_a_view_of_a_function_is_not_written(ctx: RuntimeContext) -> None:
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 7

    x = leaf(1.0)
    y = Same.apply(x * 2)
    with pytest.raises(RuntimeError, match="created inside a custom Function"):
        y.mul_(3)
    y.clone().mul_(3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3 * 7 * 2]


def test_inputs_may_be_results(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    y = x * 3
    (y * y).sum().backward(inputs=[y])
    assert y.grad is not None
    assert y.grad.tolist() == [6.0, 12.0]
    assert x.grad is None


def test_inputs_may_be_a_result_and_its_leaf(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    z = x * 3
    torch.autograd.backward((z * 2).sum(), inputs=[z, x])
    assert z.grad is not None
    assert x.grad is not None
    assert (z.grad.tolist(), x.grad.tolist()) == ([2.0, 2.0], [6.0, 6.0])


@pytest.mark.parametrize("none", [[], ()])
def test_inputs_are_not_empty(ctx: RuntimeContext, none: Any) -> None:
    x = leaf(1.0)
    with pytest.raises(RuntimeError, match=r"argument to `backward\(\)` cannot be empty"):
        (x * 2).sum().backward(inputs=none)
    with pytest.raises(RuntimeError, match=r"argument to `backward\(\)` cannot be empty"):
        torch.autograd.backward((x * 2).sum(), inputs=none)
    with pytest.raises(RuntimeError, match=r"argument to `grad\(\)` cannot be empty"):
        torch.autograd.grad((x * 2).sum(), none)
    with pytest.raises(RuntimeError, match="got 1 tensors and 2 gradients"):
        torch.autograd.backward([x * 2], [torch.ones(1), torch.ones(1)])
    assert x.grad is None


def test_retain_grad_follows_writes_in_place(ctx: RuntimeContext) -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    y[0].mul_(5)
    assert y.retains_grad
    (y * torch.tensor([1.0, 10.0])).sum().backward()
    assert y.grad is not None
    assert x.grad is not None
    assert y.grad.tolist() == [1.0, 10.0], "the gradient of what y is now"
    assert x.grad.tolist() == [2 * 3 * 5, 2 * 3 * 10]


def test_retain_grad_of_a_view_follows_writes_of_its_base(ctx: RuntimeContext) -> None:
    y = leaf(1.0, 2.0) * 2
    view = y[:1]
    view.retain_grad()
    y.mul_(5)
    (view * 4).sum().backward()
    assert view.grad is not None
    assert view.grad.tolist() == [4.0]


def _modes() -> Iterator[bool]:
    yield torch.is_grad_enabled()
    yield torch.is_grad_enabled()


def test_modes_hold_whenever_a_generator_is_resumed(ctx: RuntimeContext) -> None:
    plain: Any = torch.no_grad
    for values in (torch.no_grad()(_modes), plain(_modes), torch.inference_mode()(_modes)):
        inside = []
        for mode in values():
            inside.append(mode)
            assert torch.is_grad_enabled(), "between two values the caller's mode is in force"
        assert inside == [False, False]
    with torch.no_grad():
        assert list(torch.enable_grad()(_modes)()) == [True, True]
        assert list(torch.set_grad_enabled(True)(_modes)()) == [True, True]
    assert torch.is_grad_enabled()


def test_a_decorated_generator_takes_values_and_errors(ctx: RuntimeContext) -> None:
    seen = []

    @torch.no_grad()
    def talk() -> Any:
        try:
            got = yield "first"
            seen.append((got, torch.is_grad_enabled()))
            try:
                yield "second"
            except KeyError:
                seen.append(("thrown", torch.is_grad_enabled()))
            yield "third"
        finally:
            seen.append(("closed", torch.is_grad_enabled()))

    talking = talk()
    assert next(talking) == "first"
    assert talking.send("hello") == "second"
    assert talking.throw(KeyError("x")) == "third"
    talking.close()
    assert seen == [("hello", False), ("thrown", False), ("closed", False)]
    assert torch.is_grad_enabled()


def test_modes_on_other_callables(ctx: RuntimeContext) -> None:
    async def later() -> bool:
        return torch.is_grad_enabled()

    # As in PyTorch: only the call that makes the coroutine is inside of the mode.
    assert asyncio.run(torch.no_grad()(later)())
    with pytest.warns(FutureWarning, match="Decorating classes is deprecated"):
        made = torch.no_grad()(type("Noted", (), {}))
    assert type(made()).__name__ == "Noted"
    with pytest.raises(TypeError, match=r"set_grad_enabled\(\): argument 'mode' must be bool"):
        torch.set_grad_enabled("yes")  # type: ignore[arg-type]


def test_tensors_of_inference_mode_stay_out_of_graphs(ctx: RuntimeContext) -> None:
    x = leaf(1.0)
    with torch.inference_mode():
        made = torch.ones(1)
        made.add_(1)
        seen = x[:1]
        assert not (x * 2).requires_grad
    assert made.is_inference()
    assert not seen.is_inference()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        _ = x * made
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside"):
        made.add_(1)
    with pytest.raises(RuntimeError, match="Setting requires_grad=True on inference tensor"):
        made.requires_grad_()
    (x * made.clone() + made).sum().backward()
    assert x.grad is not None
    assert (x.grad.tolist(), made.tolist()) == ([2.0], [2.0])


@pytest.mark.parametrize(
    ("hook", "error", "message"),
    [
        (lambda g: g.sum(), RuntimeError, r"hook '<lambda>' has changed the size of value"),
        (lambda g: g.double(), RuntimeError, r"hook '<lambda>' has changed the type of value"),
        (lambda g: 3.0, TypeError, r"expected Variable, but hook returned 'float'"),
    ],
)
def test_hooks_return_what_fits(
    ctx: RuntimeContext, hook: Any, error: type[Exception], message: str
) -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    for tensor in (x, y):
        handle = tensor.register_hook(hook)
        with pytest.raises(error, match=message):
            y.backward(torch.ones(2), retain_graph=True)
        handle.remove()


def test_a_leaf_switched_off_gets_no_gradient(ctx: RuntimeContext) -> None:
    x, w = leaf(2.0), leaf(3.0)
    y = x * w
    x.requires_grad_(False)
    y.backward()
    assert x.grad is None
    assert w.grad is not None
    assert w.grad.tolist() == [2.0]


def test_unused_inputs_are_zeros_if_asked_for(ctx: RuntimeContext) -> None:
    x, w = leaf(2.0), leaf(3.0, 4.0)
    found = torch.autograd.grad((x * x).sum(), [x, w], materialize_grads=True)
    assert [g.tolist() for g in found if g is not None] == [[4.0], [0.0, 0.0]]
    with pytest.raises(ValueError, match="Expected allow_unused to be True"):
        torch.autograd.grad(x.sum(), [w], materialize_grads=True, allow_unused=False)


def test_saved_tensors_are_those_that_were_given(ctx: RuntimeContext) -> None:
    seen = []

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            x, weight = ctx.saved_tensors
            seen.append((x.requires_grad, x.is_leaf, weight.note))
            return grad * weight, grad * x

    weight = leaf(3.0)
    weight.note = "mine"  # type: ignore[attr-defined]
    Scaled.apply(leaf(2.0) * 1, weight).backward()
    assert seen == [(True, False, "mine")]
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0]


def test_arguments_marked_dirty_are_returned(ctx: RuntimeContext) -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.mark_dirty(x)
            return x.mul_(2).clone()

    with pytest.raises(RuntimeError, match="marked as dirty during the forward method were not"):
        Doubled.apply(leaf(1.0) * 1)


def test_a_leaf_whose_data_was_replaced_is_used_as_it_is_now(ctx: RuntimeContext) -> None:
    x = leaf(2.0)
    y = x * x
    before = torch.cuda.memory_allocated()
    x.data = torch.tensor([5.0])
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [10.0], "as in PyTorch, where a leaf is saved itself"
    assert torch.cuda.memory_allocated() == before
    with pytest.raises(RuntimeError, match="must be floating point or complex dtype"):
        x.data = torch.tensor([5])
    with pytest.raises(RuntimeError, match="can't assign Variable as its own grad"):
        x.grad = x
    del x.grad
    assert x.grad is None
