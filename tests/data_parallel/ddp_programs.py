"""Programs of DistributedDataParallel on two ranks, and what PyTorch 2.13 (gloo) finds in each.

A program is written for PyTorch and kernbench alike: `t` is the module `torch`, `DDP` the class.
`EXPECTED` has what each rank tells; `RAISES` stands for an error, which ends the program.
"""

from collections.abc import Callable
from typing import Any, Final

RAISES: Final = "raises"

Program = Callable[[Any, Any, int, Callable[[list[Any]], None]], None]
PROGRAMS: Final[dict[str, Program]] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def scalars(t: Any, count: int = 3, start: float = 1.0) -> Any:
    """Returns a module of parameters p0, p1, ...: it multiplies its input by those it is told."""

    class Scalars(t.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for at in range(count):
                setattr(self, f"p{at}", t.nn.Parameter(full(t, start + at)))

        def forward(self, x: Any, use: Any = None) -> list[Any]:
            return [getattr(self, f"p{at}") * x for at in (range(count) if use is None else use)]

    return Scalars()


def inside(t: Any, start: float = 1.0) -> Any:
    """Returns a module with the module of `scalars` in it."""

    class Inside(t.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.sub = scalars(t, start=start)

        def forward(self, x: Any, use: Any = None) -> Any:
            return self.sub(x, use)

    return Inside()


def full(t: Any, value: float, size: int = 1) -> Any:
    # kernbench has the device, PyTorch's gloo the host.
    device = "cuda" if "kernbench" in t.__name__ else "cpu"
    return t.full((size,), float(value), dtype=t.float64, device=device)


def data(t: Any, rank: int) -> Any:
    return full(t, rank + 1)


def grads(module: Any) -> list[Any]:
    return [None if p.grad is None else p.grad.item() for p in module.parameters()]


@program
def not_in_loss(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True)
    for _ in range(3):
        outs = m(data(t, rank))
        (outs[0] + outs[1]).sum().backward()
        log(grads(m))


@program
def not_in_loss_zero_set(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True)
    for _ in range(2):
        m.zero_grad(set_to_none=False)
        outs = m(data(t, rank))
        (outs[rank]).sum().backward()
        log(grads(m))


@program
def not_in_loss_plain(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t))
    for _ in range(3):
        outs = m(data(t, rank))
        (outs[0] + outs[1]).sum().backward()
        log(grads(m))


@program
def not_in_loss_on_one(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True)
    for _ in range(2):
        outs = m(data(t, rank))
        (outs[0] + outs[1 + rank]).sum().backward()
        log(grads(m))


@program
def unused_on_one(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True)
    for _ in range(2):
        outs = m(data(t, rank), [0, 1 + rank])
        (outs[0] + outs[1]).sum().backward()
        log(grads(m))


@program
def unused_everywhere_keeps(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t)
    m = DDP(net, find_unused_parameters=True)
    sum(m(data(t, rank))).sum().backward()
    log(grads(m))
    sum(m(data(t, rank), [0])).sum().backward()
    log(grads(m))


@program
def no_sync_other_params(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True)
    with m.no_sync():
        sum(m(data(t, rank), [0, 1 + rank])).sum().backward()
    log(grads(m))
    sum(m(data(t, rank), [0])).sum().backward()
    log(grads(m))


@program
def no_sync_only_rank0(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True)
    with m.no_sync():
        sum(m(data(t, rank), [0, 1] if rank == 0 else [0])).sum().backward()
    log(grads(m))
    sum(m(data(t, rank), [0])).sum().backward()
    log(grads(m))
    sum(m(data(t, rank), [0])).sum().backward()
    log(grads(m))


@program
def no_sync_then_sync(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t))
    with m.no_sync():
        sum(m(data(t, rank))).sum().backward()
    log(grads(m))
    sum(m(data(t, rank))).sum().backward()
    log(grads(m))


@program
def no_sync_forward_outside(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t))
    loss = sum(m(data(t, rank))).sum()
    with m.no_sync():
        loss.backward()
    log(grads(m))


@program
def no_sync_forward_inside(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t))
    with m.no_sync():
        loss = sum(m(data(t, rank))).sum()
    loss.backward()
    log(grads(m))


@program
def twice_used(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t))
    outs = m(data(t, rank), [0, 1, 2, 0])
    sum(outs).sum().backward()
    log(grads(m))


@program
def two_forwards_one_backward(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t))
    a = sum(m(data(t, rank)))
    b = sum(m(data(t, rank) * 10))
    (a + b).sum().backward()
    log(grads(m))
    sum(m(data(t, rank))).sum().backward()
    log(grads(m))


