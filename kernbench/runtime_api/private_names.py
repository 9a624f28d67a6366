"""Private names of PyTorch that the bridge uses, in all versions that it knows."""

from collections.abc import Mapping
from functools import reduce
from types import ModuleType
from typing import Final

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "torch": (
        "Tensor._make_wrapper_subclass",
        "UntypedStorage._cdata",
        "UntypedStorage._write_file",
        "_GLOBAL_DEVICE_CONTEXT",
        "_has_compatible_shallow_copy_type",
        "_neg_view",
        "_tensor_str.PRINT_OPTS",
        "library.Library._destroy",
        "ops.aten._foreach_copy_",
        "ops.aten._fused_rms_norm",
        "ops.aten._local_scalar_dense",
        "ops.aten._pack_padded_sequence",
        "ops.aten._to_copy.default",
        "ops.aten._scaled_dot_product_attention_math",
        "ops.aten._scaled_dot_product_cudnn_attention",
        "ops.aten._scaled_dot_product_efficient_attention",
        "ops.aten._scaled_dot_product_flash_attention",
        "ops.aten._scaled_dot_product_flash_attention_for_cpu",
    ),
    "torch._C": (
        "DisableTorchFunction",
        "DisableTorchFunctionSubclass",
        "DispatchKey.Autograd",
        "DispatchKey.AutocastCPU",
        "DispatchKey.AutocastCUDA",
        "DispatchKey.CPU",
        "DispatchKey.CUDA",
        "DispatchKey.CompositeImplicitAutograd",
        "DispatchKeySet",
        "_AutoDispatchBelowAutograd",
        "_DisableAutocast",
        "_EnableTorchFunction",
        "_ExcludeDispatchKeyGuard",
        "_ForceDispatchKeyGuard",
        "_TorchDispatchModeKey.FAKE",
        "_current_autograd_node",
        "_dispatch_get_all_op_names",
        "_dispatch_has_kernel_for_dispatch_key",
        "_dispatch_library",
        "_dispatch_tls_local_exclude_set",
        "_dispatch_tls_local_include_set",
        "_dispatch_tls_set_dispatch_key_included",
        "_dynamo.guards._empty_strided_cuda",
        "_functorch.get_unwrapped",
        "_functorch.is_functorch_wrapped_tensor",
        "_get_accelerator",
        "_get_cublas_allow_bf16_reduced_precision_reduction",
        "_get_cublas_allow_fp16_accumulation",
        "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_get_cudnn_allow_tf32",
        "_get_cudnn_benchmark",
        "_get_cudnn_deterministic",
        "_get_cudnn_enabled",
        "_get_cudnn_sdp_enabled",
        "_get_deterministic_algorithms_warn_only",
        "_get_deterministic_fill_uninitialized_memory",
        "_get_dispatch_mode",
        "_get_flash_sdp_enabled",
        "_get_float32_matmul_precision",
        "_get_fp32_precision_getter",
        "_get_math_sdp_allow_fp16_bf16_reduction",
        "_get_math_sdp_enabled",
        "_get_mem_efficient_sdp_enabled",
        "_get_mkldnn_deterministic",
        "_get_mkldnn_enabled",
        "_get_nnpack_enabled",
        "_get_overrideable_sdp_enabled",
        "_get_sdp_priority_order",
        "_get_warnAlways",
        "_group_tensors_by_device_and_dtype",
        "_is_multithreading_enabled",
        "_len_torch_dispatch_stack",
        "_len_torch_function_stack",
        "_nn._parse_to",
        "_pop_torch_dispatch_stack",
        "_push_on_torch_dispatch_stack",
        "_set_cublas_allow_bf16_reduced_precision_reduction",
        "_set_cublas_allow_fp16_accumulation",
        "_set_cublas_allow_fp16_reduced_precision_reduction",
        "_set_cudnn_allow_tf32",
        "_set_cudnn_benchmark",
        "_set_cudnn_deterministic",
        "_set_cudnn_enabled",
        "_set_deterministic_algorithms",
        "_set_deterministic_fill_uninitialized_memory",
        "_set_float32_matmul_precision",
        "_set_fp32_precision_setter",
        "_set_math_sdp_allow_fp16_bf16_reduction",
        "_set_mkldnn_deterministic",
        "_set_mkldnn_enabled",
        "_set_nnpack_enabled",
        "_set_sdp_priority_order",
        "_set_sdp_use_cudnn",
        "_set_sdp_use_flash",
        "_set_sdp_use_math",
        "_set_sdp_use_mem_efficient",
        "_set_sdp_use_overrideable",
        "_set_warnAlways",
        "_swap_tensor_impl",
    ),
    "torch._C._distributed_c10d": (
        "Work",
        "_SymmetricMemory.signal_pad_size",
        "_register_process_group",
        "_set_thread_isolation_mode",
    ),
    "torch._dynamo._trace_wrapped_higher_order_op": ("TransformGetItemToIndex",),
    "torch._higher_order_ops.flex_attention": (
        "_permute_strides",
        "flex_attention._dispatch_cache",
        "flex_attention.py_kernels",
        "flex_attention_backward",
        "flex_attention_backward_fake_tensor_mode",
        "flex_attention_fake_impl",
        "math_attention",
    ),
    "torch._library.simple_registry": ("singleton.find",),
    "torch._subclasses.fake_tensor": ("FakeTensor",),
    "torch._ops": ("HigherOrderOperator", "OpOverload"),
    "torch.library": ("_impls",),
    "torch.autograd.graph": ("_engine_run_backward",),
    "torch.distributed": (
        "Reducer._install_post_backward_futures",
        "Reducer._run_allreduce_hook",
        "_register_comm_hook",
        "_verify_params_across_processes",
    ),
    "torch._utils": ("ExceptionWrapper",),
    "torch.cuda": ("_lazy_init",),
    "torch.distributed._functional_collectives": ("AsyncCollectiveTensor",),
    "torch.distributed.checkpoint.filesystem": ("_FileSystemWriter.write_data",),
    "torch.distributed.distributed_c10d": (
        "_World",
        "_check_p2p_op_list",
        "_resolve_process_group",
        "_find_pg_by_ranks_and_tag",
        "_get_default_group",
        "_new_process_group_helper",
        "_process_group_name",
        "_rank_not_in_group",
        "_register_pg_in_world",
        "_set_pg_timeout",
        "_warn_not_in_group",
        "_world",
    ),
    "torch.distributed._symmetric_memory": (
        "_SymmetricMemory",
        "_should_use_implicit_mempool",
    ),
    "torch.distributed.fsdp._debug_utils": ("SimpleProfiler.profiling", "SimpleProfiler.results"),
    "torch.distributed.fsdp._init_utils": ("torch",),
    "torch.distributed.tensor._dispatch": ("run_dtensor_rng_op.py_kernels",),
    "torch.distributed.tensor._random": ("OffsetBasedRNGTracker._distribute_region",),
    "torch.jit._builtins": ("_find_builtin",),
    "torch.nn.attention.flex_attention": (
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG",
        "_create_empty_block_mask",
    ),
    "torch.nn.init": ("_no_grad_trunc_normal_",),
    "torch.nn.parallel.distributed": ("_setup_mixed_precision_params",),
    "torch.overrides": ("_get_current_function_mode_stack",),
    "torch.utils._device": ("DeviceContext", "_device_constructors"),
    "torch.utils._python_dispatch": ("TorchDispatchMode",),
    "torch.utils._pytree": ("tree_leaves", "tree_map_only"),
    "torch.utils.data._utils.pin_memory": ("pin_memory",),
    "torch.utils.data._utils.worker": ("WorkerInfo", "_generate_state", "_worker_info"),
    "torch.utils.data.dataloader": (
        "DataLoader._get_iterator",
        "_BaseDataLoaderIter",
        "_DatasetKind.Iterable",
        "_DatasetKind.create_fetcher",
    ),
}
"""The names, by module."""


def missing_names(
    names: Mapping[str, tuple[str, ...]], modules: Mapping[str, ModuleType]
) -> list[str]:
    """Returns which names of a table modules lack, each behind its module.

    Args:
        names: Paths of names, by module.
        modules: Modules by name; those that the table does not have lack nothing.
    """
    return [
        f"{name}.{path}"
        for name, module in modules.items()
        for path in names.get(name, ())
        if not _has(module, path)
    ]


def _has(value: object, path: str) -> bool:
    try:
        reduce(getattr, path.split("."), value)
    except AttributeError:
        return False
    return True
