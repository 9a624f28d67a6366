"""What layers are given and cannot take is refused in sentences, alike by both kernels."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tp_cases import draw, spawn

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError
from kernbench.process.process import current_process
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.torch.distributed.comm_debug import CommDebugMode
from kernbench.torch.nn.init import normal_
from kernbench.tp import parallel_state
from kernbench.tp.config import GemmKernel, ModelParallelConfig
from kernbench.tp.cross_entropy import vocab_parallel_cross_entropy
from kernbench.tp.kernels import gemm
from kernbench.tp.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    parallel_linear,
)
from kernbench.tp.utils import Group, broadcast_data

KERNELS: list[GemmKernel] = ["tile", "library"]
IN, OUT = 8, 16


def column(group: Group, **options: Any) -> ColumnParallelLinear:
    config = ModelParallelConfig(sequence_parallel=options.pop("sequence_parallel", False))
    return ColumnParallelLinear(
        IN, OUT, config=config, init_method=normal_, tp_group=group, **options
    )


def row(group: Group, **options: Any) -> RowParallelLinear:
    given = {"bias": False, "input_is_parallel": True, "skip_bias_add": False, **options}
    return RowParallelLinear(
        IN, OUT, config=ModelParallelConfig(), init_method=normal_, tp_group=group, **given
    )


def refused(make: Callable[[], object], kind: type[Exception] = RuntimeError) -> str:
    """Returns the first line of the error, which names this file; nothing was issued."""
    host = current_process().host
    before = host.clock
    with CommDebugMode() as mode, pytest.raises(kind) as caught:
        make()
    assert mode.get_total_counts() == 0
    assert host.clock == before
    assert isinstance(caught.value, KernbenchError)
    assert re.search(r"\n  at .*test_tp_operands\.py:\d+:\d+: ", str(caught.value))
    return str(caught.value).splitlines()[0]


# Products


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("width", [IN - 1, IN + 1])
def test_an_input_of_another_width(kernbench: Kernbench, kernel: GemmKernel, width: int) -> None:
    def worker(group: Group) -> None:
        x = draw(3, 2, width, seed=1)
        text = "mat1 and mat2 shapes cannot be multiplied"
        layer = column(group, kernel=kernel)
        assert refused(lambda: layer(x)) == f"{text} (6x{width} and 8x8)"
        gathers = column(group, kernel=kernel, sequence_parallel=True)
        assert refused(lambda: gathers(x)) == f"{text} (6x{width} and 8x8)"
        shared = row(group, kernel=kernel)
        assert refused(lambda: shared(x)) == f"{text} (6x{width} and 4x16)"
        scatters = row(group, kernel=kernel, input_is_parallel=False)
        assert refused(lambda: scatters(x)) == f"{text} (6x{width} and 8x16)"

    spawn(kernbench, 2, worker)


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_input_of_another_type_or_place(kernbench: Kernbench, kernel: GemmKernel) -> None:
    def worker(group: Group) -> None:
        layer = column(group, kernel=kernel, bias=False)
        half, there = draw(3, IN, seed=1).half(), torch.ones(3, IN, device="cpu")
        assert refused(lambda: layer(half)) == (
            "matmul: expected the operands to have the same dtype, but got: torch.float16 != "
            "torch.float32"
        )
        assert "Expected all tensors to be on the same device" in refused(lambda: layer(there))
        single = torch.tensor(1.0, device="cuda")
        assert refused(lambda: layer(single)).startswith("both arguments to matmul need to be at")

    spawn(kernbench, 2, worker)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_weight_and_a_bias_that_do_not_fit(kernbench: Kernbench, kernel: GemmKernel) -> None:
    def worker(group: Group) -> None:
        x, weight = draw(3, IN, seed=1), draw(OUT, IN, seed=2)

        def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Callable[[], object]:
            return lambda: parallel_linear(
                x, weight, bias, allreduce_dgrad=False, sequence_parallel=False,
                tp_group=group, kernel=kernel,
            )  # fmt: skip

        for shape in ([1], [OUT - 1], [3, OUT]):
            wrong = torch.ones(*shape, device="cuda")
            assert refused(linear(weight, wrong)) == (
                f"addmm: a bias of shape {shape} does not fit a product of shape [3, 16]"
            )
        double = torch.ones(OUT, device="cuda", dtype=torch.float64)
        assert refused(linear(weight, double)).startswith("addmm: expected the operands to have")
        assert refused(linear(weight[None])) == ("weight must be a matrix; it has shape [1, 16, 8]")

    spawn(kernbench, 1, worker)


@pytest.mark.parametrize("kernel", KERNELS)
def test_products_of_matrices_that_do_not_fit(kernbench: Kernbench, kernel: GemmKernel) -> None:
    def worker(group: Group) -> None:
        del group
        a, b = draw(2, 3, seed=1), draw(4, 5, seed=2)
        assert refused(lambda: gemm(a, b, kernel=kernel)) == (
            "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"
        )
        cube = draw(1, 2, 3, seed=1)
        assert refused(lambda: gemm(cube, b, kernel=kernel)) == (
            "a must be a matrix; it has shape [1, 2, 3]"
        )

    spawn(kernbench, 1, worker)


def test_the_tile_kernel_multiplies_no_integers(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        del group
        ones = torch.ones(2, 2, device="cuda", dtype=torch.int64)
        assert refused(lambda: gemm(ones, ones, kernel="tile")) == (
            "kernel='tile' multiplies floating-point numbers; got torch.int64"
        )
        assert gemm(ones, ones, kernel="library").tolist() == [[2, 2], [2, 2]]

    spawn(kernbench, 1, worker)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_bias_of_any_stride(kernbench: Kernbench, kernel: GemmKernel) -> None:
    def worker(group: Group) -> None:
        del group
        a, b, wide = draw(2, 3, seed=1), draw(3, 5, seed=2), draw(10, seed=3)
        found = gemm(a, b, wide[::2], kernel=kernel)
        expected = a.cpu().numpy() @ b.cpu().numpy() + wide.cpu().numpy()[::2]
        np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-5, atol=1e-6)

    spawn(kernbench, 1, worker)


# Ids


def failed(
    kernbench: Kernbench, size: int, summary: str, worker: Callable[[Group], object]
) -> None:
    """Checks that ranks fail for what they asked for themselves, at the line that has `here`."""
    with pytest.raises(SpawnException) as caught:
        spawn(kernbench, size, worker)
    # Ranks that were aborted first have no error.
    assert caught.value.errors
    for error in caught.value.errors.values():
        assert isinstance(error, IndexError)
        assert isinstance(error, KernbenchError)
        assert (error.code, error.summary) == ("M1", summary)
        assert re.search(r"test_tp_operands\.py:\d+:\d+: .*# here", str(error))


@pytest.mark.parametrize("wrong", [99, 8, -3])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_id_that_no_rank_has(kernbench: Kernbench, size: int, wrong: int) -> None:
    def worker(group: Group) -> None:
        table = VocabParallelEmbedding(
            8, 4, init_method=normal_, config=ModelParallelConfig(), tp_group=group
        )
        ids = torch.tensor([[0, 7, wrong]], device="cuda")
        out = table(ids)  # here
        out.tolist()

    summary = f"embedding: index {wrong} is out of bounds for dimension 0 with size 8"
    failed(kernbench, size, summary, worker)


@pytest.mark.parametrize("wrong", [8, 99])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_target_that_no_rank_has(kernbench: Kernbench, size: int, wrong: int) -> None:
    def worker(group: Group) -> None:
        logits = draw(3, 1, 8 // size, seed=1)
        target = torch.tensor([[0], [7], [wrong]], device="cuda")
        loss = vocab_parallel_cross_entropy(logits, target, 0.0, group)  # here
        loss.tolist()

    summary = f"cross_entropy: index {wrong} is out of bounds for dimension 2 with size 8"
    failed(kernbench, size, summary, worker)


def test_ids_are_looked_at_in_no_time(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        table = VocabParallelEmbedding(
            8, 4, init_method=normal_, config=ModelParallelConfig(), tp_group=group
        )
        ids = torch.arange(8, device="cuda").reshape(2, 4)
        _ = ids - 3
        table(ids)
        vocab_parallel_cross_entropy(draw(2, 4, 4, seed=1), ids, 0.0, group)
        torch.cuda.synchronize()

    ctx = spawn(kernbench, 2, worker, record="full")
    ids = [r for r in ctx.engine.op_log.records if r.name == "aten::sub" and r.rank == 0][:3]
    assert len({r.end - r.start for r in ids}) == 1
    assert len(ids) == 3


def test_ids_without_values(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        table = VocabParallelEmbedding(
            8, 4, init_method=normal_, config=ModelParallelConfig(), tp_group=group
        )
        assert table(torch.full((1, 2), 99, device="cuda")).shape == (1, 2, 4)
        torch.cuda.synchronize()

    spawn(kernbench, 2, worker, data=False)


def test_ids_that_are_no_integers(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        table = VocabParallelEmbedding(
            8, 4, init_method=normal_, config=ModelParallelConfig(), tp_group=group
        )
        floats, logits = torch.ones(1, 2, device="cuda"), draw(1, 2, 4, seed=1)
        expected = "expected an index tensor of int64 or int32, got torch.float32"
        assert refused(lambda: table(floats), TypeError) == f"embedding: {expected}"
        assert (
            refused(lambda: vocab_parallel_cross_entropy(logits, floats, 0.0, group), TypeError)
            == f"cross_entropy: {expected}"
        )

    spawn(kernbench, 2, worker)


# Sizes


@pytest.mark.parametrize("stride", [0, -2, 2.0, "2"])
def test_strides_that_are_no_number_of_weights(kernbench: Kernbench, stride: Any) -> None:
    def worker(group: Group) -> None:
        expected = f"stride={stride!r}: expected a whole number of at least 1"
        assert refused(lambda: column(group, stride=stride), AssertionError) == expected
        assert refused(lambda: row(group, stride=stride), AssertionError) == expected
        assert (
            refused(
                lambda: column(group, stride=stride, skip_weight_param_allocation=True),
                AssertionError,
            )
            == expected
        )

    spawn(kernbench, 2, worker)


def test_smoothing_with_a_single_class(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        logits, target = draw(2, 1, 1, seed=1), torch.zeros(2, 1, device="cuda", dtype=torch.int64)
        assert refused(
            lambda: vocab_parallel_cross_entropy(logits, target, 0.1, group), AssertionError
        ) == ("label_smoothing=0.1 needs another class to give a share to; the vocabulary has 1")
        assert vocab_parallel_cross_entropy(logits, target, 0.0, group).tolist() == [[0.0], [0.0]]

    spawn(kernbench, 1, worker)


def test_data_that_nobody_gives(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        text = refused(lambda: broadcast_data(["x"], None, torch.int64, group), AssertionError)
        assert text == (
            "broadcast_data: the first rank of the group gives the data, and its data is None"
        )

    spawn(kernbench, 1, worker)


# Configurations


@pytest.mark.parametrize(
    ("field", "words", "ranks"),
    [
        ("tensor_model_parallel_size", "tensor model parallel", 2),
        ("context_parallel_size", "context parallel", 2),
        ("expert_model_parallel_size", "expert model parallel", 4),
    ],
)
def test_a_configuration_that_contradicts_its_groups(
    kernbench: Kernbench, field: str, words: str, ranks: int
) -> None:
    def run(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(
            2, context_parallel_size=2, expert_model_parallel_size=4,
            expert_tensor_parallel_size=1,
        )  # fmt: skip
        for said in (1, 8, ranks, None):
            config = ModelParallelConfig()
            setattr(config, field, said)
            for make in (
                lambda c=config: ColumnParallelLinear(8, 8, config=c, init_method=normal_),
                lambda c=config: RowParallelLinear(
                    8, 8, config=c, init_method=normal_,
                    bias=True, input_is_parallel=True, skip_bias_add=False,
                ),
                lambda c=config: VocabParallelEmbedding(8, 8, config=c, init_method=normal_),
            ):  # fmt: skip
                if said in {ranks, None}:
                    make()
                else:
                    assert refused(make) == (
                        f"ModelParallelConfig({field}={said}), but the {words} group of the layer "
                        f"has {ranks} ranks"
                    )
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    kernbench.spawn(run, nprocs=8)


def test_the_layers_of_experts_find_how_many_share_them(kernbench: Kernbench) -> None:
    def run(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(
            2, expert_model_parallel_size=2, expert_tensor_parallel_size=1
        )
        # The size of other layers' groups says nothing of those of experts.
        config = ModelParallelConfig(tensor_model_parallel_size=2)
        expert, other = (
            ColumnParallelLinear(8, 8, config=config, init_method=normal_, is_expert=is_expert)
            for is_expert in (True, False)
        )
        assert (expert.explicit_expert_comm, other.explicit_expert_comm) == (True, False)
        marks: list[Any] = [expert.weight, expert.bias, other.weight, other.bias]
        assert [each.allreduce for each in marks] == [False, False, True, True]
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    kernbench.spawn(run, nprocs=4)


def test_a_group_that_is_given_is_compared_alone(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        config = ModelParallelConfig(context_parallel_size=4)
        ColumnParallelLinear(8, 8, config=config, init_method=normal_, tp_group=group)
        wrong = ModelParallelConfig(tensor_model_parallel_size=4)
        assert refused(
            lambda: ColumnParallelLinear(8, 8, config=wrong, init_method=normal_, tp_group=group)
        ).startswith("ModelParallelConfig(tensor_model_parallel_size=4), but the tensor model")

    spawn(kernbench, 2, worker)


ROW = {"bias": True, "input_is_parallel": True, "skip_bias_add": False}


@pytest.mark.parametrize(
    ("layer", "more"),
    [(ColumnParallelLinear, {}), (RowParallelLinear, ROW), (VocabParallelEmbedding, {})],
)
def test_a_layer_without_a_configuration_or_first_values(
    kernbench: Kernbench, layer: Callable[..., Any], more: dict[str, Any]
) -> None:
    def make(config: Any, init_method: Any) -> Any:
        group = dist.group.WORLD
        return layer(8, 8, config=config, init_method=init_method, tp_group=group, **more)

    def run(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        for config in (None, {"sequence_parallel": True}):
            told = refused(lambda given=config: make(given, normal_), TypeError)  # type: ignore[misc]
            kind = type(config).__name__
            assert told == f"argument 'config' must be a ModelParallelConfig; got {kind}"
        assert refused(lambda: make(ModelParallelConfig(), None), TypeError) == (
            "argument 'init_method' must be a function that fills a weight in place; got NoneType"
        )
        make(ModelParallelConfig(perform_initialization=False), None)
        dist.destroy_process_group()

    kernbench.spawn(run, nprocs=2)
