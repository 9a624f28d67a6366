"""Learning rates by plan: PyTorch's to the last bit, and by formulas of their own."""

import importlib
import math
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import pytest

import kernbench.torch as ours
from kernbench.errors import OperandError, OptionError
from kernbench.testing import Kernbench

Plan = Callable[[Any, Any], Any]
"""Takes the module of schedulers and an optimizer, returns a scheduler."""


class Halving:
    """A law that is an object, whose attributes are saved."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return 0.5**epoch


PLANS: Final[dict[str, Plan]] = {
    "lambda": lambda s, o: s.LambdaLR(o, lambda epoch: 0.95**epoch),
    "lambdas": lambda s, o: s.LambdaLR(o, [lambda epoch: 1 / (1 + epoch), Halving()]),
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, lambda epoch: 1 - 0.01 * epoch),
    "step": lambda s, o: s.StepLR(o, 7, gamma=0.3),
    "milestones": lambda s, o: s.MultiStepLR(o, [3, 3, 11, 50], gamma=0.7),
    "constant": lambda s, o: s.ConstantLR(o, factor=0.3, total_iters=4),
    "linear": lambda s, o: s.LinearLR(o, 0.1, 0.7, total_iters=23),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.97),
    "polynomial": lambda s, o: s.PolynomialLR(o, total_iters=60, power=1.7),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, T_max=17, eta_min=0.003),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 7, T_mult=2, eta_min=1e-4),
    "onecycle": lambda s, o: s.OneCycleLR(o, 0.4, total_steps=90),
    "onecycle linear": lambda s, o: s.OneCycleLR(
        o, [0.4, 0.2], epochs=9, steps_per_epoch=10, anneal_strategy="linear", three_phase=True
    ),
    "cyclic": lambda s, o: s.CyclicLR(o, 0.01, 0.3, step_size_up=5, step_size_down=8),
    "cyclic halves": lambda s, o: s.CyclicLR(o, 0.01, 0.3, 7, mode="triangular2"),
    "cyclic range": lambda s, o: s.CyclicLR(o, 0.01, 0.3, 7, mode="exp_range", gamma=0.99),
    "cyclic own": lambda s, o: s.CyclicLR(
        o, 0.01, 0.3, 7, scale_fn=lambda x: 1 / x, cycle_momentum=False
    ),
    "sequence": lambda s, o: s.SequentialLR(
        o,
        [s.LinearLR(o, 0.01, total_iters=10), s.CosineAnnealingLR(o, 40), s.ConstantLR(o, 0.5)],
        [10, 50],
    ),
    "chain": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.1, 4), s.ExponentialLR(o, 0.9)]),
    "sequence of two": lambda s, o: s.SequentialLR(
        o,
        [s.ConstantLR(o, 0.1, 100), s.ExponentialLR(o, 0.9)],
        [20],
    ),
}


def _made(lib: Any, plan: Plan, kind: str = "SGD") -> tuple[Any, Any]:
    first, second = (lib.nn.Parameter(lib.ones(2)) for _ in range(2))
    groups = [{"params": [first]}, {"params": [second], "lr": 0.05}]
    options = {"momentum": 0.5} if kind == "SGD" else {}
    optimizer = getattr(lib.optim, kind)(groups, lr=0.1, **options)
    return plan(_schedulers(lib), optimizer), optimizer


def _schedulers(lib: Any) -> Any:
    return importlib.import_module(f"{lib.__name__}.optim.lr_scheduler")


def _seen(optimizer: Any) -> list[Any]:
    names = ("lr", "momentum", "betas")
    return [group[name] for group in optimizer.param_groups for name in names if name in group]


def _course(lib: Any, plan: Plan, kind: str, steps: int) -> list[Any]:
    scheduler, optimizer = _made(lib, plan, kind)
    course = [_seen(optimizer)]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        course.append([*_seen(optimizer), *scheduler.get_last_lr()])
    return course


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", PLANS)
def test_rates_are_those_of_pytorch(kernbench: Kernbench, torch: Any, name: str, kind: str) -> None:
    with kernbench.context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert _course(ours, PLANS[name], kind, 90) == _course(torch, PLANS[name], kind, 90)


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
def test_a_plateau_is_that_of_pytorch(
    kernbench: Kernbench, torch: Any, mode: str, threshold_mode: str
) -> None:
    def course(lib: Any) -> list[Any]:
        scheduler, optimizer = _made(
            lib,
            lambda s, o: s.ReduceLROnPlateau(
                o, mode, 0.5, 2, 0.01, threshold_mode, cooldown=1, min_lr=[0.01, 0.0]
            ),
        )
        found = []
        for step in range(200):
            scheduler.step(math.sin(step / 9) + 3 / (step + 1))
            found.append((_seen(optimizer), scheduler.num_bad_epochs, scheduler.best))
        return found

    with kernbench.context():
        assert course(ours) == course(torch)


@pytest.mark.torch
@pytest.mark.parametrize("name", PLANS)
def test_a_state_has_the_entries_of_pytorch(kernbench: Kernbench, torch: Any, name: str) -> None:
    hidden = {"_scale_fn_ref", "_last_lr", "base_lrs"}
    with kernbench.context():
        mine, theirs = (_made(lib, PLANS[name])[0].state_dict() for lib in (ours, torch))
    assert set(mine) - hidden == set(theirs) - hidden


@pytest.mark.parametrize("name", PLANS)
def test_a_state_goes_on_where_it_was(kernbench: Kernbench, name: str) -> None:
    with kernbench.context():
        scheduler, optimizer = _made(ours, PLANS[name])
        for _ in range(13):
            optimizer.step()
            scheduler.step()
        again, its_own = _made(ours, PLANS[name])
        its_own.load_state_dict(optimizer.state_dict())
        state = scheduler.state_dict()
        again.load_state_dict(state)
        assert again.state_dict().keys() == state.keys()
        for _ in range(30):
            for each, one in ((optimizer, scheduler), (its_own, again)):
                each.step()
                one.step()
            assert _seen(optimizer) == _seen(its_own)


def _rates(plan: Plan, steps: int) -> list[float]:
    return [each[0] for each in _course(ours, plan, "SGD", steps)]


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("lambda", lambda t: 0.1 * 0.95**t),
        ("step", lambda t: 0.1 * 0.3 ** (t // 7)),
        ("milestones", lambda t: 0.1 * 0.7 ** sum(t >= m for m in (3, 3, 11, 50))),
        ("constant", lambda t: 0.1 * (0.3 if t < 4 else 1)),
        ("linear", lambda t: 0.1 * (0.1 + 0.6 * min(t, 23) / 23)),
        ("exponential", lambda t: 0.1 * 0.97**t),
        ("polynomial", lambda t: 0.1 * (1 - min(t, 60) / 60) ** 1.7),
        ("cosine", lambda t: 0.003 + 0.097 * (1 + math.cos(math.pi * t / 17)) / 2),
        ("chain", lambda t: 0.1 * 0.9**t * (0.1 if t < 4 else 1)),
        ("cyclic", lambda t: 0.01 + 0.29 * (t % 13 / 5 if t % 13 <= 5 else (13 - t % 13) / 8)),
    ],
)
def test_rates_follow_their_formula(
    kernbench: Kernbench, name: str, law: Callable[[int], float]
) -> None:
    with kernbench.context():
        found = _rates(PLANS[name], 59)
    assert found == pytest.approx([law(t) for t in range(60)], rel=1e-9, abs=1e-15)


def test_a_warm_up_before_a_cosine(kernbench: Kernbench) -> None:
    with kernbench.context():
        found = _rates(PLANS["sequence"], 49)
    assert found[:11] == pytest.approx([0.1 * (0.01 + 0.99 * t / 10) for t in range(11)])
    assert found[10:] == pytest.approx(
        [0.1 * (1 + math.cos(math.pi * t / 40)) / 2 for t in range(40)]
    )


def test_one_cycle_rises_and_falls(kernbench: Kernbench) -> None:
    with kernbench.context():
        found = _rates(PLANS["onecycle"], 89)
    top = found.index(max(found))
    assert top == 26
    assert [found[0], max(found)] == pytest.approx([0.016, 0.4])
    assert found[-1] == pytest.approx(0.4 / 25 / 1e4)
    assert all(a < b for a, b in pairwise(found[: top + 1]))
    assert all(a > b for a, b in pairwise(found[top:]))


def test_a_plateau_lowers_the_rate(kernbench: Kernbench) -> None:
    with kernbench.context():
        scheduler, optimizer = _made(ours, lambda s, o: s.ReduceLROnPlateau(o, patience=2))
        for _ in range(4):
            scheduler.step(ours.ones(()))
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.01, 0.005])


def test_a_rate_that_is_a_tensor_keeps_its_memory(kernbench: Kernbench) -> None:
    with kernbench.context():
        rate = ours.tensor(0.5)
        optimizer = ours.optim.SGD([ours.nn.Parameter(ours.ones(2))], lr=rate)  # type: ignore[arg-type]
        scheduler = ours.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        optimizer.step()
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] is rate
        assert rate.item() == 0.25


def test_a_step_before_the_first_of_the_optimizer_warns_at_its_line(kernbench: Kernbench) -> None:
    with kernbench.context():
        scheduler, _ = _made(ours, PLANS["exponential"])
        with pytest.warns(UserWarning, match=r"before `optimizer.step\(\)`") as told:
            scheduler.step()
        assert told[0].filename == __file__
        with pytest.warns(UserWarning, match="epoch parameter"):
            scheduler.step(3)
        with pytest.warns(UserWarning, match="get_last_lr"):
            scheduler.get_lr()


WRONG: Final[dict[str, tuple[Plan, type[Exception], str]]] = {
    "no optimizer": (lambda s, _: s.StepLR(3, 1), OperandError, "int is not an Optimizer"),
    "functions": (lambda s, o: s.LambdaLR(o, [abs]), OptionError, "Expected 2 lr_lambdas"),
    "function": (lambda s, o: s.MultiplicativeLR(o, 0.5), OperandError, "should be a function"),
    "factor": (lambda s, o: s.ConstantLR(o, 1.5), OptionError, "between 0 and 1"),
    "start": (lambda s, o: s.LinearLR(o, 0.0), OptionError, "greater than 0"),
    "end": (lambda s, o: s.LinearLR(o, 0.5, 1.5), OptionError, "Ending"),
    "period": (lambda s, o: s.CosineAnnealingWarmRestarts(o, 0), OptionError, "positive integer"),
    "total": (lambda s, o: s.OneCycleLR(o, 0.1), OptionError, "either total_steps OR"),
    "lengths": (lambda s, o: s.OneCycleLR(o, [0.1], 5), OptionError, "same length"),
    "strategy": (
        lambda s, o: s.OneCycleLR(o, 0.1, 5, anneal_strategy="x"),
        OptionError,
        "'cos' or 'linear'",
    ),
    "mode": (lambda s, o: s.CyclicLR(o, 0.1, 0.2, mode="x"), OptionError, "mode is invalid"),
    "plateau": (lambda s, o: s.ReduceLROnPlateau(o, "x"), OptionError, "mode x is unknown"),
    "none": (lambda s, o: s.SequentialLR(o, [], []), OptionError, "got no scheduler"),
    "empty chain": (lambda s, o: s.ChainedScheduler([]), OptionError, "got no scheduler"),
    "milestones": (
        lambda s, o: s.SequentialLR(o, [s.StepLR(o, 1)], [3]),
        OptionError,
        "one more than the number of milestone",
    ),
    "member": (lambda s, o: s.ChainedScheduler([3], o), OperandError, "should have `optimizer`"),
    "metric": (
        lambda s, o: s.ChainedScheduler([s.ReduceLROnPlateau(o)]),
        OptionError,
        "does not support `ReduceLROnPlateau`",
    ),
    "resumed": (lambda s, o: s.StepLR(o, 1, last_epoch=3), KeyError, "initial_lr"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(kernbench: Kernbench, name: str) -> None:
    plan, error, text = WRONG[name]
    with kernbench.context(), pytest.raises(error, match=text):
        _made(ours, plan)


@pytest.mark.torch
@pytest.mark.parametrize("name", WRONG)
def test_pytorch_refuses_it_with_the_same_kind(torch: Any, name: str) -> None:
    plan, error, _ = WRONG[name]
    kinds: dict[type[Exception], type[Exception]] = {
        OperandError: TypeError,
        OptionError: ValueError,
    }
    with pytest.raises(kinds.get(error, error)):
        _made(torch, plan)
