"""Registers simulated devices with Triton while ranks are there, if a program imports it."""

import contextlib
import hashlib
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kernbench.caches import cached
from kernbench.errors import UsageError, call_site, site_fact
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.triton.benching import replayed, times_of
from kernbench.triton.devices import NOW, Devices
from kernbench.triton.versions import NAMES, check_names

_INTERPRET: Final = "TRITON_INTERPRET"
"""What lets Triton interpret kernels on the host, if it is set when Triton is imported."""

_CUDA: Final = "nvidia"
"""Triton's name of its backend for CUDA, in place of which this one stands."""

_MODES: Final = ("min", "max", "mean", "median", "all")
"""What Triton's measurements can return of several times."""


class _Registry:
    """A dict whose entries are seen as attributes, so that one can be replaced like a name."""

    def __init__(self, entries: dict[str, Any]) -> None:
        self.__dict__ = entries


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """A block in which a program that imports Triton gets its compiler, not its interpreter."""
    asked = os.environ.get(_INTERPRET)
    if not asked or asked == "0" or "triton" in sys.modules:
        yield
        return
    del os.environ[_INTERPRET]
    print(
        f"kernbench: {_INTERPRET} is not looked at: kernels run on simulated devices",
        file=sys.stderr,
    )
    try:
        yield
    finally:
        os.environ[_INTERPRET] = asked


def patches(devices: Devices) -> Iterator[WhenImported]:
    """Yields what is registered, and what stands for Triton's measurements.

    Args:
        devices: Those of the run.
    """
    yield WhenImported("triton.runtime.driver", partial(_registered, devices))
    yield WhenImported("triton.runtime.cache", _known_by_its_files)
    yield WhenImported("triton.runtime.interpreter", _not_interpreted)
    yield WhenImported("triton.testing", _measuring)


def _registered(devices: Devices, module: ModuleType) -> Iterator[Patch]:
    import triton

    check_names(
        triton.__version__, {name: sys.modules[name] for name in NAMES if name in sys.modules}
    )
    from kernbench.triton import backend
    from kernbench.triton.compiled import Compiled

    known = sys.modules["triton.backends"]
    backend.checked(module.driver)
    yield Patch(NOW, "devices", devices)
    yield Patch(
        _Registry(known.backends),
        _CUDA,
        known.Backend(compiler=backend.Compiler, driver=backend.Driver),
    )
    yield Patch(module.driver, "_active", backend.Driver())
    yield Patch(sys.modules["triton.compiler.compiler"], "CompiledKernel", Compiled)


def _known_by_its_files(module: ModuleType) -> Iterator[Patch]:
    """Lets the cache on disk know Triton's files by size and time: their bytes take 0.4 s to read.

    What the wheel lists has a hash of each file's bytes, as it was installed.
    """
    yield Patch(module, "triton_key", partial(_key_of, Path(module.__file__ or "").parents[1]))


@cached("triton.keys")
def _key_of(files: Path) -> str:
    parts = [str(files)]
    for file in sorted([*files.rglob("*.py"), *files.glob("_C/libtriton*")]):
        found = file.stat()
        parts.append(f"{file} {found.st_size} {found.st_mtime_ns}")
    try:
        parts.append(importlib.metadata.distribution("triton").read_text("RECORD") or "")
    except importlib.metadata.PackageNotFoundError:  # a tree of sources in the path
        parts.append("")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _not_interpreted(module: ModuleType) -> Iterator[Patch]:
    """Refuses kernels that Triton would interpret on the host, where no device sees them."""
    real = module.InterpretedFunction.run

    def run(self: Any, *args: Any, **options: Any) -> Any:
        if NOW.devices is None:
            return real(self, *args, **options)
        raise UsageError(
            f"kernel {self.fn.__name__}: Triton was imported with {_INTERPRET}=1, and interprets "
            "kernels on the host",
            [site_fact(call_site())],
            hint=f"unset {_INTERPRET} before Triton is imported",
        )

    yield Patch(module.InterpretedFunction, "run", run)


def _measuring(module: ModuleType) -> Iterator[Patch]:
    for name, timed in (("do_bench", times_of), ("do_bench_cudagraph", replayed)):
        yield Patch(module, name, _bench(module, getattr(module, name), timed))


def _bench(
    module: ModuleType, real: Callable[..., Any], timed: Callable[..., list[float]]
) -> Callable[..., Any]:
    signature = inspect.signature(real)

    @wraps(real)
    def bench(*args: Any, **options: Any) -> Any:
        if NOW.devices is None:
            return real(*args, **options)
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        given = bound.arguments
        mode = given["return_mode"]
        if mode not in _MODES:  # Triton asserts it, and shows no value
            raise ValueError(f"return_mode is one of {', '.join(_MODES)}; got {mode!r}")
        function, forget = given["fn"], given.get("grad_to_none") or ()
        function()
        NOW.here().interface().synchronize()
        # Durations of warming up and repeating are for noise, of which there is none.
        times = timed(function, forget)
        return module._summarize_statistics(times, given["quantiles"], mode)

    return bench
