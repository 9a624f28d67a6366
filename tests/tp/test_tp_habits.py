"""Arguments and functions that Megatron's users pass and call out of habit."""

from typing import Any

import numpy as np
import pytest
from tp_cases import draw, grad_of, leaf, spawn

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import tp
from kernbench.errors import KernbenchError
from kernbench.parallel import parallel_state as ps
from kernbench.testing import Kernbench
from kernbench.torch.distributed.comm_debug import CommDebugMode
from kernbench.torch.nn.init import normal_
from kernbench.tp.affine import _initialize_affine_weight_cpu, _initialize_affine_weight_gpu
from kernbench.tp.config import ModelParallelConfig
from kernbench.tp.utils import Group

IN, OUT = 4, 12


def normal(weight: torch.Tensor) -> torch.Tensor:
    return normal_(weight, std=0.5)


# Arguments


def test_names_of_layers_change_nothing(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        config = ModelParallelConfig()
        found = []
        for names in ({}, {"tp_comm_buffer_name": "fc1", "name": "decoder.0.fc1"}):
            torch.manual_seed(1)
            options: dict[str, Any] = {
                "config": config,
                "init_method": normal,
                "tp_group": group,
                **names,
            }
            up: Any = tp.ColumnParallelLinear(
                IN, OUT, embedding_activation_buffer=[], grad_output_buffer=[], **options
            )
            down: Any = tp.RowParallelLinear(
                OUT, IN, bias=False, input_is_parallel=True, skip_bias_add=False, **options
            )
            x = leaf(2, 1, IN, seed=1)
            down(up(x)[0])[0].sum().backward()
            assert up.name == down.name == names.get("name")
            assert up.embedding_activation_buffer == up.grad_output_buffer == []
            params = [*up.parameters(), *down.parameters()]
            found.append([grad_of(each).tolist() for each in (x, *params)])
        assert found[0] == found[1]

    spawn(kernbench, 3, worker)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("rows", [False, True])
def test_linear_functions_give_the_dense_gradients(
    kernbench: Kernbench, rows: bool, frozen: bool
) -> None:
    order = [2, 0, 1]

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        group = dist.new_group(order, sort_ranks=False)
        place = group.rank()
        whole = draw(6, 1, IN, seed=1, dtype=torch.float64)
        dense = draw(OUT, IN, seed=2, dtype=torch.float64)
        mine = slice(place * 4, place * 4 + 4)
        x = (whole[place * 2 : place * 2 + 2] if rows else whole).clone().requires_grad_()
        weight = dense[mine].clone().requires_grad_()
        bias = leaf(4, seed=3, dtype=torch.float64)
        dout = draw(6, 1, OUT, seed=4, dtype=torch.float64)
        if frozen:
            y = tp.linear_with_frozen_weight(x, weight, bias, False, not rows, rows, group)
        else:
            y = tp.linear_with_grad_accumulation_and_async_allreduce(
                x, weight, bias, False, not rows, rows, tp_group=group
            )
        y.backward(dout[..., mine])
        a, w, g = (each.cpu().numpy() for each in (whole, dense, dout))
        np.testing.assert_allclose(
            y.detach().cpu().numpy(),
            (a @ w.T)[..., mine] + bias.detach().cpu().numpy(),
            rtol=1e-12,
        )
        dx = g @ w
        expected = dx[place * 2 : place * 2 + 2] if rows else dx
        np.testing.assert_allclose(grad_of(x).cpu().numpy(), expected, atol=1e-12)
        if frozen:
            assert weight.grad is None
            assert bias.grad is None
        else:
            dw = np.einsum("sbo,sbi->oi", g, a)[mine]
            np.testing.assert_allclose(grad_of(weight).cpu().numpy(), dw, atol=1e-12)
            np.testing.assert_allclose(grad_of(bias).cpu().numpy(), g.sum((0, 1))[mine], atol=1e-12)
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=3)


def test_linear_functions_refuse_what_they_do_not_take(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        x, weight = leaf(2, 1, IN, seed=1), leaf(OUT, IN, seed=2)
        given: tuple[Any, ...] = (x, weight, None, False, False, False)
        buffer: Any = []
        frozen: Any = tp.linear_with_frozen_weight
        trained: Any = tp.linear_with_grad_accumulation_and_async_allreduce
        for option in ({"grad_output_buffer": buffer}, {"wgrad_deferral_limit": 1}):
            with pytest.raises(AssertionError, match="is only supported with linear_with_grad"):
                frozen(*given, group, **option)
        with pytest.raises(RuntimeError, match="only with gradient_accumulation_fusion"):
            trained(*given, buffer, tp_group=group)
        for function in (frozen, trained):
            with pytest.warns(UserWarning, match="Please use allreduce_dgrad instead"):
                function(*given, tp_group=group, async_grad_allreduce=False)
        gather: Any = tp.gather_from_sequence_parallel_region
        for mapping in (gather, tp.reduce_scatter_to_sequence_parallel_region):
            with pytest.raises(NotImplementedError, match=r"use_global_buffer=True\) is not"):
                mapping(x, group=group, use_global_buffer=True)

    spawn(kernbench, 2, worker)


# Gradients that are put off


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("limit", [0, 2])
def test_gradients_of_an_output_layer_are_put_off(
    kernbench: Kernbench, limit: int, rows: bool
) -> None:
    def worker(group: Group) -> None:
        found = []
        for later in (False, True):
            torch.manual_seed(7)
            config = ModelParallelConfig(
                gradient_accumulation_fusion=True,
                sequence_parallel=rows,
                defer_embedding_wgrad_compute=later,
                wgrad_deferral_limit=limit if later else 0,
            )
            inputs: list[torch.Tensor] = []
            grads: list[torch.Tensor] = []
            layer: Any = tp.ColumnParallelLinear(
                IN,
                OUT,
                config=config,
                init_method=normal,
                tp_group=group,
                embedding_activation_buffer=inputs,
                grad_output_buffer=grads,
            )
            layer.weight.main_grad = torch.zeros(layer.weight.shape, device="cuda")
            sources = []
            for batch in range(3):
                seed = 10 * batch + (dist.get_rank(group) if rows else 0)
                x = leaf(2, 1, IN, seed=seed)
                layer(x)[0].pow(2).sum().backward()
                assert layer.weight.grad is None
                sources.append(grad_of(x).tolist())
            if later:
                assert len(inputs) == len(grads) == (limit or 3)
                with CommDebugMode() as mode:
                    tp.drain_embedding_wgrad_compute(
                        config, inputs, grads, layer.weight, tp_group=group
                    )
                gathered = {"all_gather": limit or 3} if rows else {}
                assert mode.get_comm_counts() == gathered
                assert inputs == grads == []
            found.append((sources, layer.weight.main_grad))
        assert found[0][0] == found[1][0]
        torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-5, atol=1e-5)

    spawn(kernbench, 3, worker)


