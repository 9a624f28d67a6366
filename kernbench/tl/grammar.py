"""What Triton compiles: walks a kernel's source over types, as Triton's code generator does (K12).

Both branches of an `if` that depends on a tile are visited, and the body of a loop once, however
often it runs. Rules and their order are those of `triton/compiler/code_generator.py`, version 3.9.
"""

import ast
import inspect
import textwrap
from collections.abc import Hashable, Mapping, Sequence
from types import CodeType
from typing import Any, Final

from kernbench.caches import Table, cached
from kernbench.des import EventLoop, current_task, order
from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.hw.pe import PeCosts
from kernbench.memory import DType, dtypes
from kernbench.tl import language
from kernbench.tl.expressions import Expressions, Unjudged, Values
from kernbench.tl.launch import Kernel, kind_of
from kernbench.tl.misfits import told
from kernbench.tl.tile import Pointer, Tile
from kernbench.tl.typed import (
    INT32,
    UNKNOWN,
    CompilationError,
    TypedProgram,
    any_unknown,
    same_type,
    shown,
    type_of,
)

_DEEPEST: Final = 32
"""Most calls inside of each other; Triton's end is that of Python's stack."""


_BOUNDS: Final = frozenset({"start", "stop", "step"})


_CHECKED: Final[Table[Hashable, bool]] = Table("tl.checked")
"""Kernels that have passed, with the types of their arguments."""


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
    given = [_kind(kernel, *item) for item in arguments.items()]
    key = None if None in given else (kernel.environment(), *given)
    if key is not None and key[0] is not None and _CHECKED.get(key):
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
    error = task.error and told(task.error)
    if error is None or isinstance(error, Unjudged):
        if key is not None and key[0] is not None:
            _CHECKED.keep(key, True)
        return
    if isinstance(error, KernbenchError):
        error.add_fact(site_fact(site, f"{kernel.name} was issued at"))
        raise error
    raise error


def _kind(kernel: Kernel, name: str, value: Any) -> Hashable | None:
    """Returns all that a check depends on of an argument; None if that is unknown."""
    if isinstance(value, Pointer):
        return Pointer, value.dtype
    if name in kernel.constants:
        return kind_of(value)
    if isinstance(value, tuple):
        entries = tuple([_kind(kernel, "", each) for each in value])
        return None if None in entries else entries
    if type(value) is int and value != 1:
        return "int32" if -INT32 <= value < INT32 else "int64"
    return float if type(value) is float else kind_of(value)


def _argument(program: TypedProgram, value: Any) -> Any:
    """Returns what an argument without `tl.constexpr` is inside of the kernel.

    Triton takes the number 1 for a constant, since strides of 1 are so common.
    """
    if isinstance(value, tuple):
        return tuple([_argument(program, each) for each in value])
    constant = type(value) is int and value == 1
    return program.scalar(value) if isinstance(value, int | float) and not constant else value


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


