"""Arguments of a wrong kind to every operation: refused with a sentence, where PyTorch refuses."""

import re
from random import Random
from typing import Any, Final

import differential_layers  # noqa: F401 - adds rows
import differential_networks  # noqa: F401 - adds rows
import differential_shapes  # noqa: F401 - adds rows
import pytest
from differential_cases import Case, Side
from differential_rows import ROWS
from wrong_arguments import altered

import kernbench.torch
from kernbench.errors import KernbenchError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.data_executor import EffectError
from kernbench.sim_engine.engine import GraphEngine

DRAWS: Final = 4
"""Calls a row against PyTorch, each with every argument replaced in turn."""

SAMPLED: Final = 16
"""One out of how many altered calls the default suite makes."""

OF_PYTORCH: Final = (AttributeError, TypeError)
"""What PyTorch raises for an argument of a wrong kind."""

TAKEN: Final = re.compile(
    r"\b(argsort|prod|var|std|flip|permute|reshape|max|min|squeeze|arange|bernoulli|eye|randint|scatter_?|normal|sum|mean|movedim|"
    r"logsumexp|clamp_?|repeat_interleave|roll|round_?|nn\.CrossEntropyLoss|nn\.Embedding|nn\.Linear)$"
)
"""Operations that take None for an argument that has a default, a bool for a dimension whose place
a bool may have, or one integer for several; PyTorch does not."""


BOOL_FOR_INTEGER: Final = re.compile(r"torch\.nn\.[A-Z]\w+: .* = True")
"""Modules keep a bool as the integer that it is to Python; only PyTorch's operation refuses it."""


def _raised(side: Side, case: Case) -> Exception | None:
    try:
        side.call(case)
    except Exception as error:
        return error
    return None


def _own_words(error: Exception | None) -> bool:
    """Returns whether an error is a sentence that was raised by the call itself."""
    return isinstance(error, KernbenchError) and not isinstance(error, EffectError)


def _calls(name: str, draws: int) -> list[tuple[str, Case]]:
    rngs = [Random(f"{draw} of {name}") for draw in range(draws)]
    return [each for rng in rngs for each in altered(ROWS[name](rng))]


def _problem(how: str, case: Case, torch: Any) -> str | None:
    ours = _raised(Side(kernbench.torch, "cpu"), case)
    if ours is not None:
        return None if _own_words(ours) else f"{type(ours).__name__}: {ours}"
    if torch is not None:
        theirs = _raised(Side(torch, "cpu"), case)
        taken = TAKEN.search(case.name) or BOOL_FOR_INTEGER.match(f"{case.name}: {how}")
        if isinstance(theirs, OF_PYTORCH) and not taken:
            return f"accepted; PyTorch raises {type(theirs).__name__}: {theirs}"
    return None


def _problems(topology: Any, calls: list[tuple[str, Case]], torch: Any = None) -> list[str]:
    found = []
    left = iter(calls)
    each = next(left, None)
    while each is not None:
        with RuntimeContext(engine=GraphEngine(topology("sip8"))) as ctx:
            # What follows on a stream with a fault is skipped.
            while each is not None and not ctx.main.current_stream(0).faulted:
                how, case = each
                problem = _problem(how, case, torch)
                if problem is not None:
                    found.append(f"{how}: {case}\n    {problem}")
                each = next(left, None)
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_wrong_argument_is_told_in_a_sentence(topology: Any) -> None:
    calls = [each for name in sorted(ROWS) for each in _calls(name, 1)][::SAMPLED]
    assert len(calls) > 200
    problems = _problems(topology, calls)
    assert not problems, "\n".join(problems)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.torch
@pytest.mark.parametrize("group", range(8))
def test_what_pytorch_refuses_is_refused(topology: Any, group: int) -> None:
    torch: Any = pytest.importorskip("torch")
    torch.set_num_threads(1)
    problems = []
    for name in sorted(ROWS)[group::8]:
        problems += _problems(topology, _calls(name, DRAWS), torch)
    assert not problems, "\n".join(problems)
