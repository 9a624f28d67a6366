"""Operations and steps that both torches know, and what each of them issues on a device."""

from collections.abc import Callable
from typing import Any

from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

Operation = Callable[[], object]
Maker = Callable[[Any], Operation]
"""Makes the operands with the given torch, and returns the operation on them."""

N = 4096


def _x(torch: Any, *shape: int, dtype: str = "float32", grad: bool = False) -> Any:
    kind = getattr(torch, dtype)
    return torch.ones(*(shape or (N, N)), dtype=kind, device="cuda", requires_grad=grad)


def _ids(torch: Any, *shape: int) -> Any:
    return torch.zeros(*shape, dtype=torch.int64, device="cuda")


def _of_one(function: Callable[[Any, Any], object], **options: Any) -> Maker:
    def make(torch: Any) -> Operation:
        x = _x(torch, **options)
        return lambda: function(torch, x)

    return make


def _back(function: Callable[[Any], Any]) -> Maker:
    def make(torch: Any) -> Operation:
        out = function(torch)
        grad = torch.ones_like(out)
        return lambda: out.backward(grad)

    return make


def _looked_up(function: Callable[[Any, Any, Any], object], *shape: int) -> Maker:
    def make(torch: Any) -> Operation:
        x, ids = _x(torch), _ids(torch, *shape)
        return lambda: function(torch, x, ids)

    return make


def _product(function: Callable[..., object], *shapes: tuple[int, ...]) -> Maker:
    def make(torch: Any) -> Operation:
        operands = [_x(torch, *shape, dtype="bfloat16") for shape in shapes]
        return lambda: function(torch, *operands)

    return make


def _attention(torch: Any, *, grad: bool) -> Any:
    q, k, v = (_x(torch, 2, 16, 2048, 128, dtype="bfloat16", grad=grad) for _ in range(3))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _embedding(torch: Any, *, grad: bool) -> Any:
    table = _x(torch, 50_000, 1024, grad=grad)
    return torch.nn.functional.embedding(_ids(torch, N), table)


