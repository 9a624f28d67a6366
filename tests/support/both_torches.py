"""Operations and steps that both torches know, and what each of them issues on a device."""

import math
from collections.abc import Callable, Mapping
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


def _method(name: str, *arguments: Any) -> Maker:
    return _of_one(lambda torch, x: getattr(x, name)(*arguments))


def _with_itself(name: str) -> Maker:
    return _of_one(lambda torch, x: getattr(x, name)(x))


def _both_ways(function: Callable[[Any, Any], Any], *shape: int) -> dict[str, Maker]:
    def forward(torch: Any) -> Operation:
        x = _x(torch, *shape)
        return lambda: function(torch, x)

    def run(torch: Any) -> Any:
        return function(torch, _x(torch, *shape, grad=True))

    return {"": forward, "_backward": _back(run)}


def _large_both_ways(function: Callable[[Any, Any], Any], dtype: str) -> dict[str, Maker]:
    def backward(torch: Any) -> Operation:
        x = _x(torch, dtype=dtype, grad=True)
        out = function(torch, x)
        if not out.requires_grad:
            return lambda: x
        grad = torch.ones_like(out)
        return lambda: (out.backward(grad), x)  # a leaf that nobody holds gets no gradient

    return {"": _of_one(function, dtype=dtype), "_backward": backward}


def _named(name: str) -> Callable[[Any, Any], Any]:
    return lambda torch, x: getattr(torch, name)(x)


_SMALL = (64, 64)
_OF_64 = ("layer_norm", "rms_norm", "group_norm", "gather", "unbind", "cross_entropy_of_images")
_ALONE = (
    *("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "sin", "cos"),
    *("tan", "tanh", "sigmoid", "neg", "abs", "relu", "sign", "floor", "ceil", "trunc", "round"),
)
_PAIRS = ("add", "sub", "mul", "div", "pow", "remainder", "fmod")
_BOTH_WAYS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: _named(name) for name in _ALONE},
    "elu": lambda torch, x: torch.nn.functional.elu(x),
    "leaky_relu": lambda torch, x: torch.nn.functional.leaky_relu(x),
    "hardtanh": lambda torch, x: torch.nn.functional.hardtanh(x),
    "logsigmoid": lambda torch, x: torch.nn.functional.logsigmoid(x),
    "maximum": lambda torch, x: torch.maximum(x, x * 2),
    "logaddexp": lambda torch, x: torch.logaddexp(x, x * 2),
    "power_of_two": lambda torch, x: torch.pow(x, 2),
    "clamp": lambda torch, x: x.clamp(0, 1),
    "clamp_min": lambda torch, x: x.clamp(min=0),
    "where": lambda torch, x: torch.where(x > 0, x, 0.0),
    "masked_fill": lambda torch, x: x.masked_fill(x > 0, 1.0),
    "lerp": lambda torch, x: torch.lerp(x, x * 2, 0.5),
    "addcmul": lambda torch, x: torch.addcmul(x * 3, x, x),
    "var": lambda torch, x: x.var(-1),
    "std": lambda torch, x: x.std(),
    "norm": lambda torch, x: x.norm(),
    "amax": lambda torch, x: x.amax(-1),
    "max": lambda torch, x: x.max(),
    "max_of_rows": lambda torch, x: x.max(-1)[0],
    "logsumexp": lambda torch, x: x.logsumexp(-1),
    "cumsum": lambda torch, x: x.cumsum(-1),
    "softmax": lambda torch, x: x.softmax(-1),
    "log_softmax": lambda torch, x: x.log_softmax(-1),
    "sort": lambda torch, x: x.sort()[0],
    "topk": lambda torch, x: x.topk(4)[0],
    "slice": lambda torch, x: x[1:3],
    "select": lambda torch, x: x[1],
    "diagonal": lambda torch, x: x.diagonal() * 1,
    "stack": lambda torch, x: torch.stack([x * 1, x * 2]),
    "unbind": lambda torch, x: torch.cat(x.unbind()),
    "index": lambda torch, x: x[_ids(torch, 5)],
    "gather": lambda torch, x: x.gather(1, _ids(torch, 64, 8)),
    "index_select": lambda torch, x: x.index_select(0, _ids(torch, 9)),
    "to": lambda torch, x: x.to(torch.bfloat16),
    "matrix_and_vector": lambda torch, x: x @ (x * 2)[0],
    "batched": lambda torch, x: x.view(4, 16, 64) @ (x * 2).view(4, 64, 16),
    "addmm": lambda torch, x: torch.addmm(x * 1, x * 2, x * 3),
    "einsum": lambda torch, x: torch.einsum("ij,jk->ik", x, x),
    "tensordot": lambda torch, x: torch.tensordot(x, x, 1),
    "linear": lambda torch, x: torch.nn.functional.linear(x * 1, x * 2, (x * 3)[0]),
    "linear_without_bias": lambda torch, x: torch.nn.functional.linear(x * 1, x * 2),
    "layer_norm": lambda torch, x: torch.nn.functional.layer_norm(x, (64,), x[0], x[1]),
    "rms_norm": lambda torch, x: torch.nn.functional.rms_norm(x, (64,), x[0]),
    "group_norm": lambda torch, x: torch.nn.functional.group_norm(x, 4, x[0], x[1]),
    "batch_norm": lambda torch, x: torch.nn.functional.batch_norm(
        x, torch.zeros(64, device="cuda"), torch.ones(64, device="cuda"), x[0], x[1], True
    ),
    "dropout": lambda torch, x: torch.nn.functional.dropout(x, 0.5),
    "mse_loss": lambda torch, x: torch.nn.functional.mse_loss(x, x * 2),
    "l1_loss": lambda torch, x: torch.nn.functional.l1_loss(x, x * 2),
    "smooth_l1_loss": lambda torch, x: torch.nn.functional.smooth_l1_loss(x, x * 2),
    "huber_loss": lambda torch, x: torch.nn.functional.huber_loss(x, x * 2),
    "logits": lambda torch, x: torch.nn.functional.binary_cross_entropy_with_logits(x, x * 2),
    "cross_entropy": lambda torch, x: torch.nn.functional.cross_entropy(x, _ids(torch, 64)),
    "cross_entropy_of_images": lambda torch, x: torch.nn.functional.cross_entropy(
        x.view(4, 16, 64), _ids(torch, 4, 64)
    ),
    "probabilities": lambda torch, x: torch.nn.functional.cross_entropy(x, (x * 2).detach()),
}


