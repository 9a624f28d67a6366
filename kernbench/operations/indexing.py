"""`tensor[...]`: views for integers and slices, gathers for index tensors and masks."""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kernbench.errors import OperandError, OptionError, call_site, site_fact
from kernbench.kernels.prices import of_scatter
from kernbench.memory import Array, View, dtypes
from kernbench.operations.copies import copy_, to
from kernbench.operations.elementwise import OPERANDS, argument, broadcast, check_distinct
from kernbench.operations.filling import fill_, masked_fill_, number
from kernbench.operations.shaping import checked
from kernbench.operations.views import select
from kernbench.process.process import Process, current_process
from kernbench.process.types import Device
from kernbench.tensors import tape
from kernbench.tensors.errors import DimensionError, TensorError
from kernbench.tensors.new import new_tensor
from kernbench.tensors.running import host_array, mixed_devices, run
from kernbench.tensors.tensor import Tensor

if TYPE_CHECKING:
    from kernbench.tensors.promotion import Scalar

_MASKS = (dtypes.bool_, dtypes.uint8)
_BOOLS = (bool, np.bool_)
_WHOLE = (slice(None), ...)
_PLAIN = frozenset({int, slice, type(None), type(...)})

Advanced = list["Tensor | Array | None"]
"""The part of a key that makes no view: an index for each dimension, None for all of it."""


def getitem(self: Tensor, key: Any) -> Tensor:
    """Returns a view for integers, slices, None and `...`; a copy for index tensors and masks.

    The host waits for the values of a mask, and of a single-value index on a device.

    Raises:
        DimensionError: If an index is out of range, or the key has too many entries.
    """
    if type(key) is int:
        return select(self, 0, key) if self.window.shape else _windowed(self, (key,))[0]
    seen, advanced = _windowed(self, _tuple(key))
    return seen if advanced is None else gathered(seen, advanced)


def setitem(self: Tensor, key: Any, value: Any) -> None:
    """Writes elements; the value is broadcast and converted.

    Raises:
        DimensionError: If an index is out of range, or the key has too many entries.
        OperandError: If the value is neither tensor nor number.
        TensorError: If the key holds an index tensor, and the value is a tensor of another type. A
            single value is converted if the one index tensor is a mask.
    """
    if isinstance(key, Tensor) and key.dtype is dtypes.bool_ and key.device == self.device:
        single = not isinstance(value, Tensor) or not value.window.shape
        if single and key.window.shape == self.window.shape:
            masked_fill_(self, key, value)
            return
    entries = _tuple(key)
    seen, advanced = _windowed(self, entries)
    if advanced is not None:
        if isinstance(value, Tensor) and value.window.dtype is not self.window.dtype:
            value = _converted(self, entries, value)
        if isinstance(value, Tensor):
            value = _trimmed(value, len(_result_shape(seen, advanced)))
        scattered(seen, advanced, value)
    elif isinstance(value, Tensor):
        copy_(seen, _trimmed(value, len(seen.window.shape)))
    elif isinstance(value, OPERANDS):
        fill_(seen, cast("Scalar", value))
    else:
        raise OperandError(
            f"can't assign a {type(value).__name__} to a tensor",
            [site_fact(call_site())],
            hint="make a tensor of it first",
        )


def _trimmed(value: Tensor, rank: int) -> Tensor:
    """Returns a value without the leading dimensions of extent 1 that its place does not have."""
    shape = value.window.shape
    extra = len(shape) - rank
    return value.reshape(shape[extra:]) if extra > 0 and set(shape[:extra]) == {1} else value


def _converted(self: Tensor, entries: tuple[Any, ...], value: Tensor) -> Tensor:
    """Returns a single value in the tensor's type if the only index tensor is a mask."""
    masks = [entry for entry in entries if _is_mask(entry)]
    indices = [entry for entry in entries if isinstance(entry, Tensor | Sequence | np.ndarray)]
    dtype = self.window.dtype
    fits = dtype.is_complex or not value.window.dtype.is_complex
    if value.window.numel == 1 and fits and len(masks) == 1 and indices in ([], masks):
        return to(value, dtype)
    raise TensorError(
        "Index put requires the source and destination dtypes match, got "
        f"{dtype} for the destination and {value.window.dtype} for the source.",
        [site_fact(call_site())],
        hint=f"convert the value first: value.to({dtype})",
    )


