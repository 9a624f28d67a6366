"""`torch.utils.checkpoint`: activations that backward computes anew instead of keeping them.

Without reentrance, the nodes of the function keep a place holder for each tensor (`frames`). The
first that a backward pass asks for runs the function again, which fills all of them in the order in
which they were kept, and stops at the last one. With reentrance, the function is one node, whose
backward runs the function again and a pass through it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, TypeVar

from kernbench.autograd.autograd import _is_checkpoint_valid, backward
from kernbench.autograd.calls import CallNumbers
from kernbench.autograd.frames import SAME_COURSE, CheckpointError, Frame
from kernbench.autograd.function import Function, FunctionNode
from kernbench.autograd.graph import saved_tensors_hooks
from kernbench.errors import (
    OperandError,
    OptionError,
    UnsupportedError,
    call_site,
    site_fact,
    warn_at_call,
)
from kernbench.process.process import Process, RankLocal, current_process
from kernbench.tensors.errors import TensorError
from kernbench.tensors.generators import default_generators
from kernbench.tensors.nodes import grad_state_of, needs_gradient, recording
from kernbench.tensors.operands import type_name
from kernbench.tensors.tensor import Tensor

__all__ = [
    "CheckpointError",
    "check_backward_validity",
    "checkpoint",
    "checkpoint_sequential",
    "detach_variable",
    "noop_context_fn",
    "set_checkpoint_early_stop",
]

_R = TypeVar("_R")
_Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


_EARLY_STOP: Final[RankLocal[list[bool]]] = RankLocal("early stop of checkpoints", lambda _: [])


@contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Sets for a `with` block whether the calling rank's checkpoints stop as soon as they can.

    Args:
        enable: What holds in place of `early_stop=` for checkpoints whose forward is in the block.
    """
    stack = _EARLY_STOP.of(current_process())
    stack.append(enable)
    try:
        yield
    finally:
        stack.pop()


def noop_context_fn() -> _Contexts:
    """Returns two contexts that do nothing: the default of `context_fn`."""
    return nullcontext(), nullcontext()


def check_backward_validity(inputs: Iterable[Any]) -> None:
    """Warns if no tensor among the inputs needs a gradient, since none flows through then."""
    if not any(isinstance(each, Tensor) and needs_gradient(each) for each in inputs):
        warn_at_call("None of the inputs have requires_grad=True. Gradients will be None")


def detach_variable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the inputs, of which the tensors are leaves of their own that need what they needed.

    Args:
        inputs: Tensors and other values.

    Raises:
        OperandError: If it is no tuple.
    """
    if not isinstance(inputs, tuple):
        raise OperandError(
            f"Only tuple of tensors is supported. Got Unsupported input type: {type_name(inputs)}",
            [site_fact(call_site())],
        )
    return tuple(
        [
            each.detach().requires_grad_(needs_gradient(each)) if isinstance(each, Tensor) else each
            for each in inputs
        ]
    )


# What the function depends on besides its arguments


class _Surroundings:
    """A snapshot of a rank's default device, numbers of calls, and random state.

    Args:
        draws: Whether the places of its generators belong to it.
    """

    def __init__(self, process: Process, draws: bool) -> None:
        self._device = process.default_device
        self._calls = CallNumbers()
        self._places = [each.snapshot() for each in default_generators(process)] if draws else []

    @contextmanager
    def again(self, process: Process) -> Iterator[None]:
        """Lets a block find them as they were; after it all go on where they stood."""
        generators = default_generators(process)[: len(self._places)]
        before = [each.snapshot() for each in generators]
        device, process.default_device = process.default_device, self._device
        for generator, place in zip(generators, self._places, strict=True):
            generator.restore(place)
        try:
            with self._calls.again():
                yield
        finally:
            process.default_device = device
            for generator, place in zip(generators, before, strict=True):
                generator.restore(place)


# Without reentrance


def _without_reentrance(
    function: Callable[..., _R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    preserve: bool,
    context_fn: Callable[[], _Contexts],
    compares: bool,
    early_stop: bool,
) -> _R:
    process = current_process()
    first, second = context_fn()
    if not grad_state_of(process).enabled or process.inference:
        return function(*args, **kwargs)
    around = _Surroundings(process, preserve)

    def run(*given: Any) -> None:
        with around.again(process), second:
            function(*given, **kwargs)

    frame = Frame(run, args, early_stop=early_stop, compares=compares)
    with saved_tensors_hooks(frame.pack, frame.unpack), first:
        out = function(*args, **kwargs)
        frame.complete = True
    if not frame.complete:
        raise OptionError(
            "torch.utils.checkpoint: the forward context provided by context_fn suppressed an "
            "exception raised during the checkpointed forward",
            [site_fact(call_site())],
            hint="let the context's __exit__ return False: a failed forward has no result",
        )
    return out


# With reentrance


def first_run(function: Callable[..., _R], args: Sequence[Any], recorded: bool) -> _R:
    """Runs a function, unrecorded, that backward is to run again.

    Args:
        recorded: Whether there is going to be a backward.

    Raises:
        TensorError: If there is, and the function writes an argument in place.
    """
    before = _versions(args)
    out = function(*args)
    for at, version in enumerate(_versions(args)):
        if recorded and version != before[at]:
            raise TensorError(
                f"checkpoint: the function writes its argument {at} in place, and would begin with "
                "other values the second time",
                [site_fact(call_site())],
                hint="let it make a new tensor",
            )
    return out


def _versions(args: Sequence[Any]) -> list[int | None]:
    return [each.memory.version if isinstance(each, Tensor) else None for each in args]


def second_run(
    function: Callable[..., Any], args: Sequence[Any], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Runs a function again, recorded, and a backward pass through it.

    Args:
        args: Its arguments; tensors are leaves.
        grads: Gradients of the results.

    Returns:
        The gradient of each argument.

    Raises:
        CheckpointError: If the function returns another number of results.
        TensorError: If no result needs a gradient.
    """
    with recording(current_process(), True):
        out = function(*args)
    outs = out if isinstance(out, tuple) else (out,)
    if len(outs) != len(grads):
        raise CheckpointError(
            f"checkpoint: the function returned {len(grads)} values the first time and "
            f"{len(outs)} the second time",
            [site_fact(call_site())],
            hint=SAME_COURSE,
        )
    pairs = [
        (each, grad)
        for each, grad in zip(outs, grads, strict=True)
        if isinstance(each, Tensor) and needs_gradient(each)
    ]
    if not pairs:
        raise TensorError(
            "none of output has requires_grad=True, this checkpoint() is not necessary",
            [site_fact(call_site())],
            hint="call the function itself",
        )
    backward([each for each, _ in pairs], [grad for _, grad in pairs])
    return [each.grad if isinstance(each, Tensor) else None for each in args]


