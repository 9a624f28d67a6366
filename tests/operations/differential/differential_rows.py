"""For each operation that kernbench offers, how its calls are drawn."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from differential_cases import (
    FLOATS,
    INTS,
    REALS,
    TYPES,
    Case,
    DTypeOf,
    Operand,
    drawn,
    operand,
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Draw = Callable[[Random], Arguments]
Row = Callable[[Random], Case]

ROWS: Final[dict[str, Row]] = {}
"""How a call of each operation is drawn, by the operation's name."""

NUMBERS: Final = (2, -3, 0, 1, 0.5, -1.5, 2.0, True, False, 100, float("nan"), float("inf"), 1 + 2j)
PAIRS: Final = (
    *(
        ((2, 3), (2, 3)),
        ((2, 3), (3,)),
        ((3,), (2, 3)),
        ((2, 1), (1, 3)),
        ((), (2, 3)),
        ((2, 3), ()),
    ),
    *(((), ()), ((1,), ()), ((0,), (1,)), ((0,), (0,)), ((2, 0), (1,)), ((2, 3, 4), (3, 1))),
    *(((5,), (5,)), ((2, 3, 4), (2, 3, 4)), ((2, 3), (2,)), ((2, 3), (3, 2)), ((0,), (3,))),
)


def add(names: str, draw: Draw, *, loose: bool = False, shapes_only: bool = False) -> None:
    """Adds rows of the same arguments.

    Args:
        names: Names of operations; `add` stands for `torch.add` and `Tensor.add`.
        draw: Draws the arguments.
        loose: Whether many roundings add up in the result.
        shapes_only: Whether the values do not count.
    """
    for name in names.split():
        full = [name] if "." in name else [f"torch.{name}", f"Tensor.{name}"]
        for each in full:
            assert each not in ROWS, each
            ROWS[each] = _row(each, draw, loose, shapes_only)


def _row(name: str, draw: Draw, loose: bool, shapes_only: bool) -> Row:
    def case(rng: Random) -> Case:
        args, kwargs = draw(rng)
        return Case(name, args, kwargs, loose, shapes_only)

    return case


def made(name: str, function: Callable[..., Any], draw: Draw, *, loose: bool = False) -> None:
    """Adds a row of what a function does with the library and its arguments."""

    def case(rng: Random) -> Case:
        args, kwargs = draw(rng)
        return Case(name, args, kwargs, loose, function=function)

    assert name not in ROWS, name
    ROWS[name] = case


def methods(names: str) -> str:
    """Returns names of methods."""
    return " ".join(f"Tensor.{name}" for name in names.split())


def functions(names: str) -> str:
    """Returns names of functions."""
    return " ".join(f"torch.{name}" for name in names.split())


def alone(rng: Random) -> Arguments:
    return (operand(rng, dtypes=TYPES),), {}


def some(rng: Random, **kwargs: Any) -> dict[str, Any]:
    """Returns each argument by keyword with a chance of one half; a list stands for its options."""
    chosen = {key: value for key, value in kwargs.items() if rng.random() < 0.5}
    return {key: drawn(rng, v) if isinstance(v, list) else v for key, v in chosen.items()}


def second(rng: Random, shape: tuple[int, ...], **options: Any) -> Any:
    """Returns the other operand of two: a number, or a tensor."""
    if rng.random() < 0.3:
        return drawn(rng, NUMBERS)
    return operand(rng, shape, **options)


def pair(rng: Random, **options: Any) -> tuple[Operand, Any]:
    a, b = drawn(rng, PAIRS)
    dtypes = TYPES if rng.random() < 0.15 else REALS
    first = operand(rng, a, **{"dtypes": dtypes, **options})
    same = {"dtype": first.dtype} if rng.random() < 0.4 else {"dtypes": dtypes}
    return first, second(rng, b, **{**same, **options})


def two(rng: Random) -> Arguments:
    return pair(rng), {}


# Element by element

