"""Names and signatures are Megatron-Core's.

Read in https://github.com/NVIDIA/Megatron-LM, below megatron/core: `parallel_state.py`,
`tensor_parallel/mappings.py` and `tensor_parallel/data.py` at commit 00caa53a; `cross_entropy.py`
at 00611e6e, `random.py` at 004bfb56, `layers.py` at 000c4ac2, `utils.py` at 17b8a8a7, `__init__.py`
at bae83e49. What later versions have added is marked below: `name=` of linear layers, `tp_group=`
in `utils.py` and of `param_is_not_tensor_parallel_duplicate`.
"""

import inspect
import re
from typing import Any

import pytest

import kernbench.torch as torch
from kernbench import tp
from kernbench.parallel import parallel_state as ps
from kernbench.tp import affine, linear

# Parameters after `*` have a star before their name.
SIGNATURES: dict[str, str] = {
    "vocab_parallel_cross_entropy": (
        "vocab_parallel_logits target label_smoothing=0.0 tp_group=None"
    ),
    "broadcast_data": "keys data datatype tp_group=None",
    "ColumnParallelLinear": (
        "input_size output_size *config *init_method *bias=True *gather_output=False *stride=1 "
        "*keep_master_weight_for_test=False *skip_bias_add=False "
        "*skip_weight_param_allocation=False *embedding_activation_buffer=None "
        "*grad_output_buffer=None *is_expert=False *tp_comm_buffer_name=None "
        "*disable_grad_reduce=False *tp_group=None *name=None"  # `name` is of a later version
    ),
    "RowParallelLinear": (
        "input_size output_size *config *init_method *bias *input_is_parallel *skip_bias_add "
        "*stride=1 *keep_master_weight_for_test=False *is_expert=False *tp_comm_buffer_name=None "
        "*tp_group=None *name=None"  # `name` is of a later version
    ),
    "VocabParallelEmbedding": (
        "num_embeddings embedding_dim *init_method *reduce_scatter_embeddings=False *config "
        "*tp_group=None"
    ),
    "set_tensor_model_parallel_attributes": "tensor is_parallel dim stride",
    "set_defaults_if_not_set_tensor_model_parallel_attributes": "tensor",
    "copy_tensor_model_parallel_attributes": "destination_tensor source_tensor",
    "param_is_not_tensor_parallel_duplicate": "param tp_group=None",  # of a later version
    "linear_with_grad_accumulation_and_async_allreduce": (
        "input weight bias gradient_accumulation_fusion allreduce_dgrad sequence_parallel "
        "grad_output_buffer=None wgrad_deferral_limit=0 async_grad_allreduce=None tp_group=None"
    ),
    "linear_with_frozen_weight": (
        "input weight bias gradient_accumulation_fusion allreduce_dgrad sequence_parallel tp_group "
        "grad_output_buffer=None wgrad_deferral_limit=None async_grad_allreduce=None"
    ),
    "copy_to_tensor_model_parallel_region": "input_ group=None",
    "reduce_from_tensor_model_parallel_region": "input_ group=None",
    "scatter_to_tensor_model_parallel_region": "input_ group=None",
    "gather_from_tensor_model_parallel_region": "input_ group=None",
    "scatter_to_sequence_parallel_region": "input_ group=None",
    "gather_from_sequence_parallel_region": (
        "input_ tensor_parallel_output_grad=True group=None output_split_sizes=None "
        "use_global_buffer=False"
    ),
    "reduce_scatter_to_sequence_parallel_region": (
        "input_ group=None input_split_sizes=None use_global_buffer=False"
    ),
    "all_gather_last_dim_from_tensor_parallel_region": "input_ group=None",
    "reduce_scatter_last_dim_to_tensor_parallel_region": "input_ group=None",
    "all_to_all": "group input_ output_split_sizes_=None input_split_sizes=None",
    "all_to_all_sp2hp": "input_ group=None",
    "all_to_all_hp2sp": "input_ group=None",
    "checkpoint": "function distribute_saved_activations",
    "get_cuda_rng_tracker": (
        "use_te_rng_tracker=False inference_rng_tracker=False use_cudagraphable_rng=False"
    ),
    "get_data_parallel_rng_tracker_name": "",
    "get_expert_parallel_rng_tracker_name": "",
    "model_parallel_cuda_manual_seed": (
        "seed te_rng_tracker=False inference_rng_tracker=False use_cudagraphable_rng=False "
        "tp_rank=None ep_rank=None etp_rank=None force_reset_rng=False"
    ),
    "CudaRNGStatesTracker": "use_cudagraphable_rng=False is_inference_rng_tracker=False",
    "CudaRNGStatesTracker.is_initialized": "self",
    "CudaRNGStatesTracker.reset": "self",
    "CudaRNGStatesTracker.get_states": "self",
    "CudaRNGStatesTracker.set_states": "self states",
    "CudaRNGStatesTracker.add": "self name seed",
    "CudaRNGStatesTracker.fork": "self name='model-parallel-rng'",
    "random.initialize_rng_tracker": (
        "use_te_rng_tracker=False inference_rng_tracker=False use_cudagraphable_rng=False "
        "force_reset=False"
    ),
    "random.get_all_rng_states": "",
    "split_tensor_along_last_dim": "tensor num_partitions contiguous_split_chunks=False",
    "split_tensor_into_1d_equal_chunks": "tensor new_buffer=False tp_group=None",  # later
    "gather_split_1d_tensor": "tensor tp_group=None",  # later
    "VocabUtility.vocab_range_from_per_partition_vocab_size": (
        "per_partition_vocab_size rank world_size"
    ),
    "VocabUtility.vocab_range_from_global_vocab_size": "global_vocab_size rank world_size",
    "ColumnParallelLinear.forward": "self input_ weight=None runtime_gather_output=None",
    "RowParallelLinear.forward": "self input_",
    "VocabParallelEmbedding.forward": "self input_",
    "layers._initialize_affine_weight_gpu": (
        "weight init_method partition_dim stride=1 is_expert=False"
    ),
    "layers._initialize_affine_weight_cpu": (
        "weight output_size input_size per_partition_size partition_dim init_method stride=1 "
        "return_master_weight=False *params_dtype=torch.float32 *rank=None *world_size=None "
        "*skip_set_tensor_parallel_attributes=False"
    ),
}

