"""Launches of `kernbench.tl` kernels: tensors become pointers, a grid becomes a command."""

from collections.abc import Hashable
from typing import Any

from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.runtime_api.process import Process, current_process
from kernbench.runtime_api.tensor_base import TensorBase, check_access
from kernbench.tl.launch import DEFAULT_QUEUES, Kernel, KernelWork, LaunchError
from kernbench.tl.tile import Pointer


class ProcessLauncher:
    """Launches kernels on the current stream of a process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def launch(self, kernel: Kernel, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        """Issues a launch; does not wait.

        Raises:
            LaunchError: If no tensor says on which device, or tensors are on several.
            OwnershipError: If a tensor belongs to another rank.
        """
        process = self._process
        tensors = [value for value in arguments.values() if isinstance(value, TensorBase)]
        for tensor in tensors:
            if tensor.window.dtype.is_complex:
                raise UnsupportedError(
                    f"kernel {kernel.name}: a pointer to {tensor.dtype} is not simulated",
                    [site_fact(call_site()), "nor has Triton one"],
                    hint="pass view_as_real(tensor)",
                )
        sip = _device(kernel, tensors)
        stream = process.current_stream(sip)
        for tensor in tensors:
            check_access(process, tensor, stream, "wrote")
        passed = {
            name: Pointer(value.window, 0) if isinstance(value, TensorBase) else value
            for name, value in arguments.items()
        }
        shapes = [_shape(kernel, *item) for item in arguments.items()]
        outside = kernel.environment()
        work = KernelWork(
            process.engine,
            sip,
            kernel,
            grid,
            passed,
            DEFAULT_QUEUES,
            process.ctx.kernel_times,
            None if outside is None else (outside, sip, grid, *shapes),
        )
        command = process.issue(
            kernel.name, "kernel", stream, work, site=call_site(), args={"grid": list(grid)}
        )
        for tensor in tensors:
            tensor.memory.wrote(command, tensor.window, counts=False)


def _device(kernel: Kernel, tensors: list[TensorBase]) -> int:
    devices = {str(tensor.device): tensor.device.index for tensor in tensors}
    if len(devices) != 1 or None in devices.values():
        raise LaunchError(
            f"kernel {kernel.name} needs its tensors on one device",
            [site_fact(call_site()), f"they are on {', '.join(sorted(devices)) or 'none'}"],
            hint="pass tensors made with device='cuda'",
            code="K3",
        )
    (sip,) = devices.values()
    assert sip is not None
    return sip


def _shape(kernel: Kernel, name: str, value: Any) -> Hashable:
    """Returns what the time of a launch depends on of one argument."""
    if isinstance(value, TensorBase):
        view = value.window
        return view.dtype.name, view.shape, view.strides
    if isinstance(value, Hashable):
        return type(value), value
    raise LaunchError(
        f"kernel {kernel.name}: argument {name} is a {type(value).__name__}",
        [site_fact(call_site()), "expected a tensor, a number, or another plain value"],
        code="K3",
    )


def current_launcher() -> ProcessLauncher:
    """Returns what launches kernels for the calling code."""
    return ProcessLauncher(current_process())
