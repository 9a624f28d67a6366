"""What expressions of a kernel are by type, and which of them Triton does not compile (K12)."""

import ast
import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from kernbench.errors import CallSite, KernbenchError, NoDataError
from kernbench.memory import DType, dtypes
from kernbench.tl import language
from kernbench.tl.constants import constexpr, plain
from kernbench.tl.launch import Kernel
from kernbench.tl.operands import TileOperandError, common_shape
from kernbench.tl.tile import Pointer, Tile
from kernbench.tl.typed import (
    UNKNOWN,
    CompilationError,
    TypedProgram,
    any_unknown,
    not_compiled,
    same_type,
    shown,
)

Values = dict[str, Any]

_BUILTINS: Final[Mapping[str, Any]] = {
    each.__name__: each
    for each in (
        len, list, range, float, int, isinstance, getattr, hasattr, print, min, max
    )
}  # fmt: skip
"""Python's functions that a kernel may name: `builtin_namespace` of Triton."""

_NO_SUCH: Final[Mapping[str, tuple[str, str]]] = {
    "Dict": ("a dict", "use several variables, or a tuple"),
    "Set": ("a set", "use several variables, or a tuple"),
    "DictComp": ("a dict", "use several variables, or a tuple"),
    "SetComp": ("a set", "use several variables, or a tuple"),
    "GeneratorExp": ("a generator", "write a loop over tl.static_range"),
    "Lambda": ("a lambda", "write a function of its own with @tl.jit"),
    "Try": ("try", "check with a mask or tl.where; a device has no exceptions"),
    "TryStar": ("try", "check with a mask or tl.where; a device has no exceptions"),
    "Raise": ("raise", "use tl.static_assert, or return early"),
    "With": ("with", "write its steps out"),
    "Import": ("an import", "import at the top of the file"),
    "ImportFrom": ("an import", "import at the top of the file"),
    "Break": ("break", "choose the bounds of the loop before it, or loop with while"),
    "Continue": ("continue", "put the rest of the body under an if"),
    "Delete": ("del", "leave it out"),
    "Global": ("global", "store the value into a tensor"),
    "Nonlocal": ("nonlocal", "store the value into a tensor"),
    "ClassDef": ("a class", "use several variables, or a tuple"),
    "Match": ("match", "use if and elif"),
    "Yield": ("yield", "store the value into a tensor"),
    "YieldFrom": ("yield", "store the value into a tensor"),
    "Await": ("await", "leave it out"),
    "AsyncFor": ("async", "leave it out"),
    "AsyncWith": ("async", "leave it out"),
    "Starred": ("'*' outside of a call", "write the entries out"),
}
"""Parts of Python that Triton does not compile, by their node: their name, and the way out."""

_OPERATORS: Final = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift,
    ast.BitAnd, ast.BitOr, ast.BitXor,
)  # fmt: skip


class Unjudged(Exception):  # noqa: N818 - no error: the run of the kernel tells what is wrong
    """Something that a run reports better, or that is no matter of types."""


