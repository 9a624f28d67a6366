"""Messages between neighbours of a pipeline, under Megatron-Core's names."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import OptionError, call_site, site_fact
from kernbench.parallel.config import ModelParallelConfig
from kernbench.parallel.members import Group, size_of

Shape: TypeAlias = Sequence[int]


class P2PCommunicator:
    """Sends to and receives from the neighbours of a stage; each method is one batch of messages.

    The host waits for none of them: what is issued next on the current stream waits for the whole
    batch. Batches of a rank run one after the other. At the ends of a pipeline the neighbour is the
    other end, as interleaved schedules need it; where `is_first_stage` or `is_last_stage` says that
    there is nobody, nothing is sent and None is received.

    Args:
        pp_group: The stages, in order.
        config: Says the type of what is received, `pipeline_dtype`.

    Attributes:
        pp_group: As given.
        config: As given.
        world_size: Number of stages.
        curr_rank: Stage of the calling rank.
        next_rank: Global rank of the next stage.
        prev_rank: Global rank of the previous one.

    Raises:
        GroupError: If the calling rank is not a stage (C8), or the group is destroyed (C18).
    """

    def __init__(self, pp_group: Group, config: ModelParallelConfig) -> None:
        self.pp_group: Final = pp_group
        self.config: Final = config
        self.world_size: Final = size_of(pp_group)
        self.curr_rank: Final = dist.get_rank(pp_group)
        ranks = dist.get_process_group_ranks(pp_group)
        self._next: Final = (self.curr_rank + 1) % self.world_size
        self._previous: Final = (self.curr_rank - 1) % self.world_size
        self.next_rank: Final = ranks[self._next]
        self.prev_rank: Final = ranks[self._previous]

    @property
    def is_pp_first_stage(self) -> bool:
        """Whether the calling rank is the first stage."""
        return self.curr_rank == 0

    @property
    def is_pp_last_stage(self) -> bool:
        """Whether the calling rank is the last stage."""
        return self.curr_rank == self.world_size - 1

    def communicate(
        self, sends: Sequence[tuple[torch.Tensor, int]], receives: Sequence[tuple[Shape, int]]
    ) -> list[torch.Tensor]:
        """Sends and receives tensors in one batch.

        Args:
            sends: Tensors, and to which stages; to one stage in the order in which it receives.
            receives: Shapes, and from which stages.

        Returns:
            What was received, in the order of `receives`.

        Raises:
            OptionError: If something is received and the configuration has no `pipeline_dtype`.
        """
        if not sends and not receives:
            return []
        dtype = self.config.pipeline_dtype
        if receives and dtype is None:
            raise OptionError(
                "pipeline_dtype must be provided if a stage receives",
                [site_fact(call_site()), f"stage {self.curr_rank} of {self.world_size}"],
                hint="ModelParallelConfig(pipeline_dtype=torch.bfloat16)",
            )
        found = [torch.empty(*shape, dtype=dtype, device="cuda") for shape, _ in receives]
        group = self.pp_group
        ops = [
            dist.P2POp(dist.isend, tensor.detach().contiguous(), group=group, group_peer=stage)
            for tensor, stage in sends
        ]
        ops += [
            dist.P2POp(dist.irecv, tensor, group=group, group_peer=stage)
            for tensor, (_, stage) in zip(found, receives, strict=True)
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return found

    def _exchange(
        self,
        *,
        to_next: torch.Tensor | None = None,
        to_previous: torch.Tensor | None = None,
        from_previous: Shape | None = None,
        from_next: Shape | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Returns what came from the previous and from the next stage."""
        sends = [(to_previous, self._previous), (to_next, self._next)]
        receives = [(from_previous, self._previous), (from_next, self._next)]
        came: list[Any] = self.communicate(
            [(tensor, stage) for tensor, stage in sends if tensor is not None],
            [(shape, stage) for shape, stage in receives if shape is not None],
        )
        previous = came.pop(0).requires_grad_() if from_previous is not None else None
        return previous, came.pop() if came else None

    def recv_forward(self, tensor_shapes: Shape, is_first_stage: bool) -> torch.Tensor | None:
        """Returns the activation of the previous stage, which requires a gradient.

        Args:
            tensor_shapes: Its shape.
            is_first_stage: Whether there is none.

        Raises:
            OptionError: As `communicate` does.
        """
        return self._exchange(from_previous=None if is_first_stage else tensor_shapes)[0]

    def recv_backward(self, tensor_shapes: Shape, is_last_stage: bool) -> torch.Tensor | None:
        """Returns the gradient of what was sent to the next stage.

        Args:
            tensor_shapes: Its shape.
            is_last_stage: Whether there is none.

        Raises:
            OptionError: As `communicate` does.
        """
        return self._exchange(from_next=None if is_last_stage else tensor_shapes)[1]

    def send_forward(self, output_tensors: torch.Tensor, is_last_stage: bool) -> None:
        """Sends an activation to the next stage.

        Args:
            output_tensors: The activation.
            is_last_stage: Whether there is no next stage.
        """
        self._exchange(to_next=None if is_last_stage else output_tensors)

    def send_backward(self, input_tensor_grads: torch.Tensor, is_first_stage: bool) -> None:
        """Sends the gradient of what came from the previous stage back to it.

        Args:
            input_tensor_grads: The gradient.
            is_first_stage: Whether there is no previous stage.
        """
        self._exchange(to_previous=None if is_first_stage else input_tensor_grads)

    def send_forward_recv_backward(
        self, output_tensors: torch.Tensor, tensor_shapes: Shape, is_last_stage: bool
    ) -> torch.Tensor | None:
        """Sends an activation to the next stage, and returns a gradient of an earlier one.

        Args:
            output_tensors: The activation.
            tensor_shapes: Shape of the gradient.
            is_last_stage: Whether there is no next stage.

        Raises:
            OptionError: As `communicate` does.
        """
        if is_last_stage:
            return None
        return self._exchange(to_next=output_tensors, from_next=tensor_shapes)[1]

    def send_backward_recv_forward(
        self, input_tensor_grads: torch.Tensor, tensor_shapes: Shape, is_first_stage: bool
    ) -> torch.Tensor | None:
        """Sends a gradient to the previous stage, and returns its next activation.

        Args:
            input_tensor_grads: The gradient.
            tensor_shapes: Shape of the activation.
            is_first_stage: Whether there is no previous stage.

        Raises:
            OptionError: As `communicate` does.
        """
        if is_first_stage:
            return None
        return self._exchange(to_previous=input_tensor_grads, from_previous=tensor_shapes)[0]

    def send_forward_recv_forward(
        self, output_tensor: torch.Tensor | None, recv_prev: bool, tensor_shape: Shape
    ) -> torch.Tensor | None:
        """Sends an activation to the next stage, and returns one of the previous stage.

        Args:
            output_tensor: The activation; None for none.
            recv_prev: Whether to receive one.

        Raises:
            OptionError: As `communicate` does.
        """
        shape = tensor_shape if recv_prev else None
        return self._exchange(to_next=output_tensor, from_previous=shape)[0]

    def send_backward_recv_backward(
        self, input_tensor_grad: torch.Tensor | None, recv_next: bool, tensor_shape: Shape
    ) -> torch.Tensor | None:
        """Sends a gradient to the previous stage, and returns one of the next stage.

        Args:
            input_tensor_grad: The gradient; None for none.
            recv_next: Whether to receive one.

        Raises:
            OptionError: As `communicate` does.
        """
        shape = tensor_shape if recv_next else None
        return self._exchange(to_previous=input_tensor_grad, from_next=shape)[1]

    def send_forward_backward_recv_forward_backward(
        self,
        output_tensor: torch.Tensor | None,
        input_tensor_grad: torch.Tensor | None,
        recv_prev: bool,
        recv_next: bool,
        tensor_shape: Shape,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Sends to both neighbours, and returns what they send.

        Args:
            output_tensor: Activation for the next stage; None for none.
            input_tensor_grad: Gradient for the previous stage; None for none.
            recv_prev: Whether to receive an activation of the previous stage.
            recv_next: Whether to receive a gradient of the next stage.
            tensor_shape: Shape of both.

        Returns:
            The activation and the gradient; None for what is not received.

        Raises:
            OptionError: As `communicate` does.
        """
        return self._exchange(
            to_next=output_tensor,
            to_previous=input_tensor_grad,
            from_previous=tensor_shape if recv_prev else None,
            from_next=tensor_shape if recv_next else None,
        )