# What kernbench adds, after all of Megatron's.
MORE = {
    "ColumnParallelLinear": ["kernel"],
    "RowParallelLinear": ["kernel"],
    "param_is_not_tensor_parallel_duplicate": ["expert_tp_group"],
    "initialize_model_parallel": ["rank_offset", "local_world_size"],
}

STATE: dict[str, str] = {
    "initialize_model_parallel": (
        "tensor_model_parallel_size=1 pipeline_model_parallel_size=1 "
        "virtual_pipeline_model_parallel_size=None pipeline_model_parallel_comm_backend=None "
        "use_sharp=False context_parallel_size=1 hierarchical_context_parallel_sizes=None "
        "hybrid_context_parallel=False expert_model_parallel_size=1 "
        "num_distributed_optimizer_instances=1 expert_tensor_parallel_size=None "
        "nccl_communicator_config_path=None distributed_timeout_minutes=30 "
        "order='tp-cp-ep-dp-pp' get_embedding_ranks=None get_position_embedding_ranks=None "
        # True there: see the function.
        "create_gloo_process_groups=False high_priority_stream_groups=None "
        "sharp_enabled_group=None create_all_gather_group=False"
    ),
    "RankGenerator": "tp ep dp pp cp order rank_offset=0",
    "default_embedding_ranks": "pp_ranks",
    "default_position_embedding_ranks": "pp_ranks",
    "destroy_global_memory_buffer": "",
    "destroy_model_parallel": "",
    "get_all_ranks": "",
    "get_amax_reduction_group": "with_context_parallel=False tp_only_amax_red=False",
    "get_context_parallel_global_ranks": "check_initialized=True",
    "get_context_parallel_group": "check_initialized=True",
    "get_context_parallel_rank": "",
    "get_context_parallel_world_size": "",
    "get_data_modulo_expert_parallel_group": "partial_expert_data_parallel=False",
    "get_data_parallel_group": (
        "with_context_parallel=False partial_data_parallel=False independent_all_gather=False"
    ),
    "get_data_parallel_group_gloo": "with_context_parallel=False partial_data_parallel=False",
    "get_data_parallel_rank": "with_context_parallel=False partial_data_parallel=False",
    "get_data_parallel_src_rank": "with_context_parallel=False",
    "get_data_parallel_world_size": "with_context_parallel=False partial_data_parallel=False",
    "get_embedding_group": "check_initialized=True",
    "get_expert_data_parallel_group": "check_initialized=True partial_expert_data_parallel=False",
    "get_expert_data_parallel_group_gloo": "partial_expert_data_parallel=False",
    "get_expert_data_parallel_rank": "partial_expert_data_parallel=False",
    "get_expert_data_parallel_world_size": "partial_expert_data_parallel=False",
    "get_expert_model_parallel_group": "check_initialized=True",
    "get_expert_model_parallel_rank": "",
    "get_expert_model_parallel_src_rank": "",
    "get_expert_model_parallel_world_size": "",
    "get_expert_tensor_and_model_parallel_group": "check_initialized=True",
    "get_expert_tensor_and_model_parallel_rank": "",
    "get_expert_tensor_and_model_parallel_world_size": "",
    "get_expert_tensor_model_pipeline_parallel_group": "check_initialized=True",
    "get_expert_tensor_parallel_group": "check_initialized=True",
    "get_expert_tensor_parallel_rank": "",
    "get_expert_tensor_parallel_world_size": "",
    "get_global_memory_buffer": "",
    "get_global_symmetric_memory_buffer": "",
    "get_hierarchical_context_parallel_groups": "check_initialized=True",
    "get_hybrid_data_context_parallel_groups": "check_initialized=True group_size=None",
    "get_inter_distributed_optimizer_instance_group": "check_initialized=True",
    "get_intra_distributed_optimizer_instance_group": "check_initialized=True",
    "get_model_parallel_group": "check_initialized=True",
    "get_model_parallel_src_rank": "",
    "get_pipeline_model_parallel_first_rank": "",
    "get_pipeline_model_parallel_group": "check_initialized=True",
    "get_pipeline_model_parallel_last_rank": "",
    "get_pipeline_model_parallel_next_rank": "",
    "get_pipeline_model_parallel_prev_rank": "",
    "get_pipeline_model_parallel_rank": "",
    "get_pipeline_model_parallel_world_size": "",
    "get_position_embedding_group": "check_initialized=True",
    "get_tensor_and_context_parallel_group": "check_initialized=True",
    "get_tensor_and_context_parallel_rank": "",
    "get_tensor_and_context_parallel_world_size": "",
    "get_tensor_and_data_parallel_group": "check_initialized=True with_context_parallel=False",
    "get_tensor_model_parallel_group": "check_initialized=True",
    "get_tensor_model_parallel_rank": "",
    "get_tensor_model_parallel_src_rank": "",
    "get_tensor_model_parallel_world_size": "",
    "get_virtual_pipeline_model_parallel_rank": "",
    "get_virtual_pipeline_model_parallel_world_size": "",
    "has_separate_all_gather_group": "",
    "is_initialized": "",
    "is_pipeline_first_stage": "ignore_virtual=True vp_stage=None",
    "is_pipeline_last_stage": "ignore_virtual=True vp_stage=None",
    "is_rank_in_embedding_group": "ignore_virtual=True vp_stage=None",
    "is_rank_in_position_embedding_group": "",
    "is_unitialized": "",
    "model_parallel_is_initialized": "",
    "set_data_parallel_rank": "rank",
    "set_expert_model_parallel_rank": "rank",
    "set_expert_model_parallel_world_size": "world_size",
    "set_expert_tensor_parallel_rank": "rank",
    "set_expert_tensor_parallel_world_size": "world_size",
    "set_pipeline_model_parallel_rank": "rank",
    "set_pipeline_model_parallel_world_size": "world_size",
    "set_tensor_model_parallel_rank": "rank",
    "set_tensor_model_parallel_world_size": "world_size",
    "set_virtual_pipeline_model_parallel_rank": "rank",
    "set_virtual_pipeline_model_parallel_world_size": "world_size",
}


