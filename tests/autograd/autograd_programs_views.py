"""Programs for `test_autograd_vs_torch.py`: views, and writes in place."""

from collections.abc import Callable
from typing import Any, Final

from autograd_programs import PROGRAMS, Program, leaf, program

# Views made while nothing is recorded


@program
def view_in_no_grad_written_after(torch: Any) -> Any:
    x = leaf(torch, 3, 2)
    y = x * 2
    with torch.no_grad():
        v = y[0]
    v.mul_(2)
    y.sum().backward()
    return x.grad


@program
def view_in_no_grad_written_in_no_grad(torch: Any) -> Any:
    x = leaf(torch, 3, 2)
    y = x * 2
    with torch.no_grad():
        v = y[0]
        v.mul_(2)
    y.sum().backward()
    return x.grad, y


@program
def view_in_no_grad_written_by_copy(torch: Any) -> Any:
    x = leaf(torch, 3, 2)
    y = x * 2
    with torch.no_grad():
        v = y[0]
    v.copy_(x[1])
    y.sum().backward()
    return x.grad


@program
def view_in_no_grad_filled(torch: Any) -> Any:
    y = leaf(torch, 3) * 2
    with torch.no_grad():
        v = y[0:2]
    v.zero_()
    return y


@program
def view_in_no_grad_of_a_leaf_written(torch: Any) -> Any:
    x = leaf(torch, 3)
    with torch.no_grad():
        v = x[0:2]
    v.zero_()
    return x


@program
def view_in_no_grad_of_a_plain_tensor_written(torch: Any) -> Any:
    a = torch.zeros(3, dtype=torch.float64)
    x = leaf(torch, 2)
    with torch.no_grad():
        v = a[0:2]
    v.mul_(2)
    v.add_(x)
    a.sum().backward()
    return x.grad


@program
def view_in_no_grad_then_a_view_of_it(torch: Any) -> Any:
    y = leaf(torch, 3, 2) * 2
    with torch.no_grad():
        v = y[0]
    w = v[0:1]
    w.mul_(2)
    y.sum().backward()
    return y


@program
def view_in_no_grad_setitem(torch: Any) -> Any:
    y = leaf(torch, 3, 2) * 2
    with torch.no_grad():
        v = y[0]
    v[0] = 3.0
    return y


@program
def view_in_no_grad_needs_no_gradient(torch: Any) -> Any:
    y = leaf(torch, 3, 2) * 2
    with torch.no_grad():
        v = y[0]
    return v.requires_grad, v.grad_fn is None, v.is_leaf


@program
def base_written_after_view_in_no_grad(torch: Any) -> Any:
    x = leaf(torch, 3, 2)
    y = x * 2
    with torch.no_grad():
        v = y[0]
    y.mul_(3)
    return v.requires_grad, v


@program
def plain_base_written_after_view_in_no_grad(torch: Any) -> Any:
    x = leaf(torch, 3)
    a = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        v = a[0:2]
    a.add_(x)
    return v.requires_grad, v


@program
def view_then_written_in_no_grad(torch: Any) -> Any:
    x = leaf(torch, 3, 2)
    y = x * 2
    v = y[0]
    with torch.no_grad():
        v.mul_(5)
    y.sum().backward()
    return x.grad, y, v.requires_grad


@program
def view_in_no_grad_made_leaf(torch: Any) -> Any:
    y = leaf(torch, 3, 2) * 2
    with torch.no_grad():
        v = y[0]
    v.requires_grad_()
    (v * v).sum().backward()
    return v.grad


@program
def view_in_no_grad_made_leaf_written(torch: Any) -> Any:
    y = leaf(torch, 3, 2) * 2
    with torch.no_grad():
        v = y[0]
    v.requires_grad_()
    v.mul_(2)
    return v


@program
def view_of_plain_made_leaf_written(torch: Any) -> Any:
    a = torch.ones(3)
    v = a[0:2]
    v.requires_grad_()
    v.mul_(2)
    return v


@program
def view_of_plain_made_leaf_base_written(torch: Any) -> Any:
    a = torch.ones(3)
    v = a[0:2]
    v.requires_grad_()
    a.mul_(2)
    (v * 3).sum().backward()
    return v.grad


@program
def view_in_inference_mode_written(torch: Any) -> Any:
    x = leaf(torch, 3, 2)
    y = x * 2
    with torch.inference_mode():
        v = y[0]
    v.mul_(2)
    y.sum().backward()
    return x.grad


@program
def reshape_in_no_grad_written(torch: Any) -> Any:
    y = leaf(torch, 2, 2) * 2
    with torch.no_grad():
        v = y.reshape(4)
    v.mul_(2)
    return y


