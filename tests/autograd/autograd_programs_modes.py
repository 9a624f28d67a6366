"""Programs for `test_autograd_vs_torch.py`: `no_grad` and the other modes."""

# mypy: disallow-untyped-decorators=False

import asyncio
from typing import Any

from autograd_programs import leaf, program

# Modes


@program
def no_grad_on_a_generator(torch: Any) -> Any:
    @torch.no_grad()
    def values() -> Any:
        got = yield torch.is_grad_enabled()
        while got != "end":
            got = yield got, torch.is_grad_enabled()
        return "done"

    made = values()
    found: list[Any] = [next(made), torch.is_grad_enabled()]
    found += [made.send(1), torch.is_grad_enabled()]
    try:
        made.send("end")
    except StopIteration as stop:
        found.append(stop.value)
    return [*found, torch.is_grad_enabled()]


@program
def generator_thrown_into_and_closed(torch: Any) -> Any:
    seen = []

    @torch.no_grad()
    def values() -> Any:
        try:
            while True:
                try:
                    yield torch.is_grad_enabled()
                except ValueError:
                    seen.append(("thrown", torch.is_grad_enabled()))
        finally:
            seen.append(("closed", torch.is_grad_enabled()))

    made = values()
    next(made)
    seen.append(made.throw(ValueError("x")))
    made.close()
    return seen, torch.is_grad_enabled()


@program
def generator_that_changes_the_mode(torch: Any) -> Any:
    @torch.no_grad()
    def values() -> Any:
        with torch.enable_grad():
            yield torch.is_grad_enabled()
            yield torch.is_grad_enabled()
        yield torch.is_grad_enabled()

    return [(inside, torch.is_grad_enabled()) for inside in values()]


@program
def generator_of_a_generator(torch: Any) -> Any:
    @torch.no_grad()
    def inner() -> Any:
        yield torch.is_grad_enabled()

    @torch.enable_grad()
    def outer() -> Any:
        yield torch.is_grad_enabled()
        yield from inner()
        yield torch.is_grad_enabled()

    with torch.no_grad():
        return list(outer())


@program
def modes_on_generators(torch: Any) -> Any:
    def values() -> Any:
        yield torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    return [
        list(torch.no_grad(values)()),
        list(torch.enable_grad(values)()),
        list(torch.inference_mode(values)()),
        list(torch.inference_mode()(values)()),
        list(torch.set_grad_enabled(False)(values)()),
        torch.is_grad_enabled(),
    ]


@program
def modes_on_functions(torch: Any) -> Any:
    def mode() -> Any:
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    found = [torch.no_grad(mode)(), torch.no_grad()(mode)(), torch.inference_mode(mode)()]
    found += [torch.inference_mode(False)(mode)(), torch.set_grad_enabled(False)(mode)()]
    with torch.no_grad():
        found += [torch.enable_grad(mode)(), torch.enable_grad()(mode)()]
        found.append(torch.set_grad_enabled(True)(mode)())
        found.append(mode())
    return [*found, mode()]


@program
def set_grad_enabled_as_a_decorator_keeps_the_mode(torch: Any) -> Any:
    @torch.set_grad_enabled(False)
    def mode() -> Any:
        return torch.is_grad_enabled()

    return torch.is_grad_enabled(), mode(), torch.is_grad_enabled()


@program
def set_grad_enabled_as_a_function(torch: Any) -> Any:
    torch.set_grad_enabled(False)
    off = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return off, torch.is_grad_enabled()


@program
def set_grad_enabled_nested(torch: Any) -> Any:
    with torch.set_grad_enabled(False):
        with torch.set_grad_enabled(True):
            inner = torch.is_grad_enabled()
        outer = torch.is_grad_enabled()
    return inner, outer, torch.is_grad_enabled()


@program
def modes_on_a_coroutine(torch: Any) -> Any:
    async def mode() -> Any:
        return torch.is_grad_enabled()

    return asyncio.run(torch.no_grad()(mode)()), torch.is_grad_enabled()


@program
def mode_on_a_class(torch: Any) -> Any:
    @torch.no_grad()
    class Noted:
        def __init__(self) -> None:
            self.mode = torch.is_grad_enabled()

        def later(self) -> Any:
            return torch.is_grad_enabled()

    made = Noted()
    return made.mode, made.later()


@program
def mode_on_a_method_and_a_recursion(torch: Any) -> Any:
    class Held:
        @torch.no_grad()
        def off(self, depth: int) -> Any:
            return [torch.is_grad_enabled()] + (self.on(depth - 1) if depth else [])

        @torch.enable_grad()
        def on(self, depth: int) -> Any:
            return [torch.is_grad_enabled()] + (self.off(depth - 1) if depth else [])

    return Held().off(3), torch.is_grad_enabled()


@program
def mode_after_an_error(torch: Any) -> Any:
    @torch.no_grad()
    def broken() -> None:
        raise ValueError("broken")

    try:
        broken()
    except ValueError:
        return torch.is_grad_enabled()


@program
def one_switch_twice(torch: Any) -> Any:
    switch = torch.no_grad()
    found = []
    with switch:
        found.append(torch.is_grad_enabled())
    with switch:
        found.append(torch.is_grad_enabled())
    return found, torch.is_grad_enabled()


@program
def set_grad_enabled_wants_a_bool(torch: Any) -> Any:
    torch.set_grad_enabled("yes")
    return torch.is_grad_enabled()


@program
def inference_tensor_saved_later(torch: Any) -> Any:
    x = leaf(torch, 2)
    with torch.inference_mode():
        c = torch.ones(2, dtype=torch.float64)
    return c.is_inference(), x.is_inference(), x * c


@program
def inference_tensor_written_later(torch: Any) -> Any:
    with torch.inference_mode():
        c = torch.ones(2)
    c.add_(1)
    return c


@program
def inference_tensor_cloned(torch: Any) -> Any:
    x = leaf(torch, 2)
    with torch.inference_mode():
        c = torch.ones(2, dtype=torch.float64)
    (x * c.clone()).sum().backward()
    return x.grad


@program
def inference_tensor_made_leaf(torch: Any) -> Any:
    with torch.inference_mode():
        c = torch.ones(2)
    c.requires_grad_()
    return c


@program
def inference_tensor_used_in_no_grad(torch: Any) -> Any:
    with torch.inference_mode():
        c = torch.ones(2)
    with torch.no_grad():
        d = c * 2
    return d, d.requires_grad


@program
def numpy_while_nothing_is_recorded(torch: Any) -> Any:
    x = leaf(torch, 2)
    with torch.no_grad():
        return x.numpy().tolist(), (x * 2).numpy().tolist(), x[0:1].numpy().tolist()


@program
def numpy_of_a_view_made_in_no_grad(torch: Any) -> Any:
    x = leaf(torch, 2)
    with torch.no_grad():
        v = x[0:1]
    return v.numpy().tolist()


@program
def enable_grad_in_inference_mode(torch: Any) -> Any:
    x = leaf(torch, 2)
    with torch.inference_mode(), torch.enable_grad():
        y = x * 2
        return y.requires_grad, torch.is_grad_enabled(), y.is_inference()


@program
def inference_mode_switched_off_inside(torch: Any) -> Any:
    x = leaf(torch, 2)
    with torch.inference_mode():
        with torch.inference_mode(False):
            y = x * 2
        inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    return y.requires_grad, y.is_inference(), inside, torch.is_grad_enabled()


@program
def inference_mode_false_in_no_grad(torch: Any) -> Any:
    with torch.no_grad(), torch.inference_mode(False):
        return torch.is_grad_enabled()
