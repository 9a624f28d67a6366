"""`torch.profiler.profile`: where the simulated time of a rank goes, while the program runs."""

import os
from collections.abc import Callable, Iterable
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from kernbench.errors import (
    CallSite,
    KernbenchError,
    UnsupportedError,
    call_site,
    site_fact,
    warn_at_call,
)
from kernbench.operations.cuda import synchronize
from kernbench.process.process import MAIN, Process, RankLocal, current_process
from kernbench.ranks.world import world_of
from kernbench.runtime_api.profiler import record_function
from kernbench.sim_engine.op_log import OpLog
from kernbench.tensors.errors import refuse

if TYPE_CHECKING:
    from kernbench.report.averages import Average

__all__ = [
    "ProfilerAction",
    "ProfilerActivity",
    "profile",
    "schedule",
    "tensorboard_trace_handler",
]


class ProfilerError(KernbenchError, AssertionError):
    """A profiler is used in another way than it can be."""


class ProfilerActivity(Enum):
    """`torch.profiler.ProfilerActivity`: whose times are shown."""

    CPU = 0
    XPU = 1
    MTIA = 2
    CUDA = 3
    HPU = 4
    PrivateUse1 = 5


class ProfilerAction(Enum):
    """`torch.profiler.ProfilerAction`: what a profiler does in a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


_RECORDING: Final = {ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE}


def schedule(
    *,
    wait: int,
    warmup: int,
    active: int,
    repeat: int = 0,
    skip_first: int = 0,
    skip_first_wait: int = 0,
) -> Callable[[int], ProfilerAction]:
    """Returns what a profiler does in each step: it waits, warms up and records, in cycles.

    Args:
        wait: Steps of a cycle in which it does nothing.
        warmup: Steps in which it gets ready; here nothing has to.
        active: Steps that it records.
        repeat: Number of cycles; 0 for cycles to the end.
        skip_first: Steps before the first cycle.
        skip_first_wait: If not 0, the first cycle does not wait.

    Raises:
        ProfilerError: If a number is out of range.
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active <= 0:
        raise ProfilerError(
            f"Invalid profiler schedule arguments. Got wait={wait} (need >= 0), warmup={warmup} "
            f"(need >= 0), active={active} (need > 0), repeat={repeat} (need >= 0), "
            f"skip_first={skip_first} (need >= 0).",
            [site_fact(call_site())],
        )
    cycle = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        if step < skip_first:
            return ProfilerAction.NONE
        step += (wait if skip_first_wait else 0) - skip_first
        if (repeat and step >= repeat * cycle) or step % cycle < wait:
            return ProfilerAction.NONE
        if step % cycle < wait + warmup:
            return ProfilerAction.WARMUP
        last = step % cycle == cycle - 1
        return ProfilerAction.RECORD_AND_SAVE if last else ProfilerAction.RECORD

    return action


def tensorboard_trace_handler(
    dir_name: str,
    worker_name: str | None = None,
    use_gzip: bool = False,
    use_python_export: bool = False,
) -> Callable[["profile"], None]:
    """Returns an `on_trace_ready` that writes a trace into a folder, a file for each time.

    Args:
        dir_name: The folder, which is made.
        worker_name: Begin of the file's name; by default `rank` and the rank's number.
        use_gzip: Whether to compress the file.
        use_python_export: Must be False.

    Raises:
        UnsupportedError: For `use_python_export`.
    """
    refuse("tensorboard_trace_handler", use_python_export=use_python_export or None)

    def handler(prof: "profile") -> None:
        os.makedirs(dir_name, exist_ok=True)
        process = current_process()
        name = worker_name or ("main" if process.rank == MAIN else f"rank{process.rank}")
        # The simulated time, where PyTorch has that of day: equal runs give equal names.
        end = f"{process.host.clock}.pt.trace.json{'.gz' if use_gzip else ''}"
        prof.export_chrome_trace(os.path.join(dir_name, f"{name}.{end}"))

    return handler


