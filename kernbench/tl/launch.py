"""Launching a grid of programs on the PEs of one device."""

import functools
import inspect
import math
import sys
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, Protocol, overload

import numpy as np

from kernbench.caches import Table
from kernbench.des import Beside, current_task
from kernbench.errors import KernbenchError, UnsupportedError, call_site, site_fact
from kernbench.hw.queue import QueueSpec
from kernbench.memory import Buffer, DType, Space, View
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine, Hold
from kernbench.sim_engine.op_log import Record
from kernbench.sim_engine.shadow import compare
from kernbench.tl.arguments import passed
from kernbench.tl.builtin_names import with_builtins
from kernbench.tl.constants import constexpr
from kernbench.tl.execution import Run
from kernbench.tl.notices import notify_all
from kernbench.tl.program import Program
from kernbench.tl.recording import Recorder, Recording, Spans
from kernbench.tl.tile import Pointer
from kernbench.units import Bytes


class LaunchError(KernbenchError):
    """The grid or the arguments of a launch do not fit the kernel (K1, K3)."""


class Launcher(Protocol):
    """The runtime of the calling rank, which turns a launch into a command."""

    def launch(self, kernel: "Kernel", grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        """Issues the launch on the current stream; does not wait for the kernel.

        Args:
            grid: One to three extents of the grid.
            arguments: Arguments by parameter name, defaults included.
        """
        ...


def _nobody() -> None:
    return None


find_launcher: Callable[[], Launcher | None] = _nobody
"""Finds the runtime of the calling code; the runtime room replaces this function."""


_OF_A_GPU: Final = frozenset({"num_warps", "num_stages", "num_ctas"})
"""Options of a launch that say how a GPU runs a program. None of them changes a result. A PE has no
warps and its engines overlap by themselves, so the options are accepted and have no effect."""

_NOTHING: Final = inspect.Parameter.empty
_ANY_WAY: Final = inspect.Parameter.POSITIONAL_OR_KEYWORD
_BY_NAME: Final = inspect.Parameter.KEYWORD_ONLY


class Kernel:
    """A function of the kernel language; `kernel[grid](*args)` launches it, as in Triton.

    A launch accepts `num_warps`, `num_stages` and `num_ctas`; they have no effect. Inside a kernel,
    `kernel(*args)` is a plain call.

    Args:
        portable: See `jit`.
        same_stores: See `jit`.

    Attributes:
        function: The function to which `jit` was applied.
        portable: Whether a launch is refused if Triton would not compile the kernel.
        same_stores: Whether several programs may store one value to one element.
        signature: Signature of the function.
        constants: Names of the `tl.constexpr` parameters.
    """

    def __init__(
        self, function: Callable[..., None], *, portable: bool = True, same_stores: bool = False
    ) -> None:
        functools.update_wrapper(self, function)
        self.function: Final = with_builtins(function)
        self.portable: Final = portable
        self.same_stores: Final = same_stores
        self.signature: Final = inspect.signature(function)
        self.constants: Final = frozenset(
            name
            for name, parameter in self.signature.parameters.items()
            if parameter.annotation is constexpr or parameter.annotation == "tl.constexpr"
        )
        kinds = [parameter.kind for parameter in self.signature.parameters.values()]
        simple = kinds.count(_ANY_WAY) + kinds.count(_BY_NAME) == len(kinds)
        self._positional: Final = kinds.count(_ANY_WAY) if simple else -1
        self._defaults: Final = {n: p.default for n, p in self.signature.parameters.items()}

    def environment(self) -> Hashable | None:
        """Returns a key of all values that the function uses from outside of itself.

        A launch depends on these values as it does on its arguments.

        Returns:
            The key, see `kind_of`; None if some value has no key.
        """
        kind = kind_of(self.function)
        return kind if kind is None or not self.same_stores else ("same stores", kind)

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function as a part of the kernel that is running.

        Raises:
            LaunchError: Outside of a kernel, where a launch needs a grid.
        """
        task = current_task()
        if task is not None and isinstance(task.subject, Program):
            return self.function(*args, **kwargs)
        raise LaunchError(
            f"kernel {self.name} was called like a function",
            [site_fact(call_site())],
            hint=f"launch it on a grid: {self.name}[(programs,)](...)",
            code="K3",
        )

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            arguments = self.bound(args, kwargs)
            extents = self.extents(grid(arguments) if callable(grid) else grid)
            launcher = find_launcher()
            if launcher is None:
                raise UnsupportedError(
                    f"kernel {self.name} was launched outside of a running context",
                    [site_fact(call_site())],
                    hint="launch it from a worker, or inside `with RuntimeContext(...)`",
                )
            launcher.launch(self, extents, arguments)

        return launch

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments of a launch by parameter name, defaults included.

        Args:
            args: Arguments by position.
            kwargs: Arguments by name; options that have no effect are taken out of it.

        Raises:
            LaunchError: If they do not fit the signature (K3).
        """
        for name in _OF_A_GPU & kwargs.keys() - self.signature.parameters.keys():
            self._check_count(name, kwargs.pop(name))
        return self._bind(args, kwargs)

    def _check_count(self, name: str, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise LaunchError(
                f"kernel {self.name}: {name} is a positive number; got {value!r}",
                [site_fact(call_site())],
                hint=f"leave it out: {name} has no meaning here",
                code="K3",
            )

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        found = self._bind_plainly(args, kwargs)
        if found is not None:
            return found
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise LaunchError(
                f"kernel {self.name}: {error}",
                [site_fact(call_site()), f"signature: {self.name}{self.signature}"],
                code="K3",
            ) from None
        bound.apply_defaults()
        return bound.arguments

    def _bind_plainly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Binds a simple call at a tenth of the signature's cost; None for other calls."""
        if len(args) > self._positional:
            return None
        given = {**dict(zip(self._defaults, args, strict=False)), **kwargs}
        bound = {**self._defaults, **given}
        twice_or_unknown = len(given) < len(args) + len(kwargs) or len(bound) > len(self._defaults)
        if twice_or_unknown or any(value is _NOTHING for value in bound.values()):
            return None
        return bound

    def extents(self, grid: Any) -> tuple[int, ...]:
        """Returns the extents of a grid.

        Args:
            grid: One to three numbers.

        Raises:
            LaunchError: If it is no grid (K1); a number is none, as with Triton.
        """
        if isinstance(grid, int):
            raise LaunchError(
                f"kernel {self.name}: a grid is a tuple of extents; got {grid}",
                [site_fact(call_site())],
                hint=f"write {self.name}[({grid},)](...)",
                code="K1",
            )
        extents = tuple(grid)
        whole = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in extents)
        if not 1 <= len(extents) <= 3 or not whole:
            raise LaunchError(
                f"kernel {self.name}: a grid has one to three positive extents; got {extents}",
                [site_fact(call_site())],
                code="K1",
            )
        return extents


_SAME: Final = (type, DType, Enum)
"""Types of which an object is equal to itself only."""

_EXACT: Final = (int, bool, str, bytes, type(None))
"""Types of which a kernel cannot tell equal values apart."""


def kind_of(value: object) -> Hashable | None:
    """Returns a key that two values share only if no kernel can tell the values apart.

    Returns:
        The key; None for a value of a type without such keys.
    """
    return _kind_of(value, set())


def _kind_of(value: object, seen: set[object]) -> Hashable | None:
    value = value.function if isinstance(value, Kernel) else value
    if isinstance(value, _SAME):
        return type(value), value
    if type(value) in _EXACT:
        return type(value), value
    if isinstance(value, float | np.generic):
        # 0.0 and -0.0 are equal, and so are numbers of different types.
        return type(value), np.asarray(value).tobytes()
    if isinstance(value, tuple):
        kinds = tuple([_kind_of(each, seen) for each in value])
        return None if None in kinds else (type(value), kinds)
    if isinstance(value, FunctionType):
        return _environment(value, seen)
    if isinstance(value, ModuleType) and _is_fixed(value.__name__):
        return type(value), value
    if isinstance(value, constexpr):
        return constexpr, _kind_of(value.value, seen)
    return None


def _is_fixed(module: str) -> bool:
    """Returns whether nobody changes what a module has."""
    root = module.partition(".")[0]
    return root in ("kernbench", "numpy") or root in sys.stdlib_module_names


def _environment(function: FunctionType, seen: set[object]) -> Hashable | None:
    # A function of a text that is run has no module.
    if function in seen or (function.__module__ or "").startswith("kernbench."):
        return (function,)
    seen.add(function)
    code = function.__code__
    names = _names_in(code)
    if "print" in names:  # it is to print whenever it is launched
        return None
    found = _kinds_in(function.__globals__, names, seen)
    try:
        cells = tuple([cell.cell_contents for cell in function.__closure__ or ()])
    except ValueError:  # a variable that has no value yet
        return None
    named = tuple((function.__kwdefaults__ or {}).items())
    kind = _kind_of((cells, function.__defaults__, named), seen)
    return None if kind is None or found is None else (code, found, kind)


def _names_in(code: CodeType) -> set[str]:
    """Returns the names of globals and attributes in code, with the functions inside of it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names


def _kinds_in(
    values: Mapping[str, Any], names: set[str], seen: set[object]
) -> tuple[Hashable, ...] | None:
    """Returns the kinds of the values of some names; None if one is not known."""
    kinds: list[Hashable] = []
    for name in sorted(names & values.keys()):
        value = values[name]
        if isinstance(value, ModuleType) and not _is_fixed(value.__name__):
            kind = _module_kind(value, names, seen)
        else:
            kind = _kind_of(value, seen)
        if kind is None:
            return None
        kinds.append((name, kind))
    return tuple(kinds)


def _module_kind(module: ModuleType, names: set[str], seen: set[object]) -> Hashable | None:
    """Returns the kind of a module of the user's own: what it has under names that code uses."""
    if module in seen:
        return (module,)
    seen.add(module)
    kinds = _kinds_in(vars(module), names, seen)
    return None if kinds is None else (module, kinds)


@overload
def jit(function: Callable[..., None]) -> Kernel: ...


@overload
def jit(
    *, portable: bool = True, same_stores: bool = False
) -> Callable[[Callable[..., None]], Kernel]: ...


def jit(
    function: Callable[..., None] | None = None,
    *,
    portable: bool = True,
    same_stores: bool = False,
) -> Any:
    """Makes a function of the kernel language launchable: `@tl.jit`, or `@tl.jit(...)`.

    Inside of it, `range`, `min` and `max` without `tl.` are the kernel language's, as in Triton.

    Args:
        function: The function; None if options are given.
        portable: Whether a launch is refused if Triton would not compile the kernel (K12). A kernel
            that is meant for PEs only may do more: blocks of any extent, Python's control flow.
        same_stores: Whether several programs may store to one element if all store the same value,
            which comes out the same in any order. Different values are still refused (M12). Only a
            run can tell them apart, so a launch that does so is run each time.

    Returns:
        The kernel; with options, a decorator that makes it.
    """
    if function is None:
        return lambda given: Kernel(given, portable=portable, same_stores=same_stores)
    return Kernel(function, portable=portable, same_stores=same_stores)


class KernelWork:
    """The work of a launch: programs in the order of their index, dealt out to the PEs in turn.

    A kernel has the whole device to itself. So its programs run on an event loop of their own that
    starts at zero, and the launch holds the device for the duration of that run.

    Args:
        grid: Extents of the grid.
        arguments: Arguments by parameter name; tensors are `Pointer`s.
        queues: How queues between the programs are built.
        memo: Recordings of earlier launches on the machine, by dials of the engine, the kind of the
            device and `memo_key`; played unless fidelity is `tile`.
        memo_key: Key of everything else that a recording depends on; None if there is no such key.
    """

    def __init__(
        self,
        engine: GraphEngine,
        sip: int,
        kernel: Kernel,
        grid: tuple[int, ...],
        arguments: dict[str, Any],
        queues: QueueSpec,
        memo: Table[Hashable, Recording],
        memo_key: Any,
    ) -> None:
        self._engine = engine
        self._sip = sip
        self._kernel = kernel
        self._grid = grid
        self._arguments = arguments
        self._queues = queues
        self._memo = memo
        self._memo_key = None if memo_key is None else (memo_key, _shared(arguments))

    def recording(self, check: Callable[[], None] | None = None) -> Recording | None:
        """Returns the actions of the launch that hold for any contents of its arguments.

        Runs the programs once without data, if no earlier launch was the same.

        Args:
            check: Called first, unless an earlier launch was the same.

        Returns:
            The recording; None if only a run with the arguments can tell.
        """
        if self._memo_key is None:
            if check is not None:
                check()
            return None
        engine = self._engine
        kind = engine.devices[self._sip].kind
        key = engine.enable_data, engine.op_log.full, kind, self._memo_key
        found = self._memo.get(key)
        if found is None and check is not None:
            check()
        return self._memo.keep(key, self._record()) if found is None else found

    def _record(self) -> Recording:
        views = self._twins()
        recorder = Recorder(views, calls=self._engine.enable_data)
        run = self._new_run(recorder)
        try:
            run.run(self._with(views))
            calls = recorder.calls()
        except Exception:
            # The run with the real arguments reports the error.
            return Recording()
        loads, stores = frozenset(recorder.loads), frozenset(recorder.stores)
        if run.varied:
            return Recording(loads, stores)
        return Recording(loads, stores, run.duration, run.spans, calls, run.notices)

    def _new_run(self, recorder: Recorder | None) -> Run:
        return Run(
            self._engine,
            self._sip,
            self._kernel.function,
            self._grid,
            self._queues,
            recorder,
            same_stores=self._kernel.same_stores,
        )

    def _twins(self) -> dict[str, View]:
        """Returns a view of its own for each parameter, even if two parameters got one tensor."""
        return {name: _twin(view, view.buffer) for name, view in self._views.items()}

    def _with(self, views: dict[str, View]) -> dict[str, Any]:
        constants = self._kernel.constants
        return {
            name: value
            if name in constants
            else Pointer(views[name], 0)
            if name in views
            else passed(name, value)
            for name, value in self._arguments.items()
        }

    @property
    def _views(self) -> dict[str, View]:
        return {n: p.view for n, p in self._arguments.items() if isinstance(p, Pointer)}

    def begin(self, command: Command, start: int) -> None:
        """See `Action`."""
        engine = self._engine
        if command.stream.faulted:
            Hold(engine, None, 0, None).begin(command, start)
            return
        recording = None if engine.fidelity == "tile" else self.recording()
        copies: dict[str, View] = {}
        if engine.shadow:
            copies = self._copies()
        try:
            duration, spans = self._execute(recording)
        except Exception as error:
            engine.fail(command, error)
            Hold(engine, None, 0, None).begin(command, start)
            return
        if engine.shadow and recording is not None and recording.duration is not None:
            self._compare(recording, copies)
        self._log(command, start, spans)
        device = engine.devices[self._sip]
        whole = device.sip.launch + duration
        if math.prod(self._grid) < device.library.num_pes:
            whole = Beside(whole)
        Hold(engine, device.compute, whole, None).begin(command, start)

    def _execute(self, recording: Recording | None) -> tuple[int, Spans]:
        """Changes the bytes of the arguments; returns the duration and the spans of engines."""
        if recording is not None and recording.duration is not None:
            calls = recording.calls
            if not self._engine.enable_data or (calls is not None and calls.play(self._views)):
                notify_all(recording.notices)
                return recording.duration, recording.spans
        run = self._run(self._twins())
        notify_all(run.notices)
        return run.duration, run.spans

    def _run(self, views: dict[str, View]) -> Run:
        """Runs the programs on views of their own."""
        if self._engine.enable_data:
            for view in views.values():
                if view.buffer.data is None:
                    view.buffer.poison(view.dtype)
        run = self._new_run(None)
        run.run(self._with(views))
        return run

    def _copies(self) -> dict[str, View]:
        """Returns views of copies of all bytes; what shares memory still does."""
        views = self._views
        buffers = {view.buffer: view.buffer.copy() for view in views.values()}
        return {name: _twin(view, buffers[view.buffer]) for name, view in views.items()}

    def _compare(self, recording: Recording, before: dict[str, View]) -> None:
        """Runs the programs on copies of their arguments, and compares what the recording did.

        Raises:
            ShadowError: If the launch takes another time, or leaves other bytes.
        """
        name = f"launch of {self._kernel.name}"
        tensors = [f"{n} {view.dtype.name} {view.shape}" for n, view in self._views.items()]
        key = ", ".join([f"grid {self._grid}", *tensors])
        run = self._run(before)
        compare(f"picoseconds of a {name}", key, recording.duration, run.duration)
        compare(f"tile commands of a {name}", key, recording.spans, run.spans)
        for argument, view in self._views.items():
            kept, anew = view.buffer, before[argument].buffer
            if kept.data is None or anew.data is None:
                continue  # data are off
            written = [
                np.zeros(kept.data.shape, np.bool_) if each is None else each
                for each in (kept.unwritten, anew.unwritten)
            ]
            differing = (written[0] != written[1]) | (~written[0] & (kept.data != anew.data))
            if differing.any():
                byte = int(differing.argmax())
                states = [
                    "never written" if unwritten[byte] else int(each[byte])
                    for each, unwritten in zip((kept.data, anew.data), written, strict=True)
                ]
                compare(f"byte {byte} of {argument} after a {name}", key, *states)

    def _log(self, command: Command, start: int, spans: Spans) -> None:
        log = self._engine.op_log
        if not log.full or not self._engine.timed:
            return
        start += self._engine.devices[self._sip].sip.launch
        for pe, (name, category, track, begin, end, flow, args) in spans:
            log.add(
                Record(
                    name,
                    category,
                    command.host.rank,
                    f"pe{pe}.{track}",
                    command.issued,
                    start + begin,
                    start + end,
                    command.site,
                    args,
                    flow,
                    command.ranges,
                    command.took,
                )
            )


def _shared(arguments: Mapping[str, Any]) -> Hashable:
    """Returns which tensors lie in one buffer, and where; () if none do."""
    buffers: dict[Buffer, int] = {}
    places: list[tuple[int, int]] = []
    for each in arguments.values():
        if type(each) is Pointer:
            view = each.view
            first = buffers.setdefault(view.buffer, len(places))
            places.append((first, view.offset * view.dtype.itemsize))
    return () if len(buffers) == len(places) else tuple(places)


def _twin(view: View, buffer: Buffer) -> View:
    return View(buffer, view.dtype, view.shape, view.strides, view.offset)


DEFAULT_QUEUES: Final = QueueSpec(Space.TCM, "sleep", 4, Bytes(4096), Bytes(256), Bytes(16))
"""Queues between the programs of a kernel."""
