"""Triton's interpreter in a process in which its compiler is on."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def interpreted() -> Iterator[Any]:
    """A block in which Triton's own functions are interpreted; gives what interprets others."""
    import triton
    from triton.language import core, extra, math, random, standard
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    owners = [triton.language, core, extra, math, random, standard, core.tensor]
    before = [
        (owner, name, value)
        for owner in owners
        for name, value in list(vars(owner).items())
        if isinstance(value, JITFunction)
    ]
    made = {id(value): InterpretedFunction(value.fn) for _, _, value in before}
    for owner, name, value in before:
        function = made[id(value)]
        setattr(owner, name, function.__call__ if owner is core.tensor else function)
    try:
        with triton.knobs.runtime.scope():
            triton.knobs.runtime.interpret = True
            yield InterpretedFunction
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