def _is_mask(entry: Any) -> bool:
    if isinstance(entry, Tensor):
        return entry.dtype in _MASKS
    if isinstance(entry, np.ndarray):
        return bool(entry.dtype == np.bool_)
    return isinstance(entry, bool) or (isinstance(entry, list) and isinstance(entry[0], bool))


def _tuple(key: Any) -> tuple[Any, ...]:
    """Returns the entries of a key; a list of anything but numbers stands for a tuple."""
    if isinstance(key, tuple):
        return key
    parts = (list, tuple, slice, Tensor, np.ndarray, type(None), type(...))
    if isinstance(key, list) and any(isinstance(entry, parts) for entry in key):
        return tuple(key)
    return (key,)


def _windowed(self: Tensor, key: tuple[Any, ...]) -> tuple[Tensor, Advanced | None]:
    """Applies the entries that make a view; returns the view and the remaining indices."""
    old = self.window
    # Most keys are of integers and slices, and need no closer look.
    plain = _PLAIN.issuperset(map(type, key))
    if plain:
        used = len(key) - key.count(None) - key.count(...)
        dots = ... in key
    else:
        used = sum(_width(entry) for entry in key)
        dots = any(entry is ... for entry in key)
    rank = len(old.shape)
    if used > rank:
        raise DimensionError(
            f"too many indices for tensor of dimension {rank}", [site_fact(call_site())]
        )
    shape: list[int] = []
    strides: list[int] = []
    offset, dim = old.offset, 0
    basic: list[Any] = []
    advanced: dict[int, Tensor | Array] = {}
    fill = rank - used
    for entry in key if dots else (*key, ...):
        truth = None if plain else _truth(entry)
        if entry is None or truth is not None:
            if truth is not None:
                advanced[len(shape)] = np.zeros(int(truth), np.int64)
            basic.append(None)
            shape.append(1)
            strides.append(old.shape[dim] * old.strides[dim] if dim < rank else 1)
            continue
        if entry is ...:
            shape += old.shape[dim : dim + fill]
            strides += old.strides[dim : dim + fill]
            dim, fill = dim + fill, 0
        elif isinstance(entry, slice):
            start, length = _range(entry, old.shape[dim])
            offset += start * old.strides[dim]
            shape.append(length)
            strides.append(
                old.strides[dim] * (1 if entry.step is None else operator.index(entry.step))
            )
            dim += 1
        elif isinstance(entry, Tensor | Sequence | np.ndarray) and not _is_single(entry):
            for indices in _indices(self, entry, dim):
                advanced[len(shape)] = indices
                shape.append(old.shape[dim])
                strides.append(old.strides[dim])
                basic.append(slice(None))
                dim += 1
            continue
        else:
            index = _position(entry, old.shape[dim], dim)
            offset += index * old.strides[dim]
            basic.append(index)
            dim += 1
            continue
        basic.append(entry)
    if advanced and tuple(shape) == old.shape and all(entry in _WHOLE for entry in basic):
        return self, [advanced.get(place) for place in range(len(shape))]
    seen = tape.view(self, shape, strides, offset, "slice", (getitem, tuple(basic)))
    left = [advanced.get(place) for place in range(len(shape))] if advanced else None
    return seen, left


def _truth(entry: Any) -> bool | None:
    """Returns the value of a bool or of a mask without dimensions; None for any other entry.

    Such an entry makes a dimension of extent 1, or 0, and the host waits for a mask's value.
    """
    if isinstance(entry, _BOOLS):
        return bool(entry)
    if isinstance(entry, Tensor):
        single = entry.dtype in _MASKS and not entry.window.shape
        return bool(host_array(entry, "__getitem__")) if single else None
    single = isinstance(entry, np.ndarray) and entry.dtype == np.bool_ and not entry.ndim
    return bool(entry) if single else None


def _width(entry: Any) -> int:
    """Returns how many dimensions an entry of a key indexes."""
    if entry is None or entry is ... or isinstance(entry, _BOOLS):
        return 0
    if isinstance(entry, Tensor) and entry.dtype in _MASKS:
        return len(entry.window.shape)
    if isinstance(entry, np.ndarray) and entry.dtype == np.bool_:
        return entry.ndim
    return 1


