"""One step of one stage: goes through a plan, whatever its schedule."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import kernbench.torch as torch
from kernbench.errors import OptionError, call_site, site_fact
from kernbench.parallel.config import ModelParallelConfig, NoSync
from kernbench.parallel.members import refuse_option
from kernbench.pp.bubble import MICROBATCH
from kernbench.pp.p2p_communication import P2PCommunicator, Shape
from kernbench.pp.plans import Action, Backward, Exchange, Forward, Message, Pass, Size
from kernbench.torch.profiler import record_function


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a stage is given for a step; see `schedules.ForwardBackward`.

    Attributes:
        forward_step_func: The user's function for a forward pass.
        data_iterators: One for each chunk.
        models: The chunks.
        set_inputs: By chunk, the model's `set_input_tensor`.
        config: Of the first chunk.
        size: Of the pipeline.
        stage: Of the calling rank.
        forward_only: Whether there are no backward passes.
        collect_non_loss_data: Whether `loss_func` is called for data.
        first_val_step: Whether evaluation has a first microbatch; None for always.
        received: Shape of activations that come from the previous stage.
        sent: Shape of activations that go to the next stage.
        context_ranks: Ranks that share a sequence.
        communicator: Of the pipeline; None if nothing is sent.
    """

    forward_step_func: Callable[..., Any]
    data_iterators: Sequence[Any]
    models: Sequence[Any]
    set_inputs: Sequence[Callable[[list[Any]], object]]
    config: ModelParallelConfig
    size: Size
    stage: int
    forward_only: bool
    collect_non_loss_data: bool
    first_val_step: bool | None
    received: Shape
    sent: Shape
    context_ranks: int
    communicator: P2PCommunicator | None


