"""`torch.nn.parallel`: the same module on several ranks, each with its own part of the batch."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

from kernbench.autograd.function import Function
from kernbench.autograd.leaves import is_leaf
from kernbench.data_parallel.reducer import FIRST_BUCKET_BYTES, MIB, Reducer
from kernbench.data_parallel.replicas import (
    IGNORED,
    NAME,
    DataParallelError,
    broadcast_together,
    check_alike,
    check_ignored,
    check_parts,
)
from kernbench.distributed.device_mesh import DeviceMesh
from kernbench.distributed.groups import (
    Group,
    backend_of,
    check_device_id,
    find_group,
    home_of,
    libraries_of,
)
from kernbench.errors import OperandError, OptionError, UnsupportedError, call_site, site_fact
from kernbench.nn.module import Module
from kernbench.process.process import Process, current_process
from kernbench.process.types import CPU, Device, DeviceLike
from kernbench.ranks.groups import ProcessGroup
from kernbench.tensors.errors import refuse
from kernbench.tensors.nodes import grad_state_of
from kernbench.tensors.running import cuda_device
from kernbench.tensors.tensor import Tensor

__all__ = ["DistributedDataParallel"]

_DEFAULT_BUCKET_MIB = 25


class _DDPSink(Function):
    """Joins the outputs of a forward pass, so that a backward pass from one visits what all need.

    Parameters behind outputs that are not in the loss are then known to get no gradient.
    """

    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        # Copies, as in PyTorch: the module's own tensors keep their history.
        return tuple([output.clone() for output in outputs])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        del ctx
        return grads


class DistributedDataParallel(Module):
    """`torch.nn.parallel.DistributedDataParallel`: averages gradients over a group in `backward`.

    The constructor checks that all ranks have the same parameters, for which the host waits, and
    gives all ranks the values of the group's first rank. The first backward pass after a call
    averages the gradients, in buckets: an all-reduce begins on the communication stream of the
    group as soon as a bucket is full. At the end of `backward` the current stream waits for the
    all-reduces; the host waits for nothing. Buckets go from the last parameter to the first in
    every step; PyTorch finds the order in the first step, which it runs with one bucket.

    Parameters of which ranks of the group hold different parts on purpose are refused: shards of
    tensor-parallel layers and experts, by the marks of Megatron-Core.
    `_set_params_and_buffers_to_ignore_for_model` takes parameters and buffers out.

    Args:
        module: Module on the calling rank's device; some of its parameters must need a gradient.
        device_ids: None, or a list of the calling rank's device: inputs are then moved to it.
        output_device: None or the calling rank's device.
        dim: Must be 0.
        broadcast_buffers: Whether the constructor and each call give all ranks the buffers of the
            first rank; None for True. PyTorch 2.13 deprecates it for `forward_sync_buffers`.
        init_sync: Whether the constructor checks parameters and makes them the same.
        process_group: Group over which to average; None for all ranks. For a model that is split
            over a tensor-parallel group, pass the data-parallel group.
        bucket_cap_mb: Size in MiB at which a bucket is full. None: 1 for the first bucket, 25 for
            others.
        find_unused_parameters: Whether a call looks for parameters that its result does not depend
            on, and copies the tensors in its result so that those not in the loss are found too.
            Gradients that do not come count as 0; a parameter that got none on any rank since the
            last averages keeps what it has.
        check_reduction: Must be False.
        gradient_as_bucket_view: Whether gradients lie in the buckets, which saves a copy.
        static_graph: Must be False.
        delay_all_reduce_named_params: Must be None.
        param_to_hook_all_reduce: Must be None.
        mixed_precision: Must be None.
        device_mesh: A mesh of one dimension, instead of a group.
        skip_all_reduce_unused_params: Must be False.
        bucket_cap_mb_list: Must be None.
        batched_grad_copy: Must be False.
        forward_sync_buffers: Whether each call gives all ranks the buffers of the first rank; the
            constructor then does so in any case. Takes precedence over `broadcast_buffers`.

    Attributes:
        module: The wrapped module.
        process_group: Group over which gradients are averaged.
        require_backward_grad_sync: Whether the backward pass of the next call averages gradients.

    Raises:
        DataParallelError: If ranks have different parameters, or different parts of one; if no
            parameter needs a gradient, or one is not on the rank's device (all may be on the host,
            if the group's backend has a library for it); if a parameter to ignore belongs to the
            module itself.
        GroupError: If the group cannot be used (C8, C18).
        OperandError: If `module` is no module.
        OptionError: If `device_ids` is longer than 1, or is given for parameters on the host, or
            both a group and a mesh are given.
        UnsupportedError: For other values of arguments that are not simulated.
    """

    module: Module

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[DeviceLike] | None = None,
        output_device: DeviceLike | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Group = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: DeviceMesh | None = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Any = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
    ) -> None:
        super().__init__()
        refuse(
            NAME,
            dim=dim or None,
            check_reduction=check_reduction or None,
            static_graph=static_graph or None,
            delay_all_reduce_named_params=delay_all_reduce_named_params,
            param_to_hook_all_reduce=param_to_hook_all_reduce,
            mixed_precision=mixed_precision,
            skip_all_reduce_unused_params=skip_all_reduce_unused_params or None,
            bucket_cap_mb_list=bucket_cap_mb_list,
            batched_grad_copy=batched_grad_copy or None,
        )
        if not isinstance(module, Module):
            raise OperandError(
                f"{NAME} wraps a Module; got {type(module).__name__}", [site_fact(call_site())]
            )
        process = current_process()
        group = find_group(process, _chosen(process_group, device_mesh), NAME)
        ignored = frozenset(getattr(module, IGNORED, ()))
        parameters = [pair for pair in module.named_parameters() if pair[0] not in ignored]
        buffers = [pair for pair in module.named_buffers() if pair[0] not in ignored]
        named = [pair for pair in parameters if pair[1].requires_grad]
        check_ignored(module, ignored)
        check_parts(process, group, parameters)
        home = _home(process, group, named, device_ids, output_device)
        self.module = module
        self.process_group = group
        self.device = home
        self.device_ids = device_ids
        self.output_device = output_device
        self.dim = dim
        shared = broadcast_buffers is not False
        self.forward_sync_buffers = shared if forward_sync_buffers is None else forward_sync_buffers
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.parameters_to_ignore = ignored
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        if init_sync:
            check_alike(process, group, [*parameters, *buffers], home)
            only_parameters = forward_sync_buffers is None and not shared
            everything = parameters if only_parameters else [*parameters, *buffers]
            broadcast_together(process, group, [tensor for _, tensor in everything])
        self.reducer = Reducer(
            process,
            group,
            named,
            _limits(bucket_cap_mb),
            find_unused=find_unused_parameters,
            as_views=gradient_as_bucket_view,
        )

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Calls the module.

        Raises:
            DataParallelError: If the backward pass before has left parameters without a gradient.
        """
        process = current_process()
        averaging = grad_state_of(process).enabled and self.require_backward_grad_sync
        if averaging:
            self.reducer.check_finished()
        if self.require_forward_param_sync and self.forward_sync_buffers:
            broadcast_together(process, self.process_group, self._shared_buffers())
        if self.device_ids:
            inputs, kwargs = _mapped(inputs, self._moved), _mapped(kwargs, self._moved)
        output = self.module(*inputs, **kwargs)
        self.require_forward_param_sync = averaging
        if averaging:
            self.reducer.expect(_tensors_in(output))
        return _joined(output) if self.find_unused_parameters else output

    @property
    def broadcast_buffers(self) -> bool:
        """Old name of `forward_sync_buffers`."""
        return self.forward_sync_buffers

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Makes calls in a `with` block add gradients up without averaging them.

        The backward pass of the first call after the block averages the sums.
        """
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Not simulated.

        Raises:
            UnsupportedError: Always.
        """
        del state, hook
        raise UnsupportedError(f"{NAME}.register_comm_hook is not simulated", [_here()])

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> None:
        """Not simulated: all ranks must run the same number of steps.

        Args:
            divide_by_initial_world_size: Not used.
            enable: Not used.
            throw_on_early_termination: Not used.

        Raises:
            UnsupportedError: Always.
        """
        del divide_by_initial_world_size, enable, throw_on_early_termination
        raise UnsupportedError(f"{NAME}.join is not simulated", [_here()])

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(
        module: Module, params_and_buffers_to_ignore: Iterable[str]
    ) -> None:
        """Makes a wrapper of `module`, made later, leave tensors alone.

        Args:
            module: What will be wrapped.
            params_and_buffers_to_ignore: Names as in `named_parameters` and `named_buffers`.
        """
        setattr(module, IGNORED, list(params_and_buffers_to_ignore))

    def _shared_buffers(self) -> list[Tensor]:
        ignored = self.parameters_to_ignore
        return [each for name, each in self.module.named_buffers() if name not in ignored]

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns a value with its tensors, also in lists, tuples and dicts, changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(each, change) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(_mapped(each, change) for each in value)
    if type(value) in {dict, OrderedDict}:
        return type(value)((key, _mapped(entry, change)) for key, entry in value.items())
    return value