class CheckpointFunction(Function):
    """The node of a function whose backward runs the function again, and a pass through it."""

    @staticmethod
    def forward(
        ctx: FunctionNode, run_function: Callable[..., Any], preserve_rng_state: bool, *args: Any
    ) -> Any:
        """Runs the function, unrecorded.

        Args:
            preserve_rng_state: Whether it draws the same numbers again.

        Raises:
            TensorError: If it writes an argument in place, and backward is to run it again.
        """
        check_backward_validity(args)
        kept: Any = ctx
        kept.run_function = run_function
        kept.around = _Surroundings(current_process(), preserve_rng_state)
        kept.rest = [None if isinstance(each, Tensor) else each for each in args]
        ctx.save_for_backward(*[each if isinstance(each, Tensor) else None for each in args])
        return first_run(run_function, args, any(ctx.needs_input_grad))

    @staticmethod
    def backward(ctx: FunctionNode, *grad_outputs: Any) -> Any:
        """Runs the function again, and a backward pass through it.

        Args:
            *grad_outputs: Gradients of the function's results.

        Raises:
            TensorError: If the pass under way is for chosen tensors only, or no result needs a
                gradient.
            CheckpointError: If the function returns another number of results.
        """
        if not _is_checkpoint_valid():
            raise TensorError(
                "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or "
                "passing an `inputs` parameter to .backward().",
                [site_fact(call_site())],
                hint="set use_reentrant=False, or call backward() without inputs",
            )
        kept: Any = ctx
        process = current_process()
        saved = zip(ctx.saved_tensors, kept.rest, strict=True)
        args = detach_variable(tuple([rest if each is None else each for each, rest in saved]))

        def run(*given: Any) -> Any:
            with kept.around.again(process):
                return kept.run_function(*given)

        return None, None, *second_run(run, args, grad_outputs)


# Both


