"""Programs for `test_autograd_vs_torch.py`: functions of the user's own."""

from typing import Any

from autograd_programs import leaf, program

# Functions of the user's own


def _cube(torch: Any, **changed: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x * x * g

    body = {"forward": forward, "backward": backward, **changed}
    return type(
        "Cube", (torch.autograd.Function,), {name: staticmethod(f) for name, f in body.items()}
    )


@program
def function_of_ones_own(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = _cube(torch).apply(x)
    y.sum().backward()
    return y, x.grad, y.grad_fn.name()


@program
def function_twice_without_retain(torch: Any) -> Any:
    y = _cube(torch).apply(leaf(torch, 3)).sum()
    y.backward()
    y.backward()


@program
def function_saved_tensor_written(torch: Any) -> Any:
    x = leaf(torch, 3)
    z = x * 1
    y = _cube(torch).apply(z)
    z.add_(1)
    y.sum().backward()


@program
def function_with_too_many_gradients(torch: Any) -> Any:
    cube = _cube(torch, backward=lambda ctx, g: (g, g))
    cube.apply(leaf(torch, 3)).sum().backward()


@program
def function_with_trailing_none(torch: Any) -> Any:
    x = leaf(torch, 3)
    _cube(torch, backward=lambda ctx, g: (g, None, None)).apply(x).sum().backward()
    return x.grad


@program
def function_with_too_few_gradients(torch: Any) -> Any:
    cube = _cube(torch, forward=lambda ctx, x, w: x * w, backward=lambda ctx, g: g)
    cube.apply(leaf(torch, 3), leaf(torch, 3)).sum().backward()


@program
def function_with_a_gradient_of_another_shape(torch: Any) -> Any:
    x = leaf(torch, 3)
    _cube(torch, backward=lambda ctx, g: g[:2]).apply(x).sum().backward()


@program
def function_with_a_gradient_that_reduces(torch: Any) -> Any:
    x = leaf(torch, 3)
    cube = _cube(torch, backward=lambda ctx, g: torch.ones(2, 3, dtype=torch.float64))
    cube.apply(x).sum().backward()
    return x.grad


@program
def function_with_a_gradient_that_is_no_tensor(torch: Any) -> Any:
    _cube(torch, backward=lambda ctx, g: 1.0).apply(leaf(torch, 3)).sum().backward()


@program
def function_with_a_gradient_of_another_type(torch: Any) -> Any:
    x = leaf(torch, 3)
    _cube(torch, backward=lambda ctx, g: g.to(torch.float32)).apply(x).sum().backward()
    return x.grad


@program
def function_without_backward(torch: Any) -> Any:
    class Only(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

    Only.apply(leaf(torch, 3)).sum().backward()


@program
def function_that_returns_its_argument(torch: Any) -> Any:
    x = leaf(torch, 3)
    same = _cube(torch, forward=lambda ctx, x: x, backward=lambda ctx, g: g * 5)
    y = same.apply(x)
    y.sum().backward()
    return x.grad, y is x, y.is_leaf


@program
def function_that_returns_its_argument_written(torch: Any) -> Any:
    x = leaf(torch, 3)
    same = _cube(torch, forward=lambda ctx, x: x, backward=lambda ctx, g: g * 5)
    y = same.apply(x * 1)
    y.mul_(2)
    y.sum().backward()
    return x.grad


@program
def function_that_returns_a_view(torch: Any) -> Any:
    x = leaf(torch, 3)
    z = x * 1
    view = _cube(torch, forward=lambda ctx, x: x[:], backward=lambda ctx, g: g * 5)
    view.apply(z).sum().backward()
    return x.grad


@program
def function_that_returns_a_view_written(torch: Any) -> Any:
    x = leaf(torch, 3)
    z = x * 1
    view = _cube(torch, forward=lambda ctx, x: x[:], backward=lambda ctx, g: g * 5)
    v = view.apply(z)
    v.mul_(2)
    z.sum().backward()
    return x.grad


@program
def function_that_returns_two_views_written(torch: Any) -> Any:
    z = leaf(torch, 3) * 1
    two = _cube(
        torch, forward=lambda ctx, x: (x[:1], x[1:]), backward=lambda ctx, a, b: torch.cat([a, b])
    )
    v, _ = two.apply(z)
    v.mul_(2)
    return v


@program
def function_that_returns_a_view_of_a_plain_tensor_written(torch: Any) -> Any:
    a = torch.ones(3)
    view = _cube(torch, forward=lambda ctx, x: x[:], backward=lambda ctx, g: g * 5)
    v = view.apply(a)
    v.mul_(2)
    return a


def _doubler(torch: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    return _cube(torch, forward=forward, backward=lambda ctx, g: g * 2)


@program
def function_marks_dirty(torch: Any) -> Any:
    x = leaf(torch, 3)
    z = x * 1
    y = _doubler(torch).apply(z)
    (y * y).sum().backward()
    return x.grad, y is z, z


@program
def function_marks_a_leaf_dirty(torch: Any) -> Any:
    _doubler(torch).apply(leaf(torch, 3))


@program
def function_marks_a_view_dirty(torch: Any) -> Any:
    x = leaf(torch, 3)
    z = x * 1
    _doubler(torch).apply(z[1:])
    z.sum().backward()
    return x.grad, z


@program
def function_marks_a_split_dirty(torch: Any) -> Any:
    z = leaf(torch, 3) * 1
    _doubler(torch).apply(z.split(1)[0])
    return z


@program
def function_marks_dirty_without_returning(torch: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x * 2

    _cube(torch, forward=forward).apply(leaf(torch, 3) * 1)


@program
def function_marks_a_plain_result_dirty(torch: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        y = x * 2
        ctx.mark_dirty(y)
        return y

    _cube(torch, forward=forward).apply(leaf(torch, 3) * 1)


@program
def function_marks_non_differentiable(torch: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        y = x.argmax()
        z = x + 1
        ctx.mark_non_differentiable(y, z)
        return x * 2, y, z

    x = leaf(torch, 3)
    marked = _cube(torch, forward=forward, backward=lambda ctx, g, h, i: g * 2 + i)
    a, b, c = marked.apply(x)
    a.sum().backward()
    return x.grad, a.requires_grad, b.requires_grad, c.requires_grad


@program
def function_gets_zeros(torch: Any) -> Any:
    seen = []

    def backward(ctx: Any, g: Any, h: Any) -> Any:
        seen.append((g, h))
        return g

    x = leaf(torch, 3)
    two = _cube(torch, forward=lambda ctx, x: (x * 1, x * 2), backward=backward)
    two.apply(x)[0].sum().backward()
    return seen


@program
def function_gets_none(torch: Any) -> Any:
    seen = []

    def forward(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(False)
        return x * 1, x * 2

    def backward(ctx: Any, g: Any, h: Any) -> Any:
        seen.append((g, h))
        return g

    x = leaf(torch, 3)
    _cube(torch, forward=forward, backward=backward).apply(x)[0].sum().backward()
    return seen


@program
def function_needs_input_grad(torch: Any) -> Any:
    seen = []

    def backward(ctx: Any, g: Any) -> Any:
        seen.append(ctx.needs_input_grad)
        return g, None, None

    def forward(ctx: Any, x: Any, w: Any, n: Any) -> Any:
        seen.append(ctx.needs_input_grad)
        return x * w * n

    cube = _cube(torch, forward=forward, backward=backward)
    cube.apply(leaf(torch, 3), torch.ones(3, dtype=torch.float64), 2).sum().backward()
    with torch.no_grad():
        cube.apply(leaf(torch, 3), torch.ones(3, dtype=torch.float64), 2)
    return seen


@program
def function_needs_input_grad_of_inputs(torch: Any) -> Any:
    seen = []

    def backward(ctx: Any, g: Any) -> Any:
        seen.append(ctx.needs_input_grad)
        return g, g

    x, w = leaf(torch, 3), leaf(torch, 3)
    cube = _cube(torch, forward=lambda ctx, x, w: x + w, backward=backward)
    cube.apply(x, w).sum().backward(inputs=[w])
    return seen, x.grad, w.grad


@program
def function_once_differentiable(torch: Any) -> Any:
    once = torch.autograd.function.once_differentiable

    def backward(ctx: Any, g: Any) -> Any:
        return g * 3

    x = leaf(torch, 3)
    _cube(torch, backward=once(backward)).apply(x).sum().backward()
    return x.grad


@program
def function_modes(torch: Any) -> Any:
    seen = []

    def forward(ctx: Any, x: Any) -> Any:
        seen.append(torch.is_grad_enabled())
        return x * 2

    def backward(ctx: Any, g: Any) -> Any:
        seen.append((torch.is_grad_enabled(), g.requires_grad))
        return g

    _cube(torch, forward=forward, backward=backward).apply(leaf(torch, 2)).sum().backward()
    return seen


@program
def function_saves_what_is_no_tensor(torch: Any) -> Any:
    _cube(torch, forward=lambda ctx, x: ctx.save_for_backward(3) or x * 2).apply(leaf(torch, 2))


@program
def function_saves_none_and_a_result(torch: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        y = x.exp()
        ctx.save_for_backward(None, y)
        return y

    def backward(ctx: Any, g: Any) -> Any:
        nothing, y = ctx.saved_tensors
        assert nothing is None
        return g * y

    x = leaf(torch, 2)
    _cube(torch, forward=forward, backward=backward).apply(x).sum().backward()
    return x.grad


@program
def function_saved_tensor_is_the_argument(torch: Any) -> Any:
    seen = []

    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        seen.append((x.requires_grad, x.is_leaf))
        return g

    _cube(torch, backward=backward).apply(leaf(torch, 2)).sum().backward()
    return seen


@program
def function_setup_context(torch: Any) -> Any:
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    x = leaf(torch, 2)
    cube = _cube(torch, forward=lambda x: x * x * x, setup_context=setup)
    cube.apply(x).sum().backward()
    return x.grad


@program
def function_with_keywords(torch: Any) -> Any:
    return _cube(torch).apply(x=leaf(torch, 2)).requires_grad


@program
def function_that_returns_integers(torch: Any) -> Any:
    x = leaf(torch, 3)
    both = _cube(
        torch, forward=lambda ctx, x: (x.argmax(), x * 2), backward=lambda ctx, n, g: g * 2
    )
    n, y = both.apply(x)
    y.sum().backward()
    return n.requires_grad, y.requires_grad, x.grad


@program
def function_that_returns_a_list(torch: Any) -> Any:
    cube = _cube(torch, forward=lambda ctx, x: [x * 2, x * 3], backward=lambda ctx, *g: g[0])
    return cube.apply(leaf(torch, 2))


@program
def function_that_returns_no_tensor(torch: Any) -> Any:
    cube = _cube(torch, forward=lambda ctx, x: (x * 2, "text", None))
    y, text, nothing = cube.apply(leaf(torch, 2))
    return y.requires_grad, text, nothing


# Hooks of saved tensors


@program
def saved_tensors_packed(torch: Any) -> Any:
    seen = []

    def pack(t: Any) -> Any:
        seen.append(("pack", list(t.shape)))
        return t * 2

    def unpack(t: Any) -> Any:
        seen.append(("unpack", list(t.shape)))
        return t / 2

    x = leaf(torch, 3)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = x * x
    y.sum().backward()
    return seen, x.grad


@program
def saved_argument_has_its_attributes(torch: Any) -> Any:
    seen = []

    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        seen.append(x.note)
        return g

    x = leaf(torch, 2)
    x.note = "mine"
    _cube(torch, backward=backward).apply(x).sum().backward()
    return seen


@program
def checkpoint_of_ones_own(torch: Any) -> Any:
    def forward(ctx: Any, *given: Any) -> Any:
        ctx.save_for_backward(*given)
        return given[0] * given[1].exp()

    def backward(ctx: Any, g: Any) -> Any:
        again = []
        for kept in ctx.saved_tensors:
            copied = kept.detach()
            copied.requires_grad = kept.requires_grad
            again.append(copied)
        with torch.enable_grad():
            out = again[0] * again[1].exp()
        torch.autograd.backward(out, g)
        return tuple(copied.grad for copied in again)

    x, w = leaf(torch, 2), leaf(torch, 2)
    plain = torch.ones(2, dtype=torch.float64)
    checkpoint = _cube(torch, forward=forward, backward=backward)
    checkpoint.apply(x * 2, w).sum().backward()
    checkpoint.apply(plain, w).sum().backward()
    return x.grad, w.grad, plain.grad


@program
def saved_result_is_the_result(torch: Any) -> Any:
    seen = []

    def forward(ctx: Any, x: Any) -> Any:
        y = x * 2
        ctx.save_for_backward(y)
        return y

    def backward(ctx: Any, g: Any) -> Any:
        (y,) = ctx.saved_tensors
        seen.append((y.requires_grad, y.is_leaf, y.grad_fn.name()))
        return g

    _cube(torch, forward=forward, backward=backward).apply(leaf(torch, 2)).sum().backward()
    return seen
