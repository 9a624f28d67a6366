"""Errors of calls that were given arguments of other kinds than they take.

The public functions do not check the kinds of their arguments: this is the one place that does. The
types of a call's arguments are compared with the annotations of the function that the user called,
once for each combination of types. What only the entries of a list show is compared when the call
has failed, with any exception. If no argument is the reason, an exception of Python's own becomes
an error that names the call and the cause.
"""

import functools
import inspect
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from types import FrameType, FunctionType
from typing import Any, Final

import numpy as np

from kernbench.caches import cached
from kernbench.errors import (
    KernbenchError,
    OperandError,
    OptionError,
    call_site,
    is_ours,
    site_fact,
)
from kernbench.tensors import kinds
from kernbench.tensors.errors import DimensionError, TensorError
from kernbench.tensors.tensor import Tensor

Function = Callable[..., Any]

SYMPTOMS: Final = (
    ArithmeticError,
    AttributeError,
    IndexError,
    KernbenchError,
    TypeError,
    ValueError,
)
"""Exceptions that a wrong argument may cause; `refusal` decides whether it did."""

_CLASSES: Final[Sequence[tuple[type[Exception], type[KernbenchError]]]] = (
    (IndexError, DimensionError),
    (ValueError, OptionError),
    (ArithmeticError, TensorError),
)
"""What an exception of Python's becomes; every other one an `OperandError`."""

_READ_IN_CPP: Final[set[str]] = set()
_GUARDED_CLASSES: Final[set[str]] = set()
_TENSORS_TOLD: Final[set[str]] = set()
"""Modules and rooms by what their functions are like; each says so itself, see below."""

_ONE_TENSOR_OF_TWO: Final = frozenset(
    {"add", "sub", "mul", "multiply", "div", "divide", "true_divide", "floor_divide"}
    | {f"bitwise_{stem}" for stem in ("and", "or", "xor", "left_shift", "right_shift")}
    | {"remainder"}
)
"""Functions whose first operand may be a number, as in `torch.add(1, x)`."""

_NONE_IS_FALSE: Final = frozenset({"pin_memory", "requires_grad", "stable"})
"""Parameters for which PyTorch takes None as False."""

_NEEDS_NO_LOOK: Final = frozenset({"Any", "int | Sequence[int] | DType"})
"""Kinds of parameters of which the function itself finds what is wrong; the second is `view`'s."""

_KNOWN_TYPES: Final = 512
"""Most combinations of types that a function remembers."""

_guards: Final[dict[Function, Function]] = {}


def read_in_cpp(module: str) -> None:
    """Notes that PyTorch reads the arguments of functions in C++, where 1 is no bool.

    Args:
        module: `__name__` of the module, or of the room for all of its modules.
    """
    _READ_IN_CPP.add(module)


def guard_classes(room: str) -> None:
    """Notes that `guard` guards `__init__` of a room's classes, in subclasses elsewhere too.

    Args:
        room: `__name__` of the room.
    """
    _GUARDED_CLASSES.add(room)


def tensors_told(room: str) -> None:
    """Notes that a room tells itself what is wrong with a tensor.

    Args:
        room: `__name__` of the room.
    """
    _TENSORS_TOLD.add(room)


def _among(function: Function | type, noted: set[str]) -> bool:
    module = function.__module__
    return module in noted or module.rpartition(".")[0] in noted


def guard(names: dict[str, Any], *, imported: bool = False) -> None:
    """Makes the functions of a module, public or in `__all__`, name arguments of a wrong kind.

    Functions that other rooms and the operators of tensors call directly stay as they are. Of a
    class of a room that `guard_classes` has noted, `__init__` is guarded, in its subclasses too.

    Args:
        names: The module's `globals()`; functions in it are replaced.
        imported: Whether all that the module imports is public, too, as where names are passed on.
    """
    home, shown = names.get("__name__"), names.get("__all__", ())
    for name, value in list(names.items()):
        if name.startswith("_") and name not in shown:
            continue
        if isinstance(value, type):
            _guard_class(value)
            continue
        if not isinstance(value, FunctionType):
            continue
        own = home is None or value.__module__ == home
        if (own or imported or name in shown) and (guarded := guarded_function(value)) is not value:
            names[name] = guarded
            if home is not None and guarded.__module__ == value.__module__ != home:
                # `pickle` finds the function by this name.
                guarded.__module__, guarded.__qualname__ = home, name


def _guard_class(value: type) -> None:
    holder = next(each for each in value.__mro__ if "__init__" in vars(each))
    init = vars(holder)["__init__"]
    if isinstance(init, FunctionType) and _among(holder, _GUARDED_CLASSES):
        holder.__init__ = guarded_function(init)  # type: ignore[misc]


