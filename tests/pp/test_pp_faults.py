"""What is refused: with the number and the rule, on the user's line, and nothing stays behind."""

from collections.abc import Callable
from typing import Any

import pytest
from pp_model import (
    MICROBATCHES,
    B,
    Chunk,
    H,
    Layout,
    S,
    chunks_of,
    config_of,
    data_of,
    forward_step,
    spawn,
    step,
)

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError, OptionError, UnsupportedError
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.parallel.parallel_state import get_pipeline_model_parallel_group
from kernbench.pp.p2p_communication import P2PCommunicator
from kernbench.pp.schedules import (
    forward_backward_no_pipelining,
    forward_backward_pipelining_with_interleaving,
    get_forward_backward_func,
)
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench

TWO, CHUNKS = Layout("1f1b", 2), Layout("interleaved", 2, chunks=2)


def refused(
    kernbench: Kernbench, layout: Layout, work: Callable[[list[Chunk]], object]
) -> KernbenchError:
    """Returns the error that the first rank sees, and checks that the world works after it.

    Every rank is refused alike, so none of them waits.
    """
    errors: list[KernbenchError] = []

    def run() -> None:
        models = chunks_of(layout, config_of(layout))
        with pytest.raises(KernbenchError) as caught:
            work(models)
        errors.append(caught.value)
        x = torch.ones(1, device="cuda")
        dist.all_reduce(x)
        assert x.item() == layout.ranks
        fresh = chunks_of(layout, config_of(layout))
        assert len(step(layout, fresh)) in {0, MICROBATCHES}

    spawn(kernbench, layout, run)
    assert len(errors) == layout.ranks
    assert len({str(each) for each in errors}) == 1
    assert __file__.rpartition("/")[2] in str(errors[0]) or "pp_model.py" in str(errors[0])
    return errors[0]


NUMBERS: list[tuple[Layout, dict[str, Any], str]] = [
    (TWO, {"num_microbatches": 0}, "num_microbatches=0: expected an integer of at least 1"),
    (TWO, {"num_microbatches": 2.0}, "num_microbatches=2.0"),
    (TWO, {"seq_length": 0}, "seq_length is 0"),
    (TWO, {"micro_batch_size": None}, "micro_batch_size is None"),
    (CHUNKS, {"num_microbatches": 3}, "microbatches (3) is not divisible by pipeline-model-paral"),
    (TWO, {"collect_non_loss_data": True}, "collect_non_loss_data leaves no loss"),
]


@pytest.mark.parametrize(("layout", "arguments", "words"), NUMBERS, ids=str)
def test_numbers_are_refused_before_anything_is_sent(
    kernbench: Kernbench, layout: Layout, arguments: dict[str, Any], words: str
) -> None:
    error = refused(kernbench, layout, lambda models: step(layout, models, **arguments))
    assert isinstance(error, ValueError)
    assert words in str(error)


def with_config(layout: Layout = TWO, **changes: Any) -> Callable[[list[Chunk]], list[Any]]:
    def work(models: list[Chunk]) -> list[Any]:
        for name, value in changes.items():
            setattr(models[0].config, name, value)
        return step(layout, models)

    return work


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": None}, "config.hidden_size is None"),
        ({"pipeline_dtype": None}, "config.pipeline_dtype is None"),
        ({"pipeline_model_parallel_size": 4}, "pipeline_model_parallel_size is 4, but there are 2"),
        ({"virtual_pipeline_model_parallel_size": 2}, "is 2, but there are 1 model chunks"),
        ({"no_sync_func": [list, list]}, "no_sync_func has 2 functions for 1 model chunks"),
    ],
    ids=str,
)
def test_configurations_that_do_not_fit_are_refused(
    kernbench: Kernbench, changes: dict[str, Any], words: str
) -> None:
    error = refused(kernbench, TWO, with_config(**changes))
    assert isinstance(error, OptionError)
    assert words in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("variable_seq_lengths", True),
        ("overlap_p2p_comm", True),
        ("overlap_p2p_comm_warmup_flush", True),
        ("timers", print),
        ("grad_sync_func", print),
        ("batch_p2p_comm", False),
        ("batch_p2p_sync", True),
        ("pipeline_model_parallel_comm_backend", "ucc"),
        ("hybrid_context_parallel", True),
        ("cuda_graph_impl", "local"),
    ],
)
def test_what_is_not_simulated_is_refused_by_name(
    kernbench: Kernbench, name: str, value: Any
) -> None:
    error = refused(kernbench, TWO, with_config(**{name: value}))
    assert isinstance(error, UnsupportedError)
    assert f"config.{name}={value!r} is not simulated" in str(error)
    assert error.hint


def test_chunks_take_turns_after_as_many_microbatches_as_stages(kernbench: Kernbench) -> None:
    error = refused(kernbench, CHUNKS, with_config(CHUNKS, microbatch_group_size_per_vp_stage=4))
    assert isinstance(error, UnsupportedError)
    assert "config.microbatch_group_size_per_vp_stage=4 is not simulated" in str(error)
    assert error.hint == "leave it out, or set it to 2"