class EventList(list["Average"]):
    """What `key_averages` returns: the calls of each name.

    Args:
        rows: The calls.
        device: Whether tables show the times of the device.
    """

    def __init__(self, rows: "Iterable[Average]", device: bool) -> None:
        super().__init__(rows)
        self._device = device

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int = 75,
        max_name_column_width: int = 55,
        max_shapes_column_width: int = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
        time_unit: str | None = None,
    ) -> str:
        """Returns the calls as a table in PyTorch's columns, in simulated time.

        Args:
            sort_by: Such as `cuda_time_total` or `self_cpu_time_total`; None for the order of the
                first calls.
            row_limit: Rows to show; -1 for all.
            max_src_column_width: Must be 75: sources are in the trace.
            max_name_column_width: Most characters of a name.
            max_shapes_column_width: Must be 80: shapes are not recorded.
            header: A line above the table.
            top_level_events_only: Must be False.
            time_unit: Must be None.

        Raises:
            OptionError: If it cannot be sorted by `sort_by`.
            UnsupportedError: For other values of arguments that are not simulated.
        """
        from kernbench.report.averages import table

        refuse(
            "table",
            max_src_column_width=None if max_src_column_width == 75 else max_src_column_width,
            max_shapes_column_width=(
                None if max_shapes_column_width == 80 else max_shapes_column_width
            ),
            top_level_events_only=top_level_events_only or None,
            time_unit=time_unit,
        )
        return table(
            self,
            sort_by=sort_by,
            row_limit=row_limit,
            width=max_name_column_width,
            device=self._device,
            header=header,
        )


_KEPT: Final["WeakKeyDictionary[OpLog, list[Any]]"] = WeakKeyDictionary()
"""For each log of which profilers keep the records: what it kept before, and how many they are."""

_RECORDS: Final[RankLocal[list[CallSite | None]]] = RankLocal(
    "open profiles", lambda _: [], outlives=True
)
"""Where the profilers of a rank that record now were told to."""


def open_profiles(process: Process) -> list[CallSite | None]:
    """Returns where the profilers of a process have begun to record that have not ended."""
    return list(process.locals.get(_RECORDS, ()))


