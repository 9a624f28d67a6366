"""Calls with one argument replaced by something of another kind."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from differential_cases import Case

WRONG: Final[dict[str, Any]] = {
    "1.5": 1.5,
    "None": None,
    "'a'": "a",
    "[]": [],
    "object()": object(),
    "True": True,
    "1": 1,
}
"""What takes the place of an argument, by how it is written."""


def altered(case: Case) -> Iterator[tuple[str, Case]]:
    """Yields calls with one wrong argument each, and how each was altered.

    Args:
        case: A call. The tensor whose method is called stays. Of a module its own arguments are
            replaced, and not those of its call.
    """
    if case.function is not None:
        module = [type(each) for each in case.args[:2]] == [tuple, dict]
        own, named, *rest = case.args if module else ((), {})
        for index in range(len(own)):
            for text, value in WRONG.items():
                changed = (*own[:index], value, *own[index + 1 :])
                yield f"{index} = {text}", replace(case, args=(changed, named, *rest))
        for name in named:
            for text, value in WRONG.items():
                yield f"{name} = {text}", replace(case, args=(own, {**named, name: value}, *rest))
        return
    for index in range(case.name.startswith("Tensor."), len(case.args)):
        for text, value in WRONG.items():
            changed = (*case.args[:index], value, *case.args[index + 1 :])
            yield f"{index} = {text}", replace(case, args=changed)
    for name in case.kwargs:
        for text, value in WRONG.items():
            yield f"{name} = {text}", replace(case, kwargs={**case.kwargs, name: value})
    if not case.name.rpartition(".")[2].startswith("__"):
        yield "an unknown keyword", replace(case, kwargs={**case.kwargs, "unknown": 1})
        yield "too many arguments", replace(case, args=(*case.args, *[1] * 9))
