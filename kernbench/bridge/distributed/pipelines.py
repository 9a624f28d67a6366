"""`torch.distributed.pipelining` without numbers: the stages' vote is read from the device."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from kernbench.bridge.here import HERE
from kernbench.bridge.replaced import Patch, WhenImported


def patches() -> Iterator[WhenImported]:
    """Yields what is replaced."""
    yield WhenImported("torch.distributed.pipelining.schedules", _of_schedules)


def _of_schedules(schedules: ModuleType) -> Iterator[Patch]:
    from torch.distributed.pipelining.stage import InferenceMode

    owner = schedules._PipelineSchedule
    real = owner._warmup_p2p

    def warmup(self: Any, stages: Any, has_backward: bool, p2p_done: bool) -> None:
        rank = HERE.rank
        if rank is None or rank.data:
            real(self, stages, has_backward, p2p_done)
            return
        # All stages of a program are given the shapes of their operands, or none is.
        asks = any(
            InferenceMode.needs_dynamic(getattr(stage, "_user_meta", None), has_backward)
            for stage in stages
        )
        with rank.mode.remembering(0 if asks else 1):
            real(self, stages, has_backward, p2p_done)

    yield Patch(owner, "_warmup_p2p", warmup)
