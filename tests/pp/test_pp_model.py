"""A model in stages is the whole one: losses and gradients, for every schedule and layout."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from pp_model import (
    MICROBATCHES,
    PIECES,
    Found,
    Layout,
    Reference,
    batch_of,
    chunks_of,
    config_of,
    forward_step,
    one_step,
    reference,
    spawn,
    step,
    weights_of,
)

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel import parallel_state
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.parallel.stages import broadcast_from_last_stage
from kernbench.pp.p2p_communication import P2PCommunicator
from kernbench.testing import Kernbench

STAGES = [
    Layout("default", 1),
    Layout("gpipe", 1),
    *[Layout(name, pp) for pp in (2, 4) for name in ("default", "gpipe", "1f1b")],
    *[Layout("interleaved", 2, chunks=chunks) for chunks in (2, 4)],
    Layout("interleaved", 4, chunks=2),
]
LAYOUTS = [
    Layout(each.schedule, each.pp, tp, each.chunks, rows)
    for each in STAGES
    for tp, rows in ((1, False), (2, False), (2, True))
]


@cache
def whole() -> Reference:
    return reference()


@cache
def alone(tp: int, rows: bool) -> Found:
    """Returns what one stage gives, of the same tensor-parallel ranks."""
    harness = Kernbench()
    found = one_step(harness, Layout("default", 1, tp, rows=rows))
    harness.check_nothing_left()
    return found


def assert_whole(found: Found, layout: Layout) -> None:
    expected = whole()
    for (stage, _), losses in found.losses.items():
        assert len(losses) == (MICROBATCHES if stage == layout.pp - 1 else 0)
    last = [found.losses[layout.pp - 1, rank] for rank in range(layout.tp)]
    losses = np.sum(last, axis=0) if layout.rows else last[0]
    np.testing.assert_allclose(losses, expected.losses, rtol=1e-12)
    for piece in range(PIECES):
        for name, value in expected.grads[piece].items():
            np.testing.assert_allclose(
                found.whole(piece, name, layout.tp), value, rtol=1e-12,
                atol=1e-12 * np.abs(value).max(),
            )  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_stages_are_the_whole_model(kernbench: Kernbench, layout: Layout) -> None:
    found = one_step(kernbench, layout)
    assert_whole(found, layout)
    expected = alone(layout.tp, layout.rows)
    for place, grads in expected.grads.items():
        for name, value in grads.items():
            assert found.grads[place][name].tobytes() == value.tobytes()


@pytest.mark.parametrize("layout", [each for each in LAYOUTS if each.pp > 1 and each.rows], ids=str)
def test_ranks_that_come_at_other_times_change_nothing(
    kernbench: Kernbench, layout: Layout
) -> None:
    def delay() -> None:
        for _ in range(40 * (3 * dist.get_rank() % layout.ranks)):
            torch.ones(64, device="cuda")

    assert_whole(one_step(kernbench, layout, delay), layout)


@pytest.mark.parametrize("layout", [Layout("1f1b", 4), Layout("interleaved", 2, chunks=2)], ids=str)
def test_outputs_that_are_freed_change_nothing_but_memory(
    kernbench: Kernbench, layout: Layout
) -> None:
    assert_whole(one_step(kernbench, layout, deallocate_pipeline_outputs=True), layout)


@pytest.mark.parametrize("layout", STAGES, ids=str)
def test_forward_only_gives_the_losses_to_all(kernbench: Kernbench, layout: Layout) -> None:
    told: dict[int, Any] = {}

    def work() -> None:
        models = chunks_of(layout, config_of(layout))
        with torch.no_grad():
            losses = step(layout, models, forward_only=True)
        assert all(value.grad is None for model in models for value in model.parameters())
        mine = [each["loss"] for each in losses]
        shape = torch.stack(mine) if mine else torch.empty(
            MICROBATCHES, dtype=torch.float64, device="cuda"
        )  # fmt: skip
        told[dist.get_rank()] = broadcast_from_last_stage(shape).tolist()
        objects = broadcast_from_last_stage([each.item() for each in mine])
        assert objects == told[dist.get_rank()]

    spawn(kernbench, layout, work)
    assert set(told) == set(range(layout.ranks))
    for losses in told.values():
        np.testing.assert_allclose(losses, whole().losses, rtol=1e-12)


@pytest.mark.parametrize("layout", [Layout("1f1b", 4), Layout("interleaved", 2, chunks=2)], ids=str)
def test_groups_that_are_passed_replace_the_state(kernbench: Kernbench, layout: Layout) -> None:
    """The stages in the opposite order of the state's, so that its groups would be found out."""
    losses: list[Any] = []

    def work() -> None:
        group = dist.new_group([*reversed(range(layout.pp))], sort_ranks=False)
        assert group is not None
        rank = parallel_state.get_pipeline_model_parallel_rank()
        assert group.rank() == layout.pp - 1 - rank
        groups = ProcessGroupCollection(pp=group)
        parallel_state.set_pipeline_model_parallel_rank(group.rank())
        config = config_of(layout, finalize_model_grads_func=None)
        models = chunks_of(layout, config)
        parallel_state.set_pipeline_model_parallel_rank(None)
        communicator = P2PCommunicator(group, config)
        for given in (None, communicator):
            told = step(layout, models, pg_collection=groups, p2p_communicator=given)
            if told:
                assert dist.get_rank() == 0
                losses.append([each["loss"].item() for each in told])

    spawn(kernbench, layout, work)
    assert len(losses) == 2
    for each in losses:
        np.testing.assert_allclose(each, whole().losses, rtol=1e-12)


