"""Functions that users register on modules, and what calls them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kernbench.autograd.function import Function
from kernbench.errors import KernbenchError, OperandError, call_site, site_fact, warn_at_call
from kernbench.process.process import RankLocal, current_process
from kernbench.tensors.hooks import RemovableHandle, add_hook
from kernbench.tensors.nodes import grad_state_of
from kernbench.tensors.operands import type_name
from kernbench.tensors.tensor import Tensor

__all__ = [
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
]


class HookError(KernbenchError, RuntimeError):
    """A hook returned something that cannot be used."""


class Registered(NamedTuple):
    """A hook of the forward pass.

    Attributes:
        call: The hook.
        with_kwargs: Whether it takes the arguments by keyword, too.
        always: Whether it is also called after an error.
    """

    call: Callable[..., Any]
    with_kwargs: bool = False
    always: bool = False


@dataclass
class Hooks:
    """The hooks of a module, each kind by number, in the order of the calls.

    Attributes:
        forward_pre: Called before `forward`.
        forward: Called after it.
        backward_pre: Called with the gradients of the results.
        backward: Called with those of the arguments, too.
        state_pre: Called before `state_dict`.
        state_post: Called after it.
        load_pre: Called before `load_state_dict`.
        load_post: Called after it.
    """

    forward_pre: dict[int, Any] = field(default_factory=dict)
    forward: dict[int, Any] = field(default_factory=dict)
    backward_pre: dict[int, Any] = field(default_factory=dict)
    backward: dict[int, Any] = field(default_factory=dict)
    state_pre: dict[int, Any] = field(default_factory=dict)
    state_post: dict[int, Any] = field(default_factory=dict)
    load_pre: dict[int, Any] = field(default_factory=dict)
    load_post: dict[int, Any] = field(default_factory=dict)


_NO_INPUT: Final = (
    "Full backward hook is firing when gradients are computed with respect to module outputs since "
    "no inputs require gradients."
)

_SILENCED: Final = (
    "module forward hook with ``always_call=True`` raised an exception that was silenced as "
    "another error was raised in forward"
)

NO_HOOKS: Final = Hooks()
"""What a module without hooks has; nothing is ever added to it."""

_GLOBAL: Final[RankLocal[Hooks]] = RankLocal("hooks of all modules", lambda _: Hooks())

everywhere: Final[list[None]] = []
"""Has an entry once a rank has registered hooks of all its modules; calls look for them then."""


def register(hooks: dict[int, Any], hook: object, prepend: bool = False) -> RemovableHandle:
    """Adds a hook, and returns a handle that takes it away.

    Args:
        hooks: The hooks of its kind.
        prepend: Whether to call it before the hooks that are there.
    """
    if not prepend:
        return add_hook(hooks, hook)
    number = max(hooks, default=-1) + 1
    others = dict(hooks)
    hooks.clear()
    hooks[number] = hook
    hooks.update(others)
    return RemovableHandle(hooks, number)


def of_all_modules() -> Hooks:
    """Returns the calling rank's hooks of all modules, for a hook to be added."""
    if not everywhere:
        everywhere.append(None)
    return _GLOBAL.of(current_process())


