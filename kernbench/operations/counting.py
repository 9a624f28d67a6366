"""Elements that are counted by value, and slices that are added by place."""

import numpy as np

from kernbench.errors import call_site, site_fact
from kernbench.kernels.prices import of_scatter
from kernbench.memory import Array, dtypes
from kernbench.memory.special import add_slices
from kernbench.operations.copies import clone, detach
from kernbench.operations.elementwise import check_distinct
from kernbench.operations.fused import kernel, widened
from kernbench.operations.reductions import amax, amin
from kernbench.operations.shaping import check_index, checked
from kernbench.operations.twins import args_of
from kernbench.operations.views import dim_of
from kernbench.process.process import current_process
from kernbench.tensors import tape
from kernbench.tensors.errors import TensorError
from kernbench.tensors.running import run, same_device
from kernbench.tensors.tensor import Tensor

__all__ = ["bincount", "histc", "index_add"]


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Returns how often each whole number occurs, as `torch.bincount`; the host reads extremes.

    Raises:
        TensorError: If `input` is no vector of integers from 0, or shapes differ.
    """
    wrong = input.ndim != 1 or input.dtype.is_floating_point or input.dtype is dtypes.bool_
    wrong = wrong or (weights is not None and weights.shape != input.shape)
    size = max(minlength, int(amax(input)) + 1) if input.numel() and not wrong else minlength
    if wrong or (input.numel() and int(amin(input)) < 0):
        only = "bincount only supports 1-d non-negative integral inputs, weights of their shape"
        raise TensorError(only, [site_fact(call_site())])
    known = None if weights is None or not input.numel() else weights.dtype
    dtype = {None: dtypes.int64, dtypes.float32: dtypes.float32}.get(known, dtypes.float64)
    given = (input, weights)
    return kernel("bincount", lambda x, w: np.bincount(x, w, size), given, (size,), dtype)


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Returns how many elements are in each of equal bins, as `torch.histc`; NaNs are in none.

    Args:
        min: Where the first bin begins; if it equals `max`, the host reads the extremes instead.
        max: Where the last one ends, which it contains.

    Raises:
        TensorError: If there is no bin, or the ends are in the wrong order or not finite.
    """
    low, high = float(min), float(max)
    if low == high and input.numel():
        low, high = float(amin(input)), float(amax(input))
    if bins < 1 or not 0 <= high - low < np.inf:
        raise TensorError(f"histc: {bins} bins from {low} to {high}", [site_fact(call_site())])
    ends = (low, high) if low < high else (low - 1, high + 1)

    def count(x: Array) -> Array:
        inside = x[(x >= ends[0]) & (x <= ends[1])].astype(np.float64)
        places = ((inside - ends[0]) * bins / (ends[1] - ends[0])).astype(np.int64)
        return np.bincount(np.minimum(places, bins - 1), minlength=bins)

    return kernel("histc", count, (detach(input),), (bins,), input.dtype)


def index_add_(
    self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    """Adds slices of `source`, times `alpha`, to those whose places a vector holds, as PyTorch.

    Raises:
        TensorError: If types differ, or shapes do not fit.
        IndexOutOfBoundsError: If an index is out of range (M2); found when the kernel runs.
    """
    check_index("index_add_", index)
    if not self.window.shape:
        vectors = index.reshape(1), source.reshape(1)
        return index_add_(self.reshape(1), dim, *vectors, alpha=alpha).reshape(())
    check_distinct("index_add_", self)
    same_device("index_add_", [self, index, source])
    place, target, chosen, given = dim_of(dim, self.ndim), self.window, index.window, source.window
    shape = (*target.shape[:place], chosen.numel, *target.shape[place + 1 :])
    if given.dtype is not target.dtype or len(chosen.shape) > 1 or given.shape != shape:
        found = f"index_add_: source is {list(given.shape)}, {given.dtype}; "
        raise TensorError(f"{found}expected {shape}, {target.dtype}", [site_fact(call_site())])

    def effect() -> None:
        rows = checked("index_add_", chosen.read(), target.shape[place], place, code="M2")
        add_slices(
            total := np.array(widened(target)), alpha * widened(given), rows.reshape(-1), place
        )
        target.store(total)

    process, node = current_process(), None
    if self.memory.tracked or source.memory.tracked:
        options = {"dim": place, "chosen": index, "alpha": alpha}
        node = tape.begin(process, "index_add", (self, source), options, self)
    name, price = "aten::index_add_", of_scatter("index_add_", shape)
    run(process, name, [index, source], self, effect, price=price)
    if node is not None:
        tape.finish(node, self)
    return self


@args_of(index_add_)
def index_add(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    """Returns a copy to which slices were added, as `torch.index_add`."""
    return index_add_(clone(input), dim, index, source, alpha=alpha)
