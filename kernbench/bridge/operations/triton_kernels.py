"""Kernels of Triton on simulated devices: their text runs as a kernel of `kernbench.tl`.

Triton compiles for GPUs. While ranks run, a launch takes the function that `triton.jit` was given,
lets it see `kernbench.tl` where it sees `triton.language`, and launches it: numbers change at once,
the time is that of a command on the current stream. What the language lacks is refused by name.
"""

import importlib
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Final, NoReturn

import torch

import kernbench.tl
from kernbench.bridge.base.here import HERE, Rank, this_rank
from kernbench.bridge.distributed.works import unseen
from kernbench.bridge.operations import triton_bench
from kernbench.bridge.tensors.storages import DTYPES, block_of, let_go
from kernbench.errors import UnsupportedError, call_site, not_simulated, site_fact
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.tensors.kernels import ProcessLauncher
from kernbench.tensors.tensor import Tensor

_WAY: Final = (
    "run the same with operations of PyTorch; or write the kernel with `from kernbench import tl`"
)

_HOST: Final = ModuleType("kernbench.tl.triton", "What kernels use of the module `triton` itself.")
_HOST.cdiv = kernbench.tl.cdiv  # type: ignore[attr-defined]
_HOST.language = kernbench.tl  # type: ignore[attr-defined]
_HOST.jit = kernbench.tl.jit  # type: ignore[attr-defined]


class Kernels:
    """The kernels of Triton that a run has launched, as kernels of this package."""

    def __init__(self) -> None:
        self._made: Final[dict[int, tuple[Any, Any]]] = {}

    def run(self, jitted: Any, args: Any, grid: Any, options: dict[str, Any]) -> None:
        """Launches a kernel on the current stream of the rank.

        Args:
            jitted: What `triton.jit` has made.
            args: The arguments by position.
            grid: One to three extents, or a function of the arguments that returns them.
            options: The arguments by name.

        Raises:
            UnsupportedError: If the kernel uses what is not simulated.
            LaunchError: If the grid or the arguments do not fit the kernel (K1, K3).
        """
        rank, kernel = this_rank(), self.of(jitted)
        arguments = kernel.bound(args, options)
        extents = kernel.extents(grid(dict(arguments)) if callable(grid) else grid)
        blocks: list[Tensor] = []
        try:
            with unseen():
                given = {
                    name: self._passed(rank, kernel.name, name, value, blocks)
                    for name, value in arguments.items()
                }
                launcher = ProcessLauncher(rank.process)
                launcher.launch(kernel, extents, given, at_once=rank.data)
            for value in arguments.values():
                if isinstance(value, torch.Tensor):
                    rank.hazards.note_written(value)
        except AttributeError as error:
            if not str(error).endswith("is not simulated"):
                raise  # the kernel's own
            raise _lacking(kernel.name, error) from None
        finally:
            let_go(blocks)

    def of(self, jitted: Any) -> Any:
        """Returns a kernel of this package with the text of one of Triton.

        Args:
            jitted: What `triton.jit` has made.
        """
        found = self._made.get(id(jitted))
        if found is None:
            function = jitted.fn
            names = set(_names_in(function.__code__))
            seen = {
                name: self._seen(value)
                for name, value in function.__globals__.items()
                if name in names
            }
            seen["__builtins__"] = function.__globals__["__builtins__"]
            seen["__name__"] = function.__module__
            copy = FunctionType(
                function.__code__,
                seen,
                function.__name__,
                _each(function.__defaults__, self._seen),
                function.__closure__,
            )
            copy.__kwdefaults__ = function.__kwdefaults__
            copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
            copy.__annotations__ = {
                name: self._seen(value) for name, value in function.__annotations__.items()
            }
            found = self._made[id(jitted)] = jitted, kernbench.tl.jit(copy)
        return found[1]

    def _seen(self, value: Any) -> Any:
        """Returns what stands for a value of Triton that a kernel uses."""
        if isinstance(value, ModuleType):
            if value.__name__.partition(".")[0] != "triton":
                return value
            return _MODULES.get(value.__name__) or _Lacking(value.__name__)
        if _is_kernel(value):
            module = value.fn.__module__
            if module.split(".")[0] == "triton":  # a function of Triton's own library
                return _of_language(module, value.fn.__name__)
            return self.of(value)
        module = getattr(value, "__module__", None) or ""
        if not isinstance(module, str):
            return value
        kind = type(value)
        if kind.__module__.startswith("triton.language"):
            if kind.__name__ == "dtype":
                return getattr(kernbench.tl, str(_NAMES.get(value.name, value.name)))
            if kind.__name__ == "constexpr":
                return kernbench.tl.constexpr(self._seen(value.value))
        if module.startswith("triton.language"):
            return _of_language(module, getattr(value, "__name__", kind.__name__))
        return value

    def _passed(self, rank: Rank, kernel: str, name: str, value: Any, blocks: list[Tensor]) -> Any:
        """Returns an argument as a kernel of this package takes it."""
        if not isinstance(value, torch.Tensor):
            return self._seen(value)
        if value.dtype not in DTYPES or value.dtype.is_complex:
            raise UnsupportedError(
                f"the Triton kernel {kernel}: a pointer to {value.dtype} is not simulated",
                [site_fact(call_site()), f"argument {name}"],
                hint="convert the tensor first",
            )
        blocks.append(block_of(rank, value))
        return blocks[-1]


