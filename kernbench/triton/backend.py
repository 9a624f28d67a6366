"""What is registered with Triton while ranks are there: a compiler, a driver and its launcher.

The compiler ends with Triton's own IR, and the driver's devices are those of the run. All else is
Triton's: the front end, specialisation, the cache on disk, the choice of configurations. Imported
when a program has imported Triton.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from triton.backends.compiler import GPUTarget, Language
from triton.backends.driver import DriverBase
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import _allocation

from kernbench.errors import UsageError, call_site, not_simulated, site_fact
from kernbench.kernels.grids import LANES
from kernbench.triton.benching import measured
from kernbench.triton.devices import NOW
from kernbench.triton.launches import Launch, LaunchError, parts_of
from kernbench.triton.lowering import machine_code
from kernbench.ttir.locations import in_file

_TEXT: Final = "kernbench"
"""What the last stage is called, and so the end of its file's name in Triton's cache."""

_MAKES: Final = "tt.make_tensor_descriptor"
"""What a program needs memory of its own for, beside that of its arguments."""

_MOST_PROGRAMS: Final = ((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1)
"""The largest grid that CUDA launches, along each axis (CUDA C++ Programming Guide, "Compute
Capabilities")."""

_NO_BINARY: Final[Mapping[str, Any]] = {
    "shared": 0,
    "tmem_size": None,
    "global_scratch_size": 0,
    "global_scratch_align": 1,
    "profile_scratch_size": 0,
    "profile_scratch_align": 1,
}
"""What later stages of Triton's compiler would find out, and what launches ask for."""


class Compiler(CUDABackend):  # type: ignore[misc]
    """Triton's compiler for CUDA, without the stages after its own IR."""

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.binary_ext = _TEXT

    def add_stages(self, stages: dict[str, Any], options: Any, language: Any) -> None:
        """Adds the stages of a kernel.

        Args:
            stages: Functions of what is compiled so far and of what is known of it, by name.
            options: How to compile.
            language: What the kernel is written in.

        Raises:
            UnsupportedError: If that is not Triton's language, but Gluon.
        """
        if language != Language.TRITON:
            raise not_simulated("a kernel of Gluon", "write it in triton.language")
        super().add_stages(stages, options, language)
        first = stages["ttir"]
        stages.clear()

        def as_text(module: Any, metadata: dict[str, Any]) -> bytes:
            metadata.update(_NO_BINARY, name=module.get_entry_func_name())
            return str(module).encode()

        def later(source: Any, metadata: dict[str, Any]) -> Any:
            del source, metadata
            raise not_simulated("a file of Triton's later IR", "compile its .ttir file")

        # Of a file, Triton runs what follows the stage that its name ends with.
        stages.update(dict.fromkeys(("ttgir", "llir", "ptx", "cubin"), later))
        stages["ttir"] = first
        stages[_TEXT] = as_text

    def hash(self) -> str:
        """Returns what the cache on disk knows this compiler by."""
        return f"{_TEXT}-{self.target.arch}"


class _Loaded:
    """A kernel that a program has: its text, until it is launched first."""

    def __init__(self, text: str) -> None:
        self.text: Final = text


class _Utilities:
    """What Triton asks a driver for, beside launches."""

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[Any, Any, int, int, int]:
        """Returns a kernel twice, registers and spilled bytes of a thread, and the most threads."""
        del name, shared, device
        loaded = _Loaded(binary.decode())
        return loaded, loaded, 0, 0, 1024

    def unload_module(self, module: Any) -> None:
        """Forgets a kernel, of which nothing is loaded."""

    def get_device_properties(self, device: int) -> Mapping[str, int]:
        """Returns the device's properties by the names that Triton gives them."""
        return NOW.here().properties(device)

    def set_printf_fifo_size(self, size: int) -> None:
        """Prints of kernels need no room: they are shown at once."""

    def __getattr__(self, name: str) -> Any:
        raise not_simulated(
            f"triton.runtime.driver.active.utils.{name}", "it needs a kernel in machine code"
        )


class Launcher:
    """Launches one compiled kernel.

    Args:
        source: What was compiled, with its signature.
        metadata: What the compiler has found out.
    """

    def __init__(self, source: Any, metadata: Any) -> None:
        self._signature: Final = source.signature
        self._metadata: Final = metadata
        function = getattr(getattr(source, "fn", None), "fn", None)  # none of a text of IR
        self._file: Final = None if function is None else function.__code__.co_filename
        self._text: str | None = None

    def __call__(
        self,
        x: Any,
        y: Any,
        z: Any,
        stream: int,
        function: _Loaded,
        packed: Any,
        told: Any,
        before: Callable[[Any], None] | None,
        after: Callable[[Any], None] | None,
        *arguments: Any,
    ) -> None:
        """Launches the kernel on the current stream.

        Args:
            x: Extents of the grid, as `y` and `z`.
            stream: The current stream; a compiled kernel can be given another one.
            function: What `load_binary` has returned.
            packed: What Triton's own launcher needs of the metadata.
            told: What the hooks are told.
            before: A program's hook before the launch.
            after: Its hook after the launch.
            arguments: What the program gives, constants included.

        Raises:
            LaunchError: If the grid is too large for a device (K1).
            RuntimeError: Of Triton, if programs make descriptors and nobody allocates them.
            UnsupportedError: If the stream is not the current one.
        """
        del packed
        devices, metadata = NOW.here(), self._metadata
        grid = self._grid((x, y, z))
        if stream != devices.stream(devices.current()):
            raise not_simulated(
                f"kernel {metadata.name} on a stream that is not the current one,",
                "launch it in a block `with torch.cuda.stream(stream):`",
            )
        if before is not None:
            before(told)
        if self._text is None:
            text = function.text
            self._text = text if self._file is None else in_file(text, self._file)
        if all(grid):  # as Triton on a GPU, which launches nothing otherwise
            self._allocates(function.text)
            launch = Launch(
                metadata.name,
                grid,
                self._text,
                list(parts_of(self._signature, arguments)),
                metadata.num_warps,
                metadata.num_stages,
                metadata.hash,
                functools.partial(machine_code, function.text, metadata),
            )
            devices.launch(launch)
        if after is not None:
            after(told)

    def _allocates(self, text: str) -> None:
        """Asks for the memory in which programs make descriptors, where Triton's launcher does.

        A device without such descriptors has none in its kernels' text.

        Raises:
            RuntimeError: Of Triton, if the program has not called `triton.set_allocator`.
        """
        allocator = _allocation._allocator.get()
        if _MAKES in text and isinstance(allocator, _allocation.NullAllocator):
            allocator(0, 0, None)

    def _grid(self, extents: tuple[Any, Any, Any]) -> tuple[int, int, int]:
        name = self._metadata.name
        try:
            x, y, z = map(operator.index, extents)
        except TypeError:
            raise LaunchError(
                f"kernel {name}: extents of a grid are whole numbers; got {extents}",
                [site_fact(call_site())],
                hint="round up: triton.cdiv(n, BLOCK)",
                code="K1",
            ) from None
        found = x, y, z
        if any(one > most for one, most in zip(found, _MOST_PROGRAMS, strict=True)):
            raise LaunchError(
                f"kernel {name}: a grid of {found} is larger than a device launches",
                [site_fact(call_site()), f"the largest one is {_MOST_PROGRAMS}"],
                hint="let the first axis be the longest, or each program do more",
                code="K1",
            )
        if min(found) < 0:
            raise LaunchError(
                f"kernel {name}: an extent of a grid is negative: {found}",
                [site_fact(call_site())],
                code="K1",
            )
        return found


class Driver(DriverBase):  # type: ignore[misc]
    """The simulated devices, as Triton's driver of CUDA would show real ones."""

    launcher_cls = Launcher

    def __init__(self) -> None:
        super().__init__()
        self.utils: Final = _Utilities()

    @classmethod
    def is_active(cls) -> bool:
        """Returns whether ranks are there."""
        return NOW.devices is not None

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Returns what C++ calls a type, which no launch here needs.

        Raises:
            UnsupportedError: Always.
        """
        raise not_simulated(f"the type {ty} in C++", "launches need none")

    def get_current_target(self) -> Any:
        """Returns what to compile for."""
        major, minor = self.get_device_capability(self.get_current_device())
        return GPUTarget("cuda", 10 * major + minor, LANES)

    def get_current_device(self) -> int:
        """Returns the number of the current device."""
        return NOW.here().current()

    def set_current_device(self, device: int) -> None:
        """Makes a device the current one."""
        NOW.here().choose(device)

    def get_current_stream(self, device: int | None = None) -> int:
        """Returns the current stream's number."""
        return NOW.here().stream(self.get_current_device() if device is None else device)

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        """Returns the compute capability, major and minor."""
        return NOW.here().capability(self.get_current_device() if device is None else device)

    def get_active_torch_device(self) -> Any:
        """Returns the current device as PyTorch's."""
        return NOW.here().torch_device()

    def get_device_interface(self) -> Any:
        """Returns the module of events, streams and devices."""
        return NOW.here().interface()

    def get_benchmarker(self) -> Any:
        """Returns what `triton.autotune` measures configurations with: simulated time."""
        return measured

    def get_empty_cache_for_benchmark(self) -> Any:
        """Returns what is cleared before each measured run."""
        return NOW.here().cache()

    def clear_cache(self, cache: Any) -> None:
        """Clears it."""
        cache.zero_()


def checked(driver: Any) -> None:
    """Checks that Triton has no other driver.

    Args:
        driver: `triton.runtime.driver.driver`.

    Raises:
        UsageError: If it has: its kernels, which are kept, would run on a real GPU.
    """
    if driver._active is not None and not isinstance(driver._active, Driver):
        raise UsageError(
            f"Triton already runs kernels by {type(driver._active).__name__} in this process",
            hint="start kernbench in a process of its own",
        )
