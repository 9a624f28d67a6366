"""Public functions describe their parameters and the errors that they raise."""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "kernbench"

UNIMPLEMENTED: Final = {"AssertionError", "NotImplementedError"}
"""What abstract bodies raise, and what marks an impossible case: neither is for callers."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Documented(NamedTuple):
    """A public function or method.

    Attributes:
        place: `file:line name`, for messages.
        node: Its definition.
        docstring: Its docstring without indentation; empty if it has none.
    """

    place: str
    node: Function
    docstring: str


def _room(path: Path) -> str:
    """Returns the folder of the package in which a module lies, or its name at the top."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


ROOMS: Final = sorted({_room(path) for path in _modules()})


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _is_overload(node: Function) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in node.decorator_list)


def _public(tree: ast.AST, file: str, within: str = "") -> Iterator[Documented]:
    """Yields the public functions of modules and classes; those inside functions are nobody's.

    A protocol's methods are among them: what is said there holds for all that implement it.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            if not node.name.startswith("_"):
                yield from _public(node, file, f"{within}{node.name}.")
        elif isinstance(node, Function):
            if not node.name.startswith("_") and not _is_overload(node):
                place = f"{file}:{node.lineno} {within}{node.name}"
                yield Documented(place, node, ast.get_docstring(node) or "")
        else:  # such as `if TYPE_CHECKING:`
            yield from _public(node, file, within)


def _parameters(node: Function) -> list[str]:
    """Returns the names of the parameters."""
    taken = node.args
    found = [*taken.posonlyargs, *taken.args, taken.vararg, *taken.kwonlyargs, taken.kwarg]
    return [parameter.arg for parameter in found if parameter is not None]


def _section(docstring: str, name: str) -> list[str] | None:
    """Returns the names of the entries of a section, without stars; None if there is none."""
    lines = iter(docstring.splitlines())
    if not any(line == f"{name}:" for line in lines):
        return None
    entries = []
    for line in lines:
        if line and not line.startswith(" "):
            break
        if match := re.match(r"    \*{0,2}(\w+(?:\.\w+)*)(?: \(.*?\))?:", line):
            entries.append(match[1])
    return entries


def parameter_fault(function: Documented) -> str | None:
    """Returns what is wrong with the description of the parameters; None if nothing is.

    A parameter has an entry where its name and its type do not say all: a shape, a dtype, a unit,
    what a default means, what a value does.
    """
    parameters, told = _parameters(function.node), _section(function.docstring, "Args")
    if told is None:
        return None
    if told and set(told) <= set(parameters) and len(set(told)) == len(told):
        return None
    return f"{function.place}: `Args:` names {told}; the parameters are {parameters}"


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yields what is inside a function, but not inside functions and classes within it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own(child)


@cache
def _returned(path: Path | None = None) -> dict[str, set[str]]:
    """Returns the names of the errors that functions return, by the function's name.

    Args:
        path: Module of the functions; None: all of the package.
    """
    found: dict[str, set[str]] = {}
    for module in _modules() if path is None else [path]:
        for node in ast.walk(_tree(module)):
            if not isinstance(node, Function) or node.returns is None:
                continue
            name = ast.unparse(node.returns).strip("'")
            if "Exception" in _with_bases(name):
                found.setdefault(node.name, set()).add(name)
    return found


@cache
def _bases() -> dict[str, set[str]]:
    """Returns the names of the bases of each class of the package."""
    found: dict[str, set[str]] = {}
    for path in _modules():
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ClassDef):
                names = {base.id for base in node.bases if isinstance(base, ast.Name)}
                found.setdefault(node.name, set()).update(names)
    return found


def _with_bases(name: str) -> set[str]:
    """Returns the name of a class and those of all its bases."""
    known = getattr(builtins, name, None)
    if isinstance(known, type):
        return {base.__name__ for base in known.__mro__}
    return {name}.union(*(_with_bases(base) for base in _bases().get(name, ())))


def _raised(node: Function, path: Path | None = None) -> set[str]:
    """Returns the classes that a function raises; `?` for one that its source does not name.

    What was caught or awaited and is raised again (a name, an attribute) does not count. Helpers
    that make an error are those of the function's own module, or else all of that name.

    Args:
        path: Its module; None if it is in none.
    """
    classes = set()
    helpers = {**_returned(), **(_returned(path) if path is not None else {})}
    for inner in _own(node):
        if not isinstance(inner, ast.Raise) or inner.exc is None:
            continue
        error = inner.exc
        made = error.func if isinstance(error, ast.Call) else error
        name = made.id if isinstance(made, ast.Name) else getattr(made, "attr", "?")
        if name[0].isupper():
            classes.add(name)
        elif name == "with_traceback":  # of an error that was there before
            continue
        elif isinstance(error, ast.Call):
            classes |= helpers.get(name, {"?"})
    return classes - UNIMPLEMENTED


def error_fault(function: Documented) -> str | None:
    """Returns what is wrong with the description of the errors; None if nothing is."""
    path = ROOT / function.place.partition(":")[0]
    raised = _raised(function.node, path if path.is_file() else None)
    if not raised:
        return None
    told = _section(function.docstring, "Raises")
    if told is None:
        return f"{function.place}: no `Raises:` for {sorted(raised)}"
    names = {name.rpartition(".")[2] for name in told}
    missing = sorted(name for name in raised - {"?"} if not names & _with_bases(name))
    return f"{function.place}: `Raises:` names {told}, not {missing}" if missing else None


def _functions(room: str) -> list[Documented]:
    return [
        function
        for path in _modules()
        if _room(path) == room and not re.search(r"/_[^_]", path.relative_to(ROOT).as_posix())
        for function in _public(_tree(path), path.relative_to(ROOT).as_posix())
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_descriptions_are_of_parameters(room: str) -> None:
    assert list(filter(None, map(parameter_fault, _functions(room)))) == []


@pytest.mark.parametrize("room", ROOMS)
def test_errors_are_described(room: str) -> None:
    assert list(filter(None, map(error_fault, _functions(room)))) == []


def _only(source: str) -> list[Documented]:
    return list(_public(ast.parse(source), "f.py"))


THREE: Final = '''
def f(a, *b, c=1, _d=2, **e):
    """Does.

    Args:
        a: One thing, explained
            at: length.
        *b: Others.
        {name}: The third.
        **e: The rest.
    """
'''


def test_a_description_names_only_parameters() -> None:
    (right,) = _only(THREE.format(name="c"))
    assert parameter_fault(right) is None
    (wrong,) = _only(THREE.format(name="see"))
    assert "'see'" in (parameter_fault(wrong) or "")
    (twice,) = _only(THREE.format(name="a"))
    assert parameter_fault(twice) is not None


def test_what_a_name_says_needs_no_entry_and_no_empty_section() -> None:
    (silent,) = _only("def f(a, b, c): 'Does.'")
    assert parameter_fault(silent) is None
    (empty,) = _only('def f(a):\n    """Does.\n\n    Args:\n    """')
    assert parameter_fault(empty) is not None


@pytest.mark.parametrize(
    ("body", "told", "faulty"),
    [
        ("raise OptionError('no')", "", True),
        ("raise OptionError('no')", "OptionError", False),
        ("raise OptionError('no')", "ValueError", False),
        ("raise OptionError('no')", "KernbenchError", False),
        ("raise OptionError('no')", "TypeError", True),
        ("raise KeyError", "LookupError", False),
        ("raise KernbenchError('no')", "OptionError", True),
        ("raise NotImplementedError", "", False),
        ("def inner(): raise KeyError", "", False),
        ("try: g()\n    except OSError: raise", "", False),
        ("try: g()\n    except OSError as error: raise error", "", False),
        ("raise site.refusing('no')", "", True),
        ("raise site.refusing('no')", "ValueError", False),
    ],
)
def test_a_raise_needs_a_description(body: str, told: str, faulty: bool) -> None:
    raises = f"\n\n    Raises:\n        {told}: When." if told else ""
    (function,) = _only(f"def f():\n    '''Does.{raises}\n    '''\n    {body}")
    assert (error_fault(function) is not None) is faulty


def test_an_error_that_a_helper_makes_is_known_by_what_the_helper_returns() -> None:
    helper, classes = next(
        (name, classes)
        for name, classes in sorted(_returned().items())
        if len(classes) == 1 and "KernbenchError" in _with_bases(next(iter(classes)))
    )
    (function,) = _only(f"def f():\n    '''Does.'''\n    raise {helper}('no')")
    assert str(sorted(classes)) in (error_fault(function) or "")
