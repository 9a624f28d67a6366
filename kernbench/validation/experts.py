"""What layers of experts are made of: products of groups, permutations, weighted sums."""

import re
from typing import Any, Final

from kernbench.calibration.lines import known
from kernbench.errors import UnsupportedError
from kernbench.validation.table import MEASURED, WORD, Row, Table, Times
from kernbench.validation.timing import Call, eager_us, new

_GROUPS: Final = re.compile(r"E(\d+) K(\d+) N(\d+) T(\d+)(?: (\w+))?")
_TOKENS: Final = re.compile(r"T(\d+) (H|E)(\d+) k(\d+)")
_COUNT: Final = re.compile(r"n(\d+)")
_ROWS: Final = re.compile(r"T(\d+)")
_EXPERTS: Final = 64
"""Experts of the rows that do not say how many, as in the script that measured them."""


def rows_of(skew: str, experts: int, tokens: int) -> list[int]:
    """Returns the rows of each group; the first takes what rounding leaves."""
    weights = {
        "even": [1.0] * experts,
        "one": [1.0, *[0.0] * (experts - 1)],
        "zipf": [1 / place for place in range(1, experts + 1)],
        "half_empty": [1.0, 0.0] * (experts // 2),
    }
    shares = known(weights, skew, "skew")
    counts = [int(share / sum(shares) * tokens) for share in shares]
    counts[0] += tokens - sum(counts)
    return counts


def _products(torch: Any, what: str, match: re.Match[str]) -> Call:
    experts, k, n, tokens = (int(match[place]) for place in range(1, 5))
    x, weights = new(torch, tokens, k), new(torch, experts, k, n)
    if what == "bmm":
        wide = x.view(experts, -1, k) if tokens % experts == 0 else x[:experts].unsqueeze(1)
        return lambda: torch.bmm(wide, weights)
    counts = rows_of(match[5] or "even", experts, tokens)
    if what == "loop_mm":
        some = [
            (part, weights[place]) for place, part in enumerate(x.split(counts)) if part.shape[0]
        ]
        return lambda: [part @ weight for part, weight in some]
    ends = [sum(counts[: place + 1]) for place in range(experts)]
    grouped, offsets = torch._grouped_mm, torch.tensor(ends, dtype=torch.int32, device="cuda")
    return lambda: grouped(x, weights, offs=offsets)


def _moves(torch: Any, what: str, match: re.Match[str]) -> Call:
    tokens, width, k = int(match[1]), int(match[3]), int(match[4])
    if what == "topk":
        scores = new(torch, tokens, width, dtype="fp32")
        return lambda: scores.topk(k, -1)
    x, y, weight = (
        new(torch, rows, columns)
        for rows, columns in ((tokens, width), (tokens * k, width), (tokens * k, 1))
    )
    places = new(torch, tokens * k, dtype="int64")
    calls: dict[str, Call] = {
        "index_select": lambda: x.index_select(0, places),
        "index_add": lambda: x.index_add_(0, places, y),
        "scatter_add": lambda: x.scatter_add_(0, places.unsqueeze(1).expand(-1, width), y),
        "weight": lambda: y * weight,
    }
    return known(calls, what, "what")


def _counts(torch: Any, what: str, match: re.Match[str]) -> Call:
    ids = new(torch, int(match[1]), dtype="int64")
    calls: dict[str, Call] = {
        "sort": lambda: ids.sort(stable=True),
        "bincount": lambda: torch.bincount(ids, minlength=_EXPERTS),
        "one_hot_sum": lambda: torch.histc(ids.float(), _EXPERTS, 0, _EXPERTS),
    }
    return known(calls, what, "what")


def _moe(torch: Any, row: Row) -> Times:
    """One call, the device idle before, as the script of the table calls it."""
    what, text = row["what"], row["arguments"]
    if what in {"grouped_mm", "loop_mm", "bmm"} and (match := _GROUPS.fullmatch(text)):
        return {"us": eager_us(torch, _products(torch, what, match), 1)}
    if match := _TOKENS.fullmatch(text):
        return {"us": eager_us(torch, _moves(torch, what, match), 1)}
    if match := _COUNT.fullmatch(text):
        return {"us": eager_us(torch, _counts(torch, what, match), 1)}
    if what in {"nonzero", "item"}:
        rows = _ROWS.fullmatch(text)
        scores = new(torch, int(rows[1]) if rows else 1024, _EXPERTS, dtype="fp32")

        def call() -> None:
            if what == "item":
                scores[0, 0].item()
            else:
                (scores > 1).nonzero()

        return {"us": eager_us(torch, call, 1)}
    raise UnsupportedError(f"what {what!r} with {text!r} is not known")


MOE: Final = Table(
    name="moe",
    about="parts of layers of experts, bf16, eager, one call",
    columns={"what": WORD, "arguments": WORD, "us": MEASURED},
    program=_moe,
)