def test_what_is_put_off_is_refused_without_its_parts(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        with pytest.raises(ValueError, match="gradient accumulation fusion is not used"):
            ModelParallelConfig(defer_embedding_wgrad_compute=True)
        with pytest.raises(ValueError, match="wgrad_deferral_limit=-1: expected at least 0"):
            ModelParallelConfig(wgrad_deferral_limit=-1)
        config = ModelParallelConfig(
            gradient_accumulation_fusion=True, defer_embedding_wgrad_compute=True
        )
        with pytest.raises(RuntimeError, match="needs embedding_activation_buffer and"):
            tp.ColumnParallelLinear(
                IN, OUT, config=config, init_method=normal, tp_group=group, grad_output_buffer=[]
            )
        x = draw(2, 1, IN, seed=1)
        with pytest.raises(AssertionError, match="1 inputs for 0 gradients"):
            tp.drain_embedding_wgrad_compute(config, [x], [], draw(OUT, IN, seed=1), group)

    spawn(kernbench, 1, worker)


# What a parameter says


def test_attributes_of_parameters(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        part: Any = torch.nn.Parameter(torch.zeros(2))
        tp.set_tensor_model_parallel_attributes(part, True, 1, 2)
        found = (part.tensor_model_parallel, part.partition_dim, part.partition_stride)
        assert found == (True, 1, 2)
        with pytest.raises(AssertionError, match="has tensor_model_parallel already") as caught:
            tp.set_tensor_model_parallel_attributes(part, True, 1, 2)
        assert isinstance(caught.value, KernbenchError)
        copy: Any = torch.nn.Parameter(torch.zeros(2))
        tp.copy_tensor_model_parallel_attributes(copy, part)
        assert (copy.tensor_model_parallel, copy.partition_dim) == (True, 1)
        assert not hasattr(copy, "is_qkv")
        tp.set_defaults_if_not_set_tensor_model_parallel_attributes(copy)
        assert (copy.is_qkv, copy.expert_tp, copy.partition_stride) == (False, False, 2)
        whole: Any = torch.nn.Parameter(torch.zeros(2))
        tp.set_defaults_if_not_set_tensor_model_parallel_attributes(whole)
        assert (whole.tensor_model_parallel, whole.partition_dim) == (False, -1)
        assert tp.param_is_not_tensor_parallel_duplicate(part, group)
        first = dist.get_rank(group) == 0
        assert tp.param_is_not_tensor_parallel_duplicate(whole, tp_group=group) == first

    spawn(kernbench, 2, worker)


def test_first_values_of_a_part(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(3, order="dp-tp")
        torch.manual_seed(4)
        generator = torch.Generator().manual_seed(4)
        dense = torch.randn(12, 2, generator=generator)
        for options, place in (
            ({}, rank // 2),
            ({"rank": 2, "world_size": 3}, 2),
        ):
            torch.manual_seed(4)
            part: Any = torch.nn.Parameter(torch.zeros(4, 2, device="cuda"))
            given: dict[str, Any] = options
            master = _initialize_affine_weight_cpu(
                part, 12, 2, 4, 0, torch.nn.init.normal_, 2, True, **given
            )
            assert master is not None
            assert master.tolist() == dense.tolist()
            rows = [2 * place, 2 * place + 1, 6 + 2 * place, 7 + 2 * place]
            assert part.tolist() == [dense[row].tolist() for row in rows]
            assert (part.partition_dim, part.partition_stride) == (0, 2)
        half: Any = torch.nn.Parameter(torch.zeros(4, 2, device="cuda"))
        with pytest.raises(AssertionError, match=r"\(rank=1\) needs world_size too"):
            _initialize_affine_weight_cpu(half, 12, 2, 4, 0, torch.nn.init.normal_, rank=1)
        tp.model_parallel_cuda_manual_seed(9)
        for is_expert, seed in ((False, 9 + 2718 + rank // 2), (True, 9 + 1024 + rank // 2)):
            part = torch.nn.Parameter(torch.zeros(4, 2, device="cuda"))
            _initialize_affine_weight_gpu(part, torch.nn.init.normal_, 0, is_expert=is_expert)
            drawn = torch.randn(4, 2, generator=torch.Generator().manual_seed(seed))
            assert part.tolist() == drawn.tolist()
        ps.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=6)