def _is_single(entry: Any) -> bool:
    """Whether an entry is a single number, in a tensor or an array."""
    if isinstance(entry, Tensor):
        return not entry.window.shape
    return isinstance(entry, np.ndarray) and not entry.ndim


def _position(entry: Any, extent: int, dim: int) -> int:
    if isinstance(entry, Tensor) and not entry.dtype.is_floating_point:
        entry = host_array(entry, "__getitem__").item()
    try:
        index = operator.index(entry)
    except TypeError:
        raise DimensionError(
            "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are "
            f"valid indices (got {type(entry).__name__})",
            [site_fact(call_site())],
        ) from None
    if not -extent <= index < extent:
        raise DimensionError(
            f"index {index} is out of bounds for dimension {dim} with size {extent}",
            [site_fact(call_site())],
        )
    return index % extent


def _range(entry: slice, extent: int) -> tuple[int, int]:
    """Returns the first index of a slice, and the number of elements that it selects."""
    step = 1 if entry.step is None else operator.index(entry.step)
    if step <= 0:
        raise OptionError("step must be greater than zero", [site_fact(call_site())])
    picked = range(*entry.indices(extent))
    return (picked.start if picked else 0), len(picked)


def _indices(self: Tensor, entry: Any, dim: int) -> list[Tensor | Array]:
    """Returns an index for each dimension that an entry indexes; waits for a mask."""
    shape = self.window.shape
    if not isinstance(entry, Tensor):
        entry = np.asarray(entry if isinstance(entry, np.ndarray) else list(entry))
        if entry.size == 0:
            entry = entry.astype(np.int64)
    mask = entry.dtype in _MASKS if isinstance(entry, Tensor) else entry.dtype == np.bool_
    if mask:
        if isinstance(entry, Tensor):
            _check_reach(entry, self.device)
        values = host_array(entry, "__getitem__") if isinstance(entry, Tensor) else entry
        for place, (n, m) in enumerate(zip(values.shape, shape[dim:], strict=False)):
            if n != m:
                raise DimensionError(
                    f"The shape of the mask {list(values.shape)} at index {place} does not match "
                    f"the shape of the indexed tensor {list(shape)} at index {dim + place}",
                    [site_fact(call_site())],
                )
        return list(np.nonzero(values))
    integers = (dtypes.int64, dtypes.int32)
    whole = entry.dtype in integers if isinstance(entry, Tensor) else entry.dtype.kind in "iu"
    if not whole:
        raise DimensionError(
            f"tensors used as indices must be long, int, byte or bool tensors; got {entry.dtype}",
            [site_fact(call_site())],
        )
    return [entry]


def _index_shape(index: Tensor | Array) -> tuple[int, ...]:
    return index.window.shape if isinstance(index, Tensor) else index.shape


def _result_shape(seen: Tensor, advanced: Advanced) -> tuple[int, ...]:
    """Returns the shape of the gathered elements, by numpy's rule."""
    places = [place for place, index in enumerate(advanced) if index is not None]
    inner = broadcast("index", [_index_shape(index) for index in advanced if index is not None])
    rest = [n for n, index in zip(seen.window.shape, advanced, strict=True) if index is None]
    together = places[-1] - places[0] + 1 == len(places)
    at = places[0] if together else 0
    return (*rest[:at], *inner, *rest[at:])


def _check_reach(index: Tensor, device: Device) -> None:
    """Checks that an index tensor is on the host, or where the tensor is that it indexes."""
    if index.is_cuda and index.device != device:
        raise TensorError(
            "indices should be either on cpu or on the same device as the indexed tensor "
            f"({device})",
            [site_fact(call_site()), f"got an index on {index.device}"],
            hint="move the index with .cpu()",
        )


def _placed(process: Process, index: Tensor, device: Device) -> Tensor:
    """Returns an index tensor where an operation on a device can use it.

    An index on the host goes to the device with its present values. If devices are kept apart, the
    copy takes its time, as in PyTorch.

    Raises:
        TensorError: If the index is on a device, and what it indexes is elsewhere.
    """
    if index.device == device or not index.window.shape:
        return index
    _check_reach(index, device)
    return to(index, device) if process.strict else index


