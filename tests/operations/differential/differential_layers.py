"""How calls of activations, losses, norms and padding of `torch.nn` are drawn."""

from random import Random
from typing import Any

from differential_cases import FLOATS, REALS, SHAPES, Operand, drawn, operand
from differential_networks import _module, _x
from differential_rows import Arguments, add, made, some

NN = "torch.nn.functional."


def _named(names: str) -> str:
    return " ".join(NN + name for name in names.split())


def _floats(rng: Random, **options: Any) -> Operand:
    return operand(
        rng, dtypes=(*FLOATS, "float32", "int64") if rng.random() < 0.3 else FLOATS, **options
    )


def _with(**options: Any) -> Any:
    return lambda rng: ((_floats(rng),), some(rng, **options))


add(_named("tanh sigmoid"), lambda rng: ((operand(rng, dtypes=REALS),), {}))
add(_named("logsigmoid mish hardswish hardsigmoid"), _with())
add(_named("softsign"), _with(), loose=True)
add(_named("leaky_relu"), _with(negative_slope=[0.2, -0.5, 0]))
add(_named("elu"), _with(alpha=[0.5, 2.0]))
add(_named("selu relu6"), _with())
add(_named("hardtanh"), _with(min_val=[-2.0, 0.25], max_val=[1.5, 3.0]))
add(_named("softplus"), _with(beta=[0.5, 3.0], threshold=[1.0, 20.0]))


def _halves(rng: Random) -> Arguments:
    shape = drawn(rng, [(4,), (2, 4), (4, 3), (2, 3, 4), (0, 4), (3,), ()])
    return (operand(rng, shape, dtypes=FLOATS),), some(rng, dim=[-1, 0])


add(_named("glu"), _halves, loose=True)


def _along(rng: Random) -> Arguments:
    shape = drawn(rng, [(5,), (2, 3), (2, 3, 4), (0, 3)])
    return (operand(rng, shape, dtypes=FLOATS),), {"dim": drawn(rng, [0, -1])}


add(_named("softmin"), _along, loose=True)

# Losses

_REDUCTIONS = ["mean", "sum", "none", "x"]
_PAIRS = (((2, 3), (2, 3)), ((5,), (5,)), ((), ()), ((0,), (0,)), ((2, 3), (3,)))


def _two(rng: Random, **options: Any) -> tuple[Operand, Operand]:
    a, b = drawn(rng, _PAIRS)
    dtype = drawn(rng, FLOATS)
    return operand(rng, a, dtype, **options), operand(rng, b, dtype, **options)


def _compared(**more: Any) -> Any:
    return lambda rng: (_two(rng, kind="small"), some(rng, reduction=_REDUCTIONS, **more))


add(_named("l1_loss"), _compared(), loose=True)
add(_named("smooth_l1_loss"), _compared(beta=[0.25, 2.0, 0.0, -1.0]), loose=True)
add(_named("huber_loss"), _compared(delta=[0.25, 2.0, 0.0]), loose=True)


def _same(rng: Random) -> tuple[Operand, Operand]:
    shape = drawn(rng, [(2, 3), (5,), (), (0,)])
    dtype = drawn(rng, ["float64", "float32"])
    return operand(rng, shape, dtype, kind="small"), operand(rng, shape, dtype, kind="small")


def _weights(rng: Random, shape: tuple[int, ...], dtype: str) -> Any:
    size = drawn(rng, [shape, shape[1:], ()])
    return drawn(rng, [None, operand(rng, size, dtype, kind="positive", grad=False)])


def _logits(rng: Random) -> Arguments:
    x, y = _same(rng)
    kwargs = some(rng, reduction=_REDUCTIONS)
    for name in ("weight", "pos_weight"):
        kwargs[name] = _weights(rng, x.shape, x.dtype)
    return (x, y), kwargs


add(_named("binary_cross_entropy_with_logits"), _logits, loose=True)


def _entropy(lib: Any, x: Any, y: Any, kwargs: Any) -> Any:
    return lib.nn.functional.binary_cross_entropy(x.sigmoid(), y.sigmoid(), **kwargs)


def _probabilities(rng: Random) -> Arguments:
    x, y = _same(rng)
    weight = _weights(rng, x.shape, x.dtype)
    return (x, y, {**some(rng, reduction=_REDUCTIONS), "weight": weight}), {}


made(NN + "binary_cross_entropy", _entropy, _probabilities, loose=True)


def _divergence(rng: Random) -> Arguments:
    a, b = drawn(rng, [((2, 3), (2, 3)), ((5,), (5,)), ((), ()), ((0, 3), (0, 3)), ((2, 3), (3,))])
    dtype = drawn(rng, ["float64", "float32"])
    args = operand(rng, a, dtype, kind="small"), operand(rng, b, dtype, kind="positive")
    reductions = ["mean", "sum", "none", "batchmean", "x"]
    return args, some(rng, reduction=reductions, log_target=[True, False])