class Hookable:
    """What takes hooks: the base of `Module`."""

    _hooks: Hooks = NO_HOOKS

    def _own_hooks(self) -> Hooks:
        """Returns the module's hooks, for one to be added."""
        found: Hooks = self.__dict__.setdefault("_hooks", Hooks())
        return found

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Calls a hook before the module is computed.

        Args:
            hook: Takes `(module, args)`; returns None, or other arguments.
            prepend: Whether to call it before the hooks that are there.
            with_kwargs: Whether it takes `(module, args, kwargs)`, and returns None or both.
        """
        entry = Registered(check_hook(hook), with_kwargs)
        return register(self._own_hooks().forward_pre, entry, prepend)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Calls a hook after the module was computed.

        Args:
            hook: Takes `(module, args, output)`; returns None, or another output.
            prepend: Whether to call it before the hooks that are there.
            with_kwargs: Whether it takes `(module, args, kwargs, output)`.
            always_call: Whether it is also called after an error, with None for the output.
        """
        entry = Registered(check_hook(hook), with_kwargs, always_call)
        return register(self._own_hooks().forward, entry, prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls a hook when the gradients of the module's results are there.

        Args:
            hook: Takes `(module, grad_output)`; returns None, or other gradients.
            prepend: Whether to call it before the hooks that are there.
        """
        return register(self._own_hooks().backward_pre, check_hook(hook), prepend)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls a hook when the gradients of the module's arguments are there.

        Args:
            hook: Takes `(module, grad_input, grad_output)`, gradients of the positional arguments
                and of the results; returns None, or other gradients of the arguments.
            prepend: Whether to call it before the hooks that are there.
        """
        return register(self._own_hooks().backward, check_hook(hook), prepend)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls a hook with `(module, prefix, keep_vars)` before `state_dict`."""
        return register(self._own_hooks().state_pre, check_hook(hook))

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls a hook with `(module, state_dict, prefix, local_metadata)` after `state_dict`.

        The hook changes `state_dict` in place.
        """
        return register(self._own_hooks().state_post, check_hook(hook))

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls a hook before `load_state_dict` copies anything.

        It takes `(module, state_dict, prefix, local_metadata, strict, missing_keys,
        unexpected_keys, error_msgs)` and may change `state_dict` in place and add texts to
        `error_msgs`. The lists of keys are empty: they are made afterwards.
        """
        return register(self._own_hooks().load_pre, check_hook(hook))

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls a hook with `(module, incompatible_keys)` after `load_state_dict`."""
        return register(self._own_hooks().load_post, check_hook(hook))


# Calls


def call_with_hooks(
    module: Any, own: Hooks, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Computes a module, and calls its hooks and those of all modules, as PyTorch does.

    Args:
        run: Computes it without hooks.
        args: Arguments of the call.

    Raises:
        HookError: If a hook returns something that cannot be used.
    """
    shared = _GLOBAL.of(current_process()) if everywhere else NO_HOOKS
    backward = [*shared.backward.values(), *own.backward.values()]
    before = [*shared.backward_pre.values(), *own.backward_pre.values()]
    watch = _Gradients(module, before, backward) if backward or before else None
    after, called = [*shared.forward.values(), *own.forward.values()], 0
    result = None
    try:
        for hook in [*shared.forward_pre.values(), *own.forward_pre.values()]:
            args, kwargs = _changed_arguments(hook, module, args, kwargs)
        if watch is not None:
            args = watch.through_inputs(args)
        result = run(*args, **kwargs)
        for hook in after:
            called += 1
            result = _changed_result(hook, module, args, kwargs, result)
    except Exception:
        for hook in after[called:]:
            if hook.always:
                try:
                    result = _changed_result(hook, module, args, kwargs, result)
                except Exception as error:
                    warn_at_call(f"{_SILENCED}: {error}")
        raise
    return result if watch is None else watch.through_outputs(result)


def _changed_arguments(
    hook: Registered, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not hook.with_kwargs:
        found = hook.call(module, args)
        if found is None:
            return args, kwargs
        return (found if isinstance(found, tuple) else (found,)), kwargs
    found = hook.call(module, args, kwargs)
    if found is None:
        return args, kwargs
    if not (isinstance(found, tuple) and len(found) == 2):
        raise HookError(
            "forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got "
            f"{type_name(found)}",
            [site_fact(call_site())],
        )
    changed: tuple[tuple[Any, ...], dict[str, Any]] = found
    return changed


def _changed_result(
    hook: Registered, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Any:
    given = (module, args, kwargs, result) if hook.with_kwargs else (module, args, result)
    found = hook.call(*given)
    return result if found is None else found


# The backward pass


class _Through(Function):
    """Passes tensors on, and their gradients through a function."""

    @staticmethod
    def forward(ctx: Any, seen: Callable[..., Any], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.seen = seen
        ctx.set_materialize_grads(False)
        return tuple([each.view_as(each) for each in tensors])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return (None, *ctx.seen(grads))


class _Gradients:
    """The gradients of one call of a module.

    Args:
        before: Hooks to call with the gradients of the results.
        hooks: Hooks to call with those of the arguments, too.
    """

    def __init__(
        self, module: Any, before: Sequence[Callable[..., Any]], hooks: Sequence[Callable[..., Any]]
    ) -> None:
        self._module = module
        self._before = before
        self._hooks = hooks
        self._places: list[int] = []
        self._count = 0
        self._of_results: tuple[Any, ...] | None = None

    @staticmethod
    def _passed(
        values: tuple[Any, ...], seen: Callable[..., Any]
    ) -> tuple[tuple[Any, ...], list[int]]:
        recorded = grad_state_of(current_process()).enabled
        places = [
            place
            for place, each in enumerate(values)
            if isinstance(each, Tensor) and recorded and each.requires_grad
        ]
        if not places:
            return values, places
        found = list(values)
        passed = _Through.apply(seen, *[values[place] for place in places])
        for place, each in zip(places, passed, strict=True):
            found[place] = each
        return tuple(found), places

    def through_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns arguments whose gradients are seen."""
        self._count = len(args)
        found, self._places = self._passed(args, self._at_inputs)
        return found

    def through_outputs(self, result: Any) -> Any:
        """Returns results whose gradients are seen."""
        alone = not isinstance(result, tuple)
        if alone and not isinstance(result, Tensor):
            warn_at_call(
                "For backward hooks to be called, module output should be a Tensor or a tuple of "
                f"Tensors but received {type(result)}"
            )
        values = (result,) if alone else result
        count = len(values)
        places: list[int] = []

        def seen(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            return self._at_outputs(_spread(grads, places, count), places)

        found, where = self._passed(values, seen)
        places += where
        return found[0] if alone else found

    def _at_outputs(self, grads: tuple[Any, ...], places: Sequence[int]) -> list[Any]:
        for hook in self._before:
            grads = _replaced(hook(self._module, grads), grads)
        self._of_results = grads
        if not self._places:
            nothing = (None,) * self._count
            warn_at_call(_NO_INPUT)
            for hook in self._hooks:
                if hook(self._module, nothing, grads) is not None:
                    raise HookError(
                        "Backward hook for Modules where no input requires gradient should always "
                        "return None or None for all gradients.",
                        [site_fact(call_site())],
                    )
        return [grads[place] for place in places]

    def _at_inputs(self, grads: Sequence[Tensor | None]) -> list[Any]:
        if self._of_results is None:  # the gradients have come past the results
            return list(grads)
        whole = _spread(grads, self._places, self._count)
        for hook in self._hooks:
            whole = _replaced(hook(self._module, whole, self._of_results), whole)
        self._of_results = None
        return [whole[place] for place in self._places]


def _spread(grads: Sequence[Any], places: Sequence[int], count: int) -> tuple[Any, ...]:
    found: list[Any] = [None] * count
    for place, grad in zip(places, grads, strict=True):
        found[place] = grad
    return tuple(found)


def _replaced(returned: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    if returned is None:
        return grads
    found = returned if isinstance(returned, tuple) else (returned,)
    if len(found) != len(grads):
        raise HookError(
            f"Backward hook returned an invalid number of grad_input, got {len(found)}, but "
            f"expected {len(grads)}",
            [site_fact(call_site())],
        )
    return found


# Of all modules


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls a hook with `(module, args)` before each module of the calling rank is computed."""
    return register(of_all_modules().forward_pre, Registered(check_hook(hook)))


def register_module_forward_hook(
    hook: Callable[..., Any], *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Calls a hook with `(module, args, output)` after each module of the calling rank.

    Args:
        hook: Returns None, or another output.
        with_kwargs: Whether it takes the arguments by keyword after `args`.
        always_call: Whether it is also called after an error.
    """
    entry = Registered(check_hook(hook), with_kwargs, always_call)
    return register(of_all_modules().forward, entry)


def register_module_full_backward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls a hook with `(module, grad_output)` in the backward pass of each module."""
    return register(of_all_modules().backward_pre, check_hook(hook))


def register_module_full_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls a hook with `(module, grad_input, grad_output)` in the backward pass of each module."""
    return register(of_all_modules().backward, check_hook(hook))


def check_hook(hook: Any) -> Any:
    """Returns a hook.

    Raises:
        OperandError: If it cannot be called.
    """
    if not callable(hook):
        raise OperandError(f"a hook is a function, got {type_name(hook)}", [site_fact(call_site())])
    return hook
