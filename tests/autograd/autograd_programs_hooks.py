"""Programs for `test_autograd_vs_torch.py`: `retain_grad`, hooks, and flags."""

from typing import Any

from autograd_programs import leaf, program

# retain_grad


@program
def retain_grad_then_written(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    (y * y).sum().backward()
    return y.grad, x.grad, y.retains_grad


@program
def retain_grad_then_written_twice(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    y.retain_grad()
    y.add_(1)
    y.mul_(3)
    y.sum().backward()
    return y.grad, x.grad


@program
def retain_grad_then_a_view_written(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    y.retain_grad()
    y[0].mul_(5)
    (y * y).sum().backward()
    return y.grad, x.grad


@program
def retain_grad_of_a_view_then_base_written(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    v = y[:2]
    v.retain_grad()
    y.mul_(5)
    (v * v).sum().backward()
    return v.grad, x.grad


@program
def retain_grad_of_a_view_then_written(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    v = y[:2]
    v.retain_grad()
    v.mul_(5)
    (v * v).sum().backward()
    return v.grad, x.grad


@program
def retain_grad_of_a_leaf(torch: Any) -> Any:
    x = leaf(torch, 3)
    x.retain_grad()
    x.sum().backward()
    return x.grad, x.retains_grad


@program
def retain_grad_of_a_plain_tensor(torch: Any) -> Any:
    torch.ones(2).retain_grad()


@program
def retain_grad_twice(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    y.retain_grad()
    y.retain_grad()
    y.sum().backward()
    return y.grad


@program
def retain_grad_over_two_passes(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    y.retain_grad()
    y.sum().backward()
    y.sum().backward()
    return y.grad


@program
def retain_grad_before_a_hook(torch: Any) -> Any:
    y = leaf(torch, 3) * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 7)
    y.sum().backward()
    return y.grad


@program
def retain_grad_after_a_hook(torch: Any) -> Any:
    y = leaf(torch, 3) * 2
    y.register_hook(lambda g: g * 7)
    y.retain_grad()
    y.sum().backward()
    return y.grad


@program
def retain_grad_after_detach_(torch: Any) -> Any:
    y = leaf(torch, 3) * 2
    y.retain_grad()
    y.detach_()
    return y.requires_grad, y.is_leaf, y.grad


@program
def retain_grad_with_grad(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    y.retain_grad()
    torch.autograd.grad(y.sum(), x)
    return y.grad, x.grad


# Hooks


@program
def hook_before_a_write(torch: Any) -> Any:
    seen = []
    x = leaf(torch, 3)
    y = x * 2
    y.register_hook(lambda g: seen.append(("before", g)))
    y.mul_(3)
    y.register_hook(lambda g: seen.append(("after", g)))
    y.sum().backward()
    return seen, x.grad


@program
def hooks_in_order(torch: Any) -> Any:
    seen: list[Any] = []

    def first(g: Any) -> Any:
        seen.append("leaf 1")
        return g * 2

    def second(g: Any) -> Any:
        seen.append("leaf 2")
        return g + 1

    x = leaf(torch, 2)
    x.register_hook(first)
    x.register_post_accumulate_grad_hook(lambda t: seen.append(("post", t.grad)))
    x.register_hook(second)
    y = x * 3
    y.register_hook(lambda g: seen.append("y"))
    y.sum().backward()
    return seen, x.grad


@program
def hook_of_a_leaf_counts_once_a_pass(torch: Any) -> Any:
    seen: list[Any] = []
    x = leaf(torch, 2)
    x.register_hook(seen.append)
    (x * 2 + x * x).sum().backward()
    return seen


@program
def hook_removed(torch: Any) -> Any:
    x = leaf(torch, 2)
    handle = x.register_hook(lambda g: g * 100)
    handle.remove()
    handle.remove()
    x.sum().backward()
    return x.grad


@program
def hook_of_another_shape(torch: Any) -> Any:
    x = leaf(torch, 2)
    x.register_hook(lambda g: g.sum())
    (x * 2).sum().backward()
    return x.grad


@program
def hook_of_another_type(torch: Any) -> Any:
    x = leaf(torch, 2)
    x.register_hook(lambda g: g.to(torch.float32))
    (x * 2).sum().backward()
    return x.grad


@program
def hook_that_returns_no_tensor(torch: Any) -> Any:
    x = leaf(torch, 2)
    x.register_hook(lambda g: 3.0)
    (x * 2).sum().backward()
    return x.grad


@program
def hook_on_a_plain_tensor(torch: Any) -> Any:
    torch.ones(2).register_hook(lambda g: g)


@program
def post_hook_on_a_result(torch: Any) -> Any:
    (leaf(torch, 2) * 2).register_post_accumulate_grad_hook(lambda t: None)


@program
def post_hook_on_a_plain_tensor(torch: Any) -> Any:
    torch.ones(2).register_post_accumulate_grad_hook(lambda t: None)


@program
def post_hook_drops_the_gradient(torch: Any) -> Any:
    x = leaf(torch, 2)

    def drop(t: Any) -> None:
        t.grad = None

    x.register_post_accumulate_grad_hook(drop)
    (x * 2).sum().backward()
    return x.grad


@program
def post_hook_that_returns_something(torch: Any) -> Any:
    x = leaf(torch, 2)
    x.register_post_accumulate_grad_hook(lambda t: t)
    (x * 2).sum().backward()
    return x.grad


@program
def hooks_and_grad(torch: Any) -> Any:
    x = leaf(torch, 2)
    seen = []
    x.register_hook(lambda g: g * 2)
    x.register_post_accumulate_grad_hook(lambda t: seen.append("post"))
    y = x * 3
    y.register_hook(lambda g: g * 5)
    return torch.autograd.grad(y.sum(), [x, y]), seen, x.grad


@program
def hook_in_grad_mode(torch: Any) -> Any:
    seen = []
    x = leaf(torch, 2)
    x.register_hook(lambda g: seen.append((torch.is_grad_enabled(), g.requires_grad)))
    (x * 2).sum().backward()
    return seen


@program
def hook_that_writes_its_gradient(torch: Any) -> Any:
    x = leaf(torch, 2)
    y = x * 3
    y.register_hook(lambda g: None)
    y.sum().backward()
    return x.grad


@program
def hook_that_raises(torch: Any) -> Any:
    x = leaf(torch, 2)

    def broken(g: Any) -> None:
        raise ValueError("broken")

    x.register_hook(broken)
    (x * 2).sum().backward()


# Flags


@program
def requires_grad_of_integers(torch: Any) -> Any:
    torch.ones(2, dtype=torch.int64).requires_grad_()


@program
def requires_grad_of_integers_at_creation(torch: Any) -> Any:
    torch.ones(2, dtype=torch.int64, requires_grad=True)


@program
def requires_grad_false_of_integers(torch: Any) -> Any:
    return torch.ones(2, dtype=torch.int64).requires_grad_(False).requires_grad


@program
def requires_grad_false_of_a_result(torch: Any) -> Any:
    (leaf(torch, 2) * 2).requires_grad_(False)


@program
def requires_grad_true_of_a_result(torch: Any) -> Any:
    y = (leaf(torch, 2) * 2).requires_grad_()
    return y.requires_grad, y.is_leaf


@program
def requires_grad_switched_off_after_use(torch: Any) -> Any:
    x = leaf(torch, 2)
    y = x * x
    x.requires_grad_(False)
    y.sum().backward()
    return x.grad, x.requires_grad


@program
def detach_in_place(torch: Any) -> Any:
    x = leaf(torch, 2)
    y = x * 2
    z = y * 3
    y.detach_()
    z.sum().backward()
    return x.grad, y.requires_grad, y.is_leaf, y.grad_fn


@program
def detach_in_place_of_a_view(torch: Any) -> Any:
    (leaf(torch, 2) * 2)[0].detach_()


@program
def detach_in_place_of_a_split(torch: Any) -> Any:
    (leaf(torch, 2) * 2).split(1)[0].detach_()


@program
def detach_in_place_of_a_leaf(torch: Any) -> Any:
    x = leaf(torch, 2)
    x.detach_()
    return x.requires_grad


@program
def detach_in_place_of_a_view_made_in_no_grad(torch: Any) -> Any:
    y = leaf(torch, 2) * 2
    with torch.no_grad():
        v = y[0]
    v.detach_()
    return v


@program
def detach_and_go_on(torch: Any) -> Any:
    x = leaf(torch, 2)
    d = (x * 2).detach()
    d.requires_grad_()
    (d * d).sum().backward()
    return d.grad, x.grad


@program
def integers_of_a_result(torch: Any) -> Any:
    y = leaf(torch, 3) * 2
    return [(y > 2).requires_grad, y.argmax().requires_grad, y.long().requires_grad]


@program
def tensor_iteration_and_item(torch: Any) -> Any:
    x = leaf(torch, 3)
    total = sum(value for value in x)
    total.backward()
    return x.grad, float(x[0]), x[1].item()


@program
def numpy_of_a_leaf(torch: Any) -> Any:
    return leaf(torch, 2).numpy().tolist()


@program
def leaf_facts(torch: Any) -> Any:
    x = leaf(torch, 2)
    y = x * 2
    with torch.no_grad():
        z = x * 2
    return [
        (t.is_leaf, t.requires_grad, t.grad_fn is None, t.retains_grad) for t in (x, y, z, y[0])
    ]


@program
def mixed_types_of_gradients(torch: Any) -> Any:
    x = torch.ones(3, dtype=torch.float32, requires_grad=True)
    y = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (x * y + x.double()).sum().backward()
    return x.grad, y.grad
