"""What the host takes for operations that issue no command; see `kernels.host_calls`."""

from kernbench.process.process import Process, current_process
from kernbench.tensors.nodes import GRAD_STATE
from kernbench.tensors.tensor import Tensor


def is_recorded(process: Process) -> bool:
    """Returns whether autograd takes part in an operation: it records, or goes back."""
    state = process.locals.get(GRAD_STATE)
    return state is None or state.enabled or state.running > 0


def spend_views(tensor: Tensor, count: int = 1) -> None:
    """Lets the time pass that operations without a kernel take, such as views.

    Args:
        tensor: Their operand; they take no time on the host.
        count: How many PyTorch calls.
    """
    if tensor.device.index is not None:
        process = current_process()
        process.host.clock += process.calls.view[is_recorded(process)] * count


def spend_autograd(process: Process) -> None:
    """Lets the time pass that autograd takes for an operation that was issued without it."""
    issues = process.calls.issues
    process.host.clock += issues["recorded"] - issues["compute"]
