"""Triton's interpreter in a process in which its compiler is on."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def interpreted() -> Iterator[Any]:
    """A block in which Triton's own functions are interpreted; gives what interprets others.

    The interpreter leaves its own functions in the language where one interpreted function calls
    another, so all names of the language are put back.
    """
    import triton
    from triton.language import core, extra, math, random, standard
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    modules = [triton.language, core, extra, math, random, standard]
    classes = [core.tensor, core.tensor_descriptor_base, core.dtype, core.condition]
    before = [(owner, dict(vars(owner))) for owner in [*modules, *classes]]
    made: dict[int, Any] = {}
    for owner, names in before:
        for name, value in names.items():
            if isinstance(value, JITFunction):
                function = made.setdefault(id(value), InterpretedFunction(value.fn))
                setattr(owner, name, function.__call__ if owner is core.tensor else function)
    try:
        with triton.knobs.runtime.scope():
            triton.knobs.runtime.interpret = True
            yield InterpretedFunction
    finally:
        for owner, names in before:
            now = dict(vars(owner))
            for name in now.keys() - names.keys():
                delattr(owner, name)
            for name, value in names.items():
                if now.get(name) is not value:
                    setattr(owner, name, value)