def test_what_is_simulated_anyway_may_be_said(kernbench: Kernbench) -> None:
    said = {
        "batch_p2p_comm": True,
        "batch_p2p_sync": False,
        "pipeline_model_parallel_comm_backend": "nccl",
        "cuda_graph_impl": "none",
        "microbatch_group_size_per_vp_stage": 2,
    }
    losses: list[int] = []

    def run() -> None:
        models = chunks_of(CHUNKS, config_of(CHUNKS))
        losses.append(len(with_config(CHUNKS, **said)(models)))

    spawn(kernbench, CHUNKS, run)
    assert sorted(losses) == [0, MICROBATCHES]


def test_other_shapes_and_models_of_two_halves_are_refused(kernbench: Kernbench) -> None:
    error = refused(kernbench, TWO, lambda models: step(TWO, models, decoder_seq_length=2))
    assert isinstance(error, UnsupportedError)
    assert "decoder_seq_length=2 beside seq_length=4" in str(error)

    def two(received: Any, sent: Any) -> Any:
        return received * 2, sent

    error = refused(kernbench, TWO, lambda models: step(TWO, models, adjust_tensor_shapes_fn=two))
    assert isinstance(error, UnsupportedError)
    assert "returned 2 and 1 shapes" in str(error)
    error = refused(
        kernbench, CHUNKS, lambda models: step(CHUNKS, models, adjust_tensor_shapes_fn=two)
    )
    assert "adjust_tensor_shapes_fn is not for model chunks" in str(error)


def test_rows_that_ranks_cannot_share_are_refused(kernbench: Kernbench) -> None:
    layout = Layout("1f1b", 2, tp=2, rows=True)
    error = refused(kernbench, layout, lambda models: step(layout, models, seq_length=3))
    assert "seq_length=3 is not divisible by 2" in str(error)


def arguments(layout: Layout, models: Any, data: Any) -> dict[str, Any]:
    return {
        "forward_step_func": forward_step,
        "data_iterator": data,
        "model": models,
        "num_microbatches": MICROBATCHES,
        "seq_length": S,
        "micro_batch_size": B,
    }


def test_models_and_iterators_that_do_not_fit_the_schedule_are_refused(
    kernbench: Kernbench,
) -> None:
    plain, chunked = get_forward_backward_func(2), get_forward_backward_func(2, 2)

    def say(layout: Layout, function: Any, model: Any, data: Any) -> str:
        return str(
            refused(
                kernbench,
                layout,
                lambda models: function(
                    **arguments(layout, model(models), data([*data_of(layout)]))
                ),
            )
        )

    assert "model is a list of 2, and this schedule takes one" in say(
        CHUNKS, plain, list, lambda data: data[0]
    )
    assert "data_iterator is a list of 2" in say(CHUNKS, plain, lambda models: models[0], list)
    assert "model is a Chunk, and this schedule takes a list of chunks" in say(
        CHUNKS, chunked, lambda models: models[0], list
    )
    assert "1 data iterators for 2 model chunks" in say(
        CHUNKS, chunked, list, lambda data: data[:1]
    )
    assert "the virtual pipeline size of parallel_state is 2, but there are 3" in say(
        CHUNKS, chunked, lambda models: [*models, models[0]], lambda data: [*data, data[0]]
    )
    assert "the pipeline has 2 stages, and this schedule is for one" in say(
        TWO, forward_backward_no_pipelining, lambda models: models[0], lambda data: data[0]
    )
    assert "interleaving needs at least 2 stages, and the pipeline has 1" in say(
        Layout("1f1b", 1), forward_backward_pipelining_with_interleaving, list, list
    )


def test_chunks_in_another_order_are_refused(kernbench: Kernbench) -> None:
    def work(models: list[Any]) -> object:
        for number, model in enumerate(models):
            model.vp_stage = number
        return step(CHUNKS, models[::-1])

    assert "vp_stage (0) doesn't match model_vp_stage (1)" in str(refused(kernbench, CHUNKS, work))


def test_models_without_what_schedules_need_are_refused(kernbench: Kernbench) -> None:
    class Bare(torch.nn.Module):
        pass

    error = refused(kernbench, TWO, lambda models: step(TWO, [Bare()]))
    assert "Bare has no config" in str(error)

    def configured(models: list[Chunk]) -> object:
        bare: Any = Bare()
        bare.config = models[0].config
        return step(TWO, [bare])

    error = refused(kernbench, TWO, configured)
    assert "Bare has no set_input_tensor" in str(error)
    assert "input_tensor[0]" in error.hint


def test_groups_that_do_not_fit_are_refused(kernbench: Kernbench) -> None:
    def communicator(models: list[Chunk]) -> P2PCommunicator:
        return P2PCommunicator(get_pipeline_model_parallel_group(), models[0].config)

    error = refused(
        kernbench, TWO, lambda models: step(TWO, models, p2p_communicator=communicator(models))
    )
    assert "p2p_communicator without pg_collection" in str(error)
    error = refused(
        kernbench, TWO, lambda models: step(TWO, models, pg_collection=ProcessGroupCollection())
    )
    assert "pg_collection has no group `pp`" in str(error)

    def other(models: list[Chunk]) -> object:
        groups = ProcessGroupCollection(pp=dist.group.WORLD)
        return step(TWO, models, pg_collection=groups, p2p_communicator=communicator(models))

    assert "of another group than pg_collection.pp" in str(refused(kernbench, TWO, other))


