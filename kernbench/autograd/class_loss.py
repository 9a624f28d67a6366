"""The loss of a class, minus the logarithm of its probability, and the gradient of that loss."""

import numpy as np

from kernbench.memory import Array
from kernbench.operations.shaping import checked


class ClassLoss:
    """The loss of classes and its gradient, computed on arrays inside kernels.

    Args:
        classes: Number of classes.
        place: Dimension of the input that runs over the classes.
        ignore: Class whose targets do not count.
        reduction: `none`, `mean` or `sum`.
    """

    def __init__(self, classes: int, place: int, ignore: int, reduction: str) -> None:
        self._classes = classes
        self._place = place
        self._ignore = ignore
        self._reduction = reduction

    def _factors(
        self, t: Array, w: Array | None, dtype: "np.dtype[np.generic]"
    ) -> tuple[Array, ...]:
        """Returns per target its class, whether it counts and its weight."""
        counts = t != self._ignore
        rows = checked(
            "cross_entropy", np.where(counts, t, 0), self._classes, self._place, code="M1"
        )
        every = np.ones(self._classes, dtype) if w is None else w
        return rows, counts, every[rows] * counts

    def loss(self, logs: Array, t: Array, w: Array | None) -> Array:
        """Returns the loss: one value per target, or a single value.

        Args:
            logs: Logarithms of probabilities; dimension `place` runs over the classes.
            t: Classes, of the shape of `logs` without dimension `place`.
            w: Weight of each class, `[classes]`; None for 1.
        """
        rows, _, each = self._factors(t, w, logs.dtype)
        x = np.moveaxis(logs, self._place, -1)
        loss = -np.take_along_axis(x, rows[..., None], -1)[..., 0] * each
        if self._reduction == "none":
            return loss
        result: Array = np.sum(loss, dtype=logs.dtype)
        return result / np.sum(each, dtype=logs.dtype) if self._reduction == "mean" else result

    def slope(self, grad: Array, t: Array, w: Array | None) -> Array:
        """Returns the gradient of the logarithms, in their shape.

        Args:
            grad: Gradient of the loss, in the loss's shape.
            t: Classes, of the shape of the logarithms without dimension `place`.
            w: Weight of each class, `[classes]`; None for 1.
        """
        rows, counts, each = self._factors(t, w, grad.dtype)
        if self._reduction == "mean":
            grad = grad / np.sum(each, dtype=grad.dtype)
        # Not a product: if no target counts, the mean is nan, and ignored targets still get 0.
        grad = np.where(counts, grad, grad.dtype.type(0))
        slope = np.zeros((*t.shape, self._classes), grad.dtype)
        if self._classes:
            np.put_along_axis(slope, rows[..., None], -(grad * each)[..., None], -1)
        return np.moveaxis(slope, -1, self._place)
