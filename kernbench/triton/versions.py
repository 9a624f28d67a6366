"""Versions of Triton with which kernels run, and the private names of it on which this room stands.

Nothing here imports Triton: whoever has imported a module of it gives that to `check_names`.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from kernbench.errors import UsageError
from kernbench.runtime_api.private_names import missing_names
from kernbench.runtime_api.pytorch_versions import minor_of

OLDEST: Final = (3, 6)
"""The first version (major and minor) with which kernels run."""

NEWEST: Final = (3, 9)
"""The last version with which they are known to run."""

INSTALL: Final = f"pip install 'triton>={OLDEST[0]}.{OLDEST[1]}', which is for Linux"
"""What brings Triton."""

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "triton.backends": ("backends", "Backend"),
    "triton.backends.compiler": ("GPUTarget", "Language.TRITON"),
    "triton.backends.driver": ("DriverBase",),
    "triton._C.libtriton": ("ir.context", "ir.load_dialects", "ir.parse_mlir_module"),
    "triton.knobs": ("nvidia",),
    "triton.runtime._allocation": ("NullAllocator", "_allocator"),
    "triton.runtime.cache": ("get_cache_manager", "triton_key"),
    "triton.runtime.errors": ("OutOfResources", "PTXASError"),
    "triton.backends.nvidia.compiler": (
        "CUDABackend.add_stages",
        "CUDABackend.make_ttir",
        "CUDABackend.pack_metadata",
        "CUDABackend.parse_options",
    ),
    "triton.runtime.driver": ("driver._active", "driver.set_active"),
    "triton.runtime.interpreter": ("InterpretedFunction.run",),
    "triton.runtime.jit": ("JITFunction.run", "JITFunction.warmup"),
    "triton.testing": ("_summarize_statistics", "do_bench", "do_bench_cudagraph"),
}
"""The names, by module; all versions from `OLDEST` on have them so."""


def check_names(version: str, modules: Mapping[str, ModuleType]) -> None:
    """Checks that a Triton is new enough, and has the private names that are used.

    Args:
        version: As `minor_of` takes it.
        modules: Modules of it by name; names of others are not looked for.

    Raises:
        UsageError: If it is too old, or if names are missing, which the error lists.
    """
    if minor_of(version) < OLDEST:
        raise UsageError(
            f"Triton {version} is installed, and kernels run with {_text(OLDEST)} or newer",
            hint=INSTALL,
        )
    missing = missing_names(NAMES, modules)
    if missing:
        raise UsageError(
            f"Triton {version} lacks what kernels need here",
            [f"missing: {', '.join(missing)}"],
            hint=f"pip install 'triton<{NEWEST[0]}.{NEWEST[1] + 1}', which is known to work",
        )


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
