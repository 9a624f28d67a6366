"""Objects on their way to spawned ranks, which pickle copies, but for what processes share."""

import io
import pickle
from typing import Any, Final


class Packed:
    """A pickled object.

    Args:
        content: The pickle.
        shared: What all copies of the object share, by number.
    """

    def __init__(self, content: bytes, shared: list[Any]) -> None:
        self._content: Final = content
        self._shared: Final = shared

    def unpacked(self) -> Any:
        """Returns a copy of the object."""
        return _Unpickler(self._content, self._shared).load()


def packed(value: object, shares: type) -> Packed:
    """Packs an object, as `multiprocessing` does for another process.

    Args:
        value: The object.
        shares: A class whose objects processes share, beside those of `multiprocessing`.

    Raises:
        Exception: What pickle raises if it cannot pack it, such as a lambda.
    """
    shared: list[Any] = []
    file = io.BytesIO()
    _Pickler(file, shared, shares).dump(value)
    return Packed(file.getvalue(), shared)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: list[Any], shares: type) -> None:
        super().__init__(file)
        self._shares: Final = shares
        self._shared: Final = shared

    def persistent_id(self, value: Any) -> int | None:
        """Returns the number of an object that is shared; None of one that is copied."""
        module = type(value).__module__
        if not isinstance(value, self._shares) and not module.startswith("multiprocessing."):
            return None
        self._shared.append(value)
        return len(self._shared) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, shared: list[Any]) -> None:
        super().__init__(io.BytesIO(content))
        self._shared: Final = shared

    def persistent_load(self, number: Any) -> Any:
        """Returns an object that is shared."""
        return self._shared[number]
