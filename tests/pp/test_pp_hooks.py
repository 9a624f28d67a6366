"""What a configuration and a caller may hook in, and when a schedule calls it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from pp_model import (
    MICROBATCHES,
    B,
    Found,
    H,
    Layout,
    S,
    batch_of,
    chunks_of,
    config_of,
    forward_step,
    note,
    reference,
    spawn,
    step,
)

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel import parallel_state
from kernbench.parallel.stages import broadcast_from_last_stage
from kernbench.pp.p2p_communication import P2PCommunicator
from kernbench.pp.schedules import (
    forward_backward_gpipe,
    forward_backward_no_pipelining,
    forward_backward_pipelining_with_interleaving,
    forward_backward_pipelining_without_interleaving,
    get_forward_backward_func,
)
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench

TWO, CHUNKS = Layout("1f1b", 2), Layout("interleaved", 2, chunks=2)


class Notes(list[str]):
    """What happened on one rank, in order."""

    def context(self, name: str) -> Any:
        @contextmanager
        def inside() -> Iterator[None]:
            self.append(f"{name} in")
            yield
            self.append(f"{name} out")

        return inside

    def watch(self, models: Any) -> None:
        """Notes every backward pass of a chunk, by the gradient of its last parameter."""
        for number, model in enumerate(models):
            last = [*model.parameters()][-1]
            last.register_hook(lambda grad, name=f"back {number}": self.append(name))


def noted(
    kernbench: Kernbench, layout: Layout, syncs: list[str], **arguments: Any
) -> dict[int, Notes]:
    """Returns what happened on each stage; `syncs` names the contexts of `no_sync_func`."""
    found: dict[int, Notes] = {}

    def work() -> None:
        notes = found[dist.get_rank()] = Notes()
        contexts = [notes.context(name) for name in syncs]
        config = config_of(layout, no_sync_func=contexts if len(syncs) > 1 else contexts[0])
        config.finalize_model_grads_func = lambda models, tokens, pg_collection: notes.append(
            f"finalize {len(models)} {tokens} {pg_collection}"
        )
        models = chunks_of(layout, config)
        notes.watch(models)
        step(layout, models, **arguments)

    spawn(kernbench, layout, work)
    return found


@pytest.mark.parametrize(
    "layout", [Layout("default", 1), TWO, Layout("gpipe", 2), Layout("1f1b", 4)], ids=str
)
def test_all_backward_passes_but_the_last_are_without_sync(
    kernbench: Kernbench, layout: Layout
) -> None:
    for notes in noted(kernbench, layout, ["no_sync"]).values():
        expected = ["no_sync in", "back 0", "back 0", "back 0", "no_sync out", "back 0"]
        assert notes == [*expected, "finalize 1 None None"]


def test_chunks_share_a_context_or_have_one_each(kernbench: Kernbench) -> None:
    for notes in noted(kernbench, CHUNKS, ["no_sync"]).values():
        text = " ".join(notes)
        assert text == (
            "no_sync in back 1 back 1 back 0 back 0 back 1 no_sync out back 1 no_sync in back 0 "
            "no_sync out back 0 finalize 2 None None"
        )
    for notes in noted(kernbench, CHUNKS, ["first", "second"]).values():
        text = " ".join(notes)
        assert text == (
            "first in second in back 1 back 1 back 0 back 0 back 1 second out back 1 back 0 "
            "first out back 0 finalize 2 None None"
        )


def test_without_backward_passes_nothing_is_synchronised(kernbench: Kernbench) -> None:
    for notes in noted(kernbench, TWO, ["no_sync"], forward_only=True).values():
        assert notes == ["no_sync in", "no_sync out"]


def test_one_microbatch_is_synchronised(kernbench: Kernbench) -> None:
    for notes in noted(kernbench, TWO, ["no_sync"], num_microbatches=1).values():
        assert notes == ["no_sync in", "no_sync out", "back 0", "finalize 1 None None"]


def test_contexts_are_left_when_a_step_fails(kernbench: Kernbench) -> None:
    layout = Layout("default", 1)
    left: list[str] = []

    def work() -> None:
        @contextmanager
        def inside() -> Iterator[None]:
            try:
                yield
            finally:
                left.append("out")

        models = chunks_of(layout, config_of(layout, no_sync_func=inside))
        with pytest.raises(ValueError, match="data iterator ended"):
            step(layout, models, data_iterator=iter(()))

    spawn(kernbench, layout, work)
    assert left == ["out"]


@pytest.mark.parametrize("layout", [Layout("default", 1), TWO, CHUNKS], ids=str)
@pytest.mark.parametrize("per_token", [False, True])
def test_losses_with_numbers_of_tokens(
    kernbench: Kernbench, layout: Layout, per_token: bool
) -> None:
    """As in Megatron-Core: divided by them here, or by their sum in `finalize_model_grads`."""
    found = Found()
    seen: list[Any] = []

    def work() -> None:
        def finalize(models: Any, tokens: Any, **named: Any) -> None:
            assert named == {"pg_collection": None, "force_all_reduce": True}
            seen.append(None if tokens is None else int(tokens))

        def with_tokens(data_iterator: Any, model: Any) -> Any:
            output, loss_func = forward_step(data_iterator, model)
            tokens = torch.tensor(5, device="cuda")
            return output, lambda y: (loss_func(y)[0], tokens, loss_func(y)[1])

        config = config_of(layout, finalize_model_grads_func=finalize)
        config.calculate_per_token_loss = per_token
        models = chunks_of(layout, config)
        told = step(layout, models, forward_step_func=with_tokens, force_all_reduce=True)
        note(found, models, told)

    spawn(kernbench, layout, work)
    factor = MICROBATCHES if per_token else 1 / 5
    for (piece, _), grads in found.grads.items():
        for name, value in reference().grads[piece].items():
            np.testing.assert_allclose(grads[name], factor * value, rtol=1e-11, atol=1e-13)
    last = [5 * MICROBATCHES]
    first = [0] * (layout.pp - 1)
    assert sorted(seen, key=bool) == (first + last if per_token else [None] * layout.pp)


@pytest.mark.parametrize("tp", [1, 2])
def test_ranks_that_share_a_sequence_weigh_as_many_times_as_much(
    kernbench: Kernbench, tp: int
) -> None:
    """So that the mean over them, which data parallelism takes, is that of the whole sequence."""
    layout = Layout("1f1b", 2, tp=tp, rows=tp > 1, cp=2)
    found = [Found(), Found()]

    def work() -> None:
        models = chunks_of(layout, config_of(layout))
        told = step(layout, models)
        note(found[parallel_state.get_context_parallel_rank()], models, told)

    spawn(kernbench, layout, work)
    losses = sum(np.asarray(each.losses[1, rank]) for each in found for rank in range(tp))
    np.testing.assert_allclose(losses, reference().losses, rtol=1e-12)
    for piece, grads in enumerate(reference().grads):
        for name, value in grads.items():
            mean = sum(each.whole(piece, name, tp) for each in found) / 2
            np.testing.assert_allclose(mean, value, rtol=1e-11, atol=1e-13)


def test_a_scale_is_applied_to_the_loss_once(kernbench: Kernbench) -> None:
    found = Found()

    def work() -> None:
        models = chunks_of(TWO, config_of(TWO, grad_scale_func=lambda loss: loss * 8))
        note(found, models, step(TWO, models))

    spawn(kernbench, TWO, work)
    for (piece, _), grads in found.grads.items():
        for name, value in reference().grads[piece].items():
            np.testing.assert_allclose(grads[name], 8 * value, rtol=1e-11, atol=1e-13)


def test_data_that_is_no_loss_is_returned(kernbench: Kernbench) -> None:
    told: dict[int, list[Any]] = {}

    def work() -> None:
        def plain(data_iterator: Any, model: Any) -> Any:
            output, _ = forward_step(data_iterator, model)
            return output, lambda y, non_loss_data: (non_loss_data, [*y.shape])

        def bare(data_iterator: Any, model: Any) -> Any:
            return forward_step(data_iterator, model)[0], None

        models = chunks_of(TWO, config_of(TWO))
        data: Any = {"forward_only": True, "collect_non_loss_data": True}
        told[dist.get_rank()] = step(TWO, models, forward_step_func=plain, **data)
        outputs = step(TWO, models, forward_step_func=bare, forward_only=True)
        assert [each.shape for each in outputs] == [(S, B, H)] * len(told[dist.get_rank()])

    spawn(kernbench, TWO, work)
    assert told == {0: [], 1: [(True, [S, B, H])] * MICROBATCHES}


@pytest.mark.parametrize(
    ("forward_only", "first_val_step", "calls"),
    [(False, None, 1), (False, False, 1), (True, None, 1), (True, True, 1), (True, False, 0)],
)
def test_models_are_told_of_the_first_microbatch(
    kernbench: Kernbench, forward_only: bool, first_val_step: bool | None, calls: int
) -> None:
    called: list[int] = []

    def work() -> None:
        models: list[Any] = list(chunks_of(CHUNKS, config_of(CHUNKS)))
        for model in models:
            model.set_is_first_microbatch = lambda: called.append(1)
        step(CHUNKS, models, forward_only=forward_only, first_val_step=first_val_step)

    spawn(kernbench, CHUNKS, work)
    assert len(called) == calls * CHUNKS.pp * CHUNKS.chunks


def test_stages_may_send_other_shapes(kernbench: Kernbench) -> None:
    """The first stage sends half of the sequence."""
    shapes: dict[int, Any] = {}

    def work() -> None:
        stage = dist.get_rank()

        def adjust(received: Any, sent: Any) -> Any:
            assert received == sent == [(S, B, H)]
            half = [(S // 2, B, H)]
            return (received, half) if stage == 0 else (half, sent)

        def halved(data_iterator: Any, model: Any) -> Any:
            output, _ = forward_step(data_iterator, model)
            shapes[stage] = [*output.shape]
            return (output[: S // 2], None) if stage == 0 else (
                output, lambda y: (y.sum(), y.sum())
            )  # fmt: skip

        models = chunks_of(TWO, config_of(TWO))
        step(TWO, models, forward_step_func=halved, adjust_tensor_shapes_fn=adjust)
        assert all(value.grad is not None for value in models[0].parameters())

    spawn(kernbench, TWO, work)
    assert shapes == {0: [S, B, H], 1: [S // 2, B, H]}


def test_models_in_wrappers_are_found(kernbench: Kernbench) -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> Any:
            return self.module(x)

    def work() -> None:
        (model,) = chunks_of(TWO, config_of(TWO, finalize_model_grads_func=None))
        step(TWO, [Wrapper(Wrapper(model))])
        assert all(value.grad is not None for value in model.parameters())

    spawn(kernbench, TWO, work)


def test_outputs_that_were_sent_may_be_freed(kernbench: Kernbench) -> None:
    """GPipe holds all outputs of the first stage, or none but what the graph needs."""
    layout = Layout("gpipe", 2)
    most: dict[bool, int] = {}
    rows = 4096

    def work(freed: bool) -> None:
        (model,) = chunks_of(layout, config_of(layout, deallocate_pipeline_outputs=freed))
        if dist.get_rank() == 1:
            model.pieces = torch.nn.ModuleList()

        def doubled(data_iterator: Any, model: Any) -> Any:
            x = torch.ones(rows, B, H, dtype=torch.float64, device="cuda", requires_grad=True)
            given = x if model.given is None else model.given
            return given + given, lambda y: (y.sum(), 0)

        torch.cuda.reset_peak_memory_stats()
        step(layout, [model], forward_step_func=doubled, seq_length=rows)
        if dist.get_rank() == 0:
            most[freed] = torch.cuda.max_memory_allocated()

    for freed in (False, True):
        spawn(
            kernbench,
            layout,
            lambda freed=freed: work(freed),  # type: ignore[misc]
        )
    # The output that is on its way when the memory is fullest may be there in both.
    assert most[False] - most[True] >= (MICROBATCHES - 1) * rows * B * H * 8


def test_the_function_is_chosen_as_in_megatron(kernbench: Kernbench, ctx: RuntimeContext) -> None:
    one_f_one_b = forward_backward_pipelining_without_interleaving
    assert get_forward_backward_func(1) is forward_backward_no_pipelining
    assert get_forward_backward_func(1, 2) is forward_backward_no_pipelining
    assert get_forward_backward_func(2) is one_f_one_b
    assert get_forward_backward_func(2, 2) is forward_backward_pipelining_with_interleaving
    assert get_forward_backward_func(schedule="gpipe") is forward_backward_gpipe
    assert get_forward_backward_func(schedule="1f1b") is one_f_one_b
    assert "forward_backward_gpipe" in repr(forward_backward_gpipe)
    chosen = {
        Layout("default", 1): forward_backward_no_pipelining,
        TWO: one_f_one_b,
        CHUNKS: forward_backward_pipelining_with_interleaving,
    }
    for layout, expected in chosen.items():
        found: list[Any] = []
        spawn(kernbench, layout, lambda found=found: found.append(get_forward_backward_func()))  # type: ignore[misc]
        assert found == [expected] * layout.ranks


# Messages one by one


def test_the_methods_of_a_communicator(kernbench: Kernbench) -> None:
    """Three stages; what each sends says who sent what."""
    shape = [2]
    layout = Layout("1f1b", 4)

    def work() -> None:
        group = parallel_state.get_pipeline_model_parallel_group()
        comm = P2PCommunicator(group, config_of(layout))
        me, last = comm.curr_rank, layout.pp - 1
        first, final = comm.is_pp_first_stage, comm.is_pp_last_stage
        assert (first, final) == (me == 0, me == last)
        assert (comm.prev_rank, comm.next_rank) == ((me - 1) % 4, (me + 1) % 4)

        def made(number: int) -> torch.Tensor:
            return torch.full((2,), 10.0 * number + me, dtype=torch.float64, device="cuda")

        def came(tensor: Any, number: int, stage: int) -> None:
            if not 0 <= stage <= last:
                assert tensor is None
            else:
                assert tensor.tolist() == [10.0 * number + stage] * 2

        found = comm.recv_forward(shape, first)
        came(found, 1, me - 1)
        assert found is None or found.requires_grad
        comm.send_forward(made(1), final)
        came(comm.recv_backward(shape, final), 2, me + 1)
        comm.send_backward(made(2), first)
        # In turns, as stages do: even ones face the next stage first, odd ones the previous one.
        for turn in range(2):
            if me % 2 == turn:
                came(comm.send_forward_recv_backward(made(3), shape, final), 4, me + 1)
            else:
                came(comm.send_backward_recv_forward(made(4), shape, first), 3, me - 1)
        came(
            comm.send_forward_recv_forward(None if final else made(5), not first, shape), 5, me - 1
        )
        came(
            comm.send_backward_recv_backward(None if first else made(6), not final, shape),
            6,
            me + 1,
        )
        previous, following = comm.send_forward_backward_recv_forward_backward(
            None if final else made(7), None if first else made(8), not first, not final, shape
        )
        came(previous, 7, me - 1)
        came(following, 8, me + 1)
        assert comm.communicate([], []) == []

    spawn(kernbench, layout, work)


def test_a_communicator_must_know_what_it_receives(kernbench: Kernbench) -> None:
    def work() -> None:
        group = parallel_state.get_pipeline_model_parallel_group()
        comm = P2PCommunicator(group, config_of(TWO, pipeline_dtype=None))
        with pytest.raises(ValueError, match="pipeline_dtype must be provided"):
            comm.recv_forward([1], is_first_stage=False)

    spawn(kernbench, TWO, work)


def test_the_last_stage_tells_the_others(kernbench: Kernbench) -> None:
    def work() -> None:
        group = parallel_state.get_pipeline_model_parallel_group()
        rank = float(dist.get_rank())
        tensor = torch.full((3,), rank, device="cuda")
        for given in (None, group):
            assert broadcast_from_last_stage({"stage": rank}, given) == {"stage": 3.0}
        assert broadcast_from_last_stage(tensor, group) is tensor
        assert tensor.tolist() == [3.0] * 3
        losses: list[dict[str, Any]] = [
            {"loss": tensor + number, "kind": ("a", number)} for number in range(2)
        ]
        told = broadcast_from_last_stage(losses if rank == 3 else [])
        assert [each["loss"].tolist() for each in told] == [[3.0] * 3, [4.0] * 3]
        assert [each["kind"] for each in told] == [("a", 0), ("a", 1)]

    spawn(kernbench, Layout("1f1b", 4), work)


def test_batches_differ() -> None:
    """So that microbatches in another order, or twice the same one, would be found out."""
    firsts = {float(batch_of(number)[0].flat[0]) for number in range(MICROBATCHES)}
    assert len(firsts) == MICROBATCHES
