"""How many steps of an optimizer a program will do, as far as its words and its text say."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Final

FLAGS: Final = ("--steps", "--max-steps", "--num-steps", "--train-steps", "--iters", "--iterations")
"""Flags of programs that say how many steps they do; `_` stands for `-`, too."""

_NO_OPTIMIZERS: Final = ("sched", "prof", "lr")
"""Texts in the names of objects whose `step` is none of an optimizer."""


def steps_ahead(bench: str, arguments: Sequence[str]) -> int | None:
    """Returns the steps that a program will do; None if neither words nor text say.

    Its text says so where a single call `optimizer.step()` stands in loops over `range` of a
    number, or of a name that the module gives a number once.

    Args:
        bench: The program: a Python file, or a name.
        arguments: Words of the program.
    """
    told = _of_arguments(arguments)
    if told is not None or not bench.endswith(".py"):
        return told
    try:
        tree = ast.parse(Path(bench).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):  # whoever runs it says what is wrong
        return None
    found = [*_steps(tree, _numbers(tree), ())]
    return found[0] if len(found) == 1 else None


def _of_arguments(arguments: Sequence[str]) -> int | None:
    told = None
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in FLAGS:
            text = value if equals else next(iter(arguments[place + 1 :]), "")
            told = int(text) if text.isdecimal() else None
    return told


def _numbers(tree: ast.Module) -> Mapping[str, int]:
    """Returns the names of a module that get one value, which is a number."""
    found: dict[str, list[object]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id, []).append(None)
    for each in tree.body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
            for target in each.targets:
                if isinstance(target, ast.Name):
                    found[target.id].append(each.value.value)
    return {
        name: values[1]
        for name, values in found.items()
        if len(values) == 2 and isinstance(values[1], int)
    }


def _steps(
    node: ast.AST, numbers: Mapping[str, int], loops: tuple[int | None, ...]
) -> Iterator[int | None]:
    """Yields how often each call of an optimizer's `step` happens; None if that is unknown."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.For):
            yield from _steps(child, numbers, (*loops, _length(child.iter, numbers)))
        elif isinstance(child, ast.While | ast.comprehension):
            yield from _steps(child, numbers, (*loops, None))
        else:
            if _is_step(child):
                lengths = [each for each in loops if each is not None]
                yield prod(lengths) if loops and len(lengths) == len(loops) else None
            yield from _steps(child, numbers, loops)


def _length(loop: ast.expr, numbers: Mapping[str, int]) -> int | None:
    match loop:
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(length))]):
            return length
        case ast.Call(func=ast.Name(id="range"), args=[ast.Name(id=name)]):
            return numbers.get(name)
    return None


def _is_step(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="step", value=owner)):
            text = ast.unparse(owner).lower()
            return not any(other in text for other in _NO_OPTIMIZERS)
    return False