OPERATIONS: dict[str, Maker] = {
    "add": _of_one(lambda _, x: x + x),
    "add_bfloat16": _of_one(lambda _, x: x + x, dtype="bfloat16"),
    "add_number": _of_one(lambda _, x: x + 1.0),
    "mul": _of_one(lambda _, x: x * 2.0),
    "add_in_place": _of_one(lambda _, x: x.add_(x)),
    "add_row": _of_one(lambda _, x: x + x[0]),
    "add_turned": _of_one(lambda _, x: x + x.t()),
    "copy_turned": _of_one(lambda _, x: x.t().contiguous()),
    "clone": _of_one(lambda _, x: x.clone()),
    "narrow": _of_one(lambda torch, x: x.to(torch.bfloat16)),
    "widen": _of_one(lambda torch, x: x.to(torch.float32), dtype="bfloat16"),
    "gelu": _of_one(lambda torch, x: torch.nn.functional.gelu(x), dtype="bfloat16"),
    "silu": _of_one(lambda torch, x: torch.nn.functional.silu(x), dtype="bfloat16"),
    "relu": _of_one(lambda torch, x: torch.relu(x)),
    "exp": _of_one(lambda torch, x: torch.exp(x)),
    "compare": _of_one(lambda _, x: x > 0),
    "where": _of_one(lambda torch, x: torch.where(x > 0, x, x)),
    "zeros": _of_one(lambda torch, _: torch.zeros(N, N, device="cuda")),
    "fill": _of_one(lambda _, x: x.fill_(3.0)),
    "randn": _of_one(lambda torch, _: torch.randn(N, N, device="cuda")),
    "rand": _of_one(lambda torch, _: torch.rand(N, N, device="cuda")),
    "softmax": _of_one(lambda torch, x: torch.softmax(x, -1), dtype="bfloat16"),
    "log_softmax": _of_one(lambda torch, x: torch.log_softmax(x, -1)),
    "layer_norm": _of_one(lambda torch, x: torch.nn.functional.layer_norm(x, (N,))),
    "rms_norm": _of_one(lambda torch, x: torch.nn.functional.rms_norm(x, (N,))),
    "sum": _of_one(lambda _, x: x.sum()),
    "sum_of_rows": _of_one(lambda _, x: x.sum(-1)),
    "sum_of_columns": _of_one(lambda _, x: x.sum(0)),
    "mean": _of_one(lambda _, x: x.mean()),
    "amax": _of_one(lambda _, x: x.amax(-1)),
    "argmax": _of_one(lambda _, x: x.argmax(-1)),
    "cumsum": _of_one(lambda _, x: x.cumsum(-1)),
    "sort": _of_one(lambda _, x: x.sort(-1)),
    "topk": _of_one(lambda _, x: x.topk(8, -1)),
    "cat": _of_one(lambda torch, x: torch.cat([x, x])),
    "index": _looked_up(lambda _, x, ids: x[ids], 1000),
    "index_select": _looked_up(lambda _, x, ids: x.index_select(0, ids), 1000),
    "gather": _looked_up(lambda _, x, ids: x.gather(1, ids), N, 8),
    "embedding": lambda torch: lambda: _embedding(torch, grad=False),
    "mm": _product(lambda _, a, b: a @ b, (N, N), (N, N)),
    "mm_small": _product(lambda _, a, b: a @ b, (64, 64), (64, 64)),
    "bmm": _product(lambda torch, a, b: torch.bmm(a, b), (16, 512, 512), (16, 512, 512)),
    "linear": _product(
        lambda torch, x, w, b: torch.nn.functional.linear(x, w, b), (512, 1024), (N, 1024), (N,)
    ),
    "attention": lambda torch: lambda: _attention(torch, grad=False),
    "cross_entropy": _looked_up(lambda torch, x, ids: torch.nn.functional.cross_entropy(x, ids), N),
    "mul_backward": _back(lambda torch: _x(torch, grad=True) * _x(torch, grad=True)),
    "gelu_backward": _back(lambda torch: torch.nn.functional.gelu(_x(torch, grad=True))),
    "softmax_backward": _back(lambda torch: torch.softmax(_x(torch, grad=True), -1)),
    "linear_backward": _back(
        lambda torch: torch.nn.functional.linear(
            _x(torch, 512, 1024, dtype="bfloat16", grad=True),
            _x(torch, N, 1024, dtype="bfloat16", grad=True),
            _x(torch, N, dtype="bfloat16", grad=True),
        )
    ),
    "embedding_backward": _back(lambda torch: _embedding(torch, grad=True)),
    "cross_entropy_backward": _back(
        lambda torch: torch.nn.functional.cross_entropy(
            _x(torch, N, 32_000, grad=True), _ids(torch, N), reduction="none"
        )
    ),
    "attention_backward": _back(lambda torch: _attention(torch, grad=True)),
    "layer_norm_backward": _back(
        lambda torch: torch.nn.functional.layer_norm(
            _x(torch, grad=True), (N,), _x(torch, N, grad=True), _x(torch, N, grad=True)
        )
    ),
    "dropout": _of_one(lambda torch, x: torch.nn.functional.dropout(x, 0.1)),
}


def _engine(*, at_call: bool) -> GraphEngine:
    topology = load_topology("h200x8").topology_obj
    return GraphEngine(topology, False, moves_at_call=at_call, record="full")


def device_times(torch: Any, engine: GraphEngine) -> dict[str, int]:
    """Returns the picoseconds that the commands of each operation take on a device of an engine.

    Args:
        torch: The module; a rank of it runs this.
        engine: Engine that notes all commands.
    """
    found = {}
    for name, make in OPERATIONS.items():
        run = make(torch)
        torch.cuda.synchronize()
        begin = len(engine.op_log.records)
        run()
        torch.cuda.synchronize()
        found[name] = sum(each.end - each.start for each in engine.op_log.records[begin:])
    return found


def of_own_torch() -> dict[str, int]:
    """Returns `device_times` of `kernbench.torch`."""
    import kernbench.torch as torch

    found: dict[str, int] = {}
    engine = _engine(at_call=False)
    with RuntimeContext(engine=engine, quiet=True) as ctx:
        ctx.multiprocessing.spawn(lambda _: found.update(device_times(torch, engine)), nprocs=1)
    return found


def of_real_torch() -> dict[str, int]:
    """Returns `device_times` of PyTorch, which must be installed."""
    import torch

    from kernbench.bridge import bridged

    found: dict[str, int] = {}
    engine = _engine(at_call=False)

    def main(rank: int) -> None:
        del rank
        found.update(device_times(torch, engine))

    with RuntimeContext(engine=engine, quiet=True), bridged(data=False):
        torch.multiprocessing.spawn(main, nprocs=1)
    return found
