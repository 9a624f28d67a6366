"""Gradients of models over pipeline stages and experts: the norm and the sums of the whole model.

The whole model is a dict of float64 arrays, by what a value is a part of; no rank has all of it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.testing import Kernbench
from kernbench.tp import parallel_state
from kernbench.tp.gradients import (
    clip_grad_by_total_norm_fp32,
    clip_grad_norm_,
    count_zeros_fp32,
    finalize_model_grads,
    get_grad_norm_fp32,
)

Key = tuple[Any, ...]


def values(*key: Any) -> Any:
    """Returns the gradient of a part of the model, of its own length, with a zero in it."""
    numbers = np.random.default_rng([ord(str(each)[0]) for each in key])
    drawn = numbers.normal(size=3 + len(str(key)) % 4)
    drawn[0] = 0
    return drawn


def parameter(name: str, gradient: Any, **marks: Any) -> Any:
    made: Any = torch.nn.Parameter(torch.zeros(len(gradient), dtype=torch.float64, device="cuda"))
    made.grad = torch.from_numpy(gradient.copy()).cuda()
    for mark, value in marks.items():
        setattr(made, mark, value)
    return made


def place() -> tuple[int, int, int, int]:
    """Returns the calling rank's pipeline stage, tensor-parallel rank, expert and shard of it."""
    return (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_expert_model_parallel_rank(),
        parallel_state.get_expert_tensor_parallel_rank(),
    )


def mine() -> dict[str, tuple[Key, Any]]:
    """Returns the calling rank's parameters with the parts of the model that they are."""
    stage, tp, expert, shard = place()
    last = parallel_state.get_pipeline_model_parallel_world_size() - 1
    kinds: dict[str, tuple[Key, dict[str, Any]]] = {
        "shard": (("shard", stage, tp), {"tensor_model_parallel": True}),
        "whole": (("whole", stage), {}),
        "expert": (
            ("expert", stage, expert, shard),
            {"tensor_model_parallel": True, "allreduce": False},
        ),
        "bias": (("bias", stage, expert), {"allreduce": False}),
    }
    if stage in {0, last}:
        marks = {"tensor_model_parallel": True, "shared": 0 < stage == last}
        kinds["words"] = (("words", tp), marks)
    return {
        name: (key, parameter(name, values(*key), **marks)) for name, (key, marks) in kinds.items()
    }


def spawn(kernbench: Kernbench, ranks: int, work: Callable[[], object], **sizes: Any) -> None:
    def run(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(**sizes)
        # Ranks come at different times.
        for _ in range(5 * (ranks - rank)):
            torch.ones(1, device="cuda")
        work()
        parallel_state.destroy_model_parallel()

    kernbench.spawn(run, nprocs=ranks)


LAYOUTS: list[tuple[int, dict[str, int]]] = [
    (8, {"tp": 2, "pp": 2, "ep": 2, "etp": 2}),
    (8, {"tp": 2, "pp": 2, "ep": 2, "etp": 1}),
    (6, {"tp": 1, "pp": 3, "ep": 2, "etp": 1}),
    (6, {"tp": 3, "pp": 1, "ep": 2, "etp": 1}),
]


def sizes_of(axes: dict[str, int]) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": axes["tp"],
        "pipeline_model_parallel_size": axes["pp"],
        "expert_model_parallel_size": axes["ep"],
        "expert_tensor_parallel_size": axes["etp"],
    }


def whole_model(axes: dict[str, int]) -> Any:
    """Returns all gradients of a layout's model, each once."""
    stages = range(axes["pp"])
    keys: list[Key] = [("words", tp) for tp in range(axes["tp"])]
    for stage in stages:
        keys += [("whole", stage)]
        keys += [("shard", stage, tp) for tp in range(axes["tp"])]
        for expert in range(axes["ep"]):
            keys += [("bias", stage, expert)]
            keys += [("expert", stage, expert, shard) for shard in range(axes["etp"])]
    return np.concatenate([values(*key) for key in keys])


