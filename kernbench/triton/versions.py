"""Versions of Triton with which kernels run, and the private names of it on which this room stands.

Nothing here imports Triton: whoever has imported a module of it gives that to `check_names`.
"""

import re
from collections.abc import Mapping
from functools import reduce
from types import ModuleType
from typing import Final

from kernbench.errors import UsageError

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
    "triton.runtime.cache": ("get_cache_manager",),
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


def minor_of(version: str) -> tuple[int, int]:
    """Returns the major and the minor number of a version; (0, 0) if it has none.

    Args:
        version: A version, such as `3.9.0` or `3.10.0+git1234`.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


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
    missing = [
        f"{name}.{path}"
        for name, module in modules.items()
        for path in NAMES.get(name, ())
        if not _has(module, path)
    ]
    if missing:
        raise UsageError(
            f"Triton {version} lacks what kernels need here",
            [f"missing: {', '.join(missing)}"],
            hint=f"pip install 'triton<{NEWEST[0]}.{NEWEST[1] + 1}', which is known to work",
        )


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _has(value: object, path: str) -> bool:
    try:
        reduce(getattr, path.split("."), value)
    except AttributeError:
        return False
    return True