def _joined(output: Any) -> Any:
    """Returns the output of a forward pass, its tensors that have a history joined by a sink."""
    found: list[Tensor] = []

    def noted(tensor: Tensor) -> Tensor:
        if not is_leaf(tensor):
            found.append(tensor)
        return tensor

    _mapped(output, noted)
    if not found:
        return output
    joined = iter(_DDPSink.apply(*found))
    return _mapped(output, lambda tensor: tensor if is_leaf(tensor) else next(joined))


def _here() -> str:
    return site_fact(call_site())


def _chosen(group: Group, mesh: DeviceMesh | None) -> Group:
    if mesh is None:
        return group
    if group is not None or mesh.ndim != 1:
        got = "both" if group is not None else f"one of {mesh.ndim} dimensions"
        raise OptionError(
            f"{NAME} takes a process_group or a device_mesh of one dimension; got {got}",
            [_here()],
            hint="pass process_group=mesh.get_group(name) for one dimension of a mesh",
        )
    return mesh.get_group(0)


def _limits(bucket_cap_mb: float | None) -> list[int]:
    if bucket_cap_mb is None:
        return [FIRST_BUCKET_BYTES, _DEFAULT_BUCKET_MIB * MIB]
    return [int(bucket_cap_mb * MIB)]


def _home(
    process: Process,
    group: ProcessGroup,
    named: "Sequence[tuple[str, Tensor]]",
    device_ids: Sequence[DeviceLike] | None,
    output_device: DeviceLike | None,
) -> Device:
    """Returns the device of the parameters, after a check that the group can average them there."""
    if not named:
        raise DataParallelError(
            f"no parameter of the module given to {NAME} requires a gradient",
            [_here()],
            hint="a module without parameters to train needs no DistributedDataParallel",
        )
    if device_ids is not None and len(device_ids) > 1:
        raise OptionError(
            f"{NAME}(device_ids=) can only be None or contain a single element; "
            f"got {list(device_ids)}",
            [_here()],
        )
    for device in (*(device_ids or ()), output_device):
        check_device_id(NAME, process, device)
    home = cuda_device(home_of(process))
    on_host = all(parameter.is_cpu for _, parameter in named)
    if on_host and "cpu" in libraries_of(backend_of(process, group)):
        if device_ids or output_device is not None:
            raise OptionError(
                f"{NAME} device_ids and output_device arguments only work with single-device "
                f"modules on a device, but got device_ids {device_ids}, output_device "
                f"{output_device}, and all parameters on cpu",
                [_here()],
                hint="call module.cuda() first, or leave both out to train on the host",
            )
        return CPU
    for name, parameter in named:
        if parameter.device != home:
            raise DataParallelError(
                f"{NAME} on rank {process.rank}: parameter {name} is on {parameter.device}",
                [_here(), f"expected {home}, the rank's device"],
                hint="call module.cuda() first",
            )
    return home


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _tensors_in(entry)
    elif isinstance(value, list | tuple | set):
        for entry in value:
            yield from _tensors_in(entry)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _tensors_in(getattr(value, field.name))
