"""Modules that hold parameters: `torch.nn.ParameterList` and `ParameterDict`."""

from collections.abc import Iterable, Iterator, Mapping
from operator import index
from typing import Any, Self

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.nn.module import Module, Parameter
from kernbench.tensors.operands import type_name
from kernbench.tensors.tensor import Tensor

__all__ = ["ParameterDict", "ParameterList"]


def _as_parameter(value: Any) -> Any:
    plain = isinstance(value, Tensor) and not isinstance(value, Parameter)
    return Parameter(value) if plain else value


def _line(name: object, value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"  ({name}): Object of type: {type(value).__name__}"
    place = f" ({value.device})" if value.is_cuda else ""
    size = "x".join(str(n) for n in value.window.shape)
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"  ({name}): {kind} containing: [{value.dtype} of size {size}{place}]"


class ParameterList(Module):
    """`torch.nn.ParameterList`: a list whose tensors are parameters of the module."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        self.extend(values or ())

    def _name(self, place: int) -> str:
        number = index(place)
        if not -self._size <= number < self._size:
            raise IndexError(f"index {number} is out of range")
        return str(number % self._size)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, str(place)) for place in range(self._size))

    def __getitem__(self, idx: int | slice) -> Any:
        if isinstance(idx, slice):
            return type(self)(list(self)[idx])
        return getattr(self, self._name(idx))

    def __setitem__(self, idx: int, param: Any) -> None:
        setattr(self, self._name(idx), _as_parameter(param))

    def __iadd__(self, parameters: Iterable[Any]) -> Self:
        return self.extend(parameters)

    def append(self, value: Any) -> Self:
        """Adds a value at the end, a tensor as a parameter, and returns the list."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Adds values at the end, and returns the list.

        Raises:
            OperandError: If `values` is a tensor, or cannot be iterated over.
        """
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise OperandError(
                "ParameterList.extend should be called with an iterable, but got "
                f"{type_name(values)}",
                [site_fact(call_site())],
            )
        for value in values:
            self.append(value)
        return self

    def extra_repr(self) -> str:
        """See `Module`."""
        return "\n".join(_line(place, value) for place, value in enumerate(self))


class ParameterDict(Module):
    """`torch.nn.ParameterDict`: a dict whose tensors are parameters of the module.

    Args:
        parameters: A mapping, or pairs of names and values; None for none.
    """

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        self.update(parameters or {})

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise OperandError(
                f"a key of ParameterDict is a string, got {type_name(key)}",
                [site_fact(call_site())],
            )
        self._keys[key] = None
        setattr(self, key, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def keys(self) -> Iterable[str]:
        """Returns the names."""
        return self._keys.keys()

    def values(self) -> Iterable[Any]:
        """Returns the values."""
        return (self[key] for key in self._keys)

    def items(self) -> Iterable[tuple[str, Any]]:
        """Returns names and values."""
        return ((key, self[key]) for key in self._keys)

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value, or `default` if there is none."""
        return getattr(self, key) if key in self._keys else default

    def pop(self, key: str) -> Any:
        """Takes a value out, and returns it."""
        value = self[key]
        del self[key]
        return value

    def update(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Adds entries, tensors as parameters; those of a plain dict in the order of their names.

        Raises:
            OperandError: If `parameters` cannot be iterated over.
        """
        if not isinstance(parameters, Iterable):
            raise OperandError(
                "ParameterDict.update should be called with an iterable of key/value pairs, but "
                f"got {type_name(parameters)}",
                [site_fact(call_site())],
            )
        pairs: Any = parameters
        if hasattr(pairs, "items"):
            pairs = sorted(pairs.items()) if type(pairs) is dict else pairs.items()
        for key, value in pairs:
            self[key] = value

    def extra_repr(self) -> str:
        """See `Module`."""
        return "\n".join(_line(key, value) for key, value in self.items())