def guarded_function(function: FunctionType) -> Function:
    """Returns `function` with errors that name wrong arguments.

    Args:
        function: A function whose parameters are annotated.
    """
    if function in _guards:
        return _guards[function]
    plain = _plain(function)
    known: set[tuple[Any, ...]] = set()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            # The types of tensors and of operands that functions check themselves need no look.
            if len(args) > plain or (args and not isinstance(args[0], Tensor)):
                types = tuple(map(type, args))
                if types not in known:
                    args, kwargs = _judge(function, args, kwargs)
                    _remember(known, types)
            if kwargs and not known.issuperset(
                zip(kwargs, map(type, kwargs.values()), strict=True)
            ):
                for name, value in kwargs.items():
                    pair = name, type(value)
                    if pair not in known:
                        args, kwargs = _judge(function, args, kwargs)
                        _remember(known, pair)
            return function(*args, **kwargs)
        except SYMPTOMS as error:
            wrong = refusal(function, args, kwargs, error)
            if wrong is None:
                raise
            raise wrong from (None if isinstance(error, KernbenchError) else error)

    _guards[function] = _guards[call] = call
    return call


def _plain(function: FunctionType) -> int:
    """Returns how many arguments a call may have, by position, without a look at their types."""
    code, annotations = function.__code__, function.__annotations__
    if not code.co_argcount:
        return 0
    first = code.co_varnames[0]
    if first != "self" and kinds.text(annotations.get(first, Any)) != "Tensor":
        return 0
    count = 1
    for name in code.co_varnames[1 : code.co_argcount]:
        kind = kinds.text(annotations.get(name, Any))
        operand = kinds.takes_tensors(kind) and "float" in kinds.options(kind)
        if not (kind in _NEEDS_NO_LOOK or operand):
            return count
        count += 1
    if code.co_flags & inspect.CO_VARARGS:
        more = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
        if kinds.text(annotations.get(more, Any)) in _NEEDS_NO_LOOK:
            return sys.maxsize
    return count


