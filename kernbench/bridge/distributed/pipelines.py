"""`torch.distributed.pipelining` without numbers: the stages' vote is read from the device."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from kernbench.bridge.base.here import HERE
from kernbench.bridge.base.private import PIPELINE_STARTS
from kernbench.isolation.replaced import Patch, WhenImported


def patches() -> Iterator[WhenImported]:
    """Yields what is replaced."""
    yield WhenImported("torch.distributed.pipelining.schedules", _of_schedules)


def _of_schedules(schedules: ModuleType) -> Iterator[Patch]:
    from torch.distributed.pipelining.stage import InferenceMode

    kind, name = PIPELINE_STARTS.name().split(".")
    owner = getattr(schedules, kind)
    real = getattr(owner, name)

    def start(self: Any, stages: Any, has_backward: bool, connections: bool) -> None:
        rank = HERE.rank
        if rank is None or rank.data:
            real(self, stages, has_backward, connections)
            return
        # All stages of a program are given the shapes of their operands, or none is.
        asks = any(
            InferenceMode.needs_dynamic(getattr(stage, "_user_meta", None), has_backward)
            for stage in stages
        )
        with rank.mode.remembering(0 if asks else 1):
            real(self, stages, has_backward, connections)

    yield Patch(owner, name, start)