@program
def detach_in_no_grad_written(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    with torch.no_grad():
        v = y.detach()
    v.mul_(2)
    y.sum().backward()
    return x.grad, y


# Outputs of functions that return several views


def _several(cut: Callable[[Any, Any], Any], write: Callable[[Any], Any]) -> Program:
    def run(torch: Any) -> Any:
        x = leaf(torch, 4, 2)
        y = x * 2
        write(cut(torch, y)[0])
        y.sum().backward()
        return x.grad

    return run


CUTS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "split": lambda torch, y: y.split(2),
    "split_list": lambda torch, y: torch.split(y, [1, 3]),
    "chunk": lambda torch, y: y.chunk(2),
    "unbind": lambda torch, y: y.unbind(),
    "iter": lambda torch, y: list(y),
    "tensor_split": lambda torch, y: [y[:2], y[2:]],
}
for _name, _cut in CUTS.items():
    PROGRAMS[f"{_name}_mul"] = _several(_cut, lambda v: v.mul_(2))
    PROGRAMS[f"{_name}_zero"] = _several(_cut, lambda v: v.zero_())
    PROGRAMS[f"{_name}_view_mul"] = _several(_cut, lambda v: v[0].mul_(2))
    PROGRAMS[f"{_name}_setitem"] = _several(_cut, lambda v: v.__setitem__(0, 1.0))
    PROGRAMS[f"{_name}_detached"] = _several(_cut, lambda v: v.detach().mul_(2))


@program
def split_in_no_grad_written(torch: Any) -> Any:
    y = leaf(torch, 4) * 2
    with torch.no_grad():
        v = y.split(2)[0]
    v.mul_(2)
    return y


@program
def split_of_plain_written_by_plain(torch: Any) -> Any:
    a = torch.ones(4)
    v = a.split(2)[0]
    v.mul_(2)
    return a


@program
def split_of_plain_written_by_grad(torch: Any) -> Any:
    x = leaf(torch, 2)
    a = torch.ones(4, dtype=torch.float64)
    v = a.split(2)[0]
    v.mul_(x)
    a.sum().backward()
    return x.grad


@program
def unbind_of_plain_written_by_grad(torch: Any) -> Any:
    x = leaf(torch, 2)
    a = torch.ones(4, 2, dtype=torch.float64)
    v = a.unbind()[0]
    v.mul_(x)
    a.sum().backward()
    return x.grad


@program
def split_written_in_no_grad(torch: Any) -> Any:
    x = leaf(torch, 4)
    y = x * 2
    v = y.split(2)[0]
    with torch.no_grad():
        v.mul_(2)
    y.sum().backward()
    return x.grad, y


@program
def base_written_after_split(torch: Any) -> Any:
    x = leaf(torch, 4)
    y = x * 2
    v = y.split(2)[0]
    y.mul_(3)
    v.sum().backward()
    return x.grad


@program
def base_written_after_chunk(torch: Any) -> Any:
    x = leaf(torch, 4)
    y = x * 2
    v, _ = y.chunk(2)
    y.mul_(3)
    (v * v).sum().backward()
    return x.grad


@program
def split_of_a_leaf_written(torch: Any) -> Any:
    x = leaf(torch, 4)
    x.split(2)[0].mul_(2)
    return x


# Ordinary views written in place


@program
def view_written(torch: Any) -> Any:
    x = leaf(torch, 3, 2)
    y = x * 2
    y[0].mul_(5)
    y.sum().backward()
    return x.grad, y


@program
def view_of_view_written(torch: Any) -> Any:
    x = leaf(torch, 3, 2)
    y = x * 2
    y.t()[0][1:].mul_(5)
    y.sum().backward()
    return x.grad, y


@program
def view_written_by_another_leaf(torch: Any) -> Any:
    x, w = leaf(torch, 3, 2), leaf(torch, 2)
    y = x * 2
    y[0].mul_(w)
    (y * y).sum().backward()
    return x.grad, w.grad


@program
def plain_view_gets_history(torch: Any) -> Any:
    x, a = leaf(torch, 2), torch.zeros(4, dtype=torch.float64)
    v = a[1:3]
    v.copy_(x)
    w = a[2:4]
    (a * a).sum().backward()
    return x.grad, v.requires_grad, w.requires_grad, v.is_leaf, a.is_leaf


@program
def second_view_sees_the_write(torch: Any) -> Any:
    x = leaf(torch, 4)
    y = x * 1
    v, w = y[:2], y[1:3]
    v.mul_(3)
    w.sum().backward()
    return x.grad


@program
def view_of_a_leaf_written(torch: Any) -> Any:
    x = leaf(torch, 3)
    x[0].zero_()
    return x


@program
def leaf_written(torch: Any) -> Any:
    x = leaf(torch, 3)
    x.add_(1)
    return x