class _Lacking:
    """Stands for a module of Triton that is not simulated."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self._module}.{name} is not simulated")


def _of_language(module: str, name: str) -> Any:
    """Returns what stands for a function of `triton.language`."""
    found = vars(kernbench.tl).get(name)
    if found is not None:
        return found

    def lacking(*_: Any, **__: Any) -> NoReturn:
        raise AttributeError(f"{module}.{name} is not simulated")

    return lacking


_MODULES: Final = {"triton": _HOST, "triton.language": kernbench.tl}
"""Modules of Triton that kernels see, and what stands for them."""

_NAMES: Final = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8e4nv": "float8e4nv",
    "fp8e5": "float8e5",
    "int1": "int1",
}
"""Names in `tl` of Triton's types, where they are others."""


def _is_kernel(value: Any) -> bool:
    return type(value).__name__ in ("JITFunction", "InterpretedFunction")


def _names_in(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _names_in(constant)


def _each(values: Any, change: Callable[[Any], Any]) -> Any:
    return None if values is None else tuple(map(change, values))


def _lacking(kernel: str, error: AttributeError) -> UnsupportedError:
    """Returns the refusal of a name that `tl` lacks."""
    return UnsupportedError(
        f"the Triton kernel {kernel} uses what is not simulated: {error}",
        [site_fact(call_site())],
        hint=_WAY,
    )


class _Driver:
    """`triton.runtime.driver.active` of a rank."""

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", this_rank().current)

    def get_current_device(self) -> int:
        return this_rank().current

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_current_target(self) -> Any:
        return SimpleNamespace(backend="cuda", arch=90, warp_size=32)

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return triton_bench.cache()

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()

    def get_benchmarker(self) -> Any:
        return importlib.import_module("triton.testing").do_bench

    def __getattr__(self, name: str) -> NoReturn:
        raise not_simulated(f"triton.runtime.driver.active.{name}", _WAY)


def patches() -> Iterator[WhenImported]:
    """Yields what lets ranks launch kernels of Triton, if a program imports it."""
    kernels, runtime = Kernels(), "triton.runtime"
    yield WhenImported(f"{runtime}.jit", lambda module: _of_kernels(module.JITFunction, kernels))
    yield WhenImported(
        f"{runtime}.interpreter", lambda module: _of_kernels(module.InterpretedFunction, kernels)
    )
    yield WhenImported(f"{runtime}.autotuner", _of_tuner)
    yield WhenImported(f"{runtime}.driver", _of_driver)
    yield from triton_bench.patches()


def _of_kernels(kind: Any, kernels: Kernels) -> Iterator[Patch]:
    yield Patch(kind, "run", _run(kind.run, kernels))
    yield Patch(kind, "warmup", _warmup(kind.warmup))


def _of_tuner(module: Any) -> Iterator[Patch]:
    yield Patch(module.Autotuner, "run", _tuned(module.Autotuner.run))


def _of_driver(module: Any) -> Iterator[Patch]:
    active, config = _Driver(), module.DriverConfig
    real = config.active.fget
    chosen = property(lambda self: real(self) if HERE.rank is None else active)
    yield Patch(config, "active", chosen)


def _run(real: Callable[..., Any], kernels: Kernels) -> Callable[..., Any]:
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if HERE.rank is None:
            return real(self, *args, grid=grid, warmup=warmup, **options)
        kernels.run(self, args, grid, options)
        return None

    return run


def _warmup(real: Callable[..., Any]) -> Callable[..., Any]:
    def warmup(self: Any, *args: Any, **options: Any) -> Any:
        if HERE.rank is None:
            return real(self, *args, **options)
        raise not_simulated(
            f"the Triton kernel {self.fn.__name__}: warmup(...)",
            "nothing is compiled; choose the launch without looking at registers",
        )

    return warmup


def _tuned(real: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *args: Any, **options: Any) -> Any:
        if HERE.rank is not None and len(self.configs) > 1:
            raise not_simulated(
                f"the Triton kernel {self.base_fn.__name__}: to tune {len(self.configs)} configs",
                "give triton.autotune the one config that the GPU would choose",
            )
        return real(self, *args, **options)

    return run
