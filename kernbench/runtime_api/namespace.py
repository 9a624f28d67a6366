"""The names of PyTorch as a tree, and that tree bound to one context."""

import functools
import sys
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final

from kernbench.autograd import autograd, checkpoint, function, graph
from kernbench.caches import cached
from kernbench.data import collate, datasets, loader, samplers, shares, workers
from kernbench.data_parallel import distributed_data_parallel
from kernbench.des import current_task
from kernbench.distributed import comm_debug, device_mesh, differentiable, functional
from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.graphs import callables, cuda_graphs
from kernbench.memory import OutOfMemoryError, dtypes
from kernbench.nn import (
    aten,
    hooks,
    init,
    layers,
    serialization,
)
from kernbench.nn import functional as nn_functional
from kernbench.nn import module as nn_module
from kernbench.operations import (
    accelerator,
    attention_backends,
    backends,
    complex_numbers,
    copies,
    counting,
    creation,
    cuda,
    cuda_rng,
    devices,
    from_values,
    linalg,
    pointwise,
    random,
    reductions,
    rng,
    sampling,
    shaping,
    switches,
    type_info,
    typed,
)
from kernbench.optim import (
    algorithms,
    clipping,
    lr_cycles,
    lr_plans,
    lr_plateau,
    lr_scheduler,
    lr_sequences,
)
from kernbench.process import process
from kernbench.process.types import Device, Size
from kernbench.ranks.spawning import session_of
from kernbench.runtime_api import (
    distributed,
    multiprocessing,
    nvtx,
    processes,
    profiler,
    profiling,
    testing,
)
from kernbench.runtime_api.missing import missing as sentence
from kernbench.runtime_api.tensor_methods import Tensor
from kernbench.runtime_api.version import TorchVersion
from kernbench.tensors import grad_modes
from kernbench.tensors.operands import guard

DTYPES: Final[Mapping[str, dtypes.DType]] = {
    **{dtype.name: dtype for dtype in dtypes.ALL},
    "double": dtypes.float64,
    "float": dtypes.float32,
    "half": dtypes.float16,
    "long": dtypes.int64,
    "int": dtypes.int32,
    "short": dtypes.int16,
    "cfloat": dtypes.complex64,
    "cdouble": dtypes.complex128,
}
"""Element types by PyTorch's names."""


VERSION: Final = TorchVersion("2.13.0+kernbench")
"""`torch.__version__`: the release of PyTorch whose names and behaviour this package has."""


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: getattr(module, name) for name in module.__all__}


def _guarded(module: ModuleType) -> dict[str, Any]:
    names = _public(module)
    guard(names)
    return names


def _rates() -> dict[str, Any]:
    plans = (lr_scheduler, lr_plans, lr_cycles, lr_plateau, lr_sequences)
    return {name: value for each in plans for name, value in _guarded(each).items()}


def _data() -> dict[str, Any]:
    sets, orders, shared = (_public(each) for each in (datasets, samplers, shares))
    batches = {**_public(loader), **_public(collate), **_public(workers)}
    return {
        **sets,
        **orders,
        **shared,
        **batches,
        "dataloader": batches,
        "dataset": sets,
        "distributed": shared,
        "sampler": orders,
    }


