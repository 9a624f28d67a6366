"""How calls are drawn that move elements, choose them, or look at them in other shapes."""

from math import prod
from random import Random
from typing import Any, Final

from differential_cases import (
    MATRICES,
    REALS,
    SHAPES,
    Operand,
    drawn,
    operand,
)
from differential_rows import (
    NUMBERS,
    PAIRS,
    Arguments,
    Draw,
    add,
    dim_of,
    dims_of,
    functions,
    some,
)

MIXED: Final = ("float32", "int64", "bool", "bfloat16", "complex64")


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
    first = operand(rng, dtypes=MIXED)
    return (first, _sized(rng, first)), {}


add("reshape Tensor.view", _reshape)
add(
    "Tensor.view_as Tensor.reshape_as Tensor.expand_as",
    lambda rng: ((operand(rng, dtypes=MIXED), operand(rng, dtypes=MIXED)), {}),
)


def _numbered(count: int) -> Draw:
    def draw(rng: Random) -> Arguments:
        first = operand(rng, dtypes=MIXED)
        return (first, *[dim_of(rng, len(first.shape)) for _ in range(count)]), {}

    return draw


add("transpose swapaxes", _numbered(2))
add("unsqueeze", lambda rng: ((operand(rng, dtypes=MIXED), rng.randrange(-5, 5)), {}))
add("unbind", _numbered(1))
add("t", lambda rng: ((operand(rng, dtypes=MIXED),), {}))


def _squeeze(rng: Random) -> Arguments:
    first = operand(rng, shapes=(*SHAPES, (1, 1, 3), (2, 1, 1)), dtypes=MIXED)
    return (first,), {} if rng.random() < 0.3 else {"dim": dims_of(rng, len(first.shape))}


add("squeeze", _squeeze)


def _permute(rng: Random) -> Arguments:
    first = operand(rng, dtypes=MIXED)
    order = list(range(len(first.shape)))
    rng.shuffle(order)
    if rng.random() < 0.2:
        order = [rng.randrange(-3, 3) for _ in range(rng.randrange(0, 4))]
    return (first, tuple(order)), {}


add("permute", _permute)


def _movedim(rng: Random) -> Arguments:
    first = operand(rng, dtypes=MIXED)
    rank = len(first.shape)
    if rng.random() < 0.5:
        return (first, dim_of(rng, rank), dim_of(rng, rank)), {}
    count = rng.randrange(0, 3)
    return (first, *[tuple(dim_of(rng, rank) for _ in range(count)) for _ in range(2)]), {}


add("movedim", _movedim)


def _flatten(rng: Random) -> Arguments:
    first = operand(rng, shapes=(*SHAPES, (2, 2, 3, 2)), dtypes=MIXED)
    rank = len(first.shape)
    return (first,), some(rng, start_dim=dim_of(rng, rank), end_dim=dim_of(rng, rank))


add("flatten", _flatten)
add(
    "unflatten",
    lambda rng: (
        (
            operand(rng, shapes=((6,), (2, 6), (6, 2), (0,), ()), dtypes=MIXED),
            rng.randrange(-2, 2),
            drawn(rng, [(2, 3), (-1, 2), (6,), (1, 6), (2, 2), (-1, -1), (0, -1), ()]),
        ),
        {},
    ),
)


def _expand(rng: Random) -> Arguments:
    a, b = drawn(rng, PAIRS)
    return (
        operand(rng, a, dtypes=MIXED),
        drawn(rng, [b, a, (2, *a), (-1, *a), (*a, 3), (-1,) * len(a)]),
    ), {}


add("Tensor.expand broadcast_to", _expand)


def _narrow(rng: Random) -> Arguments:
    first = operand(rng, dtypes=MIXED)
    return (first, dim_of(rng, len(first.shape)), rng.randrange(-3, 4), rng.randrange(-1, 4)), {}


add("narrow", _narrow)


def _select(rng: Random) -> Arguments:
    first = operand(rng, dtypes=MIXED)
    return (first, dim_of(rng, len(first.shape)), rng.randrange(-4, 4)), {}


add("select", _select)


def _split(rng: Random) -> Arguments:
    first = operand(rng, dtypes=MIXED)
    size = drawn(rng, [1, 2, 3, 5, 0, -1, [1, 2], [1, 1], [2, 3], [], [3, -1]])
    return (first, size), some(rng, dim=dim_of(rng, len(first.shape)))


add("split", _split)


def _chunk(rng: Random) -> Arguments:
    first = operand(rng, dtypes=MIXED)
    return (first, rng.randrange(-1, 5)), some(rng, dim=dim_of(rng, len(first.shape)))


add("chunk", _chunk)


def _diagonal(rng: Random) -> Arguments:
    first = operand(rng, shapes=MATRICES if rng.random() < 0.8 else SHAPES, dtypes=MIXED)
    rank = len(first.shape)
    return (first,), some(
        rng, offset=rng.randrange(-4, 4), dim1=dim_of(rng, rank), dim2=dim_of(rng, rank)
    )


