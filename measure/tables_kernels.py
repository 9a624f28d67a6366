"""Single kernels of one GPU: products, row operations, elementwise ones, attention, optimisers."""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from rows import Group, Row, Table, Values, product
from timing import Call, Timer
from torch.nn.attention import SDPBackend, sdpa_kernel

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
MIB = 1 << 20


def normal(timer: Timer, *shape: int, dtype: str = "bf16", grad: bool = False) -> torch.Tensor:
    """Returns random numbers on the device."""
    found = torch.randn(*shape, device=timer.device, dtype=torch.float32).to(TYPES[dtype])
    return found.requires_grad_(grad)


def launch(timer: Timer, group: Group) -> Iterator[Row]:
    """What a tiny kernel costs, and an event pair alone."""
    del group
    x = torch.zeros(32, device=timer.device)

    def add() -> torch.Tensor:
        return x.add_(1)

    def nothing() -> None:
        return None

    yield Row(("add_ 32 floats, graph of 20",), lambda: {"us": timer.graph(add)[0]})
    yield Row(("add_ 32 floats, eager per call",), lambda: {"us": timer.eager(add)})
    yield Row(("event pair, nothing between",), lambda: {"us": timer.us(nothing, flush=False)})
    yield Row(("event pair around one add_, L2 flushed",), lambda: {"us": timer.us(add)})