@program
def leaf_written_in_no_grad(torch: Any) -> Any:
    x = leaf(torch, 3)
    with torch.no_grad():
        x.add_(1)
        x[0] = 7.0
    (x * x).sum().backward()
    return x.grad


@program
def leaf_written_in_no_grad_after_it_was_saved(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * x
    with torch.no_grad():
        x.add_(1)
    y.sum().backward()
    return x.grad


@program
def data_written_after_it_was_saved(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * x
    x.data.add_(1)
    y.sum().backward()
    return x.grad


@program
def detached_written_after_it_was_saved(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * x
    x.detach().add_(1)
    y.sum().backward()
    return x.grad


@program
def data_replaced_after_it_was_saved(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * x
    x.data = torch.zeros(3, dtype=torch.float64)
    y.sum().backward()
    return x.grad, x


@program
def data_replaced_keeps_grad(torch: Any) -> Any:
    x = leaf(torch, 3)
    (x * x).sum().backward()
    x.data = torch.full((3,), 5.0, dtype=torch.float64)
    (x * x).sum().backward()
    return x.grad, x, x.requires_grad


@program
def data_of_another_type(torch: Any) -> Any:
    x = leaf(torch, 3)
    x.data = torch.zeros(3, dtype=torch.int64)
    return x


@program
def saved_output_written(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x.exp()
    y.add_(1)
    y.sum().backward()
    return x.grad


@program
def saved_output_written_through_a_view(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x.exp()
    y[0].add_(1)
    y.sum().backward()
    return x.grad


@program
def unsaved_operand_written(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 1
    z = y + 1
    y.mul_(2)
    z.sum().backward()
    return x.grad


@program
def versions(torch: Any) -> Any:
    x = torch.zeros(4)
    v = x[:2]
    found, first = [], x._version
    v.add_(1)
    found.append(x._version - first)
    x.zero_()
    x[0] = 1.0
    return [*found, x._version - first, v._version - first]


@program
def expanded_view_written(torch: Any) -> Any:
    y = (leaf(torch, 1) * 2).expand(3)
    y.mul_(2)
    return y


@program
def expanded_gradient(torch: Any) -> Any:
    x = leaf(torch, 2, 1)
    (x.expand(2, 3) * torch.arange(3.0)).sum().backward()
    return x.grad, x.expand(4, 2, 3).sum().requires_grad


@program
def writes_through_transposed_and_diagonal(torch: Any) -> Any:
    x = leaf(torch, 3, 3)
    y = x * 1
    y.diagonal().mul_(2)
    y.t()[0].mul_(3)
    y.unsqueeze(0).squeeze(0).view(9)[4:].mul_(5)
    y.sum().backward()
    return x.grad


@program
def setitem_of_a_slice_and_a_mask(torch: Any) -> Any:
    x, w = leaf(torch, 4), leaf(torch, 2)
    y = x * 1
    y[1:3] = w * 3
    y[y > 7] = 0.0
    y[torch.tensor([0])] = 4.0
    y.sum().backward()
    return x.grad, w.grad, y


@program
def whole_written_then_earlier_view_used(torch: Any) -> Any:
    x = leaf(torch, 4)
    y = x * 1
    v = y[:2]
    y.mul_(4)
    (v * v).sum().backward()
    return x.grad, v


@program
def zero_cuts_the_history(torch: Any) -> Any:
    x = leaf(torch, 3)
    y = x * 2
    y.zero_()
    y.sum().backward()
    return x.grad


@program
def copy_cuts_the_history(torch: Any) -> Any:
    x, w = leaf(torch, 3), leaf(torch, 3)
    y = x * 2
    y.copy_(w)
    (y * y).sum().backward()
    return x.grad, w.grad


# Several views of one call


@program
def pieces_have_one_node(torch: Any) -> Any:
    x = leaf(torch, 4, 3)
    found = []
    for pieces in (x.split(3), x.split([1, 3]), x.chunk(2, -1), x.unbind(), x.T.split(2)):
        nodes = {piece.grad_fn for piece in pieces}
        found.append((len(nodes), *(node.name() for node in nodes)))
    return found


@program
def one_piece_used(torch: Any) -> Any:
    x = leaf(torch, 4, 3)
    grads = []
    for pieces in (x.split(3), x.split([1, 3]), x.chunk(2, -1), x.unbind(1), x.T.split(2)):
        x.grad = None
        (pieces[-1] * pieces[-1]).sum().backward()
        grads.append(x.grad)
    return grads


@program
def pieces_with_a_hook_and_retain_grad(torch: Any) -> Any:
    x = leaf(torch, 2, 4)
    low, high = (x * 1).chunk(2, dim=1)
    low.register_hook(lambda grad: grad * 2)
    high.retain_grad()
    (low * high).sum().backward()
    return x.grad, high.grad
