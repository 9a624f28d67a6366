"""Base of the optimisers: groups of parameters, state, and a step in kernels on lists."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kernbench.autograd.leaves import forget
from kernbench.errors import OperandError, OptionError, UnsupportedError, call_site, site_fact
from kernbench.memory import Array, DType
from kernbench.operations.copies import to
from kernbench.operations.creation import zeros_like
from kernbench.operations.fused import widened
from kernbench.optim.drift import Watch, note, number, watch
from kernbench.process.process import current_process
from kernbench.process.types import Device
from kernbench.tensors.nodes import recording
from kernbench.tensors.running import ListKernel, plain, run_on_lists
from kernbench.tensors.tensor import Tensor

Group = dict[str, Any]
_Bucket = tuple[Device, DType]


PARAMETERS: Final = "params"
"""Name of the list of parameters in the kernels of a step."""

GRADS: Final = "grads"
"""Name of the list of their gradients."""

CALLED: Final = "_opt_called"
"""Attribute of an optimizer whose steps are noted, with PyTorch's name: whether one was made."""

NOTED: Final = frozenset({CALLED, "step"})
"""Attributes that a scheduler gives to an optimizer."""


class Optimizer:
    """`torch.optim.Optimizer`: parameters in groups, with options and state.

    Subclasses name the tensors that they keep per parameter, the kernels of a step, and how it
    changes arrays. A step issues these kernels once for all parameters of a group that have one
    type and one device. It computes 16-bit floats in float32 and rounds once; the host waits only
    for options that are tensors, such as a learning rate.

    Args:
        params: Parameters, or groups of them: mappings with `params` and options of their own.
        defaults: Options of groups that do not have them.

    Attributes:
        param_groups: The groups.
        state: For each parameter, the kept tensors by name, and `step` as a number.

    Raises:
        OperandError: If `params` is a tensor, or a parameter is no tensor.
        OptionError: If there is no parameter, or one twice.
    """

    def __init__(self, params: Iterable[Any], defaults: Mapping[str, Any]) -> None:
        self.defaults: Final = dict(defaults)
        self.param_groups: list[Group] = []
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self._number: Final = number(current_process())
        self._watch: Watch | None = None
        if isinstance(params, Tensor):
            raise OperandError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, "
                f"but got {type(params).__name__}",
                [site_fact(call_site())],
            )
        given: list[Any] = list(params)
        if not given:
            raise OptionError("optimizer got an empty parameter list", [site_fact(call_site())])
        for group in given if isinstance(given[0], dict) else [{"params": given}]:
            self.add_param_group(group)

    def add_param_group(self, param_group: Group) -> None:
        """Adds a group.

        Raises:
            OperandError: If one of the parameters is no tensor.
            UnsupportedError: If a parameter is of complex numbers.
            OptionError: If a parameter is no leaf, or is in a group already.
        """
        params = param_group["params"]
        members = [params] if isinstance(params, Tensor) else list(params)
        known = {id(p) for group in self.param_groups for p in group["params"]}
        for member in members:
            if not isinstance(member, Tensor):
                raise OperandError(
                    f"optimizer can only optimize Tensors, but one of the params is "
                    f"{type(member).__name__}",
                    [site_fact(call_site())],
                )
            if member.window.dtype.is_complex:
                raise UnsupportedError(
                    f"an optimizer of parameters of {member.dtype} is not simulated",
                    [site_fact(call_site())],
                    hint="let the parts be parameters, and join them with torch.complex()",
                )
            if not member.is_leaf:
                raise OptionError("can't optimize a non-leaf Tensor", [site_fact(call_site())])
            if id(member) in known:
                raise OptionError(
                    "some parameters appear in more than one parameter group",
                    [site_fact(call_site())],
                )
            known.add(id(member))
        note(current_process(), members)
        self.param_groups.append({**self.defaults, **param_group, "params": members})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets the gradients of all parameters to None, or to 0."""
        forget((each for group in self.param_groups for each in group["params"]), set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters that have gradients; the host does not wait.

        If optimisers of the rank have shards of tensor-parallel layers, parameters that are none
        must stay alike on the ranks of the group, with data on. Looking costs no simulated time.

        Args:
            closure: Computes the loss once more; called first, with gradients recorded.

        Returns:
            The result of `closure`; None without one.

        Raises:
            WeightDriftError: If the step changes them differently (C21); when the kernel runs.
        """
        process = current_process()
        loss = None
        if closure is not None:
            with recording(process, True):
                loss = closure()
        if self._watch is None:
            # Another optimiser of the rank, made later, may have the shards.
            self._watch = watch(process, self._number)
        if any(
            each.device.index is not None for group in self.param_groups for each in group["params"]
        ):
            process.host.clock += process.calls.step
        with recording(process, False):
            for place, group in enumerate(self.param_groups):
                self._step_group(place, group)
        return loss

    def _step_group(self, place: int, group: Group) -> None:
        buckets: dict[_Bucket, list[tuple[Tensor, Tensor, list[Tensor], dict[str, Any]]]] = {}
        for parameter in group["params"]:
            grad = parameter.grad
            if grad is not None:
                state = self.state.setdefault(parameter, {})
                if not state:
                    self._begin(parameter)
                state["step"] = state.get("step", 0) + 1
                kept = [self._kept(parameter, grad, state, name) for name in self._names(group)]
                bucket = buckets.setdefault((parameter.device, parameter.dtype), [])
                bucket.append((parameter, grad, kept, state))
        for members in buckets.values():
            self._update(place, group, members)

    def _kept(self, parameter: Tensor, grad: Tensor, state: dict[str, Any], name: str) -> Tensor:
        found: Tensor | None = state.get(name)
        if found is None:
            found = state[name] = self._fresh(parameter, grad)
        return found

    def _begin(self, parameter: Tensor) -> None:
        """Is called before the first step of a parameter."""

    def _fresh(self, parameter: Tensor, grad: Tensor) -> Tensor:
        """Returns a new tensor to keep; the first step overwrites it if it is not zeros."""
        del grad
        return zeros_like(parameter)

    def _update(
        self,
        place: int,
        group: Group,
        members: Sequence[tuple[Tensor, Tensor, list[Tensor], dict[str, Any]]],
    ) -> None:
        # The kernel uses the options at the time of the call, whenever it runs.
        options = {name: plain(value) for name, value in group.items() if name != "params"}
        views = [
            (parameter.window, grad.window, [each.window for each in kept], state["step"])
            for parameter, grad, kept, state in members
        ]

        watched = None
        if self._watch is not None:
            watched = self._watch.step(place, members[0][0].dtype, group["params"])

        def effect() -> None:
            if watched is not None:
                watched.before()
            for target, source, kept, step in views:
                arrays = [widened(each) for each in kept]
                values, grad = widened(target), widened(source)
                if options.get("maximize"):
                    grad = -grad
                changed, *states = self._changed(values, grad, arrays, step, options)
                target.store(changed)
                for view, state in zip(kept, states, strict=True):
                    view.store(state)
            if watched is not None:
                watched.after()

        lists = {PARAMETERS: [each[0] for each in members], GRADS: [each[1] for each in members]}
        for at, name in enumerate(self._names(group)):
            lists[name] = [each[2][at] for each in members]
        first = all(step == 1 for _, _, _, step in views)
        run_on_lists(current_process(), self._kernels(options, first), lists, effect)

    def _kernels(self, options: Group, first: bool) -> Sequence[ListKernel]:
        """Returns the kernels of a step; for subclasses.

        Args:
            first: Whether it is the first step of all parameters.
        """
        raise NotImplementedError

    def _names(self, group: Group) -> Sequence[str]:
        """Returns the names of tensors kept per parameter, zeros at first; for subclasses."""
        raise NotImplementedError

    def _changed(
        self, values: Array, grad: Array, kept: list[Array], step: int, options: Group
    ) -> tuple[Array, ...]:
        """Returns new values of a parameter and of its kept tensors; for subclasses.

        Args:
            values: Elements of the parameter, float32 or wider.
            grad: Gradient of the parameter.
            kept: Kept tensors, in the order of `_names`.
            step: Number of the step, from 1.
        """
        raise NotImplementedError

    # State

    def state_bytes(self) -> int:
        """Returns the bytes of the state once every parameter has made a step."""
        return sum(
            len(self._names(group)) * parameter.numel() * parameter.dtype.itemsize
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        )

    def __getstate__(self) -> dict[str, Any]:
        # A scheduler notes the steps of this very optimizer, not of a copy or of what is saved.
        return {name: value for name, value in vars(self).items() if name not in NOTED}

    def state_dict(self) -> dict[str, Any]:
        """Returns state and groups, with parameters as numbers counted through the groups."""
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for parameter in group["params"]:
                numbers[id(parameter)] = len(numbers)
            members = [numbers[id(parameter)] for parameter in group["params"]]
            groups.append({**group, "params": members})
        state = {numbers[id(parameter)]: dict(entry) for parameter, entry in self.state.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over the result of `state_dict`; tensors are copied to their parameter's device.

        Raises:
            OptionError: If the number of groups, or the size of one, differs.
        """
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise OptionError(
                "loaded state dict has a different number of parameter groups",
                [site_fact(call_site())],
            )
        if any(
            len(theirs["params"]) != len(mine["params"])
            for theirs, mine in zip(groups, self.param_groups, strict=True)
        ):
            raise OptionError(
                "loaded state dict contains a parameter group that doesn't match the size of "
                "optimizer's group",
                [site_fact(call_site())],
            )
        by_number: dict[int, Tensor] = {}
        for theirs, mine in zip(groups, self.param_groups, strict=True):
            by_number |= dict(zip(theirs["params"], mine["params"], strict=True))
            mine |= {name: value for name, value in theirs.items() if name != "params"}
        self.state = defaultdict(dict)
        for key, entry in state_dict["state"].items():
            member = by_number[key]
            self.state[member] = {name: _taken(value, member) for name, value in entry.items()}

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for index, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {index}")
            lines += [f"    {name}: {group[name]}" for name in sorted(group) if name != "params"]
        return "\n".join([*lines, ")"])


def _taken(value: Any, parameter: Tensor) -> Any:
    """Returns a copy of a tensor on its parameter's device; any other value unchanged."""
    if isinstance(value, Tensor):
        return to(value, parameter.device, parameter.dtype, copy=True)
    return value