add(
    "abs ceil cos erf exp expm1 floor isfinite isinf isnan log log1p log2 log10 logical_not neg "
    "reciprocal relu rsqrt sigmoid sign sin sqrt square tan tanh trunc bitwise_not angle conj real "
    "imag clone is_complex",
    alone,
)
add(
    methods(
        "abs_ ceil_ cos_ erf_ exp_ expm1_ floor_ log_ log1p_ log2_ log10_ neg_ reciprocal_ relu_ "
        "rsqrt_ sigmoid_ sign_ sin_ sqrt_ tan_ tanh_ trunc_ __neg__ __abs__ __invert__ __pos__ "
        "detach contiguous double float half bfloat16 long int short char byte bool cfloat cdouble "
        "cpu zero_ dim ndim numel nelement itemsize element_size nbytes is_floating_point "
        "is_contiguous shape dtype is_cpu is_cuda requires_grad is_leaf get_device "
        "data T mT size"
    ),
    alone,
)
add(functions("numel is_tensor is_floating_point"), alone)
add("round Tensor.round_", lambda rng: ((operand(rng),), some(rng, decimals=[0, 1, -1, 2])))
add(
    "add sub Tensor.add_ Tensor.sub_",
    lambda rng: (pair(rng), some(rng, alpha=[2, 0.5, -1, True]) if rng.random() < 0.3 else {}),
)
add(
    "mul multiply true_divide floor_divide remainder fmod maximum minimum "
    "eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor "
    + methods(
        "mul_ floor_divide_ remainder_ fmod_ logical_and_ logical_or_ bitwise_and_ bitwise_or_ "
        "bitwise_xor_ __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ "
        "__imul__ __truediv__ __rtruediv__ __itruediv__ __floordiv__ __rfloordiv__ __ifloordiv__ "
        "__mod__ __rmod__ __imod__ __lt__ __le__ __gt__ __ge__ __rand__ __ror__ __rxor__ __iand__ "
        "__ior__ __ixor__ __and__ __or__ __xor__ __eq__ __ne__"
    ),
    two,
)
add(
    "div divide Tensor.div_",
    lambda rng: (pair(rng), some(rng, rounding_mode=[None, "trunc", "floor", "ceil"])),
)
add("logaddexp logaddexp2", two)
add(
    "pow Tensor.pow_ Tensor.__pow__ Tensor.__ipow__ Tensor.__rpow__",
    lambda rng: (pair(rng, kind=drawn(rng, ["positive", "any"])), {}),
)


def _shift(rng: Random) -> Arguments:
    first = operand(rng, drawn(rng, PAIRS)[0], dtypes=(*INTS, *INTS, "bool", "float32"))
    amount = rng.randrange(0, 7)
    return (first, drawn(rng, [amount, Operand((), "int64", amount, kind="below:6")])), {}


add("bitwise_left_shift bitwise_right_shift", _shift)
add(methods("__lshift__ __rshift__ __ilshift__ __irshift__"), _shift)
add(
    methods("__rlshift__ __rrshift__"),
    lambda rng: (
        (
            Operand((2, 3), drawn(rng, ["int32", "int64"]), rng.randrange(99), kind="below:6"),
            rng.randrange(50),
        ),
        {},
    ),
)
add(
    "isclose",
    lambda rng: (pair(rng), some(rng, rtol=0.1, atol=0.5, equal_nan=[True, False])),
)
add("allclose equal", lambda rng: (pair(rng), {}))


def _clamp(rng: Random) -> Arguments:
    a, b = drawn(rng, PAIRS)
    first = operand(rng, a)
    bounds = [None, -1, 2, 0.5, 300, -300, "tensor"]
    low, high = (
        operand(rng, b) if each == "tensor" else each
        for each in (drawn(rng, bounds), drawn(rng, bounds))
    )
    return (first,), {"min": low, "max": high}


add("clamp Tensor.clamp_", _clamp)


def _three(rng: Random) -> Arguments:
    a, b = drawn(rng, PAIRS)
    dtype = drawn(rng, REALS)
    others = {"dtype": dtype} if rng.random() < 0.7 else {}
    args = operand(rng, a, dtype), operand(rng, b, **others), operand(rng, a, **others)
    return args, some(rng, value=[2, 0.5, -1])


add("addcmul addcdiv Tensor.addcmul_ Tensor.addcdiv_", _three)


def _lerp(rng: Random) -> Arguments:
    a, b = drawn(rng, PAIRS)
    dtype = drawn(rng, REALS)
    weight = drawn(rng, [0.25, 2, operand(rng, a, dtype), operand(rng, b)])
    return (
        operand(rng, a, dtype),
        operand(rng, b, drawn(rng, [dtype, dtype, "float32"])),
        weight,
    ), {}


add("lerp Tensor.lerp_", _lerp)


def _where(rng: Random) -> Arguments:
    a, b = drawn(rng, PAIRS)
    condition = operand(rng, a, drawn(rng, ["bool", "bool", "bool", "uint8", "int64"]))
    if rng.random() < 0.1:
        return (condition,), {}
    return (condition, second(rng, b), second(rng, a)), {}


add("torch.where", _where)


def _filled(rng: Random) -> Arguments:
    a, b = drawn(rng, PAIRS)
    value = drawn(rng, [*NUMBERS, -1, 300, 1e6, operand(rng, ()), operand(rng, b)])
    return (operand(rng, a), operand(rng, b, drawn(rng, ["bool", "bool", "uint8"])), value), {}


