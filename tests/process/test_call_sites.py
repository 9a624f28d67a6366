"""Whose line a command is of: also in backward, in hooks, and where shapes were seen before."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import singledispatch
from types import FrameType, ModuleType
from typing import Any

import pytest

import kernbench.torch as torch
from kernbench import errors
from kernbench.errors import CallSite, KernbenchError, call_site
from kernbench.runtime_api.context import RuntimeContext
from kernbench.scripts.failures import user_frames
from kernbench.testing import Kernbench
from kernbench.torch.autograd import Function
from kernbench.tp.random import RngTracker


def sources(ctx: RuntimeContext) -> dict[str, set[str]]:
    """Returns the lines that commands were issued at, by the commands' names."""
    found: dict[str, set[str]] = {}
    for record in ctx.engine.op_log.records:
        assert record.site is not None
        found.setdefault(record.name, set()).add(record.site.source)
    return found


def test_formulas_are_of_the_line_that_goes_back_and_the_rest_of_their_own(
    kernbench: Kernbench,
) -> None:
    class Doubled(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return grad.floor()

    def hook(grad: torch.Tensor) -> torch.Tensor:
        return grad.ceil()

    def afterwards(leaf: torch.Tensor) -> None:
        leaf.detach().trunc()

    with kernbench.context(record="full") as ctx:
        x = torch.ones(4, device="cuda", requires_grad=True)
        x.register_hook(hook)
        x.register_post_accumulate_grad_hook(afterwards)
        y = Doubled.apply(x).exp().sum()
        ctx.engine.op_log.records.clear()
        y.backward()
        x.detach().neg()
        assert sources(ctx) == {
            "aten::ones_like": {"y.backward()"},
            "aten::mul": {"y.backward()"},
            "aten::clone": {"y.backward()"},
            "aten::floor": {"return grad.floor()"},
            "aten::ceil": {"return grad.ceil()"},
            "aten::trunc": {"leaf.detach().trunc()"},
            "aten::neg": {"x.detach().neg()"},
        }


def test_a_pass_inside_of_a_hook_has_its_own_line(kernbench: Kernbench) -> None:
    def hook(grad: torch.Tensor) -> None:
        inner = torch.ones(4, device="cuda", requires_grad=True)
        with torch.enable_grad():
            inner.exp().backward(grad)

    with kernbench.context(record="full") as ctx:
        x = torch.ones(4, device="cuda", requires_grad=True)
        y = x.cos()
        y.register_hook(hook)
        z = y.sqrt()
        ctx.engine.op_log.records.clear()
        z.backward(x.detach())
        found = sources(ctx)
        assert found["aten::mul"] == {"inner.exp().backward(grad)", "z.backward(x.detach())"}
        assert found["aten::div"] == {"z.backward(x.detach())"}
        assert found["aten::sin"] == {"z.backward(x.detach())"}


def test_the_line_is_forgotten_when_a_pass_fails(ctx: RuntimeContext) -> None:
    def hook(grad: torch.Tensor) -> None:
        raise ArithmeticError

    x = torch.ones(4, device="cuda", requires_grad=True)
    x.register_hook(hook)
    with pytest.raises(ArithmeticError):
        (x * 2).backward(x.detach())
    with pytest.raises(KernbenchError, match=r'torch\.ones\(3, device="cuda"\) \+ x'):
        torch.ones(3, device="cuda") + x


WRONG: list[tuple[Callable[[torch.Tensor], object], Callable[[torch.Tensor], object]]] = [
    (lambda x: x + x.T, lambda x: x + x.T.contiguous()),
    (lambda x: x @ x, lambda x: torch.matmul(x, x)),
    (lambda x: x.view(4, 4), lambda x: x.reshape(4, 4)),
    (lambda x: x.permute(0, 0), lambda x: torch.permute(x, (0, 0))),
]


@pytest.mark.parametrize(("first", "second"), WRONG)
def test_a_mistake_made_twice_is_told_twice_each_with_its_own_place(
    ctx: RuntimeContext,
    first: Callable[[torch.Tensor], object],
    second: Callable[[torch.Tensor], object],
) -> None:
    x = torch.ones(2, 3, device="cuda")
    texts = []
    for wrong in (first, first, second):
        with pytest.raises(KernbenchError) as caught:
            wrong(x)
        texts.append(str(caught.value).splitlines())
    assert "test_call_sites.py" in texts[0][1]
    assert texts[0] == texts[1]
    assert texts[0][0] == texts[2][0]
    assert texts[0][1] != texts[2][1]


def test_a_module_whose_name_only_begins_like_ours_is_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("kernbenches", "kernbench_own", None):
        module = ModuleType(name or "nameless")
        monkeypatch.setattr(module, "find", call_site, raising=False)
        exec("def ask():\n    return find()", module.__dict__)
        if name is None:
            del module.__dict__["__name__"]
        site = module.__dict__["ask"]()
        assert isinstance(site, CallSite)
        assert site.code is module.__dict__["ask"].__code__


def test_the_innermost_frame_that_is_not_ours_is_found_as_if_each_were_asked() -> None:
    def asked() -> CallSite | None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and errors.is_ours(frame):
            frame = frame.f_back
        return None if frame is None else CallSite(frame.f_code, frame.f_lasti)

    ours = {"__name__": "kernbench.made_up_here", "both": lambda: (call_site(), asked())}
    exec("def deep(n):\n    return deep(n - 1) if n else both()", ours)
    for depth in (0, 3):
        found, expected = ours["deep"](depth)  # type: ignore[operator]
        assert found is not None
        assert expected is not None
        assert found.code is expected.code


def here() -> CallSite:
    site = call_site()
    assert site is not None
    return site


def test_a_loop_has_one_site() -> None:
    first, *others = [here() for _ in range(3)]
    assert all(other is first for other in others)


def test_two_calls_of_a_line_are_two_sites() -> None:
    def code(source: str) -> CallSite:
        found: dict[str, CallSite] = {}
        exec(source, {"call_site": call_site, "found": found})
        return found["site"]

    one, other = (call_site(), call_site())
    assert one != other
    assert one is not None
    assert other is not None
    assert one.line == other.line
    assert one.position[1] < other.position[1]
    # Other code at the same instruction, also once the first is gone.
    sites = [code(f"found['site'] = call_site()  # {number}") for number in range(50)]
    assert len({id(site.code) for site in sites}) == 50
    assert len({id(site) for site in sites}) == 50


def test_forgotten_sites_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    errors._SITES.clear()
    monkeypatch.setattr(errors._SITES, "limit", 1)
    found = []
    for _ in range(3):
        found.append(here())
        call_site()
        assert len(errors._SITES) <= 1
    assert found[0] == found[1] == found[2]


def test_who_merely_passes_control_is_not_the_user(ctx: RuntimeContext) -> None:
    nothing: Any = None

    @contextmanager
    def own() -> Iterator[None]:
        torch.relu(nothing)
        yield

    def entered() -> None:
        with own():
            pass

    def left() -> None:
        with ExitStack() as stack:
            stack.callback(torch.relu, None)

    def bound() -> None:
        singledispatch(torch.relu)([1.0])

    def forked() -> None:
        with RngTracker().fork("none"):
            pass

    for function, source in (
        (entered, "torch.relu(nothing)"),
        (left, "with ExitStack() as stack:"),
        (bound, "singledispatch(torch.relu)([1.0])"),
        (forked, 'with RngTracker().fork("none"):'),
    ):
        with pytest.raises(KernbenchError) as caught:
            function()
        assert "test_call_sites.py" in caught.value.facts[0]
        assert source in caught.value.facts[0]
        site = errors.call_site_of(caught.value)
        assert site is not None
        assert site.source.startswith(source)
        shown = "\n".join(user_frames(caught.value))
        assert source in shown
        assert "contextlib" not in shown
