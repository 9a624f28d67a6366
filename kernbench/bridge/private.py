"""Private names of PyTorch 2.13 on which the bridge stands, and a check that they are there."""

import importlib
import sys
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Final

import torch

from kernbench.errors import UsageError

PRIVATE: Final[Mapping[str, tuple[str, ...]]] = {
    "torch": (
        "Tensor._make_wrapper_subclass",
        "UntypedStorage._cdata",
        "UntypedStorage._write_file",
        "_GLOBAL_DEVICE_CONTEXT",
        "_has_compatible_shallow_copy_type",
        "_tensor_str.PRINT_OPTS",
        "library.Library._destroy",
        "ops.aten._fused_rms_norm",
        "ops.aten._scaled_dot_product_attention_math",
        "ops.aten._scaled_dot_product_cudnn_attention",
        "ops.aten._scaled_dot_product_efficient_attention",
        "ops.aten._scaled_dot_product_flash_attention",
        "ops.aten._scaled_dot_product_flash_attention_for_cpu",
    ),
    "torch._C": (
        "_AutoDispatchBelowAutograd",
        "_EnableTorchFunction",
        "_ExcludeDispatchKeyGuard",
        "_ForceDispatchKeyGuard",
        "_TorchDispatchModeKey",
        "_dispatch_get_all_op_names",
        "_dispatch_has_kernel_for_dispatch_key",
        "_dispatch_tls_local_exclude_set",
        "_dispatch_tls_local_include_set",
        "_dispatch_tls_set_dispatch_key_included",
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
    "torch._C._distributed_c10d": ("Work", "_set_thread_isolation_mode"),
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
    "torch._ops": ("HigherOrderOperator", "OpOverload"),
    "torch.autograd.graph": ("_engine_run_backward",),
    "torch.distributed": (
        "Reducer._install_post_backward_futures",
        "Reducer._run_allreduce_hook",
        "_register_comm_hook",
    ),
    "torch.distributed._functional_collectives": ("AsyncCollectiveTensor",),
    "torch.distributed.checkpoint.filesystem": ("_FileSystemWriter.write_data",),
    "torch.distributed.distributed_c10d": (
        "_resolve_process_group",
        "_find_pg_by_ranks_and_tag",
        "_new_process_group_helper",
        "_process_group_name",
        "_rank_not_in_group",
        "_register_pg_in_world",
        "_set_pg_timeout",
        "_warn_not_in_group",
        "_world",
    ),
    "torch.distributed.pipelining.schedules": ("_PipelineSchedule._warmup_p2p",),
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
    "torch.utils.data._utils.worker": ("_generate_state", "_worker_info"),
    "torch.utils.data.dataloader": ("DataLoader._get_iterator", "_BaseDataLoaderIter"),
}
"""The names, by module. Those of a module that a program does not import need not be there."""


def check_private_names(modules: Iterable[str] | None = None) -> None:
    """Checks that this PyTorch has the private names that are used.

    Args:
        modules: Names of modules that have been imported; None: all, which are imported for it.

    Raises:
        UsageError: If names are missing; the error lists them.
    """
    if modules is None:
        modules = PRIVATE
        for module in modules:
            importlib.import_module(module)
    missing = [
        f"{module}.{name}"
        for module in modules
        for name in PRIVATE.get(module, ())
        if not _has(sys.modules[module], name)
    ]
    if missing:
        raise UsageError(
            f"PyTorch {torch.__version__} lacks what programs of PyTorch need here",
            [f"missing: {', '.join(missing)}"],
            hint="pip install 'kernbench[torch]' takes a version that is known to work",
        )


def _has(value: object, path: str) -> bool:
    try:
        reduce(getattr, path.split("."), value)
    except AttributeError:
        return False
    return True