add("masked_fill Tensor.masked_fill_", _filled)
add(
    "Tensor.fill_",
    lambda rng: ((operand(rng), drawn(rng, [*NUMBERS, -1, 300, 1e6, operand(rng)])), {}),
)
add(
    "Tensor.copy_",
    lambda rng: ((operand(rng, drawn(rng, PAIRS)[0]), operand(rng, drawn(rng, PAIRS)[1])), {}),
)
add("Tensor.type_as", lambda rng: ((operand(rng), operand(rng)), {}))
add(
    "Tensor.to",
    lambda rng: (
        (operand(rng, dtypes=TYPES), drawn(rng, [DTypeOf(drawn(rng, TYPES)), operand(rng)])),
        {},
    ),
)
add(
    "torch.promote_types",
    lambda rng: ((DTypeOf(drawn(rng, TYPES)), DTypeOf(drawn(rng, TYPES))), {}),
)
add(
    "torch.complex",
    lambda rng: ((operand(rng, (2, 3)), operand(rng, drawn(rng, [(2, 3), (3,)]))), {}),
)
add(
    functions("view_as_complex view_as_real"),
    lambda rng: (
        (operand(rng, drawn(rng, [(2, 2), (3, 2), (2, 3), (2,), (), (0, 2)]), dtypes=TYPES),),
        {},
    ),
)

# Reductions


def dims_of(rng: Random, rank: int) -> Any:
    roll = rng.random()
    if roll < 0.55:
        return rng.randrange(-max(rank, 1), max(rank, 1))
    if roll < 0.65:
        return rng.randrange(-5, 5)
    count = rng.randrange(0, 3)
    return tuple(rng.randrange(-max(rank, 1), max(rank, 1)) for _ in range(count))


def dim_of(rng: Random, rank: int) -> int:
    if rng.random() < 0.1:
        return rng.randrange(-5, 5)
    return rng.randrange(-max(rank, 1), max(rank, 1))


def _over(rng: Random, several: bool, **more: Any) -> Arguments:
    first = operand(rng, dtypes=TYPES if rng.random() < 0.15 else REALS)
    kwargs: dict[str, Any] = {}
    if rng.random() < 0.75:
        rank = len(first.shape)
        kwargs["dim"] = dims_of(rng, rank) if several else dim_of(rng, rank)
        kwargs |= some(rng, keepdim=[True, False])
    return (first,), {
        **kwargs,
        **{k: v for k, v in some(rng, **more).items() if rng.random() < 0.5},
    }


ACCUMULATED = [DTypeOf(name) for name in ("float32", "float64", "int64", "bfloat16", "int32")]
add("sum mean", lambda rng: _over(rng, True, dtype=ACCUMULATED), loose=True)
add("prod", lambda rng: _over(rng, False, dtype=ACCUMULATED), loose=True)
add("amax amin all any", lambda rng: _over(rng, True))
add("argmax argmin", lambda rng: _over(rng, False))


def _extreme(rng: Random) -> Arguments:
    if rng.random() < 0.2:
        return pair(rng), {}
    return _over(rng, False)


add("max min", _extreme)


def _counted(rng: Random) -> Arguments:
    args, kwargs = _over(rng, True)
    kwargs.pop("keepdim", None)
    return args, kwargs


add("count_nonzero", _counted)
add(
    "var std",
    lambda rng: (
        _over(rng, True, correction=[0, 1, 2])
        if rng.random() < 0.6
        else _over(rng, True, unbiased=[True, False])
    ),
    loose=True,
)


def _norm(rng: Random) -> Arguments:
    args, kwargs = _over(rng, True)
    return args, {**kwargs, **some(rng, p=[1, 2, 3, 0, float("inf"), -float("inf"), "fro", 0.5])}


add("norm", _norm, loose=True)


def along(rng: Random, dtypes: Any = REALS) -> Arguments:
    first = operand(rng, dtypes=dtypes)
    return (first, dim_of(rng, len(first.shape))), {}


add("logsumexp", lambda rng: (along(rng)[0], some(rng, keepdim=[True, False])), loose=True)
add(
    "softmax log_softmax cumsum",
    lambda rng: (along(rng)[0], some(rng, dtype=ACCUMULATED)),
    loose=True,
)


def _sort(rng: Random) -> Arguments:
    (first, dim), _ = along(rng)
    return (first,), {"stable": True, **some(rng, dim=dim, descending=[True, False])}


add("sort argsort", _sort)


def _topk(rng: Random) -> Arguments:
    first = operand(rng, kind="distinct", layout="plain", dtypes=REALS[:-1])
    return (first, rng.randrange(0, 4)), some(
        rng, dim=dim_of(rng, len(first.shape)), largest=[True, False], sorted=True
    )


