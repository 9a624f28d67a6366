"""`torch.autocast("cuda")`: operands are cast as CUDA casts them, with and without numbers.

PyTorch casts for the devices that it knows, and has no list for `meta`. A function mode that is
there only while a block of autocast is open does it here.
"""

from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from kernbench.bridge.here import HERE
from kernbench.bridge.replaced import Patch
from kernbench.bridge.tensors.devices import on_device

_LOW: Final = [
    "__matmul__",
    "addbmm",
    "addmm",
    "addmv",
    "addr",
    "baddbmm",
    "bilinear",
    "bmm",
    "chain_matmul",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "gru_cell",
    "linear",
    "lstm_cell",
    "matmul",
    "mm",
    "mv",
    "multi_dot",
    "prelu",
    "rnn_relu_cell",
    "rnn_tanh_cell",
    "scaled_dot_product_attention",
]
_FULL: Final = [
    "__pow__",
    "__rdiv__",
    "__rpow__",
    "__rtruediv__",
    "acos",
    "asin",
    "binary_cross_entropy_with_logits",
    "cosh",
    "cosine_embedding_loss",
    "cdist",
    "cosine_similarity",
    "cross_entropy",
    "cumprod",
    "cumsum",
    "dist",
    "erfinv",
    "exp",
    "expm1",
    "group_norm",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "log",
    "log10",
    "log_softmax",
    "log1p",
    "log2",
    "margin_ranking_loss",
    "mse_loss",
    "multilabel_margin_loss",
    "multi_margin_loss",
    "nll_loss",
    "norm",
    "normalize",
    "pdist",
    "poisson_nll_loss",
    "pow",
    "prod",
    "reciprocal",
    "rsqrt",
    "sinh",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "sum",
    "renorm",
    "tan",
    "triplet_margin_loss",
]
_WIDEST: Final = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "grid_sample",
    "index_put",
    "scatter_add",
    "tensordot",
    "cat",
    "stack",
]


def _functions(names: list[str]) -> frozenset[Any]:
    return frozenset(
        found
        for name in names
        for owner in (torch, F, torch.Tensor)
        if (found := getattr(owner, name, None)) is not None
    )


LOW: Final = _functions(_LOW)
"""Functions that CUDA's autocast runs in the lower type ("CUDA Ops that can autocast to float16",
PyTorch's page on automatic mixed precision)."""

FULL: Final = _functions(_FULL)
"""Functions that it runs in float32."""

WIDEST: Final = _functions(_WIDEST)
"""Functions that it runs in the widest type of their operands."""


_UNSAFE: Final = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using "
    "torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)
"""What CUDA's autocast says of a function that it refuses."""

REAL: Final[dict[Any, Any]] = {}
"""For each method of tensors that is replaced, the real one.

Real methods ask a mode first, and tell it what the class has by their name: the replacement, which
has run already.
"""


class CastMode(TorchFunctionMode):
    """Casts operands on the device by CUDA's lists.

    Args:
        dtype: The lower type.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype: Final = dtype
        self._weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls a function; see the class."""
        del types
        func, named = REAL.get(func, func), kwargs or {}
        if func is F.binary_cross_entropy and any(True for _ in _floats((args, named))):
            raise RuntimeError(_UNSAFE)
        target = None
        if func in LOW:
            target = self._dtype
        elif func in FULL:
            target = torch.float32
        elif func in WIDEST:
            found = {one.dtype for one in _floats((args, named))}
            target = torch.float32 if torch.float32 in found and len(found) > 1 else None
        if target is not None and named.get("dtype") is None:
            args = tuple(self._cast(one, target) for one in args)
            named = {name: self._cast(one, target) for name, one in named.items()}
        return func(*args, **named)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._cast(one, dtype) for one in value)
        if not _is_cast(value) or value.dtype == dtype:
            return value
        if not (dtype == self._dtype and value.is_leaf and value.requires_grad):
            return value.to(dtype)
        kept = self._weights.get(id(value))
        if kept is None:
            kept = self._weights[id(value)] = value, value.to(dtype)
        return kept[1]


def _is_cast(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in {torch.float32, torch.float16, torch.bfloat16}
        and on_device(value)
    )


def _floats(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        if _is_cast(value):
            yield value
        return
    for one in value:
        yield from _floats(one)


class _Off(TorchFunctionMode):
    """A block of `autocast(enabled=False)` in one that is enabled: nothing is cast."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        with torch._C.DisableTorchFunction():
            return REAL.get(func, func)(*args, **(kwargs or {}))


def patches() -> Iterator[Patch]:
    """Yields what is replaced."""
    real = torch.autocast
    enter, leave = real.__enter__, real.__exit__

    def __enter__(self: Any) -> Any:  # noqa: N807
        result = enter(self)
        if HERE.rank is not None and self.device == "cuda":
            modes = self.__dict__.setdefault("_kernbench_modes", [])
            modes.append(CastMode(self.fast_dtype) if self._enabled else _Off())
            modes[-1].__enter__()
        return result

    def __exit__(self: Any, *error: Any) -> Any:  # noqa: N807
        if self.__dict__.get("_kernbench_modes"):
            self._kernbench_modes.pop().__exit__(*error)
        return leave(self, *error)

    yield Patch(real, "__enter__", __enter__)
    yield Patch(real, "__exit__", __exit__)
