"""Programs for `test_autograd_vs_torch.py`: arguments of a pass, and `grad` after it."""

from typing import Any

from autograd_programs import leaf, program

# Arguments of the passes


@program
def inputs_of_a_result(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    (y * y).sum().backward(inputs=[y])
    return y.grad, x.grad


@program
def inputs_of_a_result_and_a_leaf(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    (y * y).sum().backward(inputs=[y, x])
    return y.grad, x.grad


@program
def inputs_of_a_result_twice(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    z = (y * y).sum()
    z.backward(inputs=[y], retain_graph=True)
    z.backward(inputs=y)
    return y.grad, x.grad


@program
def inputs_of_a_retained_result(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward(inputs=[y])
    return y.grad, x.grad


@program
def inputs_is_the_root(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = (x * 2).sum()
    y.backward(inputs=[y])
    return y.grad, x.grad


@program
def inputs_empty(torch: Any) -> Any:
    leaf(torch, 3).sum().backward(inputs=[])


@program
def inputs_empty_function(torch: Any) -> Any:
    torch.autograd.backward(leaf(torch, 3).sum(), inputs=[])


@program
def inputs_empty_tuple(torch: Any) -> Any:
    torch.autograd.backward([leaf(torch, 3).sum()], inputs=())


@program
def grad_inputs_empty(torch: Any) -> Any:
    return torch.autograd.grad(leaf(torch, 3).sum(), [])


@program
def inputs_without_gradient(torch: Any) -> Any:
    leaf(torch, 3).sum().backward(inputs=[torch.ones(2)])


@program
def inputs_not_reached(torch: Any) -> Any:
    x, w = leaf(torch, 3), leaf(torch, 3)
    x.sum().backward(inputs=[w])
    return x.grad, w.grad


@program
def inputs_with_hooks(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    y.register_hook(lambda g: g * 10)
    (y * y).sum().backward(inputs=[y])
    return y.grad, x.grad


@program
def inputs_of_a_view(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = (x * 2)[1:]
    (y * y).sum().backward(inputs=[y])
    return y.grad, x.grad


@program
def inputs_keep_nodes_behind_them(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * x
    (y * y).sum().backward(inputs=[y])
    y.sum().backward()
    return x.grad


@program
def unused_input(torch: Any) -> Any:
    x, w = leaf(torch, 3), leaf(torch, 3)
    return torch.autograd.grad(x.sum(), [x, w])


@program
def unused_input_allowed(torch: Any) -> Any:
    x, w = leaf(torch, 3), leaf(torch, 3)
    return torch.autograd.grad(x.sum(), [x, w], allow_unused=True)


@program
def unused_input_materialized(torch: Any) -> Any:
    x, w = leaf(torch, 3), leaf(torch, 2)
    return torch.autograd.grad(x.sum(), [x, w], materialize_grads=True)


@program
def unused_input_materialized_but_not_allowed(torch: Any) -> Any:
    x, w = leaf(torch, 3), leaf(torch, 2)
    return torch.autograd.grad(x.sum(), [x, w], materialize_grads=True, allow_unused=False)


@program
def materialized_for_a_result(torch: Any) -> Any:
    x, w = leaf(torch, 3), leaf(torch, 2) * 2
    return torch.autograd.grad(x.sum(), [w, x], materialize_grads=True)


@program
def batched_gradients(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * x
    return torch.autograd.grad(y, x, torch.eye(3, dtype=torch.float64), is_grads_batched=True)


@program
def batched_gradients_of_two(torch: Any) -> Any:
    x, w = leaf(torch, 3), leaf(torch, 2)
    seeds = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    more = torch.arange(2.0, dtype=torch.float64)
    return torch.autograd.grad(
        [x * x, (x.sum() * w.sum())], [x, w], [seeds, more], is_grads_batched=True
    )


@program
def grad_of_inputs_given_twice(torch: Any) -> Any:
    x = leaf(torch, 3)
    return torch.autograd.grad((x * x).sum(), [x, x])


@program
def grad_of_the_output_itself(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = (x * x).sum()
    return torch.autograd.grad(y, [y, x])


@program
def grad_leaves_grad_alone(torch: Any) -> Any:
    x = leaf(torch, 3)
    torch.autograd.grad((x * x).sum(), x)
    return x.grad


@program
def grad_of_a_plain_input(torch: Any) -> Any:
    return torch.autograd.grad(leaf(torch, 3).sum(), torch.ones(3))


@program
def plain_output(torch: Any) -> Any:
    torch.ones(()).backward()


@program
def plain_output_beside_another(torch: Any) -> Any:
    torch.autograd.backward([leaf(torch, 2).sum(), torch.ones(())])


@program
def output_of_many_values(torch: Any) -> Any:
    leaf(torch, 3).mul(2).backward()


@program
def output_of_one_value(torch: Any) -> Any:
    x = leaf(torch, 1, 1)
    (x * 3).backward()
    return x.grad


@program
def output_without_values(torch: Any) -> Any:
    leaf(torch, 0).mul(2).backward()


@program
def gradient_of_another_shape(torch: Any) -> Any:
    leaf(torch, 3).mul(2).backward(torch.ones(2))


@program
def gradient_that_broadcasts(torch: Any) -> Any:
    leaf(torch, 3).mul(2).backward(torch.ones(1))


@program
def gradient_of_another_type(torch: Any) -> Any:
    x = leaf(torch, 3)
    (x * 2).backward(torch.ones(3, dtype=torch.float32))
    return x.grad


@program
def gradient_of_integers(torch: Any) -> Any:
    x = leaf(torch, 3)
    (x * 2).backward(torch.ones(3, dtype=torch.int64))
    return x.grad


@program
def gradient_that_is_no_tensor(torch: Any) -> Any:
    leaf(torch, 1).mul(2).backward(1.0)


@program
def gradients_too_few(torch: Any) -> Any:
    x = leaf(torch, 3)
    torch.autograd.backward([x * 2, x * 3], [torch.ones(3)])


@program
def gradients_too_few_for_grad(torch: Any) -> Any:
    x = leaf(torch, 3)
    return torch.autograd.grad([x.sum(), x.sum()], x, [torch.ones(())])


@program
def gradient_none_among_others(torch: Any) -> Any:
    x = leaf(torch, 3)
    torch.autograd.backward([x.sum(), x * 3], [None, torch.ones(3, dtype=torch.float64)])
    return x.grad


@program
def outputs_empty(torch: Any) -> Any:
    torch.autograd.backward([])


@program
def gradient_keeps_its_own_memory(torch: Any) -> Any:
    x = leaf(torch, 3)
    seed = torch.ones(3, dtype=torch.float64)
    x.backward(seed)
    seed.mul_(5)
    return x.grad


@program
def root_is_a_leaf(torch: Any) -> Any:
    x = leaf(torch, 1)
    x.backward()
    x.backward()
    return x.grad


@program
def same_root_twice(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = (x * x).sum()
    torch.autograd.backward([y, y])
    return x.grad


@program
def twice_without_retain(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = (x * x).sum()
    y.backward()
    y.backward()
    return x.grad


@program
def twice_with_retain(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


@program
def twice_without_saved_tensors(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = (x + x).sum()
    y.backward()
    y.backward()
    return x.grad


@program
def retain_graph_of_none_and_zero(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = (x * x).sum()
    y.backward(retain_graph=None)
    y.backward(retain_graph=False)
    return x.grad


@program
def shared_part_of_two_graphs(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * x
    y.sum().backward()
    (y * 2).sum().backward()
    return x.grad


@program
def two_backwards_add_up(torch: Any) -> Any:
    x = leaf(torch, 3)
    (x * x).sum().backward()
    first = x.grad
    (x * 3).sum().backward()
    return x.grad, first is x.grad, first


@program
def grad_set_to_none_between(torch: Any) -> Any:
    x = leaf(torch, 3)
    (x * x).sum().backward()
    first = x.grad
    x.grad = None
    (x * 3).sum().backward()
    return x.grad, first


@program
def grad_deleted(torch: Any) -> Any:
    x = leaf(torch, 3)
    (x * x).sum().backward()
    del x.grad
    return x.grad


@program
def grad_of_another_shape_assigned(torch: Any) -> Any:
    leaf(torch, 3).grad = torch.ones(2, dtype=torch.float64)


@program
def grad_of_another_type_assigned(torch: Any) -> Any:
    leaf(torch, 3).grad = torch.ones(3)


@program
def grad_that_is_no_tensor_assigned(torch: Any) -> Any:
    leaf(torch, 3).grad = 1.0


@program
def grad_that_is_the_tensor_itself(torch: Any) -> Any:
    x = leaf(torch, 3)
    x.grad = x


@program
def grad_of_a_plain_tensor(torch: Any) -> Any:
    x = torch.ones(2)
    x.grad = torch.ones(2)
    return x.grad


@program
def grad_of_empty(torch: Any) -> Any:
    x = leaf(torch, 0, 3)
    (x * 2).sum().backward()
    return x.grad


@program
def grad_through_empty_slices(torch: Any) -> Any:
    x = leaf(torch, 3)
    (x[3:].sum() + x[:0].prod() + torch.cat([x[:0], x]).sum()).backward()
    return x.grad


@program
def create_graph_false(torch: Any) -> Any:
    x = leaf(torch, 3)
    (g,) = torch.autograd.grad((x * x).sum(), x, create_graph=False)
    return g, g.requires_grad, g.is_leaf


@program
def keyword_arguments(torch: Any) -> Any:
    x = leaf(torch, 3)
    torch.autograd.backward(tensors=x * 2, grad_tensors=torch.ones(3, dtype=torch.float64))
    return x.grad