class _Freed(torch.autograd.Function):
    """One element that stands for an output which was sent: its graph, without its elements."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, gradient: list[torch.Tensor]) -> torch.Tensor:
        ctx.gradient = gradient
        return torch.empty(1, dtype=output.dtype, device=output.device)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        del grads
        return ctx.gradient.pop(), None


class _NoSync:
    """Contexts of `no_sync_func`: left for the last backward pass of a chunk, entered for others.

    Args:
        given: As in the configuration.
        chunks: How many pieces of the model the stage holds.
    """

    def __init__(self, given: NoSync | Sequence[NoSync] | None, chunks: int) -> None:
        shared = callable(given)
        functions: list[NoSync] = [given] if callable(given) else list(given or ())
        if functions and not shared and len(functions) != chunks:
            raise OptionError(
                f"no_sync_func has {len(functions)} functions for {chunks} model chunks",
                [site_fact(call_site())],
            )
        # A context that all chunks share belongs to chunk None.
        self._functions: Final[dict[int | None, NoSync]] = (
            {None: functions[0]} if shared else dict(enumerate(functions))
        )
        self._open: Final[dict[int | None, ExitStack]] = {}

    def enter(self) -> None:
        for key, function in self._functions.items():
            if key not in self._open:
                self._open[key] = ExitStack()
                self._open[key].enter_context(function())

    def before(self, chunk: int, last: bool) -> None:
        """Is told of the next backward pass, and whether it is the last of its chunk."""
        if None in self._functions and not last:
            self.enter()
        elif last:
            for key in (None, chunk):
                if key in self._open:
                    self._open.pop(key).close()

    def leave(self) -> None:
        with ExitStack() as every:
            for stack in self._open.values():
                every.push(stack)
            self._open.clear()


class Runner:
    """A stage on its way through its plan.

    Args:
        step: What it was given.
        plan: What it does, in order.

    Attributes:
        told: What the losses of the last stage returned besides the loss, by microbatch.
        tokens: How many tokens they counted; None if none of them did.
    """

    def __init__(self, step: Step, plan: Sequence[Action]) -> None:
        self.told: Final[list[Any]] = []
        self.tokens: torch.Tensor | None = None
        self._step: Final = step
        self._plan: Final = plan
        self._no_sync: Final = _NoSync(step.config.no_sync_func, step.size.chunks)
        # What passes take, what they leave for messages, and what backward passes need.
        self._taken: Final[dict[Pass, torch.Tensor]] = {}
        self._made: Final[dict[Pass, torch.Tensor]] = {}
        self._kept: Final[dict[Backward, tuple[Any, Any]]] = {}

    def run(self) -> None:
        """Does all actions of the plan.

        Raises:
            OptionError: If a function of the user returned something else than it must, or the data
                ended.
        """
        backwards = iter([each for each in self._plan if isinstance(each, Backward)])
        try:
            self._no_sync.enter()
            self._expect(backwards)
            for action in self._plan:
                if isinstance(action, Exchange):
                    self._exchange(action.messages)
                elif isinstance(action, Forward):
                    self._forward(action)
                else:
                    self._backward(action)
                    self._expect(backwards)
        finally:
            self._no_sync.leave()

    def _expect(self, backwards: Iterator[Backward]) -> None:
        following = next(backwards, None)
        if following is not None:
            last = following.microbatch == self._step.size.microbatches - 1
            self._no_sync.before(following.chunk, last)

    @contextmanager
    def _range(self, way: str, action: Pass) -> Iterator[None]:
        chunk = f" of chunk {action.chunk}" if self._step.size.chunks > 1 else ""
        with record_function(f"{MICROBATCH}{action.microbatch}"), record_function(f"{way}{chunk}"):
            yield

    # Passes

    def _forward(self, action: Forward) -> None:
        step, chunk = self._step, action.chunk
        model = step.models[chunk]
        given = self._taken.pop(action, None)
        if given is not None and not step.forward_only:
            given.requires_grad_()
        first = action.microbatch == 0
        if step.forward_only and step.first_val_step is not None:
            first = first and step.first_val_step
        if first and hasattr(model, "set_is_first_microbatch"):
            model.set_is_first_microbatch()
        with self._range("forward", action):
            step.set_inputs[chunk]([given])
            try:
                found = step.forward_step_func(step.data_iterators[chunk], model)
            except StopIteration:
                raise self._refuse(
                    f"the data iterator ended at microbatch {action.microbatch} of "
                    f"{step.size.microbatches}",
                    "an iterator must yield something for each microbatch of the step",
                    hint=f"num_microbatches={action.microbatch}, or more data",
                ) from None
            if not isinstance(found, tuple | list) or len(found) != 2:
                raise self._refuse(
                    f"forward_step_func returned a {type(found).__name__}",
                    "expected two values: the model's output and loss_func",
                )
            output, loss_func = found
            if self._is_last(chunk):
                output = self._loss(output, loss_func)
            else:
                self._check_output(output, action)
                self._made[action] = output
            if not step.forward_only:
                self._kept[Backward(chunk, action.microbatch)] = given, output

    def _is_last(self, chunk: int) -> bool:
        size = self._step.size
        return self._step.stage == size.stages - 1 and chunk == size.chunks - 1

    def _check_output(self, output: Any, action: Forward) -> None:
        step = self._step
        dtype, shape = step.config.pipeline_dtype, [*step.sent]
        if not isinstance(output, torch.Tensor):
            got = f"is a {type(output).__name__}"
        elif [*output.shape] != shape or output.dtype != dtype:
            got = f"is {output.dtype} {[*output.shape]}"
        else:
            return
        follower = (step.stage + 1) % step.size.stages
        typed = isinstance(output, torch.Tensor) and [*output.shape] == shape
        raise self._refuse(
            f"the output of microbatch {action.microbatch} {got}, but stage {follower} receives "
            f"{dtype} {shape}",
            "expected the shape [seq_length / context ranks (/ tensor ranks with "
            "sequence_parallel), micro_batch_size, config.hidden_size] in config.pipeline_dtype",
            hint=f"config.pipeline_dtype={output.dtype}, or output.to(config.pipeline_dtype)"
            if typed
            else "without interleaving adjust_tensor_shapes_fn may say other shapes",
        )

    def _loss(self, output: Any, loss_func: Callable[..., Any] | None) -> Any:
        """Returns what the backward pass begins at: the loss, divided by the microbatches."""
        step, number = self._step, self._step.size.microbatches
        if loss_func is None or step.collect_non_loss_data:
            told = output if loss_func is None else loss_func(output, non_loss_data=True)
            self.told.append(told)
            return output
        found = loss_func(output)
        if not isinstance(found, tuple | list) or len(found) not in {2, 3}:
            raise self._refuse(
                f"loss_func returned a {type(found).__name__}",
                "expected (loss, what to return) or (loss, number of tokens, what to return)",
            )
        loss, told = found[0], found[-1]
        known = isinstance(loss, torch.Tensor)
        if not step.forward_only and not (known and loss.numel() == 1):
            got = f"of shape {[*loss.shape]}" if known else f"that is a {type(loss).__name__}"
            raise self._refuse(f"loss_func returned a loss {got}", "expected a tensor of 1 element")
        self.told.append(told)
        if len(found) == 2:
            return loss * (step.context_ranks / number) if step.context_ranks > 1 else loss / number
        tokens = torch.as_tensor(found[1], device="cuda")
        self.tokens = tokens.detach() if self.tokens is None else self.tokens + tokens.detach()
        if step.config.calculate_per_token_loss:
            return loss
        return loss / torch.clamp(tokens, min=1) / number

    def _backward(self, action: Backward) -> None:
        given, output = self._kept.pop(action)
        gradient = self._taken.pop(action, None)
        scale = self._step.config.grad_scale_func
        with self._range("backward", action):
            if gradient is None and scale is not None:
                output = scale(output)
            if isinstance(output, _Handle):
                output.backward(gradient)
            elif output.requires_grad:
                torch.autograd.backward(output, gradient)
            if given is None:
                return
            if given.grad is None:
                raise self._refuse(
                    f"microbatch {action.microbatch} has no gradient for the previous stage",
                    "the output of the stage does not depend on what set_input_tensor was given",
                    hint="let forward of the model begin with the tensor of set_input_tensor",
                )
            self._made[action] = given.grad

    # Messages

    def _exchange(self, messages: Sequence[Message]) -> None:
        step = self._step
        assert step.communicator is not None
        sends = [each for each in messages if each.sender == step.stage]
        receives = [each for each in messages if each.sender != step.stage]
        with record_function("exchange"):
            came = step.communicator.communicate(
                [(self._made.pop(each.made_by), each.receiver) for each in sends],
                [(self._shape(each.taken_by), each.sender) for each in receives],
            )
        for each, tensor in zip(receives, came, strict=True):
            self._taken[each.taken_by] = tensor
        if step.config.deallocate_pipeline_outputs and not step.forward_only:
            for each in sends:
                if isinstance(each.made_by, Forward):
                    key = Backward(each.made_by.chunk, each.made_by.microbatch)
                    given, output = self._kept[key]
                    if output.requires_grad:
                        self._kept[key] = given, _Handle(output)

    def _shape(self, taken_by: Pass) -> Shape:
        return self._step.received if isinstance(taken_by, Forward) else self._step.sent

    def _refuse(self, text: str, *facts: str, hint: str = "") -> OptionError:
        step = self._step
        here = f"on stage {step.stage} of {step.size.stages}"
        return refuse_option(f"{text}, {here}", *facts, hint=hint)


class _Handle:
    """The graph of an output whose memory is free.

    Args:
        output: The output, of which nothing is kept but what the graph itself needs.
    """

    def __init__(self, output: torch.Tensor) -> None:
        self._gradient: Final[list[torch.Tensor]] = []
        self._end: Final[Any] = _Freed.apply(output, self._gradient)

    def backward(self, gradient: Any) -> None:
        self._gradient.append(gradient)
        self._end.backward(torch.empty_like(self._end))
