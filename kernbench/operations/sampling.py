"""Draws of indices by their probabilities."""

from typing import Final

import numpy as np

from kernbench.errors import call_site, site_fact
from kernbench.memory import Array, dtypes
from kernbench.operations.views import whole
from kernbench.process.process import current_process
from kernbench.tensors.errors import TensorError
from kernbench.tensors.generators import Drawn, Generator, generator_on
from kernbench.tensors.new import new_tensor
from kernbench.tensors.running import run
from kernbench.tensors.tensor import Tensor

__all__ = ["multinomial"]


def multinomial(
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Returns indices drawn by their weights, int64 of shape `[..., num_samples]`.

    Args:
        input: Weights at least 0, `[categories]` or `[rows, categories]`; they need not add up
            to 1.
        num_samples: Number of indices to draw from each row.
        replacement: Whether an index may be drawn more than once.
        generator: Source of the numbers; by default the calling rank's generator.

    Raises:
        OperandError: If `num_samples` is no integer.
        TensorError: If the shape, the type or the number of samples does not fit, or the generator
            is for another kind of device; if a weight is negative or not finite, or all are 0,
            which is found when the kernel runs.
    """
    window = input.window
    if not window.dtype.is_floating_point or window.dtype.itemsize == 1:
        raise _refused(f"multinomial only supports floating-point dtypes, got: {window.dtype}")
    if len(window.shape) not in {1, 2}:
        raise _refused("prob_dist must be 1 or 2 dim")
    num_samples = whole("multinomial(): argument 'num_samples'", num_samples)
    if num_samples <= 0:
        raise _refused("cannot sample n_sample <= 0 samples")
    categories = window.shape[-1]
    if not categories or (num_samples > categories and not replacement):
        raise _refused(_TOO_MANY, f"{num_samples} samples of {categories} categories")
    process = current_process()
    source = generator_on(process, input.device, generator)
    rows = window.shape[:-1]
    shape = (*rows, num_samples)
    out = new_tensor(process, shape, dtypes.int64, input.device)
    target = out.window
    drawn = Drawn(
        process,
        input.device,
        source,
        generator,
        lambda numbers: _draws(numbers, window.shape, num_samples, replacement),
    )

    def effect() -> None:
        draws = drawn.take()
        weights = window.read().astype(np.float64)
        target.adopt(_picked(weights, draws, num_samples, replacement))

    run(process, "aten::multinomial", (input,), out, effect)
    return out


def drawn_indices(
    numbers: "np.random.Generator", weights: Array, count: int, replacement: bool
) -> Array:
    """Returns indices drawn by their weights on the host, as `multinomial` draws them.

    Args:
        numbers: Source of the numbers.
        weights: Weights at least 0, a vector of float64.
        count: Number of indices to draw.
        replacement: Whether an index may be drawn more than once.

    Raises:
        TensorError: If a weight is negative or not finite, if all are 0, or if more indices are
            asked for than there are.
    """
    if not len(weights) or (count > len(weights) and not replacement):
        raise _refused(_TOO_MANY, f"{count} samples of {len(weights)} categories")
    return _picked(weights, _draws(numbers, weights.shape, count, replacement), count, replacement)


_TOO_MANY: Final = "cannot sample n_sample > prob_dist.size(-1) samples without replacement"


def _draws(
    numbers: "np.random.Generator", shape: tuple[int, ...], count: int, replacement: bool
) -> Array:
    if replacement:
        return numbers.random((*shape[:-1], count))
    return numbers.standard_exponential(shape)


def _picked(weights: Array, draws: Array, count: int, replacement: bool) -> Array:
    pick = _with_replacement if replacement else _without_replacement
    return pick(_checked(weights), draws, count)


def _refused(summary: str, *facts: str) -> TensorError:
    return TensorError(summary, [site_fact(call_site()), *facts])


def _checked(weights: Array) -> Array:
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise TensorError("probability tensor contains either `inf`, `nan` or element < 0")
    if not weights.any(axis=-1).all():
        raise TensorError("invalid multinomial distribution (sum of probabilities <= 0)")
    return weights


def _with_replacement(weights: Array, draws: Array, count: int) -> Array:
    """Returns the indices at which the running sums of the weights pass evenly drawn numbers."""
    del count
    sums = np.cumsum(weights, axis=-1)
    whole = sums[..., -1:]
    # Rounding must not reach the whole sum, behind which there is no index.
    marks = np.minimum(draws * whole, np.nextafter(whole, 0))
    passed = sums[..., None, :] <= marks[..., None]
    return np.asarray(passed.sum(axis=-1, dtype=np.int64))


def _without_replacement(weights: Array, draws: Array, count: int) -> Array:
    """Returns the indices of the largest quotients of weights and exponentially drawn numbers.

    The largest one is index i with the probability of i; the next one with its probability among
    the others, and so on (Efraimidis and Spirakis 2006).
    """
    order = np.argsort(-(weights / draws), axis=-1, kind="stable")
    return np.ascontiguousarray(order[..., :count])