class Expressions(ABC):
    """The variables of one call of a kernel's function, and what its expressions make of them.

    Args:
        kernel: The function.
        program: The program that calls it.
    """

    def __init__(self, kernel: Kernel, program: TypedProgram) -> None:
        function = kernel.function
        assert isinstance(function, FunctionType)
        self.kernel = kernel
        self.program = program
        self._file = function.__code__.co_filename
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._globals = function.__globals__
        self._cells = {name: cell.cell_contents for name, cell in cells if _is_set(cell)}
        self.values: Values = {}
        self.defined: set[str] = set()
        self.marked: set[str] = set()

    @abstractmethod
    def inner(self, kernel: Kernel, args: list[Any], named: Values) -> Any:
        """Visits another function that this one calls.

        Args:
            kernel: The other function.
            args: Values by position.
            named: Values by name.

        Returns:
            What it returns.
        """
        ...

    def assign(self, target: ast.expr, value: Any, node: ast.AST) -> None:
        """Gives a variable, or several, a value.

        Args:
            target: What stands left of the '='.
            node: The statement, for errors.

        Raises:
            CompilationError: If Triton assigns no such value, or to no such target.
        """
        if isinstance(target, ast.Name):
            if target.id in self.marked:
                self.marked.discard(target.id)
            else:
                value = self.variable(node, value)
            self.values[target.id] = value
            self.defined.add(target.id)
        elif isinstance(target, ast.Tuple) and value is UNKNOWN:
            for each in target.elts:
                self.assign(each, UNKNOWN, node)
        elif isinstance(target, ast.Tuple):
            if any(isinstance(each, ast.Starred) for each in target.elts):
                raise self.unsupported(target)
            if not isinstance(value, tuple) or len(value) != len(target.elts):
                raise self.not_compiled(
                    node,
                    f"{len(target.elts)} variables take a tuple of as many values",
                    "write one variable for each value",
                )
            for name, each in zip(target.elts, value, strict=True):
                self.assign(name, each, node)
        elif isinstance(target, ast.Subscript):
            raise self.not_compiled(
                node, "an assignment to an element", "choose with tl.where, or use tl.store"
            )
        else:
            raise self.not_compiled(node, "an assignment to an attribute", "use a variable")

    def variable(self, node: ast.AST, value: Any) -> Any:
        """Returns what a value is in a variable: a number becomes a tile of one element.

        Args:
            node: The statement, for errors.

        Raises:
            CompilationError: If no variable holds such a value.
        """
        if value is UNKNOWN or value is None or isinstance(value, Tile | Pointer | DType):
            return value
        if isinstance(value, tuple):
            return tuple([self.variable(node, each) for each in value])
        if isinstance(value, bool | int | float):
            return self.program.scalar(value)
        raise self.not_compiled(
            node,
            f"a variable cannot hold a {type(value).__name__}",
            "use it in place, or mark the variable: `name: tl.constexpr = ...`",
        )

    def define(self, name: str, value: Any) -> None:
        """Gives a variable a value as it is.

        Args:
            name: Name of the variable.
        """
        self.values[name] = value
        self.defined.add(name)

    def decided(self, node: ast.AST, condition: Any) -> bool:
        """Returns a condition that is known when the kernel is compiled.

        Args:
            node: The statement, for errors.
            condition: Value of the condition.

        Raises:
            CompilationError: If Triton takes no such value for a condition.
        """
        condition = plain(condition)
        if type(condition) not in (bool, int, type(None)):
            raise self.not_compiled(
                node,
                f"a condition is a bool, an int or None; got a {type(condition).__name__}",
                "compare it: `x is not None`, `x != 0`",
            )
        return bool(condition)

    def check_scalar(self, node: ast.AST, condition: Any) -> None:
        """Refuses a tile of several elements as a condition.

        Args:
            node: The statement, for errors.
            condition: Value of the condition.

        Raises:
            CompilationError: If it has several elements.
        """
        if isinstance(condition, Tile) and condition.numel != 1:
            raise self.not_compiled(
                node,
                f"a condition is one value; got a tile of shape {list(condition.shape)}",
                "choose lane by lane with tl.where or a mask, or reduce with tl.max or tl.sum",
            )

    # Expressions

    def visit(self, node: ast.expr) -> Any:
        """Returns the value of an expression: a tile without elements, a pointer, or a constant.

        Raises:
            CompilationError: If Triton does not compile it.
        """
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.Attribute(value=of, attr=name):
                return self._attribute(node, self.visit(of), name)
            case ast.Subscript(value=of, slice=key):
                return self._apply(
                    node, ast.Subscript(_named("a"), _named("b"), _LOAD), a=of, b=key
                )
            case ast.Slice(lower=lower, upper=upper, step=step):
                parts = [
                    None if each is None else self.visit(each) for each in (lower, upper, step)
                ]
                return slice(*parts)
            case ast.Tuple(elts=entries) | ast.List(elts=entries):
                return tuple([self.visit(each) for each in entries])
            case ast.BinOp(left=left, op=op, right=right):
                if not isinstance(op, _OPERATORS):
                    raise self.not_compiled(node, "the operator '@'", "use tl.dot")
                return self._apply(node, ast.BinOp(_named("a"), op, _named("b")), a=left, b=right)
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(node, op, operand)
            case ast.BoolOp(op=op, values=values):
                return self._all(node, isinstance(op, ast.And), map(self.visit, values))
            case ast.Compare():
                return self._compared(node)
            case ast.IfExp():
                return self._either(node)
            case ast.Call():
                return self._called(node)
            case ast.JoinedStr(values=values):
                for each in values:
                    if isinstance(each, ast.FormattedValue):
                        value = self.visit(each.value)
                        if isinstance(value, Tile | Pointer):
                            raise self.not_compiled(
                                node,
                                f"a text shows constants only; got {shown(value)}",
                                'print the value: print("x", x)',
                            )
                return ""
            case ast.NamedExpr(target=target, value=value):
                self.assign(target, self.visit(value), node)
                return self.values[target.id]
            case ast.ListComp():
                return self._listed(node)
            case _:
                raise self.unsupported(node)

    def _name(self, node: ast.AST, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        for scope in (self._cells, self._globals):
            if name in scope:
                value = scope[name]
                if name in _BUILTINS or _is_constant(value):
                    return value
                if isinstance(value, FunctionType):
                    raise self.not_compiled(
                        node, f"{name} is a function without @tl.jit", f"put @tl.jit above {name}"
                    )
                raise self.not_compiled(
                    node,
                    f"{name} is a global that is not marked as a constant",
                    f"pass it as an argument, or write {name} = tl.constexpr({_text(value)}) where "
                    "it is made",
                )
        if name in _BUILTINS:
            return _BUILTINS[name]
        if hasattr(builtins, name):
            known = name in language.__all__
            raise self.not_compiled(
                node,
                f"Python's {name} is not known inside of a kernel",
                f"use tl.{name}" if known else "use functions of tl",
            )
        raise self.not_compiled(
            node,
            f"{name} is not defined here",
            f"give {name} a value before the if or the loop that changes it",
        )

    def _attribute(self, node: ast.expr, value: Any, name: str) -> Any:
        if value is UNKNOWN:
            return value
        if isinstance(value, bool | int | float | str) and not hasattr(value, name):
            raise self.not_compiled(
                node,
                f"the constant {plain(value)!r} has no .{name}",
                "make a tile of it: tl.full((), value, dtype)",
            )
        attribute = ast.Attribute(_named("a"), name, ast.Load())
        return self._evaluate(node, attribute, {"a": value})

    def _unary(self, node: ast.expr, op: ast.unaryop, operand: ast.expr) -> Any:
        value = self.visit(operand)
        if value is UNKNOWN:
            return value
        if isinstance(op, ast.Not):
            if isinstance(value, Tile):
                return Tile(self.program, value.shape, dtypes.bool_, None, None)
            return not value
        if isinstance(op, ast.UAdd) and isinstance(value, Tile):
            raise self.not_compiled(node, "the sign '+' before a tile", "leave it out")
        return self._evaluate(node, ast.UnaryOp(op, _named("a")), {"a": value})

    def _compared(self, node: ast.Compare) -> Any:
        def pairs() -> Any:
            left = self.visit(node.left)
            for op, comparator in zip(node.ops, node.comparators, strict=True):
                right = self.visit(comparator)
                if isinstance(op, ast.In | ast.NotIn):
                    raise self.not_compiled(node, "'in'", "compare with == and combine with |")
                if isinstance(op, ast.Is):
                    yield plain(left) is plain(right)
                elif isinstance(op, ast.IsNot):
                    yield plain(left) is not plain(right)
                elif any_unknown(left, right):
                    yield UNKNOWN
                else:
                    compare = ast.Compare(_named("a"), [op], [_named("b")])
                    yield self._evaluate(node, compare, {"a": left, "b": right})
                left = right

        return self._all(node, True, pairs())

    def _all(self, node: ast.expr, conjunction: bool, values: Any) -> Any:
        """Combines truth values as `and` and `or` do; constants decide early."""
        kept: list[Any] = []
        value: Any = None
        for value in values:
            if isinstance(value, Tile | Pointer) or value is UNKNOWN:
                kept.append(value)
            elif bool(value) is not conjunction:
                return value
        if len(kept) < 2:
            return kept[0] if kept else value
        if any_unknown(*kept):
            return UNKNOWN
        shapes = [each.shape for each in kept if isinstance(each, Tile)]
        return Tile(self.program, common_shape("'and'", shapes), dtypes.bool_, None, None)

    def _either(self, node: ast.IfExp) -> Any:
        condition = self.visit(node.test)
        if not isinstance(condition, Tile) and condition is not UNKNOWN:
            return self.visit(node.body if self.decided(node, condition) else node.orelse)
        self.check_scalar(node, condition)
        yes, no = (self.variable(node, self.visit(each)) for each in (node.body, node.orelse))
        if not same_type(yes, no):
            raise self.not_compiled(
                node,
                f"the two sides of this if are {shown(yes)} and {shown(no)}",
                "give both one type and shape, or use tl.where",
            )
        return yes

    def _listed(self, node: ast.ListComp) -> Any:
        source = self.visit(node.generators[0].iter)
        if source is UNKNOWN:
            return source
        if len(node.generators) > 1 or not isinstance(source, tuple):
            raise self.not_compiled(
                node, "a list of anything but the entries of one tuple", "write a loop"
            )
        found = []
        for value in source:
            target = node.generators[0].target
            if isinstance(target, ast.Name):
                self.define(target.id, value)
            else:
                self.assign(target, value, node)
            if all(self.visit(each) for each in node.generators[0].ifs):
                found.append(self.visit(node.elt))
        return tuple(found)

    def _called(self, node: ast.Call) -> Any:
        function = self.visit(node.func)
        args: list[Any] = []
        for each in node.args:
            if isinstance(each, ast.Starred):
                entries = self.visit(each.value)
                if entries is UNKNOWN:
                    return UNKNOWN
                if not isinstance(entries, tuple):
                    raise self.not_compiled(
                        node, "'*' of anything but a tuple", "write the values out"
                    )
                args += entries
            else:
                args.append(self.visit(each))
        named: Values = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.not_compiled(node, "'**' in a call", "write the arguments out")
            named[keyword.arg] = self.visit(keyword.value)
        given = [*args, *named.values()]
        if function is UNKNOWN or (any_unknown(*given) and not _is_effect(function)):
            return UNKNOWN
        if any_unknown(*given):
            return None
        dynamic = [each for each in given if isinstance(each, Tile | Pointer)]
        if isinstance(function, Kernel):
            return self.inner(function, args, named)
        if function is print:
            if args and not isinstance(args[0], str):
                raise self.not_compiled(
                    node, "print without a text first", 'name the value: print("x", x)'
                )
            return None
        if function is language.static_assert and any(isinstance(each, Tile) for each in args[:1]):
            raise self.not_compiled(
                node, "tl.static_assert of a tile", "assert what tl.constexpr values tell only"
            )
        if function in (min, max) and dynamic:
            least = language.minimum if function is min else language.maximum
            found = args[0]
            for each in args[1:]:
                call = {"f": least, "a": (found, each), "k": {}}
                found = self._evaluate(node, _call(), call)
            return found
        if isinstance(function, FunctionType) and dynamic and not _is_ours(function):
            raise self.not_compiled(
                node,
                f"{function.__name__} is a function without @tl.jit",
                f"put @tl.jit above {function.__name__}",
            )
        return self._evaluate(node, _call(), {"f": function, "a": args, "k": named})

    # Evaluation

    def _apply(self, node: ast.expr, template: ast.expr, **operands: ast.expr) -> Any:
        """Evaluates a node of which the operands are yet to be visited."""
        values = {name: self.visit(operand) for name, operand in operands.items()}
        if any_unknown(*values.values()):
            return UNKNOWN
        return self._evaluate(node, template, values)

    def _evaluate(self, node: ast.AST, template: ast.expr, values: Values) -> Any:
        """Evaluates an expression at the place of a node, so that errors name the user's line."""
        code = self._compiled(node, template)
        scope = {"__name__": self._globals.get("__name__", ""), "__builtins__": {}, **values}
        try:
            return eval(code, scope)
        except NoDataError:
            raise self.not_compiled(
                node,
                "a number is needed here when the kernel is compiled, and this one is known only "
                "when it runs",
                "pass it as tl.constexpr, or convert tiles with .to(dtype)",
            ) from None
        except (CompilationError, TileOperandError):
            raise
        except KernbenchError as error:
            if error.code == "C20":
                raise
            raise Unjudged from error
        except Exception as error:
            raise Unjudged from error

    def _compiled(self, node: ast.AST, template: ast.expr) -> CodeType:
        for each in ast.walk(template):
            ast.copy_location(each, node)
        return compile(ast.Expression(template), self._file, "eval")

    # Refusals

    def not_compiled(self, node: ast.AST, what: str, hint: str) -> CompilationError:
        """Returns the error of a node that Triton does not compile.

        Args:
            node: Where it is.
            what: What Triton refuses, as a part of a sentence.
            hint: What to write instead.
        """
        # The second instruction loads the name, so it has the place of the node.
        return not_compiled(what, hint, site=CallSite(self._compiled(node, _named("a")), 2))

    def unsupported(self, node: ast.AST) -> CompilationError:
        """Returns the error of a part of Python that Triton does not know."""
        name = type(node).__name__
        what, hint = _NO_SUCH.get(name, (f"Python's {name}", "write it in another way"))
        return self.not_compiled(node, f"{what} inside of a kernel", hint)


_LOAD: Final = ast.Load()


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, int | float | str) else "..."


def _named(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _call() -> ast.Call:
    return ast.Call(
        _named("f"), [ast.Starred(_named("a"), ast.Load())], [ast.keyword(None, _named("k"))]
    )


def _is_effect(function: Any) -> bool:
    return function in (language.store, language.send, language.fence, print)


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _is_ours(function: Callable[..., Any]) -> bool:
    return function.__module__.startswith("kernbench.")


def _is_constant(value: Any) -> bool:
    """Returns whether a kernel may read a global: Triton's rule in `global_lookup`."""
    if value is None or isinstance(value, ModuleType | Kernel | DType | constexpr):
        return True
    module = getattr(value, "__module__", None) or ""
    return module.startswith("kernbench.") or value is constexpr or hasattr(value, "_fields")