class Key:
    """An index for each dimension; index tensors on the device are read when the effect runs.

    Args:
        process: The calling rank, or main.
        seen: Tensor on whose device the indices are used.
        advanced: An index for each dimension.
        shape: Shape of what is indexed; None for that of `seen`.
    """

    def __init__(
        self,
        process: Process,
        seen: Tensor,
        advanced: Advanced,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.tensors: list[Tensor] = []
        self._shape = seen.window.shape if shape is None else shape
        self._sources: list[View | Array | None] = []
        for given in advanced:
            if not isinstance(given, Tensor):
                self._sources.append(given)
                continue
            index = _placed(process, given, seen.device)
            if index.device == seen.device:
                self.tensors.append(index)
                self._sources.append(index.window)
            else:
                self._sources.append(argument(process, index, None))

    def read(self, name: str, code: str) -> tuple[Any, ...]:
        """Returns the key for numpy, checked; `code` is that of an index out of range."""
        key: list[Any] = []
        for dim, (source, extent) in enumerate(zip(self._sources, self._shape, strict=True)):
            if source is None:
                key.append(slice(None))
            else:
                index = source.read() if isinstance(source, View) else source
                key.append(checked(name, index, extent, dim, code=code, negative=True))
        return tuple(key)


def gathered(seen: Tensor, advanced: Advanced) -> Tensor:
    """Returns a copy of the elements chosen by an index for each dimension.

    Args:
        advanced: An index for each dimension of `seen`; None for the whole dimension.
    """
    process = current_process()
    key = Key(process, seen, advanced)
    out = new_tensor(process, _result_shape(seen, advanced), seen.dtype, seen.device)
    source, target = seen.window, out.window

    def effect() -> None:
        target.adopt(source.pick(key.read("index", "M1")))

    node = None
    if seen.memory.tracked and seen.dtype.is_floating_point:
        node = tape.begin(process, "aten::index", (seen,), {"advanced": advanced})
    run(process, "aten::index", [seen, *key.tensors], out, effect)
    if node is not None:
        tape.finish(node, out)
    return out


def scattered(seen: Tensor, advanced: Advanced, value: Any) -> None:
    """Writes the elements chosen by an index for each dimension.

    Args:
        advanced: An index for each dimension of `seen`; None for the whole dimension.
        value: A tensor or a number, broadcast to the chosen elements and converted.

    Raises:
        TensorError: If `value` does not broadcast, or is complex and the tensor is not.
    """
    process = current_process()
    check_distinct("index_put_", seen)
    key = Key(process, seen, advanced)
    inputs: list[Tensor] = list(key.tensors)
    source: View | Array
    if isinstance(value, Tensor):
        if value.device == seen.device:
            inputs.append(value)
            source = value.window
        elif value.window.numel != 1:
            raise mixed_devices("index_put_", (seen, value))
        else:
            source = argument(process, value, None)
    else:
        source = number("index_put_", value, seen.dtype)
    shape = _result_shape(seen, advanced)
    if broadcast("index_put_", [shape, source.shape]) != shape:
        raise TensorError(
            f"shape mismatch: value tensor of shape {list(source.shape)} cannot be broadcast to "
            f"indexing result of shape {list(shape)}",
            [site_fact(call_site())],
        )
    target = seen.window
    kind = source.dtype.numpy.kind if isinstance(source, View) else source.dtype.kind
    if kind == "c" and not target.dtype.is_complex:
        raise TensorError(
            f"Index put requires the source and destination dtypes match: got complex numbers for "
            f"{target.dtype}",
            [site_fact(call_site())],
            hint="give their real part: value.real",
        )

    def effect() -> None:
        values = source.read() if isinstance(source, View) else source
        target.put(key.read("index_put_", "M2"), values.astype(target.dtype.numpy, copy=False))

    node = None
    if seen.memory.tracked or (isinstance(value, Tensor) and value.memory.tracked):
        operands = (seen, value)
        node = tape.begin(process, "aten::index_put", operands, {"advanced": advanced}, seen)
    run(process, "aten::index_put_", inputs, seen, effect, price=of_scatter("index_put_", shape))
    if node is not None:
        tape.finish(node, seen)