def signature_of(thing: Any, more: list[str]) -> str:
    """Returns the parameters in the form of the tables, without those that kernbench adds."""
    words = []
    for name, each in inspect.signature(thing).parameters.items():
        if name in more or each.kind is each.VAR_POSITIONAL:
            continue
        star = "*" if each.kind is each.KEYWORD_ONLY else ""
        given = each.default is not each.empty
        default = "torch.float32" if each.default is torch.float32 else repr(each.default)
        words.append(f"{star}{name}={default}" if given else f"{star}{name}")
    return " ".join(words)


@pytest.mark.parametrize("name", SIGNATURES)
def test_names_of_tensor_parallel(name: str) -> None:
    thing: Any = tp
    for part in name.split("."):
        thing = getattr(thing, part)
    more = MORE.get(name, [])
    assert signature_of(thing, more) == SIGNATURES[name]
    assert set(more) <= set(inspect.signature(thing).parameters)
    if "." not in name:
        assert name in tp.__all__


@pytest.mark.parametrize("name", STATE)
def test_names_of_parallel_state(name: str) -> None:
    assert name in ps.__all__
    assert getattr(tp.parallel_state, name) is getattr(ps, name)
    assert signature_of(getattr(ps, name), MORE.get(name, [])) == STATE[name]


def test_nothing_that_is_public_is_left_out_of_the_tables() -> None:
    state = {name for name in ps.__all__ if re.match("get_|set_|is_|has_|init|dest|def", name)}
    assert state <= set(STATE)
    functions = {name for name in tp.__all__ if not inspect.ismodule(getattr(tp, name))}
    assert functions - {"drain_embedding_wgrad_compute", "VocabUtility"} <= set(SIGNATURES)


def test_modules_have_the_names_too() -> None:
    """As `from megatron.core.tensor_parallel.layers import ...` has."""
    for module, names in (
        (tp.layers, [*linear.__all__[1:], *affine.__all__]),
        (tp.random, ["checkpoint", "model_parallel_cuda_manual_seed", "CudaRNGStatesTracker"]),
        (tp.data, ["broadcast_data"]),
        (tp.cross_entropy, ["vocab_parallel_cross_entropy"]),
        (tp.utils, ["VocabUtility", "split_tensor_along_last_dim"]),
    ):
        for name in names:
            assert getattr(tp, name, getattr(module, name)) is getattr(module, name)
