"""Routings by name: balanced, the workloads of a public benchmark, and a law of popularity."""

from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Final

import numpy as np

from kernbench.caches import cached
from kernbench.routing.choices import Array, Asked, Choices, Routing, RoutingError
from kernbench.routing.files import read_routing

WORKLOADS: Final = {
    "W0": "W0_balanced",
    "W1": "W1_hot_expert_set",
    "W2": "W2_hot_rank",
    "W3": "W3_spread_hot_experts",
    "W4": "W4_source_ragged",
    "W5": "W5_zero_expert_rank",
    "W6": "W6_rotating_hotspot",
    "W7": "W7_burst",
}
"""Workloads of pull request 7488 of Megatron-LM, `benchmarks/moe/token_imbalance`."""

NAMES: Final = ("balanced", *WORKLOADS, "zipf:S")
"""What a routing may be called, beside the path of a file."""

SEED: Final = 1234
"""The default seed of that benchmark."""


def routing_of(name: str) -> Routing:
    """Returns a routing by its name, or from a file.

    Args:
        name: One of `NAMES`, with a number above 0 for S; else the path of a file.

    Raises:
        RoutingError: If there is no such routing, or the file is not well formed.
    """
    if name == "balanced":
        return _Workload(name, "W0")
    if name in WORKLOADS:
        return _Workload(name, name)
    kind, _, number = name.partition(":")
    if kind == "zipf":
        try:
            exponent = float(number)
        except ValueError:
            exponent = 0.0
        if not (isfinite(exponent) and exponent > 0):
            raise RoutingError(f"routing {name!r}: expected zipf:S with a number S above 0")
        return _Zipf(name, exponent)
    if not Path(name).is_file():
        raise RoutingError(
            f"no routing is called {name!r}, and there is no such file",
            [f"expected {', '.join(NAMES)}, or a file"],
        )
    return read_routing(name)


class _Workload(Routing):
    """One that depends on the step alone: all ranks and layers choose the same."""

    def __init__(self, name: str, workload: str) -> None:
        super().__init__(name)
        self._workload = workload

    def choices(self, asked: Asked) -> Choices:
        """Returns the choices of the workload in the step."""
        return _chosen(self._workload, asked.experts, asked.topk, asked.tokens, asked.step)


class _Zipf(Routing):
    """Expert number e, from 1, is as popular as `1 / e**S`; the experts of a token differ."""

    def __init__(self, name: str, exponent: float) -> None:
        super().__init__(name)
        self._exponent = exponent

    def choices(self, asked: Asked) -> Choices:
        """Returns choices that differ by step, layer and rank."""
        return _popular(self._exponent, asked)


@cached("routing.workloads")
def _chosen(workload: str, experts: int, topk: int, tokens: int, step: int) -> Choices:
    """Returns the choices of a workload.

    They are those of the benchmark to the row: it draws with `torch.randperm` of a generator whose
    seed is a hash of the workload, the seed and the step. That takes words of a Mersenne Twister in
    order; a permutation of n takes n - 1, and its first k places are known after k exchanges. The
    benchmark's weights of choices are left out: a router computes its own, and learns from them.
    """
    _check(topk, experts)
    key = f"{WORKLOADS[workload]}|{SEED}|{step}"
    twister = np.random.MT19937()
    twister._legacy_seeding(int(sha256(key.encode()).hexdigest()[:8], 16))
    every, ids = np.arange(experts), np.empty((tokens, topk), np.int64)
    if workload == "W0":
        ids[:] = (np.arange(tokens)[:, None] * topk + np.arange(topk)) % experts
    else:
        hot, often = _hot_of(workload, experts, topk, step)
        rows = np.arange(tokens)
        from_hot = rows % often[0] >= 1 if often[1] else rows % often[0] == 0
        sizes = np.where(from_hot, len(hot), experts)
        starts = np.concatenate([[0], np.cumsum(sizes - 1)])
        words = twister.random_raw(int(starts[-1]))
        for chosen, pool in ((from_hot, hot), (~from_hot, every)):
            which = np.flatnonzero(chosen)
            taken = starts[which, None] + np.arange(min(topk, len(pool) - 1))
            ids[which] = np.sort(pool[_first(words[taken], len(pool), topk)], axis=1)
    return Choices(ids, None, experts)


def _hot_of(workload: str, experts: int, topk: int, step: int) -> tuple[Array, tuple[int, bool]]:
    """Returns the hot experts of a workload, and which tokens choose among them.

    Tokens whose number is no multiple of the second do if it comes with True, else those whose
    number is one.
    """
    width = max(topk, experts // 4)
    first, usual = np.arange(width) % experts, (4, True)
    if workload == "W3":
        apart = np.unique(2 * np.arange(max(topk, experts // 2)) % experts)
        return (apart if len(apart) >= topk else np.arange(experts)), usual
    if workload == "W4" or (workload == "W7" and step % 4 != 3):
        return np.arange(experts), (1, False)
    if workload == "W5":
        live = np.arange(experts // 2, experts)
        _check(topk, len(live))
        return live, (1, False)
    if workload == "W6":
        return (step // 3 * width + first) % experts, usual
    return first, (2, False) if workload == "W7" else usual


def _first(words: Array, size: int, topk: int) -> Array:
    """Returns the first places of permutations of `size`, `[rows, topk]`, by Fisher and Yates.

    Args:
        words: Random words, a row for each permutation.
        size: Of what is permuted.
        topk: How many places.
    """
    found = np.broadcast_to(np.arange(size), (len(words), size)).copy()
    rows = np.arange(len(words))
    for place in range(min(topk, size - 1)):
        other = place + (words[:, place] % np.uint64(size - place)).astype(np.int64)
        found[rows, place], found[rows, other] = found[rows, other], found[rows, place]
    return found[:, :topk]


@cached("routing.workloads")
def _popular(exponent: float, asked: Asked) -> Choices:
    """Returns choices without replacement, by the largest of `log(popularity) + Gumbel noise`."""
    _check(asked.topk, asked.experts)
    key = f"zipf|{exponent!r}|{asked.step}|{asked.layer}|{asked.rank}"
    drawn = np.random.Generator(np.random.PCG64(int(sha256(key.encode()).hexdigest()[:16], 16)))
    noise = -np.log(-np.log(drawn.random((asked.tokens, asked.experts)) * (1 - 2e-16) + 1e-16))
    scores = noise - exponent * np.log(np.arange(1, asked.experts + 1))
    found = np.argpartition(-scores, asked.topk - 1, axis=1)[:, : asked.topk]
    return Choices(np.sort(found, axis=1), None, asked.experts)


def _check(topk: int, experts: int) -> None:
    if topk > experts:
        raise RoutingError(f"topk {topk} of {experts} experts: a token chooses each once at most")