add(_named("kl_div"), _divergence, loose=True)

# Norms

_IMAGES = ((4, 2), (3, 4), (2, 4, 3), (2, 2, 3, 2), (2, 4, 1, 2, 3), (1, 4), (5,))


def _channels(rng: Random, dtype: str) -> tuple[Operand, list[Any]]:
    x = operand(rng, drawn(rng, _IMAGES), dtype, kind="small")
    channels = x.shape[1:2] or (3,)
    return x, [
        operand(rng, channels, dtype, kind="positive", layout="plain")
        if rng.random() < 0.6
        else None
        for _ in range(2)
    ]


def _group_norm(rng: Random) -> Arguments:
    x, affine = _channels(rng, drawn(rng, ["float32", "float64"]))
    return (x, drawn(rng, [1, 2, 4]), *affine), some(rng, eps=0.1)


add(_named("group_norm"), _group_norm, loose=True)


def _batch(lib: Any, x: Any, means: Any, variances: Any, affine: Any, kwargs: Any) -> Any:
    kept = [None if each is None else each.detach() * 1 for each in (means, variances)]
    return [lib.nn.functional.batch_norm(x, *kept, *affine, **kwargs), *kept]


def _batch_norm(rng: Random) -> Arguments:
    x, affine = _channels(rng, drawn(rng, ["float32", "float64"]))
    channels = x.shape[1:2] or (3,)
    training = rng.random() < 0.6
    kept: list[Any] = [None, None]
    if not training or rng.random() < 0.6:
        kept = [operand(rng, channels, x.dtype, kind="positive", grad=False) for _ in range(2)]
    kwargs = {"training": training, **some(rng, momentum=[0.3, 1.0], eps=0.1)}
    return (x, *kept, affine, kwargs), {}


made(NN + "batch_norm", _batch, _batch_norm, loose=True)

# Vectors


def _padded(rng: Random) -> Arguments:
    mode = drawn(rng, ["constant", "constant", "reflect", "replicate", "circular"])
    if mode == "constant":
        x = operand(rng, dtypes=REALS, shapes=[s for s in SHAPES if s])
        counts = [rng.randrange(-1, 3) for _ in range(2 * rng.randrange(0, len(x.shape) + 1))]
        return (x, counts), some(rng, value=[1, 2.0, -1])
    x = operand(rng, drawn(rng, [(2, 3), (2, 3, 4), (1, 1, 5)]), dtypes=FLOATS)
    return (x, [rng.randrange(3), rng.randrange(3)]), {"mode": mode}


add(_named("pad"), _padded)
add(
    _named("one_hot"),
    lambda rng: (
        (operand(rng, dtype=drawn(rng, ["int64", "int64", "int64", "float32"]), kind="below:4"),),
        some(rng, num_classes=[4, 7, -1]),
    ),
)


def _vectors(rng: Random, count: int) -> list[Operand]:
    dtype = drawn(rng, ["float32", "float64"])
    shapes = [(2, 3), (2, 3, 4), (3, 2)]
    shape = drawn(rng, shapes)
    return [operand(rng, shape, dtype, kind="positive") for _ in range(count)]


add(
    _named("normalize"),
    lambda rng: (tuple(_vectors(rng, 1)), some(rng, p=[1.0, 3.0], dim=[0, -1], eps=0.5)),
    loose=True,
)
add(
    _named("cosine_similarity"),
    lambda rng: (tuple(_vectors(rng, 2)), some(rng, dim=[0, -1], eps=0.5)),
    loose=True,
)
add(
    _named("pairwise_distance"),
    lambda rng: (tuple(_vectors(rng, 2)), some(rng, p=[1.0, 3.0], keepdim=[True, False])),
    loose=True,
)

# Modules

for _name in ("Tanh", "Sigmoid", "LogSigmoid", "Softsign", "Mish", "Hardswish", "Hardsigmoid"):
    _module(_name, lambda rng: ((), {}, (_x(rng, *SHAPES),)))
for _name in ("SELU", "ReLU6"):
    _module(_name, lambda rng: ((), some(rng, inplace=[False]), (_x(rng, *SHAPES),)))