add("diagonal", _diagonal)
add(
    "tril triu",
    lambda rng: (
        (operand(rng, shapes=MATRICES if rng.random() < 0.8 else SHAPES, dtypes=MIXED),),
        some(rng, diagonal=rng.randrange(-3, 4)),
    ),
)
add(
    "Tensor.repeat",
    lambda rng: (
        (
            operand(rng, dtypes=MIXED),
            tuple(
                rng.randrange(-1 if rng.random() < 0.05 else 0, 3)
                for _ in range(rng.randrange(0, 5))
            ),
        ),
        {},
    ),
)


def _repeat_interleave(rng: Random) -> Arguments:
    first = operand(rng, dtypes=MIXED)
    kwargs = some(rng, dim=dim_of(rng, len(first.shape)))
    if rng.random() < 0.1:
        kwargs["output_size"] = rng.randrange(0, 12)
    return (first, rng.randrange(-1, 4)), kwargs


def _flip(rng: Random) -> Arguments:
    first = operand(rng, dtypes=MIXED)
    dims = dims_of(rng, len(first.shape))
    return (first, (dims,) if isinstance(dims, int) else dims), {}


add("flip", _flip)


def _roll(rng: Random) -> Arguments:
    first = operand(rng, dtypes=MIXED)
    dims = dims_of(rng, len(first.shape))
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
    dim = dim_of(rng, len(shape))
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


def _cat(rng: Random) -> Arguments:
    parts, dim = _joined(rng)
    return (parts,), some(rng, dim=dim)


add(functions("cat concat"), _cat)
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
    first = operand(rng, dtypes=MIXED)
    rank = len(first.shape)
    dim = dim_of(rng, rank)
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
    dim = dim_of(rng, rank)
    inside = bool(rank) and -rank <= dim < rank
    extent = first.shape[dim] if inside else 1
    shape = [rng.randrange(0 if rng.random() < 0.1 else min(n, 1), n + 1) for n in first.shape]
    if inside:
        shape[dim] = rng.randrange(0, 4) if extent else 0
    if rng.random() < 0.08:
        shape = list(drawn(rng, SHAPES))
    dtype = drawn(rng, ["int64", "int64", "int64", "int32"])
    return dim, operand(rng, tuple(shape), dtype, kind=f"below:{max(extent, 1)}", layout="plain")


def _gather(rng: Random) -> Arguments:
    first = operand(rng, dtypes=MIXED)
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


add("scatter_add Tensor.scatter_add_", _scatter_add, loose=True)


def _index_add(rng: Random) -> Arguments:
    first = operand(rng, kind="small", layout="plain", dtypes=("float32", "int64", "float64"))
    dim = dim_of(rng, len(first.shape))
    inside = bool(first.shape) and -len(first.shape) <= dim < len(first.shape)
    count, shape = rng.randrange(4), [*first.shape]
    extent = shape[dim] if inside else 1
    if inside:
        count = count if extent else 0
        shape[dim] = count
    index = operand(rng, (count,), "int64", kind=f"below:{max(extent, 1)}", layout="plain")
    source = operand(rng, tuple(shape), first.dtype, kind="small")
    return (first, dim, index, source), {"alpha": 2} if rng.random() < 0.3 else {}


add("index_add Tensor.index_add_", _index_add, loose=True)


def _bincount(rng: Random) -> Arguments:
    shape = drawn(rng, [(5,), (0,), (40,), (2, 3)])
    first = Operand(shape, drawn(rng, ["int64", "int32", "uint8", "float32"]), 7, kind="below:9")
    weights = operand(rng, shape, drawn(rng, ["float32", "int64", "float64"]), kind="small")
    return (first,), {
        "minlength": rng.randrange(12),
        **({"weights": weights} if rng.random() < 0.5 else {}),
    }


add("bincount", _bincount)


def _histc(rng: Random) -> Arguments:
    first = operand(rng, dtypes=("float32", "float64"))
    return (first,), drawn(rng, [{}, {"bins": 5}, {"bins": 8, "min": -2, "max": 2}, {"min": 1}])


add("histc", _histc)


def _repeats(rng: Random) -> Arguments:
    if rng.random() < 0.5:
        return _repeat_interleave(rng)
    first = operand(rng, dtypes=MIXED, layout="plain")
    dim = drawn(rng, [None, dim_of(rng, len(first.shape))])
    inside = dim is not None and first.shape and -len(first.shape) <= dim < len(first.shape)
    extent = first.shape[dim] if inside and dim is not None else prod(first.shape)
    repeats = Operand((extent,), "int64", rng.randrange(99), kind="below:3")
    return (first, repeats), {} if dim is None else {"dim": dim}


add("repeat_interleave", _repeats)


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
    first = operand(rng, shapes=(*SHAPES, (2, 3, 4), (3, 4), (2, 3, 4)), dtypes=MIXED)
    return (first, _key(rng, first.shape)), {}


add("Tensor.__getitem__", _getitem)


def _setitem(rng: Random) -> Arguments:
    (first, key), _ = _getitem(rng)
    first = operand(rng, first.shape, dtypes=MIXED)
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