def _heads(width: int, dtype: str = "bfloat16", **options: Any) -> Callable[[Any, Any], Any]:
    """Returns attention on parts of a matrix of bfloat16, in another type and width."""

    def run(torch: Any, x: Any) -> Any:
        heads = x.reshape(-1)[: 2 * 16 * 1024 * width].view(2, 16, 1024, width)
        heads = heads.to(getattr(torch, dtype))
        given = dict(options)
        if given.pop("masked", False):
            given["attn_mask"] = torch.ones(1024, 1024, dtype=heads.dtype, device="cuda")
        return torch.nn.functional.scaled_dot_product_attention(
            heads, heads.detach(), heads.detach(), **given
        )

    return run


def _at(places: Callable[[Any], Any], name: str, *rest: Any) -> Callable[[Any, Any], Any]:
    return lambda torch, x: getattr(x, name)(*rest, places(torch))


def _loss(name: str, **options: Any) -> Callable[[Any, Any], Any]:
    def run(torch: Any, x: Any) -> Any:
        return getattr(torch.nn.functional, name)(x, (x * 2).detach(), **options)

    return run


def _function(name: str) -> Callable[[Any, Any], Any]:
    return lambda torch, x: getattr(torch.nn.functional, name)(x)


def _padded(mode: str) -> Callable[[Any, Any], Any]:
    return lambda torch, x: torch.nn.functional.pad(x.view(64, 64, N), (3, 3), mode=mode)


