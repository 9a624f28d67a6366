"""What Triton compiles: walks a kernel's source over types, as Triton's code generator does (K12).

Both branches of an `if` that depends on a tile are visited, and the body of a loop once, however
often it runs. Rules and their order are those of `triton/compiler/code_generator.py`, version 3.9.
"""

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from kernbench.caches import cached
from kernbench.des import EventLoop, current_task, order
from kernbench.errors import CallSite, KernbenchError, NoDataError, call_site, site_fact
from kernbench.hw.pe import PeCosts
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
    refusal,
    same_type,
    shown,
    type_of,
)

_Values = dict[str, Any]

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


_DEEPEST: Final = 32
"""Most calls inside of each other; Triton's end is that of Python's stack."""


class _Unjudged(Exception):  # noqa: N818 - no error: the run of the kernel tells what is wrong
    """Something that a run reports better, or that is no matter of types."""


def check(kernel: Kernel, arguments: Mapping[str, Any], costs: PeCosts) -> None:
    """Refuses a kernel that Triton would not compile for these arguments.

    Args:
        kernel: The kernel; one that need not be portable passes.
        arguments: Arguments by parameter name; tensors are `Pointer`s.
        costs: Durations of a PE.

    Raises:
        CompilationError: If Triton refuses the source, K12.
        TileOperandError: If shapes or types do not go together, also where this launch does not
            come to.
        KernbenchError: If a function of the host is called, C20.
    """
    if not kernel.portable:
        return
    loop, site = EventLoop(), call_site()

    def visit() -> None:
        task = current_task()
        assert task is not None
        program = TypedProgram(task, costs)
        task.subject = program
        given = {
            name: value if name in kernel.constants else _argument(program, value)
            for name, value in arguments.items()
        }
        _Function(kernel, program, ()).call(given)

    task = loop.start(visit, owner=loop.owner(order.program_of(0)), name=f"types of {kernel.name}")
    loop.run()
    error = task.error
    if error is None or isinstance(error, _Unjudged):
        return
    if isinstance(error, KernbenchError):
        error.add_fact(site_fact(site, f"{kernel.name} was issued at"))
        raise error
    raise error


def _argument(program: TypedProgram, value: Any) -> Any:
    """Returns what an argument without `tl.constexpr` is inside of the kernel.

    Triton takes the number 1 for a constant, since strides of 1 are so common.
    """
    if isinstance(value, tuple):
        return tuple([_argument(program, each) for each in value])
    if isinstance(value, bool | int | float) and (isinstance(value, bool) or value != 1):
        return program.scalar(value)
    return value


@cached("tl.sources")
def _definition(code: CodeType) -> tuple[ast.FunctionDef, tuple[str, ...]] | None:
    """Returns a function's definition, at its place in the file; None if there is no source."""
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError):
        return None
    text = textwrap.dedent("".join(lines))
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    ast.increment_lineno(tree, max(first, 1) - 1)
    indent = len(lines[0]) - len(lines[0].lstrip())
    for node in ast.walk(tree):
        if hasattr(node, "col_offset"):
            node.col_offset += indent
            node.end_col_offset = (node.end_col_offset or 0) + indent  # type: ignore[attr-defined]
    found = tree.body[0]
    return (found, tuple(lines)) if isinstance(found, ast.FunctionDef) else None


