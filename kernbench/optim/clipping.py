"""`torch.nn.utils`: norms of gradients, also for models that are split over ranks."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kernbench.distributed.collectives import all_reduce
from kernbench.distributed.reduce_ops import ReduceOp
from kernbench.errors import call_site, site_fact
from kernbench.memory import Array, DType, dtypes
from kernbench.operations.copies import to
from kernbench.operations.creation import zeros
from kernbench.operations.fused import kernel, widened
from kernbench.operations.pointwise import add, maximum
from kernbench.operations.reductions import norm
from kernbench.process.process import current_process
from kernbench.process.types import Device
from kernbench.ranks.groups import ProcessGroup
from kernbench.tensors.errors import TensorError, refuse
from kernbench.tensors.nodes import recording
from kernbench.tensors.running import ListKernel, plain, run_on_lists
from kernbench.tensors.tensor import Tensor

__all__ = ["clip_grad_norm_", "clip_grads_with_norm_", "get_total_norm"]

Groups = ProcessGroup | Sequence[ProcessGroup] | None


def get_total_norm(
    tensors: Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    group: Groups = None,
) -> Tensor:
    """Returns the norm of tensors as if they were one vector; a single value.

    On one device and without groups it is the norm of the norms, in three kernels, as in PyTorch.
    Else sums of powers are one kernel a device, added on the first tensor's device, and, with
    groups, by one all-reduce per group. 16-bit floats are added in float32, and the result is
    float32 then.

    Args:
        tensors: The tensors; without any the norm is 0.
        norm_type: Order of the norm; `inf` for the largest absolute value.
        error_if_nonfinite: Whether the host waits for the norm and refuses one that is not finite.
        foreach: None or True: all tensors are taken at once.
        group: Ranks that each hold a different part of the vector: a group, or several, over which
            the parts are added one after the other. A tensor that several ranks hold counts once
            for each of them: pass it on one rank only.

    Raises:
        TensorError: If the norm is not finite and `error_if_nonfinite` is True.
        UnsupportedError: For `foreach=False`.
    """
    _check_foreach("get_total_norm", foreach)
    parts = list(tensors)
    order = float(norm_type)
    largest = order == float("inf")
    wide = any(part.dtype is dtypes.float64 for part in parts)
    dtype = dtypes.float64 if wide else dtypes.float32

    def powers(*arrays: Array) -> Array:
        sizes = [np.abs(array).astype(dtype.numpy, copy=False) for array in arrays]
        if largest:
            return np.asarray(max([np.max(size, initial=0) for size in sizes], default=0))
        if order == 2:
            return np.asarray(sum(np.sum(size * size) for size in sizes))
        return np.asarray(sum(np.sum(size**order) for size in sizes))

    with recording(current_process(), False):
        alike = _by_device(parts).values()
        if len(alike) == 1 and not group:
            total = _norm_of_norms(parts, order, dtype)
            if error_if_nonfinite:
                _check_finite(total, norm_type)
            return total
        norms = [kernel("_foreach_powsum", powers, members, (), dtype) for members in alike]
        # Others of the group have gradients, which lie on devices.
        usual = "cuda" if group else None
        total = norms[0] if norms else zeros((), dtype=dtype, device=usual)
        for other in norms[1:]:
            total = (maximum if largest else add)(total, to(other, total.device))
        for each in _groups(group):
            op = ReduceOp.MAX if largest else ReduceOp.SUM
            all_reduce(total, op, group=each)
        if order == 2:
            total = total.sqrt()
        elif not largest:
            total = total.pow(1 / order)
    if error_if_nonfinite:
        _check_finite(total, norm_type)
    return total


def _norm_of_norms(parts: Sequence[Tensor], order: float, dtype: DType) -> Tensor:
    """Returns the norm of the norms of tensors: one kernel, a stack, and another one."""

    def norms(*arrays: Array) -> Array:
        return np.asarray(
            [_norm_of(array.astype(dtype.numpy, copy=False), order) for array in arrays]
        )

    shape = (len(parts),)
    each = kernel("_foreach_norm", norms, parts, shape, dtype)
    return norm(kernel("stack", np.copy, (each,), shape, dtype), order)


def _norm_of(values: Array, order: float) -> Any:
    sizes = np.abs(values)
    if order == float("inf"):
        return np.max(sizes, initial=0)
    if order == 2:
        return np.sqrt(np.sum(sizes * sizes))
    return np.sum(sizes**order) ** (1 / order)


def _check_finite(total: Tensor, norm_type: float) -> None:
    if not np.isfinite(total.item()):
        raise TensorError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, "
            "so it cannot be clipped. To disable this error and scale the gradients by the "
            "non-finite norm anyway, set `error_if_nonfinite=False`",
            [site_fact(call_site())],
        )


def _by_device(tensors: Iterable[Tensor]) -> dict[Device, list[Tensor]]:
    alike: dict[Device, list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault(tensor.device, []).append(tensor)
    return alike


def _check_foreach(name: str, foreach: bool | None) -> None:
    if foreach is False:
        refuse(name, foreach=foreach)


def _groups(group: Groups) -> list[ProcessGroup]:
    if group is None:
        return []
    return [group] if isinstance(group, ProcessGroup) else list(group)


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    total_norm: Tensor,
    foreach: bool | None = None,
) -> None:
    """Scales the gradients of parameters so that their norm is at most `max_norm`.

    The call issues four kernels for the factor, and one for all gradients of a device; the host
    does not wait, unless it has gradients of its own, or `max_norm` is a tensor.

    Args:
        max_norm: Largest norm.
        total_norm: Norm of the gradients, from `get_total_norm`.
        foreach: None or True: all gradients are scaled at once.

    Raises:
        UnsupportedError: For `foreach=False`.
    """
    _check_foreach("clip_grads_with_norm_", foreach)
    grads = _grads(parameters)
    if not grads:
        return
    max_norm = plain(max_norm)
    with recording(current_process(), False):
        factor = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
        for device, members in _by_device(grads).items():
            _scale(members, to(factor, device))


def _scale(grads: Sequence[Tensor], factor: Tensor) -> None:
    scale, targets = factor.window, [grad.window for grad in grads]
    kernel = ListKernel("_foreach_mul_", ("grads",), ("grads",))

    def effect() -> None:
        by = widened(scale)
        for target in targets:
            target.store(widened(target) * by)

    run_on_lists(current_process(), [kernel], {"grads": grads}, effect, [factor])


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    group: Groups = None,
) -> Tensor:
    """Scales the gradients of parameters so that their norm is at most `max_norm`.

    Args:
        parameters: Parameters; those without a gradient are left out.
        max_norm: Largest norm.
        norm_type: Order of the norm; `inf` for the largest absolute value.
        error_if_nonfinite: Whether the host waits for the norm and refuses one that is not finite.
        foreach: None or True: all tensors are taken at once.
        group: Ranks whose parameters are parts of the same model, see `get_total_norm`.

    Returns:
        The norm before scaling, a single value.

    Raises:
        TensorError: If the norm is not finite and `error_if_nonfinite` is True.
        UnsupportedError: For `foreach=False`.
    """
    _check_foreach("clip_grad_norm_", foreach)
    members = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    total = get_total_norm(_grads(members), norm_type, error_if_nonfinite, group=group)
    clip_grads_with_norm_(members, max_norm, total)
    return total


def _grads(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    members = [parameters] if isinstance(parameters, Tensor) else parameters
    return [member.grad for member in members if member.grad is not None]
