"""Launches of `kernbench.tl` kernels: tensors become pointers, a grid becomes a command."""

from collections.abc import Hashable
from typing import Any

from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.hw.pe import PeCosts
from kernbench.process.act import act
from kernbench.process.process import Process, current_process
from kernbench.tensors.tensor import Tensor
from kernbench.tl.launch import DEFAULT_QUEUES, Kernel, KernelWork, LaunchError, kind_of
from kernbench.tl.tile import Pointer


class ProcessLauncher:
    """Launches kernels on the current stream of a process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        arguments: dict[str, Any],
    ) -> None:
        """Issues a launch; waits only if the launch queue is full.

        Args:
            grid: Number of programs along each dimension.
            arguments: Arguments of the kernel by name; a tensor becomes a pointer to its elements.

        Raises:
            LaunchError: If the arguments hold tensors on several devices, or on the CPU.
            CompilationError: If Triton would not compile the kernel.
            TileOperandError: If shapes or types inside of the kernel do not go together.
            OwnershipError: If a tensor belongs to another rank.
            AccessError: If a command on a tensor is under way that nobody has waited for.
            UnsupportedError: If a tensor holds complex numbers.
        """
        process = self._process
        tensors = {n: value for n, value in arguments.items() if isinstance(value, Tensor)}
        for tensor in tensors.values():
            if tensor.window.dtype.is_complex:
                raise UnsupportedError(
                    f"kernel {kernel.name}: a pointer to {tensor.dtype} is not simulated",
                    [site_fact(call_site()), "nor has Triton one"],
                    hint="pass view_as_real(tensor)",
                )
        sip = _device(kernel, list(tensors.values())) if tensors else process.device_index
        stream = process.current_stream(sip)
        for tensor in tensors.values():
            tensor.memory.check_owner(process)
        passed = {
            name: Pointer(value.window, 0) if isinstance(value, Tensor) else value
            for name, value in arguments.items()
        }
        kinds = kernel.environment(), *[_kind(kernel, *item) for item in arguments.items()]
        work = KernelWork(
            process.engine,
            sip,
            kernel,
            grid,
            passed,
            DEFAULT_QUEUES,
            process.ctx.recordings,
            None if None in kinds else (grid, *kinds),
        )

        def compile_it() -> None:
            # Imported here, so that runs without kernels do not pay for it.
            from kernbench.tl.grammar import check

            check(kernel, passed, PeCosts.of(process.engine.devices[sip].sip))

        recording = work.recording(compile_it)
        loads = stores = None
        if recording is not None:
            loads, stores = recording.loads, recording.stores
        # If only a run with values can tell what the kernel touches, it may touch everything.
        read = [tensor for name, tensor in tensors.items() if loads is None or name in loads]
        wrote = [tensor for name, tensor in tensors.items() if stores is None or name in stores]
        act(
            process,
            kernel.name,
            "kernel",
            stream,
            work,
            reads=read,
            writes=wrote,
            site=call_site(),
            args={"grid": list(grid)},
            new_version=False,  # as with Triton's, autograd does not know about it
        )


def _device(kernel: Kernel, tensors: list[Tensor]) -> int:
    devices = {str(tensor.device): tensor.device.index for tensor in tensors}
    if len(devices) != 1 or None in devices.values():
        raise LaunchError(
            f"kernel {kernel.name} needs its tensors on one device",
            [site_fact(call_site()), f"they are on {', '.join(sorted(devices))}"],
            hint="pass tensors made with device='cuda'",
            code="K3",
        )
    (sip,) = devices.values()
    assert sip is not None
    return sip


def _kind(kernel: Kernel, name: str, value: Any) -> Hashable | None:
    """Returns the part of an argument on which a launch depends; None if that is unknown."""
    if isinstance(value, Tensor):
        view = value.window
        return view.dtype.name, view.shape, view.strides
    text = isinstance(value, str | bytes) and name not in kernel.constants
    if isinstance(value, Hashable) and not text:
        return kind_of(value)
    raise LaunchError(
        f"kernel {kernel.name}: argument {name} is a {type(value).__name__}",
        [site_fact(call_site()), "expected a tensor, a number, or another plain value"],
        code="K3",
    )


def current_launcher() -> ProcessLauncher:
    """Returns the launcher of the calling rank, or of main."""
    return ProcessLauncher(current_process())
