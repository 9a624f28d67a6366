"""Operations of whole programs by their shapes, as PyTorch's profiler saw them on a device."""

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kernbench.validation.table import BESIDE, MEASURED, NOTE, WORD, Row, Table, Times
from kernbench.validation.timing import Call, ahead_us, new

Shapes = list[list[int]]


class _Types(NamedTuple):
    """What the shapes do not say, by program.

    Attributes:
        product: Type of products, and of what is made of their results alone.
        norm: Type of layer norms.
        last: Whether the channels of images lie closest.
        causal: Whether a query sees no later key.
        loss: Type of the logits of a loss: autocast and models of causal texts make them float32.
    """

    product: str
    norm: str
    last: bool = False
    causal: bool = False
    loss: str = "float32"


_PROGRAMS: Final = {
    "unet": _Types("float16", "float32", last=True),  # autocast
    "lm": _Types("bfloat16", "bfloat16"),
    "decode": _Types("bfloat16", "bfloat16"),
    "dlrm": _Types("float32", "float32"),
}


def _types(row: Row) -> _Types | None:
    words = row["program"].split()
    if words[0] == "vision":  # autocast to the type that the program names, if it is not float32
        # ConvNeXt's blocks turn channels around their linear layers, so images come out that way.
        return _Types(words[-1], "float32", last=words[1].startswith("convnext"))
    types = _PROGRAMS.get(words[0])
    if types is not None and words[0] == "lm":
        is_bert = words[1] == "bert"  # which sees all of a text
        return types._replace(causal=not is_bert, loss=types.product if is_bert else "float32")
    return types


def _product(torch: Any, types: _Types, shapes: Shapes, name: str) -> Call:
    operands = [new(torch, *shape, dtype=types.product) for shape in shapes if shape]
    return lambda: getattr(torch, name)(*operands)


def _elements(torch: Any, types: _Types, shapes: Shapes, name: str) -> Call:
    operands = [new(torch, *shape, dtype=types.product) for shape in shapes if shape]
    operation, more = getattr(torch.ops.aten, name), (0,) if name == "threshold_backward" else ()
    return lambda: operation(*operands, *more)


def _relu(torch: Any, types: _Types, shapes: Shapes, name: str) -> Call:
    x = new(torch, *shapes[0], dtype=types.product)
    return lambda: getattr(torch.ops.aten, name)(x, 0)


def _log_softmax(torch: Any, types: _Types, shapes: Shapes, name: str) -> Call:
    aten, x = torch.ops.aten, new(torch, *shapes[0], dtype=types.loss)
    if name.endswith("data"):
        return lambda: aten._log_softmax_backward_data(x, x, -1, x.dtype)
    return lambda: aten._log_softmax(x, -1, False)


def _attention(torch: Any, types: _Types, shapes: Shapes, name: str) -> Call:
    dtype, aten = types.product if types.product != "float32" else "bfloat16", torch.ops.aten
    first = 1 if name.endswith("backward") else 0
    q, k, v = (new(torch, *shape, dtype=dtype) for shape in shapes[first : first + 3])
    causal = types.causal and q.shape[2] > 1
    if not first:
        forward = aten._scaled_dot_product_cudnn_attention
        return lambda: forward(q, k, v, None, True, 0.0, causal, False)
    lse, seed = (
        new(torch, *shapes[5], dtype="float32"),
        torch.zeros((), dtype=torch.int64, device="cuda"),
    )
    backward, queries, keys = (
        aten._scaled_dot_product_cudnn_attention_backward,
        q.shape[2],
        k.shape[2],
    )
    return lambda: backward(
        q, q, k, v, q, lse, seed, seed, None, None, None, queries, keys, 0.0, causal
    )


def _layer_norm(torch: Any, types: _Types, shapes: Shapes, name: str) -> Call:
    x = new(torch, *shapes[0], dtype=types.norm)
    weight = shapes[5 if name.endswith("backward") else 2]
    scale, shift = (new(torch, *weight, dtype=types.norm) for _ in range(2))
    if not name.endswith("backward"):
        return lambda: torch.native_layer_norm(x, weight, scale, shift, 1e-5)
    mean, deviation = (new(torch, *shapes[3], dtype="float32") for _ in range(2))
    backward = torch.ops.aten.native_layer_norm_backward
    return lambda: backward(x, x, weight, mean, deviation, scale, shift, [True, True, True])