class profile:  # noqa: N801 - PyTorch's name
    """`torch.profiler.profile`: records what the calling rank does in a `with` block.

    Times are simulated. When a recording ends, the host waits for the device, as in PyTorch.
    While a rank records, the log of the run keeps every record of all ranks.

    Args:
        activities: Whose times are shown: of the host (`CPU`), and of the device (`CUDA`); None
            for both.
        schedule: Takes the number of the step, returns what to do in it; None to record all steps.
        on_trace_ready: Called with the profiler when a recording is complete.
        record_shapes: Must be False: records have no shapes.
        profile_memory: Must be False: `torch.cuda.max_memory_allocated` tells the peak.
        with_stack: Whether traces have the lines of the program; here they always do.
        with_flops: Must be False.
        with_modules: Must be False.
        experimental_config: Must be None.
        execution_trace_observer: Must be None.
        acc_events: Must be False: averages are those of the last recording.
        use_cuda: Must be None: PyTorch's old name for `activities`.
        custom_trace_id_callback: Must be None.
        post_processing_timeout_s: Must be None.

    Raises:
        UnsupportedError: For other values of arguments that are not simulated.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: None = None,
        execution_trace_observer: None = None,
        acc_events: bool = False,
        use_cuda: None = None,
        custom_trace_id_callback: None = None,
        post_processing_timeout_s: None = None,
    ) -> None:
        del with_stack
        refuse(
            "profile",
            record_shapes=record_shapes or None,
            profile_memory=profile_memory or None,
            with_flops=with_flops or None,
            with_modules=with_modules or None,
            experimental_config=experimental_config,
            execution_trace_observer=execution_trace_observer,
            acc_events=acc_events or None,
            use_cuda=use_cuda,
            custom_trace_id_callback=custom_trace_id_callback,
            post_processing_timeout_s=post_processing_timeout_s,
        )
        known = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
        self.activities = known if activities is None else set(activities)
        for each in self.activities - known:
            raise UnsupportedError(f"profile of {each} is not simulated", [site_fact(call_site())])
        self.schedule = schedule
        self.on_trace_ready = on_trace_ready
        self.step_num = 0
        self._action = ProfilerAction.NONE
        self._step: record_function | None = None
        self._first: tuple[int, int] | None = None
        self._begun: CallSite | None = None
        self._log: OpLog | None = None

    def __enter__(self) -> "profile":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begins with the first step."""
        self._go_to(self._planned())
        self._begin_step()

    def stop(self) -> None:
        """Ends the step, and the recording if there is one."""
        self._end_step()
        if self._first is not None:
            self._finish()
            self._ready()
        self._action = ProfilerAction.NONE

    def step(self) -> None:
        """Ends a step, and begins the next one."""
        self._end_step()
        self.step_num += 1
        self._go_to(self._planned())
        self._begin_step()

    def _planned(self) -> ProfilerAction:
        return ProfilerAction.RECORD if self.schedule is None else self.schedule(self.step_num)

    def _begin_step(self) -> None:
        if self.schedule is not None:
            self._step = record_function(f"ProfilerStep#{self.step_num}")
            self._step.__enter__()

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def _go_to(self, action: ProfilerAction) -> None:
        before, self._action = self._action, action
        if self._first is not None and (
            before is ProfilerAction.RECORD_AND_SAVE or action not in _RECORDING
        ):
            self._finish()
            if before is ProfilerAction.RECORD_AND_SAVE:
                self._ready()
            else:
                warn_at_call("Incorrect schedule: RECORD followed by a step that does not record")
        if self._first is None and action in _RECORDING:
            self._begin()

    def _begin(self) -> None:
        process = current_process()
        log = process.engine.op_log
        kept = _KEPT.setdefault(log, [(log.detail, log.full), 0])
        kept[1] += 1
        log.keep_records()
        process.host.since = process.host.clock  # what came before is not the next command's
        self._first = (len(log.records), process.host.clock)
        self._begun = call_site()
        _RECORDS.of(process).append(self._begun)

    def _finish(self) -> None:
        assert self._first is not None
        synchronize()
        process = current_process()
        log = process.engine.op_log
        first, clock = self._first
        recorded = self._log = OpLog("full")
        recorded.records += [
            each
            for each in log.records[first:]
            if each.rank == process.rank and max(each.issued, each.end) > clock
        ]
        recorded.waits += [
            each for each in log.waits if each.rank == process.rank and each.start >= clock
        ]
        self._first = None
        _RECORDS.of(process).remove(self._begun)
        kept = _KEPT[log]
        kept[1] -= 1
        if not kept[1]:
            log.detail, log.full = kept[0]
            del _KEPT[log]

    def _ready(self) -> None:
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def _recorded(self) -> OpLog:
        if self._log is None:
            raise ProfilerError(
                "the profiler has recorded nothing yet",
                [site_fact(call_site())],
                hint="call it after the with block, after stop(), or in on_trace_ready",
            )
        return self._log

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
    ) -> EventList:
        """Returns the calls of each name in the last recording.

        Args:
            group_by_input_shape: Must be False.
            group_by_stack_n: Must be 0.
            group_by_overload_name: Must be False.

        Raises:
            ProfilerError: Before a recording is complete.
            UnsupportedError: For other values of arguments that are not simulated.
        """
        refuse(
            "key_averages",
            group_by_input_shape=group_by_input_shape or None,
            group_by_stack_n=group_by_stack_n or None,
            group_by_overload_name=group_by_overload_name or None,
        )
        from kernbench.report.averages import averages

        rows = averages(self._recorded().records, current_process().engine.dispatch_ps)
        return EventList(rows, ProfilerActivity.CUDA in self.activities)

    def export_chrome_trace(self, path: str, use_python_export: bool = False) -> None:
        """Writes the last recording in the layout of PyTorch's own traces, compressed for `.gz`.

        Args:
            use_python_export: Must be False.

        Raises:
            ProfilerError: Before a recording is complete.
            UnsupportedError: For `use_python_export`.
            UsageError: If the file cannot be written (F15).
        """
        from kernbench.report.kineto import write_kineto_rank

        refuse("export_chrome_trace", use_python_export=use_python_export or None)
        process = current_process()
        engine = process.engine
        write_kineto_rank(
            self._recorded(),
            engine.topology,
            path,
            rank=process.rank,
            dispatch_ps=engine.dispatch_ps,
            sip=process.ctx.devices[max(process.rank, 0)],
            world_size=max(world_of(process).size, 1),
        )
