"""Compute and collectives at once, and layers that are cut among ranks."""

import re
from typing import Any, Final

from kernbench.calibration.lines import known
from kernbench.errors import UnsupportedError
from kernbench.validation.collectives import collective
from kernbench.validation.table import (
    COUNT,
    MEASURED,
    WORD,
    Row,
    Table,
    Times,
)
from kernbench.validation.timing import (
    FLUSH_BYTES,
    LEAD,
    Call,
    eager_us,
    new,
    replayed_us,
)

_PRODUCT: Final = re.compile(r"gemm (\d+)\^3 (bf16|fp16|fp32)")
_FLASH: Final = re.compile(r"flash2 h(\d+) s(\d+) d(\d+) (full|causal)")


def _compute(torch: Any, text: str) -> Call:
    if match := _PRODUCT.fullmatch(text):
        a, b = (new(torch, int(match[1]), int(match[1]), dtype=match[2]) for _ in range(2))
        return lambda: torch.matmul(a, b)
    if match := _FLASH.fullmatch(text):
        heads, tokens, width = (int(match[place]) for place in (1, 2, 3))
        q, k, v = (new(torch, 1, heads, tokens, width) for _ in range(3))
        flash, causal = torch.ops.aten._scaled_dot_product_flash_attention, match[4] == "causal"
        return lambda: flash(q, k, v, 0.0, causal)
    raise UnsupportedError(f"compute {text!r} is not known")


def _spans(torch: Any, compute: Call, comm: Call) -> tuple[float, float, float]:
    """Returns the microseconds of two things that begin at once, each, and until both are over.

    They are on streams of their own, and the host is ahead of both.
    """
    flush, side = new(torch, FLUSH_BYTES, dtype="int8"), torch.cuda.Stream()
    main = torch.cuda.current_stream()
    torch.cuda.synchronize()
    torch.distributed.barrier()
    begin, computed, sent = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    for _ in range(LEAD):
        flush.zero_()
    begin.record()
    side.wait_event(begin)
    compute()
    computed.record()
    with torch.cuda.stream(side):
        comm()
        sent.record()
    main.wait_event(sent)
    torch.cuda.synchronize()
    first, second = (1e3 * float(begin.elapsed_time(end)) for end in (computed, sent))
    return first, second, max(first, second)


def _repeated(call: Call, times: int) -> Call:
    def calls() -> None:
        for _ in range(times):
            call()

    return calls


def _nothing() -> None:
    pass


def _overlap2(torch: Any, row: Row) -> Times:
    compute = _repeated(_compute(torch, row["compute"]), int(row["compute_calls"]))
    comm = _repeated(collective(torch, row["comm"], int(row["bytes"])), int(row["comm_calls"]))
    compute()
    comm()
    beside = _spans(torch, compute, comm)
    return {
        "compute_us": _spans(torch, compute, _nothing)[0],
        "comm_us": _spans(torch, _nothing, comm)[1],
        "compute_beside_us": beside[0],
        "comm_beside_us": beside[1],
        "both_us": beside[2],
    }


def _overlap(torch: Any, row: Row) -> Times:
    compute = _repeated(_compute(torch, "gemm 8192^3 bf16"), 4)
    comm = collective(torch, "all_reduce", 256 << 20)
    ways = {
        "gemm x4 8192^3": (compute, _nothing),
        "all_reduce 256MiB": (_nothing, comm),
        "both": (compute, comm),
    }
    chosen = known(ways, row["what"], "what")
    compute()
    comm()
    return {"us": _spans(torch, *chosen)[2]}


_GRAPHS_UP_TO: Final = 1024
"""Tokens up to which `tp_mlp.csv` was replayed from graphs."""


