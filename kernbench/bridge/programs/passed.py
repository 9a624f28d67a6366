"""What is passed through, and what is refused, of PyTorch's compilers and processes."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from types import ModuleType
from typing import Any, Final

import torch
from torch.nn.parallel import distributed as ddp

from kernbench.bridge.base.here import HERE
from kernbench.bridge.distributed.works import unseen
from kernbench.bridge.tensors.devices import on_device
from kernbench.errors import not_simulated
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.runtime_api.refused_functions import OTHERS, Once, refused

_COMPILE: Final = (
    "torch.compile is not simulated: the function runs as it is, one kernel an operation, so its "
    "predicted time is that of eager PyTorch"
)
_MIXED: Final = "DistributedDataParallel(mixed_precision=...)"
_PRECISION: Final = "use torch.autocast, or fully_shard with a MixedPrecisionPolicy"
_SAVES: Final = (
    "torch.distributed.checkpoint.async_save saves at once: the files are the same, but the ranks "
    "wait until they are written"
)


def _compile(real: Callable[..., Any], once: Once) -> Callable[..., Any]:
    @functools.wraps(real)
    def compile_(model: Any = None, **options: Any) -> Any:
        if HERE.rank is None:
            return real(model, **options)
        once.say(_COMPILE)
        return (lambda function: function) if model is None else model

    return compile_


def _module_compile(real: Callable[..., Any], once: Once) -> Callable[..., Any]:
    @functools.wraps(real)
    def compile_(self: Any, *args: Any, **options: Any) -> None:
        if HERE.rank is None:
            real(self, *args, **options)
            return
        once.say(_COMPILE)

    return compile_


def _async_save(real: Callable[..., Any]) -> Callable[..., Any]:
    once = Once()

    @functools.wraps(real)
    def async_save(state_dict: Any, *, async_checkpointer_type: Any = None, **options: Any) -> Any:
        if HERE.rank is None:
            kind = {"async_checkpointer_type": async_checkpointer_type}
            return real(state_dict, **(kind if async_checkpointer_type else {}), **options)
        if options.pop("async_stager", None) is not None:
            raise not_simulated("async_save(async_stager=...)", "leave async_stager out")
        once.say(_SAVES)
        saved: Future[Any] = Future()
        saved.set_result(torch.distributed.checkpoint.save(state_dict, **options))
        return saved

    return async_save


def _export(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def export(mod: Any, *args: Any, **options: Any) -> Any:
        rank = HERE.rank
        if rank is None:
            return real(mod, *args, **options)
        on = any(map(on_device, itertools.chain(mod.parameters(), mod.buffers())))
        HERE.rank = None  # the tensors that it traces are no device's
        try:
            with unseen():
                program = real(mod, *args, **options)
        finally:
            HERE.rank = rank
        for node in program.graph.nodes if on else ():
            if node.kwargs.get("device") == rank.physical:
                node.update_kwarg("device", rank.device)
        return program

    return export


def _in_ranks(real: Any, name: str, hint: str) -> Any:
    """Returns a function, or a class that can be made objects of, which ranks may not call."""
    refuse = refused(name, hint)

    @functools.wraps(real)
    def either(*args: Any, **options: Any) -> Any:
        return (real if HERE.rank is None else refuse)(*args, **options)

    return either


def patches() -> Iterator[Patch | WhenImported]:
    """Yields what is passed through or refused."""
    once = Once()
    yield Patch(torch, "compile", _compile(torch.compile, once))
    yield Patch(torch.nn.Module, "compile", _module_compile(torch.nn.Module.compile, once))
    setup = ddp._setup_mixed_precision_params
    yield Patch(ddp, setup.__name__, _in_ranks(setup, _MIXED, _PRECISION))
    yield WhenImported("torch.distributed.checkpoint", _of_checkpoints)
    yield WhenImported("torch.export", _of_export)
    for module, names in OTHERS.items():
        yield _refused(module, names)


def _of_checkpoints(checkpoint: Any) -> Iterator[Patch]:
    save = _async_save(checkpoint.async_save)
    for owner in (checkpoint, checkpoint.state_dict_saver):
        yield Patch(owner, "async_save", save)


def _of_export(module: Any) -> Iterator[Patch]:
    yield Patch(module, "export", _export(module.export))


def _refused(module: str, names: Mapping[str, str]) -> WhenImported:
    """Returns what lets ranks not call names of a module."""

    def patches(imported: ModuleType) -> Iterator[Patch]:
        for name, hint in names.items():
            real: Any = getattr(imported, name, None)
            whole = f"{module}.{name}"
            if isinstance(real, type) and issubclass(real, torch.nn.Module):
                # It stays the class: programs ask whether a model is one of it.
                made = vars(real)["__init__"]
                yield Patch(real, "__init__", _in_ranks(made, whole, hint))
            elif real is not None:
                yield Patch(imported, name, _in_ranks(real, whole, hint))

    return WhenImported(module, patches)
