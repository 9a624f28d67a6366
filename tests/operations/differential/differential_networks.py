"""How calls are drawn that make tensors, and those of `torch.nn`."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from differential_cases import (
    FLOATS,
    REALS,
    SHAPES,
    TYPES,
    DTypeOf,
    Operand,
    drawn,
    operand,
)
from differential_rows import (
    ACCUMULATED,
    NUMBERS,
    PAIRS,
    Arguments,
    add,
    alone,
    along,
    functions,
    made,
    methods,
    some,
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


def _softmax(rng: Random) -> Arguments:
    (first, dim), _ = along(rng)
    return (first,), {"dim": dim, **some(rng, dtype=ACCUMULATED)}


add("torch.nn.functional.softmax torch.nn.functional.log_softmax", _softmax, loose=True)
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
    head = drawn(rng, [(), (2,), (2, 2), (1, 4), (2, 1, 2)])
    shared = (*head[:-1], 1) if head and rng.random() < 0.3 else head
    query, key, width = rng.randrange(4), rng.randrange(4), rng.randrange(1, 5)
    shapes = (*head, query, 4), (*shared, key, 4), (*shared, key, width)
    tensors = [operand(rng, shape, dtype, kind="small") for shape in shapes]
    kwargs: dict[str, Any] = some(rng, scale=[0.5, None])
    if head and rng.random() < 0.3:
        kwargs["enable_gqa"] = True
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


def _mse(rng: Random) -> Arguments:
    a, b = drawn(rng, PAIRS)
    args = operand(rng, a, kind="small", dtypes=REALS), operand(rng, b, kind="small")
    return args, some(rng, reduction=_reduction)


add("torch.nn.functional.mse_loss", _mse, loose=True)


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


def _x(rng: Random, *shapes: tuple[int, ...], dtypes: Sequence[str] = ("float32",)) -> Operand:
    return operand(rng, drawn(rng, shapes), kind="small", dtypes=dtypes)


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