@pytest.mark.parametrize("order", [2.0, 3.0, float("inf")])
@pytest.mark.parametrize(("ranks", "axes"), LAYOUTS)
def test_the_norm_is_that_of_all_stages_and_experts(
    kernbench: Kernbench, ranks: int, axes: dict[str, int], order: float
) -> None:
    everything = whole_model(axes)
    expected = float(np.linalg.norm(everything, order))

    def work() -> None:
        held = mine()
        norm = clip_grad_norm_([p for _, p in held.values()], 0.25 * expected, order)
        np.testing.assert_allclose(norm.item(), expected, rtol=1e-12)
        for key, found in held.values():
            # Clipping adds 1e-6 to the norm, as PyTorch and Megatron do.
            expect = values(*key) * (0.25 * expected / (expected + 1e-6))
            np.testing.assert_allclose(found.grad.cpu().numpy(), expect, rtol=1e-12)

    spawn(kernbench, ranks, work, **sizes_of(axes))


def test_groups_may_be_given(kernbench: Kernbench) -> None:
    ranks, axes = LAYOUTS[1]
    expected = float(np.linalg.norm(whole_model(axes)))

    def work() -> None:
        held = [p for _, p in mine().values()]
        groups = ProcessGroupCollection.use_mpu_process_groups()
        np.testing.assert_allclose(
            clip_grad_norm_(held, 1e9, pg_collection=groups).item(), expected, rtol=1e-12
        )
        tp = parallel_state.get_tensor_model_parallel_group()
        with pytest.raises(RuntimeError, match="groups of experts are not given"):
            clip_grad_norm_(held, 1.0, tp_group=tp)
        with pytest.raises(RuntimeError, match="tp_group or pg_collection, not both"):
            clip_grad_norm_(held, 1.0, tp_group=tp, pg_collection=groups)
        with pytest.raises(RuntimeError, match="takes tp_group, or"):
            finalize_model_grads(torch.nn.Module(), tp_group=tp, pg_collection=groups)

    spawn(kernbench, ranks, work, **sizes_of(axes))


def test_norm_and_clipping_by_themselves(kernbench: Kernbench) -> None:
    def work() -> None:
        tp = parallel_state.get_tensor_model_parallel_rank()
        group = parallel_state.get_tensor_model_parallel_group()
        shard = parameter("shard", values("shard", tp), tensor_model_parallel=True)
        expected = np.linalg.norm(np.concatenate([values("shard", each) for each in range(3)]))
        norm = get_grad_norm_fp32(shard.grad, grad_stats_parallel_group=group)
        np.testing.assert_allclose(norm.item(), expected, rtol=1e-12)
        clip_grad_by_total_norm_fp32(shard, 1.0, 4.0)
        np.testing.assert_allclose(shard.grad.cpu().numpy(), values("shard", tp) / 4, rtol=1e-6)

    spawn(kernbench, 3, work, tensor_model_parallel_size=3)


def test_zeros_are_counted_once(kernbench: Kernbench) -> None:
    ranks, axes = 6, {"tp": 3, "pp": 2, "ep": 1, "etp": 3}

    def work() -> None:
        held = {name: p for name, (_, p) in mine().items() if name not in {"expert", "bias"}}
        group = parallel_state.get_model_parallel_group()
        # Per stage three shards and the whole, three parts of the words: a zero in each.
        assert count_zeros_fp32(held.values(), group).item() == 2 * (3 + 1) + 3

    spawn(kernbench, ranks, work, **sizes_of(axes))


class Stage(torch.nn.Module):
    def __init__(self, **held: Any) -> None:
        super().__init__()
        for name, each in held.items():
            self.register_parameter(name, each)


