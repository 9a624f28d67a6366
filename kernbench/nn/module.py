"""`torch.nn`: modules and their parameters."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self, TypeVar

from kernbench.autograd.leaves import forget
from kernbench.errors import KernbenchError, OperandError, call_site, site_fact
from kernbench.memory import DType, dtypes
from kernbench.nn.hooks import (
    NO_HOOKS,
    Hookable,
    call_with_hooks,
    everywhere,
)
from kernbench.operations.creation import empty
from kernbench.process.process import current_process
from kernbench.process.types import DeviceLike
from kernbench.tensors.errors import TensorError
from kernbench.tensors.nodes import recording
from kernbench.tensors.operands import SYMPTOMS, hint_for, not_a_tensor, refusal, type_name
from kernbench.tensors.tensor import Tensor

__all__ = ["Module", "Parameter"]

_Entry = TypeVar("_Entry", bound=Tensor)


class Parameter(Tensor):
    """`torch.nn.Parameter`: a tensor that a module lists among its parameters.

    Args:
        data: Tensor whose memory the parameter shares; None for an empty tensor.
        requires_grad: Whether the parameter needs a gradient.

    Attributes:
        known_as: The longest name under which a module has listed the parameter, for reports; empty
            if none has.
    """

    known_as: str = ""

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        if data is None:
            data = empty(0)
        if not isinstance(data, Tensor):
            raise OperandError(
                f"a Parameter is made of a tensor; got {type(data).__name__}",
                [site_fact(call_site())],
            )
        super().__init__(data)
        self.requires_grad = requires_grad

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"

    __str__ = __repr__

    def __deepcopy__(self, memo: dict[int, Any]) -> "Parameter":
        copied = memo[id(self)] = Parameter(self.detach().clone(), self.requires_grad)
        return copied


class IncompatibleKeys(NamedTuple):
    """Names that `load_state_dict` missed in the state dict, and names that it did not expect."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module(Hookable):
    """`torch.nn.Module`: a tree of modules with parameters and buffers, found by attribute.

    Attributes:
        training: Whether the module is in training mode.
    """

    training: bool

    def __init__(self) -> None:
        # `__setattr__` is bypassed here, since it looks into these dicts.
        self.__dict__["training"] = True
        self.__dict__["_parameters"] = {}
        self.__dict__["_buffers"] = {}
        self.__dict__["_modules"] = {}
        self.__dict__["_transient"] = set()

    def _registries(self, what: str = "") -> "list[dict[str, Any]]":
        """Returns parameters, buffers and modules.

        Args:
            what: What is to be assigned, for the error; empty if nothing is.

        Raises:
            AttributeError: Before `Module.__init__()` was called.
        """
        try:
            return [self.__dict__[name] for name in ("_parameters", "_buffers", "_modules")]
        except KeyError:
            wish = f"cannot assign {what}" if what else "the module cannot be used"
            raise AttributeError(
                f"{wish} before Module.__init__() call: call super().__init__() first in "
                f"{type(self).__name__}.__init__"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter | Module):
            kind = "parameters" if isinstance(value, Parameter) else "module"
            parameters, buffers, modules = self._registries(kind)
            for other in (parameters, buffers, modules, self.__dict__):
                other.pop(name, None)
            (parameters if isinstance(value, Parameter) else modules)[name] = value
            return
        if "_modules" in self.__dict__:
            for registry in self._registries():
                if name in registry:
                    self._check_slot(name, value, registry)
                    registry[name] = value
                    return
        # As in PyTorch, plain values may be assigned before `Module.__init__()`.
        super().__setattr__(name, value)

    def _check_slot(self, name: str, value: Any, registry: dict[str, Any]) -> None:
        buffer = registry is self.__dict__["_buffers"]
        if value is not None and not (buffer and isinstance(value, Tensor)):
            raise OperandError(
                f"cannot assign {type(value).__name__} to {name!r} of {type(self).__name__}",
                [site_fact(call_site())],
                hint="assign a Parameter, a Module, a buffer's tensor, or None",
            )

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        for registry in ("_parameters", "_buffers", "_modules"):
            found = own.get(registry)
            if found and name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for registry in self._registries():
            if name in registry:
                del registry[name]
                return
        super().__delattr__(name)

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *(n for each in self._registries() for n in each)})

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Adds a parameter under a name; None keeps the name without a parameter.

        Raises:
            OperandError: If `param` is neither a parameter nor None.
        """
        if param is not None and not isinstance(param, Parameter):
            raise not_a_tensor(f"register_parameter(): {name!r}", "Parameter or None", param)
        self._registries("parameter")[0][name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Adds a tensor that is no parameter.

        Args:
            name: Name of the attribute.
            tensor: The buffer; None keeps the name without a buffer.
            persistent: Whether the state dict contains the buffer.

        Raises:
            OperandError: If `tensor` is neither a tensor nor None.
        """
        if tensor is not None and not isinstance(tensor, Tensor):
            raise not_a_tensor(f"register_buffer(): {name!r}", "Tensor or None", tensor)
        self._registries("buffer")[1][name] = tensor
        if not persistent:
            self.__dict__["_transient"].add(name)

    def register_module(self, name: str, module: "Module | None") -> None:
        """Adds a child under a name; None keeps the name without a child.

        Raises:
            OperandError: If `module` is neither a module nor None.
        """
        if module is not None and not isinstance(module, Module):
            raise OperandError(
                f"{type_name(module)} is not a Module subclass",
                [site_fact(call_site()), f"it was to be {name!r} of {type(self).__name__}"],
                hint="give an instance of a Module, not its class"
                if isinstance(module, type)
                else "",
            )
        self._registries("module")[2][name] = module

    add_module = register_module

    # The tree

    def named_modules(
        self,
        memo: "set[Module] | None" = None,
        prefix: str = "",
        remove_duplicate: bool = True,
    ) -> "Iterator[tuple[str, Module]]":
        """Yields the modules of the tree, this module first, with their dotted names.

        Args:
            memo: Modules to leave out; the call adds the modules that it yields. None for a new
                set.
            prefix: Name of this module, with which all names begin.
            remove_duplicate: Whether a module with several names is yielded once.
        """
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, child in self._registries()[2].items():
            if child is not None:
                place = f"{prefix}.{name}" if prefix else name
                yield from child.named_modules(memo, place, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> "Iterator[Module]":
        """Yields the modules of the tree, see `named_modules`."""
        found = self.named_modules(remove_duplicate=remove_duplicate)
        return (module for _, module in found)

    def named_children(self) -> "Iterator[tuple[str, Module]]":
        """Yields each child once, with its name."""
        seen: set[Module] = set()
        for name, child in self._registries()[2].items():
            if child is not None and child not in seen:
                seen.add(child)
                yield name, child

    def children(self) -> "Iterator[Module]":
        """Yields each child once."""
        return (child for _, child in self.named_children())

    def get_submodule(self, target: str) -> "Module":
        """Returns the module with a dotted name; this module for an empty name.

        Raises:
            AttributeError: If the tree has no such module.
        """
        module: Any = self
        for name in target.split(".") if target else ():
            module = getattr(module, name)
        if not isinstance(module, Module):
            raise AttributeError(f"{target!r} is not a module of {type(self).__name__}")
        return module

    def get_parameter(self, target: str) -> Parameter:
        """Returns the parameter with a dotted name.

        Raises:
            AttributeError: If the tree has no such parameter.
        """
        return self._entry(target, "parameter", Parameter)

    def get_buffer(self, target: str) -> Tensor:
        """Returns the buffer with a dotted name.

        Raises:
            AttributeError: If the tree has no such buffer.
        """
        return self._entry(target, "buffer", Tensor)

    def _entry(self, target: str, what: str, kind: type[_Entry]) -> _Entry:
        place, _, name = target.rpartition(".")
        found = self.get_submodule(place).__dict__[f"_{what}s"].get(name)
        if not isinstance(found, kind):
            raise AttributeError(f"{target!r} is not a {what} of {type(self).__name__}")
        return found

    def apply(self, fn: "Callable[[Module], Any]") -> Self:
        """Calls `fn` with each module, children first, and returns this module."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def _named(
        self, registry: str, prefix: str, recurse: bool, once: bool
    ) -> Iterator[tuple[str, Any]]:
        """Yields the tree's entries of one registry, each `once` or under each of its names."""
        seen: set[int] = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=once)
        for place, module in modules if recurse else [(prefix, self)]:
            module._registries()
            for name, value in module.__dict__[registry].items():
                if value is not None and id(value) not in seen:
                    if once:
                        seen.add(id(value))
                    yield (f"{place}.{name}" if place else name), value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yields the parameters with their dotted names.

        Args:
            prefix: Name of this module, with which all names begin.
            recurse: Whether to include the parameters of children.
            remove_duplicate: Whether a parameter with several names is yielded once.
        """
        for name, value in self._named("_parameters", prefix, recurse, remove_duplicate):
            if len(name) > len(value.known_as):
                value.known_as = name
            yield name, value

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yields each parameter once."""
        return (value for _, value in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yields the buffers with their dotted names.

        Args:
            prefix: Name of this module, with which all names begin.
            recurse: Whether to include the buffers of children.
            remove_duplicate: Whether a buffer with several names is yielded once.
        """
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yields each buffer once."""
        return (value for _, value in self.named_buffers(recurse=recurse))

    # State

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of the whole tree to training, or to evaluation, and returns the module."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Sets the mode of the whole tree to evaluation, and returns the module."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Sets `requires_grad` of all parameters, and returns the module."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets the gradients of all parameters to None, or to 0."""
        forget(self.parameters(), set_to_none)

    def _kept(self, prefix: str = "") -> dict[str, Tensor]:
        """Returns the content of a state dict, shared entries under each of their names."""
        kept = self._own(prefix)
        for name, child in self._registries()[2].items():
            if child is not None:
                kept |= child._kept(f"{prefix}{name}.")
        return kept

    def _own(self, prefix: str) -> dict[str, Tensor]:
        """Returns what a state dict has of this module without its children."""
        parameters, buffers, _ = self._registries()
        transient = self.__dict__["_transient"]
        own = {**parameters, **{n: value for n, value in buffers.items() if n not in transient}}
        return {prefix + name: value for name, value in own.items() if value is not None}

    def state_dict(
        self,
        *,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """Returns all parameters and persistent buffers by their dotted names.

        Args:
            destination: Dict to which the entries are added; None for a new dict.
            prefix: Text with which all names begin.
            keep_vars: Whether the values are the parameters themselves, rather than detached views.
        """
        found = {} if destination is None else destination
        for before in list(self._hooks.state_pre.values()):
            before(self, prefix, keep_vars)
        for name, value in self._own(prefix).items():
            found[name] = value if keep_vars else value.detach()
        for name, child in self._registries()[2].items():
            if child is not None:
                child.state_dict(destination=found, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for after in list(self._hooks.state_post.values()):
            after(self, found, prefix, {})
        return found

    def load_state_dict(
        self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copies values into parameters and buffers.

        Args:
            state_dict: Values by dotted name.
            strict: Whether missing and unexpected names are errors.
            assign: Whether to take over the tensors themselves, instead of copying their values;
                parameters keep their `requires_grad`.

        Returns:
            The missing and the unexpected names.

        Raises:
            OperandError: If `state_dict` is no mapping.
            TensorError: If a value is no tensor, if shapes differ, or, with `strict`, if names do.
        """
        if not isinstance(state_dict, Mapping):
            raise OperandError(
                f"Expected state_dict to be dict-like, got {type_name(state_dict)}",
                [site_fact(call_site())],
            )
        state_dict = dict(state_dict)
        problems: list[str] = []
        for prefix, module in self._tree():
            for hook in list(module._hooks.load_pre.values()):
                hook(module, state_dict, prefix, {}, True, [], [], problems)
        own = self._kept()
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in own]
        foreign = [name for name in own if not isinstance(state_dict.get(name, own[name]), Tensor)]
        problems += [
            f"{name} must be Tensor, not {type_name(state_dict[name])}" for name in foreign
        ]
        problems += [
            f"size mismatch for {name}: copying a param with shape {state_dict[name].shape} from "
            f"checkpoint, the shape in current model is {value.shape}."
            for name, value in own.items()
            if name in state_dict and name not in foreign and state_dict[name].shape != value.shape
        ]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if strict and names:
                shown = ", ".join(f'"{name}"' for name in names)
                problems.append(f"{what} key(s) in state_dict: {shown}.")
        if problems:
            raise TensorError(
                f"Error(s) in loading state_dict for {type(self).__name__}",
                [site_fact(call_site()), *problems],
                hint=hint_for(state_dict[foreign[0]]) if foreign else "",
            )
        with recording(current_process(), False):
            for name, value in own.items():
                if name in state_dict and not assign:
                    value.copy_(state_dict[name])
        if assign:
            self._assign({name: state_dict[name] for name in own if name in state_dict})
        keys = IncompatibleKeys(missing, unexpected)
        for _, module in reversed(list(self._tree())):
            for hook in list(module._hooks.load_post.values()):
                hook(module, keys)
        return keys

    def _tree(self, prefix: str = "") -> "Iterator[tuple[str, Module]]":
        """Yields each module of the tree, with the text that the names in it begin with."""
        yield prefix, self
        for name, child in self._registries()[2].items():
            if child is not None:
                yield from child._tree(f"{prefix}{name}.")

    def _assign(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            place, _, last = name.rpartition(".")
            module = self.get_submodule(place)
            old = getattr(module, last)
            if isinstance(old, Parameter):
                given = tensor if isinstance(tensor, Parameter) else Parameter(tensor, False)
                setattr(module, last, given.requires_grad_(old.requires_grad))
            else:
                setattr(module, last, tensor)

    def _apply(self, convert: Callable[[Tensor], Tensor]) -> Self:
        """Converts parameters, which stay the same objects, and buffers."""
        for module in self.modules():
            for parameter in module.parameters(recurse=False):
                grad = parameter.grad
                parameter.data = convert(parameter.data)
                if grad is not None:
                    parameter.grad = convert(grad)
            buffers = module.__dict__["_buffers"]
            for name, buffer in buffers.items():
                if buffer is not None:
                    buffers[name] = convert(buffer)
        return self

    def to(
        self,
        *args: DeviceLike | DType | Tensor | bool | None,
        dtype: DType | None = None,
        device: DeviceLike | None = None,
        non_blocking: bool = False,
    ) -> Self:
        """Moves and converts parameters and buffers, as `torch.nn.Module.to`; returns the module.

        Args:
            *args: Device, dtype or both, in this order; or a tensor whose device and dtype are
                taken.
            dtype: Type to convert to; only floating-point parameters and buffers are converted.
            device: Device to move to.
            non_blocking: Whether copies may go on while the host continues.
        """
        kinds = [arg.dtype if isinstance(arg, Tensor) else arg for arg in args]
        wanted = next((kind for kind in kinds if isinstance(kind, DType)), dtype)
        rest = [arg.device if isinstance(arg, Tensor) else arg for arg in args]
        places = [arg for arg in rest if not isinstance(arg, DType)]

        def convert(tensor: Tensor) -> Tensor:
            kind = wanted if tensor.is_floating_point() else None
            return tensor.to(*places, dtype=kind, device=device, non_blocking=non_blocking)

        return self._apply(convert)

    def cuda(self, device: DeviceLike | None = None) -> Self:
        """Moves parameters and buffers to a device, by default the current one."""
        return self.to("cuda" if device is None else device)

    def cpu(self) -> Self:
        """Moves parameters and buffers to the host."""
        return self.to("cpu")

    def float(self) -> Self:
        """Converts floating-point parameters and buffers to float32."""
        return self.to(dtypes.float32)

    def double(self) -> Self:
        """Converts floating-point parameters and buffers to float64."""
        return self.to(dtypes.float64)

    def half(self) -> Self:
        """Converts floating-point parameters and buffers to float16."""
        return self.to(dtypes.float16)

    def bfloat16(self) -> Self:
        """Converts floating-point parameters and buffers to bfloat16."""
        return self.to(dtypes.bfloat16)

    # Calling

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the module; for subclasses to define."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the module."""
        hooks = self._hooks
        try:
            if hooks is NO_HOOKS and not everywhere:
                return self.forward(*args, **kwargs)
            return call_with_hooks(self, hooks, self.forward, args, kwargs)
        except SYMPTOMS as error:
            wrong = None
            # An error of the user's own code is passed on as it is.
            if str(getattr(self.forward, "__module__", "")).startswith("kernbench."):
                wrong = refusal(self.forward, args, kwargs, error)
            if wrong is None:
                raise
            raise wrong from (None if isinstance(error, KernbenchError) else error)

    def extra_repr(self) -> str:
        """Returns the text that `repr` shows about this module; for subclasses to define."""
        return ""

    def _shown_children(self) -> Iterator[tuple[str, str]]:
        """Yields name and text of each child, for `repr`."""
        return ((name, repr(child)) for name, child in self._registries()[2].items())

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = [
            f"({name}): " + text.replace("\n", "\n  ") for name, text in self._shown_children()
        ]
        if not lines and "\n" not in extra:
            return f"{type(self).__name__}({extra})"
        body = "\n  ".join([*extra.splitlines(), *lines])
        return f"{type(self).__name__}(\n  {body}\n)"