def checkpoint(
    function: Callable[..., _R],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], _Contexts] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> _R:
    """Returns `function(*args, **kwargs)`, whose activations backward computes anew.

    Nothing that the function keeps for its gradients stays in memory until then but its arguments.
    If the function communicates, backward communicates as much again.

    Args:
        function: Called twice, the second time in the backward pass; it takes the same course both
            times.
        *args: Arguments of the function.
        use_reentrant: Whether the function is one node, and its backward a pass inside of the pass;
            then a tensor among the arguments must need a gradient, and `torch.autograd.grad` is
            refused. None: True, with PyTorch's warning.
        context_fn: Returns two contexts, for the function's first call and for the second; only
            without reentrance.
        determinism_check: `default`: computed tensors must have the shape, type and device of those
            of the first call; `none`: nothing is compared. Only without reentrance.
        debug: Must be False: errors name the lines of both calls anyway.
        early_stop: Whether the second call ends as soon as all that is needed is computed; only
            without reentrance.
        **kwargs: Further arguments of the function, without reentrance; and `preserve_rng_state`,
            whether the second call draws the random numbers of the first, True unless given.

    Raises:
        OperandError: If `function` cannot be called.
        OptionError: For arguments that `use_reentrant=True` does not take, or another
            `determinism_check`; if `context_fn` hides an error of the function.
        UnsupportedError: For `debug=True`.
        CheckpointError: In the backward pass, if the function computes other tensors.
        TensorError: In the backward pass, if an argument was written since; with reentrance at once
            if the function writes an argument, and in the backward pass also if that is for chosen
            tensors only, or no result needs a gradient.
    """
    if not callable(function):
        raise OperandError(
            f"checkpoint(): argument 'function' must be callable, not {type_name(function)}",
            [site_fact(call_site())],
        )
    reentrant = _reentrant("", use_reentrant)
    preserve = bool(kwargs.pop("preserve_rng_state", True))
    if debug:
        raise UnsupportedError(
            "checkpoint(debug=True) is not simulated",
            [site_fact(call_site())],
            hint="leave it out: errors name the lines of both calls anyway",
        )
    if reentrant:
        _refuse_further(kwargs)
        if context_fn is not noop_context_fn:
            raise OptionError(
                "Passing `context_fn` or `debug` is only supported when use_reentrant=False.",
                [site_fact(call_site())],
            )
        out: _R = CheckpointFunction.apply(function, preserve, *args)
        return out
    if determinism_check not in {"default", "none"}:
        raise OptionError(
            "determinism_check should be one of ['default', 'none'], but got "
            f"{determinism_check!r}",
            [site_fact(call_site())],
        )
    stack = _EARLY_STOP.of(current_process())
    return _without_reentrance(
        function,
        args,
        kwargs,
        preserve=preserve,
        context_fn=context_fn,
        compares=determinism_check == "default",
        early_stop=stack[-1] if stack else early_stop,
    )


def _reentrant(place: str, given: bool | None) -> bool:
    """Returns whether a checkpoint is reentrant, with PyTorch's warning if nobody says so."""
    if given is None:
        warn_at_call(
            f"torch.utils.checkpoint{place}: the use_reentrant parameter should be passed "
            "explicitly. Starting in PyTorch 2.9, calling checkpoint without use_reentrant will "
            "raise an exception. use_reentrant=False is recommended, but if you need to preserve "
            "the current default behavior, you can pass use_reentrant=True. Refer to docs for more "
            "details on the differences between the two variants."
        )
    return given is None or bool(given)


def _refuse_further(kwargs: dict[str, Any]) -> None:
    if kwargs:
        raise OptionError(
            f"Unexpected keyword arguments: {','.join(kwargs)}",
            [site_fact(call_site())],
            hint="use_reentrant=False passes them to the function",
        )


def checkpoint_sequential(
    functions: Any,
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Runs functions one after the other, all segments of them but the last as checkpoints.

    Args:
        functions: A `torch.nn.Sequential`, or a list of functions.
        segments: Number of segments, of equal length but for the last one.
        input: Argument of the first function.
        use_reentrant: As for `checkpoint`.
        **kwargs: `preserve_rng_state`, as for `checkpoint`.

    Raises:
        OptionError: For other arguments, or if there are fewer functions than segments.
    """
    reentrant = _reentrant(".checkpoint_sequential", use_reentrant)
    preserve = kwargs.pop("preserve_rng_state", True)
    _refuse_further(kwargs)
    children = getattr(functions, "children", None)
    steps = list(functions if children is None else children())
    if not 1 <= segments <= len(steps):
        raise OptionError(
            f"checkpoint_sequential() got {len(steps)} functions for {segments} segments",
            [site_fact(call_site())],
            hint="each segment has at least one function",
        )
    size = len(steps) // segments
    for start in range(0, size * (segments - 1), size):
        part = _chain(steps[start : start + size])
        input = checkpoint(part, input, use_reentrant=reentrant, preserve_rng_state=preserve)
    return _chain(steps[size * (segments - 1) :])(input)


def _chain(steps: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def run(input: Any) -> Any:
        for step in steps:
            input = step(input)
        return input

    return run