class _Function:
    """One call of a kernel's function, on values that are known by type only.

    Args:
        kernel: The function.
        program: The program that calls it.
        callers: Functions that are being called, with the types of their arguments.
    """

    def __init__(
        self, kernel: Kernel, program: TypedProgram, callers: tuple[tuple[Any, Any], ...]
    ) -> None:
        function = kernel.function
        assert isinstance(function, FunctionType)
        self._kernel = kernel
        self._program = program
        self._callers = callers
        self._file = function.__code__.co_filename
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._globals = function.__globals__
        self._cells = {name: cell.cell_contents for name, cell in cells if _is_set(cell)}
        self._values: _Values = {}
        self._defined: set[str] = set()
        self._marked: set[str] = set()
        self._returned: list[Any] = []
        self._loops = 0

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Visits the body.

        Args:
            arguments: Values by parameter name.

        Returns:
            What the function returns.
        """
        found = _definition(self._kernel.function.__code__)
        if found is None:
            raise CompilationError(
                f"Triton would not compile this kernel: {self._kernel.name} has no source file",
                hint="write it into a file",
                code="K12",
            )
        definition = found[0]
        for star, kind in ((definition.args.vararg, "*"), (definition.args.kwarg, "**")):
            if star is not None:
                raise self._refusal(
                    star, f"a parameter {kind}{star.arg}", "name the parameters one by one"
                )
        types = tuple([type_of(value) for value in arguments.values()])
        call = self._kernel.function, types
        if call in self._callers or len(self._callers) > _DEEPEST:
            raise self._refusal(
                definition,
                f"{self._kernel.name} calls itself",
                "write a loop; or put what follows the last call, which a tl.constexpr argument "
                "decides, under an else",
            )
        self._callers = (*self._callers, call)
        self._values = dict(arguments)
        self._body(definition.body)
        for value in self._returned[1:]:
            if not same_type(value, self._returned[0]):
                raise self._refusal(
                    definition,
                    f"{self._kernel.name} returns {shown(self._returned[0])} in one place and "
                    f"{shown(value)} in another",
                    "convert one of them with .to(dtype)",
                )
        return self._returned[0] if self._returned else None

    # Statements

    def _body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)
            if isinstance(statement, ast.Return):
                break

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=value):
                self._visit(value)
            case ast.Assign(targets=targets, value=value):
                if len(targets) > 1:
                    raise self._refusal(node, "'a = b = value'", "assign one after the other")
                self._assign(targets[0], self._visit(value), node)
            case ast.AugAssign(target=target, op=op, value=value):
                load = ast.parse(ast.unparse(target), mode="eval").body
                for each in ast.walk(load):
                    ast.copy_location(each, target)
                both = ast.copy_location(ast.BinOp(load, op, value), node)
                self._assign(target, self._visit(both), node)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                self._annotated(node, target, annotation, value)
            case ast.If():
                self._if(node)
            case ast.For():
                self._for(node)
            case ast.While():
                self._while(node)
            case ast.Return(value=value):
                if self._loops:
                    raise self._refusal(
                        node, "return inside of a loop", "choose the bounds of the loop before it"
                    )
                self._returned.append(None if value is None else self._visit(value))
            case ast.Assert(test=test, msg=msg):
                self._visit(test)
                if msg is not None:
                    self._visit(msg)
            case ast.Pass():
                pass
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                raise self._refusal(
                    node,
                    "a function inside of a kernel",
                    "move it to the top of the file, with @tl.jit",
                )
            case _:
                raise self._unsupported(node)

    def _annotated(
        self, node: ast.stmt, target: ast.expr, annotation: ast.expr, value: ast.expr | None
    ) -> None:
        constant = self._is_constexpr(annotation)
        if value is None:
            if constant and isinstance(target, ast.Name):
                self._marked.add(target.id)
        elif not constant:
            self._assign(target, self._visit(value), node)
        elif isinstance(target, ast.Name):
            if target.id in self._values:
                raise self._refusal(
                    node,
                    f"{target.id} has a value already, and a tl.constexpr cannot change",
                    "take another name",
                )
            self._values[target.id] = self._visit(value)

    def _is_constexpr(self, annotation: ast.expr) -> bool:
        name = annotation.attr if isinstance(annotation, ast.Attribute) else None
        if isinstance(annotation, ast.Name):
            name = annotation.id
        return name == "constexpr"

    def _assign(self, target: ast.expr, value: Any, node: ast.AST) -> None:
        if isinstance(target, ast.Name):
            if target.id in self._marked:
                self._marked.discard(target.id)
            else:
                value = self._variable(node, value)
            self._values[target.id] = value
            self._defined.add(target.id)
        elif isinstance(target, ast.Tuple) and value is UNKNOWN:
            for each in target.elts:
                self._assign(each, UNKNOWN, node)
        elif isinstance(target, ast.Tuple):
            if any(isinstance(each, ast.Starred) for each in target.elts):
                raise self._unsupported(target)
            if not isinstance(value, tuple) or len(value) != len(target.elts):
                raise self._refusal(
                    node,
                    f"{len(target.elts)} variables take a tuple of as many values",
                    "write one variable for each value",
                )
            for name, each in zip(target.elts, value, strict=True):
                self._assign(name, each, node)
        elif isinstance(target, ast.Subscript):
            raise self._refusal(
                node, "an assignment to an element", "choose with tl.where, or use tl.store"
            )
        else:
            raise self._refusal(node, "an assignment to an attribute", "use a variable")

    def _variable(self, node: ast.AST, value: Any) -> Any:
        """Returns what a value is in a variable: a number becomes a tile of one element."""
        if value is UNKNOWN or value is None or isinstance(value, Tile | Pointer | DType):
            return value
        if isinstance(value, tuple):
            return tuple([self._variable(node, each) for each in value])
        if isinstance(value, bool | int | float):
            return self._program.scalar(value)
        raise self._refusal(
            node,
            f"a variable cannot hold a {type(value).__name__}",
            "use it in place, or mark the variable: `name: tl.constexpr = ...`",
        )

    def _if(self, node: ast.If) -> None:
        condition = self._visit(node.test)
        if not isinstance(condition, Tile | Pointer) and condition is not UNKNOWN:
            self._body(node.body if self._decided(node, condition) else node.orelse)
            return
        self._scalar_condition(node, condition)
        if self._loops and any(isinstance(each, ast.Return) for each in ast.walk(node)):
            raise self._refusal(
                node, "return inside of a loop", "choose the bounds of the loop before it"
            )
        before, defined = self._values, self._defined
        branches: list[tuple[_Values, set[str]]] = []
        for body in (node.body, node.orelse):
            self._values, self._defined = dict(before), set()
            self._body(body)
            branches.append((self._values, self._defined))
        (yes, in_yes), (no, in_no) = branches
        self._values, self._defined = dict(before), defined
        for name, value in before.items():
            if value is None or isinstance(value, DType) or yes[name] is no[name]:
                continue
            for branch in (yes, no):
                if not same_type(branch[name], value):
                    raise self._changed(node, name, value, branch[name], "in a branch of this if")
            self._define(name, yes[name])
        for name in sorted(in_yes & in_no):
            if not same_type(yes[name], no[name]):
                raise self._refusal(
                    node,
                    f"{name} is {shown(yes[name])} in one branch and {shown(no[name])} in the "
                    "other",
                    "give it one type and shape: .to(dtype), or a constant of the same type",
                )
            self._define(name, yes[name])

    def _define(self, name: str, value: Any) -> None:
        self._values[name] = value
        self._defined.add(name)

    def _decided(self, node: ast.AST, condition: Any) -> bool:
        """Returns a condition that is known when the kernel is compiled."""
        condition = plain(condition)
        if type(condition) not in (bool, int, type(None)):
            raise self._refusal(
                node,
                f"a condition is a bool, an int or None; got a {type(condition).__name__}",
                "compare it: `x is not None`, `x != 0`",
            )
        return bool(condition)

    def _scalar_condition(self, node: ast.AST, condition: Any) -> None:
        if isinstance(condition, Tile) and condition.numel != 1:
            raise self._refusal(
                node,
                f"a condition is one value; got a tile of shape {list(condition.shape)}",
                "choose lane by lane with tl.where or a mask, or reduce with tl.max or tl.sum",
            )

    def _for(self, node: ast.For) -> None:
        iterator = node.iter
        function = self._visit(iterator.func) if isinstance(iterator, ast.Call) else None
        if (
            not isinstance(iterator, ast.Call)
            or function not in (range, language.range, language.static_range)
            or not isinstance(node.target, ast.Name)
        ):
            raise self._refusal(
                iterator,
                "a loop goes over range, tl.range or tl.static_range only",
                "loop over the indices",
            )
        bounds = [self._visit(each) for each in iterator.args]
        bounds += [self._visit(each.value) for each in iterator.keywords if each.arg in _BOUNDS]
        if node.orelse:
            raise self._refusal(node.orelse[0], "else after a loop", "put it behind the loop")
        if function is language.static_range:
            self._unrolled(node, node.target.id, bounds)
            return
        wide = False
        for bound in bounds:
            if bound is UNKNOWN:
                continue
            tile = self._program.scalar(bound) if isinstance(bound, int | float) else bound
            if not isinstance(tile, Tile) or tile.shape or tile.dtype.is_floating_point:
                raise self._refusal(
                    iterator,
                    "the bounds of a loop are whole numbers"
                    + (f"; got {shown(bound)}" if isinstance(bound, Tile) else ""),
                    "convert with .to(tl.int32), or divide with '//'",
                )
            wide = wide or tile.dtype.itemsize == 8
        index = Tile(self._program, (), dtypes.int64 if wide else dtypes.int32, None, None)
        self._define(node.target.id, index)
        self._loop(node, node.target.id)

    def _unrolled(self, node: ast.For, name: str, bounds: Sequence[Any]) -> None:
        if any(not isinstance(bound, int) for bound in bounds):
            raise self._refusal(
                node.iter, "the bounds of tl.static_range are constants (tl.constexpr)", "use range"
            )
        for index in range(*bounds):
            self._values[name] = index
            self._body(node.body)

    def _while(self, node: ast.While) -> None:
        self._loop(node, None)
        condition = self._visit(node.test)
        if condition is not UNKNOWN and not isinstance(condition, Tile):
            raise self._refusal(
                node,
                "the condition of a while loop is a tile of one value",
                "compare a variable, or loop with range",
            )
        self._scalar_condition(node, condition)
        if node.orelse:
            raise self._refusal(node.orelse[0], "else after a loop", "put it behind the loop")

    def _loop(self, node: ast.For | ast.While, index: str | None) -> None:
        """Visits the body of a loop: what it carries to the next turn keeps its type."""
        before, defined = dict(self._values), self._defined
        self._defined = set()
        self._loops += 1
        self._body(node.body)
        self._loops -= 1
        for name, value in before.items():
            now = self._values[name]
            if name == index or now is value:
                continue
            if value is None or isinstance(value, DType):
                changed = name in self._defined
            else:
                changed = isinstance(value, Tile | Pointer) != isinstance(now, Tile | Pointer)
                changed = changed or (
                    isinstance(value, Tile | Pointer) and not same_type(value, now)
                )
            if changed and not any_unknown(value, now):
                raise self._changed(node, name, value, now, "in this loop")
        self._values, self._defined = before, defined

    def _changed(
        self, node: ast.stmt, name: str, before: Any, after: Any, where: str
    ) -> CompilationError:
        place: ast.AST = node
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store):
                place = each
                break
        return self._refusal(
            place,
            f"{name} is {shown(before)} before and becomes {shown(after)} {where}",
            f"start with a value of the type and shape that {name} takes, such as tl.zeros, or "
            "convert with .to(dtype)",
        )

    # Expressions

    def _visit(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.Attribute(value=of, attr=name):
                return self._apply(node, ast.Attribute(_named("a"), name, ast.Load()), a=of)
            case ast.Subscript(value=of, slice=key):
                return self._apply(
                    node, ast.Subscript(_named("a"), _named("b"), _LOAD), a=of, b=key
                )
            case ast.Slice(lower=lower, upper=upper, step=step):
                parts = [
                    None if each is None else self._visit(each) for each in (lower, upper, step)
                ]
                return slice(*parts)
            case ast.Tuple(elts=entries) | ast.List(elts=entries):
                return tuple([self._visit(each) for each in entries])
            case ast.BinOp(left=left, op=op, right=right):
                if not isinstance(op, _OPERATORS):
                    raise self._refusal(node, "the operator '@'", "use tl.dot")
                return self._apply(node, ast.BinOp(_named("a"), op, _named("b")), a=left, b=right)
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(node, op, operand)
            case ast.BoolOp(op=op, values=values):
                return self._all(node, isinstance(op, ast.And), map(self._visit, values))
            case ast.Compare():
                return self._compared(node)
            case ast.IfExp():
                return self._either(node)
            case ast.Call():
                return self._called(node)
            case ast.JoinedStr(values=values):
                for each in values:
                    if isinstance(each, ast.FormattedValue):
                        value = self._visit(each.value)
                        if isinstance(value, Tile | Pointer):
                            raise self._refusal(
                                node,
                                f"a text shows constants only; got {shown(value)}",
                                'print the value: print("x", x)',
                            )
                return ""
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, self._visit(value), node)
                return self._values[target.id]
            case ast.ListComp():
                return self._listed(node)
            case _:
                raise self._unsupported(node)

    def _name(self, node: ast.AST, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        for scope in (self._cells, self._globals):
            if name in scope:
                value = scope[name]
                if name in _BUILTINS or _is_constant(value):
                    return value
                if isinstance(value, FunctionType):
                    raise self._refusal(
                        node, f"{name} is a function without @tl.jit", f"put @tl.jit above {name}"
                    )
                raise self._refusal(
                    node,
                    f"{name} is a global that is not marked as a constant",
                    f"pass it as an argument, or write {name} = tl.constexpr(...) where it is made",
                )
        if name in _BUILTINS:
            return _BUILTINS[name]
        if hasattr(builtins, name):
            known = name in language.__all__
            raise self._refusal(
                node,
                f"Python's {name} is not known inside of a kernel",
                f"use tl.{name}" if known else "use functions of tl",
            )
        raise self._refusal(
            node,
            f"{name} is not defined here",
            f"give {name} a value before the if or the loop that changes it",
        )

    def _unary(self, node: ast.expr, op: ast.unaryop, operand: ast.expr) -> Any:
        value = self._visit(operand)
        if value is UNKNOWN:
            return value
        if isinstance(op, ast.Not):
            if isinstance(value, Tile):
                return Tile(self._program, value.shape, dtypes.bool_, None, None)
            return not value
        if isinstance(op, ast.UAdd) and isinstance(value, Tile):
            raise self._refusal(node, "the sign '+' before a tile", "leave it out")
        return self._evaluate(node, ast.UnaryOp(op, _named("a")), {"a": value})

    def _compared(self, node: ast.Compare) -> Any:
        def pairs() -> Any:
            left = self._visit(node.left)
            for op, comparator in zip(node.ops, node.comparators, strict=True):
                right = self._visit(comparator)
                if isinstance(op, ast.In | ast.NotIn):
                    raise self._refusal(node, "'in'", "compare with == and combine with |")
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
        return Tile(self._program, common_shape("'and'", shapes), dtypes.bool_, None, None)

    def _either(self, node: ast.IfExp) -> Any:
        condition = self._visit(node.test)
        if not isinstance(condition, Tile) and condition is not UNKNOWN:
            return self._visit(node.body if self._decided(node, condition) else node.orelse)
        self._scalar_condition(node, condition)
        yes, no = (self._variable(node, self._visit(each)) for each in (node.body, node.orelse))
        if not same_type(yes, no):
            raise self._refusal(
                node,
                f"the two sides of this if are {shown(yes)} and {shown(no)}",
                "give both one type and shape, or use tl.where",
            )
        return yes

    def _listed(self, node: ast.ListComp) -> Any:
        source = self._visit(node.generators[0].iter)
        if source is UNKNOWN:
            return source
        if len(node.generators) > 1 or not isinstance(source, tuple):
            raise self._refusal(
                node, "a list of anything but the entries of one tuple", "write a loop"
            )
        found = []
        for value in source:
            target = node.generators[0].target
            if isinstance(target, ast.Name):
                self._define(target.id, value)
            else:
                self._assign(target, value, node)
            if all(self._visit(each) for each in node.generators[0].ifs):
                found.append(self._visit(node.elt))
        return tuple(found)

    def _called(self, node: ast.Call) -> Any:
        function = self._visit(node.func)
        args: list[Any] = []
        for each in node.args:
            if isinstance(each, ast.Starred):
                entries = self._visit(each.value)
                if entries is UNKNOWN:
                    return UNKNOWN
                args += entries
            else:
                args.append(self._visit(each))
        named: _Values = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self._refusal(node, "'**' in a call", "write the arguments out")
            named[keyword.arg] = self._visit(keyword.value)
        given = [*args, *named.values()]
        if function is UNKNOWN or (any_unknown(*given) and not _is_effect(function)):
            return UNKNOWN
        if any_unknown(*given):
            return None
        dynamic = [each for each in given if isinstance(each, Tile | Pointer)]
        if isinstance(function, Kernel):
            return self._inner(node, function, args, named)
        if function is print:
            if args and not isinstance(args[0], str):
                raise self._refusal(
                    node, "print without a text first", 'name the value: print("x", x)'
                )
            return None
        if function is language.static_assert and any(isinstance(each, Tile) for each in args[:1]):
            raise self._refusal(
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
            raise self._refusal(
                node,
                f"{function.__name__} is a function without @tl.jit",
                f"put @tl.jit above {function.__name__}",
            )
        return self._evaluate(node, _call(), {"f": function, "a": args, "k": named})

    def _inner(self, node: ast.Call, kernel: Kernel, args: list[Any], named: _Values) -> Any:
        try:
            bound = kernel.signature.bind(*args, **named)
        except TypeError as error:
            raise _Unjudged from error
        bound.apply_defaults()
        return _Function(kernel, self._program, self._callers).call(bound.arguments)

    # Evaluation

    def _apply(self, node: ast.expr, template: ast.expr, **operands: ast.expr) -> Any:
        """Evaluates a node of which the operands are yet to be visited."""
        values = {name: self._visit(operand) for name, operand in operands.items()}
        if any_unknown(*values.values()):
            return UNKNOWN
        return self._evaluate(node, template, values)

    def _evaluate(self, node: ast.AST, template: ast.expr, values: _Values) -> Any:
        """Evaluates an expression at the place of a node, so that errors name the user's line."""
        code = self._compiled(node, template)
        scope = {"__name__": self._globals.get("__name__", ""), "__builtins__": {}, **values}
        try:
            return eval(code, scope)
        except NoDataError:
            raise self._refusal(
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
            raise _Unjudged from error
        except Exception as error:
            raise _Unjudged from error

    def _compiled(self, node: ast.AST, template: ast.expr) -> CodeType:
        for each in ast.walk(template):
            ast.copy_location(each, node)
        return compile(ast.Expression(template), self._file, "eval")

    # Refusals

    def _refusal(self, node: ast.AST, what: str, hint: str) -> CompilationError:
        # The second instruction loads the name, so it has the place of the node.
        return refusal(what, hint, site=CallSite(self._compiled(node, _named("a")), 2))

    def _unsupported(self, node: ast.AST) -> CompilationError:
        name = type(node).__name__
        what, hint = _NO_SUCH.get(name, (f"Python's {name}", "write it in another way"))
        return self._refusal(node, f"{what} inside of a kernel", hint)


_LOAD: Final = ast.Load()

_BOUNDS: Final = frozenset({"start", "stop", "step"})


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