class _Function(Expressions):
    """One call of a kernel's function, on values that are known by type only.

    Args:
        kernel: The function.
        program: The program that calls it.
        callers: Functions that are being called, with the types of their arguments.
    """

    def __init__(
        self, kernel: Kernel, program: TypedProgram, callers: tuple[tuple[Any, Any], ...]
    ) -> None:
        super().__init__(kernel, program)
        self._callers = callers
        self._returned: list[Any] = []
        self._loops = 0

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Visits the body.

        Args:
            arguments: Values by parameter name.

        Returns:
            What the function returns.
        """
        found = _definition(self.kernel.function.__code__)
        if found is None:
            raise CompilationError(
                f"Triton would not compile this kernel: {self.kernel.name} is no `def` of a file",
                hint="write it into a file, as `def` with @tl.jit above it",
                code="K12",
            )
        definition = found[0]
        for star, kind in ((definition.args.vararg, "*"), (definition.args.kwarg, "**")):
            if star is not None:
                raise self.not_compiled(
                    star, f"a parameter {kind}{star.arg}", "name the parameters one by one"
                )
        types = tuple([type_of(value) for value in arguments.values()])
        call = self.kernel.function, types
        if call in self._callers or len(self._callers) > _DEEPEST:
            raise self.not_compiled(
                definition,
                f"{self.kernel.name} calls itself",
                "write a loop; or put what follows the last call, which a tl.constexpr argument "
                "decides, under an else",
            )
        self._callers = (*self._callers, call)
        self.values = dict(arguments)
        self._body(definition.body)
        for value in self._returned[1:]:
            if not same_type(value, self._returned[0]):
                raise self.not_compiled(
                    definition,
                    f"{self.kernel.name} returns {shown(self._returned[0])} in one place and "
                    f"{shown(value)} in another",
                    "convert one of them with .to(dtype)",
                )
        return self._returned[0] if self._returned else None

    def inner(self, kernel: Kernel, args: list[Any], named: Values) -> Any:
        """See `Expressions`."""
        try:
            bound = kernel.signature.bind(*args, **named)
        except TypeError as error:
            raise Unjudged from error
        bound.apply_defaults()
        return _Function(kernel, self.program, self._callers).call(bound.arguments)

    # Statements

    def _body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)
            if isinstance(statement, ast.Return):
                break

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=value):
                self.visit(value)
            case ast.Assign(targets=targets, value=value):
                if len(targets) > 1:
                    raise self.not_compiled(node, "'a = b = value'", "assign one after the other")
                self.assign(targets[0], self.visit(value), node)
            case ast.AugAssign(target=target, op=op, value=value):
                load = ast.parse(ast.unparse(target), mode="eval").body
                for each in ast.walk(load):
                    ast.copy_location(each, target)
                both = ast.copy_location(ast.BinOp(load, op, value), node)
                self.assign(target, self.visit(both), node)
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
                    raise self.not_compiled(
                        node, "return inside of a loop", "choose the bounds of the loop before it"
                    )
                self._returned.append(None if value is None else self.visit(value))
            case ast.Assert(test=test, msg=msg):
                self.visit(test)
                if msg is not None:
                    self.visit(msg)
            case ast.Pass():
                pass
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                raise self.not_compiled(
                    node,
                    "a function inside of a kernel",
                    "move it to the top of the file, with @tl.jit",
                )
            case _:
                raise self.unsupported(node)

    def _annotated(
        self, node: ast.stmt, target: ast.expr, annotation: ast.expr, value: ast.expr | None
    ) -> None:
        constant = self._is_constexpr(annotation)
        if value is None:
            if constant and isinstance(target, ast.Name):
                self.marked.add(target.id)
        elif not constant:
            self.assign(target, self.visit(value), node)
        elif isinstance(target, ast.Name):
            if target.id in self.values:
                raise self.not_compiled(
                    node,
                    f"{target.id} has a value already, and a tl.constexpr cannot change",
                    "take another name",
                )
            self.values[target.id] = self.visit(value)

    def _is_constexpr(self, annotation: ast.expr) -> bool:
        name = annotation.attr if isinstance(annotation, ast.Attribute) else None
        if isinstance(annotation, ast.Name):
            name = annotation.id
        return name == "constexpr"

    def _if(self, node: ast.If) -> None:
        condition = self.visit(node.test)
        if not isinstance(condition, Tile | Pointer) and condition is not UNKNOWN:
            self._body(node.body if self.decided(node, condition) else node.orelse)
            return
        self.check_scalar(node, condition)
        if self._loops and any(isinstance(each, ast.Return) for each in ast.walk(node)):
            raise self.not_compiled(
                node, "return inside of a loop", "choose the bounds of the loop before it"
            )
        before, defined = self.values, self.defined
        branches: list[tuple[Values, set[str]]] = []
        for body in (node.body, node.orelse):
            self.values, self.defined = dict(before), set()
            self._body(body)
            branches.append((self.values, self.defined))
        (yes, in_yes), (no, in_no) = branches
        self.values, self.defined = dict(before), defined
        for name, value in before.items():
            if value is None or isinstance(value, DType) or yes[name] is no[name]:
                continue
            for branch in (yes, no):
                if not same_type(branch[name], value):
                    raise self._changed(node, name, value, branch[name], "in a branch of this if")
            self.define(name, yes[name])
        for name in sorted(in_yes & in_no):
            if not same_type(yes[name], no[name]):
                raise self.not_compiled(
                    node,
                    f"{name} is {shown(yes[name])} in one branch and {shown(no[name])} in the "
                    "other",
                    "give it one type and shape: .to(dtype), or a constant of the same type",
                )
            self.define(name, yes[name])

    def _for(self, node: ast.For) -> None:
        iterator = node.iter
        function = self.visit(iterator.func) if isinstance(iterator, ast.Call) else None
        if (
            not isinstance(iterator, ast.Call)
            or function not in (range, language.range, language.static_range)
            or not isinstance(node.target, ast.Name)
        ):
            raise self.not_compiled(
                iterator,
                "a loop goes over range, tl.range or tl.static_range only",
                "loop over the indices",
            )
        bounds = [self.visit(each) for each in iterator.args]
        bounds += [self.visit(each.value) for each in iterator.keywords if each.arg in _BOUNDS]
        if node.orelse:
            raise self.not_compiled(node.orelse[0], "else after a loop", "put it behind the loop")
        if function is language.static_range:
            self._unrolled(node, node.target.id, bounds)
            return
        wide = False
        for bound in bounds:
            if bound is UNKNOWN:
                continue
            tile = self.program.scalar(bound) if isinstance(bound, int | float) else bound
            if not isinstance(tile, Tile) or tile.shape or tile.dtype.is_floating_point:
                raise self.not_compiled(
                    iterator,
                    "the bounds of a loop are whole numbers"
                    + (f"; got {shown(bound)}" if isinstance(bound, Tile) else ""),
                    "convert with .to(tl.int32), or divide with '//'",
                )
            wide = wide or tile.dtype.itemsize == 8
        index = Tile(self.program, (), dtypes.int64 if wide else dtypes.int32, None, None)
        self.define(node.target.id, index)
        self._loop(node, node.target.id)

    def _unrolled(self, node: ast.For, name: str, bounds: Sequence[Any]) -> None:
        if any(not isinstance(bound, int) for bound in bounds):
            raise self.not_compiled(
                node.iter, "the bounds of tl.static_range are constants (tl.constexpr)", "use range"
            )
        for index in range(*bounds):
            self.values[name] = index
            self._body(node.body)

    def _while(self, node: ast.While) -> None:
        self._loop(node, None)
        condition = self.visit(node.test)
        if condition is not UNKNOWN and not isinstance(condition, Tile):
            raise self.not_compiled(
                node,
                "the condition of a while loop is a tile of one value",
                "compare a variable, or loop with range",
            )
        self.check_scalar(node, condition)
        if node.orelse:
            raise self.not_compiled(node.orelse[0], "else after a loop", "put it behind the loop")

    def _loop(self, node: ast.For | ast.While, index: str | None) -> None:
        """Visits the body of a loop: what it carries to the next turn keeps its type."""
        before, defined = dict(self.values), self.defined
        self.defined = set()
        self._loops += 1
        self._body(node.body)
        self._loops -= 1
        for name, value in before.items():
            now = self.values[name]
            if name == index or now is value:
                continue
            if value is None or isinstance(value, DType):
                changed = name in self.defined
            else:
                changed = isinstance(value, Tile | Pointer) != isinstance(now, Tile | Pointer)
                changed = changed or (
                    isinstance(value, Tile | Pointer) and not same_type(value, now)
                )
            if changed and not any_unknown(value, now):
                raise self._changed(node, name, value, now, "in this loop")
        self.values, self.defined = before, defined

    def _changed(
        self, node: ast.stmt, name: str, before: Any, after: Any, where: str
    ) -> CompilationError:
        place: ast.AST = node
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store):
                place = each
                break
        return self.not_compiled(
            place,
            f"{name} is {shown(before)} before and becomes {shown(after)} {where}",
            f"start with a value of the type and shape that {name} takes, such as tl.zeros, or "
            "convert with .to(dtype)",
        )
