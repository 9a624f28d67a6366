"""The loss of a class: the negative logarithm of its probability, and its gradient."""

import numpy as np

from kernbench.memory import Array
from kernbench.operations.shaping import checked


class ClassLoss:
    """The loss of classes and its gradient, for kernels.

    Args:
        classes: How many.
        place: Which dimension they are.
        ignore: Class that counts for nothing.
        reduction: `none`, `mean` or `sum`.
        smoothing: Share of the target that is spread over all classes.
    """

    def __init__(
        self, classes: int, place: int, ignore: int, reduction: str, smoothing: float
    ) -> None:
        self._classes = classes
        self._place = place
        self._ignore = ignore
        self._reduction = reduction
        self._smoothing = smoothing

    def _factors(
        self, t: Array, w: Array | None, dtype: "np.dtype[np.generic]"
    ) -> tuple[Array, ...]:
        """Returns valid classes, which of them count, the weight of each, and of all classes."""
        counts = t != self._ignore
        rows = checked(
            "cross_entropy", np.where(counts, t, 0), self._classes, self._place, code="M1"
        )
        every = np.ones(self._classes, dtype) if w is None else w
        return rows, counts, every[rows] * counts, every

    def loss(self, logs: Array, t: Array, w: Array | None) -> Array:
        """Returns the loss."""
        rows, counts, each, every = self._factors(t, w, logs.dtype)
        x = np.moveaxis(logs, self._place, -1)
        loss = -np.take_along_axis(x, rows[..., None], -1)[..., 0] * each
        if self._smoothing:
            spread = -np.sum(x * every, axis=-1) * counts
            loss = (1 - self._smoothing) * loss + self._smoothing / self._classes * spread
        if self._reduction == "none":
            return loss
        result: Array = np.sum(loss, dtype=logs.dtype)
        return result / np.sum(each, dtype=logs.dtype) if self._reduction == "mean" else result

    def slope(self, grad: Array, t: Array, w: Array | None) -> Array:
        """Returns the gradient of the logarithms."""
        rows, counts, each, every = self._factors(t, w, grad.dtype)
        if self._reduction == "mean":
            grad = grad / np.sum(each, dtype=grad.dtype)
        scale = grad.dtype.type(self._smoothing / self._classes)
        slope = -scale * every * (grad * counts)[..., None]
        hit = np.take_along_axis(slope, rows[..., None], -1)
        hit -= (grad.dtype.type(1 - self._smoothing) * grad * each)[..., None]
        np.put_along_axis(slope, rows[..., None], hit, -1)
        return np.moveaxis(slope, -1, self._place)