_module(
    "LeakyReLU",
    lambda rng: ((), some(rng, negative_slope=[0.2], inplace=[False]), (_x(rng, *SHAPES),)),
)
_module("ELU", lambda rng: ((), some(rng, alpha=[0.5, 2.0]), (_x(rng, *SHAPES),)))
_module(
    "Hardtanh", lambda rng: ((), some(rng, min_val=[-0.5], max_val=[0.25]), (_x(rng, *SHAPES),))
)
_module(
    "Softplus", lambda rng: ((), some(rng, beta=[2.0], threshold=[0.5, 20.0]), (_x(rng, *SHAPES),))
)
for _name in ("Softmax", "LogSoftmax", "Softmin"):
    _module(_name, lambda rng: ((drawn(rng, [0, -1]),), {}, (_x(rng, (5,), (2, 3), (2, 3, 4)),)))
_module("GLU", lambda rng: ((), some(rng, dim=[0, -1]), (_x(rng, (2, 4), (4,)),)))
_module(
    "Flatten",
    lambda rng: ((), some(rng, start_dim=[0, 1], end_dim=[-1, 1]), (_x(rng, (2, 3), (2, 3, 4)),)),
)
_module("Unflatten", lambda rng: ((1, (2, -1)), {}, (_x(rng, (3, 4), (3, 2, 2)),)))
_module("ConstantPad1d", lambda rng: ((drawn(rng, [1, (0, 2)]), 0.5), {}, (_x(rng, (2, 3)),)))
_module("ConstantPad2d", lambda rng: ((drawn(rng, [1, (0, 2, 1, 0)]), 0.5), {}, (_x(rng, (2, 3)),)))
_module("ZeroPad2d", lambda rng: ((drawn(rng, [1, (0, 2, 1, 0)]),), {}, (_x(rng, (2, 3)),)))


def _both(rng: Random, *shapes: tuple[int, ...]) -> tuple[Operand, Operand]:
    shape = drawn(rng, shapes)
    return _x(rng, shape), _x(rng, shape)


_module("CosineSimilarity", lambda rng: ((), some(rng, dim=[0]), _both(rng, (2, 3), (3, 3))))
_module("PairwiseDistance", lambda rng: ((), some(rng, p=[1.0]), _both(rng, (2, 3), (3,))))


def _loss(name: str, **options: Any) -> None:
    reductions = ["mean", "sum", "none"]
    _module(
        name,
        lambda rng: ((), some(rng, reduction=reductions, **options), _both(rng, (2, 3), (5,))),
    )


_loss("L1Loss")
_loss("SmoothL1Loss", beta=[0.25])
_loss("HuberLoss", delta=[0.25])
_loss("BCEWithLogitsLoss")
_module(
    "KLDivLoss",
    lambda rng: (
        (),
        some(rng, reduction=["mean", "sum", "none", "batchmean"], log_target=[True]),
        (_x(rng, (2, 3)), operand(rng, (2, 3), "float32", kind="positive")),
    ),
)


def _bce(lib: Any, x: Any, y: Any, kwargs: Any) -> Any:
    return lib.nn.BCELoss(**kwargs)(x.sigmoid(), y.sigmoid())


made(
    "torch.nn.BCELoss",
    _bce,
    lambda rng: ((*_both(rng, (2, 3)), some(rng, reduction=["mean", "sum", "none"])), {}),
    loose=True,
)
_module(
    "NLLLoss",
    lambda rng: (
        (),
        some(rng, reduction=["mean", "sum", "none"], ignore_index=[1]),
        (_x(rng, (3, 4)), operand(rng, (3,), "int64", kind="below:4")),
    ),
)
_module(
    "GroupNorm",
    lambda rng: (
        (2, 4),
        some(rng, eps=0.1, affine=[True, False], bias=[True, False]),
        (_x(rng, (3, 4), (2, 4, 3), (2, 4, 2, 3)),),
    ),
)


def _batches(name: str, *shapes: tuple[int, ...]) -> None:
    def call(lib: Any, args: Any, kwargs: Any, first: Any, second: Any, third: Any) -> Any:
        module = getattr(lib.nn, name)(*args, **kwargs).to(first.device)
        found = [module(first), module(second)]
        module.eval()
        found.append(module(third))
        return [*found, sorted(module.state_dict()), *module.buffers(), repr(module)]

    def draw(rng: Random) -> Arguments:
        options = some(
            rng,
            momentum=[0.3, None],
            affine=[True, False],
            track_running_stats=[True, False],
            bias=[True, False],
        )
        shape = drawn(rng, shapes)
        return ((shape[1],), options, *(_x(rng, shape) for _ in range(3))), {}

    made(f"torch.nn.{name}", call, draw, loose=True)


_batches("BatchNorm1d", (4, 3), (2, 3, 4))
_batches("BatchNorm2d", (2, 3, 2, 2), (2, 1, 3, 2))
_batches("BatchNorm3d", (2, 3, 2, 1, 2))
