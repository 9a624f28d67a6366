"""Hooks of modules: when they are called, with what, and what they may change."""

from collections.abc import Iterator
from typing import Any

import pytest

import kernbench.torch as ours
from kernbench.errors import OperandError
from kernbench.testing import Kernbench
from kernbench.torch import nn
from kernbench.torch.nn.modules import module as all_modules


def _model(lib: Any) -> Any:
    model = lib.nn.Sequential(lib.nn.Linear(3, 2), lib.nn.ReLU(), lib.nn.Linear(2, 1))
    with lib.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.fill_(0.5 + number / 8)
    return model


def _shown(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_shown(each) for each in value]
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


class TwoWays:
    """A module of several arguments and results, in either library."""

    @staticmethod
    def of(lib: Any) -> Any:
        class Two(lib.nn.Module):  # type: ignore[misc]
            def forward(self, a: Any, b: Any, *, scale: float = 1.0) -> Any:
                if scale < 0:
                    raise ValueError("negative")
                return a * b * scale, a + b

        return Two()


def _story(lib: Any) -> Iterator[Any]:
    """Yields what the hooks of a program see, in order."""
    told: list[Any] = []

    def tell(name: str, answer: Any = None) -> Any:
        def hook(module: Any, *given: Any) -> Any:
            told.append([name, type(module).__name__, *map(_shown, given)])
            return answer(*given) if answer is not None else None

        return hook

    model = _model(lib)
    model[0].register_forward_pre_hook(tell("pre", lambda args: args[0] + 1))
    model[0].register_forward_pre_hook(tell("first"), prepend=True)
    doubled = model[1].register_forward_hook(tell("doubled", lambda args, out: out * 2))
    model[1].register_forward_hook(tell("before"), prepend=True)
    model.register_full_backward_hook(tell("whole"))
    model[2].register_full_backward_hook(tell("last", lambda grads, _: (grads[0] * 3,)))
    model[2].register_full_backward_pre_hook(tell("fivefold", lambda grads: (grads[0] * 5,)))
    x = lib.ones(2, 3, requires_grad=True)
    for _ in range(2):
        model(x).sum().backward()
        told.append(_shown([x.grad, *[each.grad for each in model.parameters()]]))
        doubled.remove()
    with lib.no_grad():
        model(x)
    yield told

    told.clear()
    two = TwoWays.of(lib)
    two.register_forward_pre_hook(
        tell("kwargs", lambda args, kwargs: (args, {"scale": kwargs["scale"] * 2})),
        with_kwargs=True,
    )
    two.register_forward_hook(tell("result"), with_kwargs=True)
    two.register_forward_hook(tell("always"), always_call=True)
    two.register_full_backward_hook(tell("both", lambda gi, go: (gi[0], gi[0] * 7)))
    a, b = (lib.full((2,), value, requires_grad=True) for value in (2.0, 3.0))
    product, total = two(a, b, scale=0.5)
    (product * total).sum().backward()
    told.append(_shown([a.grad, b.grad]))
    try:
        two(a, b, scale=-1.0)
    except ValueError as error:
        told.append(str(error))
    yield told

    told.clear()
    model = _model(lib)
    model.register_state_dict_pre_hook(tell("saving"))
    model[0].register_state_dict_post_hook(
        lambda module, state, prefix, _: state.update({f"{prefix}more": 3})
    )
    state = model.state_dict(prefix="net.")
    told.append({key: _shown(value) for key, value in state.items()})

    def renamed(module: Any, state: Any, prefix: str, *rest: Any) -> None:
        told.append(["loading", type(module).__name__, prefix, rest[1]])
        state[f"{prefix}weight"] = state.pop(f"{prefix}old")

    model[2].register_load_state_dict_pre_hook(renamed)
    model.register_load_state_dict_post_hook(
        lambda module, keys: told.append([keys.missing_keys, keys.unexpected_keys])
    )
    state = {"0.weight": lib.zeros(2, 3), "0.bias": lib.zeros(2), "2.old": lib.ones(1, 2)}
    model.load_state_dict(state, strict=False)
    told.append(_shown(list(model.parameters())))
    yield told


@pytest.mark.torch
def test_hooks_see_and_change_what_those_of_pytorch_do(kernbench: Kernbench) -> None:
    torch = pytest.importorskip("torch")
    with kernbench.context():
        mine = [list(each) for each in _story(ours)]
    assert mine == [list(each) for each in _story(torch)]


def test_hooks_are_called_in_order_and_taken_away(kernbench: Kernbench) -> None:
    calls: list[str] = []
    with kernbench.context():
        model = nn.Identity()
        first = model.register_forward_pre_hook(lambda module, args: calls.append("first"))
        model.register_forward_pre_hook(lambda module, args: calls.append("zeroth"), prepend=True)
        with model.register_forward_hook(lambda module, args, out: calls.append("after")):
            model(ours.ones(1))
        first.remove()
        model(ours.ones(1))
    assert calls == ["zeroth", "first", "after", "zeroth"]