def memory(timer: Timer, group: Group) -> Iterator[Row]:
    """Copies and sums of bfloat16: up to 16 MiB from a graph, so warm in the L2; larger eager."""
    del group
    sizes = [1 << at for at in range(12, 32)]

    def measure(op: str, size: int) -> Values:
        x, y, z = (torch.zeros(size // 2, device=timer.device, dtype=torch.bfloat16) for _ in "xyz")
        call: Call = (
            functools.partial(y.copy_, x)
            if op == "copy"
            else functools.partial(torch.add, x, y, out=z)
        )
        us = timer.graph(call)[0] if size <= 16 * MIB else timer.together([call] * 10)
        return {"us": us, "gbps": (2 if op == "copy" else 3) * size / us / 1e3}

    for size in sizes[:2] if timer.quick else sizes:
        for op in ("copy", "add"):
            yield Row((op, size), functools.partial(measure, op, size))


ELEMENTWISE = (
    *("add", "mul", "add_scalar", "exp", "copy", "gelu", "silu", "relu", "dropout", "where", "cat"),
    *("cast", "add_bcast", "transpose_copy", "zero", "normal_", "uniform_", "bernoulli_"),
)


def pointwise_call(timer: Timer, op: str, dtype: str, size: int) -> Call:
    """Returns one elementwise call on operands of so many bytes."""
    x, y = (normal(timer, size // TYPES[dtype].itemsize, dtype=dtype) for _ in "xy")
    if op == "where":
        mask = x > 0
        return lambda: torch.where(mask, x, y)
    wide, line = x.view(-1, 4096), normal(timer, 4096, dtype=dtype)
    other = torch.float32 if dtype == "bf16" else torch.bfloat16
    calls: dict[str, Call] = {
        "add": lambda: torch.add(x, y, out=y),
        "mul": lambda: torch.mul(x, y, out=y),
        "add_scalar": lambda: torch.add(x, 1, out=y),
        "exp": lambda: torch.exp(x, out=y),
        "copy": lambda: y.copy_(x),
        "gelu": lambda: F.gelu(x),
        "silu": lambda: F.silu(x),
        "relu": lambda: F.relu(x),
        "dropout": lambda: F.dropout(x, 0.1),
        "cat": lambda: torch.cat((x, y)),
        "cast": lambda: x.to(other),
        "add_bcast": lambda: wide + line,
        "transpose_copy": lambda: wide.t().contiguous(),
        "zero": x.zero_,
        "normal_": x.normal_,
        "uniform_": x.uniform_,
        "bernoulli_": x.bernoulli_,
    }
    return calls[op]


def elementwise(timer: Timer, group: Group) -> Iterator[Row]:
    """Elementwise operations."""
    del group

    def measure(*key: Any) -> Values:
        return {"us": timer.us(pointwise_call(timer, *key))}

    sizes = [MIB, 8 * MIB, 32 * MIB, 128 * MIB, 512 * MIB]
    for key in product(ELEMENTWISE, ("bf16", "fp32"), sizes, quick=timer.quick):
        yield Row(key, functools.partial(measure, *key))


def row_call(timer: Timer, op: str, rows: int, columns: int) -> Call:
    """Returns an operation over the last dimension, or its gradient, in bfloat16."""
    name, backward = op.removesuffix("_bwd"), op.endswith("_bwd")
    x = normal(timer, rows, columns, grad=backward)
    weight, bias = (normal(timer, columns, grad=backward) for _ in range(2))
    target = torch.randint(0, columns, (rows,), device=timer.device)
    forward: dict[str, Call] = {
        "softmax": lambda: torch.softmax(x, -1),
        "layer_norm": lambda: F.layer_norm(x, (columns,), weight, bias),
        "rms_norm": lambda: F.rms_norm(x, (columns,), weight),
        "sum": lambda: x.sum(-1),
        "mean": lambda: x.mean(-1),
        "argmax": lambda: x.argmax(-1),
        "cross_entropy": lambda: F.cross_entropy(x, target),
    }
    if not backward:
        return forward[name]
    out = forward[name]()
    inputs = {"layer_norm": (x, weight, bias), "rms_norm": (x, weight)}.get(name, (x,))
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)


ROW_OPERATIONS = ("softmax", "layer_norm", "rms_norm", "sum", "mean", "argmax", "cross_entropy")


def rowops(timer: Timer, group: Group) -> Iterator[Row]:
    """Row operations and their gradients, those up to 16384 rows."""
    del group

    def measure(*key: Any) -> Values:
        return {"us": timer.us(row_call(timer, *key))}

    backward = ("softmax_bwd", "layer_norm_bwd", "rms_norm_bwd", "cross_entropy_bwd")
    rows, columns = (1024, 4096, 16384, 65536), (512, 1024, 4096, 16384, 32768)
    for key in product(ROW_OPERATIONS, rows, columns, quick=timer.quick):
        yield Row(key, functools.partial(measure, *key))
    for key in product(backward, rows[1:-1], columns, quick=timer.quick):
        yield Row(key, functools.partial(measure, *key))


def matmul_call(timer: Timer, dtype: str, m: int, n: int, k: int) -> Call:
    """Returns a product of a[m, k] and the transposed b[n, k]."""
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    a, b = (normal(timer, rows, k, dtype="fp32") for rows in (m, n))
    if dtype == "fp8":
        a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        one = torch.ones((), device=timer.device)
        return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)
    kind = TYPES.get(dtype, torch.float32)
    a, b = a.to(kind), b.to(kind)
    return lambda: a @ b.t()


SQUARES = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384)
WEIGHTS = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    *((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
)
FEW = {"bf16": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 4096, 8192), "fp16": (1, 16, 128, 512)}
FEW |= {"fp8": FEW["bf16"], "tf32": FEW["fp16"], "fp32": FEW["fp16"][:3]}


def gemm(timer: Timer, group: Group) -> Iterator[Row]:
    """Products of square matrices, and of few to many rows with the weights of models."""
    del group
    sizes = [(d, n, n, n) for d in FEW for n in SQUARES if (d, n) != ("fp32", 16384)]
    sizes += [(d, m, n, k) for d, rows in FEW.items() for m in rows for n, k in WEIGHTS]

    def measure(dtype: str, m: int, n: int, k: int) -> Values:
        us = timer.us(matmul_call(timer, dtype, m, n, k))
        return {"us": us, "tflops": 2e-6 * m * n * k / us}

    for key in [each for each in sizes if each[1] == 256][:5] if timer.quick else sizes:
        yield Row(key, functools.partial(measure, *key))


def sustained(timer: Timer, group: Group) -> Iterator[Row]:
    """Products back to back for about 0.6 s: means of the first, middle and last tenth."""
    del group
    sizes = [(2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192)]
    sizes += [(16384, 16384, 16384), (16, 28672, 4096), (512, 28672, 4096)]

    def measure(dtype: str, m: int, n: int, k: int) -> Values:
        call = matmul_call(timer, dtype, m, n, k)
        flushed = timer.us(call)
        tenth = max(1, int((1e3 if timer.quick else 6e4) / flushed))
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
        for mark in marks[:-1]:
            mark.record()
            for _ in range(tenth):
                call()
        marks[-1].record()
        read = _clock(timer)
        timer.wait()
        tenths = [1e3 * a.elapsed_time(b) / tenth for a, b in itertools.pairwise(marks)]
        return {
            "us": tenths[-1],
            "first_us": tenths[0],
            "mid_us": tenths[5],
            "flushed_us": flushed,
            **read,
        }

    if timer.gpu:
        for dtype in ("bf16", "fp16", "fp8", "tf32", "fp32"):
            for size in sizes[:1] if timer.quick else sizes:
                if (dtype, size[0]) != ("fp32", 16384):
                    yield Row((dtype, *size), functools.partial(measure, dtype, *size))


def _clock(timer: Timer) -> Values:
    """Returns the clock and the power as they are, where NVML can be read."""
    try:
        return {
            "mhz": torch.cuda.clock_rate(timer.device),
            "watts": torch.cuda.power_draw(timer.device) / 1e3,
        }
    except (ModuleNotFoundError, RuntimeError):
        return {}


BACKENDS = {"flash2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def attention(timer: Timer, group: Group) -> Iterator[Row]:
    """Attention of whole sequences, forward and backward, and of one query."""
    del group

    def measure(kind: str, backend: str, *sizes: Any) -> Values:
        b, h, hk, sq, s, d, causal = sizes
        training = kind == "full"
        q = normal(timer, b, h, sq, d, grad=training)
        k, v = (normal(timer, b, hk, s, d, grad=training) for _ in "kv")

        def forward() -> torch.Tensor:
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=bool(causal), enable_gqa=h != hk
            )

        with sdpa_kernel(BACKENDS[backend] if timer.gpu else SDPBackend.MATH):
            with torch.no_grad():
                found = {"fwd_us": timer.us(forward)}
            if training:
                out = forward()
                grad = torch.randn_like(out)
                found["bwd_us"] = timer.us(
                    lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
                )
        return found

    lengths = [512, 1024, 2048, 4096, 8192, 16384, 32768]
    for s in lengths[:1] if timer.quick else lengths:
        for hk, d, causal in product((8, 32), (64, 128), (1, 0), quick=timer.quick):
            for backend in BACKENDS:
                key = ("full", backend, 1, 32, hk, s, s, d, causal)
                yield Row(key, functools.partial(measure, *key))
    lengths = [4096, 8192, 16384, 32768, 65536, 131072]
    for b, s, d in product((1, 8, 32), lengths, (128, 64), quick=timer.quick):
        if b * s <= 1 << 20:
            for backend in BACKENDS:
                key = ("decode", backend, b, 32, 8, 1, s, d, 0)
                yield Row(key, functools.partial(measure, *key))


def embedding(timer: Timer, group: Group) -> Iterator[Row]:
    """Look-ups of rows of a table, and their gradients."""
    del group

    def measure(op: str, dtype: str, vocabulary: int, hidden: int, tokens: int) -> Values:
        ids = torch.randint(0, vocabulary, (tokens,), device=timer.device)
        table = normal(timer, vocabulary, hidden, dtype=dtype)
        grad = normal(timer, tokens, hidden, dtype=dtype)
        if op == "embedding":
            return {"us": timer.us(lambda: F.embedding(ids, table))}
        backward = torch.ops.aten.embedding_dense_backward
        return {"us": timer.us(lambda: backward(grad, ids, vocabulary, -1, False))}

    tables = [(50304, 768), (32000, 4096), (128256, 4096)]
    for op, dtype, table, tokens in product(
        ("embedding", "embedding_bwd"), ("bf16", "fp32"), tables, (4096, 16384), quick=timer.quick
    ):
        key = (op, dtype, *table, tokens)
        yield Row(key, functools.partial(measure, *key))


def optim(timer: Timer, group: Group) -> Iterator[Row]:
    """Steps over the 146 parameters of a Llama of 1.24 B elements."""
    del group
    hidden = 2048
    shapes: list[tuple[int, ...]] = [(128256, hidden), (hidden,)]
    for _ in range(16):
        shapes += [(hidden, hidden)] * 2 + [(512, hidden)] * 2 + [(8192, hidden)] * 3
        shapes += [(hidden,)] * 2
    if timer.quick:
        shapes = shapes[1:3]
    elements = sum(torch.Size(shape).numel() for shape in shapes)

    def measure(op: str, dtype: str, *_: Any) -> Values:
        params = [
            torch.zeros(shape, device=timer.device, dtype=TYPES[dtype], requires_grad=True)
            for shape in shapes
        ]
        for each in params:
            each.grad = torch.full_like(each, 1e-3)
        grads = [each.grad for each in params]
        calls: dict[str, Any] = {
            "sgd_foreach": lambda: torch.optim.SGD(params, 0.1, momentum=0.9, foreach=True).step,
            "adamw_foreach": lambda: torch.optim.AdamW(params, foreach=True).step,
            "adamw_fused": lambda: torch.optim.AdamW(params, fused=True).step,
            "clip_grad_norm_foreach": lambda: functools.partial(
                torch.nn.utils.clip_grad_norm_, params, 1.0, foreach=True
            ),
            "foreach_zero": lambda: functools.partial(torch._foreach_zero_, grads),
        }
        call = calls[op]()
        us = timer.us(call, spin_us=4000)
        host = sorted(timer.host_us(call) for _ in range(1 if timer.quick else 5))
        return {"us": us, "host_us": host[len(host) // 2]}

    names = ("sgd_foreach", "adamw_foreach", "adamw_fused", "clip_grad_norm_foreach")
    for op, dtype in product((*names, "foreach_zero"), ("bf16", "fp32"), quick=timer.quick):
        key = (op, dtype, len(shapes), elements)
        yield Row(key, functools.partial(measure, *key))


def moe(timer: Timer, group: Group) -> Iterator[Row]:
    """Grouped products by how uneven their groups are, and what moves tokens between them."""
    del group

    def grouped(what: str, e: int, k: int, n: int, t: int, kind: str) -> Values:
        shares = {
            "even": torch.ones(e),
            "one": torch.eye(e)[0],
            "zipf": 1 / torch.arange(1, e + 1),
            "half_empty": torch.tensor([1.0, 0.0]).repeat(e // 2),
        }[kind]
        counts = torch.floor(shares / shares.sum() * t).long()
        counts[0] += t - counts.sum()
        w, x = normal(timer, e, k, n), normal(timer, t, k)
        ends = counts.cumsum(0).to(device=timer.device, dtype=torch.int32)
        if what == "grouped_mm":
            return {"us": timer.us(lambda: torch._grouped_mm(x, w, offs=ends), flush=False)}
        if what == "bmm":
            return {"us": timer.us(lambda: torch.bmm(x.view(e, -1, k), w), flush=False)}
        parts = list(zip(x.split(counts.tolist()), w, strict=True))
        call: Call = lambda: [a @ b for a, b in parts if len(a)]  # noqa: E731
        return {"us": timer.us(call, flush=False)}

    for e, k, t in product((8, 64), (2048, 7168), (64, 1024, 16384), quick=timer.quick):
        for kind in ("even", "one", "zipf", "half_empty"):
            for what in ("grouped_mm", "loop_mm")[: 2 if e == 8 else 1]:
                yield Row(
                    (what, f"E{e} K{k} N2048 T{t} {kind}"),
                    functools.partial(grouped, what, e, k, 2048, t, kind),
                )
        yield Row(
            ("bmm", f"E{e} K{k} N2048 T{t}"),
            functools.partial(grouped, "bmm", e, k, 2048, t, "even"),
        )

    def moved(what: str, t: int, h: int, k: int) -> Values:
        x, out, y = normal(timer, t, h), normal(timer, t, h), normal(timer, t * k, h)
        ids = torch.randint(0, t, (t * k,), device=timer.device)
        wide, logits = ids[:, None].expand(-1, h), torch.randn(t, 64, device=timer.device)
        calls: dict[str, Call] = {
            "index_select": lambda: x.index_select(0, ids),
            "index_add": lambda: out.index_add_(0, ids, y),
            "scatter_add": lambda: out.scatter_add_(0, wide, y),
            "weight": lambda: y * y[:, :1],
            "topk": lambda: logits.topk(k, -1),
            "sort": lambda: ids.sort(stable=True),
        }
        return {"us": timer.us(calls[what], flush=False)}

    for t, h, k in product((1024, 16384), (2048, 7168), (2, 8), quick=timer.quick):
        for what in ("index_select", "index_add", "scatter_add", "weight"):
            yield Row((what, f"T{t} H{h} k{k}"), functools.partial(moved, what, t, h, k))
        if h == 2048:
            for what, said in (("topk", f"T{t} E64 k{k}"), ("sort", f"n{t * k}")):
                yield Row((what, said), functools.partial(moved, what, t, h, k))


PRODUCTS = ("dtype", "m", "n", "k")
ATTENTION = ("kind", "backend", "b", "h", "hk", "sq", "s", "d", "causal")
TABLES = (
    Table("memory", ("op", "bytes"), ("us", "gbps"), memory),
    Table("elementwise", ("op", "dtype", "bytes"), ("us",), elementwise),
    Table("rowops2", ("op", "rows", "cols"), ("us",), rowops),
    Table("gemm2", PRODUCTS, ("us", "tflops"), gemm),
    Table("attention2", ATTENTION, ("fwd_us", "bwd_us"), attention),
    Table("embedding", ("op", "dtype", "vocab", "hidden", "tokens"), ("us",), embedding),
    Table("optim", ("op", "dtype", "tensors", "elements"), ("us", "host_us"), optim),
    Table(
        "gemm_sustained",
        PRODUCTS,
        ("us", "first_us", "mid_us", "flushed_us", "mhz", "watts"),
        sustained,
    ),
    Table("moe", ("what", "arguments"), ("us",), moe),
)
