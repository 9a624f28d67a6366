"""One configuration in one layout by one scheme: its data, what ranks are given, what they find."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Final
from zlib import crc32

import numpy as np
from cp_configs import BATCH, Config
from cp_reference import Answer, Array, Problem, rows_of, solve, zigzag

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import cp
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench

SEED: Final = 1234
LAYOUTS: Final = ("bshd", "sbhd", "thd")
SCHEMES: Final = ("p2p", "all_gather", "a2a", "a2a+p2p")
DTYPES: Final = ("float64", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Case:
    """What is run.

    Attributes:
        config: What is computed.
        layout: Of the tensors.
        scheme: How ranks share the sequences.
        dtype: Of the tensors.
        inner: Ranks that exchange heads for tokens; 1 without.
        ring: Ranks that share the keys.
        lengths: Tokens of each packed sequence; None for those of the data recipe.
    """

    config: Config
    layout: str
    scheme: str
    dtype: str
    inner: int
    ring: int
    lengths: tuple[int, ...] | None = None

    @property
    def world(self) -> int:
        return self.inner * self.ring

    @property
    def packed(self) -> bool:
        return self.layout == "thd"

    def __str__(self) -> str:
        ranks = f"{self.inner}x{self.ring}"
        return f"{self.config.name}-{self.layout}-{self.scheme}-{ranks}-{self.dtype}"


def case(
    config: Config,
    layout: str,
    scheme: str,
    dtype: str = "float64",
    ranks: int = 2,
    *,
    inner: int = 2,
    lengths: tuple[int, ...] | None = None,
) -> Case:
    """Returns a case of so many ranks; with `a2a+p2p`, `inner` of them exchange heads."""
    inner = {"a2a": ranks, "a2a+p2p": inner}.get(scheme, 1)
    return Case(config, layout, scheme, dtype, inner, ranks // inner, lengths)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens without padding, sequence behind sequence, and what belongs to them.

    All values are multiples of 1/128, so that every type has them exactly and one reference serves
    all types.
    """

    lengths: tuple[int, ...]
    q: Array
    k: Array
    v: Array
    dout: Array
    bias: Array | None
    sink: Array | None


@cache
def draw(config: Config, packed: bool, lengths: tuple[int, ...] | None = None) -> Drawn:
    """Returns the data of the recipe: normal numbers within -1 and 1, lengths between 0 and s."""
    rng = np.random.default_rng([SEED, crc32(config.name.encode())])

    def numbers(*shape: int) -> Array:
        return np.round(np.clip(rng.normal(size=shape), -1, 1) * 128) / 128

    if lengths is None:
        drawn = rng.integers(0, config.s + 1, BATCH) if packed else [config.s] * BATCH
        lengths = tuple(int(n) for n in drawn)
    t, sizes = sum(lengths), {"1": 1, "b": BATCH, "h": config.heads, "s": config.s}
    return Drawn(
        lengths,
        numbers(t, config.heads, config.width),
        numbers(t, config.groups, config.width),
        numbers(t, config.groups, config.value_width),
        numbers(t, config.heads, config.value_width),
        numbers(*(sizes[each] for each in config.bias)) if config.bias else None,
        {
            "vanilla": None,
            "off-by-one": np.zeros(config.heads),
            "learnable": numbers(config.heads),
        }[config.softmax],
    )


@cache
def expected(config: Config, packed: bool, lengths: tuple[int, ...] | None = None) -> Answer:
    """Returns what the reference finds, of the tokens without padding."""
    drawn = draw(config, packed, lengths)
    rows = rows_of([*drawn.lengths], [*drawn.lengths])
    return solve(
        Problem(
            drawn.q,
            drawn.k,
            drawn.v,
            drawn.dout,
            rows,
            rows,
            config.sees,
            config.width**-0.5,
            drawn.bias,
            drawn.sink,
        )
    )


@dataclass(frozen=True, slots=True)
class Share:
    """Which tokens the rows of a rank are.

    Attributes:
        token: Index of each row's token among all, -1 for padding.
        chunks: Rows of first and of second chunks of all sequences.
    """

    token: Array
    chunks: tuple[Array, Array]