def test_gradients_of_a_module_are_seen_and_changed(kernbench: Kernbench) -> None:
    seen: list[Any] = []
    with kernbench.context():
        scale = nn.Linear(1, 1, bias=False)
        with ours.no_grad():
            scale.weight.fill_(3.0)

        def hook(module: Any, grad_input: Any, grad_output: Any) -> Any:
            seen.append((_shown(grad_input), _shown(grad_output)))
            return (grad_input[0] * 10,)

        scale.register_full_backward_hook(hook)
        x = ours.tensor([[2.0]], requires_grad=True)
        (scale(x) * 5).sum().backward()
        assert x.grad is not None
        assert (seen, x.grad.tolist()) == ([([[[15.0]]], [[[5.0]]])], [[150.0]])
        assert scale.weight.grad is not None
        assert scale.weight.grad.tolist() == [[10.0]]


def test_without_gradients_of_arguments_the_hook_warns(kernbench: Kernbench) -> None:
    seen: list[Any] = []
    with kernbench.context():
        layer = nn.Linear(1, 1)
        layer.register_full_backward_hook(lambda module, gi, go: seen.append((gi, _shown(go))))
        with pytest.warns(UserWarning, match="no inputs require gradients"):
            layer(ours.ones(1, 1)).sum().backward()
        assert seen == [((None,), [[[1.0]]])]


def test_hooks_of_all_modules_are_those_of_a_rank(kernbench: Kernbench) -> None:
    calls: list[tuple[int, str]] = []

    def worker(rank: int) -> None:
        handles = []
        if rank == 1:
            handles = [
                all_modules.register_module_forward_pre_hook(
                    lambda module, args: calls.append((rank, "pre"))
                ),
                all_modules.register_module_forward_hook(
                    lambda module, args, out: calls.append((rank, "after"))
                ),
                all_modules.register_module_full_backward_pre_hook(
                    lambda module, grads: calls.append((rank, "grads"))
                ),
                all_modules.register_module_full_backward_hook(
                    lambda module, gi, go: calls.append((rank, "back"))
                ),
            ]
        x = ours.ones(1, 1, requires_grad=True)
        layer = nn.Linear(1, 1)
        layer(x).sum().backward()
        for handle in handles:
            handle.remove()
        layer(x)

    kernbench.spawn(worker, nprocs=2)
    assert calls == [(1, "pre"), (1, "after"), (1, "grads"), (1, "back")]


def test_what_a_hook_may_not_return(kernbench: Kernbench) -> None:
    with kernbench.context():
        x = ours.ones(1, 1, requires_grad=True)
        layer: Any = nn.Linear(1, 1)
        with pytest.raises(OperandError, match="a hook is a function, got int"):
            layer.register_forward_hook(3)
        handle = layer.register_forward_pre_hook(lambda m, a, k: a, with_kwargs=True)
        with pytest.raises(RuntimeError, match=r"tuple of \(new_args, new_kwargs\)"):
            layer(x)
        handle.remove()
        handle = layer.register_full_backward_hook(lambda m, gi, go: (None, None))
        with pytest.raises(RuntimeError, match="invalid number of grad_input, got 2"):
            layer(x).sum().backward()
        handle.remove()
        layer.register_full_backward_hook(lambda m, gi, go: go)
        with (
            pytest.warns(UserWarning, match="no inputs"),
            pytest.raises(RuntimeError, match="should always return None"),
        ):
            layer(ours.ones(1, 1)).sum().backward()


def test_a_state_may_be_taken_over_itself(kernbench: Kernbench) -> None:
    with kernbench.context():
        layer = nn.BatchNorm1d(2)
        layer.weight.requires_grad_(False)
        state = {name: each * 2 for name, each in layer.state_dict().items()}
        keys = layer.load_state_dict(state, assign=True)
        assert keys == ([], [])
        assert layer.running_var is state["running_var"]
        assert isinstance(layer.weight, nn.Parameter)
        assert [each.requires_grad for each in layer.parameters()] == [False, True]
        assert layer.weight.data_ptr() == state["weight"].data_ptr()


def test_always_means_after_errors_of_other_hooks_too(kernbench: Kernbench) -> None:
    """The error that came first is the one that is raised; PyTorch warns of the others."""

    def fails(*_: Any) -> Any:
        raise ValueError("first")

    def fails_too(*_: Any) -> Any:
        raise KeyError("second")

    seen: list[Any] = []
    with kernbench.context():
        layer = nn.Linear(1, 1)
        layer.register_forward_pre_hook(fails)
        layer.register_forward_hook(fails_too, always_call=True)
        layer.register_forward_hook(lambda m, args, out: seen.append(out), always_call=True)
        with (
            pytest.warns(UserWarning, match="silenced as another error .* 'second'"),
            pytest.raises(ValueError, match="first"),
        ):
            layer(ours.ones(1, 1))
    assert seen == [None]


def test_gradients_that_come_past_the_results_call_no_hook(kernbench: Kernbench) -> None:
    class Named(nn.Module):
        def forward(self, x: Any) -> Any:
            return {"twice": x * 2}

    seen: list[Any] = []
    with kernbench.context():
        model, x = Named(), ours.ones(1, requires_grad=True)
        model.register_full_backward_hook(lambda m, gi, go: seen.append(go))
        with pytest.warns(UserWarning, match="module output should be a Tensor or a tuple"):
            model(x)["twice"].sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0]
    assert seen == []


def test_hooks_of_the_results_alone_warn_without_gradients_of_arguments(
    kernbench: Kernbench,
) -> None:
    with kernbench.context():
        layer = nn.Linear(1, 1)
        layer.register_full_backward_pre_hook(lambda m, go: None)
        with pytest.warns(UserWarning, match="no inputs require gradients"):
            layer(ours.ones(1, 1)).sum().backward()