_LARGE: dict[str, Callable[[Any, Any], Any]] = {
    **{name: _named(name) for name in _ALONE},
    **{
        name: function
        for name, function in _BOTH_WAYS.items()
        if name not in _ALONE and "batch" not in name and name not in _OF_64
    },
    **{
        f"{name}_{reduction}": _loss(name, reduction=reduction)
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
        for reduction in ("mean", "sum", "none")
    },
    **{name: _loss(name) for name in ("binary_cross_entropy", "binary_cross_entropy_with_logits")},
    "kl_div": _loss("kl_div", reduction="sum"),
    "kl_div_by_batch": _loss("kl_div", reduction="batchmean"),
    "cross_entropy": lambda torch, x: torch.nn.functional.cross_entropy(x, _ids(torch, N)),
    "cross_entropy_smoothed": lambda torch, x: torch.nn.functional.cross_entropy(
        x, _ids(torch, N), label_smoothing=0.1
    ),
    **{
        name: _function(name)
        for name in ("glu", "hardswish", "mish", "softplus", "selu", "normalize")
    },
    "cosine_similarity": lambda torch, x: torch.nn.functional.cosine_similarity(x, x * 2),
    "pairwise_distance": lambda torch, x: torch.nn.functional.pairwise_distance(x, x * 2),
    **{f"pad_{mode}": _padded(mode) for mode in ("constant", "reflect", "replicate")},
    "pad_less": lambda torch, x: torch.nn.functional.pad(x, (-1, -2)),
    "pad_and_less": lambda torch, x: torch.nn.functional.pad(x, (-1, 2, 3, 0)),
    "repeat_rows": lambda torch, x: x.repeat(2, 1),
    "repeat_both": lambda torch, x: x.repeat(2, 2),
    "repeat_before": lambda torch, x: x.repeat(2, 1, 1),
    "repeat_interleave": lambda torch, x: x.repeat_interleave(2, 0),
    "repeat_interleave_columns": lambda torch, x: x.repeat_interleave(2, 1),
    "repeat_interleave_all": lambda torch, x: x.repeat_interleave(2),
    "flip": lambda torch, x: x.flip(1),
    "roll": lambda torch, x: x.roll(3, 1),
    "tril": lambda torch, x: x.tril(),
    "slice_of_columns": lambda torch, x: x[:, 1:-1],
    "slice_with_steps": lambda torch, x: x[::2],
    "select_a_column": lambda torch, x: x[:, 3],
    "unbind_one": lambda torch, x: x.view(4, 1024, N).unbind()[0],
    "index_rows": lambda torch, x: x[_ids(torch, N)],
    "index_columns": lambda torch, x: x[:, _ids(torch, N)],
    "index_both": lambda torch, x: x[_ids(torch, N), _ids(torch, N)],
    "index_select_rows": _at(lambda torch: _ids(torch, N), "index_select", 0),
    "gather_all": _at(lambda torch: _ids(torch, N, N), "gather", 1),
    "scatter_add": lambda torch, x: x.scatter_add(1, _ids(torch, N, N), x * 2),
    "index_add": lambda torch, x: x.index_add(0, _ids(torch, N), x * 2),
    "norm_of_rows": lambda torch, x: x.norm(dim=-1),
    "norm_of_columns": lambda torch, x: x.norm(dim=0),
    "any_of_columns": lambda torch, x: (x > 0).any(0),
    "all_of_rows": lambda torch, x: (x > 0).all(-1),
    "prod_of_columns": lambda torch, x: x.detach().prod(0),
    "batch_norm": lambda torch, x: torch.nn.functional.batch_norm(
        x.view(64, 64, 64, 64), None, None, None, None, True
    ),
    "batch_norm_evaluated": lambda torch, x: torch.nn.functional.batch_norm(
        x.view(64, 64, 64, 64), torch.zeros(64, device="cuda"), torch.ones(64, device="cuda")
    ),
}

_NARROW: dict[str, Callable[[Any, Any], Any]] = {
    "softmax_in_float32": lambda torch, x: x.softmax(-1, dtype=torch.float32),
    "log_softmax_in_float32": lambda torch, x: x.log_softmax(-1, dtype=torch.float32),
    "sum_in_float32": lambda torch, x: x.sum(-1, dtype=torch.float32),
    **{f"attention_of_{width}": _heads(width) for width in (64, 96, 100, 128, 160, 256, 264)},
    "attention_of_100_causal": _heads(100, is_causal=True),
    "attention_of_100_masked": _heads(100, masked=True),
    "attention_of_64_masked": _heads(64, masked=True),
    "attention_with_dropout": _heads(64, dropout_p=0.1),
    "attention_of_100_with_dropout": _heads(100, dropout_p=0.1),
    **{
        f"attention_of_{dtype}_{width}": _heads(width, dtype)
        for dtype in ("float16", "float32", "float64")
        for width in (64, 66, 100)
    },
}

PRICED: dict[str, Maker] = {
    f"{name}{way}": maker
    for table, dtype in ((_LARGE, "float32"), (_NARROW, "bfloat16"))
    for name, function in table.items()
    for way, maker in _large_both_ways(function, dtype).items()
}
"""Operations on large operands, forward and backward, that take as long under both torches."""

