"""Layers of shared weights are the dense layer: numbers, gradients, messages, time, and errors."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from tp_cases import (
    DTYPES,
    SIZES,
    assert_close,
    assert_same_everywhere,
    draw,
    grad_of,
    leaf,
    part,
    spawn,
)

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.ranks.meeting import CollectiveMismatchError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.torch.distributed.comm_debug import CommDebugMode
from kernbench.torch.nn import functional as F
from kernbench.torch.nn.init import normal_
from kernbench.tp import parallel_state, primitives
from kernbench.tp.config import GemmKernel, ModelParallelConfig
from kernbench.tp.kernels import gemm
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from kernbench.tp.utils import Group

S, B, H, FFN = 8, 2, 16, 32


def init(weight: torch.Tensor) -> torch.Tensor:
    return normal_(weight, std=0.25)


def config(group: Group, **options: Any) -> ModelParallelConfig:
    return ModelParallelConfig(tensor_model_parallel_size=group.size(), **options)


def column(group: Group, settings: ModelParallelConfig, **options: Any) -> ColumnParallelLinear:
    return ColumnParallelLinear(
        H, FFN, config=settings, init_method=init, tp_group=group, **options
    )


def row(group: Group, settings: ModelParallelConfig, **options: Any) -> RowParallelLinear:
    given = {"bias": True, "input_is_parallel": True, "skip_bias_add": False, **options}
    return RowParallelLinear(FFN, H, config=settings, init_method=init, tp_group=group, **given)


class MLP(torch.nn.Module):
    """A column and a row layer, whose biases are not zero."""

    def __init__(self, group: Group, settings: ModelParallelConfig) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.up = column(group, settings)
        self.down = row(group, settings)
        assert self.up.bias is not None
        assert self.down.bias is not None
        with torch.no_grad():
            whole = draw(FFN, seed=11, dtype=settings.params_dtype)
            self.up.bias.copy_(part(whole, group, 0))
            self.down.bias.copy_(draw(H, seed=12, dtype=settings.params_dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.up(x)
        out: torch.Tensor = self.down(F.gelu(y))[0]
        return out


class Dense:
    """The same from the same seed, of plain tensors."""

    def __init__(self, dtype: torch.dtype) -> None:
        torch.manual_seed(7)
        self.up, self.down = (
            init(torch.empty(size, dtype=dtype)).cuda().requires_grad_()
            for size in ((FFN, H), (H, FFN))
        )
        self.up_bias, self.down_bias = (
            leaf(FFN, seed=11, dtype=dtype),
            leaf(H, seed=12, dtype=dtype),
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(F.linear(x, self.up, self.up_bias)), self.down, self.down_bias)


@pytest.mark.parametrize(
    ("size", "kernel", "sequence_parallel"),
    [
        *[(size, kernel, False) for size in SIZES for kernel in ("library", "tile")],
        *[(size, kernel, True) for size in SIZES[1:] for kernel in ("library", "tile")],
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_mlp_is_the_dense_one(
    kernbench: Kernbench,
    size: int,
    dtype: torch.dtype,
    kernel: GemmKernel,
    sequence_parallel: bool,
) -> None:
    def worker(group: Group) -> None:
        settings = config(
            group, params_dtype=dtype, kernel=kernel, sequence_parallel=sequence_parallel
        )
        mlp, dense = MLP(group, settings), Dense(dtype)
        whole, seed = leaf(S, B, H, seed=1, dtype=dtype), draw(S, B, H, seed=2, dtype=dtype)
        expected = dense(whole)
        expected.backward(seed)

        def mine(x: torch.Tensor) -> torch.Tensor:
            return part(x, group, 0) if sequence_parallel else x.detach()

        x = mine(whole).clone().requires_grad_()
        out = mlp(x)
        out.backward(mine(seed))
        assert_close(out, mine(expected))
        assert_close(grad_of(x), mine(grad_of(whole)))
        for found, wanted, dim in (
            (mlp.up.weight, dense.up, 0), (mlp.up.bias, dense.up_bias, 0),
            (mlp.down.weight, dense.down, 1),
        ):  # fmt: skip
            assert_close(grad_of(found), part(grad_of(wanted), group, dim))
        bias = grad_of(mlp.down.bias)
        if sequence_parallel:
            # Of this rank's rows: whoever finalises gradients sums them.
            bias_of_rows: Any = mlp.down.bias
            assert bias_of_rows.sequence_parallel is True
            dist.all_reduce(bias, group=group)
        else:
            assert_same_everywhere(out, group)
            assert_same_everywhere(grad_of(x), group)
        assert_close(bias, grad_of(dense.down_bias))

    spawn(kernbench, size, worker)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_an_mlp_sends_no_more_than_it_must(kernbench: Kernbench, sequence_parallel: bool) -> None:
    def worker(group: Group) -> None:
        mlp = MLP(group, config(group, sequence_parallel=sequence_parallel))
        x = leaf(S // 4 if sequence_parallel else S, B, H, seed=1)
        with CommDebugMode() as forward:
            out = mlp(x)
        with CommDebugMode() as backward:
            out.backward(torch.ones_like(out))
        if sequence_parallel:
            assert forward.get_comm_counts() == {"all_gather": 1, "reduce_scatter": 1}
            # A pair more, and the input of the first layer, which is gathered again.
            assert backward.get_comm_counts() == {"all_gather": 2, "reduce_scatter": 1}
        else:
            assert forward.get_comm_counts() == {"all_reduce": 1}
            assert backward.get_comm_counts() == {"all_reduce": 1}

    spawn(kernbench, 4, worker)


def test_one_rank_sends_nothing(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        mlp = MLP(group, config(group))
        with CommDebugMode() as mode:
            out = mlp(leaf(S, B, H, seed=1))
            out.backward(torch.ones_like(out))
        assert mode.get_total_counts() == 0

    spawn(kernbench, 1, worker)


def test_an_input_without_gradient_needs_no_message(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        layer = column(group, config(group))
        out, _ = layer(draw(S, B, H, seed=1))
        with CommDebugMode() as mode:
            out.backward(torch.ones_like(out))
        assert mode.get_total_counts() == 0
        assert grad_of(layer.weight).shape == (FFN // 4, H)

    spawn(kernbench, 4, worker)


@pytest.mark.parametrize(
    ("sequence_parallel", "collective"), [(False, "all_reduce"), (True, "reduce_scatter")]
)
def test_a_rank_whose_input_alone_needs_no_gradient_is_named(
    kernbench: Kernbench, sequence_parallel: bool, collective: str
) -> None:
    def worker(group: Group) -> None:
        layer = column(group, config(group, sequence_parallel=sequence_parallel))
        x = draw(S, B, H, seed=1).requires_grad_(dist.get_rank() != 2)
        out, _ = layer(x)
        out.sum().backward()
        torch.cuda.synchronize()

    with pytest.raises(SpawnException) as caught:
        spawn(kernbench, 4, worker)
    errors = caught.value.errors
    assert sorted(errors) == [0, 1, 3]
    for error in errors.values():
        assert isinstance(error, CollectiveMismatchError)
        lines = str(error).splitlines()
        assert re.fullmatch(
            rf"\[C1\] {collective} #\d of group WORLD: ranks 0-1, 3 wait for rank 2", lines[0]
        )
        assert lines[1].endswith("out.sum().backward()")
        assert lines[2].startswith("  missing rank 2 returned at ")


@pytest.mark.parametrize(("kernel", "launches"), [(None, 6), ("tile", 6), ("library", 0)])
def test_layers_multiply_with_the_tile_kernel_by_default(
    kernbench: Kernbench, kernel: GemmKernel | None, launches: int
) -> None:
    """Once forward and twice backward, a layer and a rank."""

    def worker(group: Group) -> None:
        settings = config(group) if kernel is None else config(group, kernel=kernel)
        x = leaf(S, B, H, seed=1)
        MLP(group, settings)(x).sum().backward()
        grad_of(x)

    ctx = spawn(kernbench, 2, worker, record="full")
    ranks = [r.rank for r in ctx.engine.op_log.records if r.name == "_gemm_kernel"]
    assert [ranks.count(rank) for rank in (0, 1)] == [launches] * 2


def test_a_layer_may_differ_from_its_configuration(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        layer = column(group, config(group), kernel="library")
        assert layer.kernel == "library"
        assert column(group, config(group)).kernel == "tile"
        layer(draw(S, B, H, seed=1))

    ctx = spawn(kernbench, 2, worker, record="full")
    assert not [r for r in ctx.engine.op_log.records if r.name == "_gemm_kernel"]


@pytest.mark.parametrize(
    ("kernel", "sequence_parallel"), [("library", False), ("library", True), ("tile", False)]
)
def test_the_message_of_the_input_runs_beside_the_product_of_the_weight(
    kernbench: Kernbench, kernel: GemmKernel, sequence_parallel: bool
) -> None:
    h, rows = 512, 512

    def timed(group: Group, work: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier(group)
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def worker(group: Group) -> None:
        settings = config(group, sequence_parallel=sequence_parallel, kernel=kernel)
        mine = rows // group.size() if sequence_parallel else rows

        def backward(weight_too: bool) -> float:
            layer = ColumnParallelLinear(
                h, 4 * h, config=settings, init_method=init, bias=False, tp_group=group
            )
            layer.requires_grad_(weight_too)
            out, _ = layer(torch.ones(mine, 1, h, device="cuda", requires_grad=True))
            seed = torch.ones_like(out)
            return timed(group, lambda: out.backward(seed))

        x, dout = torch.ones(rows, h, device="cuda"), torch.ones(rows, h, device="cuda")
        product = timed(group, lambda: gemm(dout.T, x, kernel=kernel))
        # One after the other would take all of it longer; the message hides nearly half.
        assert backward(True) - backward(False) < 0.6 * product

    spawn(kernbench, 4, worker, data=False)


def test_a_gathered_output_and_a_scattered_input(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        settings = config(group, params_dtype=torch.float64)
        torch.manual_seed(7)
        up = column(group, settings, gather_output=True)
        down = row(group, settings, input_is_parallel=False, skip_bias_add=True)
        dense = Dense(torch.float64)
        x, whole = (leaf(S, B, H, seed=1, dtype=torch.float64) for _ in range(2))
        y, none = up(x)
        assert none is None
        assert y.shape == (S, B, FFN)
        assert up(x, runtime_gather_output=False)[0].shape == (S, B, FFN // 4)
        out, bias = down(F.gelu(y))
        assert bias is down.bias
        expected = F.linear(F.gelu(F.linear(whole, dense.up)), dense.down)
        seed = draw(S, B, H, seed=2, dtype=torch.float64)
        out.backward(seed)
        expected.backward(seed)
        assert_close(out, expected)
        assert_close(grad_of(x), grad_of(whole))
        assert_close(grad_of(up.weight), part(grad_of(dense.up), group, 0))
        assert_close(grad_of(down.weight), part(grad_of(dense.down), group, 1))

    spawn(kernbench, 4, worker)


def test_a_bias_that_is_left_to_the_caller(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        layer = column(group, config(group), skip_bias_add=True)
        x = draw(S, B, H, seed=1)
        out, bias = layer(x)
        assert bias is layer.bias
        assert layer.weight is not None
        assert_close(out, F.linear(x, layer.weight))
        assert column(group, config(group), bias=False).bias is None

    spawn(kernbench, 2, worker)


@pytest.mark.parametrize(("dim", "stride"), [(0, 1), (0, 2), (1, 1), (1, 4)])
def test_shards_are_parts_of_the_dense_weight(kernbench: Kernbench, dim: int, stride: int) -> None:
    def worker(group: Group) -> None:
        torch.manual_seed(3)
        make = column if dim == 0 else row
        layer: Any = make(group, config(group), stride=stride, keep_master_weight_for_test=True)
        after = torch.rand(1).item()
        torch.manual_seed(3)
        master = init(torch.empty((FFN, H) if dim == 0 else (H, FFN), device="cpu"))
        assert torch.rand(1).item() == after
        torch.testing.assert_close(layer.master_weight, master, rtol=0, atol=0)
        pieces = master.chunk(4 * stride, dim)
        mine = [pieces[dist.get_rank() + 4 * turn] for turn in range(stride)]
        torch.testing.assert_close(
            layer.weight.detach().cpu(), torch.cat(mine, dim), rtol=0, atol=0
        )
        marks = layer.weight.tensor_model_parallel, layer.weight.partition_dim
        assert marks == (True, dim)
        assert layer.weight.partition_stride == stride

    spawn(kernbench, 4, worker)


def test_a_weight_that_is_given(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        layer = column(group, config(group), skip_weight_param_allocation=True, bias=False)
        assert layer.weight is None
        weight, x = draw(FFN // 2, H, seed=3), draw(S, B, H, seed=1)
        assert_close(layer(x, weight)[0], F.linear(x, weight))
        with pytest.raises(RuntimeError) as caught:
            layer(x)
        assert str(caught.value).splitlines()[0] == (
            "weight was not supplied to ColumnParallelLinear forward pass and "
            "skip_weight_param_allocation is True."
        )
        with pytest.raises(RuntimeError) as caught:
            layer(x, weight[:3])
        assert str(caught.value).splitlines()[0] == (
            "supplied weight's shape is (3, 16), not (16, 16) as expected"
        )

    spawn(kernbench, 2, worker)


def test_weights_that_nobody_initialises(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        layer = row(group, config(group, perform_initialization=False))
        assert layer.weight.shape == (H, FFN // 2)
        layer.weight.tolist()

    with pytest.raises(SpawnException, match="never written"):
        spawn(kernbench, 2, worker)


def test_layers_of_experts_leave_messages_to_the_dispatcher(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        settings = config(group, sequence_parallel=True, expert_model_parallel_size=2)
        up = column(group, settings, is_expert=True)
        down = row(group, settings, is_expert=True, bias=False)
        with CommDebugMode() as mode:
            out, _ = down(up(leaf(S, B, H, seed=1))[0])
            out.backward(torch.ones_like(out))
        assert mode.get_total_counts() == 0
        weight: Any = up.weight
        assert weight.allreduce is False
        with pytest.raises(RuntimeError, match="needs `skip_bias_add`, or no bias"):
            row(group, settings, is_expert=True)

    spawn(kernbench, 2, worker)


def test_errors(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        settings = config(group, sequence_parallel=True)

        def text(error: type[Exception], make: Any) -> str:
            with pytest.raises(error) as caught:
                make()
            return str(caught.value).splitlines()[0]

        def odd(kind: Any, **options: Any) -> Any:
            return lambda: kind(
                15, 15, config=config(group), init_method=init, tp_group=group, **options
            )

        assert text(AssertionError, odd(ColumnParallelLinear)) == "15 is not divisible by 2"
        assert (
            text(
                AssertionError,
                odd(RowParallelLinear, bias=True, input_is_parallel=True, skip_bias_add=False),
            )
            == "15 is not divisible by 2"
        )
        assert text(AssertionError, odd(VocabParallelEmbedding)) == "15 is not divisible by 2"
        assert text(RuntimeError, lambda: row(group, settings, input_is_parallel=False)) == (
            "To enable `sequence_parallel`, `input_is_parallel` must be `True`"
        )
        layer = column(group, settings)
        layer.allreduce_dgrad = True
        assert text(RuntimeError, lambda: layer(draw(S // 2, B, H, seed=1))) == (
            "`allreduce_dgrad` and `sequence_parallel` cannot be enabled at the same time"
        )

    spawn(kernbench, 2, worker)


def test_sequence_parallelism_of_one_rank_is_switched_off(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        for make in (column, row):
            text = (
                "`sequence_parallel` is set to `True`, but tensor model parallel size is 1. "
                "Disabling sequence parallel."
            )
            with pytest.warns(UserWarning, match=f"^{re.escape(text)}$"):
                layer: Any = make(group, config(group, sequence_parallel=True))
            assert layer.sequence_parallel is False

    spawn(kernbench, 1, worker)


def test_reprs(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        assert repr(column(group, config(group))) == (
            "ColumnParallelLinear(in_features=16, out_features=16, bias=True, tp=2)"
        )
        assert repr(row(group, config(group), bias=False)) == (
            "RowParallelLinear(in_features=16, out_features=16, bias=False, tp=2)"
        )
        table = VocabParallelEmbedding(8, 4, init_method=init, config=config(group), tp_group=group)
        assert repr(table) == "VocabParallelEmbedding(8, 4, tp=2)"

    spawn(kernbench, 2, worker)


def test_groups_of_the_calling_rank_are_the_default(kernbench: Kernbench) -> None:
    def run(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
        settings = ModelParallelConfig(tensor_model_parallel_size=2)
        for expert in (False, True):
            layer = ColumnParallelLinear(
                H, FFN, config=settings, init_method=init, is_expert=expert
            )
            first = rank - rank % 2
            assert dist.get_process_group_ranks(layer.tp_group) == [first, first + 1]
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    kernbench.spawn(run, nprocs=4)


def test_plain_functions_do_the_same_without_autograd(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        layer = column(group, config(group))
        x, seed = leaf(S, B, H, seed=1), draw(S, B, FFN // 2, seed=2)
        out, _ = layer(x)
        out.backward(seed)
        assert layer.weight is not None
        options = primitives.LinearOptions(group, allreduce_dgrad=True)
        with torch.no_grad():
            plain, saved = primitives.linear_fwd(x, layer.weight, layer.bias, options)
            grads = primitives.linear_bwd(saved, seed)
            assert primitives.linear_bwd(saved, seed, (False, False, False)) == (None,) * 3
        assert plain.tolist() == out.tolist()
        for found, of in zip(grads, (x, layer.weight, layer.bias), strict=True):
            assert found is not None
            assert found.tolist() == grad_of(of).tolist()

    spawn(kernbench, 2, worker)


# Embeddings


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_an_embedding_is_the_dense_one(
    kernbench: Kernbench, size: int, dtype: torch.dtype, scattered: bool
) -> None:
    vocabulary = 16

    def worker(group: Group) -> None:
        torch.manual_seed(5)
        layer = VocabParallelEmbedding(
            vocabulary, H, init_method=init, config=config(group, params_dtype=dtype),
            reduce_scatter_embeddings=scattered, tp_group=group,
        )  # fmt: skip
        torch.manual_seed(5)
        dense = init(torch.empty(vocabulary, H, dtype=dtype)).cuda().requires_grad_()
        # Neither id 0 nor the first id of any rank, so that no row 0 is used.
        ids = (torch.arange(B * S, device="cuda") % (vocabulary - 1)).reshape(B, S)
        ids = torch.where(ids % 2 == 0, ids + 1, ids)
        out, expected = layer(ids), F.embedding(ids, dense)
        seed = draw(B, S, H, seed=2, dtype=dtype)
        expected.backward(seed)
        if scattered:
            out.backward(part(seed.transpose(0, 1), group, 0))
            assert_close(out, part(expected.transpose(0, 1), group, 0))
        else:
            out.backward(seed)
            assert_close(out, expected)
            assert_same_everywhere(out, group)
        grad = grad_of(layer.weight)
        assert_close(grad, part(grad_of(dense), group, 0))
        assert grad[0].tolist() == [0.0] * H

    spawn(kernbench, size, worker)