@pytest.mark.parametrize("layout", STAGES, ids=str)
def test_without_data_a_step_takes_the_same_time(kernbench: Kernbench, layout: Layout) -> None:
    ends = []
    for data in (True, False):

        def work() -> None:
            step(layout, chunks_of(layout, config_of(layout)))

        ctx = spawn(kernbench, layout, work, data=data, record="full")
        ends.append(max(record.end for record in ctx.engine.op_log.records))
    assert ends[0] == ends[1] > 0


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
def test_microbatches_come_in_order_on_every_stage(kernbench: Kernbench, schedule: str) -> None:
    layout = Layout(schedule, 4, chunks=2 if schedule == "interleaved" else 1)
    seen: dict[tuple[int, int], list[float]] = {}

    def work() -> None:
        models = chunks_of(layout, config_of(layout))

        def noting(data_iterator: Any, model: Any) -> Any:
            output, loss_func = forward_step(data_iterator, model)
            piece = model.pieces[0].number
            first = (output if model.given is None else model.given).flatten()[0].item()
            seen.setdefault((piece, dist.get_rank()), []).append(first)
            return output, loss_func

        step(layout, models, forward_step_func=noting)

    spawn(kernbench, layout, work)
    orders = {place: len(set(each)) for place, each in seen.items()}
    assert set(orders.values()) == {MICROBATCHES}
    # What a stage is given is what the piece before it made of the same microbatch.
    x = [_forward(piece) for piece in range(PIECES)]
    each = PIECES // (layout.pp * layout.chunks)
    for (piece, _), found in seen.items():
        made = x[piece - 1] if piece else x[each - 1]
        np.testing.assert_allclose(found, made, rtol=1e-10)


def _forward(piece: int) -> list[float]:
    """Returns the first element of the output of a piece, by microbatch."""
    found = []
    for microbatch in range(MICROBATCHES):
        x = batch_of(microbatch)[0]
        for w in map(weights_of, range(piece + 1)):
            x = x + np.tanh(x @ w["up.weight"].T + w["up.bias"]) @ w["down.weight"].T
            x = x + w["down.bias"]
        found.append(float(x.flat[0]))
    return found
