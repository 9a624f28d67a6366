"""Objects on their way to spawned ranks, which pickle copies, but for what processes share."""

import io
import pickle
from typing import Any, Final


class Packed:
    """A pickled object.

    Args:
        content: The pickle.
        shared: What all copies of the object share, by number.
        torch: PyTorch.
    """

    def __init__(self, content: bytes, shared: list[Any], torch: Any) -> None:
        self._content: Final = content
        self._shared: Final = shared
        self._torch: Final = torch

    def unpacked(self) -> Any:
        """Returns a copy of the object."""
        return _Unpickler(self._content, self._shared, self._torch).load()


def packed(value: object, torch: Any) -> Packed:
    """Packs an object, as `multiprocessing` does for another process.

    Args:
        value: The object.
        torch: PyTorch: processes share the memory of tensors, and objects of `multiprocessing`.

    Raises:
        Exception: What pickle raises if it cannot pack it, such as a lambda.
        RuntimeError: For a tensor that has a gradient to pass on, as in PyTorch.
    """
    shared: list[Any] = []
    file = io.BytesIO()
    _Pickler(file, shared, torch).dump(value)
    return Packed(file.getvalue(), shared, torch)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: list[Any], torch: Any) -> None:
        super().__init__(file)
        self._tensor: Final = torch.Tensor
        self._shared: Final = shared
        self._numbers: Final[dict[int, int]] = {}

    def persistent_id(self, value: Any) -> int | None:
        """Returns the number of an object that is shared; None of one that is copied."""
        module = type(value).__module__
        tensor = isinstance(value, self._tensor)
        if not tensor and not module.startswith("multiprocessing."):
            return None
        if tensor and value.requires_grad and not value.is_leaf:
            raise RuntimeError(_NO_LEAF)
        number = self._numbers.setdefault(id(value), len(self._shared))
        if number == len(self._shared):
            self._shared.append(value)
        return number


_NO_LEAF: Final = (
    "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not "
    "support crossing process boundaries.  If you just want to transfer the data, call detach() on "
    "the tensor before serializing (e.g., putting it on the queue)."
)


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, shared: list[Any], torch: Any) -> None:
        super().__init__(io.BytesIO(content))
        self._shared: Final = shared
        self._torch: Final = torch
        self._found: Final[dict[int, Any]] = {}

    def persistent_load(self, number: Any) -> Any:
        """Returns an object that is shared; of a tensor, one of the process's own on the memory."""
        found = self._found.get(number)
        if found is None:
            found = self._found[number] = self._own(self._shared[number])
        return found

    def _own(self, value: Any) -> Any:
        if type(value) is self._torch.nn.Parameter:
            return self._torch.nn.Parameter(value.data, value.requires_grad)
        if type(value) is self._torch.Tensor:
            return value.data.requires_grad_(value.requires_grad)
        return value