@cache
def allocated(lengths: Sequence[int], world: int, packed: bool) -> tuple[int, ...]:
    """Returns the rows of each sequence: rounded up to twice the ranks."""
    return tuple(-(-n // (2 * world)) * 2 * world if packed else n for n in lengths)


@cache
def share(lengths: tuple[int, ...], world: int, rank: int, packed: bool) -> Share:
    """Returns which tokens a rank has, in the order in which it has them."""
    rooms = allocated(lengths, world, packed)
    token: list[int] = []
    chunks: tuple[list[int], list[int]] = ([], [])
    for first, n, room in zip(accumulate((0, *lengths)), lengths, rooms, strict=False):
        mine = zigzag(room, world, rank)
        rows = range(len(token), len(token) + len(mine))
        chunks[0].extend(rows[: len(mine) // 2])
        chunks[1].extend(rows[len(mine) // 2 :])
        token += [first + at if at < n else -1 for at in mine]
    return Share(np.array(token, int), (np.array(chunks[0], int), np.array(chunks[1], int)))


Result = Mapping[str, Array]
Work = Callable[[Case, int, Any], Mapping[str, Any]]


def groups_of(each: Case) -> Any:
    """Makes the groups of a case: of all ranks, or of inner ranks and of rings; collective."""
    if each.scheme != "a2a+p2p":
        return dist.new_group([*range(each.world)])
    rank, a, p = dist.get_rank(), each.inner, each.ring
    inner = [dist.new_group([i * a + j for j in range(a)]) for i in range(p)]
    rings = [dist.new_group([i * a + j for i in range(p)]) for j in range(a)]
    return [inner[rank // a], rings[rank % a]]


def tensor(x: Array, dtype: str, *, leaf: bool = True) -> torch.Tensor:
    """Returns numbers on the rank's device."""
    return torch.tensor(x, dtype=getattr(torch, dtype), device="cuda", requires_grad=leaf)


def arranged(x: Array, layout: str) -> Array:
    """Returns rows `[rows, heads, width]` of whole sequences or of packed ones in a layout."""
    if layout == "thd":
        return x
    dense = x.reshape(BATCH, -1, *x.shape[1:])
    return dense if layout == "bshd" else np.ascontiguousarray(dense.swapaxes(0, 1))


def rows(x: Array, layout: str) -> Array:
    """Returns what `arranged` was given."""
    if layout == "thd":
        return x
    return (x if layout == "bshd" else x.swapaxes(0, 1)).reshape(-1, *x.shape[2:])


def planted(x: Array, token: Array) -> Array:
    """Returns the rows of a rank, with NaN in rows of padding."""
    if not len(x):
        return np.full((len(token), *x.shape[1:]), np.nan)
    return np.where((token < 0)[:, None, None], np.nan, x[token])


def operands(each: Case, rank: int) -> dict[str, torch.Tensor]:
    """Returns q, k, v and dout of a rank."""
    drawn = draw(each.config, each.packed, each.lengths)
    token = share(drawn.lengths, each.world, rank, each.packed).token
    return {
        name: tensor(
            arranged(planted(getattr(drawn, name), token), each.layout),
            each.dtype,
            leaf=name != "dout",
        )
        for name in ("q", "k", "v", "dout")
    }


def options(each: Case, rank: int) -> dict[str, Any]:
    """Returns the keywords of `cp_attention` that say what is computed, but groups and scheme."""
    config, drawn = each.config, draw(each.config, each.packed, each.lengths)
    found: dict[str, Any] = {
        "qkv_format": each.layout,
        "attn_mask_type": config.mask,
        "window_size": None if config.window == (-1, -1) else config.window,
        "softmax_type": config.softmax,
        "return_max_logit": config.max_logit,
    }
    if each.packed:
        found["attn_mask_type"] = "padding_causal" if config.mask == "causal" else "padding"
        rooms = allocated(drawn.lengths, each.world, True)
        for of in ("q", "kv"):
            found[f"cu_seqlens_{of}"] = [*accumulate((0, *drawn.lengths))]
            found[f"cu_seqlens_{of}_padded"] = [*accumulate((0, *rooms))]
    wide = "float64" if each.dtype == "float64" else "float32"
    if config.softmax == "learnable":
        assert drawn.sink is not None
        found["softmax_offset"] = tensor(drawn.sink, wide)
    return found


def bias_of(each: Case, rank: int) -> torch.Tensor | None:
    """Returns a rank's part of a bias: its queries' rows, and all keys."""
    bias = draw(each.config, each.packed).bias
    if bias is None:
        return None
    if bias.shape[2] > 1:
        bias = bias[:, :, zigzag(each.config.s, each.world, rank)]
    return tensor(bias, each.dtype)


def compute(each: Case, rank: int, groups: Any, **changed: Any) -> dict[str, Any]:
    """Runs a case on a rank, forward and backward, and returns what it finds, and its plan."""
    given, keywords = operands(each, rank), options(each, rank)
    bias = bias_of(each, rank)
    if bias is not None:
        keywords["core_attention_bias"] = bias
    found: Any = cp.cp_attention(
        given["q"],
        given["k"],
        given["v"],
        cp_group=groups,
        cp_comm_type=each.scheme,
        return_plan=True,
        **{**keywords, **changed},
    )
    out, *more = found
    results = {"out": out, "plan": more.pop()}
    if each.config.max_logit:
        (results["max_logit"],) = more
    if each.config.backward:
        out.backward(given["dout"])
        results.update({f"d{name}": given[name].grad for name in ("q", "k", "v")})
        if bias is not None:
            results["dbias"] = bias.grad
        if each.config.softmax == "learnable":
            results["dsink"] = keywords["softmax_offset"].grad
    return results


def attend(each: Case, rank: int, groups: Any, **changed: Any) -> dict[str, Array]:
    """Runs a case on a rank, forward and backward, and returns the numbers that it finds."""
    found = compute(each, rank, groups, **changed)
    lengths = draw(each.config, each.packed, each.lengths).lengths
    padded = allocated(lengths, each.world, each.packed) != lengths
    assert found["plan"].padding_active is padded, each
    return {name: numbers(x) for name, x in found.items() if name != "plan" and x is not None}


def numbers(x: torch.Tensor | None) -> Array:
    """Returns a tensor's values as float64."""
    assert x is not None
    found: Array = x.detach().to(torch.float64).cpu().numpy()
    return found


def run(
    kernbench: Kernbench, cases: Sequence[Case], work: Work = attend, **dials: Any
) -> tuple[list[list[Result]], RuntimeContext]:
    """Runs cases of one number of ranks, one behind the other on one machine.

    Returns:
        What each rank of each case finds; and the machine.
    """
    (world,) = {each.world for each in cases}
    found: list[list[Any]] = [[None] * world for _ in cases]

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        made: dict[tuple[bool, int], Any] = {}
        for at, each in enumerate(cases):
            kind = (each.scheme == "a2a+p2p", each.inner if each.scheme == "a2a+p2p" else 1)
            if kind not in made:
                made[kind] = groups_of(each)
            found[at][rank] = work(each, rank, made[kind])
        dist.destroy_process_group()

    context = kernbench.spawn(worker, nprocs=world, **dials)
    return found, context


TOLERANCES: Final = {"float64": 1e-12, "float32": 1e-5, "float16": 5e-3, "bfloat16": 2.5e-2}


def tolerance(each: Case) -> float:
    """Returns how far values may be off, both absolutely and of the value."""
    if each.dtype == "bfloat16" and each.config.heads != each.config.groups:
        return 3.5e-2
    return TOLERANCES[each.dtype]


def compare(each: Case, found: Sequence[Result]) -> None:
    """Compares what ranks found with the reference: rows of padding, then each chunk by itself.

    Raises:
        AssertionError: If a value is too far off, or a row of padding is not exactly 0.
    """
    right = expected(each.config, each.packed, each.lengths)
    lengths = draw(each.config, each.packed, each.lengths).lengths
    limit = tolerance(each)
    if each.dtype == "float64":
        limit *= max(1, each.config.s / 256)

    def close(name: str, rank: int, a: Array, b: Array) -> None:
        assert a.shape == b.shape, f"{each}: {name} of rank {rank}: {a.shape}, not {b.shape}"
        assert np.isfinite(a).all() or not np.isfinite(b).all(), f"{each}: {name} of rank {rank}"
        message = f"{each}: {name} of rank {rank}"
        np.testing.assert_allclose(a, b, rtol=limit, atol=limit, err_msg=message)

    wanted = ["out", *(["dq", "dk", "dv"] if each.config.backward else [])]
    more = {
        "max_logit": each.config.max_logit,
        "dsink": each.config.backward and each.config.softmax == "learnable",
        "dbias": each.config.backward and bool(each.config.bias),
    }
    names = {*wanted, *(name for name, there in more.items() if there)}
    for rank, mine in enumerate(found):
        missing = names ^ mine.keys()
        assert not missing, f"{each}: {sorted(missing)} of rank {rank}"
        part = share(lengths, each.world, rank, each.packed)
        for name in wanted:
            values = rows(mine[name], each.layout)
            assert not values[part.token < 0].any(), f"{each}: padding of {name} of rank {rank}"
            for at, chunk in enumerate(part.chunks):
                real = chunk[part.token[chunk] >= 0]
                whole = getattr(right, name)[part.token[real]]
                close(f"chunk {at} of {name}", rank, values[real], whole)
        if "max_logit" in mine:
            close("max_logit", rank, mine["max_logit"], right.max_logit)
        if "dsink" in mine:
            assert right.dsink is not None
            close("dsink", rank, mine["dsink"], right.dsink)
        if "dbias" in mine:
            assert right.dbias is not None
            of_bias = right.dbias
            if of_bias.shape[2] > 1:
                of_bias = of_bias[:, :, zigzag(each.config.s, each.world, rank)]
            close("dbias", rank, mine["dbias"], of_bias)