def test_an_unknown_schedule_is_refused() -> None:
    named: Any = "zero bubble"
    with pytest.raises(OptionError, match="expected one of gpipe, 1f1b, interleaved"):
        get_forward_backward_func(schedule=named)


# Found on the way, by one rank: the others are told, and nothing stays behind.


def failing(kernbench: Kernbench, layout: Layout, work: Callable[[list[Chunk]], object]) -> str:
    def run() -> None:
        work(chunks_of(layout, config_of(layout)))

    with pytest.raises(SpawnException) as caught:
        spawn(kernbench, layout, run)
    kernbench.check_nothing_left()
    return str(caught.value)


@pytest.mark.parametrize("layout", [Layout("1f1b", 1), TWO, Layout("gpipe", 4)], ids=str)
def test_data_that_ends_too_early_is_named(kernbench: Kernbench, layout: Layout) -> None:
    def work(models: list[Chunk]) -> object:
        return step(layout, models, data_iterator=data_of(layout, 3)[0])

    text = failing(kernbench, layout, work)
    stage = "<rank>" if layout.pp > 1 else "0"
    assert f"the data iterator ended at microbatch 3 of {MICROBATCHES}, on stage {stage} of" in text
    assert "num_microbatches=3, or more data" in text


def returning(result: Callable[[Any, Any], Any]) -> Callable[[list[Chunk]], object]:
    def func(data_iterator: Any, model: Any) -> Any:
        return result(*forward_step(data_iterator, model))

    return lambda models: step(TWO, models, forward_step_func=func)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda y, f: y, "forward_step_func returned a Tensor"),
        (lambda y, f: (y, f, 1), "forward_step_func returned a tuple"),
        (lambda y, f: (y[:1], f), f"is torch.float64 [1, {B}, {H}], but stage 1 receives"),
        (lambda y, f: (y.float(), f), f"is torch.float32 [{S}, {B}, {H}], but stage 1 receives"),
        (lambda y, f: ([y], f), "is a list, but stage 1 receives"),
        (lambda y, f: (y, lambda y: y.sum()), "loss_func returned a Tensor"),
        (lambda y, f: (y, lambda y: (y.sum(),)), "loss_func returned a tuple"),
        (lambda y, f: (y.new_ones(*y.shape, requires_grad=True), f), "has no gradient"),
    ],
)  # fmt: skip
def test_results_that_do_not_fit_are_named(
    kernbench: Kernbench, result: Callable[[Any, Any], Any], words: str
) -> None:
    text = failing(kernbench, TWO, returning(result))
    assert words in text
    assert "stage" in text


def test_stages_that_call_with_other_numbers_are_found(kernbench: Kernbench) -> None:
    def work(models: list[Chunk]) -> object:
        return step(TWO, models, num_microbatches=MICROBATCHES - dist.get_rank())

    text = failing(kernbench, TWO, work)
    assert "C9" in text
    assert "num_microbatches" in text


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda output: output, "loss_func returned a loss of shape [4, 2, 6], on stage 1 of 2"),
        (lambda _: 1.0, "loss_func returned a loss that is a float, on stage 1 of 2"),
    ],
)
def test_a_loss_has_one_element(
    kernbench: Kernbench, loss: Callable[[Any], Any], words: str
) -> None:
    def forward(data_iterator: Any, model: Any) -> Any:
        return forward_step(data_iterator, model)[0], lambda output: (loss(output), {})

    def run() -> None:
        models = chunks_of(TWO, config_of(TWO))
        step(TWO, models, forward_step_func=forward)

    with pytest.raises(SpawnException) as caught:
        spawn(kernbench, TWO, run)
    assert words in str(caught.value.errors[1])


def test_another_type_is_named_in_the_hint(kernbench: Kernbench) -> None:
    def run() -> None:
        models = chunks_of(TWO, config_of(TWO, pipeline_dtype=torch.float32))
        step(TWO, models)

    with pytest.raises(SpawnException) as caught:
        spawn(kernbench, TWO, run)
    error = caught.value.errors[0]
    assert isinstance(error, OptionError)
    assert error.hint == "config.pipeline_dtype=torch.float64, or output.to(config.pipeline_dtype)"


def test_a_model_that_keeps_the_list_is_refused_without_a_wait(kernbench: Kernbench) -> None:
    def run() -> None:
        (model,) = chunks_of(TWO, config_of(TWO))
        keep: Any = model
        keep.set_input_tensor = lambda given: setattr(keep, "given", given)
        step(TWO, [model])

    with pytest.raises(SpawnException) as caught:
        spawn(kernbench, TWO, run)
    assert "Tensor[4, 2, 6]" in str(caught.value.errors[1])