def _tp_mlp(torch: Any, row: Row) -> Times:
    n, hidden, ffn, tokens = (int(row[name]) for name in ("n", "hidden", "ffn", "tokens"))
    dist, functional = torch.distributed, torch.nn.functional
    sequence = known({"mlp": False, "mlp_sp": True}, row["kind"], "kind")
    up, down = new(torch, ffn // n, hidden), new(torch, hidden, ffn // n)
    whole, part = new(torch, tokens, hidden), new(torch, max(tokens // n, 1), hidden)

    def compute() -> Any:
        return functional.linear(functional.gelu(functional.linear(whole, up)), down)

    def call() -> None:
        if sequence:
            dist.all_gather_into_tensor(whole, part)
            dist.reduce_scatter_tensor(part, compute())
        else:
            dist.all_reduce(compute())

    timed = replayed_us if tokens <= _GRAPHS_UP_TO else eager_us
    dist.barrier()
    found = {"us": timed(torch, call)}
    return {**found, "compute_us": timed(torch, compute)} if row["compute_us"] else found


class Stack:
    """Layers as Llama has them, cut among the ranks: heads, and columns of the feed-forward.

    Args:
        torch: Either torch.
        row: Its sizes.
        collectives: Whether ranks exchange anything; if not, each computes its part alone.
    """

    def __init__(self, torch: Any, row: Row, *, collectives: bool = True) -> None:
        self.torch, self.dist = torch, torch.distributed
        n = self.dist.get_world_size() if int(row["n"]) > 1 else 1
        hidden, heads, groups, ffn = (int(row[name]) for name in ("hidden", "heads", "kv", "ffn"))
        self.ranks, self.width = n, hidden // heads
        sizes = [(hidden,), (heads // n * self.width, hidden)]
        sizes += [(max(groups // n, 1) * self.width, hidden)] * 2
        sizes += [(hidden, heads // n * self.width), (hidden,)]
        sizes += [(ffn // n, hidden)] * 2 + [(hidden, ffn // n)]
        self.layers = [
            [new(torch, *size, grad=True) for size in sizes] for _ in range(int(row["layers"]))
        ]
        self.x = new(torch, 1, int(row["seq"]), hidden, grad=True)
        stack = self

        class Copied(torch.autograd.Function):  # type: ignore[misc]
            """Passes on; its gradient is the sum of all ranks'."""

            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x.view_as(x)

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                return stack.reduced(grad)

        class Summed(torch.autograd.Function):  # type: ignore[misc]
            """Is the sum of all ranks'; passes its gradient on."""

            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return stack.reduced(x)

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                return grad

        exchange = collectives and n > 1
        self.copied: Any = Copied.apply if exchange else _same
        self.summed: Any = Summed.apply if exchange else _same

    def reduced(self, x: Any) -> Any:
        """Returns the sum of all ranks' tensors."""
        x = x.contiguous()
        self.dist.all_reduce(x)
        return x

    def forward(self) -> Any:
        """Returns the output of the last layer."""
        functional, x = self.torch.nn.functional, self.x
        for first, q, k, v, out, second, gate, up, down in self.layers:
            h = self.copied(functional.rms_norm(x, (x.shape[-1],), first))
            cut = [
                functional.linear(h, each).unflatten(-1, (-1, self.width)).transpose(1, 2)
                for each in (q, k, v)
            ]
            seen = functional.scaled_dot_product_attention(
                *cut, is_causal=True, enable_gqa=cut[0].shape[1] != cut[1].shape[1]
            )
            x = x + self.summed(functional.linear(seen.transpose(1, 2).flatten(2), out))
            h = self.copied(functional.rms_norm(x, (x.shape[-1],), second))
            h = functional.silu(functional.linear(h, gate)) * functional.linear(h, up)
            x = x + self.summed(functional.linear(h, down))
        return x

    def inference(self) -> None:
        """Runs forward, nothing kept for a gradient."""
        with self.torch.no_grad():
            self.forward()

    def training(self) -> None:
        """Runs forward and backward; each call makes the gradients anew."""
        out = self.forward()
        out.backward(self.torch.ones_like(out))
        for leaf in (self.x, *(each for layer in self.layers for each in layer)):
            leaf.grad = None


def _same(x: Any) -> Any:
    return x


def _model(torch: Any, row: Row) -> Times:
    stack = Stack(torch, row)
    return {
        "fwd_us": eager_us(torch, stack.inference, 3),
        "fwdbwd_us": eager_us(torch, stack.training, 3),
    }


def _n(row: Row) -> int:
    return int(row["n"])


TABLES: Final = (
    Table(
        name="tp_mlp",
        about="linear, gelu, linear over n ranks, with and without communication",
        columns={
            "kind": WORD,
            **dict.fromkeys(("n", "hidden", "ffn", "tokens"), COUNT),
            "us": MEASURED,
            "compute_us": MEASURED,
        },
        program=_tp_mlp,
        ranks=_n,
    ),
    Table(
        name="overlap",
        about="4 products and an all-reduce among 8, alone and at once",
        columns={"what": WORD, "us": MEASURED},
        program=_overlap,
        ranks=lambda row: 8,
    ),
    Table(
        name="overlap2",
        about="compute and collectives, alone and at once",
        columns={
            "compute": WORD,
            "compute_calls": COUNT,
            "comm": WORD,
            **dict.fromkeys(("n", "bytes", "comm_calls"), COUNT),
            **dict.fromkeys(
                ("compute_us", "comm_us", "compute_beside_us", "comm_beside_us", "both_us"),
                MEASURED,
            ),
        },
        program=_overlap2,
        ranks=_n,
    ),
    Table(
        name="model",
        about="layers as Llama has them over n ranks, eager",
        columns={
            "kind": WORD,
            **dict.fromkeys(("hidden", "heads", "kv", "ffn", "layers", "seq", "n"), COUNT),
            "fwd_us": MEASURED,
            "fwdbwd_us": MEASURED,
        },
        program=_model,
        ranks=_n,
    ),
)