def test_shared_embeddings_are_summed_over_the_first_and_the_last_stage(
    kernbench: Kernbench,
) -> None:
    def work() -> None:
        stage, tp, *_ = place()
        # Of the words only the first stage has a gradient: the last one takes part all the same.
        held = Stage(
            words=parameter("words", values("words", stage, tp), shared_embedding=stage != 1),
            unused=parameter("unused", values("unused", 0, tp), shared_embedding=stage != 1),
            own=parameter("own", values("own", stage, tp)),
        )
        if stage == 2:
            held.unused.grad = None
        finalize_model_grads(held)
        ends = values("words", 0, tp) + values("words", 2, tp)
        expected = values("words", 1, tp) if stage == 1 else ends
        np.testing.assert_allclose(held.words.grad.cpu().numpy(), expected, rtol=1e-12)
        np.testing.assert_array_equal(held.unused.grad.cpu().numpy(), values("unused", 0, tp))
        np.testing.assert_array_equal(held.own.grad.cpu().numpy(), values("own", stage, tp))

    spawn(kernbench, 6, work, tensor_model_parallel_size=2, pipeline_model_parallel_size=3)


def test_position_embeddings_are_summed_over_their_group(kernbench: Kernbench) -> None:
    def work() -> None:
        stage, *_ = place()
        model = torch.nn.Module()
        if stage != 1:
            model.position_embeddings = Stage(weight=parameter("p", values("p", stage)))
        finalize_model_grads([model])
        if stage != 1:
            found = model.position_embeddings.weight.grad.cpu().numpy()
            np.testing.assert_allclose(found, values("p", 0) + values("p", 2), rtol=1e-12)

    spawn(
        kernbench,
        3,
        work,
        pipeline_model_parallel_size=3,
        get_position_embedding_ranks=lambda ranks: [ranks[0], ranks[-1]],
    )


def test_rows_of_experts_are_summed_over_their_own_group(kernbench: Kernbench) -> None:
    """Two experts on the two ranks of the tensor-parallel group: their biases are not alike."""

    def work() -> None:
        _, tp, expert, _ = place()
        held = Stage(
            norm=parameter("n", values("n", tp), sequence_parallel=True),
            bias=parameter("b", values("b", expert), sequence_parallel=True, allreduce=False),
        )
        finalize_model_grads(held)
        np.testing.assert_allclose(
            held.norm.grad.cpu().numpy(), values("n", 0) + values("n", 1), rtol=1e-12
        )
        np.testing.assert_array_equal(held.bias.grad.cpu().numpy(), values("b", expert))

    spawn(
        kernbench,
        2,
        work,
        tensor_model_parallel_size=2,
        expert_model_parallel_size=2,
        expert_tensor_parallel_size=1,
    )


def test_gradients_are_divided_by_the_tokens_of_all_replicas(kernbench: Kernbench) -> None:
    def work() -> None:
        stage, *_ = place()
        replica = parallel_state.get_data_parallel_rank()
        held = Stage(own=parameter("own", values("own", stage)))
        # The first stage does not know them.
        tokens = torch.tensor([5 + replica if stage else 100], device="cuda")
        finalize_model_grads([held], tokens)
        found = held.own.grad.cpu().numpy()
        np.testing.assert_allclose(found, values("own", stage) / (5 + 6 + 7), rtol=1e-6)
        finalize_model_grads([held], tokens * 0)
        np.testing.assert_array_equal(held.own.grad.cpu().numpy(), found)

    spawn(kernbench, 6, work, pipeline_model_parallel_size=2)


def test_main_grad_stands_for_grad(kernbench: Kernbench) -> None:
    def work() -> None:
        tp = parallel_state.get_tensor_model_parallel_rank()
        held = Stage(rows=parameter("rows", values("rows", tp), sequence_parallel=True))
        held.rows.main_grad = held.rows.grad.float()
        held.rows.grad = None
        finalize_model_grads(held)
        total = sum(values("rows", each).astype(np.float32) for each in range(2))
        np.testing.assert_allclose(held.rows.main_grad.cpu().numpy(), total, rtol=1e-6)
        norm = clip_grad_norm_(held.parameters(), 0.5)
        np.testing.assert_allclose(norm.item(), np.linalg.norm(total), rtol=1e-6)
        np.testing.assert_allclose(
            held.rows.main_grad.cpu().numpy(), total * 0.5 / np.linalg.norm(total), rtol=1e-5
        )

    spawn(kernbench, 2, work, tensor_model_parallel_size=2)
