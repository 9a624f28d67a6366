"""Faults planted in the code are caught by the comparison: it can fail."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cp_cases import Case, attend, case, compare, run
from cp_configs import TWINS

import kernbench.torch as torch
from kernbench import extend
from kernbench.cp import gathered, kernels, ring
from kernbench.testing import Kernbench

SMALL = replace(TWINS["fused_cp_4_2_s"], name="mutant", s=32, heads=4, groups=2, max_logit=True)
Plant = Callable[[pytest.MonkeyPatch], None]


def check(kernbench: Kernbench, each: Case) -> None:
    found, _ = run(kernbench, [each])
    compare(each, found[0])


def drop_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    merge, calls = kernels.merge, iter(range(1 << 30))

    def mutant(out: Any, lse: Any, *others: Any) -> Any:
        return (out, lse) if next(calls) == 2 else merge(out, lse, *others)

    monkeypatch.setattr(kernels, "merge", mutant)


def swap_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys that came in step 1 are taken for those of step 2, and the other way round."""
    patterns = ring.patterns

    def mutant(given: Any, owner: int) -> Any:
        step = (given.outer.rank - owner) % given.outer.size
        step = {1: 2, 2: 1}.get(step, step)
        return patterns(given, (given.outer.rank - step) % given.outer.size)

    monkeypatch.setattr(ring, "patterns", mutant)


def _masked(change: Callable[[extend.Mask], extend.Mask]) -> Plant:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (ring, gathered):
            patterns: Any = module.patterns

            def mutant(given: Any, which: int, patterns: Any = patterns) -> Any:
                return patterns(given._replace(mask=change(given.mask)), which)

            monkeypatch.setattr(module, "patterns", mutant)

    return plant


def forget_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(out: Any, lse: Any, sink: Any, dtype: Any, dim: int) -> Any:
        del sink, dim
        return out.to(dtype), lse

    monkeypatch.setattr(kernels, "add_sink", mutant)
    attention: Any = extend.Attention

    def without(*operands: Any) -> Any:
        made = attention(*operands)
        if made.sink is None:
            return made
        # A score of -inf adds nothing.
        return made._replace(sink=torch.full_like(made.sink, float("-inf")))

    monkeypatch.setattr(extend, "Attention", without)


def forget_a_rank_of_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = kernels.sink_gradient
    monkeypatch.setattr(kernels, "sink_gradient", lambda *given: gradient(*given) * 0.5)


SHIFTED = {
    "to the right": _masked(lambda mask: mask._replace(right=1)),
    "to the left": _masked(lambda mask: mask._replace(right=-1)),
}
MUTANTS: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "drop a merge": (drop_a_merge, ("p2p", "a2a+p2p")),
    "swap two ring steps": (swap_two_steps, ("p2p", "a2a+p2p")),
    **{
        f"mask shifted {where}": (plant, ("p2p", "all_gather", "a2a", "a2a+p2p"))
        for where, plant in SHIFTED.items()
    },
    "forget the sink": (forget_the_sink, ("p2p", "all_gather", "a2a", "a2a+p2p")),
    "forget the sink of some ranks": (forget_a_rank_of_the_sink, ("p2p", "a2a+p2p")),
}


def ranks(scheme: str) -> tuple[int, int]:
    """Returns how many ranks a scheme has here, and how many of them exchange heads."""
    return {"a2a": (2, 2), "a2a+p2p": (6, 2)}.get(scheme, (3, 1))


@pytest.mark.parametrize(
    ("name", "scheme"), [(name, scheme) for name, (_, every) in MUTANTS.items() for scheme in every]
)
@pytest.mark.parametrize("layout", [pytest.param("bshd", marks=pytest.mark.slow), "thd"])
def test_a_planted_fault_is_caught(
    kernbench: Kernbench, monkeypatch: pytest.MonkeyPatch, name: str, scheme: str, layout: str
) -> None:
    count, inner = ranks(scheme)
    config = replace(SMALL, s=48 if count > 2 else 32)
    lengths = (29, 17) if layout == "thd" else None
    each = case(config, layout, scheme, "float64", count, inner=inner, lengths=lengths)
    check(kernbench, each)
    plant, _ = MUTANTS[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=str(config.name)):
        check(kernbench, each)


@pytest.mark.parametrize("name", ["dq", "dk", "dv", "dsink", "max_logit", "out"])
def test_every_result_is_compared(kernbench: Kernbench, name: str) -> None:
    """One number that is off, in one result of one rank."""
    each = case(replace(SMALL), "thd", "p2p", lengths=(29, 17))

    def spoilt(each: Case, rank: int, groups: Any) -> dict[str, Any]:
        found = attend(each, rank, groups)
        if rank == 1:
            found[name] = found[name].copy()
            found[name].reshape(-1)[0] += 1e-9
        return found

    found, _ = run(kernbench, [each], spoilt)
    with pytest.raises(AssertionError, match=rf"{name} of rank 1"):
        compare(each, found[0])
