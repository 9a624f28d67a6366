"""Batches made of samples."""

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.memory import dtypes
from kernbench.operations.from_values import as_tensor, tensor
from kernbench.operations.shaping import stack
from kernbench.tensors.errors import TensorError
from kernbench.tensors.tensor import Tensor

__all__ = ["default_collate", "default_convert"]


def default_collate(batch: Any) -> Any:
    """Returns samples of one form as one value of that form, as in `torch.utils.data`.

    Tensors are stacked. Numbers and arrays become tensors where `torch.tensor` makes them, all
    samples in one copy. Mappings, tuples and lists are joined entry by entry; texts stay a list.

    Args:
        batch: The samples.

    Raises:
        OperandError: If a sample is none of these.
        TensorError: If shapes or lengths differ.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return stack(batch, 0)
    if isinstance(first, np.ndarray):
        if first.dtype.kind in "SUO":
            raise _unknown(first.dtype)
        if len({each.shape for each in batch}) > 1:
            raise TensorError(
                "stack expects each tensor to be equal size, but samples have shapes "
                + ", ".join(sorted({str(list(each.shape)) for each in batch})),
                [site_fact(call_site())],
            )
        return as_tensor(np.stack(batch))
    if isinstance(first, np.generic) and not isinstance(first, str | bytes):
        return as_tensor(np.array(batch))
    if isinstance(first, float):
        return tensor(list(batch), dtype=dtypes.float64)
    if isinstance(first, int):
        return tensor(list(batch))
    if isinstance(first, str | bytes):
        return batch
    if isinstance(first, Mapping):
        joined = {key: default_collate([each[key] for each in batch]) for key in first}
        return _like_mapping(first, joined)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*[default_collate(each) for each in zip(*batch, strict=False)])
    if isinstance(first, Sequence):
        if len({len(each) for each in batch}) > 1:
            raise TensorError(
                "each element in list of batch should be of equal size", [site_fact(call_site())]
            )
        columns = [default_collate(each) for each in zip(*batch, strict=True)]
        return columns if isinstance(first, tuple) else _like_sequence(first, columns)
    raise _unknown(type(first))


def default_convert(data: Any) -> Any:
    """Returns arrays and numbers of numpy in a sample as tensors, and everything else as it is."""
    if isinstance(data, np.ndarray | np.generic):
        kind = data.dtype.kind
        return data if kind in "SUO" else as_tensor(np.asarray(data))
    return nested(data, default_convert)


def nested(data: Any, convert: Callable[[Any], Any]) -> Any:
    """Returns a mapping, tuple or sequence with its entries converted; any other value as it is."""
    if isinstance(data, Mapping):
        return _like_mapping(data, {key: convert(each) for key, each in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*[convert(each) for each in data])
    if isinstance(data, tuple):
        return [convert(each) for each in data]
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _like_sequence(data, [convert(each) for each in data])
    return data


def _like_mapping(given: Any, entries: dict[Any, Any]) -> Any:
    try:
        if isinstance(given, MutableMapping):
            clone = copy.copy(given)
            clone.update(entries)
            return clone
        return type(given)(entries)
    except TypeError:  # a class of its own, with another constructor
        return entries


def _like_sequence(given: Any, entries: list[Any]) -> Any:
    try:
        if isinstance(given, MutableSequence):
            clone = copy.copy(given)
            clone[:] = entries
            return clone
        return type(given)(entries)
    except TypeError:
        return entries


def _unknown(kind: Any) -> OperandError:
    return OperandError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        f"found {kind}",
        [site_fact(call_site())],
        hint="give DataLoader a collate_fn that makes a batch of such samples",
    )
