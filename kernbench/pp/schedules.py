"""Steps of a pipeline under the names of Megatron-Core's `pipeline_parallel.schedules`."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

import kernbench.torch as torch
from kernbench import extend
from kernbench.errors import OptionError, UnsupportedError, call_site, site_fact
from kernbench.parallel import parallel_state
from kernbench.parallel.config import ModelParallelConfig
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.parallel.members import Group, refuse_option, size_of
from kernbench.pp import plans
from kernbench.pp.p2p_communication import P2PCommunicator, Shape
from kernbench.pp.plans import Schedule, Size
from kernbench.pp.runner import Runner, Step

ScheduleName = Literal["gpipe", "1f1b", "interleaved"]

_NOT_SIMULATED: Final = {
    "variable_seq_lengths": "give every microbatch the same shape",
    "overlap_p2p_comm": "messages are sent in batches",
    "overlap_p2p_comm_warmup_flush": "messages are sent in batches",
    "use_ring_exchange_p2p": "messages are sent in batches",
    "batch_p2p_comm": "messages are sent in batches; leave it out, or set it to True",
    "batch_p2p_sync": "the host waits for no message; call torch.cuda.synchronize after the step",
    "pipeline_model_parallel_comm_backend": "leave it out: stages send through their group",
    "hybrid_context_parallel": "give every microbatch the same shape",
    "enable_autocast": "use torch.autocast in forward_step_func",
    "timers": "a breakdown by range has the time of every pass",
    "grad_sync_func": "finalize_model_grads_func reduces gradients",
    "param_sync_func": "gather parameters before the step",
    "num_microbatches_with_partial_activation_checkpoints": "checkpoint in forward_step_func",
    "overlap_moe_expert_parallel_comm": "leave it out",
    "delay_wgrad_compute": "leave it out",
    "fine_grained_activation_offloading": "leave it out",
    "cpu_offloading": "leave it out",
    "mtp_num_layers": "leave it out",
    "enable_cuda_graph": "leave it out",
    "external_cuda_graph": "leave it out",
    "cuda_graph_impl": "leave it out",
}
"""Fields of Megatron-Core's configurations that its schedules look at, and what to do instead."""

_SIMULATED: Final = {
    "batch_p2p_comm": True,
    "pipeline_model_parallel_comm_backend": "nccl",
    "cuda_graph_impl": "none",
}
"""Values of these fields that are simulated; of the others it is False. None always is."""


class _Place(NamedTuple):
    """Where the calling rank stands.

    Attributes:
        pipeline: The stages.
        tensor_ranks: Ranks that share a layer.
        context_ranks: Ranks that share a sequence.
        virtual: Pieces of the model per stage, if `parallel_state` says so.
    """

    pipeline: Group
    tensor_ranks: int
    context_ranks: int
    virtual: int | None