@cached("runtime_api.names")
def root() -> Mapping[str, Any]:
    """Returns the names in `torch`; submodules are mappings too."""
    names: dict[str, Any] = {}
    for module in (
        pointwise,
        reductions,
        linalg,
        shaping,
        counting,
        creation,
        from_values,
        random,
        sampling,
        copies,
        devices,
        switches,
        type_info,
    ):
        names |= _guarded(module)
    names |= _guarded(complex_numbers)
    return {
        **names,
        **_guarded(typed),
        **_guarded(serialization),
        **DTYPES,
        "OutOfMemoryError": OutOfMemoryError,
        "Tensor": Tensor,
        "Size": Size,
        "device": Device,
        "dtype": dtypes.DType,
        **{name: getattr(autograd, name) for name in grad_modes.__all__},
        **{name: getattr(rng, name) for name in ("get_rng_state", "seed", "set_rng_state")},
        "__version__": VERSION,
        "accelerator": _public(accelerator),
        "backends": _public(backends),
        "random": _public(rng),
        "autograd": {
            **_guarded(autograd),
            "function": _public(function),
            "graph": _public(graph),
        },
        "cuda": {
            **_public(cuda),
            **_public(cuda_rng),
            **_public(cuda_graphs),
            **_public(callables),
            "nvtx": _public(nvtx),
        },
        "distributed": {
            **_guarded(distributed),
            "_functional_collectives": _public(functional),
            "comm_debug": _public(comm_debug),
            "device_mesh": _public(device_mesh),
            "nn": {**_public(differentiable), "functional": _public(differentiable)},
        },
        "multiprocessing": {**_public(multiprocessing), **_public(processes)},
        "nn": {
            **_public(nn_module),
            **_guarded(layers),
            "attention": _public(attention_backends),
            "functional": _guarded(nn_functional),
            "init": _guarded(init),
            "modules": {"module": _public(hooks)},
            "parallel": _public(distributed_data_parallel),
            "utils": _guarded(clipping),
        },
        "ops": {"aten": _public(aten)},
        "optim": {
            **_guarded(algorithms),
            "lr_scheduler": _rates(),
        },
        "profiler": {**_public(profiler), **_public(profiling)},
        "testing": _guarded(testing),
        "utils": {"checkpoint": _public(checkpoint), "data": _data()},
    }


def not_simulated(path: str) -> Callable[[str], Any]:
    """Returns a `__getattr__` for a module, whose error says what to do about a missing name.

    It also completes the module's `__all__`, if there is one, for `from torch.nn import *`.

    Args:
        path: Name of the module, such as `torch.cuda`.
    """
    there = vars(sys.modules[f"kernbench.{path}"])
    if "__all__" in there:
        there["__all__"] += [
            name
            for name, value in there.items()
            if name[0] != "_"
            and name not in there["__all__"]
            and not isinstance(value, ModuleType)
            and value is not not_simulated
        ]

    def missing(name: str) -> Any:
        raise AttributeError(sentence(f"{path}.{name}", vars(sys.modules[f"kernbench.{path}"])))

    return missing


class Namespace:
    """A part of the tree whose functions act on one context, even while another one is entered.

    Args:
        main: Main process of the context.
        names: Content of this part: functions, values, and mappings for its submodules.
        path: Place of this part in the tree, for errors.
    """

    def __init__(
        self, main: process.Process, names: Mapping[str, Any], path: str = "torch"
    ) -> None:
        self._main = main
        self._names = names
        self._path = path

    @property
    def _rank_by_greenlet(self) -> dict[object, int]:
        """Rank of each running greenlet, or thread where ranks run on threads."""
        return session_of(self._main).world.rank_by_carrier

    def __getattr__(self, name: str) -> Any:
        try:
            value = self._names[name]
        except KeyError:
            raise AttributeError(sentence(f"{self._path}.{name}", self._names)) from None
        if isinstance(value, Mapping):
            value = Namespace(self._main, value, f"{self._path}.{name}")
        elif isinstance(value, FunctionType):
            value = self._bound(value)
        self.__dict__[name] = value
        return value

    def _bound(self, function: Callable[..., Any]) -> Callable[..., Any]:
        main = self._main

        @functools.wraps(function)
        def bound(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if current_task() is not None:
                if process.current_process().ctx is not main.ctx:
                    raise KernbenchError(
                        "a rank of one context uses the names of another",
                        [site_fact(call_site())],
                        hint="use the context that the rank was spawned from",
                    )
                return function(*args, **kwargs)
            before = process.ENTERED.get()
            try:
                process.ENTERED.set((*before, main))
                return function(*args, **kwargs)
            finally:
                process.ENTERED.set(before)  # no function: an interrupt may come when one begins

        return bound

    def __dir__(self) -> list[str]:
        return sorted(self._names)