@program
def two_forwards_two_backwards(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t))
    a = sum(m(data(t, rank)))
    b = sum(m(data(t, rank) * 10))
    a.sum().backward()
    log(grads(m))
    b.sum().backward()
    log(grads(m))


@program
def two_forwards_unused(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True)
    a = sum(m(data(t, rank), [0]))
    b = sum(m(data(t, rank) * 10, [1, 2]))
    (a + b).sum().backward()
    log(grads(m))


@program
def frozen_after(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t)
    m = DDP(net)
    net.p1.requires_grad_(False)
    for _ in range(2):
        sum(m(data(t, rank))).sum().backward()
        log(grads(m))


@program
def frozen_after_find(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t)
    m = DDP(net, find_unused_parameters=True)
    net.p1.requires_grad_(False)
    for _ in range(2):
        sum(m(data(t, rank))).sum().backward()
        log(grads(m))


@program
def frozen_before(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t, start=1.0 + 10 * rank)
    net.p1.requires_grad_(False)
    m = DDP(net)
    log([p.item() for p in net.parameters()])
    sum(m(data(t, rank))).sum().backward()
    log(grads(m))


@program
def view_unused(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True, gradient_as_bucket_view=True)
    for step in range(3):
        outs = m(data(t, rank), [0, 1 + rank] if step == 0 else [0])
        sum(outs).sum().backward()
        log(grads(m))


@program
def view_no_sync(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), gradient_as_bucket_view=True)
    for _ in range(2):
        with m.no_sync():
            sum(m(data(t, rank))).sum().backward()
        log(grads(m))
        sum(m(data(t, rank))).sum().backward()
        log(grads(m))
        m.zero_grad()


@program
def eval_then_train(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t))
    with t.no_grad():
        m(data(t, rank))
    sum(m(data(t, rank))).sum().backward()
    log(grads(m))


@program
def partial_backward_then_rest(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t))
    outs = m(data(t, rank))
    outs[0].sum().backward()
    log(grads(m))
    (outs[1] + outs[2]).sum().backward()
    log(grads(m))


@program
def partial_backward_find(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True)
    outs = m(data(t, rank))
    outs[0].sum().backward()
    log(grads(m))
    (outs[1] + outs[2]).sum().backward()
    log(grads(m))


@program
def no_output_needs_grad(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True)
    for _ in range(2):
        outs = m(data(t, rank), [0] if rank == 0 else [0, 1])
        (outs[0].detach() * data(t, rank).requires_grad_()).sum().backward()
        log(grads(m))
    sum(m(data(t, rank))).sum().backward()
    log(grads(m))


@program
def autograd_grad(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t))
    x = data(t, rank).requires_grad_()
    (g,) = t.autograd.grad(sum(m(x)).sum(), [x])
    log([g.item(), *grads(m)])
    sum(m(x)).sum().backward()
    log(grads(m))


@program
def parameter_outside_forward(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t)
    m = DDP(net)
    loss = sum(m(data(t, rank), [0, 1])).sum() + (net.p2 * data(t, rank)).sum()
    loss.backward()
    log(grads(m))


@program
def parameter_outside_forward_find(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t)
    m = DDP(net, find_unused_parameters=True)
    loss = sum(m(data(t, rank), [0, 1])).sum() + (net.p2 * data(t, rank)).sum()
    loss.backward()
    log(grads(m))


@program
def shared_parameter(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t)
    net.p2 = net.p0
    m = DDP(net)
    sum(m(data(t, rank))).sum().backward()
    log(grads(m))


@program
def detached_grad_accum(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t)
    m = DDP(net)
    for p in net.parameters():
        p.grad = full(t, 100.0 * (rank + 1))
    sum(m(data(t, rank))).sum().backward()
    log(grads(m))
    sum(m(data(t, rank))).sum().backward()
    log(grads(m))


@program
def delayed_unused(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t))
    for _ in range(2):
        sum(m(data(t, rank), [0, 1])).sum().backward()
        log(grads(m))