class ForwardBackward:
    """One schedule; calling it does a step: all passes of all microbatches.

    Microbatches are ranges of the profiler, `microbatch 3`, with the ranges `forward` and
    `backward` inside, of several chunks `forward of chunk 1`; messages are in the range `exchange`.
    What a backward pass issues belongs to the ranges of its forward pass (ADR 0016).

    Args:
        name: Megatron-Core's name of the function.
        schedule: With backward passes.
        chunked: Whether the model is a list of chunks.
        alone: Whether it is for one stage.
    """

    def __init__(self, name: str, schedule: Schedule, *, chunked: bool, alone: bool) -> None:
        self.__name__ = self.__qualname__ = name
        self._schedule: Final = schedule
        self._chunked: Final = chunked
        self._alone: Final = alone

    def __repr__(self) -> str:
        return f"<function {self.__name__}>"

    def __call__(
        self,
        *,
        forward_step_func: Callable[..., Any],
        data_iterator: Any,
        model: Any,
        num_microbatches: int,
        seq_length: int,
        micro_batch_size: int,
        decoder_seq_length: int | None = None,
        forward_only: bool = False,
        collect_non_loss_data: bool = False,
        first_val_step: bool | None = None,
        adjust_tensor_shapes_fn: Callable[..., Any] | None = None,
        p2p_communicator: P2PCommunicator | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        force_all_reduce: bool | None = False,
    ) -> list[Any]:
        """Does a step on the calling stage; all stages of the pipeline call it alike.

        The configuration is `model.config`, of the first chunk. The host waits for nothing.

        Args:
            forward_step_func: `(data_iterator, model) -> (output, loss_func)`: a forward pass of a
                chunk. On the last piece of the model `loss_func(output)` returns `(loss, told)` or
                `(loss, number of tokens, told)`; a loss is divided by the microbatches and, with a
                number of tokens, by it, else multiplied by the ranks that share a sequence.
            data_iterator: What `forward_step_func` is given; with chunks a list, one for each.
            model: The stage's part of the model, or a list of its chunks. `set_input_tensor` is
                called with a list of one tensor before each forward pass, `[None]` at the first
                piece of the model.
            num_microbatches: How many forward passes a chunk does; with chunks, a multiple of the
                stages.
            seq_length: Tokens of a sequence, of which context-parallel ranks have a part each.
            micro_batch_size: Sequences of a microbatch.
            decoder_seq_length: None, or the same as `seq_length`.
            forward_only: Whether to leave out the backward passes.
            collect_non_loss_data: Whether to call `loss_func(output, non_loss_data=True)` and
                return what it returns; with `forward_only`.
            first_val_step: Whether, with `forward_only`, `set_is_first_microbatch` of a model is
                called at all before the first microbatch; None for yes.
            adjust_tensor_shapes_fn: `(received, sent) -> (received, sent)` of lists of one shape:
                what this stage receives and sends, in place of `[seq_length, micro_batch_size,
                config.hidden_size]` cut by context and, with `sequence_parallel`, tensor ranks.
                Without chunks only; not called where nothing is sent.
            p2p_communicator: Sends the messages; only with `pg_collection`.
            pg_collection: The groups `pp`, `tp` and `cp`, of which the last two may be None for one
                rank; by default those of `parallel_state`.
            force_all_reduce: Given to `config.finalize_model_grads_func`, if it is true.

        Returns:
            On the last stage what `loss_func` returned last, by microbatch; elsewhere an empty
            list. `kernbench.parallel.stages.broadcast_from_last_stage` tells it to all.

        Raises:
            OptionError: If a number, the model, its configuration or what a function of the user
                returned does not fit; numbers and models are refused before anything is sent.
            UnsupportedError: If the configuration asks for what is not simulated.
            GroupMismatchError: If stages call it with different numbers (C9).
            ParallelStateError: If there are no groups.
        """
        models = self._as_list("model", model)
        iterators = self._as_list("data_iterator", data_iterator)
        if len(iterators) != len(models):
            raise self._refuse(f"{len(iterators)} data iterators for {len(models)} model chunks")
        config: Any = _attribute(models[0], "config")
        place = self._place(p2p_communicator, pg_collection)
        pipeline = place.pipeline
        size = Size(size_of(pipeline), len(models), num_microbatches)
        self._check(size, config, place.virtual)
        _check_simulated(config, size, seq_length, decoder_seq_length)
        _check_models(models)
        if collect_non_loss_data and not forward_only:
            raise self._refuse(
                "collect_non_loss_data leaves no loss to go back from", hint="forward_only=True"
            )
        communicator = None
        received: Shape = []
        sent: Shape = []
        if size.stages > 1:
            received = sent = self._shape(config, place, seq_length, micro_batch_size)
            extend.agree(
                self.__name__,
                {
                    "num_microbatches": num_microbatches,
                    "seq_length": seq_length,
                    "micro_batch_size": micro_batch_size,
                    "hidden_size": getattr(config, "hidden_size", None),
                    "pipeline_dtype": config.pipeline_dtype,
                    "model chunks": size.chunks,
                    "forward_only": forward_only,
                },
                pipeline,
            )
            if adjust_tensor_shapes_fn is not None:
                received, sent = self._adjusted(adjust_tensor_shapes_fn, received)
            communicator = p2p_communicator or P2PCommunicator(pipeline, config)
        step = Step(
            forward_step_func=forward_step_func,
            data_iterators=iterators,
            models=models,
            set_inputs=[_attribute(each, "set_input_tensor") for each in models],
            config=config,
            size=size,
            stage=pipeline.rank(),
            forward_only=forward_only,
            collect_non_loss_data=collect_non_loss_data,
            first_val_step=first_val_step,
            received=received,
            sent=sent,
            context_ranks=place.context_ranks,
            communicator=communicator,
        )
        schedule = plans.forward_only if forward_only else self._schedule
        runner = Runner(step, plans.plan(schedule, step.stage, size))
        runner.run()
        if config.finalize_model_grads_func is not None and not forward_only:
            tokens = None
            if config.calculate_per_token_loss:
                tokens = runner.tokens
                if tokens is None:
                    tokens = torch.zeros((), dtype=torch.int32, device="cuda")
            forced = {"force_all_reduce": True} if force_all_reduce else {}
            config.finalize_model_grads_func(models, tokens, pg_collection=pg_collection, **forced)
        return runner.told

    def _as_list(self, name: str, given: Any) -> list[Any]:
        if self._chunked:
            if isinstance(given, list) and given:
                return given
            raise self._refuse(
                f"{name} is a {type(given).__name__}, and this schedule takes a list of chunks",
                hint="forward_backward_pipelining_without_interleaving takes one model",
            )
        if not isinstance(given, list):
            return [given]
        if len(given) != 1:
            raise self._refuse(
                f"{name} is a list of {len(given)}, and this schedule takes one",
                hint="forward_backward_pipelining_with_interleaving takes model chunks"
                + ("; iter(batches) makes an iterator" if name == "data_iterator" else ""),
            )
        return given

    def _place(
        self, communicator: P2PCommunicator | None, groups: ProcessGroupCollection | None
    ) -> _Place:
        if groups is None:
            if communicator is not None:
                raise self._refuse(
                    "p2p_communicator without pg_collection", hint="pass both or neither"
                )
            return _Place(
                parallel_state.get_pipeline_model_parallel_group(),
                parallel_state.get_tensor_model_parallel_world_size(),
                parallel_state.get_context_parallel_world_size(),
                parallel_state.get_virtual_pipeline_model_parallel_world_size(),
            )
        if groups.pp is None:
            raise self._refuse("pg_collection has no group `pp`", hint=f"it is {groups!r}")
        if communicator is not None and communicator.pp_group is not groups.pp:
            raise self._refuse("p2p_communicator is of another group than pg_collection.pp")
        tensor, context = (1 if each is None else size_of(each) for each in (groups.tp, groups.cp))
        return _Place(groups.pp, tensor, context, None)

    def _check(self, size: Size, config: ModelParallelConfig, virtual: int | None) -> None:
        if self._alone and size.stages > 1:
            raise self._refuse(
                f"the pipeline has {size.stages} stages, and this schedule is for one",
                hint="get_forward_backward_func() returns the right one",
            )
        if self._chunked and size.stages == 1:
            raise self._refuse(
                "interleaving needs at least 2 stages, and the pipeline has 1",
                hint="forward_backward_no_pipelining takes the model whole",
            )
        plans.check_size(size)
        said = (
            ("config.pipeline_model_parallel_size", config.pipeline_model_parallel_size, size[0]),
            (
                "config.virtual_pipeline_model_parallel_size",
                config.virtual_pipeline_model_parallel_size,
                size.chunks,
            ),
            ("the virtual pipeline size of parallel_state", virtual, size.chunks),
        )
        for name, number, expected in said:
            if number is not None and number != expected:
                raise self._refuse(
                    f"{name} is {number}, but there are {expected} "
                    f"{'stages' if name == said[0][0] else 'model chunks'}"
                )

    def _shape(
        self, config: ModelParallelConfig, place: _Place, seq_length: int, micro_batch_size: int
    ) -> Shape:
        hidden: Any = getattr(config, "hidden_size", None)
        shape = {
            "seq_length": seq_length,
            "micro_batch_size": micro_batch_size,
            "config.hidden_size": hidden,
        }
        for name, number in shape.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise self._refuse(
                    f"{name} is {number!r}", "expected an integer of at least 1: the shape of "
                    "what stages send is [seq_length, micro_batch_size, hidden_size]",
                )  # fmt: skip
        if config.pipeline_dtype is None:
            raise self._refuse(
                "config.pipeline_dtype is None, and stages must know what they receive",
                hint="ModelParallelConfig(pipeline_dtype=torch.bfloat16)",
            )
        rows = place.tensor_ranks if config.sequence_parallel else 1
        if seq_length % (place.context_ranks * rows):
            raise self._refuse(
                f"seq_length={seq_length} is not divisible by {place.context_ranks * rows}",
                f"{place.context_ranks} context-parallel ranks share a sequence"
                + (f", and {rows} tensor-parallel ranks their part" if rows > 1 else ""),
            )
        return [seq_length // place.context_ranks // rows, micro_batch_size, int(hidden)]

    def _adjusted(self, adjust: Callable[..., Any], shape: Shape) -> tuple[Shape, Shape]:
        if self._chunked:
            raise self._refuse("adjust_tensor_shapes_fn is not for model chunks")
        received, sent = adjust([tuple(shape)], [tuple(shape)])
        if len(received) != 1 or len(sent) != 1:
            raise UnsupportedError(
                f"{self.__name__}: adjust_tensor_shapes_fn returned {len(received)} and "
                f"{len(sent)} shapes; stages that send several tensors are not simulated",
                [site_fact(call_site())],
                hint="concatenate them",
            )
        return received[0], sent[0]

    def _refuse(self, text: str, *facts: str, hint: str = "") -> OptionError:
        return refuse_option(f"{self.__name__}: {text}", *facts, hint=hint)


def _attribute(model: Any, name: str) -> Any:
    """Returns an attribute of a model, or of what it wraps."""
    inner = model
    while not hasattr(inner, name):
        if not hasattr(inner, "module"):
            raise OptionError(
                f"{type(model).__name__} has no {name}, which pipeline schedules need",
                [site_fact(call_site())],
                hint="set model.config to a ModelParallelConfig"
                if name == "config"
                else "define set_input_tensor(self, input_tensor), which keeps input_tensor[0] "
                "for forward",
            )
        inner = inner.module
    return getattr(inner, name)


def _check_simulated(
    config: Any, size: Size, seq_length: int, decoder_seq_length: int | None
) -> None:
    for name, instead in _NOT_SIMULATED.items():
        value = getattr(config, name, None)
        if value is not None and value != _SIMULATED.get(name, False):
            raise UnsupportedError(
                f"config.{name}={value!r} is not simulated in pipelines",
                [site_fact(call_site())],
                hint=instead,
            )
    group = getattr(config, "microbatch_group_size_per_vp_stage", None)
    if size.chunks > 1 and group not in {None, size.stages}:
        raise UnsupportedError(
            f"config.microbatch_group_size_per_vp_stage={group!r} is not simulated: chunks take "
            f"turns after as many microbatches as there are stages, {size.stages}",
            [site_fact(call_site())],
            hint=f"leave it out, or set it to {size.stages}",
        )
    if decoder_seq_length not in {None, seq_length}:
        raise UnsupportedError(
            f"decoder_seq_length={decoder_seq_length} beside seq_length={seq_length}: models of an "
            "encoder and a decoder are not simulated",
            [site_fact(call_site())],
        )


def _check_models(models: Sequence[Any]) -> None:
    for chunk, model in enumerate(models):
        said = getattr(model, "vp_stage", None)
        if said is not None and said != chunk:
            raise OptionError(
                f"vp_stage ({chunk}) doesn't match model_vp_stage ({said})",
                [site_fact(call_site())],
                hint="give the chunks in the order of their vp_stage",
            )


forward_backward_no_pipelining: Final = ForwardBackward(
    "forward_backward_no_pipelining", plans.one_forward_one_backward, chunked=False, alone=True
)
"""For one stage: forward and backward of one microbatch after the other; nothing is sent."""

forward_backward_pipelining_without_interleaving: Final = ForwardBackward(
    "forward_backward_pipelining_without_interleaving",
    plans.one_forward_one_backward,
    chunked=False,
    alone=False,
)
"""1F1B, of one chunk on each stage."""

forward_backward_pipelining_with_interleaving: Final = ForwardBackward(
    "forward_backward_pipelining_with_interleaving", plans.interleaved, chunked=True, alone=False
)
"""Interleaved 1F1B, of several chunks on each stage."""

forward_backward_gpipe: Final = ForwardBackward(
    "forward_backward_gpipe", plans.gpipe, chunked=False, alone=False
)
"""GPipe: all forward passes, then all backward passes. Megatron-Core has no name for it."""

_BY_NAME: Final = {
    "gpipe": forward_backward_gpipe,
    "1f1b": forward_backward_pipelining_without_interleaving,
    "interleaved": forward_backward_pipelining_with_interleaving,
}


def get_forward_backward_func(
    pp_size: int | None = None,
    vp_size: int | None = None,
    schedule: ScheduleName | None = None,
) -> ForwardBackward:
    """Returns the function of a schedule, as Megatron-Core chooses it unless one is named.

    Args:
        pp_size: Number of stages; by default that of `parallel_state`.
        vp_size: Chunks of each stage; by default, if `pp_size` is None, those of `parallel_state`.
        schedule: Which schedule; None for interleaved 1F1B with several chunks, else 1F1B, and
            without a pipeline neither.

    Raises:
        OptionError: If there is no such schedule.
        ParallelStateError: If a number is left out and there is no pipeline.
    """
    if schedule is not None:
        if schedule not in _BY_NAME:
            raise OptionError(
                f"no schedule {schedule!r}",
                [site_fact(call_site()), f"expected one of {', '.join(_BY_NAME)}"],
            )
        return _BY_NAME[schedule]
    if pp_size is None:
        pp_size = parallel_state.get_pipeline_model_parallel_world_size()
        if vp_size is None:
            vp_size = parallel_state.get_virtual_pipeline_model_parallel_world_size()
    if pp_size == 1:
        return forward_backward_no_pipelining
    return _BY_NAME["1f1b" if vp_size is None else "interleaved"]