add("topk", _topk)
add(
    "unique",
    lambda rng: (
        (operand(rng),),
        some(rng, return_inverse=[True, False], return_counts=[True, False]),
    ),
)
add("nonzero", lambda rng: ((operand(rng, dtypes=TYPES),), some(rng, as_tuple=[True, False])))
add(
    "is_nonzero " + methods("item __bool__ __int__ __index__ __float__ __complex__"),
    lambda rng: ((operand(rng, drawn(rng, [(), (1,), (1, 1), (2,), (0,)]), dtypes=TYPES),), {}),
)
add("Tensor.tolist Tensor.__len__", alone)

# Products


def _product(*pairs: tuple[tuple[int, ...], tuple[int, ...]]) -> Draw:
    wrong = (((2, 3), (2, 3)), ((2,), (3,)), ((), (2,)), ((2, 3, 4), (4,)), ((1, 2, 3), (2, 3, 2)))

    def draw(rng: Random) -> Arguments:
        a, b = drawn(rng, pairs if rng.random() < 0.85 else wrong)
        dtype = drawn(rng, TYPES if rng.random() < 0.2 else REALS)
        other = dtype if rng.random() < 0.9 else drawn(rng, REALS)
        return (operand(rng, a, dtype, kind="small"), operand(rng, b, other, kind="small")), {}

    return draw


_VECTORS: Final = (((3,), (3,)), ((0,), (0,)), ((1,), (1,)), ((5,), (5,)))
_MM: Final = (
    ((2, 3), (3, 4)),
    ((1, 3), (3, 1)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
    ((3, 3), (3, 3)),
)
_BMM: Final = (
    ((2, 3, 4), (2, 4, 2)),
    ((1, 2, 3), (1, 3, 1)),
    ((0, 2, 3), (0, 3, 2)),
    ((2, 2, 0), (2, 0, 3)),
)
_MV: Final = (((2, 3), (3,)), ((0, 3), (3,)), ((2, 0), (0,)), ((1, 1), (1,)))
_MIXED: Final = (
    ((2, 2, 3), (3, 2)),
    ((3,), (2, 3, 2)),
    ((2, 1, 2, 3), (4, 3, 2)),
    ((2, 2, 3), (3,)),
)
add("mm", _product(*_MM), loose=True)
add("bmm", _product(*_BMM), loose=True)
add("mv", _product(*_MV), loose=True)
add("dot", _product(*_VECTORS), loose=True)
add(
    "inner",
    _product(*_VECTORS, ((2, 3), (4, 3)), ((2, 3), (3,)), ((), (2, 3)), ((2, 0), (3, 0))),
    loose=True,
)
add("outer", _product(((2,), (3,)), ((0,), (3,)), ((1,), (1,))), loose=True)
add("matmul Tensor.__matmul__", _product(*_VECTORS, *_MM, *_BMM, *_MV, *_MIXED), loose=True)


def _added(pairs: Any) -> Draw:
    def draw(rng: Random) -> Arguments:
        (a, b), _ = _product(*pairs)(rng)
        full = (*a.shape[:-1], b.shape[-1]) if b.shape else ()
        shape = drawn(rng, [full, full[-1:], (1,), (), (2, 2)])
        first = operand(rng, shape, a.dtype, kind="small")
        return (first, a, b), some(rng, beta=[0, 2, 0.5], alpha=[1, -1, 0.5])

    return draw


add("addmm", _added(_MM), loose=True)
add("baddbmm", _added(_BMM), loose=True)


def _einsum(rng: Random) -> Arguments:
    text, *shapes = drawn(
        rng,
        [
            ("ij,jk->ik", (2, 3), (3, 4)),
            ("ij->ji", (2, 3)),
            ("ii->i", (3, 3)),
            ("ii", (3, 3)),
            ("i,j", (2,), (3,)),
            ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)),
            ("...ij,...jk->...ik", (2, 2, 3), (3, 2)),
            ("ij->", (2, 3)),
            ("i,i->", (0,), (0,)),
            ("ij,jk", (2, 3), (2, 4)),
            ("ij,jk,kl->il", (2, 3), (3, 2), (2, 4)),
        ],
    )
    dtype = drawn(rng, (*FLOATS, "int64"))
    return (text, *[operand(rng, shape, dtype, kind="small") for shape in shapes]), {}


add("torch.einsum", _einsum, loose=True)


def _tensordot(rng: Random) -> Arguments:
    a, b, dims = drawn(
        rng,
        [
            ((2, 3), (3, 4), 1),
            ((2, 3), (2, 3), 2),
            ((2, 3), (4,), 0),
            ((2, 3, 4), (4, 3), [[1, 2], [1, 0]]),
            ((2, 3), (2, 4), [[0], [0]]),
            ((2, 3), (2, 4), 1),
            ((), (), 0),
        ],
    )
    dtype = drawn(rng, (*FLOATS, "int64"))
    return (operand(rng, a, dtype, kind="small"), operand(rng, b, dtype, kind="small")), {
        "dims": dims
    }


add("torch.tensordot", _tensordot, loose=True)
