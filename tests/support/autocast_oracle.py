"""Tensors that PyTorch takes for ones on CUDA, and a maker of operands: of these, or real ones."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

ATEN = torch.ops.aten


class OnCuda(torch.Tensor):  # type: ignore[misc, unused-ignore]
    """A tensor that PyTorch takes for one on CUDA, and that has a type and a shape alone."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls: Any, held: torch.Tensor) -> "OnCuda":
        """Makes one of a tensor on `meta`."""
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, dtype=held.dtype, device="cuda:0", strides=held.stride()
        )
        made.held = held
        result: OnCuda = made
        return result

    def __deepcopy__(self, memo: Any) -> "OnCuda":
        return OnCuda(self.held)

    # PyTorch's own methods look for a GPU.

    def contiguous(self, memory_format: Any = torch.contiguous_format) -> Any:
        """Returns one that is contiguous."""
        return ATEN.contiguous.default(self, memory_format=memory_format)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, int):
            return ATEN.select.int(self, 0, place)
        return super().__getitem__(place)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation on `meta`."""
        del types
        if func is ATEN._local_scalar_dense.default:
            return 0
        if func is torch.ops.prim.device.default:
            return torch.device("cuda:0")
        if func in (ATEN._use_cudnn_ctc_loss.Tensor, ATEN._use_miopen_ctc_loss.Tensor):
            return False
        if func is ATEN._thnn_fused_gru_cell.default:  # without shapes
            return cls(args[2].held), cls(args[2].held)
        args, kwargs = tree_map_only(OnCuda, lambda one: one.held, (args, kwargs or {}))
        args, kwargs = tree_map_only(torch.device, lambda _: torch.device("meta"), (args, kwargs))
        if kwargs.get("device", 0) is None:
            kwargs["device"] = "meta"
        return tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


class Seen(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Notes the names of operations.

    Attributes:
        names: Them, in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Notes an operation, and runs it."""
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class CudaAlone(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """A block in which every tensor is one of `OnCuda`."""

    _mode_key = torch._C._TorchDispatchModeKey.FAKE  # so PyTorch does not look for a GPU

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation on `meta`."""
        return OnCuda.__torch_dispatch__(func, types, args, kwargs)


class Make:
    """Makes operands.

    Args:
        dtype: Their type.
        values: Whether they have values; otherwise they are only made.
    """

    def __init__(self, dtype: torch.dtype, *, values: bool) -> None:
        self.dtype = dtype
        self._values = values

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        kind = dtype or self.dtype
        if not self._values:
            return torch.empty(shape, dtype=kind, device="cuda")
        made = torch.linspace(0.1, 0.9, max(1, torch.Size(shape).numel())).reshape(shape)
        return made.to("cuda", kind)

    def whole(self, *shape: int) -> torch.Tensor:
        """Returns a tensor of zeros of integers."""
        return torch.zeros(shape, dtype=torch.int64, device="cuda")

    def module(self, module: Callable[[], nn.Module], *, train: bool = True) -> nn.Module:
        """Returns a module on the device, whose parameters are of float32."""
        with torch.device("meta"):
            made = module()
        for each in made.modules():
            for name, one in [*each._parameters.items(), *each._buffers.items()]:
                if one is None:
                    continue
                real = self(*one.shape, dtype=torch.float32)
                if not one.is_floating_point():
                    real = self.whole(*one.shape)
                if name in each._parameters:
                    each._parameters[name] = nn.Parameter(real, requires_grad=False)
                else:
                    each._buffers[name] = real
            if isinstance(each, nn.RNNBase):
                each._flat_weights = [getattr(each, name) for name in each._flat_weights_names]
        return made.train(train)