NAMED: dict[str, Maker] = {
    **{name: OPERATIONS[name] for name in OPERATIONS if name not in ("gather", "cross_entropy")},
    **{f"{name}_in_place": _method(f"{name}_") for name in _ALONE},
    **{f"{name}_in_place_of_two": _with_itself(f"{name}_") for name in _PAIRS},
    **{
        f"{name}{way}": maker
        for name, function in _BOTH_WAYS.items()
        for way, maker in _both_ways(function, *_SMALL).items()
    },
    "zero": _method("zero_"),
    "normal": _method("normal_"),
    "uniform": _method("uniform_"),
    "clamp_in_place": _method("clamp_", 0, 1),
    "lerp_in_place": _of_one(lambda _, x: x.lerp_(x * 2, 0.5)),
    "addcmul_in_place": _of_one(lambda _, x: x.addcmul_(x, x)),
    "addcdiv_in_place": _of_one(lambda _, x: x.addcdiv_(x, x)),
    "masked_fill_in_place": _of_one(lambda _, x: x.masked_fill_(x > 0, 1.0)),
    "scatter_in_place": _of_one(lambda torch, x: x.scatter_(1, _ids(torch, N, 8), 1.0)),
    "assign": _of_one(lambda _, x: x.__setitem__(slice(None), 3.0)),
    "assign_part": _of_one(lambda _, x: x.__setitem__((slice(None), slice(7, None)), -math.inf)),
    "assign_rows": _of_one(lambda torch, x: x.__setitem__(_ids(torch, 9), 2.0)),
    "one_hot": _looked_up(lambda torch, _, ids: torch.nn.functional.one_hot(ids, 16), 64),
    "zeros_like": _of_one(lambda torch, x: torch.zeros_like(x)),
    "ones": _of_one(lambda torch, _: torch.ones(N, device="cuda")),
    "new_zeros": _method("new_zeros", 3),
    "bernoulli": _of_one(lambda torch, x: torch.bernoulli(x)),
    "isfinite": _of_one(lambda torch, x: torch.isfinite(x)),
    "out": _of_one(lambda torch, x: torch.add(x, x, out=x * 2)),
}
"""Operations, in place and out of place, forward and backward, that run the same kernels."""


def _engine(*, at_call: bool) -> GraphEngine:
    topology = load_topology("h200x8").topology_obj
    return GraphEngine(topology, False, moves_at_call=at_call, record="full")


def commands_of(
    torch: Any, engine: GraphEngine, operations: Mapping[str, Maker]
) -> dict[str, list[tuple[str, int]]]:
    """Returns names and picoseconds of the commands of operations on a device of an engine.

    Args:
        torch: The module; a rank of it runs this.
        engine: Engine that notes all commands.
    """
    found = {}
    for name, make in operations.items():
        run = make(torch)
        torch.cuda.synchronize()
        begin = len(engine.op_log.records)
        run()
        torch.cuda.synchronize()
        records = engine.op_log.records[begin:]
        found[name] = [(each.name, each.end - each.start) for each in records]
    return found


def device_times(torch: Any, engine: GraphEngine) -> dict[str, int]:
    """Returns the picoseconds that the commands of each operation take; see `commands_of`."""
    found = commands_of(torch, engine, {**PRICED, **OPERATIONS})
    return {name: sum(ps for _, ps in commands) for name, commands in found.items()}


def names_of(torch: Any, engine: GraphEngine) -> dict[str, list[str]]:
    """Returns the names of the kernels that each of `NAMED` runs; see `commands_of`."""
    found = commands_of(torch, engine, NAMED)
    return {name: [kernel for kernel, _ in commands] for name, commands in found.items()}


Noting = Callable[[Any, GraphEngine], dict[str, Any]]


def of_own_torch(noting: Noting = device_times) -> dict[str, Any]:
    """Returns `device_times` of `kernbench.torch`, or something else of its commands."""
    import kernbench.torch as torch

    found: dict[str, Any] = {}
    engine = _engine(at_call=False)
    with RuntimeContext(engine=engine, quiet=True) as ctx:
        ctx.multiprocessing.spawn(lambda _: found.update(noting(torch, engine)), nprocs=1)
    return found


def of_real_torch(noting: Noting = device_times, *, data: bool = False) -> dict[str, Any]:
    """Returns the same of PyTorch, which must be installed.

    Args:
        data: Whether tensors have numbers.
    """
    import torch

    from kernbench.bridge import bridged

    found: dict[str, Any] = {}
    engine = _engine(at_call=data)

    def main(rank: int) -> None:
        del rank
        found.update(noting(torch, engine))

    with RuntimeContext(engine=engine, quiet=True), bridged(data=data):
        torch.multiprocessing.spawn(main, nprocs=1)
    return found