def _batch_norm(torch: Any, types: _Types, shapes: Shapes, name: str) -> Call:
    """CuDNN's are of float32, PyTorch's own of half precision."""
    dtype = "float32" if name.startswith("cudnn") else types.product
    x = new(torch, *shapes[0], dtype=dtype)
    weight, bias, mean, variance = (new(torch, shapes[0][1], dtype="float32") for _ in range(4))
    if not name.endswith("backward"):
        return lambda: torch.native_batch_norm(x, weight, bias, mean, variance, True, 0.1, 1e-5)
    backward = torch.ops.aten.native_batch_norm_backward
    return lambda: backward(
        x, x, weight, mean, variance, mean, variance, True, 1e-5, [True, True, True]
    )


_IMAGE: Final = 4
"""Most channels of an image that a program is given, for which nobody asks a gradient."""


def _step(extent: int, window: int, out: int) -> tuple[int, int] | None:
    """Returns stride and padding of a convolution, from its extents; None if none are usual."""
    for padding in ((window - 1) // 2, 0):
        for stride in (extent // out, extent // out + 1):
            if stride and (extent + 2 * padding - window) // stride + 1 == out:
                return stride, padding
    return None


def _convolution(torch: Any, types: _Types, shapes: Shapes, name: str) -> Call:
    del name
    found = _step(shapes[1][2], shapes[2][2], shapes[0][2])
    assert found is not None, "see `_refused`"
    stride, padding = found
    grad, image, weight = (new(torch, *shape, dtype=types.product) for shape in shapes[:3])
    if types.last:
        way = torch.channels_last
        grad, image, weight = (each.to(memory_format=way) for each in (grad, image, weight))
    groups, channels = image.shape[1] // weight.shape[1], image.shape[1]
    backward = torch.ops.aten.convolution_backward
    return lambda: backward(
        grad, image, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups,
        [channels > _IMAGE, True, False],
    )  # fmt: skip


_OPERATIONS: Final[dict[str, Callable[[Any, _Types, Shapes, str], Call]]] = {
    **dict.fromkeys(("mm", "bmm", "addmm"), _product),
    **dict.fromkeys(
        ("gelu", "gelu_backward", "silu", "silu_backward", "threshold_backward"), _elements
    ),
    **dict.fromkeys(("native_layer_norm", "native_layer_norm_backward"), _layer_norm),
    **dict.fromkeys(
        (
            *("native_batch_norm", "native_batch_norm_backward"),
            *("cudnn_batch_norm", "cudnn_batch_norm_backward"),
        ),
        _batch_norm,
    ),
    "convolution_backward": _convolution,
    "clamp_min_": _relu,
    **dict.fromkeys(("_log_softmax", "_log_softmax_backward_data"), _log_softmax),
    **dict.fromkeys(("_cudnn_attention_forward", "_cudnn_attention_backward"), _attention),
}
"""Operations whose other arguments follow from their shapes and the program."""


def _refused(row: Row) -> str:
    """Returns why a row has no program; empty if it has one."""
    name = row["name"].removeprefix("aten::")
    if row["kind"] != "op":
        return "a kernel of the library, whose operands no row says"
    if name not in _OPERATIONS:
        return f"{name}: shapes alone do not say what it does"
    types, shapes = _types(row), json.loads(row["input_shapes"])
    if types is None:
        return f"program {row['program']!r} is not known"
    if name.startswith("silu") and types.product != types.norm:
        return f"{name}: its type depends on the norm before it"
    if name == "convolution_backward" and (
        len(shapes[0]) != 4 or _step(shapes[1][2], shapes[2][2], shapes[0][2]) is None
    ):
        return f"{name}: shapes alone do not say its padding"
    return ""


def _operation(torch: Any, row: Row) -> Times:
    types, name = _types(row), row["name"].removeprefix("aten::")
    assert types is not None, "see `_refused`"
    call = _OPERATIONS[name](torch, types, json.loads(row["input_shapes"]), name)
    with torch.no_grad():
        return {"device_us_a_step": ahead_us(torch, call) * float(row["calls_a_step"])}


OPERATIONS: Final = Table(
    name="programs3_ops",
    about="operations of the programs of programs3 by shapes: time on the device, a step",
    columns={
        **dict.fromkeys(("program", "kind", "name"), WORD),
        "input_shapes": NOTE,
        "calls_a_step": BESIDE,
        "device_us_a_step": MEASURED,
        "host_us_a_step": BESIDE,
    },
    program=_operation,
    only_pytorch="an operation of PyTorch",
    refused=_refused,
)
