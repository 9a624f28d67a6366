"""`torch.Tensor`: a window on memory of a device or the host.

The methods are functions of rooms above this one, which name this class. They are put into it there
(`runtime_api.tensor_methods`); `tensor.pyi` tells type checkers what they are (ADR 0021).
"""

from kernbench.memory import DType, View
from kernbench.process.types import Device, Size
from kernbench.tensors.memory import Memory


class Tensor:
    """`torch.Tensor`: elements on the host or on a device.

    Operations are issued and return at once; only what reads values on the host waits. Tensors are
    made by functions such as `zeros`, not by calling the class.

    Attributes:
        memory: Storage that it shares with its views.
        window: Which elements of the storage; `view` is a method, as in PyTorch.
        device: Where the elements are.
        graph: Its part in autograd, see `nodes`; None while nobody has asked for a gradient.
        origin: Of a view, the tensor it shows and how; None for all others, and after `detach`.
    """

    __slots__ = ("__dict__", "__weakref__", "device", "graph", "memory", "origin", "window")

    # As for PyTorch's tensors, operators of arrays leave the operation to the tensor.
    __array_priority__ = 1000

    def __init__(self, memory: Memory, window: View, device: Device) -> None:
        self.memory = memory
        self.window = window
        self.device = device
        self.graph = None
        self.origin = None

    @property
    def shape(self) -> Size:
        """Extents."""
        return Size(self.window.shape)

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.window.dtype

    @property
    def is_cuda(self) -> bool:
        """Whether it lives on a device."""
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether it lives on the host."""
        return self.device.type == "cpu"
