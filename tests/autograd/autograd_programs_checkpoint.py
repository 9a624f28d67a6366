"""Programs of `torch.utils.checkpoint` and of what nodes keep in place of tensors."""

import contextlib
from typing import Any

from autograd_programs import leaf, program


def _run(torch: Any, *args: Any, **kwargs: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(*args, **kwargs)


def _both(torch: Any, function: Any, **kwargs: Any) -> Any:
    """Returns what both kinds give: the result and the gradient of the argument."""
    found = []
    for reentrant in (True, False):
        x = leaf(torch, 3)
        y = _run(torch, function, x, use_reentrant=reentrant, **kwargs)
        y.sum().backward()
        found.append((y, x.grad))
    return found


@program
def checkpoint_of_a_chain(torch: Any) -> Any:
    calls = []

    def chain(x: Any) -> Any:
        calls.append(x.requires_grad)
        return (x * 2).exp().sin() * x

    return _both(torch, chain), calls


@program
def checkpoint_without_a_choice(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = _run(torch, lambda t: t.exp(), x)
    y.sum().backward()
    return y, x.grad, y.grad_fn.name()


@program
def checkpoint_of_several_results_and_keywords(torch: Any) -> Any:
    def several(x: Any, factor: float, *, name: str = "none") -> Any:
        return x.exp() * factor, name, {"inner": x.sin()}, None, x.detach()

    x = leaf(torch, 3)
    a, name, rest, nothing, plain = _run(torch, several, x, 2.0, use_reentrant=False, name="some")
    (a + rest["inner"]).sum().backward()
    return a, name, nothing, plain, x.grad, plain.requires_grad


@program
def checkpoint_of_values_that_are_no_tensors_with_reentrance(torch: Any) -> Any:
    x = leaf(torch, 3)
    a, name, nothing = _run(
        torch, lambda t, f: (t.exp() * f, "some", None), x, 3.0, use_reentrant=True
    )
    a.sum().backward()
    return a, name, nothing, x.grad


@program
def nested_checkpoints(torch: Any) -> Any:
    calls: list[str] = []

    def inner(x: Any) -> Any:
        calls.append("inner")
        return x.exp().sin()

    found = []
    for outer_kind in (True, False):
        for inner_kind in (True, False):

            def outer(x: Any, kind: bool = inner_kind) -> Any:
                calls.append("outer")
                y = _run(torch, inner, x * 2, use_reentrant=kind)
                return _run(torch, inner, y.cos(), use_reentrant=kind) * x

            x = leaf(torch, 3)
            y = _run(torch, outer, x, use_reentrant=outer_kind)
            y.sum().backward()
            found.append((y, x.grad, list(calls)))
            calls.clear()
    return found


@program
def checkpoint_in_three_layers(torch: Any) -> Any:
    def one(x: Any) -> Any:
        return x.sin() * x

    def two(x: Any) -> Any:
        return _run(torch, one, x.exp(), use_reentrant=False).cos()

    def three(x: Any) -> Any:
        return _run(torch, two, x.sin(), use_reentrant=False).exp()

    x = leaf(torch, 3)
    y = _run(torch, three, x, use_reentrant=False)
    y.sum().backward()
    return y, x.grad


@program
def checkpoint_asked_for_chosen_tensors(torch: Any) -> Any:
    x, w = leaf(torch, 3), leaf(torch, 3)
    y = _run(torch, lambda t: (t * w).exp(), x, use_reentrant=False)
    grads = torch.autograd.grad(y.sum(), [x, w], retain_graph=True)
    y.sum().backward(inputs=[w])
    return grads, w.grad, x.grad


@program
def reentrant_checkpoint_asked_for_chosen_tensors(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = _run(torch, lambda t: t.exp(), x, use_reentrant=True)
    return torch.autograd.grad(y.sum(), x)


@program
def reentrant_checkpoint_for_chosen_inputs(torch: Any) -> Any:
    x = leaf(torch, 3)
    _run(torch, lambda t: t.exp(), x, use_reentrant=True).sum().backward(inputs=[x])


@program
def checkpoint_of_parameters_only(torch: Any) -> Any:
    w = leaf(torch, 3)
    x = leaf(torch, 3).detach()
    y = _run(torch, lambda t: (t * w).exp(), x, use_reentrant=False)
    y.sum().backward()
    reentrant = _run(torch, lambda t: (t * w).exp(), x, use_reentrant=True)
    return y, w.grad, x.grad, reentrant.requires_grad


@program
def checkpoint_and_two_passes(torch: Any) -> Any:
    calls = []

    def chain(x: Any) -> Any:
        calls.append(1)
        return x.exp().sin()

    x = leaf(torch, 3)
    y = _run(torch, chain, x, use_reentrant=False)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    return x.grad, len(calls)


@program
def checkpoint_after_its_graph_is_freed(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = _run(torch, lambda t: t.exp().sin(), x, use_reentrant=False)
    y.sum().backward()
    y.sum().backward()


@program
def checkpoint_in_no_grad(torch: Any) -> Any:
    calls = []

    def chain(x: Any) -> Any:
        calls.append(torch.is_grad_enabled())
        return x.exp()

    x = leaf(torch, 3)
    with torch.no_grad():
        y = _run(torch, chain, x, use_reentrant=False)
        z = _run(torch, chain, x, use_reentrant=True)
    with torch.inference_mode():
        v = _run(torch, chain, x, use_reentrant=False)
    return y, z, v, y.requires_grad, z.requires_grad, calls


@program
def checkpoint_of_another_shape(torch: Any) -> Any:
    shapes = [(3,), (1, 3)]

    def changing(x: Any) -> Any:
        return x.reshape(shapes.pop(0)).exp().sin().sum()

    x = leaf(torch, 3)
    _run(torch, changing, x, use_reentrant=False).backward()


@program
def checkpoint_of_another_shape_unchecked(torch: Any) -> Any:
    factors = [1, 2]

    def changing(x: Any) -> Any:
        return (x * factors.pop(0)).exp().sum()

    x = leaf(torch, 3)
    _run(torch, changing, x, use_reentrant=False, determinism_check="none").backward()
    return x.grad


@program
def checkpoint_with_fewer_tensors(torch: Any) -> Any:
    steps = [3, 1]

    def changing(x: Any) -> Any:
        for _ in range(steps.pop(0)):
            x = x.exp()
        return x.sum()

    _run(torch, changing, leaf(torch, 3) / 9, use_reentrant=False).backward()


@program
def checkpoint_with_more_tensors(torch: Any) -> Any:
    steps = [1, 3]

    def changing(x: Any) -> Any:
        for _ in range(steps.pop(0)):
            x = x.exp()
        return x.sum()

    x = leaf(torch, 3)
    _run(torch, changing, x / 9, use_reentrant=False).backward()
    return x.grad


@program
def checkpoint_with_more_tensors_and_no_early_stop(torch: Any) -> Any:
    steps = [1, 3]

    def changing(x: Any) -> Any:
        for _ in range(steps.pop(0)):
            x = x.exp()
        return x.sum()

    x = leaf(torch, 3)
    _run(torch, changing, x / 9, use_reentrant=False, early_stop=False).backward()


@program
def checkpoint_stops_early(torch: Any) -> Any:
    found = []
    for stops in (True, False):
        ends: list[int] = []

        def chain(x: Any, ends: list[int] = ends) -> Any:
            y = x.exp().sin()
            ends.append(1)
            return y

        x = leaf(torch, 3)
        _run(torch, chain, x, use_reentrant=False, early_stop=stops).sum().backward()
        with torch.utils.checkpoint.set_checkpoint_early_stop(not stops):
            y = _run(torch, chain, x, use_reentrant=False, early_stop=stops)
        y.sum().backward()
        found.append((x.grad, len(ends)))
    return found


@program
def checkpoint_catches_nothing_of_the_stop(torch: Any) -> Any:
    caught = []

    def chain(x: Any) -> Any:
        try:
            y = x.exp()
        except ValueError:
            caught.append(1)
            raise
        return y.sin()

    x = leaf(torch, 3)
    _run(torch, chain, x, use_reentrant=False).sum().backward()
    return x.grad, caught


@program
def a_pass_inside_of_a_checkpoint(torch: Any) -> Any:
    found = []
    for stops in (True, False):

        def inside(x: Any) -> Any:
            y = x.exp()
            (g,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
            return y.sin() * g.detach()

        x = leaf(torch, 3)
        y = _run(torch, inside, x / 4, use_reentrant=False, early_stop=stops)
        y.sum().backward()
        found.append((y, x.grad))
    return found


@program
def a_pass_for_a_part_of_a_checkpoint(torch: Any) -> Any:
    x, w = leaf(torch, 3), leaf(torch, 3)
    a, b = _run(torch, lambda t, u: (t.exp() * u, u.sin()), x, w, use_reentrant=False)
    b.sum().backward(retain_graph=True)
    first = w.grad.clone()
    a.sum().backward()
    return first, x.grad, w.grad


@program
def checkpoint_with_contexts(torch: Any) -> Any:
    seen = []

    @contextlib.contextmanager
    def noting(name: str) -> Any:
        seen.append(f"{name} begins")
        try:
            yield
        finally:
            seen.append(f"{name} ends")

    x = leaf(torch, 3)
    y = _run(
        torch,
        lambda t: t.exp().sin(),
        x,
        use_reentrant=False,
        context_fn=lambda: (noting("first"), noting("second")),
    )
    y.sum().backward()
    return x.grad, seen


@program
def checkpoint_of_a_function_that_writes_its_argument(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = _run(torch, lambda t: t.mul_(2).exp(), x * 1, use_reentrant=False)
    y.sum().backward()


@program
def checkpoint_of_an_argument_that_is_written_later(torch: Any) -> Any:
    x = leaf(torch, 3)
    given = x * 1
    y = _run(torch, lambda t: (t * t).exp(), given, use_reentrant=False)
    given.mul_(2)
    y.sum().backward()


@program
def checkpoint_that_writes_in_place(torch: Any) -> Any:
    def writing(x: Any) -> Any:
        y = x * 1
        y[0] = x[1] * x[2]
        y.mul_(x)
        return y.sin_()

    return _both(torch, writing)


@program
def checkpoint_that_fails(torch: Any) -> Any:
    def failing(x: Any) -> Any:
        raise ValueError("mine")

    messages = []
    for reentrant in (True, False):
        try:
            _run(torch, failing, leaf(torch, 3), use_reentrant=reentrant)
        except ValueError as error:
            messages.append(str(error))
    x = leaf(torch, 3)
    (x * x).sum().backward()
    return x.grad, messages


@program
def checkpoint_that_fails_the_second_time(torch: Any) -> Any:
    calls = []

    def failing(x: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("mine")
        return x.exp()

    messages = []
    x = leaf(torch, 3)
    y = _run(torch, failing, x, use_reentrant=False)
    try:
        y.sum().backward()
    except ValueError as error:
        messages.append(str(error))
    (x * x).sum().backward()
    return x.grad, torch.is_grad_enabled(), messages


@program
def checkpoint_of_a_users_function(torch: Any) -> Any:
    class Cube(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            out = x * x * x
            ctx.save_for_backward(x, out)
            return out

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, out = ctx.saved_tensors
            return g * 3 * out / x

    return _both(torch, lambda x: Cube.apply(x.exp()).sin())


@program
def checkpoint_reads_what_is_saved_twice(torch: Any) -> Any:
    class Square(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * (ctx.saved_tensors[0] + ctx.saved_tensors[0])

    x = leaf(torch, 3)
    _run(torch, Square.apply, x, use_reentrant=False).sum().backward()


@program
def checkpoint_of_modules(torch: Any) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3), torch.nn.GELU()
    ).double()
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) / 10)
    found = []
    for segments, reentrant in ((1, False), (2, False), (3, True), (4, False)):
        x = leaf(torch, 2, 3)
        model.zero_grad()
        y = torch.utils.checkpoint.checkpoint_sequential(
            model, segments, x, use_reentrant=reentrant
        )
        y.sum().backward()
        found.append((y, x.grad, [each.grad for each in model.parameters()]))
    return found


@program
def checkpoint_sequential_of_too_many_segments(torch: Any) -> Any:
    steps = [torch.exp, torch.sin]
    torch.utils.checkpoint.checkpoint_sequential(steps, 3, leaf(torch, 3), use_reentrant=False)


@program
def checkpoint_refuses_keywords_with_reentrance(torch: Any) -> Any:
    _run(torch, lambda x, a=1: x, leaf(torch, 3), use_reentrant=True, a=2)


@program
def checkpoint_refuses_another_check(torch: Any) -> Any:
    _run(torch, torch.exp, leaf(torch, 3), use_reentrant=False, determinism_check="some")


@program
def checkpoint_refuses_contexts_with_reentrance(torch: Any) -> Any:
    none = contextlib.nullcontext()
    _run(torch, torch.exp, leaf(torch, 3), use_reentrant=True, context_fn=lambda: (none, none))


@program
def reentrant_checkpoint_without_results_that_need_a_gradient(torch: Any) -> Any:
    x = leaf(torch, 3)
    calls = []

    def changing(x: Any) -> Any:
        calls.append(1)
        return x.exp() if len(calls) == 1 else x.detach().exp()

    _run(torch, changing, x, use_reentrant=True).sum().backward()


@program
def detached_variables(torch: Any) -> Any:
    x = leaf(torch, 3)
    a, b, c = torch.utils.checkpoint.detach_variable((x * 2, x.detach(), "text"))
    return a, a.requires_grad, a.is_leaf, b.requires_grad, c


@program
def packed_tensors_of_results_and_leaves(torch: Any) -> Any:
    seen: list[tuple[Any, ...]] = []

    def pack(t: Any) -> Any:
        seen.append(("pack", t.tolist(), t.is_leaf and t.requires_grad))
        return t.detach().clone()

    def unpack(t: Any) -> Any:
        seen.append(("unpack", t.tolist()))
        return t

    x = leaf(torch, 3)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = (x.exp() * x).sigmoid()
    y.sum().backward()
    return sorted(seen, key=str), x.grad


@program
def packed_tensors_in_nested_blocks(torch: Any) -> Any:
    seen = []

    def hooks(name: str) -> Any:
        def pack(t: Any) -> Any:
            seen.append(f"pack {name}")
            return t

        def unpack(t: Any) -> Any:
            seen.append(f"unpack {name}")
            return t

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    x = leaf(torch, 3)
    with hooks("outer"):
        y = x.exp()
        with hooks("inner"):
            z = x.sin()
        v = x.log()
    (y + z + v).sum().backward()
    return seen, x.grad


@program
def packed_tensors_that_are_written_by_the_hook(torch: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.mul_(2), lambda t: t):
        leaf(torch, 3).exp()


@program
def unpacked_values_that_are_no_tensors(torch: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: 1, lambda t: t):
        y = leaf(torch, 3).exp()
    y.sum().backward()


@program
def packed_tensors_may_be_written_later(torch: Any) -> Any:
    x = leaf(torch, 3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        given = x * 1
        y = given * given
    given.mul_(5)
    y.sum().backward()
    return x.grad


@program
def hooks_that_cannot_be_called(torch: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(1, 2):
        leaf(torch, 3).exp()


@program
def reentrant_checkpoint_of_a_function_that_writes_its_argument(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = _run(torch, lambda t: t.mul_(2).exp(), x * 1, use_reentrant=True)
    y.sum().backward()
    return x.grad