def _judge(
    function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments, with Python's integers for numpy's where integers are taken.

    Raises:
        OperandError: If the type of an argument is none that the function takes.
    """
    wrong = _mistake(function, args, kwargs, deep=False)
    if wrong is not None:
        raise wrong
    if not any(isinstance(each, np.integer) for each in (*args, *kwargs.values())):
        return args, kwargs
    bound = _signature(function).bind(*args, **kwargs)
    for name, value in bound.arguments.items():
        parts = kinds.options(kinds.text(_signature(function).parameters[name].annotation))
        if "int" not in parts or "float" in parts:
            continue
        if isinstance(value, np.integer):
            bound.arguments[name] = int(value)
        elif isinstance(value, tuple):
            bound.arguments[name] = tuple(
                [int(each) if isinstance(each, np.integer) else each for each in value]
            )
    return bound.args, bound.kwargs


def _remember(known: set[tuple[Any, ...]], types: tuple[Any, ...]) -> None:
    # Numpy's integers are converted at every call.
    if any(isinstance(each, type) and issubclass(each, np.integer) for each in types):
        return
    if len(known) < _KNOWN_TYPES:
        known.add(types)


def refusal(
    function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception
) -> KernbenchError | None:
    """Returns the error to raise for a failed call; None if it is to be raised as it is.

    Args:
        function: The function that was called.
        error: What the call raised. What comes from a callback of the user is raised as it is.
    """
    if _from_user(error):
        return None
    told = isinstance(error, KernbenchError)
    wrong = _mistake(function, args, kwargs, deep=True, tensors_only=told)
    if wrong is not None or told:
        return wrong
    kind = next((ours for theirs, ours in _CLASSES if isinstance(error, theirs)), OperandError)
    shown = [*map(_shown, args), *(f"{name}={_shown(value)}" for name, value in kwargs.items())]
    return kind(
        f"{_name(function)}() cannot work with these arguments: {error}",
        [site_fact(call_site()), f"got {', '.join(shown)}"],
        hint=f"the call is {_usage(function)}",
    )


def _taken(function: Function, name: str, kind: str) -> str:
    """Returns what a parameter takes: its annotation, and what PyTorch takes beside it."""
    if _among(function, _TENSORS_TOLD) and kinds.takes_tensors(kind):
        return "Any"
    if name == "input" and function.__name__ in _ONE_TENSOR_OF_TWO:
        return f"{kind} | Scalar"
    return f"{kind} | None" if name in _NONE_IS_FALSE else kind


@cached("tensors.signatures")
def _signature(function: Function) -> inspect.Signature:
    return inspect.signature(function)


def _name(function: Function) -> str:
    return function.__qualname__.removesuffix(".__init__")


def _usage(function: Function) -> str:
    """Returns how a function is called, such as `sum(input, dim=None, keepdim=False)`."""
    signature = _signature(function)
    parameters = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    shown = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return f"{_name(function)}{shown}"


def _from_user(error: Exception) -> bool:
    """Returns whether an exception came through code of the user that our code has called."""
    traceback = error.__traceback__
    # The first frame is the guard's own.
    while traceback is not None:
        if not is_ours(traceback.tb_frame) and not _is_library(traceback.tb_frame):
            return True
        traceback = traceback.tb_next
    return False


def _is_library(frame: FrameType) -> bool:
    root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return root == "numpy" or root in sys.stdlib_module_names


def _mistake(
    function: Function,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    deep: bool,
    tensors_only: bool = False,
) -> OperandError | None:
    """Returns the error for arguments that a function does not take; None if it takes them."""
    signature = _signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        return OperandError(
            f"{_name(function)}(): {error}",
            [site_fact(call_site())],
            hint=f"the call is {_usage(function)}",
        )
    strict = _among(function, _READ_IN_CPP)
    annotated = {
        name: _taken(function, name, kinds.text(signature.parameters[name].annotation))
        for name in given
    }
    # An argument that should be a tensor is reported before any other.
    for name, kind in sorted(annotated.items(), key=lambda item: not kinds.takes_tensors(item[1])):
        parameter, value = signature.parameters[name], given[name]
        if parameter.kind is inspect.Parameter.VAR_KEYWORD or name == "self":
            continue
        if tensors_only and not kinds.takes_tensors(kind):
            continue
        several = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        for each in value if several else [value]:
            place = kinds.wrong_entry(each, kind, strict=strict, deep=deep)
            if place is not None:
                return _refused(function, name, kind, each, place)
    return None


def not_a_tensor(what: str, expected: str, value: object) -> OperandError:
    """Returns the error for a value that is no tensor: `{what} must be {expected}, not {type}`.

    Args:
        what: Name of the value in the report, such as `add(): argument 'other'`.
        expected: Name of the type that the value must have.
    """
    return OperandError(
        f"{what} must be {expected}, not {type_name(value)}",
        [site_fact(call_site()), *_described(value)],
        hint=hint_for(value),
    )


def hint_for(value: object) -> str:
    """Returns a hint how to make a tensor from a value; empty if there is no single way."""
    if isinstance(value, np.ndarray):
        return "torch.from_numpy(array) makes a tensor of it"
    if isinstance(value, list | tuple | Number | np.generic):
        return "torch.tensor(data) makes a tensor of it"
    return ""


def _refused(
    function: Function, name: str, kind: str, value: Any, place: Sequence[int]
) -> OperandError:
    for _ in place:
        kind = kinds.entry_kind(kind)
    where = name + "".join(f"[{index}]" for index in place)
    expected = "Tensor" if place and kinds.takes_tensors(kind) else kinds.in_words(kind)
    error = not_a_tensor(
        f"{_name(function)}(): argument {where!r}", expected, kinds.entry(value, place)
    )
    if not kinds.takes_tensors(kind):
        error.hint = f"the call is {_usage(function)}"
    return error


def _described(value: object) -> list[str]:
    if isinstance(value, np.ndarray):
        return [f"got an array of shape {list(value.shape)} and type {value.dtype}"]
    if isinstance(value, type):
        return [f"got {_qualified(value)}"]
    shown = isinstance(value, list | tuple | str | Number)
    return [f"got {_SHORT.repr(value)}"] if shown else []


def type_name(value: object) -> str:
    """Returns the name of a value's type, such as `list` or `numpy.ndarray`."""
    return _qualified(type(value))


def _qualified(kind: type) -> str:
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _shown(value: object) -> str:
    """Returns a value as the report of a call shows it, without addresses in memory."""
    if isinstance(value, Tensor):
        return f"Tensor{list(value.window.shape)}"
    if value is None or isinstance(value, list | tuple | str | Number):
        return _SHORT.repr(value)
    return type_name(value)


class _Short(reprlib.Repr):
    """Shows tensors without their values, for which the host would have to wait."""

    def repr1(self, x: object, level: int) -> str:
        if isinstance(x, Tensor):
            return f"Tensor{list(x.window.shape)}"
        return super().repr1(x, level)


_SHORT: Final = _Short()
