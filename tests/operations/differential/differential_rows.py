"""For each operation that kernbench offers, how its calls are drawn."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from differential_cases import (
    COMPLEX,
    FLOATS,
    INTS,
    MATRICES,
    REALS,
    SHAPES,
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
add(functions("numel is_tensor"), alone)
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
add(
    "pow Tensor.pow_ Tensor.__pow__ Tensor.__ipow__ Tensor.__rpow__",
    lambda rng: (pair(rng, kind=drawn(rng, ["positive", "any"])), {}),
)


def _shift(rng: Random) -> Arguments:
    first = operand(rng, drawn(rng, PAIRS)[0], dtypes=(*INTS, *INTS, "bool", "float32"))
    amount = rng.randrange(0, 7)
    return (first, drawn(rng, [amount, Operand((), "int64", amount, kind="below:6")])), {}


add("bitwise_left_shift bitwise_right_shift", _shift)
add(methods("__lshift__ __rshift__"), _shift)
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


def _dims(rng: Random, rank: int) -> Any:
    roll = rng.random()
    if roll < 0.55:
        return rng.randrange(-max(rank, 1), max(rank, 1))
    if roll < 0.65:
        return rng.randrange(-5, 5)
    count = rng.randrange(0, 3)
    return tuple(rng.randrange(-max(rank, 1), max(rank, 1)) for _ in range(count))


def _dim(rng: Random, rank: int) -> int:
    if rng.random() < 0.1:
        return rng.randrange(-5, 5)
    return rng.randrange(-max(rank, 1), max(rank, 1))


def _over(rng: Random, several: bool, **more: Any) -> Arguments:
    first = operand(rng, dtypes=TYPES if rng.random() < 0.15 else REALS)
    kwargs: dict[str, Any] = {}
    if rng.random() < 0.75:
        rank = len(first.shape)
        kwargs["dim"] = _dims(rng, rank) if several else _dim(rng, rank)
        kwargs |= some(rng, keepdim=[True, False])
    return (first,), {
        **kwargs,
        **{k: v for k, v in some(rng, **more).items() if rng.random() < 0.5},
    }


_dtype = [DTypeOf(name) for name in ("float32", "float64", "int64", "bfloat16", "int32")]
add("sum mean", lambda rng: _over(rng, True, dtype=_dtype), loose=True)
add("prod", lambda rng: _over(rng, False, dtype=_dtype), loose=True)
add("amax amin all any", lambda rng: _over(rng, True))
add("argmax argmin", lambda rng: _over(rng, False))


def _extreme(rng: Random) -> Arguments:
    if rng.random() < 0.2:
        return pair(rng), {}
    return _over(rng, False)


add("max min", _extreme)
add(
    "count_nonzero",
    lambda rng: (lambda a: (a[0], {k: v for k, v in a[1].items() if k == "dim"}))(_over(rng, True)),
)
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


def _along(rng: Random, dtypes: Any = REALS) -> Arguments:
    first = operand(rng, dtypes=dtypes)
    return (first, _dim(rng, len(first.shape))), {}


add("logsumexp", lambda rng: (_along(rng)[0], some(rng, keepdim=[True, False])), loose=True)
add("softmax log_softmax cumsum", lambda rng: (_along(rng)[0], some(rng, dtype=_dtype)), loose=True)


def _sort(rng: Random) -> Arguments:
    (first, dim), _ = _along(rng)
    return (first,), {"stable": True, **some(rng, dim=dim, descending=[True, False])}


add("sort argsort", _sort)


def _topk(rng: Random) -> Arguments:
    first = operand(rng, kind="distinct", dtypes=[each for each in REALS if each != "bool"])
    return (first, rng.randrange(0, 4)), some(
        rng, dim=_dim(rng, len(first.shape)), largest=[True, False], sorted=True
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
    "is_nonzero Tensor.item Tensor.__bool__ Tensor.__int__ Tensor.__index__ Tensor.__float__ Tensor.__complex__",
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

# Shapes

ANY: Final = {"dtypes": ("float32", "int64", "bool", "bfloat16", "complex64")}


def _sized(rng: Random, first: Operand) -> Any:
    count = 1
    for extent in first.shape:
        count *= extent
    options = [
        (count,),
        (-1,),
        (1, count),
        (count, 1, 1),
        first.shape,
        (2, -1),
        (-1, 3),
        (-1, -1),
        (7,),
        (),
        (0,),
    ]
    return drawn(rng, options)


def _reshape(rng: Random) -> Arguments:
    first = operand(rng, **ANY)
    return (first, _sized(rng, first)), {}


add("reshape Tensor.view", _reshape)
add(
    "Tensor.view_as Tensor.reshape_as Tensor.expand_as",
    lambda rng: ((operand(rng, **ANY), operand(rng, **ANY)), {}),
)


def _numbered(count: int) -> Draw:
    def draw(rng: Random) -> Arguments:
        first = operand(rng, **ANY)
        return (first, *[_dim(rng, len(first.shape)) for _ in range(count)]), {}

    return draw


add("transpose swapaxes", _numbered(2))
add("unsqueeze", lambda rng: (lambda o: ((o, rng.randrange(-5, 5)), {}))(operand(rng, **ANY)))
add("unbind", _numbered(1))
add("t", lambda rng: ((operand(rng, **ANY),), {}))


def _squeeze(rng: Random) -> Arguments:
    first = operand(rng, shapes=(*SHAPES, (1, 1, 3), (2, 1, 1)), **ANY)
    return (first,), {} if rng.random() < 0.3 else {"dim": _dims(rng, len(first.shape))}


add("squeeze", _squeeze)


def _permute(rng: Random) -> Arguments:
    first = operand(rng, **ANY)
    order = list(range(len(first.shape)))
    rng.shuffle(order)
    if rng.random() < 0.2:
        order = [rng.randrange(-3, 3) for _ in range(rng.randrange(0, 4))]
    return (first, tuple(order)), {}


add("permute", _permute)


def _movedim(rng: Random) -> Arguments:
    first = operand(rng, **ANY)
    rank = len(first.shape)
    if rng.random() < 0.5:
        return (first, _dim(rng, rank), _dim(rng, rank)), {}
    count = rng.randrange(0, 3)
    return (first, *[tuple(_dim(rng, rank) for _ in range(count)) for _ in range(2)]), {}


add("movedim", _movedim)


def _flatten(rng: Random) -> Arguments:
    first = operand(rng, shapes=(*SHAPES, (2, 2, 3, 2)), **ANY)
    rank = len(first.shape)
    return (first,), some(rng, start_dim=_dim(rng, rank), end_dim=_dim(rng, rank))


add("flatten", _flatten)
add(
    "unflatten",
    lambda rng: (
        (
            operand(rng, shapes=((6,), (2, 6), (6, 2), (0,), ()), **ANY),
            rng.randrange(-2, 2),
            drawn(rng, [(2, 3), (-1, 2), (6,), (1, 6), (2, 2), (-1, -1), (0, -1), ()]),
        ),
        {},
    ),
)


def _expand(rng: Random) -> Arguments:
    a, b = drawn(rng, PAIRS)
    return (
        operand(rng, a, **ANY),
        drawn(rng, [b, a, (2, *a), (-1, *a), (*a, 3), (-1,) * len(a)]),
    ), {}


add("Tensor.expand broadcast_to", _expand)


def _narrow(rng: Random) -> Arguments:
    first = operand(rng, **ANY)
    return (first, _dim(rng, len(first.shape)), rng.randrange(-3, 4), rng.randrange(-1, 4)), {}


add("narrow", _narrow)


def _select(rng: Random) -> Arguments:
    first = operand(rng, **ANY)
    return (first, _dim(rng, len(first.shape)), rng.randrange(-4, 4)), {}


add("select", _select)


def _split(rng: Random) -> Arguments:
    first = operand(rng, **ANY)
    size = drawn(rng, [1, 2, 3, 5, 0, -1, [1, 2], [1, 1], [2, 3], [], [3, -1]])
    return (first, size), some(rng, dim=_dim(rng, len(first.shape)))


add("split", _split)
add(
    "chunk",
    lambda rng: (lambda o: ((o, rng.randrange(-1, 5)), some(rng, dim=_dim(rng, len(o.shape)))))(
        operand(rng, **ANY)
    ),
)


def _diagonal(rng: Random) -> Arguments:
    first = operand(rng, shapes=MATRICES if rng.random() < 0.8 else SHAPES, **ANY)
    rank = len(first.shape)
    return (first,), some(
        rng, offset=rng.randrange(-4, 4), dim1=_dim(rng, rank), dim2=_dim(rng, rank)
    )


add("diagonal", _diagonal)
add(
    "tril triu",
    lambda rng: (
        (operand(rng, shapes=MATRICES if rng.random() < 0.8 else SHAPES, **ANY),),
        some(rng, diagonal=rng.randrange(-3, 4)),
    ),
)
add(
    "Tensor.repeat",
    lambda rng: (
        (
            operand(rng, **ANY),
            tuple(
                rng.randrange(-1 if rng.random() < 0.05 else 0, 3)
                for _ in range(rng.randrange(0, 5))
            ),
        ),
        {},
    ),
)


def _repeat_interleave(rng: Random) -> Arguments:
    first = operand(rng, **ANY)
    kwargs = some(rng, dim=_dim(rng, len(first.shape)))
    if rng.random() < 0.1:
        kwargs["output_size"] = rng.randrange(0, 12)
    return (first, rng.randrange(-1, 4)), kwargs


add("repeat_interleave", _repeat_interleave)


def _flip(rng: Random) -> Arguments:
    first = operand(rng, **ANY)
    dims = _dims(rng, len(first.shape))
    return (first, (dims,) if isinstance(dims, int) else dims), {}


add("flip", _flip)


def _roll(rng: Random) -> Arguments:
    first = operand(rng, **ANY)
    dims = _dims(rng, len(first.shape))
    if rng.random() < 0.3:
        return (first, rng.randrange(-5, 6)), {}
    if isinstance(dims, int):
        return (first, rng.randrange(-5, 6), dims), {}
    return (
        first,
        tuple(
            rng.randrange(-5, 6)
            for _ in range(max(0, len(dims) + rng.randrange(-1, 2) * (rng.random() < 0.2)))
        ),
        dims,
    ), {}


add("roll", _roll)


def _joined(rng: Random) -> tuple[list[Operand], int]:
    shape = list(drawn(rng, SHAPES))
    dim = _dim(rng, len(shape))
    dtype = drawn(rng, REALS)
    parts = []
    for _ in range(rng.randrange(0 if rng.random() < 0.05 else 1, 4)):
        extents = list(shape)
        if extents and rng.random() < 0.4 and -len(extents) <= dim < len(extents):
            extents[dim] = rng.randrange(0, 4)
        if rng.random() < 0.05:
            extents = list(drawn(rng, SHAPES))
        other = dtype if rng.random() < 0.7 else drawn(rng, REALS)
        parts.append(operand(rng, tuple(extents), other))
    return parts, dim


add(functions("cat concat"), lambda rng: (lambda p: ((p[0],), some(rng, dim=p[1])))(_joined(rng)))
add(functions("hstack vstack"), lambda rng: ((_joined(rng)[0],), {}))


def _stack(rng: Random) -> Arguments:
    shape = drawn(rng, SHAPES)
    count = rng.randrange(0 if rng.random() < 0.05 else 1, 4)
    dtype = drawn(rng, REALS)
    parts = [
        operand(rng, shape if rng.random() < 0.95 else None, dtype if rng.random() < 0.8 else None)
        for _ in range(count)
    ]
    return (parts,), some(rng, dim=rng.randrange(-len(shape) - 1, len(shape) + 1))


add("torch.stack", _stack)

# Indices


def _index_select(rng: Random) -> Arguments:
    first = operand(rng, **ANY)
    rank = len(first.shape)
    dim = _dim(rng, rank)
    extent = first.shape[dim] if rank and -rank <= dim < rank else 1
    dtype = drawn(rng, ["int64", "int64", "int32", "float32", "int16"])
    shape = drawn(rng, [(2,), (0,), (1,), (), (1, 2)]) if extent else (0,)
    return (
        first,
        dim,
        operand(rng, shape, dtype, kind=f"below:{max(extent, 1)}", layout="plain"),
    ), {}


add("index_select", _index_select)


def _chosen(rng: Random, first: Operand) -> tuple[int, Operand]:
    rank = len(first.shape)
    dim = _dim(rng, rank)
    inside = bool(rank) and -rank <= dim < rank
    extent = first.shape[dim] if inside else 1
    shape = [rng.randrange(0 if rng.random() < 0.1 else min(n, 1), n + 1) for n in first.shape]
    if inside:
        shape[dim] = rng.randrange(0, 4) if extent else 0
    if rng.random() < 0.08:
        shape = list(drawn(rng, SHAPES))
    dtype = drawn(rng, ["int64", "int64", "int64", "int32", "int16"])
    return dim, operand(rng, tuple(shape), dtype, kind=f"below:{max(extent, 1)}", layout="plain")


def _gather(rng: Random) -> Arguments:
    first = operand(rng, **ANY)
    return (first, *_chosen(rng, first)), {}


add("gather", _gather)


def _scatter(rng: Random) -> Arguments:
    first = operand(
        rng, kind="small", layout="plain", dtypes=("float32", "int64", "float64", "bfloat16")
    )
    dim, index = _chosen(rng, first)
    # No index twice: which of several values stays is not defined.
    index = Operand(tuple(min(n, 1) for n in index.shape), index.dtype, index.seed, kind=index.kind)
    if rng.random() < 0.3:
        return (first, dim, index), {"value": drawn(rng, [2, 0.5, True])}
    source = operand(
        rng, drawn(rng, [index.shape, first.shape]), drawn(rng, [first.dtype] * 4 + ["float32"])
    )
    return (first, dim, index, source), {}


add("scatter Tensor.scatter_", _scatter)


def _scatter_add(rng: Random) -> Arguments:
    first = operand(rng, kind="small", layout="plain", dtypes=("float32", "int64", "float64"))
    dim, index = _chosen(rng, first)
    return (first, dim, index, operand(rng, index.shape, first.dtype, kind="small")), {}


add("Tensor.scatter_add_", _scatter_add, loose=True)


def _key(rng: Random, shape: tuple[int, ...]) -> Any:
    def entry(extent: int) -> Any:
        kind = rng.randrange(12)
        if kind < 2:
            return (
                rng.randrange(-extent - (rng.random() < 0.1), extent + (rng.random() < 0.1))
                if extent
                else 0
            )
        if kind < 5:
            bounds = [None, *range(-extent - 1, extent + 2)]
            return slice(drawn(rng, bounds), drawn(rng, bounds), drawn(rng, [None, None, 1, 2]))
        if kind == 5:
            return None
        if kind == 6:
            return ...
        if kind == 7:
            return drawn(rng, [True, False, Operand((), "bool", rng.randrange(9))])
        below = f"below:{max(extent, 1)}"
        if kind == 8:
            return Operand((extent,), "bool", rng.randrange(99))
        if kind == 9:
            return Operand(
                (), drawn(rng, ["int64", "int32", "uint8"]), rng.randrange(99), kind=below
            )
        if kind == 10 and extent:
            return [rng.randrange(-extent, extent) for _ in range(2)]
        shape = drawn(rng, [(2,), (1,), (2, 1), (0,)]) if extent else (0,)
        return Operand(
            shape, drawn(rng, ["int64", "int32", "int64", "int8"]), rng.randrange(99), kind=below
        )

    if rng.random() < 0.1:
        return Operand(shape, "bool", rng.randrange(99))
    count = rng.randrange(0, len(shape) + 1) + (rng.random() < 0.2)
    key = tuple(entry(shape[min(d, len(shape) - 1)] if shape else 0) for d in range(count))
    if sum(each is ... for each in key) > 1:
        key = tuple(each for each in key if each is not ...)
    return key[0] if len(key) == 1 and rng.random() < 0.7 else key


def _getitem(rng: Random) -> Arguments:
    first = operand(rng, shapes=(*SHAPES, (2, 3, 4), (3, 4), (2, 3, 4)), **ANY)
    return (first, _key(rng, first.shape)), {}


add("Tensor.__getitem__", _getitem)


def _setitem(rng: Random) -> Arguments:
    (first, key), _ = _getitem(rng)
    first = operand(rng, first.shape, **ANY)
    value = drawn(
        rng,
        [
            *NUMBERS[:8],
            operand(rng, (), first.dtype),
            operand(rng, drawn(rng, [(), (1,), (1, 1)])),
            operand(rng, drawn(rng, SHAPES), first.dtype),
            [1, 2],
        ],
    )
    return (first, key, value), {}


add("Tensor.__setitem__", _setitem)
add(
    "Tensor.__contains__",
    lambda rng: ((operand(rng), drawn(rng, [1, 0.5, True, operand(rng, ())])), {}),
)

# New tensors


def _size(rng: Random) -> Any:
    return drawn(rng, [*SHAPES, (-1,), (2.5,)] if rng.random() < 0.1 else SHAPES)


def _of_size(rng: Random) -> Arguments:
    size = _size(rng)
    args = tuple(size) if size and rng.random() < 0.5 else (size,)
    return args, some(rng, dtype=[DTypeOf(each) for each in TYPES], requires_grad=[True, False])


def _filler(rng: Random) -> Any:
    return drawn(rng, [*NUMBERS, -1, 300, 1e6, -300])


add(functions("zeros ones"), _of_size)
add("torch.empty", _of_size, shapes_only=True)
add(functions("rand randn"), _of_size, shapes_only=True)
add(
    "torch.full",
    lambda rng: ((_size(rng), _filler(rng)), some(rng, dtype=[DTypeOf(each) for each in TYPES])),
)
add(
    functions("zeros_like ones_like"),
    lambda rng: ((operand(rng, dtypes=TYPES),), some(rng, dtype=[DTypeOf(each) for each in TYPES])),
)
add(
    functions("empty_like rand_like randn_like"),
    lambda rng: ((operand(rng, dtypes=TYPES),), some(rng, dtype=[DTypeOf(each) for each in TYPES])),
    shapes_only=True,
)
add(
    "torch.full_like",
    lambda rng: (
        (operand(rng, dtypes=TYPES), _filler(rng)),
        some(rng, dtype=[DTypeOf(each) for each in TYPES]),
    ),
)
add(
    methods("new_zeros new_ones"),
    lambda rng: (
        (operand(rng, dtypes=TYPES), _size(rng)),
        some(rng, dtype=[DTypeOf(each) for each in TYPES]),
    ),
)
add("Tensor.new_empty", lambda rng: ((operand(rng), _size(rng)), {}), shapes_only=True)
add("Tensor.new_full", lambda rng: ((operand(rng, dtypes=TYPES), _size(rng), _filler(rng)), {}))


def _arange(rng: Random) -> Arguments:
    bounds = [0, 5, -3, 2.5, 0.5, 10, 7, -0.5, True]
    steps = [1, 2, -1, 0.5, 0.3, -0.7, 3, 0]
    args = [drawn(rng, bounds) for _ in range(rng.randrange(1, 3))]
    if len(args) == 2 and rng.random() < 0.7:
        args.append(drawn(rng, steps))
    return tuple(args), some(rng, dtype=[DTypeOf(each) for each in TYPES])


add("torch.arange", _arange)
add(
    "torch.linspace",
    lambda rng: (
        (drawn(rng, [0, 1.5, -2, 3]), drawn(rng, [1, -1.5, 10, 0]), rng.randrange(-1, 6)),
        some(rng, dtype=[DTypeOf(each) for each in TYPES]),
    ),
)
add(
    "torch.eye",
    lambda rng: (
        tuple(
            rng.randrange(-1 if rng.random() < 0.1 else 0, 5) for _ in range(rng.randrange(1, 3))
        ),
        some(rng, dtype=[DTypeOf(each) for each in TYPES]),
    ),
)


def _data(rng: Random) -> Any:
    numbers = [1, 0, -2, 2.5, True, 1 + 1j, 300, -1, float("nan"), 1e6]
    few = [drawn(rng, numbers[: rng.randrange(1, len(numbers) + 1)]) for _ in range(4)]
    return drawn(
        rng,
        [
            few[0],
            few,
            [few, few],
            [few[:2], few[2:]],
            [],
            [[]],
            [few, few[:2]],
            (few[0],),
            [[1], 2],
            "a",
            None,
        ],
    )


add(
    functions("tensor as_tensor"),
    lambda rng: (
        (drawn(rng, [_data(rng), _data(rng), operand(rng)]),),
        some(rng, dtype=[DTypeOf(each) for each in TYPES]),
    ),
)
add("torch.normal", lambda rng: ((0.0, 1.0, _size(rng)), {}), shapes_only=True)
add(
    "torch.randint",
    lambda rng: (
        (rng.randrange(-2, 5), rng.randrange(-2, 6), _size(rng)),
        some(rng, dtype=[DTypeOf(each) for each in TYPES]),
    ),
    shapes_only=True,
)
add(
    "torch.randperm",
    lambda rng: ((rng.randrange(-1, 6),), some(rng, dtype=[DTypeOf(each) for each in TYPES])),
    shapes_only=True,
)
add(
    "bernoulli",
    lambda rng: ((operand(rng, kind="positive"),), {"p": drawn(rng, [0.5, 0, 1])}),
    shapes_only=True,
)
add(methods("normal_ uniform_"), lambda rng: ((operand(rng, dtypes=TYPES),), {}), shapes_only=True)

# Networks

DIMS = (0, -1, 1)
add("torch.nn.functional.relu", alone)
add("torch.nn.functional.silu", alone)
add(
    "torch.nn.functional.gelu",
    lambda rng: ((operand(rng),), some(rng, approximate=["none", "tanh", "x"])),
)
add(
    "torch.nn.functional.softmax torch.nn.functional.log_softmax",
    lambda rng: (lambda a: ((a[0][0],), {"dim": a[0][1], **some(rng, dtype=_dtype)}))(_along(rng)),
    loose=True,
)
add(
    "torch.nn.functional.dropout",
    lambda rng: (
        (operand(rng),),
        {"p": drawn(rng, [0.0, 0.0, 1.0, 1.5]), **some(rng, training=[False, True])},
    ),
)


def _linear(rng: Random) -> Arguments:
    shape, weight = drawn(
        rng,
        [
            ((2, 3), (4, 3)),
            ((3,), (4, 3)),
            ((2, 2, 3), (1, 3)),
            ((0, 3), (2, 3)),
            ((2, 0), (3, 0)),
            ((2, 3), (3, 2)),
            ((2, 3), (3,)),
            ((), (2, 3)),
        ],
    )
    dtype = drawn(rng, (*FLOATS, "int64"))
    bias = drawn(
        rng,
        [
            None,
            operand(rng, weight[:1], dtype, kind="small"),
            operand(rng, (), dtype),
            operand(rng, (5,), dtype),
        ],
    )
    return (
        operand(rng, shape, dtype, kind="small"),
        operand(rng, weight, dtype, kind="small"),
        bias,
    ), {}


add("torch.nn.functional.linear", _linear, loose=True)


def _embedding(rng: Random) -> Arguments:
    index = operand(
        rng, drawn(rng, SHAPES), drawn(rng, ["int64", "int64", "int32", "float32"]), kind="below:4"
    )
    weight = operand(
        rng, drawn(rng, [(4, 3), (4, 1), (4, 0), (4,), (4, 2, 2)]), dtypes=FLOATS, kind="small"
    )
    return (index, weight), some(rng, padding_idx=[0, -1, 5]) if rng.random() < 0.3 else {}


add("torch.nn.functional.embedding", _embedding, loose=True)


def _normalised(rng: Random) -> tuple[Operand, list[int], list[Any]]:
    dtype = drawn(rng, FLOATS)
    first = operand(rng, drawn(rng, [(2, 3), (3,), (2, 3, 4), (0, 3), (2, 1)]), dtype, kind="small")
    shape = list(first.shape[-rng.randrange(1, len(first.shape) + 1) :])
    if rng.random() < 0.05:
        shape = [7]
    return (
        first,
        shape,
        [operand(rng, tuple(shape), dtype) if rng.random() < 0.6 else None for _ in range(2)],
    )


def _layer_norm(rng: Random) -> Arguments:
    first, shape, (weight, bias) = _normalised(rng)
    return (first, shape, weight, bias), some(rng, eps=0.1)


def _rms_norm(rng: Random) -> Arguments:
    first, shape, (weight, _) = _normalised(rng)
    return (first, shape, weight), some(rng, eps=[0.1, None])


add("torch.nn.functional.layer_norm", _layer_norm, loose=True)
add("torch.nn.functional.rms_norm", _rms_norm, loose=True)


def _attention(rng: Random) -> Arguments:
    dtype = drawn(rng, FLOATS)
    head = drawn(rng, [(), (2,), (2, 2)])
    query, key = rng.randrange(1, 4), rng.randrange(1, 4)
    tensors = [operand(rng, (*head, n, 4), dtype, kind="small") for n in (query, key, key)]
    kwargs: dict[str, Any] = some(rng, scale=[0.5, None])
    if rng.random() < 0.3:
        kwargs["is_causal"] = True
    elif rng.random() < 0.4:
        kwargs["attn_mask"] = operand(
            rng, (query, key), drawn(rng, ["bool", dtype]), kind="small", grad=False
        )
    return tuple(tensors), kwargs


add("torch.nn.functional.scaled_dot_product_attention", _attention, loose=True)
_reduction = ["mean", "sum", "none", "x"]


def _classes(rng: Random) -> Arguments:
    shape, target = drawn(
        rng,
        [
            ((3, 4), (3,)),
            ((4,), ()),
            ((1, 2), (1,)),
            ((0, 4), (0,)),
            ((3, 4), (2,)),
            ((2, 4, 3), (2, 3)),
        ],
    )
    kwargs = some(rng, reduction=_reduction)
    if rng.random() < 0.2:
        kwargs["ignore_index"] = drawn(rng, [1, -100])
    if rng.random() < 0.3:
        kwargs["weight"] = operand(rng, shape[1:2] or shape, "float32", kind="positive", grad=False)
    dtype = "float32" if "weight" in kwargs else drawn(rng, FLOATS)
    below = f"below:{(shape[1:2] or shape)[0]}"
    return (
        operand(rng, shape, dtype, kind="small"),
        operand(rng, target, "int64", kind=below),
    ), kwargs


def _cross(rng: Random) -> Arguments:
    args, kwargs = _classes(rng)
    return args, {**kwargs, **(some(rng, label_smoothing=[0.1]) if rng.random() < 0.3 else {})}


add("torch.nn.functional.nll_loss", _classes, loose=True)
add("torch.nn.functional.cross_entropy", _cross, loose=True)
add(
    "torch.nn.functional.mse_loss",
    lambda rng: (
        lambda p: (
            (operand(rng, p[0], kind="small", dtypes=REALS), operand(rng, p[1], kind="small")),
            some(rng, reduction=_reduction),
        )
    )(drawn(rng, PAIRS)),
    loose=True,
)


def _module(
    name: str, draw: Callable[[Random], tuple[tuple[Any, ...], dict[str, Any], tuple[Operand, ...]]]
) -> None:
    """Adds a row of a module, whose parameters get values that do not depend on the library."""

    def call(lib: Any, args: Any, kwargs: Any, inputs: Any) -> Any:
        module = getattr(lib.nn, name)(*args, **kwargs)
        parameters = list(module.parameters())
        with lib.no_grad():
            for parameter in parameters:
                count = parameter.numel()
                values = (lib.arange(count, device=inputs[0].device) % 7 - 3) / 8
                parameter.data = values.reshape(parameter.shape).to(parameter.dtype)
        return [module(*inputs), *[each.shape for each in parameters], sorted(module.state_dict())]

    made(f"torch.nn.{name}", call, lambda rng: (draw(rng), {}), loose=True)


_x = lambda rng, *shapes, **kw: operand(
    rng, drawn(rng, shapes), **{"kind": "small", "dtypes": ("float32",), **kw}
)  # noqa: E731
_module("GELU", lambda rng: ((), some(rng, approximate=["none", "tanh"]), (_x(rng, *SHAPES),)))
_module("ReLU", lambda rng: ((), {}, (_x(rng, *SHAPES, dtypes=REALS),)))
_module("SiLU", lambda rng: ((), {}, (_x(rng, *SHAPES, dtypes=REALS),)))
_module("Identity", lambda rng: ((), {}, (_x(rng, *SHAPES, dtypes=REALS),)))
_module("Dropout", lambda rng: ((0.0,), {}, (_x(rng, *SHAPES),)))
_module(
    "Linear",
    lambda rng: (
        (3, 2),
        some(rng, bias=[True, False], dtype=[DTypeOf("float64")]),
        (_x(rng, (2, 3), (3,), (0, 3), (2, 2, 3), (2, 4)),),
    ),
)
_module(
    "Embedding",
    lambda rng: (
        (4, 3),
        some(rng, padding_idx=[0, -1]),
        (operand(rng, drawn(rng, SHAPES), "int64", kind="below:4"),),
    ),
)
_module(
    "LayerNorm",
    lambda rng: (
        (drawn(rng, [3, (2, 3), [3]]),),
        some(rng, elementwise_affine=[True, False], eps=0.1, bias=[True, False]),
        (_x(rng, (2, 3), (3,), (2, 2, 3), (2, 4)),),
    ),
)
_module(
    "RMSNorm",
    lambda rng: (
        (drawn(rng, [3, (2, 3)]),),
        some(rng, elementwise_affine=[True, False], eps=0.1),
        (_x(rng, (2, 3), (3,), (2, 2, 3)),),
    ),
)
_module(
    "MSELoss",
    lambda rng: (
        (),
        some(rng, reduction=["mean", "sum", "none"]),
        (_x(rng, (2, 3)), _x(rng, (2, 3), (3,))),
    ),
)
_module(
    "CrossEntropyLoss",
    lambda rng: (
        (),
        some(rng, reduction=["mean", "sum", "none"], ignore_index=[1], label_smoothing=[0.1]),
        (_x(rng, (3, 4)), operand(rng, (3,), "int64", kind="below:4")),
    ),
)
