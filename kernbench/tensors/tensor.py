"""`torch.Tensor`: a window on memory of a device or the host.

The methods are functions of rooms above this one, which name this class. They are put into it there
(`runtime_api.tensor_methods`); `tensor.pyi` tells type checkers what they are (ADR 0021).
"""

from kernbench.memory import DType
from kernbench.process.types import Size


class Tensor:
    """`torch.Tensor`: elements on the host or on a device.

    Operations are issued and return at once; only what reads values on the host waits. Tensors are
    made by `tensors.new`, which does not call the class: that is for users.

    Attributes:
        memory: Storage that the tensor shares with its views.
        window: Elements of the storage; not called `view`, which is a method in PyTorch.
        device: Device that holds the elements.
        graph: The tensor's leaf or output in autograd, see `nodes`; None without gradients.
        origin: For a view, its base and how to make the view; None for other tensors, and after
            `detach`.
    """

    __slots__ = ("__dict__", "__weakref__", "device", "graph", "memory", "origin", "window")

    # As with PyTorch's tensors, operators of NumPy arrays leave the operation to the tensor.
    __array_priority__ = 1000

    @property
    def shape(self) -> Size:
        """Extents of the dimensions."""
        return Size(self.window.shape)

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.window.dtype

    @property
    def is_cuda(self) -> bool:
        """Whether the tensor is on a device."""
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether the tensor is on the host."""
        return self.device.type == "cpu"