@program
def output_is_leaf(t: Any, DDP: Any, rank: int, log: Any) -> None:
    class Bare(t.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w = t.nn.Parameter(full(t, 1))

        def forward(self, x: Any) -> Any:
            return self.w

    for find in (False, True):
        m = DDP(Bare(), find_unused_parameters=find)
        (m(0) * data(t, rank)).sum().backward()
        log(grads(m))


@program
def buffers(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t)
    net.register_buffer("b", full(t, rank, 2))
    m = DDP(net)
    log(net.b.tolist())
    net.b += rank + 1
    m(data(t, rank))
    log(net.b.tolist())
    net.b += rank + 1
    with m.no_sync():
        m(data(t, rank))
    log(net.b.tolist())
    net.b += rank + 1
    with t.no_grad():
        m(data(t, rank))
    log(net.b.tolist())
    net.b += rank + 1
    m.eval()
    m(data(t, rank))
    log(net.b.tolist())


@program
def ignored_nested(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = inside(t, start=1.0 + 10 * rank)
    net.sub.register_buffer("b", full(t, rank, 2))
    net.sub.register_buffer("c", full(t, rank, 2))
    DDP._set_params_and_buffers_to_ignore_for_model(net, ["sub.p1", "sub.b"])
    m = DDP(net)
    log([p.item() for p in net.parameters()] + net.sub.b.tolist() + net.sub.c.tolist())
    for _ in range(2):
        net.sub.c += rank
        net.sub.b += rank
        sum(m(data(t, rank))).sum().backward()
        log(grads(m) + net.sub.b.tolist() + net.sub.c.tolist())


@program
def ignored_nested_shape(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = inside(t)
    net.sub.extra = t.nn.Parameter(full(t, 1, 2 + rank))
    DDP._set_params_and_buffers_to_ignore_for_model(net, ["sub.extra"])
    m = DDP(net)
    sum(m(data(t, rank))).sum().backward()
    log(grads(m)[:3])


@program
def ignored_unknown(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = inside(t)
    DDP._set_params_and_buffers_to_ignore_for_model(net, ["nothing.here"])
    m = DDP(net)
    sum(m(data(t, rank))).sum().backward()
    log(grads(m))


@program
def ignored_root_buffer(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t)
    net.register_buffer("b", full(t, rank, 2))
    DDP._set_params_and_buffers_to_ignore_for_model(net, ["b"])
    m = DDP(net)
    m(data(t, rank))
    log(net.b.tolist())


@program
def dict_output(t: Any, DDP: Any, rank: int, log: Any) -> None:
    class Nested(t.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.sub = scalars(t)

        def forward(self, x: Any) -> Any:
            a, b, c = self.sub(x)
            return {"a": a, "n": 3, "more": [b, (c, None, x)]}

    m = DDP(Nested(), find_unused_parameters=True)
    for _ in range(2):
        out = m(data(t, rank))
        log(
            [
                type(out).__name__,
                type(out["more"]).__name__,
                type(out["more"][1]).__name__,
                out["n"],
                out["more"][1][1],
                out["more"][1][2].requires_grad,
            ]
        )
        (out["a"] + out["more"][1][0]).sum().backward()
        log(grads(m))


@program
def in_place_output(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True)
    outs = m(data(t, rank))
    outs[0].mul_(3)
    (outs[0] + outs[1] + outs[2]).sum().backward()
    log(grads(m))


@program
def same_output_twice(t: Any, DDP: Any, rank: int, log: Any) -> None:
    class Same(t.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.sub = scalars(t)

        def forward(self, x: Any) -> Any:
            a = self.sub(x)[0]
            return a, a

    m = DDP(Same(), find_unused_parameters=True)
    for _ in range(2):
        a, b = m(data(t, rank))
        (a + 2 * b).sum().backward()
        log([*grads(m), a is b])


@program
def retain_twice_find(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True)
    outs = m(data(t, rank))
    outs[0].sum().backward(retain_graph=True)
    log(grads(m))
    (outs[1] + outs[2]).sum().backward()
    log(grads(m))


@program
def double_backward_of_unused_in_views(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True, gradient_as_bucket_view=True)
    for step in range(3):
        outs = m(data(t, rank))
        (outs[0] + outs[1 + rank] if step < 2 else outs[0]).sum().backward()
        log(grads(m))
        if step == 1:
            m.zero_grad()


@program
def hook_order(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t, 1)
    net.p0.register_post_accumulate_grad_hook(lambda p: log([p.grad.item()]))
    m = DDP(net)
    net.p0.register_post_accumulate_grad_hook(lambda p: log([p.grad.item()]))
    sum(m(data(t, rank))).sum().backward()
    log(grads(m))


@program
def hook_changes_grad(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t, 1)
    m = DDP(net)

    def double(p: Any) -> None:
        p.grad = p.grad * 2

    net.p0.register_post_accumulate_grad_hook(double)
    sum(m(data(t, rank))).sum().backward()
    log(grads(m))


@program
def unused_with_no_sync_between(t: Any, DDP: Any, rank: int, log: Any) -> None:
    m = DDP(scalars(t), find_unused_parameters=True)
    for step in range(2):
        with m.no_sync():
            outs = m(data(t, rank), [0, 1])
            (outs[0] + (outs[1] if rank == step else 0)).sum().backward()
        sum(m(data(t, rank), [0])).sum().backward()
        log(grads(m))


@program
def used_outside_counts(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t)
    m = DDP(net, find_unused_parameters=True)
    if rank == 0:
        (net.p2 * 5).sum().backward()
    sum(m(data(t, rank), [0])).sum().backward()
    log(grads(m))


@program
def grad_api_marks(t: Any, DDP: Any, rank: int, log: Any) -> None:
    net = scalars(t)
    m = DDP(net, find_unused_parameters=True)
    with m.no_sync():
        outs = m(data(t, rank), [0, 1])
        t.autograd.grad(sum(outs).sum(), [net.p1])
    sum(m(data(t, rank), [0])).sum().backward()
    log(grads(m))


EXPECTED: Final[dict[str, list[list[Any]]]] = {
    "not_in_loss": [
        [[1.5, 1.5, None], [3.0, 3.0, None], [4.5, 4.5, None]],
        [[1.5, 1.5, None], [3.0, 3.0, None], [4.5, 4.5, None]],
    ],
    "not_in_loss_zero_set": [
        [[0.5, 1.0, None], [0.5, 1.0, None]],
        [[0.5, 1.0, None], [0.5, 1.0, None]],
    ],
    "not_in_loss_plain": [[[1.0, 1.0, None], RAISES], [[2.0, 2.0, None], RAISES]],
    "not_in_loss_on_one": [[[1.5, 0.5, 1.0], [3.0, 1.0, 2.0]], [[1.5, 0.5, 1.0], [3.0, 1.0, 2.0]]],
    "unused_on_one": [[[1.5, 0.5, 1.0], [3.0, 1.0, 2.0]], [[1.5, 0.5, 1.0], [3.0, 1.0, 2.0]]],
    "unused_everywhere_keeps": [
        [[1.5, 1.5, 1.5], [3.0, 1.5, 1.5]],
        [[1.5, 1.5, 1.5], [3.0, 1.5, 1.5]],
    ],
    "no_sync_other_params": [
        [[1.0, 1.0, None], [3.0, 0.5, 1.0]],
        [[2.0, None, 2.0], [3.0, 0.5, 1.0]],
    ],
    "no_sync_only_rank0": [
        [[1.0, 1.0, None], [3.0, 0.5, None], [4.5, 0.5, None]],
        [[2.0, None, None], [3.0, 0.5, None], [4.5, 0.5, None]],
    ],
    "no_sync_then_sync": [[[1.0, 1.0, 1.0], [3.0, 3.0, 3.0]], [[2.0, 2.0, 2.0], [3.0, 3.0, 3.0]]],
    "no_sync_forward_outside": [[[1.5, 1.5, 1.5]], [[1.5, 1.5, 1.5]]],
    "no_sync_forward_inside": [[[1.0, 1.0, 1.0]], [[2.0, 2.0, 2.0]]],
    "twice_used": [[[3.0, 1.5, 1.5]], [[3.0, 1.5, 1.5]]],
    "two_forwards_one_backward": [
        [[16.5, 16.5, 16.5], [18.0, 18.0, 18.0]],
        [[16.5, 16.5, 16.5], [18.0, 18.0, 18.0]],
    ],
    "two_forwards_two_backwards": [
        [[1.5, 1.5, 1.5], [11.5, 11.5, 11.5]],
        [[1.5, 1.5, 1.5], [21.5, 21.5, 21.5]],
    ],
    "two_forwards_unused": [[RAISES], [RAISES]],
    "frozen_after": [[[1.0, None, 1.0], RAISES], [[2.0, None, 2.0], RAISES]],
    "frozen_after_find": [
        [[1.5, None, 1.5], [3.0, None, 3.0]],
        [[1.5, None, 1.5], [3.0, None, 3.0]],
    ],
    "frozen_before": [[[1.0, 2.0, 3.0], [1.5, None, 1.5]], [[1.0, 2.0, 3.0], [1.5, None, 1.5]]],
    "view_unused": [
        [[1.5, 0.5, 1.0], [3.0, 0.5, 1.0], [4.5, 0.5, 1.0]],
        [[1.5, 0.5, 1.0], [3.0, 0.5, 1.0], [4.5, 0.5, 1.0]],
    ],
    "view_no_sync": [
        [[1.0, 1.0, 1.0], [3.0, 3.0, 3.0], [1.0, 1.0, 1.0], [3.0, 3.0, 3.0]],
        [[2.0, 2.0, 2.0], [3.0, 3.0, 3.0], [2.0, 2.0, 2.0], [3.0, 3.0, 3.0]],
    ],
    "eval_then_train": [[[1.5, 1.5, 1.5]], [[1.5, 1.5, 1.5]]],
    "partial_backward_then_rest": [
        [[1.0, None, None], [1.5, 1.5, 1.5]],
        [[2.0, None, None], [1.5, 1.5, 1.5]],
    ],
    "partial_backward_find": [[[1.5, None, None], RAISES], [[1.5, None, None], RAISES]],
    "no_output_needs_grad": [
        [[None, None, None], [None, None, None], [1.5, 1.5, 1.5]],
        [[None, None, None], [None, None, None], [1.5, 1.5, 1.5]],
    ],
    "autograd_grad": [
        [[6.0, None, None, None], [1.5, 1.5, 1.5]],
        [[6.0, None, None, None], [1.5, 1.5, 1.5]],
    ],
    "parameter_outside_forward": [[[1.5, 1.5, 1.5]], [[1.5, 1.5, 1.5]]],
    "parameter_outside_forward_find": [[RAISES], [RAISES]],
    "shared_parameter": [[[3.0, 1.5]], [[3.0, 1.5]]],
    "detached_grad_accum": [
        [[151.5, 151.5, 151.5], [153.0, 153.0, 153.0]],
        [[151.5, 151.5, 151.5], [153.0, 153.0, 153.0]],
    ],
    "delayed_unused": [[[1.0, 1.0, None], RAISES], [[2.0, 2.0, None], RAISES]],
    "output_is_leaf": [[[1.5], RAISES], [[1.5], RAISES]],
    "buffers": [
        [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]],
        [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [4.0, 4.0], [6.0, 6.0]],
    ],
    "ignored_nested": [
        [
            [1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0],
            [1.5, 1.0, 1.5, 0.0, 0.0, 0.0, 0.0],
            [3.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0],
        ],
        [
            [1.0, 12.0, 3.0, 1.0, 1.0, 0.0, 0.0],
            [1.5, 2.0, 1.5, 2.0, 2.0, 0.0, 0.0],
            [3.0, 4.0, 3.0, 3.0, 3.0, 0.0, 0.0],
        ],
    ],
    "ignored_nested_shape": [[[1.5, 1.5, 1.5]], [[1.5, 1.5, 1.5]]],
    "ignored_unknown": [[[1.5, 1.5, 1.5]], [[1.5, 1.5, 1.5]]],
    "ignored_root_buffer": [[[0.0, 0.0]], [[1.0, 1.0]]],
    "dict_output": [
        [
            ["dict", "list", "tuple", 3, None, False],
            [1.5, None, 1.5],
            ["dict", "list", "tuple", 3, None, False],
            [3.0, None, 3.0],
        ],
        [
            ["dict", "list", "tuple", 3, None, False],
            [1.5, None, 1.5],
            ["dict", "list", "tuple", 3, None, False],
            [3.0, None, 3.0],
        ],
    ],
    "in_place_output": [[[4.5, 1.5, 1.5]], [[4.5, 1.5, 1.5]]],
    "same_output_twice": [
        [[4.5, None, None, False], [9.0, None, None, False]],
        [[4.5, None, None, False], [9.0, None, None, False]],
    ],
    "retain_twice_find": [
        [[1.5, None, None], [1.5, 1.0, 1.0]],
        [[1.5, None, None], [1.5, 2.0, 2.0]],
    ],
    "double_backward_of_unused_in_views": [
        [[1.5, 0.5, 1.0], [3.0, 1.0, 2.0], [1.5, None, None]],
        [[1.5, 0.5, 1.0], [3.0, 1.0, 2.0], [1.5, None, None]],
    ],
    "hook_order": [[[1.0], [1.0], [1.5]], [[2.0], [2.0], [1.5]]],
    "hook_changes_grad": [[[3.0]], [[3.0]]],
    "unused_with_no_sync_between": [
        [[3.0, 0.5, None], [6.0, 1.5, None]],
        [[3.0, 0.5, None], [6.0, 1.5, None]],
    ],
    "used_outside_counts": [[[1.5, None, 2.5]], [[1.5, None, 2.5]]],
    "grad_api_marks": [[[1.5, None, None]], [[1.5, None, None]]],
}
