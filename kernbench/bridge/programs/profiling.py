"""`torch.profiler` in ranks: the simulated timeline, one profiler for each rank.

PyTorch's own profiler is one for a whole process, and records the host that simulates.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import torch
import torch.autograd.profiler
import torch.profiler

from kernbench.bridge.base.here import HERE
from kernbench.errors import not_simulated, warn_at_call
from kernbench.isolation.replaced import Patch
from kernbench.runtime_api import profiler as ranges
from kernbench.runtime_api import profiling

_LEFT_OUT: Final = ("record_shapes", "profile_memory", "with_flops", "with_modules", "acc_events")
"""Options that ask for more columns, which change nothing else."""


class profile(profiling.profile):  # noqa: N801 - PyTorch's name
    """`torch.profiler.profile`; see `kernbench.runtime_api.profiling.profile`.

    Args:
        activities: Whose times are shown, of PyTorch's `ProfilerActivity`.
        schedule: Takes the number of the step, returns what to do in it.
        options: The other options. Those that ask for shapes, memory or FLOPs of operations warn:
            the profile is without them.
    """

    def __init__(
        self,
        *,
        activities: Any = None,
        schedule: Callable[[int], Any] | None = None,
        **options: Any,
    ) -> None:
        left_out = [name for name in _LEFT_OUT if options.pop(name, False)]
        if left_out:
            warn_at_call(f"a simulated profile is without {', '.join(left_out)}")
        options.pop("experimental_config", None)
        super().__init__(
            activities=None if activities is None else [_activity(each) for each in activities],
            schedule=None if schedule is None else _actions(schedule),
            **options,
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_simulated(
            f"torch.profiler.profile.{name}", "use key_averages() or export_chrome_trace(file)"
        )


class old_profile(profile):  # noqa: N801
    """`torch.autograd.profiler.profile`.

    Args:
        enabled: Whether it records at all.
        options: Its other options.
    """

    def __init__(self, enabled: bool = True, **options: Any) -> None:
        self._enabled = enabled
        use_cuda = options.pop("use_cuda", False) or options.pop("use_device", None) == "cuda"
        for name in ("use_device", "use_cpu", "use_kineto", "with_stack"):
            options.pop(name, None)
        names = ("CPU", "CUDA") if use_cuda else ("CPU",)
        super().__init__(activities=[profiling.ProfilerActivity[name] for name in names], **options)

    def start(self) -> None:
        """Begins to record, if it is enabled."""
        if self._enabled:
            super().start()

    def stop(self) -> None:
        """Ends what `start` has begun."""
        if self._enabled:
            super().stop()


def _activity(value: Any) -> profiling.ProfilerActivity:
    return profiling.ProfilerActivity[value.name]


def _actions(schedule: Callable[[int], Any]) -> Callable[[int], profiling.ProfilerAction]:
    return lambda step: profiling.ProfilerAction[schedule(step).name]


class _EitherClass(type):
    """Of a class that stands for a real one outside of ranks, and for ours in ranks."""

    real: Any
    ours: Any

    def __call__(cls, *args: Any, **options: Any) -> Any:
        return (cls.real if HERE.rank is None else cls.ours)(*args, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.real if HERE.rank is None else cls.ours)


def _either_class(real: Any, ours: Any) -> type:
    names = {"real": real, "ours": ours, "__doc__": ours.__doc__}
    return _EitherClass(ours.__name__, (), names)


def _either(real: Any, ours: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **options: Any) -> Any:
        return (real if HERE.rank is None else ours)(*args, **options)

    make.__name__, make.__doc__ = ours.__name__, ours.__doc__
    return make


def patches() -> Iterator[Patch]:
    """Yields what is replaced of profilers."""
    new, old = torch.profiler, torch.autograd.profiler
    yield Patch(new, "profile", _either_class(new.profile, profile))
    yield Patch(old, "profile", _either_class(old.profile, old_profile))
    handler = _either(new.tensorboard_trace_handler, profiling.tensorboard_trace_handler)
    yield Patch(new, "tensorboard_trace_handler", handler)
    for owner in (new, old):
        real = owner.record_function
        yield Patch(owner, "record_function", _either(real, ranges.record_function))
